//! The overview: pods, manifests with verdicts, the node.

use super::{
    cluster, pods, pressure,
    text::{self, Page},
};
use crate::{
    model::{FileReport, FileVerdict, NodeView, PodUpdate, PodView, Problem, SourceView},
    serve::StatusDocument,
};
use jiff::Timestamp;
use std::path::Path;

/// Indent below a heading, and of the problems below a file.
const INDENT: usize = 2;

pub(super) fn render(document: &StatusDocument, now: Timestamp, wide: bool) -> String {
    let mut page = Page::default();
    page.block(0, &pods::table(&document.pods, &document.node, now, wide));
    for source in &document.node.sources {
        page.line("");
        manifests(&mut page, source, &document.pods);
    }
    page.line("");
    node(&mut page, document, now);
    pressure::render(&mut page, &document.node.conditions, &document.node.pressure, now);
    if let Some(view) = &document.node.cluster {
        cluster::render(&mut page, view, &document.node.name, now);
    }
    foreign(&mut page, &document.node);
    sentences(&mut page, "Warnings", &document.node.warnings);
    sentences(&mut page, "Set, but not acted on", &document.node.notices);
    page.into_text()
}

fn manifests(page: &mut Page, source: &SourceView, pods: &[PodView]) {
    page.line(&format!("Manifests from {}", source.location));
    if let Some(error) = &source.error {
        page.block(INDENT, &format!("{}; pods that run keep running", text::one_line(error)));
    }
    if source.files.is_empty() && source.error.is_none() {
        page.block(INDENT, "none");
    }
    // One table, so that columns are aligned over all files. The findings of a file are inserted
    // below its row.
    let mut rows = Vec::new();
    let mut below = Vec::new();
    for file in &source.files {
        for verdict in &file.verdicts {
            rows.push(row(source, file, verdict, pods));
            below.push(findings(file, verdict));
        }
    }
    for (line, findings) in text::table(&rows).lines().zip(below) {
        page.block(INDENT, line);
        for finding in findings {
            page.block(INDENT + 4, &finding);
        }
    }
}

fn row(
    source: &SourceView,
    file: &FileReport,
    verdict: &FileVerdict,
    pods: &[PodView],
) -> Vec<String> {
    let inside = Path::new(&file.location).strip_prefix(&source.location).ok();
    let name = match inside.map(|path| path.display().to_string()) {
        Some(name) if !name.is_empty() => name,
        Some(_) | None => file.location.clone(),
    };
    let (key, said) = match verdict {
        FileVerdict::Accepted { key, .. } => {
            let view = pods.iter().find(|view| view.key == *key);
            let said = match view.and_then(|view| view.update.as_ref()) {
                Some(PodUpdate::Waits(_)) => "accepted, WAITS: the old revision runs on",
                Some(PodUpdate::RolledBack(_)) => "ROLLED BACK: the previous revision runs",
                None => "accepted",
            };
            (key.to_string(), said.to_owned())
        }
        FileVerdict::Object { key, .. } => (key.to_string(), "accepted".to_owned()),
        FileVerdict::Rejected { key, object, last_good, .. } => {
            let said = match (last_good, object) {
                (true, Some(_)) => "REJECTED, its last good data stays in use",
                (true, None) => "REJECTED, its last good revision keeps running",
                (false, _) => "REJECTED",
            };
            let pod = key.as_ref().map(ToString::to_string);
            let name = pod.or_else(|| object.as_ref().map(ToString::to_string));
            (name.unwrap_or_else(|| "-".to_owned()), said.to_owned())
        }
        FileVerdict::Skipped { reason } => ("-".to_owned(), format!("ignored: {reason}")),
    };
    vec![text::one_line(&name), key, said]
}

/// The findings about a document, one line each.
pub(in crate::cli) fn findings(file: &FileReport, verdict: &FileVerdict) -> Vec<String> {
    let line = |problem: &Problem, what: &str| finding(&file.location, problem, what);
    match verdict {
        FileVerdict::Accepted { warnings, .. } | FileVerdict::Object { warnings, .. } => {
            warnings.iter().map(|problem| line(problem, "warning: ")).collect()
        }
        FileVerdict::Rejected { problems, .. } => {
            problems.iter().map(|problem| line(problem, "")).collect()
        }
        FileVerdict::Skipped { .. } => Vec::new(),
    }
}

/// `FILE:LINE:COLUMN: path: message`, which editors and terminals turn into a link.
pub(in crate::cli) fn finding(location: &str, problem: &Problem, what: &str) -> String {
    let Problem { position, path, message } = problem;
    let place = if position.line > 0 {
        format!("{location}:{}:{}", position.line, position.column)
    } else {
        location.to_owned()
    };
    let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
    text::one_line(&format!("{place}: {what}{path}{message}"))
}

fn node(page: &mut Page, document: &StatusDocument, now: Timestamp) {
    let node = &document.node;
    page.line(&format!("Node {}", node.name));
    let up = node.started_at.parse::<Timestamp>().ok();
    let up = up.map(|then| format!(", up {}", text::age_at(then, now))).unwrap_or_default();
    page.field(INDENT, "Agent", &format!("nodelet {}, pid {}{up}", node.version, node.pid));
    if let Some(shutdown) = &node.shutdown {
        page.field(INDENT, "Shutdown", &text::one_line(shutdown));
    }
    page.field(INDENT, "Runtime", &runtime(node));
    let network = match &node.runtime.network_not_ready {
        None => "ready".to_owned(),
        Some(why) => format!("NOT READY: {}", text::one_line(why)),
    };
    page.field(INDENT, "Pod network", &network);
    page.field(INDENT, "Listing (PLEG)", &pleg(node, now));
    for hung in &node.pleg.hung {
        page.field(INDENT, "Hung", &format!("{}: {}", hung.key, text::one_line(&hung.what)));
    }
    page.field(INDENT, "Pods", &pod_counts(&document.pods));
    page.field(INDENT, "Manifests", &manifest_counts(&node.sources));
    if document.events_dropped > 0 {
        let dropped = format!("{} dropped, too many at once", document.events_dropped);
        page.field(INDENT, "Events", &dropped);
    }
}

fn runtime(node: &NodeView) -> String {
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
        Some(why) => format!("{name}, NOT READY: {}", text::one_line(why)),
    }
}

fn pleg(node: &NodeView, now: Timestamp) -> String {
    let pleg = &node.pleg;
    let last = match pleg.last_relist_at {
        Some(at) => format!("last full listing {} ago", text::age_at(at, now)),
        None => "nothing listed yet".to_owned(),
    };
    let events = if pleg.events_connected {
        "runtime events arrive"
    } else {
        "no runtime events, listing more often instead"
    };
    match &pleg.unhealthy {
        None => format!("healthy, {last}, {events}"),
        Some(why) => format!("UNHEALTHY: {}; {last}, {events}", text::one_line(why)),
    }
}

fn pod_counts(pods: &[PodView]) -> String {
    let of = |phase: &str| {
        pods.iter().filter(|view| view.status.phase.as_deref() == Some(phase)).count()
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
    match pods.iter().filter(|view| view.terminating).count() {
        0 => {}
        count => parts.push(format!("{count} of them being stopped")),
    }
    parts.join(", ")
}

fn manifest_counts(sources: &[SourceView]) -> String {
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
    format!("{accepted} accepted, {rejected} rejected, {ignored} ignored")
}

fn foreign(page: &mut Page, node: &NodeView) {
    if node.foreign.is_empty() {
        return;
    }
    page.line("");
    page.line("Pods of other programs on the same runtime, left alone");
    let rows: Vec<Vec<String>> = node
        .foreign
        .iter()
        .map(|pod| {
            let state = if pod.running { "running" } else { "stopped" };
            let owner = match &pod.owner {
                Some(owner) => format!("of the nodelet with owner id {owner}"),
                None => "not of a nodelet".to_owned(),
            };
            vec![pod.key.to_string(), state.to_owned(), owner]
        })
        .collect();
    page.block(INDENT, &text::table(&rows));
}

fn sentences(page: &mut Page, heading: &str, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    page.line("");
    page.line(heading);
    for sentence in sentences {
        page.block(INDENT, &text::one_line(sentence));
    }
}
