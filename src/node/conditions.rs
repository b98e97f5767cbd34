//! The four conditions that the kubelet keeps, in its words.

use super::NodeReport;
use crate::model::{Event, EventKind, EventTarget, Now, Pressure, k8s};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The condition that says whether pods can run.
pub(super) const READY: &str = "Ready";

/// What a pressure is called, when it is there and when it is not.
struct Words {
    type_: &'static str,
    holds: [&'static str; 3],
    not: [&'static str; 3],
}

/// Condition reason, condition message, event reason.
fn words(pressure: Pressure) -> Words {
    match pressure {
        Pressure::Memory => Words {
            type_: "MemoryPressure",
            holds: [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                "NodeHasInsufficientMemory",
            ],
            not: [
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                "NodeHasSufficientMemory",
            ],
        },
        Pressure::Disk => Words {
            type_: "DiskPressure",
            holds: ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
            not: [
                "KubeletHasNoDiskPressure",
                "kubelet has no disk pressure",
                "NodeHasNoDiskPressure",
            ],
        },
        Pressure::Pid => Words {
            type_: "PIDPressure",
            holds: [
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                "NodeHasInsufficientPID",
            ],
            not: [
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                "NodeHasSufficientPID",
            ],
        },
    }
}

/// Conditions in the kubelet's order, Ready last, and the events of those that changed.
pub(super) fn conditions(
    report: &NodeReport,
    observed: &[k8s::NodeCondition],
    now: Now,
) -> (Vec<k8s::NodeCondition>, Vec<Event>) {
    let mut told = Vec::new();
    let mut all: Vec<k8s::NodeCondition> = [Pressure::Memory, Pressure::Disk, Pressure::Pid]
        .into_iter()
        .map(|pressure| {
            let words = words(pressure);
            let holds = report.pressure.contains(&pressure);
            let [reason, message, event] = if holds { words.holds } else { words.not };
            let before = find(observed, words.type_).map(|c| c.status.as_str());
            let status = if holds { "True" } else { "False" };
            // A change between the two is told where it is noticed, by the loop that watches.
            if before.is_none_or(|before| before == "Unknown") {
                told.push(node_event(&report.name, event));
            }
            condition(observed, words.type_, status, reason, message, now)
        })
        .collect();
    let ready = report.not_ready.is_empty();
    let status = if ready { "True" } else { "False" };
    let message = match report.not_ready.as_slice() {
        [] => "kubelet is posting ready status".to_owned(),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
    if find(observed, READY).is_some_and(|before| before.status != status) {
        let event = if ready { "NodeReady" } else { "NodeNotReady" };
        told.push(node_event(&report.name, event));
    }
    all.push(condition(observed, READY, status, reason, &message, now));
    (all, told)
}

fn find<'a>(conditions: &'a [k8s::NodeCondition], type_: &str) -> Option<&'a k8s::NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn condition(
    observed: &[k8s::NodeCondition],
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Now,
) -> k8s::NodeCondition {
    let before = find(observed, type_).filter(|before| before.status == status);
    k8s::NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now.wall)),
        last_transition_time: before
            .and_then(|before| before.last_transition_time.clone())
            .or(Some(Time(now.wall))),
    }
}

pub(super) fn node_event(node: &str, reason: &'static str) -> Event {
    let message = format!("Node {node} status is now: {reason}");
    Event { target: EventTarget::Node, kind: EventKind::Normal, reason, message }
}
