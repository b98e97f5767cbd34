//! How the node's parts are, one sentence each.

use super::text::{age_at, one_line};
use crate::model::{FileVerdict, NodeView, PodView, SourceView};
use jiff::Timestamp;
use std::{borrow::Borrow, sync::Arc};

pub(crate) fn runtime(node: &NodeView) -> String {
    let runtime = &node.runtime;
    let name = match (runtime.name.as_str(), runtime.endpoint.as_str()) {
        ("", "") => return "not seen yet".to_owned(),
        ("", endpoint) => format!("nothing has answered yet on {endpoint}"),
        (name, endpoint) => format!("{name} {} on {endpoint}", runtime.version),
    };
    let name = match node.cgroup_driver {
        Some(driver) if !runtime.name.is_empty() => format!("{name}, cgroup driver {driver}"),
        Some(_) | None => name,
    };
    match &runtime.not_ready {
        None if runtime.name.is_empty() => name,
        None => format!("{name}, ready"),
        Some(why) => format!("{name}, NOT READY: {}", one_line(why)),
    }
}

pub(crate) fn pleg(node: &NodeView, now: Timestamp) -> String {
    let pleg = &node.pleg;
    let last = match pleg.last_relist_at {
        Some(at) => format!("last full listing {} ago", age_at(at, now)),
        None => "nothing listed yet".to_owned(),
    };
    let events = if pleg.events_connected {
        "runtime events arrive"
    } else {
        "no runtime events, listing more often instead"
    };
    match &pleg.unhealthy {
        None => format!("healthy, {last}, {events}"),
        Some(why) => format!("UNHEALTHY: {}; {last}, {events}", one_line(why)),
    }
}

pub(crate) fn pod_counts<P: Borrow<PodView>>(pods: &[P]) -> String {
    let of = |phase: &str| {
        pods.iter()
            .map(P::borrow)
            .filter(|view| view.status.phase.as_deref() == Some(phase))
            .count()
    };
    let mut parts = vec![format!("{} in all", pods.len())];
    for (phase, word) in [
        ("Running", "running"),
        ("Pending", "pending"),
        ("Succeeded", "succeeded"),
        ("Failed", "failed"),
    ] {
        match of(phase) {
            0 => {}
            count => parts.push(format!("{count} {word}")),
        }
    }
    match pods.iter().map(P::borrow).filter(|view| view.terminating).count() {
        0 => {}
        count => parts.push(format!("{count} of them being stopped")),
    }
    parts.join(", ")
}

/// Said of a source at which the agent has not looked since it started.
pub(crate) const UNREAD: &str = "not read yet";

pub(crate) fn manifest_counts(sources: &[Arc<SourceView>]) -> String {
    let (mut accepted, mut rejected, mut ignored) = (0, 0, 0);
    for verdict in sources.iter().flat_map(|s| &s.files).flat_map(|file| &file.verdicts) {
        match verdict {
            FileVerdict::Accepted { .. } | FileVerdict::Object { .. } => accepted += 1,
            FileVerdict::Rejected { .. } => rejected += 1,
            FileVerdict::Skipped { .. } => ignored += 1,
        }
    }
    if sources.is_empty() {
        return "no source is configured".to_owned();
    }
    let counts = format!("{accepted} accepted, {rejected} rejected, {ignored} ignored");
    match sources.iter().filter(|source| source.unread).count() {
        0 => counts,
        unread if unread == sources.len() => UNREAD.to_owned(),
        unread => format!("{counts}, {unread} of {} sources {UNREAD}", sources.len()),
    }
}
