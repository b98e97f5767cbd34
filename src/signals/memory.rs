//! Memory and process ids of the whole machine and of cgroups, on cgroup v1 and v2: which one it is
//! shows in the names of the files.

use super::{
    NoReading, Sample, absurd,
    core::{self, CgroupMemory, MemInfo},
    directory::Directory,
    kept::KeptFile,
    read,
};
use crate::{
    clock,
    model::{MemoryStats, Reading, Signal, SwapStats},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The number of cgroups below one that are looked at where its `memory.stat` lags. With more,
/// what it says counts.
const WALKED: usize = 1000;

/// What `memory.available` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySignal {
    /// Capacity minus the machine's working set, as with the kubelet.
    #[default]
    WorkingSet,
    /// The kernel's own estimate, `MemAvailable`.
    MemAvailable,
}

/// What a look at the machine has to tell.
#[derive(Clone, Copy)]
pub struct SampleRequest<'a> {
    /// The signals that are to be read.
    pub signals: &'a BTreeSet<Signal>,
    /// The memory directory of the cgroup of all pods.
    pub pods: Option<&'a Path>,
    /// Whether `allocatableMemory.available` is far from every threshold with so much available, of
    /// so much: then that will do.
    pub is_far: &'a dyn Fn(u64, u64) -> bool,
}

/// The machine's memory and process ids. Its functions read files of the kernel and block for as
/// long as that takes: microseconds, with very many cgroups a few milliseconds. They need no
/// thread, which a fork bomb would not leave.
///
/// Cheap first: `/proc/meminfo` costs the same however many cgroups there are; `memory.stat` of a
/// cgroup makes the kernel add up all of those below.
#[derive(Debug)]
pub struct MachineReader {
    signal: MemorySignal,
    meminfo: KeptFile,
    pods: Option<CgroupFiles>,
    pid_max: KeptFile,
    threads_max: KeptFile,
    loadavg: KeptFile,
}

impl MachineReader {
    /// Reads below `proc`.
    #[must_use]
    pub fn new(proc: &Path, signal: MemorySignal) -> Self {
        let proc = |name: &str| KeptFile::new(proc.join(name));
        Self {
            signal,
            meminfo: proc("meminfo"),
            pods: None,
            pid_max: proc("sys/kernel/pid_max"),
            threads_max: proc("sys/kernel/threads-max"),
            loadavg: proc("loadavg"),
        }
    }

    /// Reads what is asked for and is no disk.
    #[must_use]
    pub fn sample(&mut self, look: SampleRequest<'_>) -> Sample {
        let mut sample = Sample::default();
        let info = self.info();
        for signal in look.signals {
            let read = match signal {
                Signal::MemoryAvailable => info.clone().and_then(|info| self.memory(&info)),
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
        parsed.map_err(|what| absurd(self.meminfo.path(), what.to_string()))
    }

    /// `memory.available`.
    fn memory(&self, info: &MemInfo) -> Result<Reading, NoReading> {
        let lacks = |what: &str| absurd(self.meminfo.path(), what.to_owned());
        let available = match self.signal {
            MemorySignal::MemAvailable => {
                info.available.ok_or_else(|| lacks("it holds no MemAvailable"))?
            }
            MemorySignal::WorkingSet => info
                .total
                .checked_sub(info.working_set())
                .ok_or_else(|| lacks("the working set is larger than the machine's memory"))?,
        };
        Ok(reading(available, info.total))
    }

    /// `allocatableMemory.available`, and whether that is exact: there is at least so much
    /// otherwise.
    fn allocatable(
        &mut self,
        info: Option<&MemInfo>,
        look: SampleRequest<'_>,
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
    look: SampleRequest<'_>,
) -> Result<(Reading, bool), NoReading> {
    let limit = pods.limit()?.ok_or(NoReading::NoLimit)?;
    let is_far = |used: u64| {
        // More than the limit while the kernel takes it back.
        let available = limit.saturating_sub(used);
        let far = (look.is_far)(available, limit);
        far.then(|| (reading(available, limit), false))
    };
    if let Some(found) = info.and_then(|info| is_far(info.working_sets())) {
        return Ok(found);
    }
    if let Some(found) = is_far(pods.usage()?) {
        return Ok(found);
    }
    Ok((reading(limit.saturating_sub(pods.working_set()?), limit), true))
}

fn reading(available: u64, capacity: u64) -> Reading {
    Reading { available, capacity, at: clock::now().boot }
}

/// The memory files of a cgroup below the root, kept open.
#[derive(Debug)]
struct CgroupFiles {
    directory: PathBuf,
    stat: KeptFile,
    usage: KeptFile,
    limit: KeptFile,
    v1: bool,
}

impl CgroupFiles {
    fn new(directory: &Path) -> Self {
        let file = |name: &str| KeptFile::new(directory.join(name));
        let v1 = directory.join(USAGE_V1).exists();
        let (usage, limit) = (file(usage_file(v1)), file(limit_file(v1)));
        Self { directory: directory.to_owned(), stat: file("memory.stat"), usage, limit, v1 }
    }

    fn limit(&mut self) -> Result<Option<u64>, NoReading> {
        let limit = core::limit(&self.limit.read()?);
        limit.ok_or_else(|| absurd(self.limit.path(), "it holds no limit"))
    }

    fn usage(&mut self) -> Result<u64, NoReading> {
        let usage = core::number(&self.usage.read()?);
        usage.ok_or_else(|| absurd(self.usage.path(), NO_NUMBER))
    }

    fn working_set(&mut self) -> Result<u64, NoReading> {
        let usage = self.usage()?;
        let text = |name: &str| read(&self.directory.join(name)).ok();
        working_set(&self.directory, self.v1, usage, &self.stat.read()?, text)
    }
}

/// Only cgroup v1 has it.
const USAGE_V1: &str = "memory.usage_in_bytes";
const NO_NUMBER: &str = "it holds no number";

fn usage_file(v1: bool) -> &'static str {
    if v1 { USAGE_V1 } else { "memory.current" }
}

fn limit_file(v1: bool) -> &'static str {
    if v1 { "memory.limit_in_bytes" } else { "memory.max" }
}

/// The working set of a cgroup, in bytes, by what it uses and the text of its `memory.stat`. `text`
/// reads other files of it.
fn working_set(
    directory: &Path,
    v1: bool,
    usage: u64,
    stat: &str,
    text: impl Fn(&str) -> Option<String>,
) -> Result<u64, NoReading> {
    let lacks = "it does not hold anonymous memory, page cache and what of it is inactive";
    let stat = CgroupMemory::parse(stat, v1)
        .ok_or_else(|| absurd(&directory.join("memory.stat"), lacks))?;
    // `memory.stat` of cgroup v2 has the kernel's memory itself.
    let kernel = v1.then(|| text("memory.kmem.usage_in_bytes")).flatten();
    let mut idle = stat.idle_file;
    if !stat.is_whole(usage, kernel.and_then(|text| core::number(&text)).unwrap_or(0)) {
        idle = idle.max(idle_of_leaves(directory, v1).unwrap_or_default());
    }
    Ok(core::working_set(usage, idle))
}

/// Page cache that does not count, by the cgroups at the end of every branch below `directory`: for
/// a `memory.stat` that lags. One that goes meanwhile counts for nothing. `None` where there are
/// more than [`WALKED`]: containers can make any number of cgroups, at any depth.
fn idle_of_leaves(directory: &Path, v1: bool) -> Option<u64> {
    let (mut idle, mut found) = (0_u64, 0);
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let before = found;
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found += 1;
                if found > WALKED {
                    return None;
                }
                waiting.push(entry.path());
            }
        }
        if found == before {
            let stat = read(&directory.join("memory.stat")).ok();
            let memory = stat.and_then(|stat| CgroupMemory::parse(&stat, v1));
            idle = idle.saturating_add(memory.map_or(0, |memory| memory.idle_file));
        }
    }
    Some(idle)
}

/// Working set of the cgroup at this directory of the memory hierarchy, in bytes.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_memory(directory: &Path) -> Result<u64, NoReading> {
    MemoryUse::of(&Directory::open(directory)).map(|used| used.working_set)
}

/// What a cgroup uses.
struct MemoryUse {
    v1: bool,
    usage: u64,
    working_set: u64,
    /// The text of `memory.stat`.
    stat: String,
}

impl MemoryUse {
    fn of(directory: &Directory<'_>) -> Result<Self, NoReading> {
        let of_v1 = directory.text(USAGE_V1);
        let v1 = of_v1.is_some();
        let text = of_v1.map_or_else(|| directory.read(usage_file(v1)), Ok)?;
        let lacks = || absurd(&directory.path().join(usage_file(v1)), NO_NUMBER);
        let usage = core::number(&text).ok_or_else(lacks)?;
        let stat = directory.read("memory.stat")?;
        let text = |name: &str| directory.text(name);
        let working_set = working_set(directory.path(), v1, usage, &stat, text)?;
        Ok(Self { v1, usage, working_set, stat })
    }
}

/// Memory and swap of the cgroup at this directory of the memory hierarchy; `None` when it is gone.
/// `deep`: also what is counted beside its use.
pub(super) fn cgroup_memory_stats(
    directory: &Directory<'_>,
    deep: bool,
) -> Option<(MemoryStats, Option<SwapStats>)> {
    let MemoryUse { v1, usage, working_set, stat } = MemoryUse::of(directory).ok()?;
    let number = |name: &str| core::number(&directory.text(name)?);
    let limit = |name: &str| core::limit(&directory.text(name)?).flatten();
    let line = |name: &str, key| core::keyed(&directory.text(name)?, key);
    let mut memory = core::memory_stats(&stat, v1);
    (memory.usage, memory.working_set) = (usage, working_set);
    memory.limit = limit(limit_file(v1));
    let swap = if v1 {
        // Only counted where the kernel was started with `swapaccount`.
        let limit =
            || number("memory.memsw.limit_in_bytes").filter(|limit| *limit < core::NO_LIMIT);
        let used = core::keyed(&stat, "total_swap");
        used.map(|usage| SwapStats {
            usage,
            limit: limit().map(|l| l.saturating_sub(memory.limit.unwrap_or(0))),
        })
    } else {
        number("memory.swap.current")
            .map(|usage| SwapStats { usage, limit: limit("memory.swap.max") })
    };
    if deep {
        (memory.max_usage, memory.limit_hits, memory.oom_kills) = match v1 {
            true => (
                number("memory.max_usage_in_bytes"),
                number("memory.failcnt"),
                line("memory.oom_control", "oom_kill"),
            ),
            false => {
                let events = directory.text("memory.events");
                let told = |key| core::keyed(events.as_deref()?, key);
                (number("memory.peak"), told("max"), told("oom_kill"))
            }
        };
    }
    Some((memory, swap))
}

/// Tasks in the cgroup at this directory of the pids hierarchy.
///
/// # Errors
/// Why there is no reading.
pub fn cgroup_tasks(directory: &Path) -> Result<u64, NoReading> {
    let path = directory.join("pids.current");
    core::number(&read(&path)?).ok_or_else(|| absurd(&path, NO_NUMBER))
}
