//! An evicted pod that is stopping, and the amount that a step must free.

use super::{Effects, ReliefAction, SLOW_PAUSE, Seen, has_memory_volume};
use crate::{
    model::{HoldStop, Now, PodKey, PodUid, Pressure, ReliefView, Signal, k8s},
    podspec::is_static,
    pressure::core::{comeback::patience, rank::Victim, state::Acting},
};
use std::{sync::Arc, time::Duration};

/// How long a reading may take to show the freed amount after everything was removed. A runtime
/// frees writable layers some time after it has reported their removal.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// The amount that a step must free before the next step is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedRoom {
    pub signal: Signal,
    /// The available amount before the step.
    pub before: u64,
    /// On a disk, the next step waits until this much more is available.
    pub enough: u64,
}

impl ExpectedRoom {
    /// The amount that was freed, by a reading after `ended`: `None` while the reading is awaited,
    /// `Some(None)` when it did not arrive in time.
    pub(super) fn freed(&self, ended: Duration, seen: &Seen<'_>) -> Option<Option<u64>> {
        let reading = seen.readings.get(&self.signal).filter(|reading| reading.at > ended);
        let freed = reading.map(|reading| reading.available.saturating_sub(self.before));
        let disk = self.signal.condition() == Pressure::Disk;
        let enough = freed.is_some_and(|freed| !disk || freed >= self.enough);
        let late = seen.now.boot.saturating_sub(ended) >= ROOM_PATIENCE;
        (enough || late).then_some(freed)
    }
}

/// An evicted pod that is stopping.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    key: PodKey,
    pub uid: PodUid,
    pub pod: Arc<k8s::Pod>,
    /// It was evicted for a soft threshold and has a grace period.
    pub soft: bool,
    patience: Duration,
    room: ExpectedRoom,
    /// Its usage of the signal's resource.
    used: u64,
    since: Duration,
    /// Boot time at which it was seen to be gone, or the patience was over.
    ended: Option<Duration>,
}

/// The end of a pod that was awaited.
#[derive(Clone, Debug)]
pub(super) struct Left {
    /// Boot time of its end.
    pub at: Duration,
    pub report: ReliefView,
}

impl Leaving {
    pub(super) fn new(victim: &Victim<'_>, acting: &Acting, stop: HoldStop, now: Now) -> Self {
        Self {
            key: victim.candidate.key.clone(),
            uid: victim.candidate.uid.clone(),
            pod: Arc::clone(victim.candidate.pod),
            soft: !acting.threshold.is_hard(),
            patience: patience(stop),
            room: ExpectedRoom {
                signal: acting.threshold.signal,
                before: acting.reading.available,
                // The usage was measured some time ago, and partly by walking directories.
                enough: victim.used / 2,
            },
            used: victim.used,
            since: now.boot,
            ended: None,
        }
    }

    /// The grace period of these pods was cut short, so it is waited for from now on, and not long.
    pub(super) fn hurry(&mut self, hurried: &[PodKey], now: Now) {
        if hurried.contains(&self.key) {
            (self.since, self.patience) = (now.boot, patience(HoldStop::AtOnce));
        }
    }

    /// True when its grace period is nearly over, or it has ended.
    pub(super) fn is_ending(&self, boot: Duration) -> bool {
        let grace = self.patience.saturating_sub(patience(HoldStop::AtOnce));
        let near = self.since.saturating_add(grace).saturating_sub(SLOW_PAUSE);
        self.ended.is_some() || boot >= near
    }

    /// Returns the end of the pod once its effect shows, or its patience is over.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, effects: &mut Effects) -> Option<Left> {
        let late = seen.now.boot.saturating_sub(self.since) > self.patience;
        if self.ended.is_none() {
            let gone = self.is_gone(seen);
            if !late && !gone {
                return None;
            }
            if !gone {
                let (key, uid) = (self.key.clone(), self.uid.clone());
                effects.actions.push(ReliefAction::ReportLate { key, uid });
            }
            effects.read_disks = true;
        }
        let ended = *self.ended.get_or_insert(seen.now.boot);
        let freed = self.room.freed(ended, seen)?;
        // The next decision needs a newer reading.
        effects.read_disks = true;
        let late = if late { ", which did not stop in time" } else { "" };
        let report = ReliefView {
            at: seen.now.wall,
            signal: self.room.signal,
            what: format!("evicted {}{late}", self.key),
            freed,
            expected: Some(self.used),
        };
        Some(Left { at: ended, report })
    }

    /// Memory and process ids are free when the cgroup has no tasks, unless the pod has a volume in
    /// memory. Room on a disk is free when nothing of the pod is left. A pod that had ended before
    /// its eviction keeps its dead containers.
    fn is_gone(&self, seen: &Seen<'_>) -> bool {
        let view = seen.pods.get(&self.key).filter(|view| view.uid == self.uid);
        let Some(view) = view else { return true };
        let disk = self.room.signal.condition() == Pressure::Disk;
        let in_memory = has_memory_volume(&self.pod);
        // The view of a pod of the API server stays as long as its object.
        let gone = match (!is_static(&self.pod), disk) {
            (false, _) => view.has_stopped(),
            (true, false) => view.has_stopped() && (view.stopped || !in_memory),
            (true, true) => {
                let is_evicted = view.status.reason.as_deref() == Some("Evicted");
                view.stopped && (view.containers.is_empty() || !is_evicted)
            }
        };
        gone || !disk && !in_memory && seen.without_tasks.contains(&self.uid)
    }
}
