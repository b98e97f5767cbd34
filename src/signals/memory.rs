//! Memory and process ids of the whole machine and of cgroups, on cgroup v1 and v2: which one it is shows in the
//! names of the files.

use super::{
    NoReading, Roots, Sample, absurd,
    core::{self, MemInfo},
    read,
};
use crate::{
    clock,
    model::{Reading, Signal},
};
use std::path::Path;

/// What `memory.available` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySignal {
    /// Capacity minus the working set of the root cgroup, as with the kubelet.
    #[default]
    WorkingSet,
    /// The kernel's own estimate, `MemAvailable`.
    MemAvailable,
}

/// The machine's memory and process ids. Its functions read files of the kernel and block for as long as that takes:
/// microseconds, with very many cgroups a few milliseconds. They need no thread, which a fork bomb would not leave.
#[derive(Clone, Debug)]
pub struct Machine {
    roots: Roots,
    signal: MemorySignal,
}

impl Machine {
    /// Reads below `roots`.
    #[must_use]
    pub fn new(roots: Roots, signal: MemorySignal) -> Self {
        Self { roots, signal }
    }

    /// Reads everything that is no disk. `pods` is the memory directory of the cgroup of all pods. `memory.available` is
    /// not read where it was `taken` otherwise.
    #[must_use]
    pub fn sample(&self, pods: Option<&Path>, taken: Option<Reading>) -> Sample {
        let mut sample = Sample::default();
        sample.put(Signal::MemoryAvailable, taken.map_or_else(|| self.available(), Ok));
        let allocatable = pods.ok_or(NoReading::NoLimit).and_then(allocatable);
        sample.put(Signal::AllocatableMemoryAvailable, allocatable);
        sample.put(Signal::PidAvailable, self.pids());
        sample
    }

    /// `memory.available`.
    ///
    /// # Errors
    /// Why there is no reading.
    pub fn available(&self) -> Result<Reading, NoReading> {
        let path = self.roots.proc.join("meminfo");
        let info = MemInfo::parse(&read(&path)?).map_err(|what| absurd(&path, what))?;
        let available = match self.signal {
            MemorySignal::MemAvailable => {
                info.available.ok_or_else(|| absurd(&path, "it holds no MemAvailable"))?
            }
            MemorySignal::WorkingSet => {
                let used = cgroup_memory(&self.roots.root_cgroup)?;
                let what = "the working set is larger than the machine's memory";
                info.total.checked_sub(used).ok_or_else(|| absurd(&self.roots.root_cgroup, what))?
            }
        };
        Ok(reading(available, info.total))
    }

    /// `pid.available`.
    ///
    /// # Errors
    /// Why there is no reading.
    pub fn pids(&self) -> Result<Reading, NoReading> {
        let number = |name: &str| {
            let path = self.roots.proc.join("sys/kernel").join(name);
            core::number(&read(&path)?)
                .filter(|number| *number > 0)
                .ok_or_else(|| absurd(&path, "it holds no number of tasks"))
        };
        let capacity = number("pid_max")?.min(number("threads-max")?);
        let path = self.roots.proc.join("loadavg");
        let tasks = core::tasks(&read(&path)?)
            .filter(|tasks| *tasks > 0)
            .ok_or_else(|| absurd(&path, "it holds no number of tasks"))?;
        Ok(reading(capacity.saturating_sub(tasks), capacity))
    }
}

fn reading(available: u64, capacity: u64) -> Reading {
    Reading { available, capacity, at: clock::now().boot }
}

fn allocatable(pods: &Path) -> Result<Reading, NoReading> {
    let v1 = pods.join("memory.limit_in_bytes");
    let path = if v1.exists() { v1 } else { pods.join("memory.max") };
    let limit = core::limit(&read(&path)?).ok_or_else(|| absurd(&path, "it holds no limit"))?;
    let limit = limit.ok_or(NoReading::NoLimit)?;
    let used = cgroup_memory(pods)?;
    // More than the limit while the kernel takes it back.
    Ok(reading(limit.saturating_sub(used), limit))
}

/// Working set of the cgroup at this directory of the memory hierarchy, in bytes.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_memory(directory: &Path) -> Result<u64, NoReading> {
    let stat_path = directory.join("memory.stat");
    let usage = |name: &str| -> Result<Option<u64>, NoReading> {
        let path = directory.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let usage = core::number(&read(&path)?);
        usage.map(Some).ok_or_else(|| absurd(&path, "it holds no number"))
    };
    let (v1, v2) = (usage("memory.usage_in_bytes")?, usage("memory.current")?);
    let stat = read(&stat_path)?;
    let field = |name: &str| {
        core::memory_stat(&stat, name)
            .ok_or_else(|| absurd(&stat_path, format!("it holds no {name}")))
    };
    match (v1, v2) {
        (Some(usage), _) => Ok(core::working_set(usage, field("total_inactive_file")?)),
        (None, Some(usage)) => Ok(core::working_set(usage, field("inactive_file")?)),
        // The root cgroup of v2 tells no use.
        (None, None) => {
            let usage = field("anon")?.saturating_add(field("file")?);
            Ok(core::working_set(usage, field("inactive_file")?))
        }
    }
}

/// Tasks in the cgroup at this directory of the pids hierarchy.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_tasks(directory: &Path) -> Result<u64, NoReading> {
    let path = directory.join("pids.current");
    core::number(&read(&path)?).ok_or_else(|| absurd(&path, "it holds no number"))
}
