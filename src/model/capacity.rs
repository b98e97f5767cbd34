//! What a machine has to share out.

use std::collections::BTreeMap;

/// CPUs, memory, process ids and huge pages of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// Logical CPUs in thousandths.
    pub cpu_milli: i64,
    /// `MemTotal` in bytes.
    pub memory_bytes: i64,
    /// min(`kernel.pid_max`, `kernel.threads-max`).
    pub pids: i64,
    /// Bytes of huge pages by page size in bytes. A size without pages has 0.
    pub hugepages: BTreeMap<u64, i64>,
}
