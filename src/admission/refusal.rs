//! Why a pod does not run, in the kubelet's words.

use super::{
    Decision,
    resources::{Needs, Shortage},
};
use crate::model::{
    DesiredPod, Event, EventKind, EventTarget, Hold, HoldStop, REFUSAL_PREFIX, k8s,
};
use crate::podspec::grace_seconds;
use std::{fmt::Write as _, sync::Arc};

/// The reason of pods that make room for a critical one.
pub const PREEMPTING: &str = "Preempting";
const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// Reason of the event for every extended resource. The pod's status and the message name it.
const OUT_OF_EXTENDED: &str = "OutOfExtendedResources";

const REASONS: [&str; 26] = [
    "Evicted",
    PREEMPTING,
    "SysctlForbidden",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "SupplementalGroupsPolicyNotSupported",
    NODE_AFFINITY,
    "NodeName",
    "NodePorts",
    "TaintToleration",
    "AppArmor",
    "UnexpectedAdmissionError",
    "OutOfpods",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    // The sizes of huge pages that Linux has, on one architecture or another.
    "OutOfhugepages-64Ki",
    "OutOfhugepages-1Mi",
    "OutOfhugepages-2Mi",
    "OutOfhugepages-4Mi",
    "OutOfhugepages-16Mi",
    "OutOfhugepages-32Mi",
    "OutOfhugepages-512Mi",
    "OutOfhugepages-1Gi",
    "OutOfhugepages-2Gi",
    "OutOfhugepages-16Gi",
];

/// The reason of a pod that asks for other labels of the node.
pub(super) const NODE_AFFINITY: &str = "NodeAffinity";

/// A rule that a pod does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    reason: String,
    message: String,
}

impl Refusal {
    pub(super) fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    pub(super) fn out_of(shortage: &Shortage) -> Self {
        Self::new(&format!("OutOf{}", shortage.resource), shortage.to_string())
    }

    /// True when other labels of the node could make a difference.
    pub(super) fn is_for_labels(&self) -> bool {
        self.reason == NODE_AFFINITY
    }

    pub(super) fn node_ports() -> Self {
        let message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        Self::new("NodePorts", message)
    }

    /// Not even all pods that a critical one may preempt have as much as it needs.
    pub(super) fn no_victims(missing: &Needs) -> Self {
        let list = missing.iter().fold(String::new(), |mut list, (resource, amount)| {
            // Writing to a String can't fail.
            write!(list, "(res: {resource}, q: {amount}), ").ok();
            list
        });
        let message = format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
        );
        Self::new("UnexpectedAdmissionError", message)
    }

    pub(super) fn into_decision(self, pod: &k8s::Pod) -> Decision {
        Decision::Held(Arc::new(Hold {
            reason: self.reason,
            message: format!("{REFUSAL_PREFIX}{}", self.message),
            stop: within_grace(pod),
            disruption: None,
        }))
    }
}

/// The hold of a pod that makes room for a critical one.
pub(super) fn preempted(pod: &k8s::Pod) -> Hold {
    let told = "Pod was preempted by Kubelet to accommodate a critical pod.";
    Hold {
        reason: PREEMPTING.to_owned(),
        message: PREEMPTED.to_owned(),
        stop: within_grace(pod),
        disruption: Some(("TerminationByKubelet".to_owned(), told.to_owned())),
    }
}

fn within_grace(pod: &k8s::Pod) -> HoldStop {
    HoldStop::Within(grace_seconds(Some(pod)))
}

/// The event of a hold, unless it was told before.
pub(super) fn event(pod: &DesiredPod, hold: &Hold, before: Option<&Hold>) -> Option<Event> {
    // An evicted pod has the same reason as one that is refused for pressure.
    let occasion = |hold: &Hold| (hold.reason.clone(), hold.is_refusal());
    if before.map(occasion) == Some(occasion(hold)) {
        return None;
    }
    let reason = REASONS.into_iter().find(|reason| *reason == hold.reason);
    let reason = reason.unwrap_or(match hold.reason.starts_with("OutOf") {
        true => OUT_OF_EXTENDED,
        false => "UnexpectedAdmissionError",
    });
    Some(Event {
        target: EventTarget::Pod { key: pod.key.clone(), uid: pod.uid.clone(), field_path: None },
        kind: EventKind::Warning,
        reason,
        message: hold.message.strip_prefix(REFUSAL_PREFIX).unwrap_or(&hold.message).to_owned(),
    })
}
