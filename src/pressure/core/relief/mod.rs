//! Decides the next step against a shortage.
//!
//! [`Relief`] owns everything that outlives one round: the thresholds that are met, the evictions,
//! and the step that is under way. [`Relief::plan`] reads what was observed and returns actions.
//! The caller executes them and hands their results to [`Relief::fold`].
//!
//! ```text
//!  page cache:          Untried ─► Running ─► Ended ─► Tried
//!  memory, process ids: Idle ─► Measuring ─► Measured ─► Leaving ─► Idle
//!  disks:               Idle ─► ClearingDead ─► Idle ─► FreeingImages ─► Idle ─► Measuring ─► Measured ─► Leaving ─► Idle
//!  limits of pods:      Idle ─► Measuring ─► Measured ─► Idle
//! ```
//!
//! Each track takes one step at a time, and takes the next one by a reading that began after the
//! last step had ended. The record of an eviction is saved before the pod is stopped
//! ([`ReliefPlan::save`] comes before [`ReliefPlan::orders`]).

mod disk;
mod futile;
mod leaving;
mod limits;
mod memory;
mod page_cache;
mod plan;

use self::{
    disk::DiskTrack, futile::Futile, leaving::Leaving, limits::LimitsTrack, memory::MemoryTrack,
};
use super::{
    comeback::{Cause, Evictions},
    message::Eviction,
    rank::{Candidate, Spare, Spared, rank},
    settings::EvictionSettings,
    state::{Acting, PressureState, PressureStep},
    threshold::Threshold,
};
use crate::model::{
    CollectOrdered as _, Now, PodKey, PodUid, PodView, Pressure, PressureOrders, Signal, k8s,
};
use page_cache::PageCache;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use plan::{
    ImagesFreed, MeasurePurpose, MeasuredPod, Outcome, ReclaimOutcome, ReliefAction, ReliefPlan,
    Seen,
};

/// The time between two searches for users outside of pods, for the same signal and also when it was
/// relieved meanwhile.
pub const SEARCH_PERIOD: Duration = Duration::from_secs(600);
/// The workers have this long to report all pods after the first listing of the runtime.
const REPORTS_PATIENCE: Duration = Duration::from_secs(1);
/// The longest time between two rounds, and between two checks of the pods' own limits.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The time between two rounds while a step is under way.
const ACTIVE_PAUSE: Duration = Duration::from_millis(50);
/// The same while an evicted pod has much of its grace period left, and while the runtime has not
/// answered for long.
const SLOW_PAUSE: Duration = Duration::from_secs(1);
/// The time between two readings of the disks while a step is under way.
const ACTIVE_DISK_PERIOD: Duration = Duration::from_millis(500);

/// What the functions of one round add to.
#[derive(Default)]
struct Effects {
    save: bool,
    read_disks: bool,
    actions: Vec<ReliefAction>,
    /// The time until the pause of an evicted pod is over.
    comeback: Option<Duration>,
}

/// Decides about evictions and about everything that is reclaimed before one.
#[derive(Debug)]
pub struct Relief {
    state: PressureState,
    evictions: Evictions,
    /// The usage of all pods could be read at least once.
    kubepods_known: bool,
    /// Boot time at which `Known::listed` was first true.
    listed_since: Option<Duration>,
    page_cache: PageCache,
    memory: MemoryTrack,
    disk: DiskTrack,
    limits: LimitsTrack,
    /// Signals with an event `EvictionThresholdMet` since they are crossed.
    reported: BTreeSet<Signal>,
    /// The pods that were spared by the last ranking of each signal that is crossed.
    spared: BTreeMap<Signal, BTreeMap<PodKey, Spare>>,
    /// Thresholds that are met, and no pod could be evicted for them.
    futile: BTreeMap<Threshold, Futile>,
    /// Boot time of the last search for users outside of pods.
    searched: BTreeMap<Signal, Duration>,
}

impl Relief {
    /// Continues with the evictions of an earlier run. Conditions for which pods were evicted within
    /// the transition period are held as if they had just been seen; a condition without a threshold
    /// is dropped.
    #[must_use]
    pub fn restored(evictions: Evictions, settings: &EvictionSettings, now: Now) -> Self {
        let held = held_conditions(&evictions, settings, now);
        Self {
            state: PressureState::restored(held, now.boot),
            evictions,
            kubepods_known: false,
            listed_since: None,
            page_cache: PageCache::Untried,
            memory: MemoryTrack::Idle,
            disk: DiskTrack::default(),
            limits: LimitsTrack::default(),
            reported: BTreeSet::new(),
            spared: BTreeMap::new(),
            futile: BTreeMap::new(),
            searched: BTreeMap::new(),
        }
    }

    /// The orders for the workers before the first round.
    #[must_use]
    pub fn first_orders(
        evictions: &Evictions,
        settings: &EvictionSettings,
        now: Now,
    ) -> PressureOrders {
        let conditions = held_conditions(evictions, settings, now).collect_ordered();
        PressureOrders { evicted: evictions.away(), conditions, ..PressureOrders::default() }
    }

    /// The evictions that are not forgotten, whose records are saved.
    #[must_use]
    pub fn evictions(&self) -> &Evictions {
        &self.evictions
    }

    /// The evicted pods whose end is waited for.
    pub fn leaving(&self) -> impl Iterator<Item = (&PodUid, &Arc<k8s::Pod>)> {
        let both = self.memory.leaving().into_iter().chain(self.disk.leaving());
        both.map(|leaving| (&leaving.uid, &leaving.pod))
    }

    /// True while [`Outcome::ImagesFreed`] is awaited.
    #[must_use]
    pub fn is_freeing_images(&self) -> bool {
        self.disk.is_freeing_images()
    }

    /// True while [`Outcome::Reclaimed`] is awaited.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        self.page_cache.is_running()
    }

    /// Takes in the result of an action.
    pub fn fold(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Reclaimed(result) => self.page_cache.fold(result),
            Outcome::ImagesFreed(freed) => self.disk.fold_images(freed),
            Outcome::Measured(MeasurePurpose::Cgroups, pods) => self.memory.fold(pods),
            Outcome::Measured(MeasurePurpose::Disk, pods) => self.disk.fold_pods(pods),
            Outcome::Measured(MeasurePurpose::Limits, pods) => self.limits.fold(pods),
        }
    }

    /// Plans one round.
    pub fn plan(&mut self, seen: &Seen<'_>) -> ReliefPlan {
        let now = seen.now;
        let mut step = self.state.step(seen.settings, seen.readings, now.boot);
        // If the cgroup of all pods disappears later, it has no users and is created again.
        self.kubepods_known |= seen.kubepods_known;
        step.known &= self.kubepods_known;
        let mut effects = Effects::default();
        let changes = step.changes.iter().copied().map(ReliefAction::ReportCondition);
        effects.actions.extend(changes);
        let complete = self.pods_are_complete(seen);
        let ended = self.update_evictions(&step, seen, complete, &mut effects);
        let ended = ended
            | self.finish_memory(seen, &mut effects)
            | self.finish_disk(seen, &mut effects)
            | self.finish_page_cache(&step, seen, &mut effects);
        self.hurry_for_disk(&step, now, &mut effects);
        self.forget_relieved(&step);
        // The readings of a round in which a step ended do not show its effect.
        if !ended && complete {
            self.act(&step, seen, &mut effects);
        }
        let (wake_in, disk_period) = self.pauses(&step, effects.comeback, now);
        ReliefPlan {
            save: effects.save,
            orders: PressureOrders {
                known: step.known,
                conditions: step.conditions.clone(),
                evicted: self.evictions.away(),
                clear_dead: self.disk.is_clearing_dead(),
            },
            actions: effects.actions,
            read_disks: effects.read_disks,
            wake_in,
            disk_period,
            step,
        }
    }

    /// True when every pod that runs can be expected to have a view: after a start, the workers
    /// report one by one.
    fn pods_are_complete(&mut self, seen: &Seen<'_>) -> bool {
        if !seen.known.listed {
            return false;
        }
        let since = *self.listed_since.get_or_insert(seen.now.boot);
        seen.now.boot.saturating_sub(since) >= REPORTS_PATIENCE
    }

    /// Lets evicted pods come back when they may, and drops records of pods that are gone. Returns
    /// true when an evicted pod has ended.
    fn update_evictions(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        complete: bool,
        effects: &mut Effects,
    ) -> bool {
        // A pod that still runs because the runtime hangs is not back.
        let ended = self.evictions.observe(|key, uid| match seen.pods.get(key) {
            Some(view) => view.uid == *uid && !view.has_stopped(),
            None => !complete,
        });
        if ended {
            self.state.acted(seen.now.boot);
            effects.read_disks = true;
        }
        let looked = self.evictions.look(&step.conditions, step.known, seen.now);
        effects.save |= looked.changed;
        effects.save |= self.evictions.retain(|record| match record.for_good {
            true => !seen.known.is_gone_from_api(&record.uid),
            false => !seen.known.is_gone(&record.uid),
        });
        effects.comeback = looked.next_look;
        effects.actions.extend(looked.back.into_iter().map(ReliefAction::ReportComeback));
        ended
    }

    /// Takes the first step that is possible.
    fn act(&mut self, step: &PressureStep, seen: &Seen<'_>, effects: &mut Effects) {
        if self.act_on_measured(step, seen, effects) {
            return;
        }
        match self.next_step(step, seen) {
            Some(acting) => self.relieve(acting, seen, effects),
            None => self.check_limits(seen, effects),
        }
    }

    /// The threshold for which the next step begins. Of the hard ones of disks, and then of the soft
    /// ones, those come first for which something is removed: one measurement decides about all
    /// others.
    fn next_step<'a>(&self, step: &'a PressureStep, seen: &Seen<'_>) -> Option<&'a Acting> {
        let is_disk = |acting: &Acting| acting.threshold.signal.condition() == Pressure::Disk;
        let removes = |acting: &Acting| {
            is_disk(acting) && self.disk.may_remove(acting.threshold.signal, seen)
        };
        let may_begin = |acting: &&Acting| {
            (removes(acting) || !self.rests(acting, seen.now)) && self.may_act(acting, seen.now)
        };
        let turn = |acting: &&Acting| {
            let memory = acting.threshold.signal.condition() == Pressure::Memory;
            let measures = is_disk(acting) && !removes(acting);
            (!memory, !acting.threshold.is_hard(), measures)
        };
        step.acting.iter().filter(may_begin).min_by_key(turn)
    }

    fn act_on_measured(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        self.evict_for_memory(step, seen, effects)
            || self.evict_for_disk(step, seen, effects)
            || self.evict_for_limits(seen, effects)
    }

    /// Begins a step for a threshold. Other thresholds keep their readings for the next round.
    fn relieve(&mut self, acting: &Acting, seen: &Seen<'_>, effects: &mut Effects) {
        let signal = acting.threshold.signal;
        self.state.use_readings(signal, acting.reading.at);
        self.report_threshold(signal, effects);
        match signal.condition() {
            Pressure::Memory if self.reclaim_page_cache(acting, seen.now, effects) => {}
            Pressure::Memory | Pressure::Pid => self.measure_for_memory(acting, seen, effects),
            Pressure::Disk => self.relieve_disk(acting, seen, effects),
        }
    }

    /// Reports, once while a signal is crossed, that something is done about it.
    fn report_threshold(&mut self, signal: Signal, effects: &mut Effects) {
        if self.reported.insert(signal) {
            effects.actions.push(ReliefAction::ReportThreshold(signal));
        }
    }

    /// True while a ranking without a pod to evict is so recent that no pods are measured again.
    fn rests(&self, acting: &Acting, now: Now) -> bool {
        let futile = self.futile.get(&acting.threshold);
        futile.is_some_and(|futile| futile.rests(acting.reading.available, now))
    }

    /// True when nothing that is under way prevents a step for this threshold.
    ///
    /// A pod that is evicted for memory or process ids stops quickly, and all other steps wait for
    /// it. A step for a disk may take long, and memory does not wait for it. A pod that stops
    /// within a grace period for a soft threshold does not delay a step for a hard threshold,
    /// except for disks: there, pods that are already stopping are awaited.
    fn may_act(&self, acting: &Acting, now: Now) -> bool {
        let condition = acting.threshold.signal.condition();
        let hard = acting.threshold.is_hard();
        // Also a pod that an earlier run of the agent evicted.
        let has_time = condition == Pressure::Disk || !hard;
        if has_time && self.evictions.relief_is_coming(condition, now) {
            return false;
        }
        match condition {
            Pressure::Memory | Pressure::Pid => self.memory.allows(hard),
            Pressure::Disk => {
                self.memory.allows(hard) && self.disk.is_idle() && !self.limits.is_measuring()
            }
        }
    }

    /// True when a measurement for this threshold may still decide: the threshold is crossed, and
    /// no step has ended since its reading.
    fn is_current(&self, acting: &Acting, step: &PressureStep) -> bool {
        step.met.iter().any(|met| met.threshold == acting.threshold)
            && !self.state.is_outdated(acting.reading.at)
    }

    /// Evicts the first pod by rank of those that were measured and are still candidates, and
    /// returns it as the pod to wait for. Returns `None` when no pod can be evicted. `took` is the
    /// duration of the measurement.
    fn evict_first(
        &mut self,
        acting: &Acting,
        measured: &[MeasuredPod],
        took: Duration,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> Option<Leaving> {
        self.report_threshold(acting.threshold.signal, effects);
        let candidates = self.still_candidates(measured, seen);
        let ranking = rank(&candidates, acting, seen.layout, seen.settings.static_pods);
        let news = self.note_spared(acting.threshold.signal, &ranking.spared, effects);
        let Some(victim) = ranking.victims.first() else {
            let unmeasured = news.contains(&Spare::NotMeasured);
            self.note_futile(acting, took, unmeasured, seen);
            self.search_outside(acting, &ranking.spared, seen.now, effects);
            return None;
        };
        let eviction = Eviction::of(victim, acting, seen.settings.max_pod_grace);
        let leaving = Leaving::new(victim, acting, eviction.hold.stop, seen.now);
        let candidate = &victim.candidate;
        let cause = Cause::Signal(acting.threshold.signal);
        let message = eviction.hold.message.clone();
        self.evictions.evict(candidate, cause, eviction.hold, seen.now);
        effects.save = true;
        effects.actions.push(ReliefAction::ReportEviction {
            key: candidate.key.clone(),
            uid: candidate.uid.clone(),
            cause,
            read_at: Some(acting.reading.at),
            message,
            annotations: eviction.annotations,
        });
        Some(leaving)
    }

    /// Notes which pods a ranking has spared, and reports the new ones. Returns why those are
    /// spared.
    fn note_spared(
        &mut self,
        signal: Signal,
        spared: &[Spared<'_>],
        effects: &mut Effects,
    ) -> BTreeSet<Spare> {
        let now: BTreeMap<PodKey, Spare> = spared
            .iter()
            .map(|spared| (spared.candidate.key.clone(), spared.why))
            .collect_ordered();
        let before = self.spared.entry(signal).or_default();
        let mut news = BTreeSet::new();
        for (key, why) in now.iter().filter(|(key, why)| before.get(*key) != Some(*why)) {
            let (key, why) = (key.clone(), *why);
            news.insert(why);
            effects.actions.push(ReliefAction::ReportSpared { key, signal, why });
        }
        *before = now;
        news
    }

    /// No pod can be evicted for a threshold: another threshold gets its turn, and a newer reading
    /// is needed for another try.
    fn note_futile(&mut self, acting: &Acting, took: Duration, unmeasured: bool, seen: &Seen<'_>) {
        let Acting { threshold, reading, .. } = acting;
        let latest = seen.readings.get(&threshold.signal).unwrap_or(reading);
        let futile = Futile::new(threshold, latest, took, unmeasured, seen.now);
        self.futile.insert(*threshold, futile);
        self.state.use_readings(threshold.signal, seen.now.boot);
    }

    /// Has the users outside of pods reported, unless they were just looked for.
    fn search_outside(
        &mut self,
        acting: &Acting,
        spared: &[Spared<'_>],
        now: Now,
        effects: &mut Effects,
    ) {
        let signal = acting.threshold.signal;
        let last = self.searched.get(&signal);
        if last.is_some_and(|last| now.boot.saturating_sub(*last) < SEARCH_PERIOD) {
            return;
        }
        self.searched.insert(signal, now.boot);
        let all_measured = !spared.iter().any(|spared| spared.why == Spare::NotMeasured);
        let exempt = spared.iter().filter(|spared| spared.large);
        let exempt = exempt.map(|spared| (spared.candidate.key.clone(), spared.why)).collect();
        effects.actions.push(ReliefAction::ReportNoPod { acting: *acting, all_measured, exempt });
    }

    fn forget_relieved(&mut self, step: &PressureStep) {
        let met: BTreeSet<Signal> =
            step.met.iter().map(|met| met.threshold.signal).collect_ordered();
        self.reported.retain(|signal| met.contains(signal));
        self.spared.retain(|signal, _| met.contains(signal));
        self.futile.retain(|threshold, _| met.contains(&threshold.signal));
    }

    /// The pods that were not evicted and have not stopped. One whose phase is final may take long
    /// to stop, and is hurried by an eviction.
    fn candidates<'a>(&'a self, seen: &Seen<'a>) -> impl Iterator<Item = &'a Arc<PodView>> {
        let live = seen.pods.values().filter(|view| view.pod.is_some() && !view.has_stopped());
        live.filter(|view| self.evictions.stop_of(&view.key, &view.uid).is_none())
    }

    /// The measured pods that are still candidates: measuring takes time.
    fn still_candidates<'a>(
        &self,
        measured: &'a [MeasuredPod],
        seen: &Seen<'_>,
    ) -> Vec<Candidate<'a>> {
        let still = measured.iter().filter(|measured| {
            is_running(&measured.view, seen)
                && self.evictions.stop_of(&measured.view.key, &measured.view.uid).is_none()
        });
        still.map(MeasuredPod::candidate).collect()
    }

    /// The times until the next round and between two readings of the disks.
    fn pauses(
        &self,
        step: &PressureStep,
        comeback: Option<Duration>,
        now: Now,
    ) -> (Duration, Duration) {
        let leaving = self.memory.leaving().is_some_and(|leaving| leaving.is_ending(now.boot));
        let active = leaving || self.disk.is_active(now.boot);
        let longest = if active { ACTIVE_DISK_PERIOD } else { LONGEST_PAUSE };
        let disks = step.looks.iter().filter(|(signal, _)| signal.condition() == Pressure::Disk);
        let disk_period = disks.map(|(_, look)| *look).min().unwrap_or(longest).min(longest);
        let starting = !step.known && self.state.is_patient(now.boot);
        let quick = active || starting || self.page_cache.is_awaited(now.boot);
        let slow = !step.known || self.leaving().next().is_some();
        let longest = match (quick, slow) {
            (true, _) => ACTIVE_PAUSE,
            (false, true) => SLOW_PAUSE,
            (false, false) => LONGEST_PAUSE,
        };
        (
            step.next_look.min(comeback.unwrap_or(longest)).min(longest).max(ACTIVE_PAUSE),
            disk_period,
        )
    }
}

/// The conditions for which an earlier run has evicted pods within the transition period, as far as
/// a threshold can still raise them.
fn held_conditions(
    evictions: &Evictions,
    settings: &EvictionSettings,
    now: Now,
) -> impl Iterator<Item = Pressure> {
    let recent = evictions.recent(settings.transition, now);
    recent.filter_map(|record| record.cause.condition()).filter(|condition| {
        settings.thresholds.iter().any(|threshold| threshold.signal.condition() == *condition)
    })
}

/// True when this incarnation is still published and not all of it has stopped.
fn is_running(view: &PodView, seen: &Seen<'_>) -> bool {
    seen.pods.get(&view.key).is_some_and(|now| now.uid == view.uid && !now.has_stopped())
}

/// True when a pod has a volume in memory, whose content outlives the processes.
fn has_memory_volume(pod: &k8s::Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut media = volumes.filter_map(|volume| volume.empty_dir.as_ref()?.medium.as_deref());
    media.any(|medium| medium == "Memory")
}
