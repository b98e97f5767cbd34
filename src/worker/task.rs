//! One worker: observe, decide, act, publish, for one namespace/name.

use super::{
    Input,
    counted::{self, Ends, PodStart},
    earlier::{EarlierWork, ended},
    execute::Host,
    objects::{ObjectsRead, ObjectsUsed},
    records::Records,
    report::{Remembered, Report, Reporter},
    update::{Fetching, fetched},
};
use crate::{
    clock,
    metrics::metrics,
    model::{NodeObjects, Now, ObservedPod, PodKey, PodUid, k8s},
    plan::{
        Action, HeldPod, NameInput, Occupancy, Outcome, Picture, PodMemory, PodPlan, Rollout, Wish,
        plan_name,
    },
    store::PodRecord,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// A sleep that outlasts any plan.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest sleep. `wake_at` is boot time, which continues while the machine is suspended, but
/// timers stop then.
pub(super) const RESYNC: Duration = Duration::from_secs(60);
/// The time between two tries to save the records that must be on disk before a dead container is
/// removed.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

pub(super) struct WorkerStart {
    pub key: PodKey,
    pub host: Arc<Host>,
    pub input: watch::Receiver<Input>,
    pub reports: mpsc::Sender<Report>,
    /// Records that an earlier run of the agent left under this name.
    pub records: Vec<PodRecord>,
    /// The memory that the earlier run has saved.
    pub kept: SavedMemory,
    /// The revisions of the pod, as the earlier run has saved them.
    pub rollout: Rollout,
    pub shutdown: CancellationToken,
}

/// State that outlives the agent but not a reboot: back-offs, and the statuses with their
/// transition times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SavedMemory {
    memory: PodMemory,
    statuses: BTreeMap<PodUid, Arc<k8s::PodStatus>>,
}

/// The owner of one pod name.
pub(super) struct Worker {
    pub(super) key: PodKey,
    pub(super) host: Arc<Host>,
    pub(super) input: watch::Receiver<Input>,
    pub(super) shutdown: CancellationToken,
    pub(super) records: Records,
    pub(super) picture: Picture,
    pub(super) memory: PodMemory,
    /// What was saved last; `None`: unknown.
    kept: Option<KeptMemory>,
    pub(super) reporter: Reporter,
    /// An action was executed since the relist loop was last asked for a listing.
    acted: bool,
    /// The incarnation that was held at the last pass.
    held: Option<PodUid>,
    /// The hold for which the pod's processes were killed last.
    pub(super) at_once: Option<HeldPod>,
    /// Changes when the files of this pod may be lost.
    losses: watch::Receiver<u64>,
    pub(super) objects: ObjectsUsed,
    /// The stop of containers that the end of their pod has overtaken, or a write of volumes that
    /// lasts longer than the action beside which it began.
    pub(super) earlier: Option<EarlierWork>,
    /// The image of a new revision that is being fetched.
    pub(super) fetching: Option<Fetching>,
    pub(super) rollout: Rollout,
    /// The revision that was seen to run first, and the time of that as [`clock::awake`].
    pub(super) trial_began: Option<(Box<str>, Duration)>,
    /// The number of the last request of a person that was taken over.
    asked: u64,
    pub(super) pod_start: PodStart,
    /// The ConfigMaps and Secrets that the container began with which the last action has started.
    pub(super) begun_with: Option<Arc<NodeObjects>>,
    ends: Ends,
}

enum Pass {
    /// There may be more actions now.
    Again,
    /// There is nothing to do until the input changes or until this boot time.
    Settled(Option<Duration>),
}

impl Worker {
    pub(super) fn new(start: WorkerStart) -> Self {
        let losses = start.host.store.losses();
        let records = Records::new(start.key.clone(), start.records, clock::now());
        let mut reporter = Reporter::new(start.key.clone(), Arc::clone(&start.host), start.reports);
        reporter.resume(&records, &start.kept.statuses);
        reporter.take_rollout(&start.rollout);
        Self {
            records,
            reporter,
            kept: Some(KeptMemory::of(&start.kept.memory, &start.kept.statuses)),
            memory: start.kept.memory,
            key: start.key,
            host: start.host,
            input: start.input,
            shutdown: start.shutdown,
            picture: Picture::default(),
            acted: false,
            held: None,
            at_once: None,
            losses,
            objects: ObjectsUsed::default(),
            earlier: None,
            fetching: None,
            rollout: start.rollout,
            trial_began: None,
            asked: 0,
            pod_start: PodStart::default(),
            begun_with: None,
            ends: Ends::default(),
        }
    }

    /// Runs until the set drops the input or the agent shuts down. Boxed, because a future stores
    /// what it takes by value twice.
    pub(super) async fn run(mut self: Box<Self>) {
        self.make_passes().await;
        // An action may have ended since the last pass.
        Box::pin(self.keep()).await;
        if let Some(earlier) = self.earlier {
            // As when the agent stops during an action.
            earlier.finish().await;
        }
    }

    async fn make_passes(&mut self) {
        loop {
            // It is dropped before the wait: an idle worker would keep outdated objects in memory.
            let input = self.input.borrow_and_update().clone();
            // Boxed: a waiting worker must not keep room for a pass.
            let pass = Box::pin(self.pass(&input)).await;
            drop(input);
            if self.shutdown.is_cancelled() || self.input.has_changed().is_err() {
                return;
            }
            let Pass::Settled(wake_at) = pass else { continue };
            if std::mem::take(&mut self.acted) {
                // The outcomes are used only until a listing confirms them.
                if self.host.pleg.look_now(self.key.clone()).await.is_err() {
                    // The relist loop ends only when the agent ends.
                    return;
                }
            }
            if !self.wait(wake_at).await {
                return;
            }
        }
    }

    /// One round: plans from the latest input, publishes, and executes the plan.
    async fn pass(&mut self, latest: &Input) -> Pass {
        self.kill_at_once(latest);
        let Some(observed) = self.observe(latest) else { return Pass::Settled(None) };
        if latest.orders.wish != Wish::Undecided {
            self.memory.prepare_for(latest.orders.wish.pod().map(|pod| &**pod));
        }
        self.take_asked(latest).await;
        let mut update = self.plan_update(latest, &observed);
        self.take_fetch(latest, update.fetch.take());
        self.take_over(latest, &update, &observed).await;
        let input = &Input { orders: Arc::clone(&update.orders), ..latest.clone() };
        let host = &self.host;
        let occupancy = Occupancy::new(&observed, &host.settings.owner);
        let new = input.orders.wish.pod().filter(|pod| {
            self.records.of(&pod.uid).is_none() && input.orders.hold_on(&pod.uid).is_none()
        });
        new.into_iter().for_each(|pod| self.pod_start.begin(&pod.uid, &observed));
        self.records.adopt(&host.store, &input.orders.wish, occupancy).await;
        self.records.take_edit(&host.store, &input.orders, occupancy).await;
        self.records.share(&input.orders.wish);
        if self.losses.has_changed().unwrap_or_default() {
            self.save_again().await;
        }
        self.take_hold(input);
        // Without a saved record, a container that has ended would run again.
        let removes = input.orders.clear_dead || self.records.have_evicted();
        let records_saved = !removes || self.records.are_saved(&self.host.store).await;
        let now = clock::now();
        let wished = input.orders.wish.pod().map(|pod| &pod.uid);
        self.memory.look(wished, self.records.incarnations(), &observed, now);
        if self.memory.take_probes(&input.probes, &observed) {
            self.keep().await;
        }
        let outdated = self.objects.outdated(input, &observed);
        let mut plan = plan_name(
            &NameInput {
                key: &self.key,
                orders: &input.orders,
                known: self.records.incarnations(),
                observed: &observed,
                settled: !self.picture.awaits_listing(),
                memory: &self.memory,
                probes: &input.probes,
                objects: &input.objects,
                volumes_current: self.objects.are_written(input),
                outdated: &outdated,
                settings: &self.host.settings.plan,
                runtime: &input.runtime,
                records_saved,
            },
            now,
        );
        self.tell_update(&update, &mut plan);
        self.announce(&mut plan, now);
        // A worker must not end before a listing has shown that its pod is gone.
        let answers = self.picture.unconfirmed_since().is_none().then_some(input.sequence);
        let known = Remembered { records: &self.records, memory: &self.memory };
        self.reporter.report(input, &observed, known, &plan, answers).await;
        self.pod_start.look(self.reporter.statuses());
        if let (Some(terminal), Some(uid)) = (&plan.terminal, wished) {
            let status = self.reporter.status(uid).cloned();
            let (store, wish) = (&self.host.store, &input.orders.wish);
            self.records.end(store, wish, uid, (terminal, status)).await;
        }
        let judged = self.judge(input, &plan, now).await;
        if self.picture.awaits_listing() {
            self.keep().await;
            return Pass::Settled(None);
        }
        if let Some(earlier) = &self.earlier {
            earlier.hold_back(&input.orders, &mut plan.actions);
        }
        if plan.actions.is_empty() {
            self.keep().await;
            let again = (!records_saved).then(|| now.boot.saturating_add(SAVE_AGAIN));
            let wakes = plan.wake_at.into_iter().chain(update.wake_at).chain(judged);
            return Pass::Settled(wakes.chain(again).min());
        }
        // On the heap: the future is as large as the rest of the worker, and most pods have nothing
        // to do.
        Box::pin(self.act(input, plan)).await;
        Pass::Again
    }

    /// Records the notices of a plan that are new as events.
    pub(super) fn announce(&mut self, plan: &mut PodPlan, now: Now) {
        for event in self.memory.announce(plan, now) {
            counted::count_notice(&event);
            self.host.events.record(event);
        }
    }

    /// When a hold ends, the pod starts with a new status, unless it had ended before it was held.
    fn take_hold(&mut self, input: &Input) {
        let held = input.orders.hold.as_ref().map(|held| held.uid.clone());
        if held != self.held
            && let Some(uid) = std::mem::replace(&mut self.held, held)
            && self.records.of(&uid).is_none_or(|record| record.terminal.is_none())
        {
            self.reporter.forget(&uid);
        }
    }

    /// Takes over the latest listing and counts the ends of containers that it shows. Returns the
    /// picture, once there is one.
    fn observe(&mut self, latest: &Input) -> Option<Arc<ObservedPod>> {
        self.picture.observe(Arc::clone(&latest.observed));
        let picture = self.picture.shared()?;
        for end in self.ends.look(&picture, &latest.observed) {
            if let Some(pod) = self.records.pod_for(end.uid(), latest) {
                counted::count_end(&end, &pod);
            }
        }
        Some(picture)
    }

    /// Executes the actions of a plan in order, until one fails or the orders change.
    async fn act(&mut self, input: &Input, mut plan: PodPlan) {
        let actions = std::mem::take(&mut plan.actions);
        let (begun, operation) = (Instant::now(), counted::operation_type(&actions));
        self.act_in_order(input, &plan, actions).await;
        let took = begun.elapsed().as_secs_f64();
        metrics().pod_worker_seconds.with_label_values(&[operation]).observe(took);
    }

    async fn act_in_order(&mut self, input: &Input, plan: &PodPlan, actions: Vec<Action>) {
        for action in actions {
            if self.shutdown.is_cancelled() {
                return;
            }
            tracing::debug!(pod = %self.key, uid = %action.uid(), "{action}");
            let (ends_pass, uid) = (action.failure_ends_pass(), action.uid().clone());
            self.pod_start.act(&uid);
            let Some(outcome) = self.perform(input, plan, action).await else { return };
            // The record has the pod that the action was executed with: `PreparePod` has put the
            // wished revision into it first.
            let pod = self.records.pod_for(&uid, input);
            let begun_with = self.begun_with.take().unwrap_or_else(|| Arc::clone(&input.objects));
            let objects = pod.map(|pod| ObjectsRead::of(&pod, &begun_with)).unwrap_or_default();
            let failed = !outcome.is_success();
            self.take_outcome(outcome, objects).await;
            let latest = self.input.borrow().clone();
            let overtaken =
                self.input.has_changed().is_err() || self.acted_on(&latest).orders != input.orders;
            if failed && ends_pass || overtaken || self.earlier.is_some() {
                return;
            }
        }
    }

    /// Saves and remembers what an action has done. The memory is kept before the next action, or at
    /// the end of the next pass.
    async fn take_outcome(&mut self, outcome: Outcome, objects: ObjectsRead) {
        counted::count_restart(&outcome, &self.input.borrow().orders);
        self.ends.take(&outcome);
        let now = clock::now();
        self.acted = true;
        self.objects.take(&outcome, objects);
        self.memory.record(&outcome, now);
        if let Outcome::CleanedUp { uid } = &outcome {
            self.reporter.forget(uid);
            // A pod with the same uid may begin anew. It must find nothing of this one, also when
            // the agent dies here: the record, which plans the clean-up again, goes last.
            self.keep().await;
        }
        self.records.take(&self.host.store, &outcome).await;
        if matches!(outcome, Outcome::Resized { .. }) {
            // Saved before the status says so: the next agent does not resize it again.
            self.keep().await;
        }
        if let Outcome::Failed(failure) = &outcome {
            tracing::debug!(
                pod = %self.key, uid = %failure.uid, step = ?failure.step,
                "{}: {}", failure.reason, failure.message
            );
        }
        self.picture.record(outcome, now);
    }

    /// Takes over what people have asked for, and saves it before the set hears of it. Returns true
    /// when containers are to be restarted.
    pub(super) async fn take_asked(&mut self, input: &Input) -> bool {
        let asked = input.orders.asked.as_ref().filter(|asked| asked.number > self.asked);
        let Some(asked) = asked else { return false };
        self.memory.ask(asked);
        self.keep().await;
        self.asked = asked.number;
        self.reporter.asked = asked.number;
        !asked.restart.is_empty()
    }

    /// Kills the processes of a pod that must be killed at once. Does so once for each hold,
    /// without waiting for the call that is under way.
    pub(super) fn kill_at_once(&mut self, input: &Input) {
        if self.at_once.as_ref() == input.orders.killed_at_once() {
            return;
        }
        self.at_once = input.orders.killed_at_once().cloned();
        if let Some(held) = &self.at_once {
            self.kill_processes(&held.uid, input);
        }
    }

    /// Kills every process of an incarnation, without the runtime. All agents that run a uid share
    /// its cgroup, so nothing is killed while another agent runs it: the runtime knows the owner of
    /// each container.
    pub(super) fn kill_processes(&self, uid: &PodUid, input: &Input) {
        let occupancy = Occupancy::new(&input.observed, &self.host.settings.owner);
        if occupancy.foreign_use(uid).is_some() {
            return;
        }
        if let Some(pod) = self.records.pod_for(uid, input) {
            self.host.kill_at_once(&self.key, &pod);
        }
    }

    /// Sleeps until the input changes or `wake_at`; `false` when the worker is to end.
    async fn wait(&mut self, wake_at: Option<Duration>) -> bool {
        let delay = wake_at.map_or(FOREVER, |at| at.saturating_sub(clock::now().boot).min(RESYNC));
        // Each arm only waits; none loses anything when dropped.
        tokio::select! {
            () = self.shutdown.cancelled() => false,
            (fetch, outcome) = fetched(&mut self.fetching) => {
                self.take_fetched(&fetch, &outcome);
                true
            }
            (outcome, objects) = ended(&mut self.earlier) => {
                self.reporter.progress = None;
                Box::pin(self.take_outcome(outcome, objects)).await;
                true
            }
            () = self.reporter.progressed() => true,
            changed = self.input.changed() => {
                if changed.is_ok() {
                    // The next pass takes it in.
                    self.input.mark_changed();
                }
                changed.is_ok()
            }
            Ok(()) = self.losses.changed() => {
                self.losses.mark_changed();
                true
            }
            () = tokio::time::sleep(delay) => true,
        }
    }

    /// Writes everything again that was on disk: the directories were deleted while the agent ran.
    async fn save_again(&mut self) {
        self.losses.mark_unchanged();
        self.records.save_again(&self.host).await;
        self.save_rollout(self.rollout.clone()).await;
        self.kept = None;
        self.keep().await;
    }

    /// Keeps what the agent's next life needs, when it has changed. Called before each action but
    /// `PreparePod`, and before each wait.
    pub(super) async fn keep(&mut self) {
        let statuses = self.reporter.statuses();
        let to_keep = KeptMemory::of(&self.memory, statuses);
        if self.kept.as_ref().is_some_and(|kept| kept.is(&to_keep)) {
            return;
        }
        self.kept = Some(to_keep);
        let kept = SavedMemory { memory: self.memory.clone(), statuses: statuses.clone() };
        let nothing = kept.memory.is_empty() && kept.statuses.is_empty();
        if let Err(error) = self.host.store.put_memory(&self.key, (!nothing).then_some(&kept)).await
        {
            tracing::debug!(pod = %self.key, err = %error, "its back-offs are not kept yet");
        }
    }
}

/// Tells whether the memory of a pod and its statuses have changed, without a copy of them.
struct KeptMemory {
    /// A hash of the memory, as JSON.
    memory: u64,
    /// Each status is made once and shared.
    statuses: Box<[Arc<k8s::PodStatus>]>,
}

impl KeptMemory {
    fn of(memory: &PodMemory, statuses: &BTreeMap<PodUid, Arc<k8s::PodStatus>>) -> Self {
        let mut hasher = DefaultHasher::new();
        // Maps with text as keys, and numbers: nothing that JSON has no words for.
        hasher.write(&serde_json::to_vec(memory).unwrap_or_default());
        Self { memory: hasher.finish(), statuses: statuses.values().cloned().collect() }
    }

    fn is(&self, other: &Self) -> bool {
        let same = |(a, b): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(a, b);
        self.memory == other.memory
            && self.statuses.len() == other.statuses.len()
            && self.statuses.iter().zip(&other.statuses).all(same)
    }
}
