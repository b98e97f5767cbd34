//! The parts of the page, from top to bottom.

use super::{Facts, graph};
use crate::{
    model::{PodKey, PodView, SignalView, Used, k8s, printable},
    presentation::{
        UNREAD, age_at, bytes, columns, findings, manifest_counts, pleg, pod_counts, reason_beside,
        runtime, shown, verdict_row,
    },
};
use jiff::Timestamp;
use maud::{Markup, html};
use std::time::Duration;

/// The height of a graph stands for at least a hundredth of a CPU, and 1 MiB.
const LEAST_CPU: u64 = 10_000_000;
const LEAST_MEMORY: u64 = 1 << 20;

impl Facts {
    pub(super) fn header(&self, troubles: &[String]) -> Markup {
        let up = self.node.started_at.parse().ok().map(|then| age_at(then, self.now));
        let used = Used::of(&self.stats.node.machine);
        html! {
            header {
                h1 { (printable(&self.node.name)) }
                p {
                    "Pods: " (pod_counts(&self.pods)) "; nodelet " (printable(&self.node.version))
                    @if let Some(up) = up { ", up " (up) }
                }
                p class="time" id="time" { (format!("{:.0}", self.now)) }
                p {
                    span class="use" { "CPU " (cpu(used, self.history.of_node())) }
                    span class="use" { "Memory " (memory(used, self.history.of_node())) }
                }
                @if troubles.is_empty() {
                    p class="good" { "Everything runs as it should." }
                } @else {
                    ul class="troubles" {
                        @for trouble in troubles { li { (printable(trouble)) } }
                    }
                }
            }
        }
    }

    /// The table of pods, with these rows.
    pub(super) fn pods_around(&self, rows: impl maud::Render) -> Markup {
        html! {
            section {
                h2 { "Pods" }
                @if self.pods.is_empty() { p { "No pods." } }
                table class="pods" {
                    thead {
                        tr {
                            th { "Pod" } th { "Ready" } th { "Status" } th { "Restarts" }
                            th { "Age" } th { "IP" } th { "CPU" } th { "Memory" }
                        }
                    }
                    (rows)
                }
            }
        }
    }

    /// The row of a pod. `last_good`: it runs from an earlier revision of its manifest.
    pub(crate) fn pod_row(&self, view: &PodView, last_good: bool) -> String {
        let [namespace, name, ready, status, restarts, age, ip] = columns(view, self.now);
        let reason = reason_beside(view, last_good);
        let stats = self.stats.pods.iter().find(|pod| pod.uid == view.uid);
        let used = stats.and_then(|pod| pod.stats.as_ref()).map(Used::of).unwrap_or_default();
        let history = || self.history.of_pod(&view.uid);
        let state = if reason.is_empty() { "good" } else { "bad" };
        let row = html! {
            tbody class=(state) {
                tr {
                    th scope="row" {
                        span class="namespace" { (printable(&namespace)) "/" } (printable(&name))
                    }
                    td data-name="Ready" { (ready) }
                    td data-name="Status" class="state" { (printable(&status)) }
                    td data-name="Restarts" { (restarts) }
                    td data-name="Age" { (age) }
                    td data-name="IP" { (printable(&ip)) }
                    td data-name="CPU" { (cpu(used, history())) }
                    td data-name="Memory" { (memory(used, history())) }
                }
                @if !reason.is_empty() {
                    tr class="reason" { td colspan="8" { (printable(&reason)) } }
                }
            }
        };
        row.into_string()
    }

    pub(super) fn pressure(&self) -> Markup {
        let pressure = &self.node.pressure;
        html! {
            @if !pressure.signals.is_empty() {
                section {
                    h2 { "Pressure" }
                    table class="pressure" {
                        @for signal in &pressure.signals { (self.signal(signal)) }
                    }
                    @for evicted in &pressure.evicted {
                        p class="bad" {
                            (evicted.key.to_string()) " was evicted " (age_at(evicted.at, self.now))
                            " ago: " (printable(&evicted.message)) " It "
                            (printable(&evicted.waits_for))
                        }
                    }
                    @for trouble in &pressure.trouble { p class="bad" { (printable(trouble)) } }
                }
            }
        }
    }

    fn signal(&self, view: &SignalView) -> Markup {
        let signal = view.signal;
        let since = view.since.map(|at| format!(" for {}", age_at(at, self.now)));
        let state = match (view.available, view.crossed) {
            (None, _) => "unknown",
            (Some(_), true) => "crossed",
            (Some(_), false) => "ok",
        };
        html! {
            tbody class=(if view.crossed { "bad" } else { "good" }) {
                tr {
                    th scope="row" { (signal.name()) }
                    @match (view.available, view.capacity) {
                        (Some(available), Some(capacity)) => {
                            td { (graph::bar(available, capacity, &view.marks, signal.name())) }
                            td data-name="Available" {
                                (shown(signal, available)) " of " (shown(signal, capacity))
                            }
                        }
                        _ => { td {} td data-name="Available" { "not readable" } }
                    }
                    td data-name="Threshold" { (printable(&view.thresholds.join(", "))) }
                    td data-name="State" class="state" { (state) (since.unwrap_or_default()) }
                }
            }
        }
    }

    pub(super) fn manifests(&self) -> Markup {
        let update = |key: &PodKey| {
            let view = self.pods.iter().find(|view| view.key == *key)?;
            view.update.as_ref()
        };
        html! {
            section {
                h2 { "Manifests" }
                p { (manifest_counts(&self.node.sources)) }
                @for source in &self.node.sources {
                    h3 { (printable(&source.location)) }
                    @if let Some(error) = &source.error { p class="bad" { (printable(error)) } }
                    @if source.unread && source.error.is_none() { p { (UNREAD) } }
                    table class="manifests" {
                        @for (file, verdict) in
                            source.files.iter().flat_map(|f| f.verdicts.iter().map(move |v| (f, v)))
                        {
                            @let [name, pod, said] = verdict_row(source, file, verdict, update);
                            tbody class=(if verdict.is_rejected() { "bad" } else { "good" }) {
                                tr {
                                    th scope="row" { (printable(&name)) }
                                    td data-name="For" { (printable(&pod)) }
                                    td data-name="Verdict" class="state" { (printable(&said)) }
                                }
                                @for finding in findings(file, verdict) {
                                    tr class="reason" { td colspan="3" { (printable(&finding)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    pub(super) fn latest_events(&self) -> Markup {
        html! {
            section {
                h2 { "Events" }
                @if self.events.is_empty() { p { "No events." } }
                table class="events" {
                    @for event in self.events.iter().rev() {
                        (event_row(event, self.now))
                    }
                }
            }
        }
    }

    pub(super) fn about(&self) -> Markup {
        let node = &self.node;
        html! {
            section {
                h2 { "Node" }
                dl {
                    dt { "Runtime" } dd { (printable(&runtime(node))) }
                    dt { "Listing (PLEG)" } dd { (printable(&pleg(node, self.now))) }
                    @if let Some(cluster) = &node.cluster {
                        dt { "Cluster" }
                        dd { (printable(cluster.server.as_deref().unwrap_or("not connected"))) }
                    }
                    @for pod in &node.foreign {
                        dt { "Pod of another program" } dd { (printable(&pod.key.to_string())) }
                    }
                    @for notice in &node.notices {
                        dt { "Set, but not acted on" } dd { (printable(notice)) }
                    }
                }
            }
        }
    }
}

fn event_row(event: &k8s::Event, now: Timestamp) -> Markup {
    let object = &event.involved_object;
    let name = match (&object.namespace, &object.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (_, name) => name.clone().unwrap_or_default(),
    };
    let ago = event.last_timestamp.as_ref().map(|at| age_at(at.0, now)).unwrap_or_default();
    let times = event.count.filter(|count| *count > 1).map(|count| format!(" (x{count})"));
    let warns = event.type_.as_deref() == Some("Warning");
    html! {
        tbody class=(if warns { "bad" } else { "good" }) {
            tr {
                td data-name="Age" class="age" { (ago) (times.unwrap_or_default()) }
                td data-name="Reason" class="state" {
                    (printable(event.reason.as_deref().unwrap_or_default()))
                }
                th scope="row" { (printable(&name)) }
                td { (printable(event.message.as_deref().unwrap_or_default())) }
            }
        }
    }
}

/// Thousandths of a CPU, as `kubectl top` has them.
fn cpu(used: Used, samples: impl Iterator<Item = (Duration, Used)>) -> Markup {
    let amount = used.cpu.map(|nanos| format!("{}m", nanos.div_ceil(1_000_000)));
    let drawn = graph::line(samples, |used| used.cpu, LEAST_CPU, "CPU time in the last 5 minutes");
    with_graph(amount, &drawn)
}

fn memory(used: Used, samples: impl Iterator<Item = (Duration, Used)>) -> Markup {
    let drawn =
        graph::line(samples, |used| used.memory, LEAST_MEMORY, "Memory in the last 5 minutes");
    with_graph(used.memory.map(bytes), &drawn)
}

fn with_graph(amount: Option<String>, drawn: &Markup) -> Markup {
    html! {
        @if let Some(amount) = amount { span class="amount" { (amount) } (drawn) }
    }
}
