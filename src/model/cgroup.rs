//! Who makes the cgroups of pods.

use serde::{Deserialize, Serialize};
use std::fmt;

/// `cgroupDriver`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// The agent and the runtime, as directories.
    #[default]
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

impl fmt::Display for CgroupDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        })
    }
}

/// What the runtime answers when it is asked for its cgroup driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToldDriver {
    /// It has not answered yet.
    #[default]
    Unknown,
    /// It does not have that call: the configuration decides.
    NotOffered,
    /// It uses this one.
    Uses(CgroupDriver),
}
