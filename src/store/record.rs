//! What is kept of an admitted pod.

use crate::{
    model::{ContainerId, DesiredPod, Origin, PodKey, PodUid, k8s},
    plan::Terminal,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One incarnation of a pod name, from before its first sandbox until nothing of it is left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    pub key: PodKey,
    pub uid: PodUid,
    /// Hash of everything written in its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Box<str>>,
    /// Where it is or was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The pod as it runs: metadata and spec with defaults.
    pub pod: Arc<k8s::Pod>,
    /// `status.startTime`: when it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<KillRecord>,
    /// How it ended for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// Its object in the API server was deleted, and its containers were told to stop. So nothing
    /// of it starts, also while the API server is away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Its containers that a shutdown of the machine ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<ContainerId>,
    /// The status reported last: transition times, last states, IPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Arc<k8s::PodStatus>>,
}

impl PodRecord {
    /// One that nothing but this is known of.
    #[must_use]
    pub fn new(key: PodKey, uid: PodUid, pod: Arc<k8s::Pod>) -> Self {
        Self {
            key,
            uid,
            revision: None,
            origin: None,
            pod,
            started_at: None,
            kill: None,
            terminal: None,
            deleted: false,
            interrupted: Vec::new(),
            status: None,
        }
    }

    /// What was admitted; `None` when the record does not say where it is written.
    #[must_use]
    pub fn desired(&self) -> Option<DesiredPod> {
        Some(DesiredPod {
            key: self.key.clone(),
            uid: self.uid.clone(),
            revision: self.revision.clone()?,
            pod: Arc::clone(&self.pod),
            origin: self.origin.clone()?,
        })
    }

    /// Whether it has ended for good and stays so: one that is being removed may be wished again
    /// and begins anew.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.terminal.is_some() && self.kill.is_none()
    }
}

/// Until when an incarnation has time to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KillRecord {
    /// The whole grace period, in seconds.
    pub grace_seconds: u32,
    /// When it ends; wall time, because boot time does not survive a reboot.
    pub deadline: Timestamp,
}
