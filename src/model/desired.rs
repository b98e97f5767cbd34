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
