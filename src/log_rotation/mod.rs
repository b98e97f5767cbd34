//! Rotation of container logs: when to look at a log and when to rotate it ([`Growth`]), how a file
//! that is set aside is called, and which files are removed or compressed ([`files`]).
//!
//! The names, limits and defaults are the kubelet's (`pkg/kubelet/logs`), with two differences. A
//! stamp is UTC and has microseconds, so that no name is used twice, however fast a container
//! writes. And a log that grows is looked at by its rate instead of every 10 s, so that a container
//! that writes 200 MB/s is far over its limit only for moments.

pub mod files;
mod growth;
#[cfg(test)]
mod tests;

pub use growth::{Growth, NextLook, share};

use std::time::Duration;

/// How container logs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationSettings {
    /// `containerLogMaxSize` in bytes, from which on a log is rotated; `None` (a negative value):
    /// logs are not rotated. Default 10 MiB.
    pub max_size: Option<u64>,
    /// `containerLogMaxFiles`, at least 2: the files that an instance of a container may have, the
    /// current one included. Default 5.
    pub max_files: usize,
    /// `containerLogMaxWorkers`: how many logs are compressed at a time. Default 1.
    pub workers: usize,
    /// `containerLogMonitorInterval`: the time between two looks at a log that does not grow.
    /// Default 10 s.
    pub interval: Duration,
    /// `containerLogMaxTotalSize` in bytes: what all container logs of the node together may take.
    /// Default `None`: any amount.
    pub max_total_size: Option<u64>,
}

impl Default for RotationSettings {
    fn default() -> Self {
        Self {
            max_size: Some(10 << 20),
            max_files: 5,
            workers: 1,
            interval: Duration::from_secs(10),
            max_total_size: None,
        }
    }
}
