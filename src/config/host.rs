//! What the configuration has to know of the host and of the environment: the only place that reads
//! the environment.

use super::{Config, shutdown};
use crate::machine;
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
        let kernel = KERNEL.iter().filter_map(|(name, expected)| {
            let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            let actual = text.trim().parse().ok()?;
            (actual != *expected).then_some(KernelSetting { name, expected: *expected, actual })
        });
        Self {
            swap_on: machine::swap_is_on(Path::new("/")),
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
    /// `WATCHDOG_USEC`, when `WATCHDOG_PID` names this process: systemd wants a sign of life this
    /// often.
    pub watchdog: Option<Duration>,
    /// `DBUS_SYSTEM_BUS_ADDRESS`, when it is the path of a socket.
    pub system_bus: Option<PathBuf>,
    /// `JOURNAL_STREAM`: device and inode of the stream that the journal reads.
    pub journal_stream: Option<(u64, u64)>,
    /// `NO_COLOR` is set, or `TERM` is `dumb`.
    pub no_color: bool,
    /// `CREDENTIALS_DIRECTORY`, when it is absolute.
    pub credentials: Option<PathBuf>,
    /// `HOME`, when it is absolute.
    pub home_dir: Option<PathBuf>,
}

/// The path out of `unix:path=/run/bus,guid=...`, the first of several addresses.
fn bus_path(address: &str) -> Option<PathBuf> {
    let keys = address.split(';').next()?.strip_prefix("unix:")?;
    let path = keys.split(',').find_map(|key| key.strip_prefix("path="))?;
    (path.starts_with('/') && !path.contains('%')).then(|| path.into())
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
            system_bus: set("DBUS_SYSTEM_BUS_ADDRESS")
                .and_then(|address| bus_path(address.to_str()?)),
            journal_stream,
            no_color: set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb"),
            credentials: set("CREDENTIALS_DIRECTORY")
                .map(PathBuf::from)
                .filter(|path| path.is_absolute()),
            home_dir: set("HOME").map(PathBuf::from).filter(|home| home.is_absolute()),
        }
    }

    /// Adds to a configuration what only the environment knows.
    pub fn complete(&self, config: &mut Config) {
        config.process.notify_socket.clone_from(&self.notify_socket);
        config.process.watchdog = self.watchdog;
        if let Some(bus) = &self.system_bus {
            config.process.system_bus.clone_from(bus);
        }
        if self.notify_socket.is_some() {
            config.shutdown.get_or_insert_with(shutdown::under_systemd);
        }
        config.paths.home_dir.clone_from(&self.home_dir);
        config.source.credentials.clone_from(&self.credentials);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::ShutdownPeriods;

    #[test]
    fn the_address_of_a_bus_may_be_a_path() {
        for (address, path) in [
            ("unix:path=/run/dbus/system_bus_socket", Some("/run/dbus/system_bus_socket")),
            ("unix:guid=1,path=/a/b;unix:path=/c", Some("/a/b")),
            ("unix:path=a", None),
            ("unix:abstract=/a", None),
            ("unix:path=/a%20b", None),
            ("tcp:host=localhost,port=1", None),
            ("", None),
        ] {
            assert_eq!(bus_path(address), path.map(PathBuf::from), "{address}");
        }
    }

    #[test]
    fn pods_have_shutdown_time_under_systemd_by_default() {
        let systemd = Environment { notify_socket: Some("/n".into()), ..Environment::default() };
        let after = |environment: &Environment, configured: Option<ShutdownPeriods>| {
            let mut config = Config { shutdown: configured, ..Config::default() };
            environment.complete(&mut config);
            config.shutdown.map(|periods| periods.total().as_secs())
        };
        assert_eq!(after(&Environment::default(), None), None);
        assert_eq!(after(&systemd, None), Some(30));
        assert_eq!(after(&systemd, Some(ShutdownPeriods::default())), Some(0));
        assert_eq!(systemd.notify_socket.as_deref().unwrap(), "/n");
    }
}
