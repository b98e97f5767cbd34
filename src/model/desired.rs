//! A pod that should run, and where it was written down.

use super::{PodKey, PodUid, k8s};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A pod as desired: defaulted, validated, named, identified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DesiredPod {
    /// Full name, node suffix included.
    pub key: PodKey,
    /// Identity: changes when the pod must be replaced.
    pub uid: PodUid,
    /// Hash of everything written in the manifest, lowercase hex.
    pub revision: Box<str>,
    /// The pod with defaults, name suffix, tolerations and annotations applied.
    pub pod: Arc<k8s::Pod>,
    /// Where it is written.
    pub origin: Origin,
}

/// Which kind of source a pod came from; the text is the value of `kubernetes.io/config.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// `staticPodPath`
    File,
    /// `staticPodURL`
    Http,
    /// The API server.
    Api,
}

impl SourceKind {
    /// The name that annotations, statuses and messages use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

/// How a pod of the API server is to end, or has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodEnd {
    /// It was deleted: `metadata.deletionGracePeriodSeconds`.
    pub deleted: Option<u32>,
    /// The final phase that the API server has for it.
    pub phase: Option<TerminalPhase>,
}

/// A phase that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalPhase {
    /// Every container has ended with exit code 0.
    Succeeded,
    /// A container has failed, or something else has ended the pod.
    Failed,
}

impl TerminalPhase {
    /// The phase as in `status.phase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// The phase of a status, if it is final.
    #[must_use]
    pub fn of(status: &k8s::PodStatus) -> Option<Self> {
        let phase = status.phase.as_deref();
        [Self::Succeeded, Self::Failed].into_iter().find(|one| phase == Some(one.as_str()))
    }
}

/// The place that a document was read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// Kind of source.
    pub source: SourceKind,
    /// Full path of the file, or the URL.
    pub location: Box<str>,
    /// Which document (list items counted as documents), from 0.
    pub document: usize,
    /// Line at which the document begins, from 1.
    pub line: usize,
}
