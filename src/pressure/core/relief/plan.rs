//! What a round of [`super::Relief`] reads, what it plans, and the results that it takes in.

use crate::{
    model::{
        DiskLayout, Known, Now, PodKey, PodUid, PodUse, PodView, PressureOrders, Readings,
        ReliefView, Signal, k8s, priority_of,
    },
    pressure::core::{
        comeback::Cause,
        rank::{Candidate, Spare},
        settings::EvictionSettings,
        state::{Acting, Change, PressureStep},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The inputs of one round.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The settings as they apply to this machine ([`EvictionSettings::on_machine`]).
    pub settings: &'a EvictionSettings,
    /// On which file systems images and writable layers lie.
    pub layout: DiskLayout,
    /// The latest reading of each signal.
    pub readings: &'a Readings,
    /// The cgroup of all pods can be read, or the configuration has none.
    pub kubepods_known: bool,
    /// The published view of every pod.
    pub pods: &'a BTreeMap<PodKey, Arc<PodView>>,
    /// Which pods are wished or still there.
    pub known: &'a Known,
    /// The number of dead containers that are kept only for people to read.
    pub dead_containers: usize,
    /// The pods of [`Relief::leaving`] whose cgroups have no tasks.
    pub without_tasks: &'a BTreeSet<PodUid>,
    /// The time of this round.
    pub now: Now,
}

/// A pod with what it uses.
#[derive(Clone, Debug)]
pub struct MeasuredPod {
    /// The published view that named the pod.
    pub view: Arc<PodView>,
    /// Its specification.
    pub pod: Arc<k8s::Pod>,
    /// What it uses.
    pub usage: PodUse,
    /// One sentence for each part that could not be measured completely.
    pub missing: Vec<String>,
}

impl MeasuredPod {
    pub(super) fn candidate(&self) -> Candidate<'_> {
        Candidate {
            pod: &self.pod,
            key: &self.view.key,
            uid: &self.view.uid,
            priority: priority_of(&self.pod),
            usage: &self.usage,
        }
    }
}

/// The purpose of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurePurpose {
    /// A threshold of memory or process ids is crossed: only cgroups are read.
    Cgroups,
    /// A threshold of a disk is crossed: directories and writable layers are measured as well.
    Disk,
    /// The pods' own limits are checked: the same parts as for a disk.
    Limits,
}

/// An action of a [`ReliefPlan`].
#[derive(Clone, Debug)]
pub enum ReliefAction {
    /// Emit the node's event about a condition.
    ReportCondition(Change),
    /// Emit the node's event `EvictionThresholdMet`.
    ReportThreshold(Signal),
    /// Emit the pod's event `Evicted`.
    ReportEviction {
        /// Full name.
        key: PodKey,
        /// Incarnation.
        uid: PodUid,
        /// Why.
        cause: Cause,
        /// Boot time of the reading of the signal; `None` for a limit.
        read_at: Option<Duration>,
        /// Message of the event.
        message: String,
        /// Annotations of the event.
        annotations: BTreeMap<&'static str, String>,
    },
    /// Emit the pod's event `ExceededGracePeriod`.
    ReportLate {
        /// Full name.
        key: PodKey,
        /// Incarnation.
        uid: PodUid,
    },
    /// Log that an evicted pod has no time left to stop.
    ReportHurried(PodKey),
    /// Log that an evicted pod may start again.
    ReportComeback(PodKey),
    /// Log that a pod is not evicted for a signal, and why.
    ReportSpared {
        /// Full name.
        key: PodKey,
        /// The signal that is short.
        signal: Signal,
        /// The reason.
        why: Spare,
    },
    /// Log a step that has ended, and show it in the node's status.
    ReportStep(ReliefView),
    /// Find the largest users outside of pods, and emit the node's event `EvictionFoundNoPod`.
    ReportNoPod {
        /// The threshold.
        acting: Acting,
        /// Every pod could be measured.
        all_measured: bool,
        /// The pods whose eviction would help, and why they are never evicted.
        exempt: Vec<(PodKey, Spare)>,
    },
    /// Ask the kernel to reclaim page cache of pods; results in [`Outcome::Reclaimed`].
    ReclaimPageCache {
        /// What is missing, in bytes.
        bytes: u64,
        /// How much more to reclaim, in bytes.
        spare: u64,
    },
    /// Remove unused images; results in [`Outcome::ImagesFreed`].
    FreeImages {
        /// How much to free, in bytes; `None`: remove all unused images.
        bytes: Option<u64>,
    },
    /// Measure pods; results in [`Outcome::Measured`].
    Measure {
        /// The reason, which says what to measure.
        purpose: MeasurePurpose,
        /// The pods.
        pods: Vec<Arc<PodView>>,
    },
}

/// The result of an action.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The kernel has ended reclaiming page cache.
    Reclaimed(ReclaimOutcome),
    /// Unused images were removed; `None` when an earlier request still waits, so that none was
    /// made.
    ImagesFreed(Option<ImagesFreed>),
    /// Pods were measured.
    Measured(MeasurePurpose, Vec<MeasuredPod>),
}

/// How a request to reclaim page cache ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimOutcome {
    /// Everything was reclaimed that was asked for.
    Complete,
    /// The kernel found less.
    Partial,
    /// The kernel returned an error.
    Failed,
    /// This kernel has no interface for it, or pods have no cgroup.
    Unsupported,
}

/// What removing images has freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImagesFreed {
    /// The number of images.
    pub images: usize,
    /// The freed bytes.
    pub bytes: u64,
}

/// What one round does.
#[derive(Clone, Debug)]
pub struct ReliefPlan {
    /// The eviction records changed: they are saved before `orders` are given.
    pub save: bool,
    /// The orders for the workers.
    pub orders: PressureOrders,
    /// Executed after `orders` are given, in this order.
    pub actions: Vec<ReliefAction>,
    /// Read the disks now.
    pub read_disks: bool,
    /// The time until the next round.
    pub wake_in: Duration,
    /// The time between two readings of the disks from now on.
    pub disk_period: Duration,
    /// What the readings show.
    pub step: PressureStep,
}
