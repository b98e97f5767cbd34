//! The four conditions that the kubelet keeps, in its words.

use super::NodeReport;
use crate::model::{ConditionState, Event, EventKind, EventTarget, Now, Pressure, k8s};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The condition that says whether pods can run.
pub(super) const READY: &str = "Ready";
/// Status of every condition once the node lifecycle controller has given the node up.
const UNKNOWN: &str = "Unknown";

/// Conditions in the kubelet's order, Ready last, and the events of those that changed.
pub(super) fn conditions(
    report: &NodeReport,
    observed: &[k8s::NodeCondition],
    now: Now,
) -> (Vec<k8s::NodeCondition>, Vec<Event>) {
    let mut told = Vec::new();
    let mut all: Vec<k8s::NodeCondition> = Pressure::ALL
        .into_iter()
        .map(|pressure| {
            let state = report.conditions.pressure.get(&pressure);
            let holds = state.is_some_and(|state| state.holds);
            let words = pressure.words(holds);
            let before = find(observed, pressure.as_str()).map(|c| c.status.as_str());
            // The eviction loop reports every other transition when it notices it.
            if before.is_none_or(|before| before == UNKNOWN) {
                told.push(node_event(&report.name, words.event));
            }
            let told = Told { holds, reason: words.reason, message: words.message, state };
            condition(observed, pressure.as_str(), &told, now)
        })
        .collect();
    let not_ready = report.not_ready();
    let ready = not_ready.is_empty();
    let message = match not_ready.as_slice() {
        [] => "kubelet is posting ready status".to_owned(),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
    if find(observed, READY).is_some_and(|before| before.status != status(ready)) {
        let event = if ready { "NodeReady" } else { "NodeNotReady" };
        told.push(node_event(&report.name, event));
    }
    let state = report.conditions.ready.as_ref().filter(|state| state.holds == ready);
    all.push(condition(
        observed,
        READY,
        &Told { holds: ready, reason, message: &message, state },
        now,
    ));
    (all, told)
}

fn find<'a>(conditions: &'a [k8s::NodeCondition], type_: &str) -> Option<&'a k8s::NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn status(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// What is reported of a condition.
struct Told<'a> {
    holds: bool,
    reason: &'a str,
    message: &'a str,
    state: Option<&'a ConditionState>,
}

/// A condition that has this status already keeps its time. Another one gets the time of the
/// transition, or now where the server had given the node up.
fn condition(
    observed: &[k8s::NodeCondition],
    type_: &str,
    told: &Told<'_>,
    now: Now,
) -> k8s::NodeCondition {
    let status = status(told.holds);
    let before = find(observed, type_);
    let kept = before.filter(|before| before.status == status);
    let changed = before.is_some_and(|before| before.status != UNKNOWN);
    let since = told.state.filter(|_| changed).map_or(now.wall, |state| state.since);
    k8s::NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(told.reason.to_owned()),
        message: Some(told.message.to_owned()),
        last_heartbeat_time: Some(Time(now.wall)),
        last_transition_time: kept
            .and_then(|before| before.last_transition_time.clone())
            .or(Some(Time(since))),
    }
}

pub(super) fn node_event(node: &str, reason: &'static str) -> Event {
    let message = format!("Node {node} status is now: {reason}");
    Event { target: EventTarget::Node, kind: EventKind::Normal, reason, message }
}
