//! Watches what may run short, and does something about it.
//!
//! ```text
//!  memory, pids ──┐                       ┌─► conditions, orders ─► workers (hold, let go)
//!  disks (task) ──┼─► sample ─► step ─────┼─► relieve: reclaim, then one pod ─► record ─► order ─► wait until it is gone
//!  PSI, OOM ──────┘   (pure, pressure)    └─► view ─► nodelet status
//! ```
//!
//! One thing is done at a time, and the next one after a reading that began later. Who was evicted
//! is saved before the pod is told to go. The pod's own worker stops it.

mod blame;
mod disks;
mod reclaim;
mod relief;
mod room;
mod shown;
mod usage;

pub(super) use disks::{DiskReadings, DiskTask};

use super::image_gc::FreeRequest;
use crate::{
    clock,
    model::{
        DiskLayout, Event, EventKind, EventTarget, Now, Pressure, PressureOrders, PressureView,
        Readings, Signal,
    },
    pressure::core::{
        EvictionRecord, EvictionSettings, Evictions, MemorySignal, PressureState, Step, Threshold,
        condition_event,
    },
    signals::{self, KernelLog, Look, Machine, PsiTrigger, Sample, SystemOom},
    worker::{Host, Known, PodViews},
};
use anyhow::Context as _;
use blame::Blame;
use reclaim::PageCache;
use relief::Leaving;
use room::{Clearing, Freeing};
use shown::History;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use usage::{Survey, WritePlacesOf, has_ended};

/// Between two looks while a pod goes.
const WHILE_LEAVING: Duration = Duration::from_millis(50);
/// How long saving who was evicted may keep the eviction waiting.
const SAVE_PATIENCE: Duration = Duration::from_millis(200);
/// How long workers may take to report what there is, after the first listing.
const REPORTS_PATIENCE: Duration = Duration::from_secs(1);
/// Between two readings of disks while something is done about them.
const DISKS_WHILE_ACTING: Duration = Duration::from_millis(500);
/// Between two looks for pods that use more local storage than they may.
const LIMITS_PERIOD: Duration = Duration::from_secs(10);
/// A cheap reading counts while it is further from every threshold than this; bytes.
const FAR: u64 = 32 << 20;
/// Between two exact readings for people to see, and two views of a node that is short of nothing.
const EXACT_PERIOD: Duration = Duration::from_secs(10);
const CALM_VIEW: Duration = Duration::from_secs(1);

/// What the loop is made from.
pub(super) struct PressureInputs {
    pub host: Arc<Host>,
    pub root_dir: PathBuf,
    pub settings: EvictionSettings,
    pub disks: DiskReadings,
    /// How often disks are to be read.
    pub disk_period: watch::Sender<Duration>,
    pub pods: watch::Receiver<Arc<PodViews>>,
    pub known: watch::Receiver<Arc<Known>>,
    pub orders: watch::Sender<Arc<PressureOrders>>,
    pub view: watch::Sender<Arc<PressureView>>,
    /// What an earlier life of the agent evicted.
    pub evictions: Evictions,
    /// How many dead containers are only there for people to look at.
    pub dead: watch::Receiver<usize>,
    /// Who removes images.
    pub images: mpsc::Sender<FreeRequest>,
}

/// The loop.
pub(super) struct PressureTask {
    inputs: PressureInputs,
    machine: Machine,
    proc: PathBuf,
    /// As they apply to this machine: which file systems there are, whether pods have a limit.
    effective: EvictionSettings,
    state: PressureState,
    sample: Sample,
    /// The last exact readings, and when the next are due (boot time).
    exact: Readings,
    exact_due: Duration,
    /// When the view was looked at last (boot time).
    viewed: Duration,
    measurer: signals::Measurer,
    leaving: Option<Leaving>,
    clearing: Option<Clearing>,
    freeing: Option<Freeing>,
    /// Measurements of pods that are under way, and the last that has come to its end.
    surveys: JoinSet<Survey>,
    surveyed: Option<Survey>,
    /// Where containers write, as the runtime has told.
    write_places: WritePlacesOf,
    /// The cgroup of all pods was there once, or there is to be none.
    pods_known: bool,
    /// When every pod was known first, by boot time.
    listed_since: Option<Duration>,
    limits_due: Duration,
    /// When dead containers were removed last, by boot time.
    dead_tried: Option<Duration>,
    /// When images were removed last for a signal, by boot time.
    images_tried: BTreeMap<Signal, Duration>,
    page_cache: PageCache,
    /// Boot time at which the pause of a pod is over.
    pause_ends: Option<Duration>,
    history: History,
    blame: Blame,
    /// Changes when what was saved may be lost.
    losses: watch::Receiver<u64>,
    kernel: Kernel,
}

/// What the kernel told unasked.
enum KernelNews {
    /// It killed a process because the whole machine is out of memory.
    OutOfMemory(SystemOom),
    /// Tasks have waited for memory.
    Stalled,
}

/// Where the kernel tells it.
struct Kernel {
    stalls: Option<PsiTrigger>,
    log: Option<KernelLog>,
}

/// Memory and process ids of the machine, for [`EvictionSettings::check_against`].
pub(super) fn capacities(settings: &EvictionSettings) -> BTreeMap<Signal, u64> {
    let signals = BTreeSet::from([Signal::MemoryAvailable, Signal::PidAvailable]);
    let exactly = Look { signals: &signals, pods: None, is_far: &|_, _| false };
    let sample = machine(settings).sample(exactly);
    sample.readings.into_iter().map(|(signal, reading)| (signal, reading.capacity)).collect()
}

fn machine(settings: &EvictionSettings) -> Machine {
    let signal = match settings.memory_signal {
        MemorySignal::WorkingSet => signals::MemorySignal::WorkingSet,
        MemorySignal::MemAvailable => signals::MemorySignal::MemAvailable,
    };
    Machine::new(Path::new("/proc"), signal)
}

/// What was saved of earlier evictions.
pub(super) fn restored(saved: Option<serde_json::Value>) -> Evictions {
    let records: Vec<EvictionRecord> = saved
        .map(serde_json::from_value)
        .transpose()
        .inspect_err(|err| tracing::warn!(%err, "who was evicted before can't be used"))
        .ok()
        .flatten()
        .unwrap_or_default();
    Evictions::restored(records, clock::now())
}

/// What workers are told before the first look.
pub(super) fn first_orders(evictions: &Evictions, settings: &EvictionSettings) -> PressureOrders {
    let conditions = conditions(evictions, settings).collect();
    PressureOrders { evicted: evictions.away(), conditions, ..PressureOrders::default() }
}

/// The conditions for which pods are evicted since an earlier run. A condition that no threshold
/// raises any more is over.
fn conditions(
    evictions: &Evictions,
    settings: &EvictionSettings,
) -> impl Iterator<Item = Pressure> {
    let away = evictions.records().filter(|record| record.back.is_none());
    let held = away.filter_map(|record| record.cause.condition());
    held.filter(|condition| {
        settings.thresholds.iter().any(|threshold| threshold.signal.condition() == *condition)
    })
}

impl PressureTask {
    pub(super) fn new(inputs: PressureInputs) -> Self {
        let proc = PathBuf::from("/proc");
        Self {
            machine: machine(&inputs.settings),
            kernel: Kernel::open(&proc),
            proc,
            effective: inputs.settings.clone(),
            state: PressureState::restored(
                conditions(&inputs.evictions, &inputs.settings),
                clock::now().boot,
            ),
            sample: Sample::default(),
            exact: Readings::new(),
            exact_due: Duration::ZERO,
            viewed: Duration::ZERO,
            measurer: signals::Measurer::default(),
            leaving: None,
            clearing: None,
            freeing: None,
            surveys: JoinSet::new(),
            surveyed: None,
            write_places: WritePlacesOf::new(),
            pods_known: false,
            listed_since: None,
            dead_tried: None,
            images_tried: BTreeMap::new(),
            limits_due: Duration::ZERO,
            page_cache: PageCache::default(),
            pause_ends: None,
            history: History::default(),
            blame: Blame::default(),
            losses: inputs.host.store.losses(),
            inputs,
        }
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            let pause = self.look().await;
            // Every arm only waits, and the next round reads everything anew.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                news = self.kernel.next() => if let KernelNews::OutOfMemory(oom) = news {
                    self.system_oom(&oom);
                },
                changed = self.inputs.disks.latest.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                }
                Some(survey) = self.surveys.join_next() => {
                    let mut survey = survey.context("measuring pods has crashed")?;
                    self.write_places.append(&mut survey.found);
                    self.history.measured(&survey.pods);
                    self.surveyed = Some(survey);
                }
                found = self.blame.next() => self.tell_blame(found),
                Ok(()) = self.losses.changed() => self.save().await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One round: read, decide, act, publish. Gives the time until the next.
    async fn look(&mut self) -> Duration {
        let disks = Arc::clone(&self.inputs.disks.latest.borrow_and_update());
        let pods_dir = self.inputs.host.cgroups.kubepods_dirs().map(|dirs| dirs.memory);
        let limited = pods_dir.is_some();
        self.effective = self.inputs.settings.on_machine(disks.layout, limited);
        self.read(pods_dir.as_deref());
        self.sample.update(disks.sample.clone());
        let now = clock::now();
        let mut step = self.state.step(&self.effective, &self.sample.readings, now.boot);
        // What all pods use together is known when it is known where they are. Should their cgroup
        // go away later, nobody uses anything in it, and it is made again.
        self.pods_known |= !self.inputs.host.cgroups.waits_for_kubepods();
        step.known &= self.pods_known;
        self.tell_changes(&step);
        let somebody_ended = self.come_back(&step, now).await;
        self.give_orders(&step);
        // These readings know nothing of what has just come to its end.
        let something_ended = somebody_ended
            | self.settle(now)
            | self.room_made(now)
            | self.page_cache_came(&step, now);
        self.cut_short(&step, now).await;
        if !something_ended && self.everything_is_seen(now) {
            self.act(&step, disks.layout, now).await;
        }
        self.publish(&step, now);
        self.pause(&step, now)
    }

    /// Does one thing about what is short: the first that can be done.
    async fn act(&mut self, step: &Step, layout: DiskLayout, now: Now) {
        if let Some(survey) = self.surveyed.take()
            && self.use_survey(survey, step, now).await
        {
            return;
        }
        for acting in &step.acting {
            if self.may_act(acting, now) && self.relieve(acting, layout).await {
                return;
            }
        }
        let idle = self.leaving.is_none() && self.surveys.is_empty();
        if idle && now.boot >= self.limits_due {
            self.limits_due = now.boot.saturating_add(LIMITS_PERIOD);
            self.look_for_limits(layout);
        }
    }

    /// Whether every pod that is there can be expected to be seen: after a start the workers report
    /// one by one.
    fn everything_is_seen(&mut self, now: Now) -> bool {
        if !self.inputs.known.borrow().listed {
            return false;
        }
        let since = *self.listed_since.get_or_insert(now.boot);
        now.boot.saturating_sub(since) >= REPORTS_PATIENCE
    }

    /// Reads memory and process ids, cheaply where that is enough.
    fn read(&mut self, pods: Option<&Path>) {
        let now = clock::now().boot;
        let exactly = now >= self.exact_due;
        if exactly {
            self.exact_due = now.saturating_add(EXACT_PERIOD);
        }
        let thresholds = &self.effective.thresholds;
        let signals = thresholds.iter().map(|threshold| threshold.signal).collect();
        let is_far = |available: u64, capacity: u64| {
            let of_pods =
                |threshold: &&Threshold| threshold.signal == Signal::AllocatableMemoryAvailable;
            let of_signal = thresholds.iter().filter(of_pods);
            let nearest = of_signal.map(|threshold| threshold.relieved_at(capacity)).max();
            let far = nearest.unwrap_or_default().saturating_add(FAR.max(capacity / 16));
            !exactly && available > far
        };
        let sample = self.machine.sample(Look { signals: &signals, pods, is_far: &is_far });
        let exact = sample.readings.iter().filter(|(signal, _)| !sample.at_least.contains(signal));
        self.exact.extend(exact.map(|(signal, reading)| (*signal, *reading)));
        self.sample.update(sample);
    }

    /// The node's events about conditions.
    fn tell_changes(&self, step: &Step) {
        for change in &step.changes {
            let reason = condition_event(change.condition, change.holds);
            let message =
                format!("Node {} status is now: {reason}", self.inputs.host.settings.node_name);
            self.node_event(EventKind::Normal, reason, message);
        }
    }

    fn node_event(&self, kind: EventKind, reason: &'static str, message: String) {
        let event = Event { target: EventTarget::Node, kind, reason, message };
        self.inputs.host.events.record(event);
    }

    fn system_oom(&self, oom: &SystemOom) {
        self.node_event(EventKind::Warning, "SystemOOM", oom.message());
    }

    /// Lets pods back that may come, and forgets those that nobody wishes any more. Whether one
    /// that was to go has gone.
    async fn come_back(&mut self, step: &Step, now: Now) -> bool {
        let seen = self.everything_is_seen(now);
        let views = Arc::clone(&self.inputs.pods.borrow());
        // A pod that runs on although it is to stop (the runtime hangs) is not back.
        let ended = self.inputs.evictions.observe(|key, uid| match views.get(key) {
            Some(view) => view.uid == *uid && !has_ended(view),
            None => !seen,
        });
        if ended {
            self.state.acted(now.boot);
            self.inputs.disks.ask();
        }
        let looked = self.inputs.evictions.look(&step.conditions, step.known, now);
        let mut changed = looked.changed;
        self.pause_ends = looked.next_look.map(|pause| now.boot.saturating_add(pause));
        let known = Arc::clone(&self.inputs.known.borrow());
        if known.complete {
            changed |= self.inputs.evictions.retain(|_, uid| known.uids.contains(uid));
        }
        for key in &looked.back {
            tracing::info!(pod = %key, "evicted before, and may come back now");
        }
        if changed {
            self.save().await;
        }
        ended
    }

    /// Saves who was evicted: on `/run` at once.
    async fn save(&self) {
        let records: Vec<&EvictionRecord> = self.inputs.evictions.records().collect();
        let saved = self.inputs.host.store.put_evictions(&records);
        // It is on its way; what is short does not wait for a disk.
        match tokio::time::timeout(SAVE_PATIENCE, saved).await {
            Ok(Ok(())) => {}
            Ok(Err(err)) => tracing::warn!(%err, "who was evicted would not survive the agent"),
            Err(_) => tracing::warn!("who was evicted is not saved yet"),
        }
    }

    /// Tells the workers who was evicted.
    fn give_evictions(&self) {
        let before = Arc::clone(&self.inputs.orders.borrow());
        let evicted = self.inputs.evictions.away();
        self.give(PressureOrders { evicted, ..PressureOrders::clone(&before) });
    }

    fn give_orders(&self, step: &Step) {
        self.give(PressureOrders {
            known: step.known,
            conditions: step.conditions.clone(),
            evicted: self.inputs.evictions.away(),
            clear_dead: self.clearing.is_some(),
        });
    }

    fn give(&self, orders: PressureOrders) {
        self.inputs.orders.send_if_modified(|given| {
            let changed = **given != orders;
            if changed {
                *given = Arc::new(orders);
            }
            changed
        });
    }

    fn pause(&self, step: &Step, now: Now) -> Duration {
        let of_disks = |signal: &Signal| signal.condition() == Pressure::Disk;
        let disks = step.looks.iter().filter(|(signal, _)| of_disks(signal)).map(|(_, look)| *look);
        let acting = self.leaving.is_some() || self.makes_room();
        let longest = if acting { DISKS_WHILE_ACTING } else { LIMITS_PERIOD };
        let disks = disks.min().unwrap_or(longest).min(longest);
        self.inputs.disk_period.send_if_modified(|period| {
            let changed = *period != disks;
            *period = disks;
            changed
        });
        let ends = self.pause_ends.map(|at| at.saturating_sub(now.boot));
        let quick = acting || !step.known || self.page_cache.is_coming(now.boot);
        let longest = if quick { WHILE_LEAVING } else { LIMITS_PERIOD };
        step.next_look.min(ends.unwrap_or(longest)).min(longest).max(WHILE_LEAVING)
    }
}

impl Kernel {
    fn open(proc: &Path) -> Self {
        let stalls = PsiTrigger::memory(proc).inspect_err(|err| {
            tracing::info!(%err, "the kernel does not tell when tasks wait for memory, which is read all the same");
        });
        let log = KernelLog::open(Path::new("/dev/kmsg")).inspect_err(|err| {
            tracing::info!(%err, "the kernel's log can't be read: what it kills when memory is out is not told");
        });
        Self { stalls: stalls.ok(), log: log.ok() }
    }

    /// Waits for the next news; for ever where the kernel tells none.
    async fn next(&mut self) -> KernelNews {
        loop {
            // Each arm only waits for a file to be readable.
            let failed = tokio::select! {
                stalled = stalled(&mut self.stalls) => match stalled {
                    Ok(()) => return KernelNews::Stalled,
                    Err(err) => {
                        self.stalls = None;
                        err
                    }
                },
                oom = oom(&mut self.log) => match oom {
                    Ok(oom) => return KernelNews::OutOfMemory(oom),
                    Err(err) => {
                        self.log = None;
                        err
                    }
                },
            };
            tracing::debug!(err = %failed, "the kernel tells less than before");
        }
    }
}

async fn stalled(trigger: &mut Option<PsiTrigger>) -> io::Result<()> {
    match trigger {
        Some(trigger) => trigger.fired().await,
        None => std::future::pending().await,
    }
}

async fn oom(log: &mut Option<KernelLog>) -> io::Result<SystemOom> {
    match log {
        Some(log) => log.next_oom().await,
        None => std::future::pending().await,
    }
}
