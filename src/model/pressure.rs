//! What runs short on the node, and which pods don't run because of it.

use super::{PodKey, PodUid};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

/// What is watched. The names are the kubelet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Signal {
    /// Memory of the machine: capacity minus its working set (or `MemAvailable`). Bytes.
    #[serde(rename = "memory.available")]
    MemoryAvailable,
    /// Memory that pods may still use: the limit of all pods minus their working set. Bytes.
    #[serde(rename = "allocatableMemory.available")]
    AllocatableMemoryAvailable,
    /// Space of the file system with the root directory. Bytes.
    #[serde(rename = "nodefs.available")]
    NodefsAvailable,
    /// Inodes of the file system with the root directory.
    #[serde(rename = "nodefs.inodesFree")]
    NodefsInodesFree,
    /// Space of the file system with the runtime's images. Bytes.
    #[serde(rename = "imagefs.available")]
    ImagefsAvailable,
    /// Inodes of the file system with the runtime's images.
    #[serde(rename = "imagefs.inodesFree")]
    ImagefsInodesFree,
    /// Space of the file system with the containers' writable layers. Bytes.
    #[serde(rename = "containerfs.available")]
    ContainerfsAvailable,
    /// Inodes of the file system with the containers' writable layers.
    #[serde(rename = "containerfs.inodesFree")]
    ContainerfsInodesFree,
    /// Process ids that are left on the machine.
    #[serde(rename = "pid.available")]
    PidAvailable,
}

impl Signal {
    /// Every signal; those of memory first: the order in which they are acted on.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in configuration files: `memory.available`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// The node condition that it raises.
    #[must_use]
    pub fn condition(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree
            | Self::ContainerfsAvailable
            | Self::ContainerfsInodesFree => Pressure::Disk,
            Self::PidAvailable => Pressure::Pid,
        }
    }

    /// The resource that messages name.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => {
                "ephemeral-storage"
            }
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => {
                "inodes"
            }
            Self::PidAvailable => "pids",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One reading of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is left; bytes, inodes or process ids.
    pub available: u64,
    /// What there is altogether.
    pub capacity: u64,
    /// Boot time of the observation.
    pub at: Duration,
}

/// The latest reading of each signal that could be read.
pub type Readings = BTreeMap<Signal, Reading>;

/// A node condition that tells of pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Pressure {
    /// `MemoryPressure`
    #[serde(rename = "MemoryPressure")]
    Memory,
    /// `DiskPressure`
    #[serde(rename = "DiskPressure")]
    Disk,
    /// `PIDPressure`
    #[serde(rename = "PIDPressure")]
    Pid,
}

impl Pressure {
    /// Every pressure, in the kubelet's order.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// Type of the node condition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// Reason and message of the node condition, and reason of the event about its transition, all
    /// as the kubelet's.
    #[must_use]
    pub fn words(self, holds: bool) -> ConditionWords {
        let (reason, message, event) = match (self, holds) {
            (Self::Memory, true) => (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                "NodeHasInsufficientMemory",
            ),
            (Self::Memory, false) => (
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                "NodeHasSufficientMemory",
            ),
            (Self::Disk, true) => {
                ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure")
            }
            (Self::Disk, false) => (
                "KubeletHasNoDiskPressure",
                "kubelet has no disk pressure",
                "NodeHasNoDiskPressure",
            ),
            (Self::Pid, true) => (
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                "NodeHasInsufficientPID",
            ),
            (Self::Pid, false) => (
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                "NodeHasSufficientPID",
            ),
        };
        ConditionWords { reason, message, event }
    }
}

/// The words of a node condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionWords {
    /// `reason` of the condition.
    pub reason: &'static str,
    /// `message` of the condition.
    pub message: &'static str,
    /// Reason of the event; its message is `Node <name> status is now: <reason>`.
    pub event: &'static str,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the message of a pod begins that is refused at admission. Statuses in the API and in records
/// are recognized by it.
pub const REFUSAL_PREFIX: &str = "Pod was rejected: ";

/// Why a wished pod does not run for now: it was evicted, or there is no room for it. When the hold
/// is lifted, the pod begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// `status.reason`: `Evicted`, `OutOfmemory`, `Preempting`, ...
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// How what runs of it is stopped.
    pub stop: HoldStop,
    /// Reason and message of the condition `DisruptionTarget` in its status; `None` without this
    /// condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<(String, String)>,
}

impl Hold {
    /// True when the pod was not admitted, and false when it is taken down after its start.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.message.starts_with(REFUSAL_PREFIX)
    }

    /// True when the node has no room for the pod, or gives it to another one.
    #[must_use]
    pub fn is_for_room(&self) -> bool {
        self.reason.starts_with("OutOf") || self.reason == "Preempting"
    }
}

/// How what runs of a held pod is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldStop {
    /// SIGKILL of its cgroup, without hooks and without waiting for the runtime.
    AtOnce,
    /// Through the runtime, with this many seconds at most (and no more than its own grace period).
    Within(u32),
}

/// A pod that was evicted and is not to come back yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The incarnation that was evicted; another one under the same name is not meant.
    pub uid: PodUid,
    /// Why, and how it is stopped.
    pub hold: Arc<Hold>,
}

/// The conditions that hold and the evicted pods: from the eviction loop to the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PressureOrders {
    /// The signals were read at least once.
    pub known: bool,
    /// Conditions that hold.
    pub conditions: BTreeSet<Pressure>,
    /// Pods that were evicted and may not come back yet.
    pub evicted: BTreeMap<PodKey, Evicted>,
    /// A disk is short: dead containers that are only there for people to look at are to go.
    pub clear_dead: bool,
}
