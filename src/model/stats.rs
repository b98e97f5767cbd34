//! What containers, pods and the node have used, collected when a client asks for it. `None`: the
//! kernel or the runtime does not tell.
//!
//! The terms are those of cgroups: <https://docs.kernel.org/admin-guide/cgroup-v2.html>.

use super::{PodKey, PodUid, Space};
use jiff::Timestamp;
use std::time::Duration;

/// How much a client wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatsDepth {
    /// CPU, memory and swap.
    Resources,
    /// All that the kernel counts, and what lies on file systems, which is measured once a minute.
    Everything,
}

/// The use of the node and of the pods on it.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The node.
    pub node: NodeStats,
    /// Each pod that runs.
    pub pods: Vec<PodStats>,
}

/// The use of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeStats {
    /// When the machine was booted.
    pub booted_at: Timestamp,
    /// The whole machine.
    pub machine: CgroupStats,
    /// This process.
    pub agent: CgroupStats,
    /// The cgroup of all pods, where there is one.
    pub pods: Option<CgroupStats>,
    /// The path of that.
    pub pods_cgroup: String,
    /// Its network interfaces.
    pub network: Vec<InterfaceStats>,
    /// The file system of the root directory.
    pub root_fs: Option<FsStats>,
    /// The file system of images.
    pub image_fs: Option<FsStats>,
    /// The file system of writable layers.
    pub container_fs: Option<FsStats>,
    /// What all images take; `None`: the runtime was not asked yet.
    pub images: Option<ImagesUse>,
}

/// The use of a pod.
#[derive(Clone, Debug)]
pub struct PodStats {
    /// Full name.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// Path of its cgroup.
    pub cgroup: String,
    /// Its cgroup: all containers and its sandbox. `None` where it has none.
    pub stats: Option<CgroupStats>,
    /// Its containers that run.
    pub containers: Vec<ContainerStats>,
    /// Its network interfaces; empty for a pod on the host's network.
    pub network: Vec<InterfaceStats>,
    /// Each emptyDir, measured at that time.
    pub volumes: Vec<VolumeStats>,
    /// Each PersistentVolume whose file system can be asked.
    pub claims: Vec<ClaimStats>,
    /// Logs, emptyDirs on disk, writable layers and its files together.
    pub ephemeral_storage: Option<MeasuredSpace>,
}

/// The use of an emptyDir.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Its name in the pod.
    pub name: Box<str>,
    /// It takes nothing of a disk.
    pub in_memory: bool,
    /// What it holds.
    pub space: MeasuredSpace,
}

/// The use of a container.
#[derive(Clone, Debug)]
pub struct ContainerStats {
    /// Its name in the pod.
    pub name: Box<str>,
    /// Its id in the runtime.
    pub id: Box<str>,
    /// The image of its specification.
    pub image: Box<str>,
    /// When its process started.
    pub started_at: Timestamp,
    /// Path of its cgroup.
    pub cgroup: String,
    /// Its cgroup. `None`: it has just ended.
    pub stats: Option<CgroupStats>,
    /// Its writable layer.
    pub layer: Option<MeasuredSpace>,
    /// Its logs.
    pub logs: Option<MeasuredSpace>,
}

/// What lies somewhere, and when that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredSpace {
    /// Room that is taken.
    pub space: Space,
    /// When it was measured.
    pub at: Timestamp,
}

/// The logs of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSize {
    /// Full name of the pod.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// Name of the container.
    pub container: Box<str>,
    /// What they take on their file system, in bytes.
    pub bytes: u64,
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsStats {
    /// When it was read.
    pub at: Timestamp,
    /// Bytes that may be taken, and that there are.
    pub bytes: (u64, u64),
    /// Bytes that are taken. What is reserved for root is neither taken nor may it be taken.
    pub used_bytes: u64,
    /// Inodes that may be taken, and that there are; `None`: it does not count them.
    pub inodes: Option<(u64, u64)>,
}

/// What all images take, as far as the runtime tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImagesUse {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

impl FsStats {
    /// Inodes that are taken, where the file system counts them.
    #[must_use]
    pub fn inodes_used(&self) -> Option<u64> {
        self.inodes.map(|(free, all)| all.saturating_sub(free))
    }
}

/// The use of a PersistentVolume that a pod mounts through a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStats {
    /// Full name of the pod.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// Name of the volume in the pod.
    pub volume: Box<str>,
    /// The claim, in the namespace of the pod.
    pub claim: Box<str>,
    /// The file system of the volume.
    pub fs: FsStats,
}

/// What a cgroup has used, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupStats {
    /// When.
    pub at: Timestamp,
    /// Time on CPUs.
    pub cpu: Option<CpuStats>,
    /// Nanoseconds of CPU time per second, since an earlier reading.
    pub cpu_rate: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Swap.
    pub swap: Option<SwapStats>,
    /// Processes in the cgroup itself, without those in cgroups below it.
    pub processes: Option<u64>,
    /// Processes and threads.
    pub tasks: Option<u64>,
    /// Limit of those; `None`: none.
    pub tasks_limit: Option<u64>,
    /// Time in which tasks waited for a CPU.
    pub cpu_pressure: Option<Psi>,
    /// Time in which tasks waited for memory.
    pub memory_pressure: Option<Psi>,
    /// Time in which tasks waited for a device.
    pub io_pressure: Option<Psi>,
    /// What was read from and written to each block device.
    pub io: Vec<DeviceIo>,
}

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// In all.
    pub usage: Duration,
    /// In programs.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// Only with a limit.
    pub throttling: Option<Throttling>,
    /// Share among siblings, as cgroup v1 counts it.
    pub shares: Option<u64>,
}

/// How a CPU limit has worked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Microseconds of CPU time in each period.
    pub quota_micros: u64,
    /// Length of a period in microseconds.
    pub period_micros: u64,
    /// Periods in which something ran.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time in which tasks could have run and were not let.
    pub throttled: Duration,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All that is charged.
    pub usage: u64,
    /// What of it cannot easily be had back.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Files mapped into processes.
    pub mapped_file: u64,
    /// Pages that were not in the page table.
    pub page_faults: u64,
    /// Pages that were not in memory.
    pub major_page_faults: u64,
    /// `None`: no limit.
    pub limit: Option<u64>,
    /// The most that was charged at any time.
    pub max_usage: Option<u64>,
    /// How often the limit was reached.
    pub limit_hits: Option<u64>,
    /// How many processes the kernel has killed because it was reached.
    pub oom_kills: Option<u64>,
}

/// Swap in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// In use.
    pub usage: u64,
    /// `None`: no limit.
    pub limit: Option<u64>,
}

/// Pressure stall information: <https://docs.kernel.org/accounting/psi.html>.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited.
    pub full: Stall,
}

/// How long tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// In all.
    pub total: Duration,
    /// Percent of the last 10, 60 and 300 seconds.
    pub averages: [f64; 3],
}

/// Traffic with one block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Major and minor number.
    pub device: (u32, u32),
    /// Its path: `/dev/vda`. Empty when it has no name.
    pub path: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
}

/// Traffic of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// `eth0`
    pub name: String,
    /// What came in.
    pub received: Traffic,
    /// What went out.
    pub sent: Traffic,
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were damaged or could not be sent.
    pub errors: u64,
    /// Packets that were thrown away.
    pub dropped: u64,
}
