//! The cgroup tree of pods: `kubepods` (node allocatable), the QoS tiers, one cgroup per pod.
//!
//! Owns everything below `<cgroupRoot>/kubepods` except the containers' own cgroups, which the
//! runtime makes inside the pod's. Works on cgroup v2 and on v1, where each controller is a
//! hierarchy of its own. The mounts are an argument, so that tests use a tree of their own.
//! Does not decide any value: those come from `podspec` and the configuration.
//!
//! The two drivers differ in the path of a cgroup (`names`). With the systemd driver, systemd also
//! gets the limits as properties of a slice (`slice`, `systemd`) and makes the directories. The
//! rest is the same: missing directories are made, and the same values are written to the files.
//! The driver is known when the runtime has answered (`driver`).

mod core;
mod driver;
mod files;
mod kill;
mod names;
mod resize;
mod slice;
mod systemd;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

pub use core::{Hierarchy, node_limits};
pub use driver::DriverState;
pub use systemd::{SystemdError, SystemdSockets};
pub use tree::Cgroups;

use crate::model::CgroupDriver;
use std::{io, path::PathBuf};
use thiserror::Error;

/// What the configuration says about cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSettings {
    /// `cgroupRoot`: a cgroup, `/` for the root. Made if it is missing.
    pub root: String,
    /// `cgroupsPerQOS`: without it nothing is created and the runtime gets an empty parent.
    pub per_qos: bool,
    /// `cgroupDriver`, for a runtime that does not tell its own.
    pub driver: CgroupDriver,
    /// Where systemd is spoken to.
    pub systemd: SystemdSockets,
}

/// Which kind of tree the pods live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// What went wrong with which cgroup.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// The runtime does not answer.
    #[error("the container runtime has not reported its cgroup driver yet")]
    DriverUnknown,
    /// What systemd has or does not.
    #[error("cannot {what} {unit} (cgroup driver systemd)")]
    Systemd {
        /// `make` or `remove`.
        what: &'static str,
        /// One slice or several.
        unit: String,
        /// Why.
        source: SystemdError,
    },
    /// A panic in here.
    #[error("the work on cgroup files has crashed")]
    Crashed,
    /// Neither a usable v2 nor v1 tree is mounted.
    #[error(
        "no usable cgroup tree is mounted: neither cgroup2 nor the v1 hierarchies of memory, cpu and pids"
    )]
    NoHierarchy,
    /// The v2 tree lacks controllers, most often because the kernel was started without them.
    #[error(
        "cgroup v2 controllers are missing: {}. Pods can't be limited without them. Enable them on the kernel's command line ({}), or delegate them to the container or unit around the agent (Delegate=yes)",
        .missing.join(", "),
        .missing.iter().map(|name| format!("cgroup_enable={name}")).collect::<Vec<_>>().join(" ")
    )]
    MissingControllers {
        /// `memory`, `cpu` or `pids`.
        missing: Vec<&'static str>,
    },
    /// A name that is no plain path component.
    #[error("invalid cgroup name component {component:?}")]
    InvalidName {
        /// The component.
        component: String,
    },
    /// A value was refused by the kernel.
    #[error("cannot write {value:?} to {path:?}")]
    Write {
        /// File.
        path: PathBuf,
        /// Value.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// Another operation on a cgroup directory or file.
    #[error("cannot {operation} {path:?}")]
    Io {
        /// `create`, `read`, `remove`, ...
        operation: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A limit on memory that the pod would exceed at once. The kernel would kill its processes.
    #[error("attempting to set pod memory limit ({limit}) below current usage ({used})")]
    BelowUse {
        /// In bytes.
        limit: i64,
        /// In bytes, without files that can be dropped.
        used: i64,
    },
    /// Processes survived SIGKILL for the whole wait; tried again by the next clean-up.
    #[error("cgroup {path:?} still has processes: {pids:?}")]
    Busy {
        /// Cgroup directory.
        path: PathBuf,
        /// Who is in it.
        pids: Vec<i32>,
    },
}

/// A pod cgroup found on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPod {
    /// From the directory's name, `pod<uid>` or `...-pod<uid>.slice`.
    pub uid: crate::model::PodUid,
    /// Components below `cgroupRoot`: `kubepods`, tier, `pod<uid>`.
    pub name: Vec<String>,
}

/// What a cgroup gets to be written; `None` leaves the kernel's default (no limit).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `cpu.shares` (v1 scale, 2..=262144).
    pub cpu_shares: Option<u64>,
    /// CFS quota in microseconds per period, with the period.
    pub cpu_quota_micros: Option<(i64, u64)>,
    /// Bytes.
    pub memory_bytes: Option<i64>,
    /// Tasks.
    pub pids: Option<i64>,
    /// Page size name (`2MB`) and bytes.
    pub hugepages: Vec<(String, i64)>,
}

/// `systemReserved` and `kubeReserved` summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// Tasks.
    pub pids: i64,
}
