//! The pure part: what the kernel's files and answers say, and when they say nothing that could be
//! acted on.

mod disk;
mod kmsg;
mod memory;
mod process;
mod stats;

pub use kmsg::SystemOom;
pub use memory::MemInfo;
pub use process::Process;

pub(super) use disk::{FileSystemUse, layout, tops};
pub(super) use kmsg::system_oom;
pub(super) use memory::{CgroupMemory, NO_LIMIT, keyed, limit, number, working_set};
pub(super) use process::{address_space, is_below, process, tasks};
pub(super) use stats::{
    blkio, cpu_max, interfaces, io_stat, machine_faults, memory_stats, process_cpu, psi,
    shares_of_weight,
};

use std::path::PathBuf;
use thiserror::Error;

/// Why there is no reading of a signal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoReading {
    /// A file of the kernel, or a file system, can't be read.
    #[error("cannot read {path:?}: {message}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// It can be read and does not make sense.
    #[error("{path:?} makes no sense: {what}")]
    Absurd {
        /// Which.
        path: PathBuf,
        /// `it holds no MemTotal`, ...
        what: String,
    },
    /// A file system does not answer.
    #[error("the file system of {path:?} has not answered for {seconds} s or more")]
    Hung {
        /// A path on it.
        path: PathBuf,
        /// Since it was asked, roughly.
        seconds: u64,
    },
    /// Something else is mounted than before, or nothing any more.
    #[error(
        "{path:?} lies on another file system than before: was something mounted or unmounted?"
    )]
    Moved {
        /// The path.
        path: PathBuf,
    },
    /// `allocatableMemory.available` where nothing bounds all pods together.
    #[error("all pods together have no memory limit")]
    NoLimit,
    /// Nobody has told where it is.
    #[error("the container runtime has not reported where it stores images and containers")]
    NotTold,
    /// Images and writable layers lie where no signal counts them.
    #[error(
        "the file system of the containers' writable layers is neither that of the root directory nor that of the images"
    )]
    Layout,
}
