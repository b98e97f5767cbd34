//! The overview: pods, manifests with verdicts, the node.

use super::{
    cluster, pods, pressure,
    text::{self, Page},
};
use crate::{
    model::{NodeView, PodKey, PodView, SourceView},
    presentation::{UNREAD, findings, manifest_counts, pleg, pod_counts, runtime, verdict_row},
    serve::StatusDocument,
};
use jiff::Timestamp;

/// Indent below a heading, and of the problems below a file.
const INDENT: usize = 2;

/// The overview, with `listed` of its pods in the table.
pub(super) fn render(
    document: &StatusDocument,
    listed: &[&PodView],
    now: Timestamp,
    wide: bool,
) -> String {
    let mut page = Page::default();
    page.block(0, &pods::table(listed, &document.node, now, wide));
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
        page.block(INDENT, if source.unread { UNREAD } else { "none" });
    }
    // One table, so that columns are aligned over all files. The findings of a file are inserted
    // below its row.
    let mut rows = Vec::new();
    let mut below = Vec::new();
    for file in &source.files {
        for verdict in &file.verdicts {
            let update = |key: &PodKey| {
                pods.iter().find(|view| view.key == *key).and_then(|view| view.update.as_ref())
            };
            rows.push(verdict_row(source, file, verdict, update).to_vec());
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
