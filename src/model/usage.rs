//! What one pod uses of what may run short, measured only when a decision needs it. `None`: it
//! could not be measured.

use super::{ContainerId, PodKey, PodUid};
use std::path::PathBuf;

/// A pod's use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUse {
    /// Full name.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// Working set of its cgroup, in bytes.
    pub memory: Option<u64>,
    /// Tasks in its cgroup.
    pub processes: Option<u64>,
    /// Each container of the spec that has run.
    pub containers: Vec<ContainerUse>,
    /// Each emptyDir.
    pub volumes: Vec<VolumeUse>,
    /// What lies in its log directory.
    pub logs: Option<Space>,
    /// The files in its directory that are no volumes: hosts file, termination logs.
    pub files: Option<Space>,
    /// What the runtime has made for its containers to write to besides their layers: resolv.conf
    /// and hostname, volumes that an image declares. It lies beside the layers.
    pub runtime_files: Option<Space>,
    /// What of it was counted in part: the space above is a lower bound.
    pub partly: PartlyMeasured,
}

/// Which parts of a pod a walk has begun to count and not finished, by the file system on which
/// they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartlyMeasured {
    /// A writable layer.
    pub layers: bool,
    /// Logs, a volume or a file.
    pub root_dir: bool,
}

/// A container's use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUse {
    /// Name in the pod.
    pub name: Box<str>,
    /// The runtime's id of the instance that was measured.
    pub id: Option<ContainerId>,
    /// Working set of its cgroup, in bytes.
    pub memory: Option<u64>,
    /// Its log files, the rotated ones included.
    pub logs: Option<Space>,
    /// Its writable layer.
    pub layer: Option<Space>,
}

/// An emptyDir's use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// Name in the pod.
    pub name: Box<str>,
    /// On tmpfs (`medium: Memory`, huge pages): it counts as memory and takes nothing of a disk.
    pub in_memory: bool,
    /// What lies in it.
    pub space: Option<Space>,
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Allocated bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl std::ops::Add for Space {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Which signals are about the same file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// Root directory, images and writable layers lie on one file system.
    #[default]
    Single,
    /// Images and writable layers lie on another one than the root directory.
    DedicatedImages,
    /// Images lie on another one than the root directory and the writable layers.
    Split,
    /// Writable layers lie on another one than the root directory, and than the images. The kubelet
    /// supports no such layout; only the root directory's file system is observed.
    LayersElsewhere {
        /// Images lie on the root directory's.
        images_on_root: bool,
    },
}

/// Where the numbers of a cgroup are read: its directories in the hierarchies of cgroup v1. On
/// cgroup v2 they are one and the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupDirs {
    /// Has `memory.current` or `memory.usage_in_bytes`.
    pub memory: PathBuf,
    /// Has `pids.current`.
    pub pids: PathBuf,
    /// Has `cpu.stat`.
    pub cpu: PathBuf,
    /// Has `cpu.stat` or `cpuacct.usage`.
    pub cpuacct: PathBuf,
    /// Has `io.stat` or `blkio.throttle.io_service_bytes`; not every kernel has it.
    pub io: Option<PathBuf>,
}

impl CgroupDirs {
    /// The directories of a cgroup of cgroup v2.
    #[must_use]
    pub fn unified(directory: PathBuf) -> Self {
        Self {
            memory: directory.clone(),
            pids: directory.clone(),
            cpu: directory.clone(),
            cpuacct: directory.clone(),
            io: Some(directory),
        }
    }

    /// Whether this is a cgroup of cgroup v2.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        self.memory == self.cpu
    }

    /// The directories of the cgroup with this name in it.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self {
            memory: self.memory.join(name),
            pids: self.pids.join(name),
            cpu: self.cpu.join(name),
            cpuacct: self.cpuacct.join(name),
            io: self.io.as_ref().map(|io| io.join(name)),
        }
    }
}

/// Where an emptyDir is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// Name in the pod.
    pub name: Box<str>,
    /// Its pod says that it is on tmpfs or huge pages.
    pub in_memory: bool,
    /// Its directory on the host.
    pub path: PathBuf,
}
