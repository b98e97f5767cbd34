//! What the configuration has to know of the host and of the environment: the only place that reads
//! the environment.

use super::Config;
use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Facts that a configuration may refuse to run with. `Default`: a host with nothing to refuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Whether any swap is in use.
    pub swap_on: bool,
    /// Whether controllers are on cgroup v1.
    pub cgroup_v1: bool,
    /// Kernel settings that differ from what the kubelet expects.
    pub kernel: Vec<KernelSetting>,
}

/// A kernel setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSetting {
    /// `vm/overcommit_memory`
    pub name: &'static str,
    /// What the kubelet expects.
    pub expected: u64,
    /// What is set.
    pub actual: u64,
}

/// What `protectKernelDefaults` protects.
const KERNEL: [(&str, u64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

impl HostFacts {
    /// Reads them. What can't be read counts as not there, as for the kubelet.
    #[must_use]
    pub fn read() -> Self {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let kernel = KERNEL.iter().filter_map(|(name, expected)| {
            let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            let actual = text.trim().parse().ok()?;
            (actual != *expected).then_some(KernelSetting { name, expected: *expected, actual })
        });
        Self {
            swap_on: swaps.lines().skip(1).any(|line| !line.trim().is_empty()),
            cgroup_v1: Path::new("/sys/fs/cgroup").is_dir()
                && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            kernel: kernel.collect(),
        }
    }
}

/// What the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NOTIFY_SOCKET`: where systemd waits for READY=1.
    pub notify_socket: Option<OsString>,
    /// `WATCHDOG_USEC`, when `WATCHDOG_PID` names this process: systemd wants a sign of life this often.
    pub watchdog: Option<Duration>,
    /// `JOURNAL_STREAM`: device and inode of the stream that the journal reads.
    pub journal_stream: Option<(u64, u64)>,
    /// `NO_COLOR` is set, or `TERM` is `dumb`.
    pub no_color: bool,
    /// `HOME`, when it is absolute.
    pub home_dir: Option<PathBuf>,
}

impl Environment {
    /// Reads it.
    #[must_use]
    pub fn read() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let journal_stream = set("JOURNAL_STREAM").and_then(|value| {
            let (device, inode) = value.to_str()?.split_once(':')?;
            Some((device.parse().ok()?, inode.parse().ok()?))
        });
        let number = |name: &str| set(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0);
        Self {
            notify_socket: set("NOTIFY_SOCKET"),
            watchdog: watchdog.map(Duration::from_micros),
            journal_stream,
            no_color: set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb"),
            home_dir: set("HOME").map(PathBuf::from).filter(|home| home.is_absolute()),
        }
    }

    /// Adds to a configuration what only the environment knows.
    pub fn complete(&self, config: &mut Config) {
        config.process.notify_socket.clone_from(&self.notify_socket);
        config.process.watchdog = self.watchdog;
        config.paths.home_dir.clone_from(&self.home_dir);
    }
}
