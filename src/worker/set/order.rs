//! The start order: how far pods have got, and which pods wait for them.

use super::{Handle, State};
use crate::{
    admission::Progress,
    model::{DesiredPod, PodKey, PodView, TerminalPhase},
};
use std::{collections::BTreeMap, sync::Arc};

/// How far the incarnation has got that a view shows.
pub(super) fn progress(view: &PodView) -> Progress {
    let status = &view.status;
    let is_ready = || {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    match TerminalPhase::of(status) {
        _ if view.terminating => Progress::NotReady,
        Some(TerminalPhase::Succeeded) => Progress::Succeeded,
        Some(TerminalPhase::Failed) => Progress::Failed(status.reason.clone()),
        None if is_ready() => Progress::Ready,
        None => Progress::NotReady,
    }
}

impl Handle {
    fn shows(&self, pod: &DesiredPod) -> bool {
        self.shown.as_ref() == Some(&pod.uid)
    }
}

impl State {
    /// Why wished pods wait for others. Nothing is said of a pod that runs or has ended for good.
    pub(super) fn waits_for_others(&self) -> BTreeMap<PodKey, Arc<str>> {
        let mut waits = self.order.waits(&|pod| self.progress_of(pod));
        waits.retain(|key, _| self.desired.pods.get(key).is_some_and(|pod| !self.is_settled(pod)));
        waits
    }

    fn is_settled(&self, pod: &DesiredPod) -> bool {
        let shown = self.workers.get(&pod.key).filter(|handle| handle.shows(pod));
        let mut recorded = self.recorded(&pod.key).iter();
        shown.is_some_and(|handle| handle.alive)
            || recorded.any(|recorded| recorded.uid == pod.uid && recorded.ended)
    }

    /// The progress of the wished revision, or of the old one that runs on while an update waits.
    fn progress_of(&self, pod: &DesiredPod) -> Progress {
        let shown = self.workers.get(&pod.key);
        let shown = shown.filter(|handle| handle.shows(pod) || handle.update_waits);
        shown.map(|handle| handle.progress.clone()).unwrap_or_default()
    }
}
