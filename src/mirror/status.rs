//! The status that a mirror pod should have.

use crate::{
    model::{k8s, to_json_value},
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
    if says_the_same(seen, ours) {
        return None;
    }
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
    let value = |status: &k8s::PodStatus| to_json_value(status).unwrap_or_default();
    status_patch(&value(seen), &value(&ours), &POD_STATUS)
}

/// True only when nothing is to be written. Most comparisons end here, because every pod is looked at
/// again and again, and this takes a hundredth of the time of a patch.
pub(super) fn says_the_same(seen: &k8s::PodStatus, ours: &k8s::PodStatus) -> bool {
    let conditions = |status: &k8s::PodStatus| status.conditions.as_ref().map_or(0, Vec::len);
    let is_seen = |ours: &k8s::PodCondition| {
        seen.conditions.iter().flatten().any(|seen| {
            seen.type_ == ours.type_
                && seen.status == ours.status
                && seen.reason == ours.reason
                && seen.message == ours.message
                && seen.observed_generation == ours.observed_generation
        })
    };
    seen.phase == ours.phase
        && (&seen.reason, &seen.message) == (&ours.reason, &ours.message)
        && seen.observed_generation == ours.observed_generation
        && (&seen.host_ip, &seen.host_ips) == (&ours.host_ip, &ours.host_ips)
        && (&seen.pod_ip, &seen.pod_ips) == (&ours.pod_ip, &ours.pod_ips)
        && seen.start_time == ours.start_time
        && (&seen.resources, &seen.allocated_resources)
            == (&ours.resources, &ours.allocated_resources)
        && seen.container_statuses == ours.container_statuses
        && seen.init_container_statuses == ours.init_container_statuses
        && seen.ephemeral_container_statuses == ours.ephemeral_container_statuses
        && conditions(seen) == conditions(ours)
        && ours.conditions.iter().flatten().all(is_seen)
}

/// What is to be written of a pod of the API server. A final phase that the API server has stays,
/// with its reason and message, and so does the end of each container, except that it may turn out
/// that memory had run out.
pub(super) fn patch_of_api(
    seen: &k8s::PodStatus,
    ours: &k8s::PodStatus,
) -> Option<Map<String, Value>> {
    if !is_final(seen) {
        return patch(seen, ours);
    }
    let mut ours = ours.clone();
    ours.phase.clone_from(&seen.phase);
    ours.reason.clone_from(&seen.reason);
    ours.message.clone_from(&seen.message);
    keep_ends(&seen.init_container_statuses, &mut ours.init_container_statuses);
    keep_ends(&seen.container_statuses, &mut ours.container_statuses);
    // What is not known here any more is no news.
    ours.ephemeral_container_statuses.clone_from(&seen.ephemeral_container_statuses);
    keep(&seen.conditions, &mut ours.conditions);
    keep(&seen.resources, &mut ours.resources);
    keep(&seen.allocated_resources, &mut ours.allocated_resources);
    keep(&seen.start_time, &mut ours.start_time);
    keep(&seen.pod_ip, &mut ours.pod_ip);
    keep(&seen.pod_ips, &mut ours.pod_ips);
    keep(&seen.host_ip, &mut ours.host_ip);
    keep(&seen.host_ips, &mut ours.host_ips);
    patch(seen, &ours)
}

/// `ours`, but with the minor changes taken back to what `seen` has. On a busy node, patches of minor
/// changes alone would be half of all requests.
///
/// Minor changes are the first status of a pod whose containers have not begun, its IPs, the
/// condition `PodReadyToStartContainers`, and `observedGeneration` of the status and of conditions.
pub(super) fn without_minor_changes(
    seen: &k8s::PodStatus,
    ours: &k8s::PodStatus,
) -> k8s::PodStatus {
    if seen.start_time.is_none() && has_not_begun(ours) {
        return seen.clone();
    }
    let mut ours = ours.clone();
    ours.observed_generation = seen.observed_generation;
    ours.pod_ip.clone_from(&seen.pod_ip);
    ours.pod_ips.clone_from(&seen.pod_ips);
    let is_minor = |condition: &k8s::PodCondition| condition.type_ == "PodReadyToStartContainers";
    let conditions = ours.conditions.get_or_insert_default();
    conditions.retain(|condition| !is_minor(condition));
    let of_seen = || seen.conditions.iter().flatten();
    for condition in &mut *conditions {
        if let Some(seen) = of_seen().find(|seen| seen.type_ == condition.type_) {
            condition.observed_generation = seen.observed_generation;
        }
    }
    conditions.extend(of_seen().filter(|one| is_minor(one)).cloned());
    ours
}

/// Whether nothing has happened to its containers yet, neither good nor bad.
fn has_not_begun(status: &k8s::PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let waits = |status: &k8s::ContainerStatus| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        matches!(reason, Some("ContainerCreating" | "PodInitializing"))
    };
    status.phase.as_deref() == Some("Pending") && lists.into_iter().flatten().flatten().all(waits)
}

/// Takes a value over that we lack.
fn keep<T: Clone>(seen: &Option<T>, ours: &mut Option<T>) {
    if ours.is_none() {
        ours.clone_from(seen);
    }
}

/// Takes the containers over that have ended by the status that the API server has. The runtime may
/// tell later that one was out of memory.
fn keep_ends(
    seen: &Option<Vec<k8s::ContainerStatus>>,
    ours: &mut Option<Vec<k8s::ContainerStatus>>,
) {
    keep(seen, ours);
    let has_ended = |status: &&k8s::ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.terminated.is_some())
    };
    for ours in ours.iter_mut().flatten() {
        let mut ended = seen.iter().flatten().filter(has_ended);
        if let Some(ended) = ended.find(|ended| ended.name == ours.name)
            && (ended.container_id != ours.container_id
                || !ran_out_of_memory(ours)
                || ran_out_of_memory(ended))
        {
            *ours = ended.clone();
        }
    }
}

fn ran_out_of_memory(status: &k8s::ContainerStatus) -> bool {
    let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    ended.and_then(|ended| ended.reason.as_deref()) == Some("OOMKilled")
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
