//! What is told about pressure and about an eviction, in the field's words: dashboards and alerts
//! read them.

use super::{
    amount::{binary, measured, shortest},
    rank::{Victim, unsigned},
    state::Acting,
};
use crate::{
    model::{ContainerUse, Hold, HoldStop, Pressure, Signal, k8s},
    podspec::{Amounts, container_requests},
};
use std::collections::BTreeMap;

/// `status.reason` of an evicted pod, and reason of its event.
pub(super) const EVICTED: &str = "Evicted";
/// Reason of the condition `DisruptionTarget`.
const DISRUPTION: &str = "TerminationByKubelet";
/// Seconds of a pod that names none.
const DEFAULT_GRACE: i64 = 30;

/// How a pod is evicted, and what is told about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// For its worker and its status.
    pub hold: Hold,
    /// Annotations of its event.
    pub annotations: BTreeMap<&'static str, String>,
}

impl Eviction {
    /// The eviction of a victim for what is acted on; soft thresholds leave it `max_pod_grace`
    /// seconds at most.
    ///
    /// Hard memory and process ids leave no time to ask for anything: the kubelet gives a second
    /// and goes through the runtime, here the pod's cgroup is killed.
    #[must_use]
    pub fn of(victim: &Victim<'_>, acting: &Acting, max_pod_grace: u32) -> Self {
        let signal = acting.threshold.signal;
        let (message, annotations) = told(victim, acting);
        let stop = match (acting.threshold.is_hard(), signal.condition()) {
            (true, Pressure::Memory | Pressure::Pid) => HoldStop::AtOnce,
            (true, Pressure::Disk) => HoldStop::Within(1),
            // A second at least, as the kubelet: a grace period of 0 is what a forced deletion
            // means.
            (false, _) => {
                HoldStop::Within(grace_seconds(victim.candidate.pod).min(max_pod_grace).max(1))
            }
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

fn grace_seconds(pod: &k8s::Pod) -> u32 {
    let spec = pod.spec.as_ref();
    let seconds = spec.and_then(|s| s.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE);
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}

/// The message, each of its sentences with a space after it, and the annotations.
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

/// What the pod as a whole requests of memory, where that is written.
fn pod_level_memory(pod: &k8s::Pod) -> Option<u64> {
    let resources = pod.spec.as_ref()?.resources.as_ref()?;
    Amounts::of(resources.requests.as_ref()).get("memory").map(unsigned)
}

/// What messages say that a container uses; only memory and bytes on disks are told.
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
