//! The status page: one HTML document with what `nodelet status` tells, and small graphs of what
//! pods use. It needs nothing from elsewhere, and no JavaScript.
//!
//! Texts that come from manifests, containers and the runtime are escaped by `maud`. Only
//! [`STYLE`] and [`SCRIPT`] are put in as they are.

mod graph;
mod sections;

use crate::{
    model::{FileVerdict, NodeView, PodView, Stats, UseHistory, k8s, printable},
    presentation::{pod_counts, reason_beside},
};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::sync::Arc;

/// The only style sheet.
pub(crate) const STYLE: &str = include_str!("style.css");
/// The only script: it replaces the contents every few seconds.
pub(crate) const SCRIPT: &str = include_str!("refresh.js");

/// Seconds between two loads of the page in a browser that runs no scripts.
const RELOAD_SECONDS: &str = "15";
/// Where the rows of pods belong, in the document without them.
const ROWS: &str = "<!--pods-->";

/// What the page is made from.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) node: Arc<NodeView>,
    pub(crate) pods: Arc<[Arc<PodView>]>,
    /// Oldest first.
    pub(crate) events: Vec<k8s::Event>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) history: Arc<UseHistory>,
    pub(crate) now: Timestamp,
    /// The page refreshes itself.
    pub(crate) live: bool,
}

impl Facts {
    /// Events on the page.
    pub(crate) const EVENTS: usize = 50;

    /// The document before and after the rows of pods.
    pub(crate) fn around_pods(&self) -> (String, String) {
        let document = self.document().into_string();
        let (head, tail) = document.split_once(ROWS).unwrap_or((&document, ""));
        (head.to_owned(), tail.to_owned())
    }

    fn document(&self) -> Markup {
        let troubles = self.troubles();
        let title = match troubles.len() {
            0 => format!("{}: pods {}", self.node.name, pod_counts(&self.pods)),
            1 => format!("{}: 1 trouble", self.node.name),
            count => format!("{}: {count} troubles", self.node.name),
        };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    @if self.live {
                        noscript { meta http-equiv="refresh" content=(RELOAD_SECONDS); }
                    }
                    title { (printable(&title)) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main id="page" {
                        (self.header(&troubles))
                        (self.pods_around(PreEscaped(ROWS)))
                        (self.pressure())
                        (self.manifests())
                        (self.latest_events())
                        (self.about())
                    }
                    @if self.live {
                        script { (PreEscaped(SCRIPT)) }
                    }
                }
            }
        }
    }

    /// What a person should look at, one sentence each.
    fn troubles(&self) -> Vec<String> {
        let node = &self.node;
        let mut troubles = Vec::new();
        troubles.extend(node.shutdown.iter().cloned());
        let of_runtime = &node.runtime.not_ready;
        troubles.extend(of_runtime.iter().map(|why| format!("The runtime is not ready: {why}")));
        let of_network = node.runtime.network_not_ready.iter();
        troubles.extend(of_network.map(|why| format!("The pod network is not ready: {why}")));
        troubles.extend(node.pleg.unhealthy.iter().map(|why| format!("PLEG is unhealthy: {why}")));
        let hung = node.pleg.hung.iter();
        troubles.extend(hung.map(|hung| format!("Pod {} hangs: {}", hung.key, hung.what)));
        let holding = node.conditions.pressure.iter().filter(|(_, state)| state.holds);
        troubles.extend(holding.map(|(pressure, _)| format!("The node has {pressure}")));
        troubles.extend(node.sources.iter().filter_map(|source| {
            let error = source.error.as_ref()?;
            Some(format!("Manifests from {}: {error}", source.location))
        }));
        troubles.extend(node.sources.iter().flat_map(|source| &source.files).filter_map(|file| {
            let rejected = file.verdicts.iter().any(FileVerdict::is_rejected);
            rejected.then(|| format!("Manifest {} is rejected", file.location))
        }));
        let of_cluster = node.cluster.iter().flat_map(|cluster| &cluster.troubles);
        troubles.extend(of_cluster.map(|t| format!("Cluster, {}: {}", t.what, t.error)));
        troubles.extend(node.warnings.iter().cloned());
        let last_good = node.last_good();
        troubles.extend(self.pods.iter().filter_map(|view| {
            let reason = reason_beside(view, last_good.contains(&view.key));
            (!reason.is_empty()).then(|| format!("Pod {}: {reason}", view.key))
        }));
        troubles
    }
}

#[cfg(test)]
mod tests;
