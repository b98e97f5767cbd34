//! What the status of the Node should be.

use super::{
    NodeReport,
    conditions::{conditions, node_event},
    report::EPHEMERAL_STORAGE,
};
use crate::model::{CloudProvider, Event, EventKind, EventTarget, Now, is_extended_resource, k8s};

/// What every version of this agent has in its `kubeletVersion`, and no kubelet has.
const OWN_VERSION: &str = "+nodelet.";

/// The features of Kubernetes that this agent has and not every node, sorted (KEP-5328). The
/// scheduler binds a pod that needs such a feature only to nodes that declare it, and the API server
/// refuses a change of a running pod that needs one which its node does not declare.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// A status, and what is to be told because of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// All of it, what others wrote included.
    pub status: k8s::NodeStatus,
    /// Events that go with it once it is posted.
    pub told: Vec<Event>,
}

/// The status of the Node, from what the API server has (`None`: there is no Node yet). What is not
/// the kubelet's to say is left as it is: conditions of others, resources that others added,
/// attached volumes.
#[must_use]
pub fn status(report: &NodeReport, observed: Option<&k8s::Node>, now: Now) -> Computed {
    let before = observed.and_then(|node| node.status.as_ref());
    let mut status = before.cloned().unwrap_or_default();
    let seen = before.and_then(|before| before.conditions.as_deref()).unwrap_or_default();
    let (ours, mut told) = conditions(report, seen, now);
    let others = seen.iter().filter(|seen| !ours.iter().any(|our| our.type_ == seen.type_));
    status.conditions = Some(others.cloned().chain(ours.iter().cloned()).collect());
    // The kubelet's rule: what an external cloud provider has set is never replaced.
    let provided = report.cloud_provider == CloudProvider::External
        && status.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty());
    if !provided && !report.addresses.is_empty() {
        status.addresses = Some(report.addresses.clone());
    }
    let taken_over = status.node_info.as_ref().is_some_and(|info| is_taken_over(info, report));
    let capacity = status.capacity.get_or_insert_default();
    if taken_over {
        // Nobody provides the devices of the other agent's plugins any more.
        let extended = capacity.iter_mut().filter(|(name, _)| is_extended_resource(name));
        extended.for_each(|(_, amount)| "0".clone_into(&mut amount.0));
    }
    // A resource that the machine does not have any more.
    capacity.retain(|name, _| !is_of_machine(name) || report.capacity.contains_key(name));
    capacity.extend(report.capacity.clone());
    // Pods may request all that others have added to the capacity, and nothing else.
    let mut allocatable = capacity.clone();
    allocatable.extend(report.allocatable.clone());
    status.allocatable = Some(allocatable);
    let booted = status.node_info.as_ref().map(|info| info.boot_id.clone());
    if booted.is_some_and(|id| !id.is_empty() && id != report.info.boot_id) {
        told.push(rebooted(report));
        // What a kubelet had mounted before: no volume is attached elsewhere while it is listed
        // here, and until a reboot containers of the kubelet may use it.
        status.volumes_in_use = None;
    }
    status.node_info = Some(report.info.clone());
    status.images = Some(report.images.clone());
    status.runtime_handlers =
        (!report.runtime_handlers.is_empty()).then(|| report.runtime_handlers.clone());
    status.features.clone_from(&report.features);
    // All of it: the API server acts on what a kubelet has declared before, too.
    status.declared_features = Some(DECLARED_FEATURES.map(str::to_owned).to_vec());
    status.daemon_endpoints = match report.port {
        Some(port) => {
            let endpoint = k8s::DaemonEndpoint { port: port.into() };
            Some(k8s::NodeDaemonEndpoints { kubelet_endpoint: Some(endpoint) })
        }
        // What a kubelet may have left goes: nothing listens here. Port 0 is what the API server
        // makes of none.
        None => status.daemon_endpoints.filter(|endpoints| {
            endpoints.kubelet_endpoint.as_ref().is_none_or(|endpoint| endpoint.port == 0)
        }),
    };
    Computed { status, told }
}

/// True when another machine or a kubelet has written the status. The kubelet's rule is that it has
/// no checkpoint of device plugins, which without plugins is so after each of its restarts. A
/// restart of this agent keeps the resources that an administrator has added.
fn is_taken_over(told: &k8s::NodeSystemInfo, report: &NodeReport) -> bool {
    !told.kubelet_version.contains(OWN_VERSION) || told.machine_id != report.info.machine_id
}

/// True for a resource that only this agent reports, and that a node may lack.
fn is_of_machine(name: &str) -> bool {
    name == EPHEMERAL_STORAGE || name.starts_with("hugepages-")
}

fn rebooted(report: &NodeReport) -> Event {
    Event {
        target: EventTarget::Node,
        kind: EventKind::Warning,
        reason: "Rebooted",
        message: format!(
            "Node {} has been rebooted, boot id: {}",
            report.name, report.info.boot_id
        ),
    }
}

/// The event of a change of `spec.unschedulable`.
#[must_use]
pub fn schedulable(node: &str, unschedulable: bool) -> Event {
    node_event(node, if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" })
}
