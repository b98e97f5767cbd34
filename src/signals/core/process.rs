//! Texts about tasks and processes.

/// Tasks of the whole machine: the second number of the fourth field of `/proc/loadavg`.
#[must_use]
pub(in crate::signals) fn tasks(loadavg: &str) -> Option<u64> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

/// A process, by its `/proc/<pid>/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The first 15 bytes of its command's name.
    pub name: String,
    /// `VmRSS` in bytes; 0 for a kernel thread and for one that is gone.
    pub resident: u64,
    /// Its tasks.
    pub threads: u64,
}

/// Reads `/proc/<pid>/status`. A name may hold anything but a newline, which is written as `\n`.
#[must_use]
pub(in crate::signals) fn process(status: &str) -> Option<Process> {
    let resident = match field(status, "VmRSS") {
        None => 0,
        Some(text) => bytes(text)?,
    };
    Some(Process {
        name: field(status, "Name")?.to_owned(),
        resident,
        threads: field(status, "Threads")?.parse().ok()?,
    })
}

/// Bytes of address space, by a `/proc/<pid>/status`.
#[must_use]
pub(in crate::signals) fn address_space(status: &str) -> Option<u64> {
    bytes(field(status, "VmSize")?)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn bytes(kibibytes: &str) -> Option<u64> {
    let number = kibibytes.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?;
    Some(number.saturating_mul(1024))
}

/// Whether a process is in one of these cgroups or below, by its `/proc/<pid>/cgroup`.
#[must_use]
pub(in crate::signals) fn is_below(cgroup: &str, parents: &[String]) -> bool {
    let places = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut places = places.flat_map(|place| parents.iter().map(move |parent| (place, parent)));
    places.any(|(place, parent)| {
        place
            .strip_prefix(parent.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted() {
        assert_eq!(tasks("1.53 0.48 1.50 6/111 19493\n"), Some(111));
        for bad in ["", "1 2 3", "1 2 3 4", "1 2 3 4/ 5", "1 2 3 4/x 5", "1 2 3 4/-5 6"] {
            assert_eq!(tasks(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_is_read() {
        let status = "Name:\tmy prog: x\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t12\nVmPeak:\t9 kB\n\
                      VmRSS:\t    2048 kB\nRssAnon:\t1 kB\nThreads:\t3\n";
        let expected = Process { name: "my prog: x".to_owned(), resident: 2 << 20, threads: 3 };
        assert_eq!(process(status), Some(expected));
        let kernel = "Name:\tkthreadd\nThreads:\t1\n";
        assert_eq!(process(kernel).map(|p| p.resident), Some(0));
        assert_eq!(process("VmRSS:\t1 kB\nThreads:\t1\n"), None);
        assert_eq!(process(&status.replace("2048 kB", "many")), None);
    }

    #[test]
    fn processes_of_pods_are_known_by_their_cgroup() {
        let parents = ["/kubepods".to_owned(), "/kubepods.slice".to_owned()];
        let v1 = "5:memory:/kubepods/besteffort/podab/12\n1:name=systemd:/\n0::/system.slice\n";
        assert!(is_below(v1, &parents));
        assert!(is_below("0::/kubepods.slice/kubepods-podab.slice/cri.scope\n", &parents));
        assert!(is_below("0::/kubepods\n", &parents));
        assert!(!is_below("0::/kubepods-of-mine/a\n", &parents));
        assert!(!is_below("0::/system.slice/kubepods\n", &parents));
        assert!(!is_below("", &parents));
    }
}
