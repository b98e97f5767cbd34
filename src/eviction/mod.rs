//! Watches memory, disks and process ids, and evicts pods before the node runs out of them.
//!
//! ```text
//!  memory, pids ─┐                                ┌─► save records ─► orders for the workers
//!  disks (task) ─┼─► readings ─► Relief::plan ────┼─► reclaim, free images, measure pods ─► Relief::fold
//!  PSI, OOM ─────┘               (pressure::core) └─► events, NodeView
//! ```
//!
//! Every decision is made in `pressure::core`. This module reads, executes and publishes. An
//! evicted pod is stopped by its own worker.

mod disks;
mod kernel;
mod measure;
mod outside;
mod readings;
mod view;

pub use disks::DiskTask;
pub use readings::capacities;

use crate::{
    cgroup::Cgroups,
    clock,
    cri::RuntimeClient,
    event::{Annotations, Recorder},
    image::gc::{FreeRequest, Freed},
    measure::PodMeasurer,
    metrics::metrics,
    model::{
        CollectOrdered as _, DiskLayout, Event, EventKind, EventTarget, Known, PodUid, PodViews,
        PressureOrders, PressureView,
    },
    podspec::pod_cgroup_name,
    pressure::core::{
        Cause, EXCEEDED_GRACE_PERIOD, EvictionRecord, EvictionSettings, Evictions, ImagesFreed,
        MeasurePurpose, Outcome, ReclaimOutcome, Relief, ReliefAction, ReliefPlan, Seen,
        threshold_met_message,
    },
    publish::PublishIfChanged as _,
    signals::{self, DiskReadings, FindPlaces, Reclaimed, Reclaiming},
    store::{Store, parse_saved},
};
use anyhow::Context as _;
use kernel::{KernelReport, KernelReports};
use measure::PodMeasurement;
use outside::OutsideSearch;
use readings::SignalReadings;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use view::ViewHistory;

/// How long the orders for the workers wait until the eviction records are saved.
const SAVE_PATIENCE: Duration = Duration::from_millis(200);

/// The parts of the agent that evictions use.
pub struct EvictionParts {
    /// Name of the node, for its events.
    pub node_name: Box<str>,
    /// Keeps the records of evictions.
    pub store: Store,
    /// Takes events.
    pub events: Recorder,
    /// The runtime, for the writable layers of containers.
    pub runtime: RuntimeClient,
    /// The cgroups of pods.
    pub cgroups: Cgroups,
    /// Finds what is measured of a pod.
    pub places: FindPlaces,
}

/// The channels that the loop reads and writes.
pub struct EvictionChannels {
    /// Readings of the disks.
    pub disks: DiskReadings,
    /// The time between two readings of the disks.
    pub disk_period: watch::Sender<Duration>,
    /// Every pod's view.
    pub pods: watch::Receiver<Arc<PodViews>>,
    /// The pods that are known.
    pub known: watch::Receiver<Arc<Known>>,
    /// The number of dead containers that are kept only for people to read.
    pub dead: watch::Receiver<usize>,
    /// Orders for the workers.
    pub orders: watch::Sender<Arc<PressureOrders>>,
    /// The part of the node's status about pressure.
    pub view: watch::Sender<Arc<PressureView>>,
    /// Requests to remove images.
    pub images: mpsc::Sender<FreeRequest>,
}

/// The loop.
pub struct EvictionTask {
    parts: EvictionParts,
    channels: EvictionChannels,
    /// As configured.
    settings: EvictionSettings,
    relief: Relief,
    readings: SignalReadings,
    measurer: PodMeasurer,
    measurements: JoinSet<PodMeasurement>,
    /// A request to reclaim page cache that is under way.
    reclaiming: Option<Reclaiming>,
    /// A request to remove images that is under way.
    freeing: Option<oneshot::Receiver<Freed>>,
    outside: OutsideSearch,
    history: ViewHistory,
    kernel: KernelReports,
    /// Changes when saved files may be lost.
    losses: watch::Receiver<u64>,
    save_patience: Duration,
}

/// The evictions of an earlier run of the agent.
#[must_use]
pub fn restored(saved: Option<serde_json::Value>) -> Evictions {
    let records: Vec<EvictionRecord> = parse_saved(saved, "the saved eviction records");
    Evictions::restored(records, clock::now())
}

impl EvictionTask {
    /// A loop that continues with the evictions of an earlier run. `root_dir` is the agent's root
    /// directory, `pod_logs_dir` that of the pods' logs.
    #[must_use]
    pub fn new(
        settings: EvictionSettings,
        evictions: Evictions,
        root_dir: PathBuf,
        pod_logs_dir: PathBuf,
        parts: EvictionParts,
        channels: EvictionChannels,
    ) -> Self {
        let proc = Path::new("/proc");
        Self {
            relief: Relief::restored(evictions, &settings, clock::now()),
            readings: SignalReadings::new(&settings),
            measurer: PodMeasurer::new(parts.runtime.clone()),
            measurements: JoinSet::new(),
            reclaiming: None,
            freeing: None,
            outside: OutsideSearch::new(proc, root_dir, pod_logs_dir),
            history: ViewHistory::default(),
            kernel: KernelReports::open(proc),
            losses: parts.store.losses(),
            save_patience: SAVE_PATIENCE,
            settings,
            parts,
            channels,
        }
    }

    /// Runs until shutdown.
    ///
    /// # Errors
    /// When a task that measures pods has crashed.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            let pause = self.run_round().await;
            // Every arm only waits, and the next round reads everything anew.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                report = self.kernel.next() => match report {
                    KernelReport::OutOfMemory(oom) => {
                        self.record_node_event(EventKind::Warning, "SystemOOM", oom.message());
                    }
                    KernelReport::Stalled => {
                        tracing::debug!("tasks wait for memory: reading it now");
                    }
                },
                changed = self.channels.disks.latest.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                }
                Some(measured) = self.measurements.join_next() => {
                    let measured = measured.context("measuring pods has crashed")?;
                    self.history.note_partly_measured(&measured.pods);
                    self.measurer.remember(measured.write_places);
                    self.relief.fold(Outcome::Measured(measured.purpose, measured.pods));
                }
                outcome = reclaimed(&mut self.reclaiming) => self.relief.fold(outcome),
                outcome = images_freed(&mut self.freeing) => self.relief.fold(outcome),
                found = self.outside.next() => {
                    self.record_node_event(EventKind::Warning, "EvictionFoundNoPod", found);
                }
                Ok(()) = self.losses.changed() => self.save().await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One round: read, plan and execute until nothing is left to plan, then publish. Returns the
    /// time until the next.
    ///
    /// A fork bomb or a process that takes all memory leaves this loop little time on the CPU, so
    /// nothing else is done between the reading that shows a shortage and the order that ends it.
    async fn run_round(&mut self) -> Duration {
        loop {
            let disks = Arc::clone(&self.channels.disks.latest.borrow_and_update());
            let kubepods = self.parts.cgroups.kubepods_dirs().map(|dirs| dirs.memory);
            let settings = self.settings.on_machine(disks.layout, kubepods.is_some());
            self.readings.read(&settings, kubepods.as_deref());
            self.readings.sample.update(disks.sample.clone());
            let plan = self.plan(&settings, disks.layout);
            if !self.relief.is_freeing_images() {
                // Without a receiver, a request that still waits is not executed.
                self.freeing = None;
            }
            if !self.relief.is_reclaiming() {
                // The request ends soon after.
                self.reclaiming = None;
            }
            if !self.execute(&plan).await {
                self.publish(&plan.step, &settings);
                return plan.wake_in;
            }
        }
    }

    fn plan(&mut self, settings: &EvictionSettings, layout: DiskLayout) -> ReliefPlan {
        let pods = Arc::clone(&self.channels.pods.borrow());
        let known = Arc::clone(&self.channels.known.borrow());
        let dead_containers = *self.channels.dead.borrow();
        self.relief.plan(&Seen {
            settings,
            layout,
            readings: &self.readings.sample.readings,
            kubepods_known: !self.parts.cgroups.waits_for_kubepods(),
            pods: &pods,
            known: &known,
            dead_containers,
            without_tasks: &self.pods_without_tasks(),
            now: clock::now(),
        })
    }

    /// The evicted pods in whose cgroup nothing runs.
    fn pods_without_tasks(&self) -> BTreeSet<PodUid> {
        let leaving = self.relief.leaving().filter(|(_, pod)| {
            let dirs = self.parts.cgroups.pod_dirs(&pod_cgroup_name(pod));
            dirs.is_some_and(|dirs| signals::cgroup_tasks(&dirs.pids).is_ok_and(|tasks| tasks == 0))
        });
        leaving.map(|(uid, _)| uid.clone()).collect_ordered()
    }

    /// Executes a plan. Eviction records are saved before the workers get the orders. Returns true
    /// when an action has its outcome already, so that the next one has to be planned at once.
    async fn execute(&mut self, plan: &ReliefPlan) -> bool {
        if plan.save {
            self.save().await;
        }
        self.channels.orders.publish_if_changed(Arc::new(plan.orders.clone()));
        self.channels.disk_period.publish_if_changed(plan.disk_period);
        if plan.read_disks {
            self.channels.disks.ask();
        }
        let mut plan_again = false;
        for action in &plan.actions {
            if let Some(outcome) = self.execute_action(action).await {
                self.relief.fold(outcome);
                plan_again = true;
            }
        }
        plan_again
    }

    /// Executes or begins an action. Returns its outcome when that is known at once.
    async fn execute_action(&mut self, action: &ReliefAction) -> Option<Outcome> {
        match action {
            ReliefAction::ReportCondition(change) => {
                let reason = change.condition.words(change.holds).event;
                let message = format!("Node {} status is now: {reason}", self.parts.node_name);
                self.record_node_event(EventKind::Normal, reason, message);
            }
            ReliefAction::ReportThreshold(signal) => {
                let message = threshold_met_message(*signal);
                self.record_node_event(EventKind::Warning, "EvictionThresholdMet", message);
            }
            ReliefAction::ReportEviction { key, uid, cause, read_at, message, annotations } => {
                count_eviction(*cause, *read_at);
                let (key, uid) = (key.clone(), uid.clone());
                let target = EventTarget::Pod { key, uid, field_path: None };
                let (kind, message) = (EventKind::Warning, message.clone());
                let event = Event { target, kind, reason: "Evicted", message };
                let annotations: Annotations = annotations.clone();
                self.parts.events.record_annotated(event, annotations);
            }
            ReliefAction::ReportLate { key, uid } => {
                let (key, uid) = (key.clone(), uid.clone());
                let target = EventTarget::Pod { key, uid, field_path: None };
                let message = EXCEEDED_GRACE_PERIOD.to_owned();
                let (kind, reason) = (EventKind::Warning, "ExceededGracePeriod");
                self.parts.events.record(Event { target, kind, reason, message });
            }
            ReliefAction::ReportHurried(pod) => {
                tracing::info!(%pod, "an evicted pod is killed now, before the end of its grace period");
            }
            ReliefAction::ReportComeback(pod) => {
                metrics().comebacks.inc();
                tracing::info!(%pod, "an evicted pod may start again");
            }
            ReliefAction::ReportSpared { key, signal, why } => {
                tracing::debug!(pod = %key, %signal, "spared: {}", why.as_str());
            }
            ReliefAction::ReportStep(step) => {
                let (signal, freed, expected) = (step.signal, step.freed, step.expected);
                tracing::info!(%signal, freed, expected, "{}", step.what);
                self.history.push_step(step.clone());
            }
            ReliefAction::ReportNoPod { acting, all_measured, exempt } => {
                let kubepods = self.parts.cgroups.kubepods_names();
                let images = self.channels.disks.latest.borrow().images.clone();
                let about_pods = outside::about_pods(*all_measured, exempt);
                self.outside.begin(acting, &about_pods, kubepods, images);
            }
            ReliefAction::ReclaimPageCache { bytes, spare } => return self.reclaim(*bytes, *spare),
            ReliefAction::FreeImages { bytes } => {
                let (answer, freed) = oneshot::channel();
                let request = FreeRequest { wanted: *bytes, answer };
                match self.channels.images.try_send(request) {
                    Ok(()) => self.freeing = Some(freed),
                    Err(_) => return Some(Outcome::ImagesFreed(None)),
                }
            }
            ReliefAction::Measure { purpose, pods } => {
                let runtime_dirs = Arc::clone(&self.channels.disks.latest.borrow().runtime_dirs);
                let everyone = Arc::clone(&self.channels.pods.borrow());
                let (measurer, parts) = (&mut self.measurer, &self.parts);
                let measuring =
                    measure::measure(measurer, parts, *purpose, pods, &everyone, runtime_dirs);
                match purpose {
                    // Files of the kernel, which are read without a thread, in microseconds.
                    MeasurePurpose::Cgroups => {
                        let measured = measuring.await;
                        return Some(Outcome::Measured(*purpose, measured.pods));
                    }
                    MeasurePurpose::Disk | MeasurePurpose::Limits => {
                        self.measurements.spawn(measuring);
                    }
                }
            }
        }
        None
    }

    /// Has the kernel reclaim page cache of pods. Returns the outcome when that is not possible.
    fn reclaim(&mut self, bytes: u64, spare: u64) -> Option<Outcome> {
        let begun = match self.parts.cgroups.kubepods_dirs() {
            Some(dirs) => signals::reclaim(&dirs.memory, bytes, spare),
            None => Ok(None),
        };
        self.reclaiming = begun.unwrap_or_else(|err| {
            tracing::debug!(%err, "page cache can't be reclaimed");
            None
        });
        let unsupported = self.reclaiming.is_none();
        unsupported.then_some(Outcome::Reclaimed(ReclaimOutcome::Unsupported))
    }

    fn record_node_event(&self, kind: EventKind, reason: &'static str, message: String) {
        self.parts.events.record(Event { target: EventTarget::Node, kind, reason, message });
    }

    /// Saves the eviction records: on `/run` at once, on disk when it can.
    async fn save(&self) {
        let records: Vec<&EvictionRecord> = self.relief.evictions().records().collect();
        let saved = self.parts.store.put_evictions(&records);
        // The write goes on; an eviction does not wait for a slow disk.
        match tokio::time::timeout(self.save_patience, saved).await {
            Ok(Ok(())) => {}
            Ok(Err(err)) => {
                tracing::warn!(%err, "eviction records are not saved: a restart would lose them");
            }
            Err(_) => tracing::warn!("eviction records are not saved yet"),
        }
    }
}

/// `read_at`: boot time of the reading of the signal that is the cause.
fn count_eviction(cause: Cause, read_at: Option<Duration>) {
    let name = [&*cause.name()];
    metrics().evictions.with_label_values(&name).inc();
    if let Some(read_at) = read_at {
        let age = clock::now().boot.saturating_sub(read_at);
        let ages = &metrics().node.eviction_stats_age_seconds;
        ages.with_label_values(&name).observe(age.as_secs_f64());
    }
}

/// Waits until the kernel has ended reclaiming; for ever while it does not. Cancel-safe.
async fn reclaimed(reclaiming: &mut Option<Reclaiming>) -> Outcome {
    let ended = match reclaiming {
        Some(reclaiming) => reclaiming.ended().await,
        None => std::future::pending().await,
    };
    *reclaiming = None;
    Outcome::Reclaimed(match ended {
        Ok(Reclaimed::All) => ReclaimOutcome::Complete,
        Ok(Reclaimed::Part) => ReclaimOutcome::Partial,
        Err(err) => {
            tracing::debug!(%err, "page cache can't be reclaimed");
            ReclaimOutcome::Failed
        }
    })
}

/// Waits until images were removed; for ever while none are. Cancel-safe.
async fn images_freed(freeing: &mut Option<oneshot::Receiver<Freed>>) -> Outcome {
    let freed = match freeing {
        Some(freed) => freed.await.unwrap_or_default(),
        None => std::future::pending().await,
    };
    *freeing = None;
    Outcome::ImagesFreed(Some(ImagesFreed { images: freed.removed.len(), bytes: freed.bytes() }))
}

#[cfg(test)]
mod tests;
