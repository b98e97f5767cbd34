//! Sums of requests and limits, and the QoS class.

use super::is_sidecar;
use crate::model::{CollectOrdered as _, ContainerAmounts, CpuMemory, Quantity, k8s};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Amounts by resource name (`cpu`, `memory`, `hugepages-2Mi`, ...).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, Quantity>);

impl FromIterator<(String, Quantity)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (String, Quantity)>>(amounts: I) -> Self {
        Self(amounts.into_iter().collect_ordered())
    }
}

impl Amounts {
    /// The amounts of a list as written; what does not parse is left out.
    #[must_use]
    pub fn of(list: Option<&BTreeMap<String, Written>>) -> Self {
        let parsed = list
            .into_iter()
            .flatten()
            .filter_map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?)));
        Self(parsed.collect_ordered())
    }

    /// The amount of `resource`; `None` when it is not named.
    #[must_use]
    pub fn get(&self, resource: &str) -> Option<Quantity> {
        self.0.get(resource).copied()
    }

    /// The amount of `resource`, unless that is zero.
    #[must_use]
    pub fn non_zero(&self, resource: &str) -> Option<Quantity> {
        self.get(resource).filter(|amount| !amount.is_zero())
    }

    /// Names and amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = *sum + *amount;
        }
    }

    fn raise_to(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let kept = self.0.entry(name.clone()).or_default();
            *kept = (*kept).max(*amount);
        }
    }
}

/// Quality-of-service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    /// Every container has equal requests and limits for cpu and memory.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl QosClass {
    /// The text of `status.qosClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// What `container` requests. Where only a limit is given, API defaulting has made it the request.
#[must_use]
pub fn container_requests(container: &k8s::Container) -> Amounts {
    Amounts::of(container.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// What limits `container`.
#[must_use]
pub fn container_limits(container: &k8s::Container) -> Amounts {
    Amounts::of(container.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

/// The cpu and memory of a container and of its pod, as far as they can be changed while it runs.
#[must_use]
pub fn container_amounts(pod: &k8s::Pod, container: &k8s::Container) -> ContainerAmounts {
    let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    ContainerAmounts { own: cpu_memory(container.resources.as_ref()), pod: cpu_memory(whole) }
}

fn cpu_memory(resources: Option<&k8s::ResourceRequirements>) -> CpuMemory {
    let requests = Amounts::of(resources.and_then(|r| r.requests.as_ref()));
    let limits = Amounts::of(resources.and_then(|r| r.limits.as_ref()));
    let milli = |amounts: &Amounts| amounts.non_zero("cpu").map(Quantity::milli_value);
    let bytes = |amounts: &Amounts| amounts.non_zero("memory").map(Quantity::value);
    CpuMemory {
        cpu_request: milli(&requests),
        cpu_limit: milli(&limits),
        memory_request: bytes(&requests),
        memory_limit: bytes(&limits),
    }
}

/// Whether the containers of two pods with the same names have the same cpu and memory.
#[must_use]
pub fn has_same_amounts(one: &k8s::Pod, other: &k8s::Pod) -> bool {
    let amounts = |pod: &k8s::Pod| -> BTreeMap<String, ContainerAmounts> {
        let spec = pod.spec.iter();
        let all = spec.flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        all.map(|c| (c.name.clone(), container_amounts(pod, c))).collect_ordered()
    };
    amounts(one) == amounts(other)
}

/// `pod` with the cpu and memory that it has in `before`: a pod whose resize must wait.
#[must_use]
pub fn with_amounts_of(pod: &k8s::Pod, before: &k8s::Pod) -> k8s::Pod {
    let mut pod = pod.clone();
    let (Some(spec), Some(old)) = (&mut pod.spec, &before.spec) else { return pod };
    spec.resources.clone_from(&old.resources);
    let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for container in all {
        let mut before = old.init_containers.iter().flatten().chain(&old.containers);
        if let Some(before) = before.find(|before| before.name == container.name) {
            container.resources.clone_from(&before.resources);
        }
    }
    pod
}

/// What the pod requests as a whole: the larger of all that runs at once after initialization and
/// of each init container with the sidecars before it; pod-level requests replace the sums of what
/// they name. Without overhead: it is charged to the pod's cgroup, not to the sandbox.
#[must_use]
pub fn pod_requests(spec: &k8s::PodSpec) -> Amounts {
    aggregate(spec, container_requests, pod_level(spec, |r| r.requests.as_ref()))
}

/// What the pod takes of the node: [`pod_requests`] and its overhead.
#[must_use]
pub fn effective_requests(spec: &k8s::PodSpec) -> Amounts {
    with_overhead(pod_requests(spec), spec, false)
}

/// What limits the pod as a whole, summed like [`pod_requests`].
#[must_use]
pub fn pod_limits(spec: &k8s::PodSpec) -> Amounts {
    aggregate(spec, container_limits, pod_level(spec, |r| r.limits.as_ref()))
}

/// `spec.overhead`, which counts as request and as limit.
pub(super) fn overhead(spec: &k8s::PodSpec) -> Amounts {
    Amounts::of(spec.overhead.as_ref())
}

/// `amounts` with the pod's overhead; a limit is only raised where there is one.
pub(super) fn with_overhead(
    mut amounts: Amounts,
    spec: &k8s::PodSpec,
    only_named: bool,
) -> Amounts {
    for (name, amount) in overhead(spec).iter() {
        match amounts.0.get_mut(name) {
            Some(sum) => *sum = *sum + amount,
            None if only_named => {}
            None => {
                amounts.0.insert(name.to_owned(), amount);
            }
        }
    }
    amounts
}

/// The pod-level list, reduced to what may be set for a whole pod.
pub(super) fn pod_level(
    spec: &k8s::PodSpec,
    list: impl Fn(&k8s::ResourceRequirements) -> Option<&BTreeMap<String, Written>>,
) -> Amounts {
    let mut amounts = Amounts::of(spec.resources.as_ref().and_then(list));
    amounts.0.retain(|name, _| is_pod_level(name));
    amounts
}

/// Whether a resource may be set for a whole pod (`spec.resources`).
#[must_use]
pub fn is_pod_level(resource: &str) -> bool {
    resource == "cpu" || resource == "memory" || resource.starts_with("hugepages-")
}

fn aggregate(
    spec: &k8s::PodSpec,
    of: impl Fn(&k8s::Container) -> Amounts,
    whole: Amounts,
) -> Amounts {
    let mut running = Amounts::default();
    for container in &spec.containers {
        running.add(&of(container));
    }
    let mut sidecars = Amounts::default();
    let mut initializing = Amounts::default();
    for container in spec.init_containers.iter().flatten() {
        if is_sidecar(container) {
            sidecars.add(&of(container));
            initializing.raise_to(&sidecars);
        } else {
            let mut together = sidecars.clone();
            together.add(&of(container));
            initializing.raise_to(&together);
        }
    }
    running.add(&sidecars);
    running.raise_to(&initializing);
    running.0.extend(whole.0);
    running
}

/// The class of a pod: cpu and memory count, zero amounts don't, of `spec.resources` where that is
/// set, even to nothing, else of regular and init containers.
#[must_use]
pub fn qos_class(spec: &k8s::PodSpec) -> QosClass {
    const COUNTED: [&str; 2] = ["cpu", "memory"];
    if spec.resources.is_some() {
        let requests = pod_level(spec, |r| r.requests.as_ref());
        let limits = pod_level(spec, |r| r.limits.as_ref());
        if COUNTED.iter().all(|r| requests.non_zero(r).or(limits.non_zero(r)).is_none()) {
            return QosClass::BestEffort;
        }
        let equal = COUNTED.iter().all(|r| {
            limits.non_zero(r).is_some_and(|limit| requests.get(r).is_none_or(|q| q == limit))
        });
        return if equal { QosClass::Guaranteed } else { QosClass::Burstable };
    }
    let (mut requests, mut limits) = (Amounts::default(), Amounts::default());
    let mut all_limited = true;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let own = container_limits(container);
        all_limited &= COUNTED.iter().all(|r| own.non_zero(r).is_some());
        requests.add(&container_requests(container));
        limits.add(&own);
    }
    let amount = |list: &Amounts, r: &str| list.non_zero(r);
    if COUNTED.iter().all(|r| amount(&requests, r).is_none() && amount(&limits, r).is_none()) {
        return QosClass::BestEffort;
    }
    let equal = COUNTED.iter().all(|r| amount(&requests, r) == amount(&limits, r));
    if all_limited && equal { QosClass::Guaranteed } else { QosClass::Burstable }
}
