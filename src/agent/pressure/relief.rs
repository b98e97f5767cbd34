//! Doing something about it: what can be freed without a pod, then one pod; and waiting until it is
//! gone.

use super::{
    PressureTask,
    room::Awaited,
    usage::{Measured, Purpose, Survey, has_ended},
};
use crate::{
    clock,
    event::Annotations,
    model::{
        DiskLayout, Event, EventKind, EventTarget, HoldStop, Now, PodKey, PodUid, Pressure,
        ReliefView, Signal, k8s,
    },
    podspec::pod_cgroup_name,
    pressure::core::{
        Acting, Candidate, Cause, Eviction, Met, Spare, Spared, StaticPods, Step, Victim,
        over_limits, patience, rank, threshold_met_message,
    },
    signals,
};
use std::{sync::Arc, time::Duration};

/// A pod that was told to go.
pub(super) struct Leaving {
    pub key: PodKey,
    uid: PodUid,
    pod: Arc<k8s::Pod>,
    signal: Signal,
    /// It was given time.
    soft: bool,
    /// How long it may take.
    patience: Duration,
    /// What was available before, and how much more there should be.
    before: u64,
    expected: u64,
    since: Duration,
    /// When it was seen to be gone.
    gone: Option<Duration>,
}

impl Leaving {
    fn new(
        victim: &Victim<'_>,
        pod: &Arc<k8s::Pod>,
        acting: &Acting,
        stop: HoldStop,
        now: Now,
    ) -> Self {
        Self {
            key: victim.candidate.key.clone(),
            uid: victim.candidate.uid.clone(),
            pod: Arc::clone(pod),
            signal: acting.threshold.signal,
            soft: !acting.threshold.is_hard(),
            patience: patience(stop),
            before: acting.reading.available,
            expected: victim.used,
            since: now.boot,
            gone: None,
        }
    }
}

impl PressureTask {
    /// One step against what is short; `false` when there is nothing that could be done about it.
    pub(super) async fn relieve(&mut self, acting: &Acting, layout: DiskLayout) -> bool {
        let signal = acting.threshold.signal;
        if self.history.is_new(signal) {
            let message = threshold_met_message(signal);
            self.node_event(EventKind::Warning, "EvictionThresholdMet", message);
        }
        match signal.condition() {
            Pressure::Memory if self.reclaim_memory(acting) => true,
            Pressure::Memory | Pressure::Pid if self.hurry(acting, layout).await => true,
            Pressure::Memory | Pressure::Pid => {
                let pods = self.candidates(|_| true);
                let measured = self.measure_cgroups(pods).await;
                self.end_one(acting, layout, &measured).await
            }
            Pressure::Disk if self.make_room(acting, layout) => true,
            Pressure::Disk => {
                // Takes seconds, in which memory may run short.
                self.survey(Purpose::Relief { acting: *acting, layout });
                true
            }
        }
    }

    /// Takes in a measurement that took its time. Whether somebody goes because of it.
    pub(super) async fn use_survey(&mut self, survey: Survey, step: &Step, now: Now) -> bool {
        let pods = self.still_there(survey.pods);
        match survey.purpose {
            Purpose::Relief { acting, layout } => {
                let still = step.met.iter().any(|met| met.threshold == acting.threshold)
                    && !self.state.is_outdated(acting.reading.at);
                still && self.may_act(&acting, now) && self.end_one(&acting, layout, &pods).await
            }
            Purpose::Limits { layout } => self.enforce_limits(layout, &pods).await,
        }
    }

    /// Evicts the first pod whose end would help. Without one, people are told who uses what is
    /// short.
    async fn end_one(
        &mut self,
        acting: &Acting,
        layout: DiskLayout,
        measured: &[Measured],
    ) -> bool {
        let candidates: Vec<Candidate<'_>> = measured.iter().map(Measured::candidate).collect();
        let ranking = rank(&candidates, acting, layout, self.effective.static_pods);
        self.history.spare(acting.threshold.signal, &ranking.spared);
        match ranking.victims.first() {
            Some(victim) => {
                self.evict(victim, acting, measured).await;
                true
            }
            None => {
                let unknown = |spared: &Spared<'_>| spared.why == Spare::NotMeasured;
                self.blame(acting, !ranking.spared.iter().any(unknown));
                false
            }
        }
    }

    /// While images go, or a pod that gives room on a disk, memory and process ids don't wait: that
    /// may take long. While one goes for them, everybody waits: that takes no time. Where there is
    /// time, whoever was told to go for the same, now or in an earlier life of the agent, is waited
    /// for.
    pub(super) fn may_act(&self, acting: &Acting, now: Now) -> bool {
        let disk = |signal: Signal| signal.condition() == Pressure::Disk;
        let condition = acting.threshold.signal.condition();
        let has_time = condition == Pressure::Disk || !acting.threshold.is_hard();
        if has_time && self.inputs.evictions.relief_is_coming(condition, now) {
            return false;
        }
        let hard = acting.threshold.is_hard();
        if disk(acting.threshold.signal) {
            // Who was given time for something else has nothing to do with it.
            let waits = |leaving: &Leaving| !(hard && leaving.soft && !disk(leaving.signal));
            let goes = self.leaving.as_ref().is_some_and(waits);
            return !self.makes_room() && !goes && self.surveys.is_empty();
        }
        match &self.leaving {
            None => true,
            Some(leaving) => hard && (disk(leaving.signal) || leaving.soft),
        }
    }

    async fn evict(&mut self, victim: &Victim<'_>, acting: &Acting, measured: &[Measured]) {
        let signal = acting.threshold.signal;
        let eviction = Eviction::of(victim, acting, self.effective.max_pod_grace);
        let Some(measured) = measured.iter().find(|m| m.view.uid == *victim.candidate.uid) else {
            return;
        };
        let now = clock::now();
        self.leaving = Some(Leaving::new(victim, &measured.pod, acting, eviction.hold.stop, now));
        let (message, annotations) = (eviction.hold.message.clone(), eviction.annotations);
        self.inputs.evictions.evict(&victim.candidate, Cause::Signal(signal), eviction.hold, now);
        // What is written first, the worker may carry out.
        self.save().await;
        self.give_evictions();
        self.pod_event(victim.candidate.key, victim.candidate.uid, message, annotations);
    }

    /// Who was given time to go (a soft threshold, a disk, a limit of its own) has none any more
    /// before anybody else has to go: also when an earlier life of the agent told it to.
    async fn hurry(&mut self, acting: &Acting, layout: DiskLayout) -> bool {
        let going = self.going();
        if going.is_empty() || !acting.threshold.is_hard() {
            return false;
        }
        let measured = self.measure_cgroups(going).await;
        let candidates: Vec<Candidate<'_>> = measured.iter().map(Measured::candidate).collect();
        let ranking = rank(&candidates, acting, layout, self.effective.static_pods);
        let Some(victim) = ranking.victims.first() else { return false };
        let (key, uid) = (victim.candidate.key, victim.candidate.uid);
        let Some(measured) = measured.iter().find(|m| m.view.uid == *uid) else { return false };
        if !self.inputs.evictions.hurry(key, uid) {
            return false;
        }
        let (stop, now) = (HoldStop::AtOnce, clock::now());
        tracing::info!(pod = %key, signal = %acting.threshold.signal, "evicted, and its time to go is cut short");
        self.leaving = Some(Leaving::new(victim, &measured.pod, acting, stop, now));
        self.save().await;
        self.give_evictions();
        true
    }

    /// While a hard threshold of a disk is crossed, who goes for it has a second, whatever it was
    /// given: a runtime that takes its time to stop it would find the disk full, from which it
    /// can't remove anything.
    pub(super) async fn cut_short(&mut self, step: &Step, now: Now) {
        let hard_disk = |met: &Met| {
            met.threshold.signal.condition() == Pressure::Disk && met.threshold.is_hard()
        };
        if !step.met.iter().any(hard_disk) {
            return;
        }
        let hurried = self.inputs.evictions.hurry_all(Pressure::Disk, now);
        if hurried.is_empty() {
            return;
        }
        for pod in hurried {
            tracing::info!(%pod, "evicted, and killed now: a disk is short, and its second is over");
        }
        self.save().await;
        self.give_evictions();
    }

    fn pod_event(&self, key: &PodKey, uid: &PodUid, message: String, annotations: Annotations) {
        let target = EventTarget::Pod { key: key.clone(), uid: uid.clone(), field_path: None };
        let event = Event { target, kind: EventKind::Warning, reason: "Evicted", message };
        self.inputs.host.events.record_annotated(event, annotations);
    }

    /// Has pods measured that have a limit of their own.
    pub(super) fn look_for_limits(&mut self, layout: DiskLayout) {
        let exempt = self.effective.static_pods == StaticPods::Never;
        if self.effective.local_storage_limits && !exempt {
            self.survey(Purpose::Limits { layout });
        }
    }

    /// Pods that use more local storage than they may go, all of them.
    async fn enforce_limits(&mut self, layout: DiskLayout, measured: &[Measured]) -> bool {
        let candidates: Vec<Candidate<'_>> = measured.iter().map(Measured::candidate).collect();
        let over = over_limits(&candidates, layout, self.effective.static_pods);
        if over.is_empty() {
            return false;
        }
        let now = clock::now();
        for eviction in &over {
            let cause = Cause::Limit(eviction.limit);
            self.inputs.evictions.evict(&eviction.candidate, cause, eviction.hold.clone(), now);
        }
        self.save().await;
        self.give_evictions();
        for eviction in over {
            let (key, uid) = (eviction.candidate.key, eviction.candidate.uid);
            self.pod_event(key, uid, eviction.hold.message, Annotations::new());
        }
        self.state.acted(clock::now().boot);
        true
    }

    /// Looks whether the pod that was told to go is gone, and notes what came of it.
    pub(super) fn settle(&mut self, now: Now) -> bool {
        let Some(leaving) = &self.leaving else { return false };
        let late = now.boot.saturating_sub(leaving.since) > leaving.patience;
        if !late && leaving.gone.is_none() && !self.is_gone(leaving) {
            return false;
        }
        let signal = leaving.signal;
        // What it used was measured a while ago, and part of it by walking its files.
        let room = Awaited { signal, before: leaving.before, enough: leaving.expected / 2 };
        let gone = leaving.gone.unwrap_or_else(|| {
            self.inputs.disks.ask();
            now.boot
        });
        let freed = self.freed_since(&room, gone, now);
        let Some(leaving) = &mut self.leaving else { return false };
        leaving.gone = Some(gone);
        let Some(freed) = freed else { return false };
        self.state.acted(gone);
        // What is decided next is decided by another reading.
        self.inputs.disks.ask();
        let Some(leaving) = self.leaving.take() else { return false };
        let late = if late { ", which has not gone in time" } else { "" };
        tracing::info!(pod = %leaving.key, %signal, freed, expected = leaving.expected, "evicted{late}");
        self.history.step(ReliefView {
            at: now.wall,
            signal,
            what: format!("evicted {}{late}", leaving.key),
            freed,
            expected: Some(leaving.expected),
        });
        true
    }

    /// Memory and process ids are free when nothing runs in its cgroup, unless it has memory in
    /// volumes; room on disks when nothing of it is left.
    fn is_gone(&self, leaving: &Leaving) -> bool {
        let view = self.inputs.pods.borrow().get(&leaving.key).cloned();
        let cleared = view.is_none_or(|view| view.uid != leaving.uid || has_ended(&view));
        let disk = leaving.signal.condition() == Pressure::Disk;
        let volumes = self.inputs.host.volumes.empty_dirs(&leaving.pod, &leaving.uid);
        let in_memory = volumes.is_ok_and(|all| all.iter().any(|volume| volume.in_memory));
        if cleared || disk || in_memory {
            return cleared;
        }
        let dirs = self.inputs.host.cgroups.pod_dirs(&pod_cgroup_name(&leaving.pod));
        dirs.is_some_and(|dirs| signals::cgroup_tasks(&dirs.pids).is_ok_and(|tasks| tasks == 0))
    }
}

/// Whether the pod can use more local storage than it may.
pub(super) fn has_local_limit(pod: &k8s::Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let volumes = spec.volumes.iter().flatten();
    let mut volumes = volumes.filter_map(|volume| volume.empty_dir.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
    volumes.any(|volume| volume.size_limit.is_some())
        || limits.any(|limits| limits.contains_key("ephemeral-storage"))
}
