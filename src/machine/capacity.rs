//! CPUs, memory, swap, process ids and huge pages, from /proc and /sys.

use crate::model::{CollectOrdered as _, NodeCapacity};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};
use thiserror::Error;

/// Why the capacity of the machine is not known.
#[derive(Debug, Error)]
pub enum CapacityError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} has no {wanted}")]
    Invalid { path: PathBuf, wanted: &'static str },
}

/// Reads what the machine has to share out.
///
/// # Errors
/// When a file is missing or unreadable, or doesn't hold what it should.
pub fn capacity(root: &Path) -> Result<NodeCapacity, CapacityError> {
    let cpus = cpus(root)?;
    let path = root.join("proc/meminfo");
    let memory_bytes = meminfo(&read(&path)?, "MemTotal:")
        .ok_or(CapacityError::Invalid { path, wanted: "MemTotal" })?;
    let kernel = root.join("proc/sys/kernel");
    Ok(NodeCapacity {
        cpu_milli: i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000),
        memory_bytes,
        pids: number(kernel.join("pid_max"))?.min(number(kernel.join("threads-max"))?),
        hugepages: hugepages(&root.join("sys/kernel/mm/hugepages"))?,
    })
}

/// The CPUs of the machine, whichever of them this process may use.
///
/// # Errors
/// When `/proc/cpuinfo` can't be read.
pub fn cpus(root: &Path) -> Result<u64, CapacityError> {
    let text = read(&root.join("proc/cpuinfo"))?;
    match text.lines().filter(|line| line.starts_with("processor")).count() {
        // Some architectures print no `processor` lines.
        0 => Ok(std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)),
        cpus => Ok(cpus as u64),
    }
}

/// Physical cores of the CPUs that are on; 0 when the kernel does not tell.
pub fn physical_cores(root: &Path) -> u64 {
    let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    let core = |cpu: fs::DirEntry| {
        let topology = cpu.path().join("topology");
        let id = |name: &str| fs::read_to_string(topology.join(name)).ok();
        Some((id("physical_package_id")?, id("core_id")?))
    };
    let cores: BTreeSet<(String, String)> = cpus.filter_map(core).collect_ordered();
    cores.len() as u64
}

/// Bytes of swap; 0 when there is none or it can't be read.
pub fn swap_bytes(root: &Path) -> i64 {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    meminfo(&text, "SwapTotal:").unwrap_or_default()
}

/// Whether the kernel swaps to a device or a file. An unreadable list counts as no swap, as for the
/// kubelet.
pub fn swap_is_on(root: &Path) -> bool {
    let swaps = fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// A field of /proc/meminfo in bytes.
fn meminfo(text: &str, field: &str) -> Option<i64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: i64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

/// Bytes by page size in bytes. A kernel without huge pages has no page size.
fn hugepages(directory: &Path) -> Result<BTreeMap<u64, i64>, CapacityError> {
    let failed = |source| CapacityError::Read { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut pools = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(page_bytes) = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
            .and_then(|kibibytes| kibibytes.parse::<i64>().ok()?.checked_mul(1024))
        else {
            continue;
        };
        let pages = number(entry.path().join("nr_hugepages"))?;
        pools.insert(page_bytes.unsigned_abs(), pages.saturating_mul(page_bytes));
    }
    Ok(pools)
}

fn read(path: &Path) -> Result<String, CapacityError> {
    fs::read_to_string(path).map_err(|source| CapacityError::Read { path: path.to_owned(), source })
}

fn number(path: PathBuf) -> Result<i64, CapacityError> {
    let text = read(&path)?;
    text.trim().parse().map_err(|_| CapacityError::Invalid { path, wanted: "number" })
}
