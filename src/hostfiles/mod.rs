//! The files that a container needs on the host besides its volumes: `/etc/hosts`, DNS settings,
//! the termination log, and log directories with their links for log shippers.
//!
//! `core` computes contents and names; `pod_files` writes below `<root>/pods/<uid>`; `logs` keeps
//! `<podLogsDir>` and `/var/log/containers`, and `rotation` the files of one container's log there;
//! `network_results` mends what CNI remembers. Log directories can be mounted into containers (log shippers do), so a symlink or a file where a
//! directory should be is refused, never followed. All functions that touch the disk block.

mod core;
mod dns;
mod gzip;
mod logs;
mod network_results;
mod pod_files;
mod rotation;
#[cfg(test)]
mod tests;

pub use core::{EtcHosts, etc_hosts};
pub use dns::{DnsWarning, NodeDns, PodDns, ResolvConf, pod_dns};
pub use rotation::{LogPlace, Tidied};

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;

/// What went wrong with which file.
#[derive(Debug, Error)]
pub enum HostFileError {
    #[error("cannot {operation} {path:?}: {source}")]
    Io {
        /// `create`, `read`, ...
        operation: &'static str,
        path: PathBuf,
        /// Why. Part of the text: it becomes an event's message.
        source: io::Error,
    },
    /// Something else is where a directory or link of ours should be. It may be an attempt to make
    /// the agent write to another file of the host.
    #[error("{path:?} is not {expected}: refused")]
    Suspicious {
        path: PathBuf,
        /// `a directory`, `a symbolic link`, ...
        expected: &'static str,
    },
    /// A directory to be deleted has a mount in it.
    #[error("{path:?} has something mounted in it")]
    StillMounted { path: PathBuf },
    /// A uid or name that can't be a file's name.
    #[error("{name:?} is no valid file name")]
    InvalidName { name: String },
    /// `resolvConf` is larger than any resolver configuration is.
    #[error("{path:?} is larger than {limit} bytes")]
    TooLarge {
        path: PathBuf,
        /// In bytes.
        limit: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFilePaths {
    /// Root directory, `pods/<uid>` in it.
    pub root_dir: PathBuf,
    /// `podLogsDir`, `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// Directory of links for log shippers, `/var/log/containers`.
    pub links_dir: PathBuf,
    /// The node's own `/etc/hosts`.
    pub node_hosts: PathBuf,
    /// Where the runtime's CNI library remembers networks, `/var/lib/cni/results`.
    pub network_results_dir: PathBuf,
}

/// The host files of pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostFiles {
    paths: Arc<HostFilePaths>,
}

impl HostFiles {
    /// Works with these places; touches nothing yet.
    #[must_use]
    pub fn new(paths: HostFilePaths) -> Self {
        Self { paths: Arc::new(paths) }
    }
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> HostFileError {
    HostFileError::Io { operation, path: path.to_owned(), source }
}

fn check_name(name: &str) -> Result<(), HostFileError> {
    if core::is_file_name(name) {
        Ok(())
    } else {
        Err(HostFileError::InvalidName { name: name.to_owned() })
    }
}
