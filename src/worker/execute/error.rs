//! Why an action has failed outside of the runtime, and why the runtime has made nothing.

use super::user_namespaces::UserNamespaceError;
use crate::{
    blocking::Crashed,
    cgroup::CgroupError,
    cri::{CriError, to_cri::ConfigError},
    hostfiles::HostFileError,
    model::error_chain,
    podspec::{EnvError, ExpansionError, HostnameError},
    volume::VolumeError,
};
use std::{io, path::PathBuf};
use thiserror::Error;

/// Work on the host for a pod, or on the configuration of its sandbox or containers, has failed.
/// The text is for events, statuses and the log.
#[derive(Debug, Error)]
pub(crate) enum HostError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    File(#[from] HostFileError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Expansion(#[from] ExpansionError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
    #[error(transparent)]
    Crashed(#[from] Crashed),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("looking at host paths and NFS volumes has crashed")]
    VolumesCrashed,
    /// All turns are taken; the number of turns.
    #[error("{0} other pods are waiting for file systems that do not answer")]
    VolumesHang(usize),
    #[error("what is left of an earlier pod with this uid is being removed")]
    RemovalUnderWay,
    #[error("another pod with this uid has left its directory")]
    LeftByAnother,
    #[error(
        "volume mount {0:?}: recursiveReadOnly is Enabled and the container runtime does not support it"
    )]
    NoRecursiveReadOnly(String),
    #[error("NFS is still mounted at {0:?}")]
    NfsBusy(PathBuf),
    #[error("the image of volume {0:?} was not pulled")]
    NoImage(String),
}

impl HostError {
    /// The error and its causes, as one sentence.
    pub(crate) fn message(&self) -> String {
        error_chain(self)
    }
}

/// Why the runtime has no new sandbox or container.
pub(super) enum NotMade {
    /// Its configuration could not be made.
    Config(HostError),
    /// The runtime did not make it.
    Runtime(CriError),
    /// It was not wanted any more before the call.
    NotWanted,
}
