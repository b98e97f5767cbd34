//! What cgroups, network namespaces and this process have used, read from the files of the kernel.
//! These functions block for microseconds for each cgroup.

use super::{
    core::{self, MemInfo},
    directory::Directory,
    memory::cgroup_memory_stats,
    read,
};
use crate::{
    clock,
    model::{
        CgroupDirs, CgroupStats, CpuStats, DeviceIo, InterfaceStats, MemoryStats, Psi, StatsDepth,
        SwapStats, Throttling,
    },
};
use nix::sys::resource::{Resource, getrlimit};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// What a cgroup has used; `None` when it is gone.
#[must_use]
pub fn cgroup_stats(dirs: &CgroupDirs, depth: StatsDepth) -> Option<CgroupStats> {
    let deep = depth > StatsDepth::Resources;
    let opened = Opened::new(dirs);
    let (memory, swap) = cgroup_memory_stats(&opened.memory, deep)?;
    let mut stats = CgroupStats {
        at: clock::now().wall,
        cpu: cgroup_cpu(&opened, deep),
        memory: Some(memory),
        swap,
        ..CgroupStats::default()
    };
    if deep {
        let processes = opened.memory.text("cgroup.procs");
        stats.processes = processes.map(|text| text.lines().count() as u64);
        (stats.tasks, stats.tasks_limit) = opened.with(&dirs.pids, |pids| {
            let limit = pids.text("pids.max").and_then(|text| core::limit(&text)).flatten();
            (number(pids, "pids.current"), limit)
        });
        if dirs.is_unified() {
            stats.cpu_pressure = pressure(&opened.memory, "cpu.pressure");
            stats.memory_pressure = pressure(&opened.memory, "memory.pressure");
            stats.io_pressure = pressure(&opened.memory, "io.pressure");
        }
        let devices = |io: &Directory<'_>| devices(io, dirs.is_unified());
        stats.io = dirs.io.as_deref().map(|io| opened.with(io, devices)).unwrap_or_default();
    }
    Some(stats)
}

/// The directories of a cgroup. That of its memory stays open.
struct Opened<'a> {
    dirs: &'a CgroupDirs,
    memory: Directory<'a>,
}

impl<'a> Opened<'a> {
    fn new(dirs: &'a CgroupDirs) -> Self {
        Self { dirs, memory: Directory::open(&dirs.memory) }
    }

    /// Reads files of one of the directories.
    fn with<T>(&self, path: &Path, read: impl FnOnce(&Directory<'_>) -> T) -> T {
        match path == self.memory.path() {
            true => read(&self.memory),
            false => read(&Directory::open(path)),
        }
    }
}

/// What the whole machine has used. `root` is the root cgroup.
#[must_use]
pub fn machine_stats(proc: &Path, root: Option<&CgroupDirs>, depth: StatsDepth) -> CgroupStats {
    let deep = depth > StatsDepth::Resources;
    let mut stats = CgroupStats {
        at: clock::now().wall,
        cpu: root.and_then(|root| cgroup_cpu(&Opened::new(root), false)),
        ..CgroupStats::default()
    };
    if let Some(Ok(info)) = text(proc, "meminfo").map(|text| MemInfo::parse(&text)) {
        let faults = text(proc, "vmstat").map(|text| core::machine_faults(&text));
        let (page_faults, major_page_faults) = faults.unwrap_or_default();
        stats.memory = Some(MemoryStats {
            usage: info.total.saturating_sub(info.free),
            working_set: info.working_set(),
            rss: info.anonymous,
            cache: info.file,
            page_faults,
            major_page_faults,
            limit: Some(info.total),
            ..MemoryStats::default()
        });
        stats.swap = Some(SwapStats {
            usage: info.swap_total.saturating_sub(info.swap_free),
            limit: Some(info.swap_total),
        });
    }
    if deep {
        stats.tasks = text(proc, "loadavg").and_then(|text| core::tasks(&text));
        let [pid_max, threads_max] = ["sys/kernel/pid_max", "sys/kernel/threads-max"]
            .map(|name| text(proc, name).and_then(|text| core::number(&text)));
        stats.tasks_limit = pid_max.zip(threads_max).map(|(pids, threads)| pids.min(threads));
        let proc = Directory::open(proc);
        stats.cpu_pressure = pressure(&proc, "pressure/cpu");
        stats.memory_pressure = pressure(&proc, "pressure/memory");
        stats.io_pressure = pressure(&proc, "pressure/io");
    }
    stats
}

/// What this process has used.
#[must_use]
pub fn own_stats(proc: &Path) -> CgroupStats {
    let own = proc.join("self");
    let times = text(&own, "stat").and_then(|text| core::process_cpu(&text));
    let process = text(&own, "status").and_then(|text| core::process(&text));
    CgroupStats {
        at: clock::now().wall,
        cpu: times.map(|(user, system)| CpuStats {
            usage: user + system,
            user,
            system,
            ..CpuStats::default()
        }),
        memory: process.as_ref().map(|process| MemoryStats {
            usage: process.resident,
            working_set: process.resident,
            rss: process.resident,
            ..MemoryStats::default()
        }),
        tasks: process.map(|process| process.threads),
        ..CgroupStats::default()
    }
}

/// What this process holds.
#[derive(Clone, Copy, Debug)]
pub struct OwnProcess {
    /// CPU time it has used.
    pub cpu: Duration,
    /// Bytes of memory.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// File descriptors that are open.
    pub open_files: u64,
    /// File descriptors that may be open (`RLIMIT_NOFILE`).
    pub most_files: Option<u64>,
}

/// What this process holds. Zero: the kernel does not tell.
#[must_use]
pub fn own_process() -> OwnProcess {
    let proc = Path::new("/proc");
    let used = own_stats(proc);
    let status = text(&proc.join("self"), "status").unwrap_or_default();
    OwnProcess {
        cpu: used.cpu.map(|cpu| cpu.usage).unwrap_or_default(),
        resident_bytes: used.memory.map(|memory| memory.rss).unwrap_or_default(),
        virtual_bytes: core::address_space(&status).unwrap_or_default(),
        open_files: fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64),
        most_files: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
    }
}

/// A process in the cgroup at this directory.
pub(super) fn any_process(directory: &Path) -> Option<String> {
    text(directory, "cgroup.procs")?.lines().next().map(str::to_owned)
}

/// The network interfaces that a process sees.
#[must_use]
pub fn network(proc: &Path, pid: &str) -> Vec<InterfaceStats> {
    let path = proc.join(pid);
    text(&path, "net/dev").map(|text| core::interfaces(&text)).unwrap_or_default()
}

fn cgroup_cpu(opened: &Opened<'_>, deep: bool) -> Option<CpuStats> {
    let Opened { dirs, .. } = opened;
    if dirs.is_unified() {
        return opened.with(&dirs.cpu, |cpu| {
            let stat = cpu.text("cpu.stat")?;
            let micros = |name: &str| core::keyed(&stat, name).map(Duration::from_micros);
            let quota = || core::cpu_max(&cpu.text("cpu.max")?);
            let shares = || number(cpu, "cpu.weight").map(core::shares_of_weight);
            Some(CpuStats {
                usage: micros("usage_usec")?,
                user: micros("user_usec").unwrap_or_default(),
                system: micros("system_usec").unwrap_or_default(),
                shares: deep.then(shares).flatten(),
                throttling: deep.then(quota).flatten().map(|quota| throttling(quota, &stat)),
            })
        });
    }
    let mut used = opened.with(&dirs.cpuacct, |cpuacct| {
        let nanos = |name: &str| number(cpuacct, name).map(Duration::from_nanos);
        Some(CpuStats {
            usage: nanos("cpuacct.usage")?,
            user: nanos("cpuacct.usage_user").unwrap_or_default(),
            system: nanos("cpuacct.usage_sys").unwrap_or_default(),
            ..CpuStats::default()
        })
    })?;
    if deep {
        (used.shares, used.throttling) = opened.with(&dirs.cpu, |cpu| {
            // -1 for none is no number.
            let quota = number(cpu, "cpu.cfs_quota_us").zip(number(cpu, "cpu.cfs_period_us"));
            let stat = || cpu.text("cpu.stat").unwrap_or_default();
            (number(cpu, "cpu.shares"), quota.map(|quota| throttling(quota, &stat())))
        });
    }
    Some(used)
}

/// How a cgroup with a quota was throttled, by its `cpu.stat`.
fn throttling((quota_micros, period_micros): (u64, u64), stat: &str) -> Throttling {
    let told = |name: &str| core::keyed(stat, name);
    let throttled = told("throttled_usec")
        .map(Duration::from_micros)
        .or_else(|| told("throttled_time").map(Duration::from_nanos));
    Throttling {
        quota_micros,
        period_micros,
        periods: told("nr_periods").unwrap_or(0),
        throttled_periods: told("nr_throttled").unwrap_or(0),
        throttled: throttled.unwrap_or_default(),
    }
}

fn devices(directory: &Directory<'_>, unified: bool) -> Vec<DeviceIo> {
    let told = |name: &str| directory.text(name).unwrap_or_default();
    let mut devices = match unified {
        true => core::io_stat(&told("io.stat")),
        false => core::blkio(
            &told("blkio.throttle.io_service_bytes"),
            &told("blkio.throttle.io_serviced"),
        ),
    };
    for io in &mut devices {
        let (major, minor) = io.device;
        let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let target = fs::read_link(link).ok();
        let name = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
        io.path = name.map(|name| format!("/dev/{name}")).unwrap_or_default();
    }
    devices
}

fn pressure(directory: &Directory<'_>, name: &str) -> Option<Psi> {
    core::psi(&directory.text(name)?)
}

fn number(directory: &Directory<'_>, name: &str) -> Option<u64> {
    core::number(&directory.text(name)?)
}

fn text(directory: &Path, name: &str) -> Option<String> {
    read(&directory.join(name)).ok()
}
