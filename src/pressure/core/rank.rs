//! Ranks pods for eviction: pods above their request first, then by low priority, then by the
//! largest usage.
//!
//! The order is the kubelet's, with three departures. A static pod is ranked like any other (after
//! the pods of an API server) unless `staticPodEviction: never` says otherwise. A pod whose
//! eviction would not relieve the signal is no candidate. The kubelet evicts such a pod, and ranks
//! pods first that it could not measure. And where inodes are short, requests of bytes don't count.
//!
//! A pod is a candidate when one of these is true:
//!
//! - It uses a twentieth of what the threshold keeps free.
//! - It uses as much as is missing, and at least a small amount ([`small`]: 64 MiB). Without the
//!   small amount, a tiny pod would be evicted for the use of a process outside of pods: signals
//!   are read often, so little is missing at first.
//! - It uses that small amount, and a twentieth of what all candidates use together.
//! - Many pods are the cause together: the pods above their requests (or all, when none is) use as
//!   much as the threshold keeps free, and it uses at least their average.
//!
//! A pod whose directories were counted in part counts with the counted part. While a hard
//! threshold of a disk is crossed and no pod explains that, such a pod is a suspect: it is evicted
//! before pods that were measured completely. Otherwise a pod could avoid its eviction by being
//! hard to measure. A pod explains the shortage when it is known to use more than it requests, and
//! at least half of what the threshold keeps free. A pod of which nothing was counted is no
//! suspect: it did not cause that.

use super::{settings::StaticPods, state::Acting};
use crate::{
    model::{
        DiskLayout, Order as _, PodKey, PodUid, PodUse, Pressure, Quantity,
        SYSTEM_CRITICAL_PRIORITY, Signal, Space, k8s,
    },
    podspec::{Amounts, is_static, pod_requests},
};
use std::{cmp::Reverse, sync::Arc};

/// A pod that uses this part of an amount is relevant to it.
pub(super) const RELEVANT_PART: u64 = 20;

/// The use from which on a pod may be a candidate although it is below a twentieth of the
/// threshold: 64 MiB, 10,000 inodes, or 1,000 processes.
fn small(signal: Signal) -> u64 {
    match signal.resource() {
        "inodes" => 10_000,
        "pids" => 1_000,
        _ => 64 << 20,
    }
}

/// A pod that runs.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The pod with its specification.
    pub pod: &'a Arc<k8s::Pod>,
    /// Full name.
    pub key: &'a PodKey,
    /// Which incarnation.
    pub uid: &'a PodUid,
    /// Its priority.
    pub priority: i32,
    /// What it uses.
    pub usage: &'a PodUse,
}

impl Candidate<'_> {
    /// The reason why it is never evicted; `None` when it may be.
    pub(super) fn exempt(&self, static_pods: StaticPods) -> Option<Spare> {
        if self.priority >= SYSTEM_CRITICAL_PRIORITY {
            return Some(Spare::Critical);
        }
        match static_pods {
            StaticPods::Never if is_static(self.pod) => Some(Spare::Static),
            StaticPods::Never | StaticPods::Ranked => None,
        }
    }

    /// Bytes of memory, or bytes of a disk, that it requests; its overhead included.
    pub(super) fn request(&self, resource: &str) -> u64 {
        let Some(spec) = &self.pod.spec else { return 0 };
        let of = |amounts: &Amounts| amounts.get(resource).unwrap_or_default();
        let whole = of(&pod_requests(spec)) + of(&Amounts::of(spec.overhead.as_ref()));
        unsigned(whole)
    }

    /// The working set of its cgroup, or the known part of those of its containers.
    fn memory(&self) -> Measured {
        let containers = self.usage.containers.iter().map(|container| container.memory);
        match self.usage.memory {
            Some(memory) => Measured::of(Some(memory)),
            None => containers.map(Measured::of).fold(Measured::NOTHING, Measured::plus),
        }
    }

    /// What it takes of the file system of a signal.
    fn disk(&self, parts: DiskParts, pick: impl Fn(Space) -> u64) -> Measured {
        let mut sum = Measured::NOTHING;
        if parts.layers {
            let layers = self.layers();
            sum = layers.map(|layer| Measured::of(layer.map(&pick))).fold(sum, Measured::plus);
        }
        if parts.logs_and_volumes {
            sum = self
                .logs_and_volumes()
                .map(|space| Measured::of(space.map(&pick)))
                .fold(sum, Measured::plus);
        }
        // A pod without anything to measure uses nothing.
        if sum.whole {
            sum.known = Some(sum.known.unwrap_or(0));
        }
        let partly = self.usage.partly;
        sum.partly = (parts.layers && partly.layers) || (parts.logs_and_volumes && partly.root_dir);
        sum.whole &= !sum.partly;
        sum
    }

    /// Its writable layers, and what the runtime provides beside them.
    pub(super) fn layers(&self) -> impl Iterator<Item = Option<Space>> {
        let layers = self.usage.containers.iter().map(|container| container.layer);
        layers.chain([self.usage.runtime_files])
    }

    /// Its logs, the files that the agent provides, and each volume of its own on the disk.
    pub(super) fn logs_and_volumes(&self) -> impl Iterator<Item = Option<Space>> {
        let containers = self.usage.containers.iter().map(|container| container.logs);
        // The pod's log directory has those of the containers in it.
        let logs = match self.usage.logs {
            Some(logs) => vec![Some(logs)],
            None => containers.collect(),
        };
        let volumes = self.usage.volumes.iter().filter(|volume| !volume.in_memory);
        logs.into_iter().chain([self.usage.files]).chain(volumes.map(|volume| volume.space))
    }

    fn used(&self, signal: Signal, layout: DiskLayout) -> Measured {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => self.memory(),
            Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => {
                self.disk(DiskParts::of(signal, layout), |space| space.bytes)
            }
            Signal::NodefsInodesFree
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsInodesFree => {
                self.disk(DiskParts::of(signal, layout), |space| space.inodes)
            }
            Signal::PidAvailable => Measured::of(self.usage.processes),
        }
    }
}

/// The amount in whole units.
pub(super) fn unsigned(quantity: Quantity) -> u64 {
    u64::try_from(quantity.value()).unwrap_or(0)
}

/// A sum of what is known, and whether that is all of it.
#[derive(Clone, Copy, Debug)]
struct Measured {
    known: Option<u64>,
    whole: bool,
    /// A directory of it was counted in part.
    partly: bool,
}

impl Measured {
    const NOTHING: Self = Self { known: None, whole: true, partly: false };

    fn of(amount: Option<u64>) -> Self {
        Self { known: amount, whole: amount.is_some(), partly: false }
    }

    fn plus(self, other: Self) -> Self {
        let known = match (self.known, other.known) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        let (whole, partly) = (self.whole && other.whole, self.partly || other.partly);
        Self { known, whole, partly }
    }
}

/// What of a pod lies on a file system.
#[derive(Clone, Copy, Debug)]
struct DiskParts {
    layers: bool,
    logs_and_volumes: bool,
}

impl DiskParts {
    fn of(signal: Signal, layout: DiskLayout) -> Self {
        let images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
        let nodefs = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
        match layout {
            DiskLayout::Single => Self { layers: true, logs_and_volumes: true },
            DiskLayout::DedicatedImages => Self { layers: !nodefs, logs_and_volumes: nodefs },
            DiskLayout::LayersElsewhere { .. } => Self { layers: false, logs_and_volumes: nodefs },
            DiskLayout::Split => Self { layers: !images, logs_and_volumes: !images },
        }
    }
}

/// A pod that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Victim<'a> {
    /// Which.
    pub candidate: Candidate<'a>,
    /// The known part of its use of what is short: bytes, inodes or processes.
    pub used: u64,
    /// What it requests of it; 0 where nothing can be requested.
    pub requested: u64,
    /// It is ranked first because it could not be measured completely and no other pod explains the
    /// shortage.
    pub suspect: bool,
}

/// A pod that is not to be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Spared<'a> {
    /// Which.
    pub candidate: Candidate<'a>,
    /// Why.
    pub why: Spare,
    /// It uses enough for its end to help.
    pub large: bool,
}

/// Why a pod is not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spare {
    /// Its priority is that of the system's pods.
    Critical,
    /// It is static, and `staticPodEviction` is `never`.
    Static,
    /// It uses so little that it would not help.
    TooLittle,
    /// What it uses could not be measured, or too little of it could.
    NotMeasured,
}

impl Spare {
    /// The reason for logs: `pod web is spared: ...`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "its priority is system-critical",
            Self::Static => "it is static, and staticPodEviction is never",
            Self::TooLittle => "it uses too little for an eviction to help",
            Self::NotMeasured => "its usage could not be measured",
        }
    }
}

/// All candidates in order.
#[derive(Clone, Debug, Default)]
pub struct Ranking<'a> {
    /// The pods that may be evicted, in the order of their evictions.
    pub victims: Vec<Victim<'a>>,
    /// The pods that may not, by name.
    pub spared: Vec<Spared<'a>>,
}

/// Ranks pods for something that is short.
#[must_use]
pub fn rank<'a>(
    candidates: &[Candidate<'a>],
    acting: &Acting,
    layout: DiskLayout,
    static_pods: StaticPods,
) -> Ranking<'a> {
    let signal = acting.threshold.signal;
    let mut ranking = Ranking::default();
    let used: Vec<Measured> =
        candidates.iter().map(|candidate| candidate.used(signal, layout)).collect();
    let requested = |candidate: &Candidate<'_>| match signal.resource() {
        resource @ ("memory" | "ephemeral-storage") => candidate.request(resource),
        _ => 0,
    };
    let may_go = candidates.iter().zip(&used).filter(|(c, _)| c.exempt(static_pods).is_none());
    let uses = may_go.filter_map(|(candidate, used)| Some((used.known?, requested(candidate))));
    let uses: Vec<(u64, u64)> = uses.collect();
    let large = Large::among(uses.iter().copied(), acting);
    let hard_disk = acting.threshold.is_hard() && signal.condition() == Pressure::Disk;
    // What was counted of a pod explains nothing while there may be much more of it.
    let explains = |(candidate, used): (&Candidate<'_>, &Measured)| {
        let known = used.known.filter(|_| !used.partly && candidate.exempt(static_pods).is_none());
        known.is_some_and(|known| large.explains(known, requested(candidate)))
    };
    let suspicious = hard_disk && !candidates.iter().zip(&used).any(explains);
    for (candidate, used) in candidates.iter().zip(used) {
        let suspect = suspicious && used.partly;
        let is_large = used.known.is_some_and(|used| large.is(used));
        let why = match (candidate.exempt(static_pods), used.known) {
            (Some(why), _) => why,
            (None, Some(used)) if suspect || is_large => {
                let requested = requested(candidate);
                ranking.victims.push(Victim { candidate: *candidate, used, requested, suspect });
                continue;
            }
            (None, Some(_)) if used.whole => Spare::TooLittle,
            (None, Some(_) | None) => Spare::NotMeasured,
        };
        ranking.spared.push(Spared { candidate: *candidate, why, large: is_large });
    }
    let by_request = signal != Signal::PidAvailable;
    ranking.victims.order_by(|a, b| {
        let order = |victim: &Victim<'_>| {
            let over = i128::from(victim.used) - i128::from(victim.requested);
            let candidate = &victim.candidate;
            let within = by_request && over <= 0 && !victim.suspect;
            (!victim.suspect, is_static(candidate.pod), within, candidate.priority, Reverse(over))
        };
        order(a).cmp(&order(b)).then_with(|| name(&a.candidate).cmp(&name(&b.candidate)))
    });
    ranking.spared.order_by(|a, b| name(&a.candidate).cmp(&name(&b.candidate)));
    ranking
}

/// Which pods use enough for their end to help.
struct Large {
    /// What the threshold keeps free; at least one, so that nothing used is too little.
    kept_free: u64,
    /// What is missing.
    shortfall: u64,
    /// See [`small`].
    small: u64,
    /// All pods that may be evicted.
    all: Many,
    /// The pods that may be the cause together.
    many: Many,
}

/// Several pods: what they use together, and how many of them use anything.
#[derive(Clone, Copy, Default)]
struct Many {
    together: u64,
    users: u64,
}

impl Large {
    /// `uses`: what each that may go uses and requests.
    fn among(uses: impl Iterator<Item = (u64, u64)>, acting: &Acting) -> Self {
        let kept_free = acting.threshold.value.resolve(acting.reading.capacity);
        let (mut all, mut over) = (Many::default(), Many::default());
        for (used, requested) in uses.filter(|(used, _)| *used > 0) {
            all.add(used);
            if used > requested {
                over.add(used);
            }
        }
        let many = if over.users > 0 { over } else { all };
        let (shortfall, small) = (acting.shortfall, small(acting.threshold.signal));
        Self { kept_free: kept_free.max(1), shortfall, small, all, many }
    }

    /// True when a pod with this usage and request explains the shortage alone.
    fn explains(&self, used: u64, requested: u64) -> bool {
        used > requested && used.saturating_mul(2) >= self.kept_free
    }

    fn is(&self, used: u64) -> bool {
        let is_part_of = |whole: u64| used.saturating_mul(RELEVANT_PART) >= whole;
        if is_part_of(self.kept_free) {
            return true;
        }
        if used >= self.small && (used >= self.shortfall || is_part_of(self.all.together)) {
            return true;
        }
        let Many { together, users } = self.many;
        together >= self.kept_free && used.saturating_mul(users) >= together
    }
}

impl Many {
    fn add(&mut self, used: u64) {
        self.together = self.together.saturating_add(used);
        self.users += 1;
    }
}

fn name<'a>(candidate: &Candidate<'a>) -> (&'a PodKey, &'a PodUid) {
    (candidate.key, candidate.uid)
}
