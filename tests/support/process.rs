//! Processes, looked at from the host, and stopped.

use super::{
    poll_until,
    world::{SOON, World},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// A process, by its pid on the host.
pub struct Process {
    proc: PathBuf,
}

impl Process {
    /// The first process of the one running container `container` of a pod on a real runtime.
    #[track_caller]
    pub fn of(world: &World, pod: &str, container: &str) -> Self {
        Self::by_pid(world.cri.container_pid(&world.running_id(pod, container)))
    }

    /// The process with that pid.
    pub fn by_pid(pid: i32) -> Self {
        Self { proc: PathBuf::from(format!("/proc/{pid}")) }
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        self.proc.exists()
    }

    /// Its environment.
    pub fn env(&self) -> BTreeMap<String, String> {
        let text = self.read_proc("environ");
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Its arguments.
    pub fn command_line(&self) -> Vec<String> {
        let text = self.read_proc("cmdline");
        text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
    }

    /// A field of `/proc/PID/status`, spaces joined.
    #[track_caller]
    pub fn status(&self, field: &str) -> String {
        let text = self.read_proc("status");
        let prefix = format!("{field}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The state of each of its threads, as in `/proc/PID/stat`: `R`, `S`, `D`, `T`, ...
    pub fn thread_states(&self) -> Vec<char> {
        let threads = fs::read_dir(self.proc.join("task")).unwrap();
        // A thread that ends meanwhile has no file any more.
        let stats =
            threads.filter_map(|one| fs::read_to_string(one.unwrap().path().join("stat")).ok());
        stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
    }

    /// A file as it sees it.
    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        let path = self.path(path);
        fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
    }

    /// Where on the host a path of its lies. Absolute symlinks on the way would lead astray.
    pub fn path(&self, path: &str) -> PathBuf {
        self.proc.join("root").join(path.trim_start_matches('/'))
    }

    /// Where a file of its `/proc` directory lies: `cwd`, `fd/0`.
    pub fn in_proc(&self, file: &str) -> PathBuf {
        self.proc.join(file)
    }

    /// Names a namespace of it: equal names, same namespace.
    pub fn namespace(&self, kind: &str) -> PathBuf {
        fs::read_link(self.proc.join("ns").join(kind)).unwrap()
    }

    /// Its line in `/proc/PID/mountinfo` for a mount point.
    #[track_caller]
    pub fn mount(&self, point: &str) -> String {
        let table = self.read_proc("mountinfo");
        let line = table.lines().rfind(|line| line.split(' ').nth(4) == Some(point));
        line.unwrap_or_else(|| panic!("nothing is mounted on {point}:\n{table}")).to_owned()
    }

    /// Its `oom_score_adj`.
    pub fn oom_score_adj(&self) -> i64 {
        self.read_proc("oom_score_adj").trim().parse().unwrap()
    }

    /// Its cgroup directory, in the hierarchy of `controller` (v1) or in the one there is (v2).
    pub fn cgroup(&self, controller: &str) -> PathBuf {
        let text = self.read_proc("cgroup");
        let lines = text.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
        let mut unified = None;
        for fields in lines {
            let path = fields[2].trim_start_matches('/');
            if fields[1].split(',').any(|name| name == controller) {
                return PathBuf::from("/sys/fs/cgroup").join(controller).join(path);
            }
            if fields[0] == "0" {
                unified = Some(PathBuf::from("/sys/fs/cgroup").join(path));
            }
        }
        unified.unwrap()
    }

    fn read_proc(&self, file: &str) -> String {
        let bytes = fs::read(self.proc.join(file)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The machine's memory, in KiB.
pub fn memory_kib() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    total.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// A process stopped by SIGSTOP; it goes on when this is dropped, so that a failed test can be
/// cleaned up.
#[must_use]
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it, and waits until each of its threads stands still: on a busy machine one may still
    /// answer a request after the signal was sent.
    #[track_caller]
    pub fn stop(process: Pid) -> Self {
        kill(process, Signal::SIGSTOP).unwrap();
        let stopped = Self(process);
        let moving = poll_until(SOON, || stopped.moving(), Vec::is_empty);
        assert!(moving.is_ok(), "process {process} does not stop: {moving:?}");
        stopped
    }

    /// The threads that do not stand still, as the kernel describes them.
    fn moving(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        // The state follows the name, which is in parentheses: T for stopped.
        let stands = |stat: &String| {
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
            matches!(state, Some(Some('T' | 't' | 'X' | 'Z')))
        };
        stats.filter(|stat| !stands(stat)).collect()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Gone already is fine.
        let _gone = kill(self.0, Signal::SIGCONT);
    }
}

/// The same of the test's own process.
pub fn myself() -> Process {
    Process { proc: PathBuf::from("/proc/self") }
}

/// A cgroup's limit, by its name on v1 or on v2, whichever is there.
#[track_caller]
pub fn cgroup_value(cgroup: &std::path::Path, v1: &str, v2: &str) -> String {
    let file = [v1, v2].map(|name| cgroup.join(name)).into_iter().find(|file| file.exists());
    let file = file.unwrap_or_else(|| panic!("neither {v1} nor {v2} in {}", cgroup.display()));
    fs::read_to_string(file).unwrap().trim().to_owned()
}
