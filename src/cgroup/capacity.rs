//! What the machine has, read from /proc and /sys.

use super::{CgroupError, NodeCapacity, core::page_size_name};
use std::{fs, io, path::Path};

impl NodeCapacity {
    /// Reads the capacity from the proc file system at `proc_root` and sysfs at `sys_root`.
    ///
    /// # Errors
    /// When a file is missing or unreadable, or doesn't hold what it should.
    pub fn read(proc_root: &Path, sys_root: &Path) -> Result<Self, CgroupError> {
        let cpus = read(&proc_root.join("cpuinfo"))?
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count();
        let cpus = if cpus > 0 {
            cpus
        } else {
            // Some architectures print no `processor` lines.
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        };
        let path = proc_root.join("meminfo");
        let kibibytes = read(&path)?
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.trim().strip_suffix("kB"))
            .and_then(|number| number.trim().parse::<i64>().ok())
            .ok_or_else(|| invalid(&path, "no MemTotal"))?;
        let pids = number(&proc_root.join("sys/kernel/pid_max"))?
            .min(number(&proc_root.join("sys/kernel/threads-max"))?);
        Ok(Self {
            cpu_milli: i64::try_from(cpus).unwrap_or(1).saturating_mul(1000),
            memory_bytes: kibibytes.saturating_mul(1024),
            pids,
            hugepages: hugepages(&sys_root.join("kernel/mm/hugepages"))?,
        })
    }
}

/// Pool of each page size, smallest first. A kernel without huge pages has none.
fn hugepages(directory: &Path) -> Result<Vec<(String, i64)>, CgroupError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(directory, source)),
    };
    let mut pools = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| failed(directory, source))?;
        let name = entry.file_name();
        let Some(kibibytes) = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-"))
            .and_then(|size| size.strip_suffix("kB"))
            .and_then(|size| size.parse::<u64>().ok())
        else {
            continue;
        };
        let pages = number(&entry.path().join("nr_hugepages"))?;
        let bytes = kibibytes.saturating_mul(1024).min(i64::MAX.unsigned_abs());
        pools.push((kibibytes, pages.saturating_mul(i64::try_from(bytes).unwrap_or(i64::MAX))));
    }
    pools.sort_unstable();
    Ok(pools.into_iter().map(|(size, bytes)| (page_size_name(size), bytes)).collect())
}

fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| failed(path, source))
}

fn number(path: &Path) -> Result<i64, CgroupError> {
    read(path)?.trim().parse().map_err(|_| invalid(path, "not a number"))
}

fn failed(path: &Path, source: io::Error) -> CgroupError {
    CgroupError::Io { operation: "read", path: path.to_owned(), source }
}

fn invalid(path: &Path, what: &str) -> CgroupError {
    failed(path, io::Error::new(io::ErrorKind::InvalidData, what))
}
