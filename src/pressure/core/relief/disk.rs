//! Disks: dead containers are removed first, then unused images. Then pods above their own limits are
//! evicted, or else one pod.

use super::{
    Effects, ImagesFreed, Leaving, MeasurePurpose, MeasuredPod, Relief, ReliefAction, Seen,
    leaving::ExpectedRoom,
};
use crate::{
    model::{DiskLayout, Now, Order as _, PodKey, Pressure, ReliefView, Signal},
    pressure::core::state::{Acting, PressureStep},
};
use std::{collections::BTreeMap, time::Duration};

/// How long the removal of dead containers may take before the next step.
const DEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long the next step waits for the removal of images while that makes no room.
const IMAGES_PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits at most. A slow disk needs minutes for large images.
const IMAGES_LIMIT: Duration = Duration::from_secs(180);
/// The time between two removals of the same kind.
const PERIOD: Duration = Duration::from_secs(60);

/// The step for a disk that is under way, and the last removals.
#[derive(Debug, Default)]
pub(super) struct DiskTrack {
    step: DiskStep,
    /// Boot time of the last removal of dead containers.
    dead_removed: Option<Duration>,
    /// Boot time of the last removal of images for each signal, unless that has freed enough.
    images_removed: BTreeMap<Signal, Duration>,
}

#[derive(Debug, Default)]
enum DiskStep {
    #[default]
    Idle,
    ClearingDead {
        room: ExpectedRoom,
        /// Dead containers at the beginning.
        dead: usize,
        since: Duration,
        /// Boot time at which they were seen to be removed.
        ended: Option<Duration>,
    },
    FreeingImages(ImageRemoval),
    Measuring(Measurement),
    Measured(Measurement, Vec<MeasuredPod>),
    Leaving(Leaving),
}

/// A measurement of the disks.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// Why it was begun.
    acting: Acting,
    /// Boot time.
    since: Duration,
}

/// A removal of images that is awaited.
#[derive(Debug)]
struct ImageRemoval {
    signal: Signal,
    expected: u64,
    since: Duration,
    /// The largest available amount of all readings since the removal began.
    most: u64,
    /// Boot time of the first of those readings.
    grew: Duration,
    freed: Option<ImagesFreed>,
}

impl ImageRemoval {
    /// Notes whether the removal makes room. True when it is not awaited any longer.
    fn is_late(&mut self, seen: &Seen<'_>) -> bool {
        let reading = seen.readings.get(&self.signal);
        if let Some(reading) = reading.filter(|reading| reading.available > self.most) {
            (self.most, self.grew) = (reading.available, reading.at);
        }
        let passed = |since| seen.now.boot.saturating_sub(since);
        passed(self.grew) >= IMAGES_PATIENCE || passed(self.since) >= IMAGES_LIMIT
    }

    /// True when enough was freed. Then there may be more unused images.
    fn was_enough(&self) -> bool {
        let enough = |freed: ImagesFreed| freed.images > 0 && freed.bytes >= self.expected;
        // For inodes, all unused images are removed.
        counts_bytes(self.signal) && self.freed.is_some_and(enough)
    }

    fn report(&self, now: Now) -> ReliefView {
        let what = match self.freed {
            Some(freed) => format!("removed {} unused images", freed.images),
            None => "the removal of unused images is still under way".to_owned(),
        };
        ReliefView {
            at: now.wall,
            signal: self.signal,
            what,
            freed: self.freed.filter(|_| counts_bytes(self.signal)).map(|freed| freed.bytes),
            expected: Some(self.expected),
        }
    }
}

impl DiskTrack {
    pub(super) fn leaving(&self) -> Option<&Leaving> {
        match &self.step {
            DiskStep::Leaving(leaving) => Some(leaving),
            DiskStep::Idle
            | DiskStep::ClearingDead { .. }
            | DiskStep::FreeingImages(_)
            | DiskStep::Measuring(_)
            | DiskStep::Measured(..) => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, DiskStep::Idle)
    }

    pub(super) fn is_clearing_dead(&self) -> bool {
        matches!(self.step, DiskStep::ClearingDead { .. })
    }

    pub(super) fn is_freeing_images(&self) -> bool {
        matches!(self.step, DiskStep::FreeingImages(_))
    }

    pub(super) fn is_measuring(&self) -> bool {
        matches!(self.step, DiskStep::Measuring(_) | DiskStep::Measured(..))
    }

    /// True while a step changes what is on a disk. A pod that leaves may have time until then.
    pub(super) fn is_active(&self, boot: Duration) -> bool {
        match &self.step {
            DiskStep::Idle | DiskStep::Measuring(_) | DiskStep::Measured(..) => false,
            DiskStep::ClearingDead { .. } | DiskStep::FreeingImages(_) => true,
            DiskStep::Leaving(leaving) => leaving.is_ending(boot),
        }
    }

    pub(super) fn fold_pods(&mut self, pods: Vec<MeasuredPod>) {
        if let DiskStep::Measuring(measurement) = self.step {
            self.step = DiskStep::Measured(measurement, pods);
        }
    }

    pub(super) fn fold_images(&mut self, result: Option<ImagesFreed>) {
        if let DiskStep::FreeingImages(removal) = &mut self.step {
            match result {
                Some(result) => removal.freed = Some(result),
                None => self.step = DiskStep::Idle,
            }
        }
    }

    /// True when something else than a pod is left to remove for this signal.
    pub(super) fn may_remove(&self, signal: Signal, seen: &Seen<'_>) -> bool {
        self.may_clear_dead(signal, seen) || self.may_free_images(signal, seen)
    }

    /// True when dead containers are to be removed for this signal: that was not just tried, and
    /// may help.
    fn may_clear_dead(&self, signal: Signal, seen: &Seen<'_>) -> bool {
        // On a file system that has only images, containers have nothing.
        let useless = seen.layout == DiskLayout::Split && is_of_images(signal);
        seen.dead_containers > 0 && !is_recent(self.dead_removed, seen.now) && !useless
    }

    /// The same for unused images.
    fn may_free_images(&self, signal: Signal, seen: &Seen<'_>) -> bool {
        let recent = is_recent(self.images_removed.get(&signal).copied(), seen.now);
        !recent && images_help(signal, seen.layout)
    }

    /// Begins to remove dead containers.
    fn clear_dead(&mut self, acting: &Acting, seen: &Seen<'_>) {
        let signal = acting.threshold.signal;
        self.dead_removed = Some(seen.now.boot);
        self.step = DiskStep::ClearingDead {
            // The size of the containers is unknown. Everything that is missing is enough.
            room: ExpectedRoom {
                signal,
                before: acting.reading.available,
                enough: acting.shortfall,
            },
            dead: seen.dead_containers,
            since: seen.now.boot,
            ended: None,
        };
    }

    /// Begins to remove unused images.
    fn free_images(&mut self, acting: &Acting, seen: &Seen<'_>, effects: &mut Effects) {
        let signal = acting.threshold.signal;
        self.images_removed.insert(signal, seen.now.boot);
        self.step = DiskStep::FreeingImages(ImageRemoval {
            signal,
            expected: acting.shortfall,
            since: seen.now.boot,
            most: acting.reading.available,
            grew: seen.now.boot,
            freed: None,
        });
        let bytes = counts_bytes(signal).then_some(acting.shortfall);
        effects.actions.push(ReliefAction::FreeImages { bytes });
    }
}

impl Relief {
    pub(super) fn relieve_disk(&mut self, acting: &Acting, seen: &Seen<'_>, effects: &mut Effects) {
        let signal = acting.threshold.signal;
        if self.disk.may_clear_dead(signal, seen) {
            self.disk.clear_dead(acting, seen);
        } else if self.disk.may_free_images(signal, seen) {
            self.disk.free_images(acting, seen, effects);
        } else {
            let measurement = Measurement { acting: *acting, since: seen.now.boot };
            self.disk.step = DiskStep::Measuring(measurement);
            let pods = self.candidates(seen).cloned().collect();
            effects.actions.push(ReliefAction::Measure { purpose: MeasurePurpose::Disk, pods });
        }
    }

    /// Evicts pods by a measurement of disks: those above their own limits, or else one for a
    /// threshold of a disk. Returns true when a pod was told to stop.
    pub(super) fn evict_for_disk(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        if !matches!(self.disk.step, DiskStep::Measured(..)) {
            return false;
        }
        let DiskStep::Measured(measurement, pods) = std::mem::take(&mut self.disk.step) else {
            return false;
        };
        if self.evict_over_limits(&pods, seen, effects) {
            return true;
        }
        let took = seen.now.boot.saturating_sub(measurement.since);
        for acting in self.decided_by(&measurement, step, seen) {
            if let Some(leaving) = self.evict_first(&acting, &pods, took, seen, effects) {
                self.disk.step = DiskStep::Leaving(leaving);
                return true;
            }
        }
        false
    }

    /// The thresholds that a measurement can decide about, hard ones first: the one for which it was
    /// begun, and others for which nothing but a pod is left to remove.
    fn decided_by(
        &self,
        measurement: &Measurement,
        step: &PressureStep,
        seen: &Seen<'_>,
    ) -> Vec<Acting> {
        let first = measurement.acting;
        if self.state.is_outdated(first.reading.at) {
            return Vec::new();
        }
        let others = step.acting.iter().filter(|other| {
            let signal = other.threshold.signal;
            other.threshold != first.threshold
                && signal.condition() == Pressure::Disk
                && !self.disk.may_remove(signal, seen)
        });
        let first = [first].into_iter().filter(|first| self.is_current(first, step));
        let all = first.chain(others.copied());
        let mut all: Vec<Acting> = all.filter(|acting| self.may_act(acting, seen.now)).collect();
        all.order_by_key(|acting| !acting.threshold.is_hard());
        all
    }

    /// Returns true when the step under way has ended.
    pub(super) fn finish_disk(&mut self, seen: &Seen<'_>, effects: &mut Effects) -> bool {
        let ended = match &mut self.disk.step {
            DiskStep::Idle | DiskStep::Measuring(_) | DiskStep::Measured(..) => None,
            DiskStep::Leaving(leaving) => {
                leaving.observe(seen, effects).map(|left| (left.at, left.report))
            }
            DiskStep::ClearingDead { room, dead, since, ended } => {
                let left = seen.dead_containers;
                let late = seen.now.boot.saturating_sub(*since) >= DEAD_PATIENCE;
                if ended.is_none() && (left == 0 || late) {
                    *ended = Some(seen.now.boot);
                    effects.read_disks = true;
                }
                let freed = ended.and_then(|at| Some((at, room.freed(at, seen)?)));
                let report = |freed| {
                    let removed = dead.saturating_sub(left);
                    let containers = if removed == 1 { "container" } else { "containers" };
                    let what = format!("removed {removed} dead {containers}");
                    ReliefView {
                        at: seen.now.wall,
                        signal: room.signal,
                        what,
                        freed,
                        expected: None,
                    }
                };
                freed.map(|(at, freed)| (at, report(freed)))
            }
            DiskStep::FreeingImages(removal) => {
                let ended = removal.freed.is_some() || removal.is_late(seen);
                ended.then(|| (seen.now.boot, removal.report(seen.now)))
            }
        };
        let Some((at, report)) = ended else { return false };
        match &self.disk.step {
            DiskStep::ClearingDead { .. } => self.disk.dead_removed = Some(seen.now.boot),
            // The pod leaves dead containers if it had ended before, and images that nobody uses.
            DiskStep::Leaving(_) => {
                self.disk.dead_removed = None;
                self.disk.images_removed.clear();
            }
            // This ends with the last unused image, because each such step has removed one.
            DiskStep::FreeingImages(removal) if removal.was_enough() => {
                self.disk.images_removed.remove(&removal.signal);
            }
            // One that is still under way, or hangs, is one for all signals.
            DiskStep::FreeingImages(ImageRemoval { freed: None, .. }) => {
                let tried = Signal::ALL.map(|signal| (signal, seen.now.boot));
                self.disk.images_removed.extend(tried);
            }
            DiskStep::FreeingImages(removal) => {
                self.disk.images_removed.insert(removal.signal, seen.now.boot);
            }
            DiskStep::Idle | DiskStep::Measuring(_) | DiskStep::Measured(..) => {}
        }
        self.disk.step = DiskStep::Idle;
        self.state.acted(at);
        effects.read_disks = true;
        effects.actions.push(ReliefAction::ReportStep(report));
        true
    }

    /// While a hard threshold of a disk is crossed, a pod that was evicted for it is killed after
    /// one second, whatever its grace period: a runtime that takes long to stop it would find a
    /// full disk, from which it can't remove anything.
    pub(super) fn hurry_for_disk(&mut self, step: &PressureStep, now: Now, effects: &mut Effects) {
        let short = step.met.iter().any(|met| {
            met.threshold.signal.condition() == Pressure::Disk && met.threshold.is_hard()
        });
        if !short {
            return;
        }
        let hurried = self.evictions.hurry_all(Pressure::Disk, now);
        self.note_hurried(hurried, now, effects);
    }

    /// The grace periods of these pods were cut short, so that the disk track waits less long, too.
    pub(super) fn note_hurried(&mut self, hurried: Vec<PodKey>, now: Now, effects: &mut Effects) {
        effects.save |= !hurried.is_empty();
        if let DiskStep::Leaving(leaving) = &mut self.disk.step {
            leaving.hurry(&hurried, now);
        }
        effects.actions.extend(hurried.into_iter().map(ReliefAction::ReportHurried));
    }
}

fn is_recent(last: Option<Duration>, now: Now) -> bool {
    last.is_some_and(|last| now.boot.saturating_sub(last) < PERIOD)
}

fn counts_bytes(signal: Signal) -> bool {
    signal.resource() == "ephemeral-storage"
}

fn is_of_images(signal: Signal) -> bool {
    matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree)
}

/// True when images lie on the file system of a signal.
fn images_help(signal: Signal, layout: DiskLayout) -> bool {
    let of_root = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
    match layout {
        DiskLayout::Single => true,
        DiskLayout::LayersElsewhere { images_on_root } => images_on_root,
        DiskLayout::DedicatedImages => !of_root,
        DiskLayout::Split => is_of_images(signal),
    }
}
