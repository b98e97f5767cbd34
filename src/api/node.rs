//! Registers the node and keeps its status true.
//!
//! ```text
//!  WatchCache (our Node) ──none──► POST ──► Registered(uid) ◄── every 10 s, report or Node changes
//!        ▲                                    │   └─► compute ─► differs, or 5 minutes over ─┐
//!        └────────── deleted ─────────────────┘                               PATCH status ◄─┘
//! ```
//!
//! What was written counts until the watch shows it or something newer, so that nothing is written
//! twice for want of an echo. So does what was read for a pod that the labels of the Node refuse.

use super::{
    ApiError, Clients, Link, Pause, Trouble, Verb, WatchCache, Watched, answer, call, jitter,
    startup::Startup,
};
use crate::{
    clock,
    echo::{Unechoed, Versioned},
    event::Recorder,
    metrics::{StartupPart, metrics},
    model::{Event, NodeScheduling, Now, k8s, to_json_value},
    node::{self, Computed, NodeRef, NodeReport, Posting, Registration, ReportPeriods},
    patch,
    publish::PublishIfChanged as _,
};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const NODES: &str = "/api/v1/nodes";
/// The time between two corrections of a status that another writer keeps changing.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long another agent of the same name is reported after its last write.
const RIVAL_FOR: Duration = Duration::from_secs(60);
impl Versioned for k8s::Node {
    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> u64 {
        let version = self.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }
}

impl Watched for k8s::Node {
    const MAX_WEIGHT: usize = 2 * answer::MAX_OBJECT_BYTES;

    fn key(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    fn weight(&self) -> usize {
        answer::weight(self)
    }
}

/// The task.
#[derive(Debug)]
pub struct NodeTask {
    /// What registration is made from.
    pub registration: Registration,
    /// How often the status is computed and written.
    pub periods: ReportPeriods,
    /// What the machine is like; `None` until that is known.
    pub report: watch::Receiver<Option<Arc<NodeReport>>>,
    /// The way to the server.
    pub link: watch::Receiver<Link>,
    /// Our Node, as the server has it.
    pub picture: watch::Receiver<Arc<WatchCache<k8s::Node>>>,
    /// The registered node, for the lease and the pods.
    pub registered: watch::Sender<Option<NodeRef>>,
    /// What our Node says about pods, for their admission; `None` until it was seen.
    pub scheduling: watch::Sender<Option<Arc<NodeScheduling>>>,
    /// The boot time since when a pod waits until the Node is read once more.
    pub wanted: watch::Receiver<Duration>,
    /// For people.
    pub published: watch::Sender<NodeState>,
    /// Events of the node.
    pub events: Recorder,
}

/// How the reporting of the node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Wall time of the last status that was written.
    pub posted: Option<jiff::Timestamp>,
    /// Why the last try failed.
    pub trouble: Option<Trouble>,
    /// What a person should do or know.
    pub notes: Vec<String>,
}

/// What the task remembers.
struct NodeMemory {
    posting: Posting,
    /// What was written or read last, until the watch shows it.
    written: Unechoed<k8s::Node>,
    /// The boot time at which the last read began.
    read_at: Duration,
    pause: Pause,
    unschedulable: bool,
    /// What the server did not keep of the last status that was written: to write it again would
    /// change nothing.
    unkept: Unkept,
    /// Another agent that writes our status, and when it was last heard by boot time.
    rival: Option<(String, Duration)>,
    /// What the last written status was made from, and when by boot time.
    reported: Option<(Arc<NodeReport>, Duration)>,
    startup: Startup,
}

/// Fields that the server did not keep as they were written, and what it kept in their place.
#[derive(Debug, Default)]
struct Unkept {
    ours: Map<String, Value>,
    kept: Value,
}

impl Unkept {
    /// Of the fields that were `sent`, those that would be written again now that the server has
    /// answered.
    fn of<'a>(
        sent: impl Iterator<Item = &'a String>,
        report: &NodeReport,
        written: &k8s::Node,
        now: Now,
    ) -> Self {
        let again = node::status(report, Some(written), now).status;
        let again = to_json_value(&again).unwrap_or_default();
        let kept = to_json_value(&written.status).unwrap_or_default();
        let fields = patch::status_patch(&kept, &again, &patch::NODE_STATUS).unwrap_or_default();
        let mut fields = patch::without_times(fields);
        let sent: Vec<&String> = sent.collect();
        fields.retain(|field, _| sent.contains(&field));
        Self { ours: fields, kept }
    }

    /// True when the field differs only because the server did not keep it, and not because another
    /// writer has changed it.
    fn explains(&self, field: &str, ours: &Value, theirs: &Value) -> bool {
        self.ours.get(field) == Some(ours) && theirs.get(field) == self.kept.get(field)
    }
}

impl NodeMemory {
    fn new(periods: ReportPeriods) -> Self {
        Self {
            posting: Posting::new(periods, clock::now()),
            written: Unechoed::default(),
            read_at: Duration::ZERO,
            pause: Pause::default(),
            unschedulable: false,
            unkept: Unkept::default(),
            rival: None,
            reported: None,
            startup: Startup::New { agent_started: clock::now().boot },
        }
    }

    /// Notes that the API server has the status that was made from a report.
    fn posted(&mut self, report: &NodeReport) {
        if report.not_ready().is_empty() {
            count_startup(self.startup.ready(clock::now().boot));
        }
    }
}

impl NodeTask {
    /// Registers and reports until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut memory = NodeMemory::new(self.periods);
        loop {
            // Cancel-safe: a write that is dropped with its credentials is made again from what the
            // server has.
            let wait = tokio::select! {
                () = shutdown.cancelled() => return,
                wait = self.pass(&mut memory) => wait,
            };
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = self.link.changed() => if changed.is_err() { return },
                changed = self.report.changed() => if changed.is_err() { return },
                changed = self.picture.changed() => if changed.is_err() { return },
                changed = self.wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One look at everything, and at most one write. How long to wait when nothing happens
    /// meanwhile.
    async fn pass(&mut self, memory: &mut NodeMemory) -> Duration {
        let clients = self.link.borrow_and_update().clone();
        let report = self.report.borrow_and_update().clone();
        let picture = Arc::clone(&self.picture.borrow_and_update());
        let wanted = *self.wanted.borrow_and_update();
        let mut seen = self.latest(&picture, memory);
        let (Some(clients), Some(report)) = (clients, report) else { return Duration::MAX };
        if !picture.whole {
            return self.periods.update;
        }
        let mut read = Ok(());
        if seen.is_some() && memory.read_at < wanted {
            read = self.read(&clients, &report.name, memory).await;
            seen = self.latest(&picture, memory);
        }
        let outcome = match seen {
            None if !self.registration.enabled => {
                self.registered.publish_if_changed(None);
                return self.periods.update;
            }
            None => self.register(&clients, &report, memory).await,
            Some(node) => {
                memory.startup.found();
                self.know(&node, memory);
                let wait = memory.posting.wait_for_runtime(&report, &node, clock::now());
                if let Some(wait) = wait {
                    return wait;
                }
                self.report(&clients, &report, &node, memory).await
            }
        };
        match outcome.and(read) {
            Ok(()) => {
                memory.pause.reset();
                self.published.send_if_modified(|state| state.trouble.take().is_some());
                // What was written is not believed for ever, and a foreign word is answered soon.
                self.periods.update.min(PATIENCE)
            }
            Err(error) => {
                let now = clock::now().wall;
                self.published.send_modify(|state| {
                    if Trouble::note(&mut state.trouble, error.to_string(), now) {
                        tracing::warn!(err = %error, "cannot report the node");
                    }
                });
                memory.pause.after_failure()
            }
        }
    }

    /// Our Node, the only one that the watch shows. Publishes what it says about pods. While the
    /// watch is broken, it is what was seen last.
    fn latest(
        &self,
        picture: &WatchCache<k8s::Node>,
        memory: &mut NodeMemory,
    ) -> Option<Arc<k8s::Node>> {
        let shown = picture.objects.values().next();
        let node = memory.written.latest(shown, picture.live, clock::now().boot);
        let scheduling = node.as_deref().map(|node| {
            let read_at = memory.read_at;
            Arc::new(NodeScheduling { read_at, ..NodeScheduling::from(node) })
        });
        self.scheduling.publish_if_changed(scheduling);
        node
    }

    /// Reads the Node, for a pod that is refused for what the watch has shown of it.
    async fn read(
        &self,
        clients: &Clients,
        name: &str,
        memory: &mut NodeMemory,
    ) -> Result<(), ApiError> {
        let begun = clock::now().boot;
        let path = format!("{NODES}/{name}");
        let node: k8s::Node = call(&clients.main, Verb::Get, &path, None::<&()>).await?;
        memory.read_at = begun;
        memory.written.wrote(Arc::new(node), clock::now().boot);
        Ok(())
    }

    async fn register(
        &self,
        clients: &Clients,
        report: &Arc<NodeReport>,
        memory: &mut NodeMemory,
    ) -> Result<(), ApiError> {
        let now = clock::now();
        let new = node::new_node(&self.registration, report, now);
        memory.startup.try_at(now.boot);
        let made: k8s::Node = call(&clients.main, Verb::Create, NODES, Some(&new)).await?;
        count_startup(memory.startup.registered(clock::now().boot));
        memory.posted(report);
        tracing::info!(node = report.name, server = %clients.server, "the node is registered");
        self.tell(node::status(report, None, now).told);
        self.know(&made, memory);
        memory.posting.posted(true, spread(), now);
        memory.reported = Some((Arc::clone(report), now.boot));
        memory.written.wrote(Arc::new(made), now.boot);
        self.published.send_modify(|state| state.posted = Some(now.wall));
        Ok(())
    }

    /// Publishes the identity of the Node, and emits the event when `unschedulable` changes.
    fn know(&self, node: &k8s::Node, memory: &mut NodeMemory) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let deleting = node.metadata.deletion_timestamp.is_some();
        let reference = NodeRef { name, uid, deleting };
        self.registered.publish_if_changed(Some(reference));
        let unschedulable =
            node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        if unschedulable != memory.unschedulable {
            memory.unschedulable = unschedulable;
            let name = node.metadata.name.as_deref().unwrap_or_default();
            self.events.record(node::schedulable(name, unschedulable));
        }
    }

    async fn report(
        &self,
        clients: &Clients,
        report: &Arc<NodeReport>,
        node: &k8s::Node,
        memory: &mut NodeMemory,
    ) -> Result<(), ApiError> {
        let now = clock::now();
        let Computed { status, told } = node::status(report, Some(node), now);
        let ours = to_json_value(&status).unwrap_or_default();
        let theirs = to_json_value(&node.status).unwrap_or_default();
        let mut fields =
            patch::status_patch(&theirs, &ours, &patch::NODE_STATUS).unwrap_or_default();
        let metadata = node::reconciled(&self.registration, node);
        self.note(report, node, memory);
        let mut news = patch::without_times(fields.clone());
        news.retain(|field, value| !memory.unkept.explains(field, value, &theirs));
        let differs = !news.is_empty() || metadata.is_some();
        if !memory.posting.is_due(differs, now) {
            return Ok(());
        }
        // A writer that keeps changing the status is corrected only from time to time.
        let just_said = memory.reported.as_ref().is_some_and(|(said, at)| {
            said == report && now.boot < *at + self.periods.update.min(PATIENCE)
        });
        if just_said {
            return Ok(());
        }
        // All of them, also where they are as they were: their heartbeat is not.
        fields.entry("conditions").or_insert_with(|| kept_by_node(&ours["conditions"]));
        let mut body = json!({ "status": fields });
        if let Some(Value::Object(metadata)) = metadata {
            body.as_object_mut().into_iter().for_each(|body| body.extend(metadata.clone()));
        }
        let path = format!("{NODES}/{}/status", report.name);
        let written: k8s::Node = call(&clients.main, Verb::Patch, &path, Some(&body)).await?;
        memory.posted(report);
        self.tell(told);
        let sent = body["status"].as_object().into_iter().flatten().map(|(field, _)| field);
        memory.unkept = Unkept::of(sent, report, &written, now);
        memory.posting.posted(differs, spread(), now);
        memory.reported = Some((Arc::clone(report), now.boot));
        memory.written.wrote(Arc::new(written), now.boot);
        self.published.send_modify(|state| state.posted = Some(now.wall));
        Ok(())
    }

    fn tell(&self, told: Vec<Event>) {
        for event in told {
            self.events.record(event);
        }
    }

    /// What a person should do or know about the Node.
    fn note(&self, report: &NodeReport, node: &k8s::Node, memory: &mut NodeMemory) {
        let mut notes = Vec::new();
        let now = clock::now().boot;
        let told = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let ours = &report.info;
        // Before our first word it is what an earlier boot of this machine said.
        if memory.reported.is_some()
            && let Some(told) = told
            && (&told.machine_id, &told.boot_id) != (&ours.machine_id, &ours.boot_id)
        {
            let text = format!(
                "another agent reports a node of this name: machine id {}, boot id {}; give one of the two another name \
                 with --hostname-override",
                told.machine_id, told.boot_id
            );
            memory.rival = Some((text, now));
        }
        // What it wrote is put right at once, and it answers.
        memory.rival = memory.rival.take().filter(|(_, heard)| now < *heard + RIVAL_FOR);
        notes.extend(memory.rival.iter().map(|(text, _)| text.clone()));
        let fields: Vec<&str> = memory.unkept.ours.keys().map(String::as_str).collect();
        if !fields.is_empty() {
            notes.push(format!(
                "the API server does not keep these fields of the node's status as they are written: {}",
                fields.join(", ")
            ));
        }
        notes.extend(node::taint_note(&self.registration, node));
        self.published.send_if_modified(|state| {
            let changed = state.notes != notes;
            if changed {
                for note in notes.iter().filter(|note| !state.notes.contains(note)) {
                    tracing::warn!("{note}");
                }
                state.notes = notes;
            }
            changed
        });
    }
}

fn count_startup(parts: Vec<(StartupPart, Duration)>) {
    for (part, took) in parts {
        metrics().node.node_started(part, took);
    }
}

/// Conditions that a node writes.
fn kept_by_node(conditions: &Value) -> Value {
    let all = conditions.as_array().into_iter().flatten();
    let ours = |condition: &&Value| {
        condition["type"].as_str().is_some_and(|type_| patch::NODE_CONDITIONS.contains(&type_))
    };
    all.filter(ours).cloned().collect()
}

/// A random number from 0 to 1.
fn spread() -> f64 {
    jitter(Duration::from_secs(1)).as_secs_f64()
}

#[cfg(test)]
mod tests;
