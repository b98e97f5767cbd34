//! What the status of the Node should be.

use super::{
    NodeReport,
    conditions::{conditions, node_event},
};
use crate::model::{CloudProvider, Event, EventKind, EventTarget, Now, k8s};

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
    let capacity = status.capacity.get_or_insert_default();
    capacity.extend(report.capacity.clone());
    // What is not in the capacity any more can't be requested.
    let mut allocatable = report.allocatable.clone();
    for (name, amount) in status.allocatable.iter().flatten() {
        if capacity.contains_key(name) && !report.capacity.contains_key(name) {
            allocatable.entry(name.clone()).or_insert_with(|| amount.clone());
        }
    }
    status.allocatable = Some(allocatable);
    let booted = status.node_info.as_ref().map(|info| info.boot_id.clone());
    if booted.is_some_and(|id| !id.is_empty() && id != report.info.boot_id) {
        told.push(rebooted(report));
    }
    status.node_info = Some(report.info.clone());
    status.images = Some(report.images.clone());
    status.runtime_handlers =
        (!report.runtime_handlers.is_empty()).then(|| report.runtime_handlers.clone());
    status.features.clone_from(&report.features);
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
