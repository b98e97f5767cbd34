//! What goes over the local socket, both ways.

use crate::model::{NodeView, PodKey, PodView, k8s};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// The answer to `GET /status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDocument {
    pub node: NodeView,
    /// Every pod, by namespace and name.
    pub pods: Vec<PodView>,
    /// What happened, least recently seen first.
    pub events: Vec<k8s::Event>,
    pub events_dropped: u64,
    pub pod_logs_dir: PathBuf,
}

/// A line of an answer that goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FollowLine {
    /// An event that happened, or one more occurrence of it.
    Event(Box<k8s::Event>),
    /// A pod that has come, changed or gone; without its probes.
    #[serde(rename_all = "camelCase")]
    Pod {
        /// The pod; one that has gone as it was last.
        view: Arc<PodView>,
        /// Its manifest is invalid, and it runs from an earlier revision.
        last_good: bool,
        /// It is no longer there.
        gone: bool,
    },
    /// Everything that there was at the beginning has been told.
    Begun,
    /// Events are missing here.
    Lost,
}

/// The body of `POST /forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    pub key: PodKey,
}

/// The body of `POST /restart` and `POST /retry`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskRequest {
    pub key: PodKey,
    /// Only this container; for `POST /restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
}

/// What came of `POST /forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum ForgetAnswer {
    /// The last good revision is dropped; the pod that ran from it is stopped.
    Forgotten {
        /// Where the manifest was read from, for people.
        location: String,
        /// Not before all sources of manifests are known completely: while another last good
        /// revision is refused, for example, nothing is removed.
        #[serde(default)]
        waits: bool,
    },
    /// The pod's manifest is fine: there is no last good revision to drop.
    NotKept {
        /// Where the manifest lies.
        location: String,
    },
    /// No pod of that name is known.
    Unknown,
    Failed {
        message: String,
    },
}

/// A pod with its status, as `kubectl get pod -o json` would show it. A pod whose spec is lost has
/// a name and a status only.
#[must_use]
pub fn pod_object(view: &PodView) -> k8s::Pod {
    let mut pod = view.pod.as_deref().cloned().unwrap_or_default();
    pod.metadata.namespace = Some(view.key.namespace.to_string());
    pod.metadata.name = Some(view.key.name.to_string());
    pod.metadata.uid = Some(view.uid.to_string());
    pod.status = Some(view.status.as_ref().clone());
    pod
}
