//! The cpu and memory of a container: what can be changed while it runs.

use serde::{Deserialize, Serialize};

/// The cpu and memory that a container runs with, or is to run with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerAmounts {
    /// Its own.
    pub own: CpuMemory,
    /// Those of the pod as a whole (`spec.resources`), which bound it.
    pub pod: CpuMemory,
}

/// Requests and limits; `None` where the specification names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CpuMemory {
    /// In thousandths of a cpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<i64>,
    /// In thousandths of a cpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<i64>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<i64>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<i64>,
}

/// Why a resize of a pod has not begun: there is no room for it. The pod runs on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeWait {
    /// `Deferred`: there is room once other pods have gone. `Infeasible`: the node is too small.
    pub reason: &'static str,
    /// One sentence in the kubelet's words.
    pub message: String,
}

impl ContainerAmounts {
    /// The memory limit in bytes that is in force: its own, else that of the pod.
    #[must_use]
    pub fn memory_bound(&self) -> Option<i64> {
        self.own.memory_limit.or(self.pod.memory_limit)
    }
}

impl CpuMemory {
    /// True when the cpu amounts differ.
    #[must_use]
    pub fn differs_in_cpu(&self, other: &Self) -> bool {
        (self.cpu_request, self.cpu_limit) != (other.cpu_request, other.cpu_limit)
    }

    /// True when the memory amounts differ.
    #[must_use]
    pub fn differs_in_memory(&self, other: &Self) -> bool {
        (self.memory_request, self.memory_limit) != (other.memory_request, other.memory_limit)
    }
}
