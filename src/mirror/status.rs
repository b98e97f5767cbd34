//! The status that a mirror pod should have.

use crate::{
    model::k8s,
    patch::{POD_STATUS, status_patch},
};
use serde_json::{Map, Value};

/// Whether a phase is final: nothing leaves it.
pub(super) fn is_final(status: &k8s::PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// What is to be written so that a mirror with the status `seen` has the status `ours`; `None` for
/// nothing.
///
/// As with the kubelet, a pod is not told to have ended while a container of it may still run, and
/// `DisruptionTarget` is written together with the end.
pub(super) fn patch(seen: &k8s::PodStatus, ours: &k8s::PodStatus) -> Option<Map<String, Value>> {
    let mut ours = ours.clone();
    let ending = is_final(&ours) && !is_final(seen);
    let too_early = ending && may_run(&ours);
    if too_early {
        ours.phase.clone_from(&seen.phase);
        ours.reason.clone_from(&seen.reason);
        ours.message.clone_from(&seen.message);
    }
    if let Some(conditions) = ours.conditions.as_mut().filter(|_| !ending || too_early) {
        conditions.retain(|condition| condition.type_ != "DisruptionTarget");
    }
    let value = |status: &k8s::PodStatus| serde_json::to_value(status).unwrap_or_default();
    status_patch(&value(seen), &value(&ours), &POD_STATUS)
}

fn may_run(status: &k8s::PodStatus) -> bool {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
}
