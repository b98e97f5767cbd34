//! Memory and process ids: one measurement of cgroups, then one pod.

use super::{
    Effects, Leaving, MeasurePurpose, MeasuredPod, Relief, ReliefAction, Seen, has_memory_volume,
    is_running,
};
use crate::{
    model::{HoldStop, PodView},
    pressure::core::{
        rank::rank,
        state::{Acting, PressureStep},
    },
};
use std::{sync::Arc, time::Duration};

/// The step for memory or process ids that is under way.
#[derive(Debug)]
pub(super) enum MemoryTrack {
    Idle,
    /// Cgroups are being measured. A pod that leaves for a soft threshold is kept meanwhile.
    Measuring(Acting, Option<Leaving>),
    Measured(Acting, Option<Leaving>, Vec<MeasuredPod>),
    Leaving(Leaving),
}

impl MemoryTrack {
    pub(super) fn leaving(&self) -> Option<&Leaving> {
        match self {
            Self::Idle => None,
            Self::Measuring(_, soft) | Self::Measured(_, soft, _) => soft.as_ref(),
            Self::Leaving(leaving) => Some(leaving),
        }
    }

    /// True when a step for a hard (or soft) threshold may begin.
    pub(super) fn allows(&self, hard: bool) -> bool {
        match self {
            Self::Idle => true,
            Self::Measuring(..) | Self::Measured(..) => false,
            Self::Leaving(leaving) => hard && leaving.soft,
        }
    }

    pub(super) fn fold(&mut self, pods: Vec<MeasuredPod>) {
        match std::mem::replace(self, Self::Idle) {
            Self::Measuring(acting, soft) => *self = Self::Measured(acting, soft, pods),
            other @ (Self::Idle | Self::Measured(..) | Self::Leaving(_)) => *self = other,
        }
    }
}

impl Relief {
    pub(super) fn measure_for_memory(
        &mut self,
        acting: &Acting,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) {
        let soft = match std::mem::replace(&mut self.memory, MemoryTrack::Idle) {
            MemoryTrack::Leaving(leaving) => Some(leaving),
            MemoryTrack::Measuring(_, soft) | MemoryTrack::Measured(_, soft, _) => soft,
            MemoryTrack::Idle => None,
        };
        self.memory = MemoryTrack::Measuring(*acting, soft);
        // The candidates, and the pods that were given time to stop.
        let wanted = seen.pods.values().filter(|view| {
            let at_once = self.evictions.stop_of(&view.key, &view.uid) == Some(HoldStop::AtOnce);
            !at_once && !view.has_stopped() && has_memory_of_its_own(view)
        });
        let pods = wanted.cloned().collect();
        effects.actions.push(ReliefAction::Measure { purpose: MeasurePurpose::Cgroups, pods });
    }

    /// Evicts a pod by a measurement of cgroups. Returns true when a pod was told to stop.
    pub(super) fn evict_for_memory(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        let (acting, pods) = match std::mem::replace(&mut self.memory, MemoryTrack::Idle) {
            MemoryTrack::Measured(acting, soft, pods) => {
                self.memory = soft.map_or(MemoryTrack::Idle, MemoryTrack::Leaving);
                (acting, pods)
            }
            other @ (MemoryTrack::Idle | MemoryTrack::Measuring(..) | MemoryTrack::Leaving(_)) => {
                self.memory = other;
                return false;
            }
        };
        if !self.is_current(&acting, step) || !self.may_act(&acting, seen.now) {
            return false;
        }
        if acting.threshold.is_hard() && self.hurry(&acting, &pods, seen, effects) {
            return true;
        }
        let leaving = self.evict_first(&acting, &pods, Duration::ZERO, seen, effects);
        let Some(leaving) = leaving else { return false };
        self.memory = MemoryTrack::Leaving(leaving);
        true
    }

    /// Before another pod is evicted, a pod that was evicted with a grace period (for a soft
    /// threshold, a disk or its own limit, also by an earlier run of the agent) loses the rest of
    /// it.
    fn hurry(
        &mut self,
        acting: &Acting,
        pods: &[MeasuredPod],
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        let going = pods.iter().filter(|measured| {
            let stop = self.evictions.stop_of(&measured.view.key, &measured.view.uid);
            let is_going = is_running(&measured.view, seen);
            is_going && stop.is_some_and(|stop| stop != HoldStop::AtOnce)
        });
        let going: Vec<_> = going.map(MeasuredPod::candidate).collect();
        let ranking = rank(&going, acting, seen.layout, seen.settings.static_pods);
        let Some(victim) = ranking.victims.first() else { return false };
        let (key, uid) = (victim.candidate.key, victim.candidate.uid);
        if !self.evictions.hurry(key, uid, seen.now) {
            return false;
        }
        let leaving = Leaving::new(victim, acting, HoldStop::AtOnce, seen.now);
        self.memory = MemoryTrack::Leaving(leaving);
        self.note_hurried(vec![key.clone()], seen.now, effects);
        true
    }

    /// Returns true when the pod that was waited for has ended.
    pub(super) fn finish_memory(&mut self, seen: &Seen<'_>, effects: &mut Effects) -> bool {
        let MemoryTrack::Leaving(leaving) = &mut self.memory else { return false };
        let Some(left) = leaving.observe(seen, effects) else { return false };
        self.memory = MemoryTrack::Idle;
        self.state.acted(left.at);
        effects.actions.push(ReliefAction::ReportStep(left.report));
        true
    }
}

/// False for a pod without a running container and without a volume in memory: what its cgroup
/// shows is used by the runtime, which starts a container.
fn has_memory_of_its_own(view: &Arc<PodView>) -> bool {
    view.containers.iter().any(|container| container.running_since.is_some())
        || view.pod.as_deref().is_some_and(has_memory_volume)
}
