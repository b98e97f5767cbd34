//! The texts about pressure and evictions. They are the kubelet's, because dashboards and alerts
//! match them.

use super::{
    amount::{binary, measured, shortest},
    rank::{Victim, unsigned},
    state::Acting,
};
use crate::{
    model::{ContainerUse, Hold, HoldStop, Pressure, Signal, k8s},
    podspec::{Amounts, container_requests, grace_seconds},
};
use std::collections::BTreeMap;

/// `status.reason` of an evicted pod, and reason of its event.
pub(super) const EVICTED: &str = "Evicted";
/// Reason of the condition `DisruptionTarget`.
const DISRUPTION: &str = "TerminationByKubelet";

/// How a pod is evicted, and the texts about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The hold for its worker and its status.
    pub hold: Hold,
    /// Annotations of its event.
    pub annotations: BTreeMap<&'static str, String>,
}

impl Eviction {
    /// The eviction of a victim for a threshold. For a soft threshold, the grace period is at most
    /// `max_pod_grace` seconds.
    ///
    /// For a hard threshold of memory or process ids, the pod's cgroup is killed at once. The
    /// kubelet gives the pod one second and uses the runtime.
    #[must_use]
    pub fn of(victim: &Victim<'_>, acting: &Acting, max_pod_grace: u32) -> Self {
        let signal = acting.threshold.signal;
        let (message, annotations) = told(victim, acting);
        let stop = match (acting.threshold.is_hard(), signal.condition()) {
            (true, Pressure::Memory | Pressure::Pid) => HoldStop::AtOnce,
            (true, Pressure::Disk) => HoldStop::Within(1),
            // At least one second, as in the kubelet: a grace period of 0 means a forced deletion.
            (false, _) => HoldStop::Within(
                grace_seconds(Some(victim.candidate.pod)).min(max_pod_grace).max(1),
            ),
        };
        let hold = Hold {
            reason: EVICTED.to_owned(),
            stop,
            disruption: Some((DISRUPTION.to_owned(), message.clone())),
            message,
        };
        Self { hold, annotations }
    }
}

/// The message, with a space after each sentence, and the annotations.
fn told(victim: &Victim<'_>, acting: &Acting) -> (String, BTreeMap<&'static str, String>) {
    let signal = acting.threshold.signal;
    let resource = signal.resource();
    let candidate = &victim.candidate;
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        acting.threshold.value.shown(acting.reading.capacity),
        measured(signal, acting.reading.available),
    );
    let mut annotations = BTreeMap::from([("starved_resource", resource.to_owned())]);
    let mut add = |kind: &str, name: &str, used: u64, requested: u64| {
        message.push_str(&format!(
            "{kind} {name} was using {}, request is {}, has larger consumption of {resource}. ",
            binary(used),
            shortest(requested),
        ));
    };
    if resource == "memory"
        && let Some(requested) = pod_level_memory(candidate.pod)
        && victim.used > requested
    {
        let name = &candidate.key.name;
        add("Pod", name, victim.used, requested);
        annotations.insert("offending_pod", name.to_string());
        annotations.insert("offending_pod_usage", binary(victim.used));
    }
    let (mut names, mut uses) = (Vec::new(), Vec::new());
    for container in containers(candidate.pod) {
        let used = candidate.usage.containers.iter().find(|used| *used.name == *container.name);
        let Some(used) = used.and_then(|container| container_use(container, signal)) else {
            continue;
        };
        let requested = container_requests(container).get(resource).map_or(0, unsigned);
        if used > requested {
            add("Container", &container.name, used, requested);
            names.push(container.name.as_str());
            uses.push(binary(used));
        }
    }
    annotations.insert("offending_containers", names.join(","));
    annotations.insert("offending_containers_usage", uses.join(","));
    (message, annotations)
}

/// Regular containers, then init containers.
fn containers(pod: &k8s::Pod) -> impl Iterator<Item = &k8s::Container> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// The pod-level memory request; `None` if it is not set.
fn pod_level_memory(pod: &k8s::Pod) -> Option<u64> {
    let resources = pod.spec.as_ref()?.resources.as_ref()?;
    Amounts::of(resources.requests.as_ref()).get("memory").map(unsigned)
}

/// The usage of a container as messages show it; `None` for inodes and process ids.
fn container_use(container: &ContainerUse, signal: Signal) -> Option<u64> {
    match signal.resource() {
        "memory" => container.memory,
        "ephemeral-storage" => {
            let parts = [container.layer, container.logs].into_iter().flatten();
            parts.map(|space| space.bytes).reduce(u64::saturating_add)
        }
        _ => None,
    }
}

/// Message of the event `ExceededGracePeriod` of an evicted pod, as the kubelet words it.
pub const EXCEEDED_GRACE_PERIOD: &str =
    "Container runtime did not kill the pod within specified grace period.";

/// Message of the node's event `EvictionThresholdMet`.
#[must_use]
pub fn threshold_met_message(signal: Signal) -> String {
    format!("Attempting to reclaim {}", signal.resource())
}
