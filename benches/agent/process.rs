//! What a process uses, from /proc and its CPU clock.

use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use std::{fs, path::Path, time::Duration};

/// A process, by its pid.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pid: i32,
}

impl Process {
    /// The process with that pid.
    pub fn of(pid: u32) -> Self {
        Self { pid: i32::try_from(pid).unwrap() }
    }

    /// Every process whose command line names a file below `dir`.
    pub fn naming(dir: &Path) -> Vec<Self> {
        let below = format!("{}/", dir.display());
        let names = |pid: i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&below)
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| names(*pid)).map(|pid| Self { pid }).collect()
    }

    /// CPU time that it has used, all its threads together, ended ones too. The same as utime +
    /// stime of `/proc/PID/stat`, in nanoseconds where that has hundredths of a second. Zero when
    /// the process is gone.
    pub fn cpu(self) -> Duration {
        let clock = clock_getcpuclockid(Pid::from_raw(self.pid));
        clock.and_then(clock_gettime).map(Duration::from).unwrap_or_default()
    }

    /// A number of `/proc/PID/status`: `VmRSS`, `RssAnon`, `RssFile` and `VmHWM` in KiB, `Threads`.
    pub fn status(self, field: &str) -> u32 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        number(&text, field).try_into().unwrap()
    }

    /// How often its threads have gone to sleep by themselves so far, as often as they were woken;
    /// those that have ended are not counted.
    pub fn sleeps(self) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten();
        let texts =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        texts.map(|text| number(&text, "voluntary_ctxt_switches")).sum()
    }

    /// Bytes that it has caused to be written to disks so far (`write_bytes` of `/proc/PID/io`).
    pub fn written(self) -> u64 {
        number(&fs::read_to_string(format!("/proc/{}/io", self.pid)).unwrap(), "write_bytes")
    }

    /// Resident memory in MiB; `field` is a size of [`Self::status`].
    pub fn memory_mib(self, field: &str) -> f64 {
        f64::from(self.status(field)) / 1024.0
    }
}

/// The number after `field:` at the beginning of a line.
fn number(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// CPU time of several processes together.
pub fn cpu_of(processes: &[Process]) -> Duration {
    processes.iter().map(|process| process.cpu()).sum()
}
