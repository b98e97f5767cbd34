//! The PersistentVolumeClaims of pods, and the PersistentVolumes to which they are bound.

use super::PodUid;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Identifies a claim of a pod. Each pod reads its claims anew, because another claim may have the
/// name later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimKey {
    /// The pod that uses the claim.
    pub pod: PodUid,
    /// The namespace of the pod and of the claim.
    pub namespace: Box<str>,
    /// `metadata.name` of the claim.
    pub name: Box<str>,
    /// The pod must own the claim: the volume is a generic ephemeral one.
    pub owned: bool,
}

/// The answer of the API server for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The claim is bound to this volume. The API server lets nobody change that, so the answer is
    /// final.
    Bound(Arc<PersistentVolume>),
    /// The claim is bound to the volume of this name, whose node affinity excludes this node.
    Elsewhere(Box<str>),
    /// The claim is bound to the volume of this name. It has mount options, and volumes of its kind
    /// can't have any.
    MountOptions(Box<str>),
    /// The pod can't use the claim now, for this reason.
    Failed(Box<str>),
}

/// The parts of a PersistentVolume that a pod needs. None of them can change except the mount
/// options and the group; as they were read first, they hold for the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolume {
    /// `metadata.name`
    pub name: Box<str>,
    /// `spec.volumeMode` is `Block`.
    pub is_block: bool,
    /// What is mounted.
    pub source: PersistentSource,
    /// `spec.mountOptions`
    #[serde(default)]
    pub mount_options: Vec<Box<str>>,
    /// The group that may write to it, from its annotation `pv.beta.kubernetes.io/gid`.
    #[serde(default)]
    pub gid: Option<i64>,
}

/// The source of a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PersistentSource {
    /// `hostPath`
    HostPath {
        /// The path on the node.
        path: Box<str>,
        /// `type`, empty for no check.
        kind: Box<str>,
    },
    /// `local`
    Local {
        /// The path on the node.
        path: Box<str>,
    },
    /// `nfs`
    Nfs {
        /// The server as written.
        server: Box<str>,
        /// The path on the server.
        path: Box<str>,
        /// `readOnly` of the PersistentVolume.
        read_only: bool,
    },
    /// A source that this agent does not mount, by its name in the API.
    Other(Box<str>),
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PersistentVolumeClaim {}/{}", self.namespace, self.name)
    }
}
