//! Memory and process ids of the whole machine and of cgroups, on cgroup v1 and v2: which one it is shows in the
//! names of the files.

use super::{
    NoReading, Roots, Sample, absurd,
    core::{self, MemInfo},
    kept::KeptFile,
    read,
};
use crate::{
    clock,
    model::{Reading, Signal},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// What `memory.available` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySignal {
    /// Capacity minus the working set of the root cgroup, as with the kubelet.
    #[default]
    WorkingSet,
    /// The kernel's own estimate, `MemAvailable`.
    MemAvailable,
}

/// What a look at the machine has to tell.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The signals that are to be read.
    pub signals: &'a BTreeSet<Signal>,
    /// The memory directory of the cgroup of all pods.
    pub pods: Option<&'a Path>,
    /// Whether a signal with so much available, of so much, is far from every threshold: then that will do.
    pub is_far: &'a dyn Fn(Signal, u64, u64) -> bool,
}

/// The machine's memory and process ids. Its functions read files of the kernel and block for as long as that takes:
/// microseconds, with very many cgroups a few milliseconds. They need no thread, which a fork bomb would not leave.
///
/// Cheap first: `/proc/meminfo` costs the same however many cgroups there are; `memory.stat` of a cgroup makes the kernel add up
/// all of those below.
#[derive(Debug)]
pub struct Machine {
    signal: MemorySignal,
    meminfo: KeptFile,
    root: CgroupFiles,
    pods: Option<CgroupFiles>,
    pid_max: KeptFile,
    threads_max: KeptFile,
    loadavg: KeptFile,
}

impl Machine {
    /// Reads below `roots`.
    #[must_use]
    pub fn new(roots: &Roots, signal: MemorySignal) -> Self {
        let proc = |name: &str| KeptFile::new(roots.proc.join(name));
        Self {
            signal,
            meminfo: proc("meminfo"),
            root: CgroupFiles::new(&roots.root_cgroup),
            pods: None,
            pid_max: proc("sys/kernel/pid_max"),
            threads_max: proc("sys/kernel/threads-max"),
            loadavg: proc("loadavg"),
        }
    }

    /// Reads what is asked for and is no disk.
    #[must_use]
    pub fn sample(&mut self, look: Look<'_>) -> Sample {
        let mut sample = Sample::default();
        let info = self.info();
        for signal in look.signals {
            let read = match signal {
                Signal::MemoryAvailable => info.clone().and_then(|info| self.memory(&info, look)),
                Signal::AllocatableMemoryAvailable => {
                    self.allocatable(info.as_ref().ok(), look).map(|(reading, exact)| {
                        if !exact {
                            sample.at_least.insert(*signal);
                        }
                        reading
                    })
                }
                Signal::PidAvailable => self.pids(),
                Signal::NodefsAvailable
                | Signal::NodefsInodesFree
                | Signal::ImagefsAvailable
                | Signal::ImagefsInodesFree
                | Signal::ContainerfsAvailable
                | Signal::ContainerfsInodesFree => continue,
            };
            sample.put(*signal, read);
        }
        sample
    }

    fn info(&mut self) -> Result<MemInfo, NoReading> {
        let parsed = MemInfo::parse(&self.meminfo.read()?);
        parsed.map_err(|what| absurd(self.meminfo.path(), what))
    }

    /// `memory.available`.
    fn memory(&mut self, info: &MemInfo, look: Look<'_>) -> Result<Reading, NoReading> {
        let available = match self.signal {
            MemorySignal::MemAvailable => info
                .available
                .ok_or_else(|| absurd(self.meminfo.path(), "it holds no MemAvailable"))?,
            MemorySignal::WorkingSet => {
                let about = info.total.saturating_sub(info.working_set());
                if (look.is_far)(Signal::MemoryAvailable, about, info.total) {
                    return Ok(reading(about, info.total));
                }
                let used = self.root.working_set()?;
                let what = "the working set is larger than the machine's memory";
                info.total.checked_sub(used).ok_or_else(|| absurd(&self.root.directory, what))?
            }
        };
        Ok(reading(available, info.total))
    }

    /// `allocatableMemory.available`, and whether that is exact: there is at least so much otherwise.
    fn allocatable(
        &mut self,
        info: Option<&MemInfo>,
        look: Look<'_>,
    ) -> Result<(Reading, bool), NoReading> {
        let directory = look.pods.ok_or(NoReading::NoLimit)?;
        let kept = self.pods.take().filter(|files| files.directory == directory);
        let mut pods = kept.unwrap_or_else(|| CgroupFiles::new(directory));
        let read = allocatable(&mut pods, info, look);
        // Where something failed, all is looked for anew the next time.
        self.pods = Some(pods).filter(|_| read.is_ok());
        read
    }

    /// `pid.available`.
    fn pids(&mut self) -> Result<Reading, NoReading> {
        let number = |file: &mut KeptFile| {
            let number = core::number(&file.read()?).filter(|number| *number > 0);
            number.ok_or_else(|| absurd(file.path(), "it holds no number of tasks"))
        };
        let capacity = number(&mut self.pid_max)?.min(number(&mut self.threads_max)?);
        let tasks = core::tasks(&self.loadavg.read()?)
            .filter(|tasks| *tasks > 0)
            .ok_or_else(|| absurd(self.loadavg.path(), "it holds no number of tasks"))?;
        Ok(reading(capacity.saturating_sub(tasks), capacity))
    }
}

fn allocatable(
    pods: &mut CgroupFiles,
    info: Option<&MemInfo>,
    look: Look<'_>,
) -> Result<(Reading, bool), NoReading> {
    let limit = pods.limit()?.ok_or(NoReading::NoLimit)?;
    let is_far = |used: u64| {
        // More than the limit while the kernel takes it back.
        let available = limit.saturating_sub(used);
        let far = (look.is_far)(Signal::AllocatableMemoryAvailable, available, limit);
        far.then(|| (reading(available, limit), false))
    };
    if let Some(found) = info.and_then(|info| is_far(info.working_sets())) {
        return Ok(found);
    }
    if let Some(found) = pods.usage()?.and_then(is_far) {
        return Ok(found);
    }
    Ok((reading(limit.saturating_sub(pods.working_set()?), limit), true))
}

fn reading(available: u64, capacity: u64) -> Reading {
    Reading { available, capacity, at: clock::now().boot }
}

/// The memory files of a cgroup, kept open.
#[derive(Debug)]
struct CgroupFiles {
    directory: PathBuf,
    stat: KeptFile,
    /// The root cgroup of v2 tells no use.
    usage: Option<KeptFile>,
    limit: KeptFile,
    v1: bool,
}

impl CgroupFiles {
    fn new(directory: &Path) -> Self {
        let file = |name: &str| KeptFile::new(directory.join(name));
        let (v1, v2) = (file("memory.usage_in_bytes"), file("memory.current"));
        let (usage, limit, v1) = match v1.path().exists() {
            true => (Some(v1), "memory.limit_in_bytes", true),
            false => (Some(v2).filter(|v2| v2.path().exists()), "memory.max", false),
        };
        Self {
            directory: directory.to_owned(),
            stat: file("memory.stat"),
            usage,
            limit: file(limit),
            v1,
        }
    }

    fn limit(&mut self) -> Result<Option<u64>, NoReading> {
        let limit = core::limit(&self.limit.read()?);
        limit.ok_or_else(|| absurd(self.limit.path(), "it holds no limit"))
    }

    fn usage(&mut self) -> Result<Option<u64>, NoReading> {
        let Some(file) = &mut self.usage else { return Ok(None) };
        let usage = core::number(&file.read()?);
        usage.map(Some).ok_or_else(|| absurd(file.path(), "it holds no number"))
    }

    fn working_set(&mut self) -> Result<u64, NoReading> {
        let usage = self.usage()?;
        let stat = self.stat.read()?;
        let lacks =
            |name| absurd(&self.directory.join("memory.stat"), format!("it holds no {name}"));
        let field = |name| core::memory_stat(&stat, name).ok_or_else(|| lacks(name));
        let idle = core::idle_file(&stat, self.v1).ok_or_else(|| lacks("inactive_file"))?;
        let usage = match usage {
            Some(usage) => usage,
            None => field("anon")?.saturating_add(field("file")?),
        };
        Ok(core::working_set(usage, idle))
    }
}

/// Working set of the cgroup at this directory of the memory hierarchy, in bytes.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_memory(directory: &Path) -> Result<u64, NoReading> {
    CgroupFiles::new(directory).working_set()
}

/// Tasks in the cgroup at this directory of the pids hierarchy.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_tasks(directory: &Path) -> Result<u64, NoReading> {
    let path = directory.join("pids.current");
    core::number(&read(&path)?).ok_or_else(|| absurd(&path, "it holds no number"))
}
