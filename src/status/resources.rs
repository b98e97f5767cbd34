//! The resources of containers and of a whole pod: what they have been given.

use super::{
    StatusInput,
    containers::{init_of, newest, regular_of},
};
use crate::{
    model::{CollectOrdered as _, ContainerAmounts, CpuMemory, ObservedContainer, k8s},
    podspec::{Amounts, container_amounts, effective_limits, effective_requests, is_pod_level},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::{borrow::Cow, collections::BTreeMap};

/// Amounts by resource name, as written in a status.
type Quantities = BTreeMap<String, Quantity>;

/// The resources that a container has been given: those of its spec, with the cpu and memory that
/// it really has while a resize is under way.
pub(super) fn container_resources(
    input: &StatusInput<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> Option<k8s::ResourceRequirements> {
    let mut resources = container.resources.clone();
    if let Some(resources) = &mut resources {
        resources.claims = None;
    }
    match lagging_amounts(input, container, instance) {
        Some(given) => Some(with_amounts(resources.unwrap_or_default(), given.own)),
        None => resources,
    }
}

/// `status.allocatedResources` and `status.resources` of a pod with resources of its own. The
/// kubelet also writes sums over the containers of other pods, which nothing in Kubernetes reads.
pub(super) fn pod_resources(
    input: &StatusInput<'_>,
) -> (Option<Quantities>, Option<k8s::ResourceRequirements>) {
    let Some(spec) = input.pod.spec.as_ref().filter(|spec| has_own(spec)) else {
        return (None, None);
    };
    let given = given_spec(input, spec);
    // A resize that waits has been given nothing yet.
    let allocated = if input.resize_wait.is_some() { &*given } else { spec };
    let resources = k8s::ResourceRequirements {
        requests: quantities(&effective_requests(&given), is_pod_level),
        limits: quantities(&effective_limits(&given), is_pod_level),
        claims: None,
    };
    (quantities(&effective_requests(allocated), |_| true), Some(resources))
}

fn has_own(spec: &k8s::PodSpec) -> bool {
    spec.resources.iter().any(|own| {
        let mut names = own.requests.iter().chain(&own.limits).flat_map(BTreeMap::keys);
        names.any(|name| is_pod_level(name))
    })
}

/// `spec` with the cpu and memory that the pod and its containers really have.
fn given_spec<'a>(input: &StatusInput<'_>, spec: &'a k8s::PodSpec) -> Cow<'a, k8s::PodSpec> {
    let mut given = Cow::Borrowed(spec);
    for container in init_of(input.pod).iter().chain(regular_of(input.pod)) {
        let instance = newest(input.observed, input.uid, &container.name);
        let lagging = instance.and_then(|one| lagging_amounts(input, container, one));
        let Some(lagging) = lagging else { continue };
        let given = given.to_mut();
        if lagging.pod != container_amounts(input.pod, container).pod {
            let own = spec.resources.clone().unwrap_or_default();
            given.resources = Some(with_amounts(own, lagging.pod));
        }
        let mut all = given.init_containers.iter_mut().flatten().chain(&mut given.containers);
        if let Some(found) = all.find(|found| found.name == container.name) {
            let own = found.resources.take().unwrap_or_default();
            found.resources = Some(with_amounts(own, lagging.own));
        }
    }
    given
}

/// The cpu and memory that an instance has, where the spec has others: a resize is under way. An
/// instance that does not run gets what the spec says with its next start, unless the resize waits.
fn lagging_amounts(
    input: &StatusInput<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> Option<ContainerAmounts> {
    let is_bound = instance.state.is_running() || input.resize_wait.is_some();
    let wanted = container_amounts(input.pod, container);
    input.memory.amounts_of(instance).filter(|given| is_bound && *given != wanted)
}

/// `resources` with other cpu and memory.
fn with_amounts(
    mut resources: k8s::ResourceRequirements,
    amounts: CpuMemory,
) -> k8s::ResourceRequirements {
    let set = |list: &mut Option<Quantities>, name: &str, text| match text {
        Some(text) => {
            list.get_or_insert_default().insert(name.to_owned(), Quantity(text));
        }
        None => {
            if let Some(list) = list {
                list.remove(name);
            }
        }
    };
    set(&mut resources.requests, "cpu", amounts.cpu_request.map(milli));
    set(&mut resources.requests, "memory", amounts.memory_request.map(bytes));
    set(&mut resources.limits, "cpu", amounts.cpu_limit.map(milli));
    set(&mut resources.limits, "memory", amounts.memory_limit.map(bytes));
    resources
}

/// The amounts of the resources that count; `None` for an empty list.
fn quantities(amounts: &Amounts, counts: impl Fn(&str) -> bool) -> Option<Quantities> {
    let counted = amounts.iter().filter(|(name, _)| counts(name));
    let written = counted.map(|(name, amount)| {
        let is_cpu = name == "cpu";
        let text = if is_cpu { milli(amount.milli_value()) } else { bytes(amount.value()) };
        (name.to_owned(), Quantity(text))
    });
    let list: Quantities = written.collect_ordered();
    (!list.is_empty()).then_some(list)
}

/// Thousandths as a quantity: `250m`, `2`.
fn milli(amount: i64) -> String {
    if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") }
}

/// Bytes as a quantity with the largest binary unit that leaves no rest: `64Mi`, `1000`.
fn bytes(amount: i64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.into_iter().find(|(shift, _)| amount != 0 && amount % (1 << shift) == 0);
    match unit {
        Some((shift, unit)) => format!("{}{unit}", amount >> shift),
        None => amount.to_string(),
    }
}
