//! Events in the field's words (reasons and messages as the kubelet's), before aggregation.

use super::{PodKey, PodUid};
use serde::{Deserialize, Serialize};

/// Something that happened to a pod or to the node, to be told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it happened to.
    pub target: EventTarget,
    /// Normal or Warning.
    pub kind: EventKind,
    /// CamelCase reason: `Pulling`, `Started`, `BackOff`, ...
    pub reason: &'static str,
    /// One sentence for people.
    pub message: String,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EventTarget {
    /// The node.
    Node,
    /// A pod, or one of its containers.
    Pod {
        /// Full name.
        key: PodKey,
        /// Which incarnation.
        uid: PodUid,
        /// `spec.containers{web}`, `spec.initContainers{setup}`; `None` for the pod itself.
        field_path: Option<String>,
    },
}

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// Nothing to worry about.
    Normal,
    /// Somebody may want to look.
    Warning,
}
