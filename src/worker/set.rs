//! The set of workers. It passes what the sources wish and what the runtime shows to the worker of
//! each pod name, publishes the workers' views, and ends a worker when nothing of its name is left.

mod admit;
mod asked;
mod order;
mod publish;
mod state;

pub use crate::model::Known;
pub use asked::Asking;
pub use publish::SetView;
use state::{Handle, State};

use super::{
    Input,
    execute::Host,
    records::Recorded,
    report::Report,
    task::{SavedMemory, Worker, WorkerStart},
};
use crate::{
    admission::{NodeFacts, Progress, StartOrder},
    clock,
    desired::{SourceSnapshot, merge},
    machine::NodeIps,
    metrics::metrics,
    model::{
        CollectOrdered as _, Ending, MachineState, NodeObjects, NodeProbes, NodeScheduling, PodKey,
        PodProbes, PodUpdate, PodView, PodViews, PressureOrders, from_json, priority_of,
    },
    plan::Rollout,
    pleg::{Health, PlegUpdate},
    podspec::reads_the_same,
    publish::{any_changed, changed_if_there},
    store::PodRecord,
};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The number of reports that may wait.
const REPORTS: usize = 64;
/// The longest time between two passes of the loop, so that a health check can tell that it works.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Passes inputs to workers and publishes their views.
pub struct WorkerSet {
    host: Arc<Host>,
    node: NodeFacts,
    scheduling: Option<watch::Receiver<Option<Arc<NodeScheduling>>>>,
    sources: Vec<watch::Receiver<Arc<SourceSnapshot>>>,
    updates: mpsc::Receiver<PlegUpdate>,
    health: watch::Receiver<Arc<Health>>,
    machine: watch::Receiver<MachineState>,
    node_ips: watch::Receiver<NodeIps>,
    probes: watch::Receiver<Arc<NodeProbes>>,
    objects: Vec<watch::Receiver<Arc<NodeObjects>>>,
    pressure: watch::Receiver<Arc<PressureOrders>>,
    asking: mpsc::Receiver<Asking>,
    views: watch::Sender<Arc<PodViews>>,
    set_view: watch::Sender<Arc<SetView>>,
    known: watch::Sender<Arc<Known>>,
    ending: watch::Sender<Ending>,
    dead: watch::Sender<usize>,
    node_wanted: watch::Sender<Duration>,
    heartbeat: watch::Sender<Duration>,
    reports: mpsc::Receiver<Report>,
    report_sender: mpsc::Sender<Report>,
    state: State,
    tasks: JoinSet<PodKey>,
    shutdown: CancellationToken,
}

/// What a report has changed besides the view of its pod.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    View,
    /// Something that admission depends on.
    Standing,
    /// A pod has ended for good.
    Ended,
    /// Nothing of the name is left, so its worker ends.
    Gone,
}

pub struct SetInputs {
    pub sources: Vec<watch::Receiver<Arc<SourceSnapshot>>>,
    /// The results of the relist loop.
    pub updates: mpsc::Receiver<PlegUpdate>,
    /// Readiness of the runtime and its network.
    pub health: watch::Receiver<Arc<Health>>,
    /// Whether the machine is shutting down.
    pub machine: watch::Receiver<MachineState>,
    /// The facts about the node that admission needs.
    pub node: NodeFacts,
    /// The labels and taints of the Node object, where the agent has an API server.
    pub scheduling: Option<watch::Receiver<Option<Arc<NodeScheduling>>>>,
    /// What the probes of all containers have found.
    pub probes: watch::Receiver<Arc<NodeProbes>>,
    /// ConfigMaps and Secrets of each place, most important first.
    pub objects: Vec<watch::Receiver<Arc<NodeObjects>>>,
    /// What is short on the node, and which pods are evicted for it.
    pub pressure: watch::Receiver<Arc<PressureOrders>>,
    /// What people ask for.
    pub asking: mpsc::Receiver<Asking>,
    /// Records that an earlier run of the agent left.
    pub records: BTreeMap<PodKey, Vec<PodRecord>>,
    /// What the workers of the earlier run saved.
    pub kept: BTreeMap<PodKey, Box<RawValue>>,
    /// The revisions of pods, as the earlier run saved them.
    pub rollouts: BTreeMap<PodKey, Rollout>,
}

impl WorkerSet {
    /// A set without workers. They begin after the first listing.
    #[must_use]
    pub fn new(host: Arc<Host>, mut inputs: SetInputs, shutdown: CancellationToken) -> Self {
        let (report_sender, reports) = mpsc::channel(REPORTS);
        // Pods that an earlier run of the agent evicted are held from the beginning.
        let pressure = Arc::clone(&inputs.pressure.borrow_and_update());
        let machine = inputs.machine.borrow_and_update().clone();
        let recorded = inputs.records.iter();
        let recorded = recorded
            .map(|(key, all)| (key.clone(), all.iter().map(Recorded::from).collect()))
            .collect_ordered();
        let rollouts = inputs.rollouts.into_iter();
        let rollouts = rollouts.map(|(key, rollout)| (key, Arc::new(rollout)));
        let owner = host.settings.owner.clone();
        Self {
            node_ips: host.node_ips.clone(),
            host,
            node: inputs.node,
            scheduling: inputs.scheduling,
            probes: inputs.probes,
            objects: inputs.objects,
            sources: inputs.sources,
            updates: inputs.updates,
            health: inputs.health,
            machine: inputs.machine,
            pressure: inputs.pressure,
            asking: inputs.asking,
            views: watch::Sender::default(),
            set_view: watch::Sender::default(),
            known: watch::Sender::default(),
            ending: watch::Sender::default(),
            dead: watch::Sender::default(),
            node_wanted: watch::Sender::default(),
            heartbeat: watch::Sender::default(),
            reports,
            report_sender,
            state: State {
                pressure,
                machine,
                owner,
                recorded,
                records: inputs.records,
                kept: inputs.kept,
                rollouts: rollouts.collect_ordered(),
                ..State::default()
            },
            tasks: JoinSet::new(),
            shutdown,
        }
    }

    #[must_use]
    pub fn views(&self) -> watch::Receiver<Arc<PodViews>> {
        self.views.subscribe()
    }

    /// Foreign pods and duplicates.
    #[must_use]
    pub fn set_view(&self) -> watch::Receiver<Arc<SetView>> {
        self.set_view.subscribe()
    }

    /// Uids and containers that are no leftovers. It changes with the sources.
    #[must_use]
    pub fn known(&self) -> watch::Receiver<Arc<Known>> {
        self.known.subscribe()
    }

    /// The progress of a shutdown of the machine.
    #[must_use]
    pub fn ending(&self) -> watch::Receiver<Ending> {
        self.ending.subscribe()
    }

    /// The number of dead containers that are kept only for people to read.
    #[must_use]
    pub fn dead(&self) -> watch::Receiver<usize> {
        self.dead.subscribe()
    }

    /// The boot time since when a pod waits until the Node object is read once more.
    #[must_use]
    pub fn node_wanted(&self) -> watch::Receiver<Duration> {
        self.node_wanted.subscribe()
    }

    /// When the loop last came round, as [`clock::awake`].
    #[must_use]
    pub fn heartbeat(&self) -> watch::Receiver<Duration> {
        self.heartbeat.subscribe()
    }

    /// Runs until shutdown, and then until every worker has finished its current call.
    ///
    /// # Errors
    /// When a worker panics, or the relist loop ends before shutdown.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut result = self.route().await;
        // Also after an error: workers finish their current calls, and none of them waits until a
        // report is read.
        self.reports.close();
        self.state.workers.clear();
        while let Some(ended) = self.tasks.join_next().await {
            result = result.and(ended.map(drop).map_err(Into::into));
        }
        result
    }

    async fn route(&mut self) -> anyhow::Result<()> {
        // Cancel-safe: every arm only receives (watch, mpsc, JoinSet::join_next), and the work is
        // done after the select. The shutdown comes first, because the tasks that the set reads
        // from end with it.
        loop {
            self.heartbeat.send_replace(clock::awake());
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Ok(()),
                Some(report) = self.reports.recv() => self.fold_all(report),
                update = self.updates.recv() => match update {
                    Some(update) => self.observe(update),
                    None => anyhow::bail!("the relist loop has ended"),
                },
                () = any_changed(&mut self.sources) => self.merge_sources(),
                changed = self.health.changed() => {
                    changed?;
                    self.take_health();
                }
                changed = self.machine.changed() => {
                    changed?;
                    self.take_machine_state();
                }
                changed = self.pressure.changed() => {
                    changed?;
                    self.take_pressure();
                }
                changed = changed_if_there(&mut self.scheduling) => {
                    changed?;
                    self.hold();
                }
                changed = self.probes.changed() => {
                    changed?;
                    self.take_probes();
                }
                () = any_changed(&mut self.objects) => self.take_objects(),
                Some(asking) = self.asking.recv() => self.take_asking(asking),
                changed = self.node_ips.changed() => {
                    changed?;
                    self.report_anew();
                }
                Some(ended) = self.tasks.join_next() => {
                    // A worker ends only after the set has dropped its input.
                    let key = ended?;
                    tracing::debug!(pod = %key, "worker ended");
                }
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        }
    }

    fn observe(&mut self, update: PlegUpdate) {
        let first = update.complete && !self.state.listed;
        for (key, listed) in update.listed {
            self.state.uninspected.insert(key.clone());
            self.state.observed.insert(key, listed);
        }
        let waited = !self.state.uninspected.is_empty();
        let mut foreign = false;
        for (key, observed) in update.pods {
            self.state.uninspected.remove(&key);
            foreign |= self.state.has_foreign(&key);
            if observed.is_empty() {
                self.state.observed.remove(&key);
            } else {
                self.state.observed.insert(key.clone(), Arc::clone(&observed));
            }
            foreign |= self.state.has_foreign(&key);
            if let Some(handle) = self.state.workers.get(&key) {
                handle.input.send_modify(|input| {
                    input.observed = observed;
                    input.sequence += 1;
                });
            } else if self.state.listed && self.state.needs_worker(&key) {
                self.begin(&key);
            }
        }
        if first {
            self.state.listed = true;
            self.take_health();
            self.merge_sources();
        } else if waited && self.state.uninspected.is_empty() {
            self.publish_known();
        }
        if first || waited {
            self.publish_ending();
        }
        if self.somebody_waits() {
            self.hold();
        }
        // Made from all pods, and nothing else in it comes from the runtime.
        if foreign {
            self.publish_set_view();
        }
    }

    /// Merges the sources again, and tells the workers what has changed.
    fn merge_sources(&mut self) {
        if !self.state.listed {
            return;
        }
        // A source publishes objects before the pods that were written beside them.
        self.take_objects();
        let snapshots: Vec<Arc<SourceSnapshot>> =
            self.sources.iter_mut().map(|s| Arc::clone(&s.borrow_and_update())).collect();
        let state = &self.state;
        let running = |key: &PodKey| state.standing_uid(key).cloned();
        let desired = merge(&snapshots, &|key| state.in_use(key), &running);
        self.state.desired = desired;
        self.state.roll_back();
        self.state.order = StartOrder::new(&self.state.desired.pods, &self.node.name);
        self.admit();
        // Before the workers know: what they prepare must not be removed as a leftover.
        self.publish_known();
        self.publish_orders();
        let state = &self.state;
        let left = state.kept.keys().chain(state.records.keys()).chain(state.observed.keys());
        let left = left.chain(state.rollouts.keys());
        let names = state.desired.pods.keys().chain(left);
        let new: BTreeSet<PodKey> =
            names.filter(|key| state.needs_worker(key)).cloned().collect_ordered();
        for key in new {
            self.begin(&key);
        }
        self.publish_set_view();
    }

    fn take_health(&mut self) {
        let runtime = self.health.borrow_and_update().runtime.clone();
        if *self.state.runtime == runtime {
            return;
        }
        self.state.runtime = Arc::new(runtime);
        for handle in self.state.workers.values() {
            handle.input.send_modify(|input| {
                input.runtime = Arc::clone(&self.state.runtime);
                input.sequence += 1;
            });
        }
        // Admission depends on what the runtime supports.
        self.hold();
    }

    /// Tells the workers what the probes of their pods have found.
    fn take_probes(&mut self) {
        let all = Arc::clone(&self.probes.borrow_and_update());
        for (key, handle) in &self.state.workers {
            let probes = of_pod(&all, key);
            handle.input.send_if_modified(|input| {
                let changed = input.probes != probes;
                if changed {
                    input.probes = probes;
                    input.sequence += 1;
                }
                changed
            });
        }
    }

    /// Gives the workers the objects that their pods may read, and wakes those whose pods read an
    /// object that has changed. The others get them without being woken, so that no worker keeps
    /// outdated objects in memory.
    fn take_objects(&mut self) {
        let places: Vec<Arc<NodeObjects>> =
            self.objects.iter_mut().map(|place| Arc::clone(&place.borrow_and_update())).collect();
        let objects = NodeObjects::merge(&places);
        if *self.state.objects == objects {
            return;
        }
        self.state.objects = Arc::new(objects);
        for handle in self.state.workers.values() {
            handle.input.send_if_modified(|input| {
                let now = Arc::clone(&self.state.objects);
                let before = std::mem::replace(&mut input.objects, now);
                let pod = input.orders.wish.pod();
                let same = pod.is_some_and(|pod| reads_the_same(&pod.pod, &before, &input.objects));
                if !same {
                    input.sequence += 1;
                }
                !same
            });
        }
    }

    /// Lets the workers report their pods again, with the current addresses of the node.
    fn report_anew(&mut self) {
        self.node_ips.mark_unchanged();
        for handle in self.state.workers.values() {
            handle.input.send_modify(|input| input.sequence += 1);
        }
    }

    /// Tells the workers whether the machine is shutting down, and which pods end now.
    fn take_machine_state(&mut self) {
        let machine = self.machine.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.state.machine, machine);
        if before == MachineState::Unknown {
            // Pods may start from now on. They are admitted before their workers are told.
            self.merge_sources();
        } else {
            self.publish_orders();
        }
        self.publish_ending();
    }

    /// Tells the workers which pods must not run for now.
    fn take_pressure(&mut self) {
        self.state.pressure = Arc::clone(&self.pressure.borrow_and_update());
        self.hold();
    }

    /// Decides again which pods may run, and tells the workers.
    fn hold(&mut self) {
        self.admit();
        self.publish_orders();
    }

    /// Sends each worker its orders, if they have changed.
    fn publish_orders(&self) {
        for (key, handle) in &self.state.workers {
            let orders = self.state.orders(key);
            handle.input.send_if_modified(|input| {
                let changed = *input.orders != orders;
                if changed {
                    input.orders = Arc::new(orders);
                    input.sequence += 1;
                }
                changed
            });
        }
    }

    fn begin(&mut self, key: &PodKey) {
        let (input, receiver) = watch::channel(Input {
            orders: Arc::new(self.state.orders(key)),
            observed: self.state.observed.get(key).cloned().unwrap_or_default(),
            runtime: Arc::clone(&self.state.runtime),
            probes: of_pod(&self.probes.borrow(), key),
            objects: Arc::clone(&self.state.objects),
            sequence: 0,
        });
        let records = self.state.records.remove(key).unwrap_or_default();
        let wished = self.state.desired.pods.get(key).map(|desired| &desired.pod);
        let pod = records.first().map(|record| &record.pod).or(wished);
        let priority = pod.map(|pod| priority_of(pod)).unwrap_or_default();
        let worker = Box::new(Worker::new(WorkerStart {
            key: key.clone(),
            host: Arc::clone(&self.host),
            input: receiver,
            reports: self.report_sender.clone(),
            records,
            kept: self.state.kept.remove(key).map(|saved| kept_of(&saved)).unwrap_or_default(),
            rollout: self
                .state
                .rollouts
                .get(key)
                .map(|all| Rollout::clone(all))
                .unwrap_or_default(),
            shutdown: self.shutdown.clone(),
        }));
        let key_of_task = key.clone();
        self.tasks.spawn(async move {
            worker.run().await;
            key_of_task
        });
        let handle = Handle {
            input,
            shown: None,
            priority,
            alive: false,
            progress: Progress::NotReady,
            dead: 0,
            update_waits: false,
            answered: None,
        };
        self.state.workers.insert(key.clone(), handle);
    }

    /// Takes in a report and all reports that wait behind it, and then decides and publishes once.
    /// With hundreds of pods, deciding after each report would take seconds.
    fn fold_all(&mut self, first: Report) {
        let rollouts = self.state.rollouts.clone();
        let mut changed = self.fold(first);
        while let Ok(report) = self.reports.try_recv() {
            changed = changed.max(self.fold(report));
        }
        let moved = rollouts != self.state.rollouts;
        self.publish_ending();
        if changed >= Changed::Ended {
            // The tasks that remove leftovers, on the host or from the API server, learn that a pod
            // is gone, and the cgroup of burstable pods that one takes no more CPU time.
            self.publish_known();
        }
        self.publish_dead();
        if changed != Changed::View && self.somebody_waits() {
            self.hold();
        }
        if moved || !self.state.desired.duplicates.is_empty() {
            // Which revision of a pod or which of two manifests for one name is used may have
            // changed.
            self.merge_sources();
        }
    }

    fn fold(&mut self, report: Report) -> Changed {
        let Some(handle) = self.state.workers.get_mut(&report.key) else { return Changed::View };
        let recorded = self.state.recorded.entry(report.key.clone()).or_default();
        if let Some(pending) = self.state.asked.get_mut(&report.key) {
            pending.answer(report.asked);
        }
        let shown = report.view.as_ref().map(|view| view.uid.clone());
        let progress = report.view.as_deref().map(order::progress).unwrap_or_default();
        let got_on = handle.progress != progress && self.state.order.has_followers(&report.key);
        let update = report.view.as_ref().and_then(|view| view.update.as_ref());
        let update_waits = matches!(update, Some(PodUpdate::Waits(_)));
        let moved = got_on
            || (&*recorded, &handle.shown, handle.alive, handle.update_waits)
                != (&report.recorded, &shown, report.alive, update_waits);
        let ended = |all: &[Recorded]| all.iter().filter(|recorded| recorded.ended).count();
        let has_ended = ended(recorded) < ended(&report.recorded);
        handle.progress = progress;
        *recorded = report.recorded;
        handle.shown = shown;
        handle.alive = report.alive;
        handle.answered = report.answers;
        handle.dead = report.dead;
        handle.update_waits = update_waits;
        match report.rollout {
            Some(rollout) => drop(self.state.rollouts.insert(report.key.clone(), rollout)),
            None => drop(self.state.rollouts.remove(&report.key)),
        }
        if let Some(pod) = report.view.as_ref().and_then(|view| view.pod.as_ref()) {
            handle.priority = priority_of(pod);
        }
        let idle = report.nothing_left && report.answers == Some(handle.input.borrow().sequence);
        if idle {
            // Dropping the input ends the worker.
            self.state.workers.remove(&report.key);
            self.state.recorded.remove(&report.key);
            self.state.asked.remove(&report.key);
        }
        let view = report.view.filter(|_| !idle);
        self.count_orphan(&report.key, view.as_deref());
        self.views.send_if_modified(|views| {
            let views = Arc::make_mut(views);
            match view {
                Some(view) => {
                    views.insert(report.key.clone(), view);
                    true
                }
                None => views.remove(&report.key).is_some(),
            }
        });
        match (idle, has_ended, moved) {
            (true, _, _) => Changed::Gone,
            (false, true, _) => Changed::Ended,
            (false, false, true) => Changed::Standing,
            (false, false, false) => Changed::View,
        }
    }

    /// Counts a pod that only the runtime knows when it is reported for the first time.
    fn count_orphan(&self, key: &PodKey, view: Option<&PodView>) {
        let Some(orphan) = view.filter(|view| view.is_orphan()) else { return };
        let views = self.views.borrow();
        let known = |before: &Arc<PodView>| before.is_orphan() && before.uid == orphan.uid;
        if !views.get(key).is_some_and(known) {
            metrics().pods.orphaned.inc();
        }
    }
}

/// What the probes of one pod have found.
fn of_pod(probes: &NodeProbes, key: &PodKey) -> Arc<PodProbes> {
    probes.get(key).cloned().unwrap_or_default()
}

/// What a worker saved. If another version of the agent wrote it in another format, the worker
/// begins without it.
fn kept_of(saved: &RawValue) -> SavedMemory {
    from_json(saved.get().as_bytes())
        .inspect_err(|err| tracing::warn!(%err, "what a worker kept can't be used"))
        .unwrap_or_default()
}
