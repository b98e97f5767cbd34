//! The pods' own limits on local storage, which are checked while no pod leaves, and by each
//! measurement for a disk.

use super::{Effects, LONGEST_PAUSE, MeasurePurpose, MeasuredPod, Relief, ReliefAction, Seen};
use crate::{
    model::k8s,
    podspec::is_static,
    pressure::core::{comeback::Cause, limits::over_limits, settings::StaticPods},
};
use std::{collections::BTreeMap, time::Duration};

/// The check that is under way, and the boot time of the next one.
#[derive(Debug, Default)]
pub(super) struct LimitsTrack {
    due: Duration,
    check: LimitsCheck,
}

#[derive(Debug, Default)]
enum LimitsCheck {
    #[default]
    Idle,
    Measuring,
    Measured(Vec<MeasuredPod>),
}

impl LimitsTrack {
    pub(super) fn is_measuring(&self) -> bool {
        !matches!(self.check, LimitsCheck::Idle)
    }

    pub(super) fn fold(&mut self, pods: Vec<MeasuredPod>) {
        if matches!(self.check, LimitsCheck::Measuring) {
            self.check = LimitsCheck::Measured(pods);
        }
    }
}

impl Relief {
    /// Begins a check when it is due and nothing else is measured.
    pub(super) fn check_limits(&mut self, seen: &Seen<'_>, effects: &mut Effects) {
        let leaving = self.memory.leaving().is_some() || self.disk.leaving().is_some();
        let measuring = self.disk.is_measuring() || self.limits.is_measuring();
        if leaving || measuring || seen.now.boot < self.limits.due {
            return;
        }
        self.limits.due = seen.now.boot.saturating_add(LONGEST_PAUSE);
        if !seen.settings.local_storage_limits {
            return;
        }
        let static_too = seen.settings.static_pods != StaticPods::Never;
        let may_go = |pod: &k8s::Pod| static_too || !is_static(pod);
        let pods = self.candidates(seen);
        let mut pods = pods.filter(|view| view.pod.as_deref().is_some_and(may_go)).peekable();
        if pods.peek().is_none() {
            return;
        }
        // Also when no pod has a limit: every measurement finds out where new containers write, and
        // an eviction for a disk needs that.
        let limited = pods.filter(|view| view.pod.as_deref().is_some_and(has_local_limit));
        let pods = limited.cloned().collect();
        self.limits.check = LimitsCheck::Measuring;
        effects.actions.push(ReliefAction::Measure { purpose: MeasurePurpose::Limits, pods });
    }

    /// Evicts every pod above a limit of its own. Returns true when there is one.
    pub(super) fn evict_for_limits(&mut self, seen: &Seen<'_>, effects: &mut Effects) -> bool {
        if !matches!(self.limits.check, LimitsCheck::Measured(_)) {
            return false;
        }
        let LimitsCheck::Measured(pods) = std::mem::take(&mut self.limits.check) else {
            return false;
        };
        self.evict_over_limits(&pods, seen, effects)
    }

    /// Evicts every one of the measured pods that is above a limit of its own. Returns true when
    /// there is one.
    pub(super) fn evict_over_limits(
        &mut self,
        pods: &[MeasuredPod],
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        if !seen.settings.local_storage_limits {
            return false;
        }
        // Counted from the end: without a pause, long checks would leave the disks no turn.
        self.limits.due = seen.now.boot.saturating_add(LONGEST_PAUSE);
        let candidates = self.still_candidates(pods, seen);
        let over = over_limits(&candidates, seen.layout, seen.settings.static_pods);
        if over.is_empty() {
            return false;
        }
        for eviction in over {
            let (key, uid) = (eviction.candidate.key.clone(), eviction.candidate.uid.clone());
            let message = eviction.hold.message.clone();
            let cause = Cause::Limit(eviction.limit);
            self.evictions.evict(&eviction.candidate, cause, eviction.hold, seen.now);
            effects.actions.push(ReliefAction::ReportEviction {
                key,
                uid,
                cause,
                read_at: None,
                message,
                annotations: BTreeMap::new(),
            });
        }
        effects.save = true;
        self.state.acted(seen.now.boot);
        true
    }
}

/// True when the pod can exceed a limit on local storage.
fn has_local_limit(pod: &k8s::Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let volumes = spec.volumes.iter().flatten();
    let mut volumes = volumes.filter_map(|volume| volume.empty_dir.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
    volumes.any(|volume| volume.size_limit.is_some())
        || limits.any(|limits| limits.contains_key("ephemeral-storage"))
}
