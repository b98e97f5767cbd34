//! `oom_score_adj` of a container.

use super::resources::pod_level;
use super::{QosClass, container_requests, is_node_critical, is_sidecar, pod_requests, qos_class};
use crate::model::{Quantity, k8s};

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
/// A burstable pod stays above guaranteed ones and below best-effort ones.
const BURSTABLE_MIN: i64 = 1000 + GUARANTEED;
const BURSTABLE_MAX: i64 = BEST_EFFORT - 1;

/// The score that the kernel adds when it chooses a victim: the more memory a burstable container
/// requests, the less likely it is one. A sidecar is never a likelier victim than the containers
/// that it serves.
#[must_use]
pub fn oom_score_adj(pod: &k8s::Pod, container: &k8s::Container, node_memory_bytes: i64) -> i64 {
    let Some(spec) = pod.spec.as_ref() else { return BEST_EFFORT };
    if is_node_critical(pod) {
        return GUARANTEED;
    }
    match qos_class(spec) {
        QosClass::Guaranteed => return GUARANTEED,
        QosClass::BestEffort => return BEST_EFFORT,
        QosClass::Burstable => {}
    }
    let node = node_memory_bytes.max(1);
    let share = unclaimed_share(spec);
    let own = burstable(memory_request(container).saturating_add(share), node);
    let is_init = spec.init_containers.iter().flatten().any(|c| c.name == container.name);
    if !(is_init && is_sidecar(container)) {
        return own;
    }
    let smallest = spec.containers.iter().map(memory_request).min().unwrap_or(0);
    own.min(burstable(smallest.saturating_add(share), node))
}

fn burstable(request: i64, node: i64) -> i64 {
    let share = i128::from(request) * 1000 / i128::from(node);
    let score = 1000 - i64::try_from(share).unwrap_or(i64::MAX);
    score.clamp(BURSTABLE_MIN, BURSTABLE_MAX)
}

fn memory_request(container: &k8s::Container) -> i64 {
    container_requests(container).get("memory").map_or(0, Quantity::value)
}

/// What each container gets of a pod-level request that no container claims. Init containers that
/// have ended count, as with the kubelet.
fn unclaimed_share(spec: &k8s::PodSpec) -> i64 {
    let Some(whole) = pod_level(spec, |r| r.requests.as_ref()).get("memory") else { return 0 };
    let without = k8s::PodSpec { resources: None, ..spec.clone() };
    let claimed = pod_requests(&without).get("memory").map_or(0, Quantity::value);
    let containers = spec.containers.len() + spec.init_containers.iter().flatten().count();
    let containers = i64::try_from(containers).unwrap_or(1).max(1);
    (whole.value() - claimed).max(0) / containers
}
