//! Disks: dead containers are removed first, then unused images, then one pod is evicted.

use super::{
    Effects, ImagesFreed, Leaving, MeasurePurpose, MeasuredPod, Relief, ReliefAction, Seen,
    leaving::ExpectedRoom,
};
use crate::{
    model::{DiskLayout, Now, Pressure, ReliefView, Signal},
    pressure::core::state::{Acting, PressureStep},
};
use std::{collections::BTreeMap, time::Duration};

/// How long the removal of dead containers may take before the next step.
const DEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long the removal of images may take before the next step.
const IMAGES_PATIENCE: Duration = Duration::from_secs(30);
/// The time between two removals of the same kind.
const PERIOD: Duration = Duration::from_secs(60);

/// The step for a disk that is under way, and the last removals.
#[derive(Debug, Default)]
pub(super) struct DiskTrack {
    step: DiskStep,
    /// Boot time of the last removal of dead containers.
    dead_removed: Option<Duration>,
    /// Boot time of the last removal of images for each signal, unless it freed what was missing:
    /// then there may be more unused images.
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
    FreeingImages {
        signal: Signal,
        expected: u64,
        since: Duration,
        freed: Option<ImagesFreed>,
    },
    Measuring(Acting),
    Measured(Acting, Vec<MeasuredPod>),
    Leaving(Leaving),
}

impl DiskTrack {
    pub(super) fn leaving(&self) -> Option<&Leaving> {
        match &self.step {
            DiskStep::Leaving(leaving) => Some(leaving),
            DiskStep::Idle
            | DiskStep::ClearingDead { .. }
            | DiskStep::FreeingImages { .. }
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

    pub(super) fn is_measuring(&self) -> bool {
        matches!(self.step, DiskStep::Measuring(_) | DiskStep::Measured(..))
    }

    /// True while a step changes what is on a disk. A pod that leaves may have time until then.
    pub(super) fn is_active(&self, boot: Duration) -> bool {
        match &self.step {
            DiskStep::Idle | DiskStep::Measuring(_) | DiskStep::Measured(..) => false,
            DiskStep::ClearingDead { .. } | DiskStep::FreeingImages { .. } => true,
            DiskStep::Leaving(leaving) => leaving.is_ending(boot),
        }
    }

    pub(super) fn fold_pods(&mut self, pods: Vec<MeasuredPod>) {
        if let DiskStep::Measuring(acting) = self.step {
            self.step = DiskStep::Measured(acting, pods);
        }
    }

    pub(super) fn fold_images(&mut self, result: Option<ImagesFreed>) {
        if let DiskStep::FreeingImages { freed, .. } = &mut self.step {
            match result {
                Some(result) => *freed = Some(result),
                None => self.step = DiskStep::Idle,
            }
        }
    }

    /// Begins to remove dead containers, unless that was just tried or could not help.
    fn clear_dead(&mut self, acting: &Acting, seen: &Seen<'_>) -> bool {
        let signal = acting.threshold.signal;
        // On a file system that has only images, containers have nothing.
        let useless = seen.layout == DiskLayout::Split && is_of_images(signal);
        if seen.dead_containers == 0 || is_recent(self.dead_removed, seen.now) || useless {
            return false;
        }
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
        true
    }

    /// Begins to remove images, unless that was just tried or could not help.
    fn free_images(&mut self, acting: &Acting, seen: &Seen<'_>, effects: &mut Effects) -> bool {
        let signal = acting.threshold.signal;
        let recent = is_recent(self.images_removed.get(&signal).copied(), seen.now);
        if recent || !images_help(signal, seen.layout) {
            return false;
        }
        self.images_removed.insert(signal, seen.now.boot);
        let (expected, since) = (acting.shortfall, seen.now.boot);
        self.step = DiskStep::FreeingImages { signal, expected, since, freed: None };
        let bytes = counts_bytes(signal).then_some(acting.shortfall);
        effects.actions.push(ReliefAction::FreeImages { bytes });
        true
    }
}

impl Relief {
    pub(super) fn relieve_disk(&mut self, acting: &Acting, seen: &Seen<'_>, effects: &mut Effects) {
        if self.disk.clear_dead(acting, seen) || self.disk.free_images(acting, seen, effects) {
            return;
        }
        self.disk.step = DiskStep::Measuring(*acting);
        let pods = self.candidates(seen).cloned().collect();
        effects.actions.push(ReliefAction::Measure { purpose: MeasurePurpose::Disk, pods });
    }

    /// Evicts a pod by a measurement of disks. Returns true when a pod was told to stop.
    pub(super) fn evict_for_disk(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        if !matches!(self.disk.step, DiskStep::Measured(..)) {
            return false;
        }
        let DiskStep::Measured(acting, pods) = std::mem::take(&mut self.disk.step) else {
            return false;
        };
        if !self.is_current(&acting, step) || !self.may_act(&acting, seen.now) {
            return false;
        }
        let Some(leaving) = self.evict_first(&acting, &pods, seen, effects) else { return false };
        self.disk.step = DiskStep::Leaving(leaving);
        true
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
            DiskStep::FreeingImages { signal, expected, since, freed } => {
                let late = seen.now.boot.saturating_sub(*since) >= IMAGES_PATIENCE;
                let freed = freed.or_else(|| late.then(ImagesFreed::default));
                let report = |freed: ImagesFreed| ReliefView {
                    at: seen.now.wall,
                    signal: *signal,
                    what: format!("removed {} unused images", freed.images),
                    freed: counts_bytes(*signal).then_some(freed.bytes),
                    expected: Some(*expected),
                };
                freed.map(|freed| (seen.now.boot, report(freed)))
            }
        };
        let Some((at, report)) = ended else { return false };
        match &self.disk.step {
            DiskStep::ClearingDead { .. } => self.disk.dead_removed = Some(seen.now.boot),
            // A pod that had ended before its eviction leaves dead containers.
            DiskStep::Leaving(_) => self.disk.dead_removed = None,
            // Ends with the last unused image, because each of these steps removed one.
            DiskStep::FreeingImages { signal, expected, freed: Some(freed), .. }
                if counts_bytes(*signal) && freed.images > 0 && freed.bytes >= *expected =>
            {
                self.disk.images_removed.remove(signal);
            }
            DiskStep::Idle
            | DiskStep::Measuring(_)
            | DiskStep::Measured(..)
            | DiskStep::FreeingImages { .. } => {}
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
        effects.save |= !hurried.is_empty();
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
        DiskLayout::DedicatedImages => !of_root,
        DiskLayout::Split => is_of_images(signal),
    }
}
