//! Pods that exceed their own limits on local storage: the `sizeLimit` of an emptyDir, and the
//! limits of containers on `ephemeral-storage`. The checks and their order are the kubelet's; the
//! first one that applies is reported. An amount that could not be measured counts as nothing, and
//! a partly measured amount counts with the measured part: a pod whose measured part exceeds a
//! limit exceeds it in any case.

use super::{
    amount::shortest,
    message::EVICTED,
    rank::{Candidate, unsigned},
    settings::StaticPods,
};
use crate::{
    model::{DiskLayout, Hold, HoldStop, Quantity, Space},
    podspec::{container_limits, pod_limits},
};
use serde::{Deserialize, Serialize};

const STORAGE: &str = "ephemeral-storage";

/// A kind of limit. The names are those of the kubelet's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LocalLimit {
    /// `sizeLimit` of an emptyDir.
    #[serde(rename = "emptydirfs.limit")]
    EmptyDir,
    /// The sum of the containers' limits.
    #[serde(rename = "ephemeralpodfs.limit")]
    Pod,
    /// A container's own limit.
    #[serde(rename = "ephemeralcontainerfs.limit")]
    Container,
}

impl LocalLimit {
    /// Its name in the kubelet's metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EmptyDir => "emptydirfs.limit",
            Self::Pod => "ephemeralpodfs.limit",
            Self::Container => "ephemeralcontainerfs.limit",
        }
    }
}

/// A pod that is evicted because of its own limit.
#[derive(Clone, Debug)]
pub struct LimitEviction<'a> {
    /// Which.
    pub candidate: Candidate<'a>,
    /// The limit that it exceeds.
    pub limit: LocalLimit,
    /// The hold for its worker and its status.
    pub hold: Hold,
}

/// Returns every pod that exceeds one of its own limits.
#[must_use]
pub fn over_limits<'a>(
    candidates: &[Candidate<'a>],
    layout: DiskLayout,
    static_pods: StaticPods,
) -> Vec<LimitEviction<'a>> {
    let bound = candidates.iter().filter(|candidate| candidate.exempt(static_pods).is_none());
    let over = bound.filter_map(|candidate| {
        let (limit, message) = empty_dir(candidate)
            .map(|message| (LocalLimit::EmptyDir, message))
            .or_else(|| Some((LocalLimit::Pod, pod(candidate)?)))
            .or_else(|| Some((LocalLimit::Container, container(candidate, layout)?)))?;
        let hold = Hold {
            reason: EVICTED.to_owned(),
            message,
            stop: HoldStop::Within(1),
            disruption: None,
        };
        Some(LimitEviction { candidate: *candidate, limit, hold })
    });
    over.collect()
}

fn empty_dir(candidate: &Candidate<'_>) -> Option<String> {
    let volumes = candidate.pod.spec.as_ref()?.volumes.as_ref()?;
    volumes.iter().find_map(|volume| {
        let written = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let limit = Quantity::parse(&written.0).map(unsigned).ok().filter(|limit| *limit > 0)?;
        let used = candidate.usage.volumes.iter().find(|used| *used.name == *volume.name)?;
        (used.space?.bytes > limit).then(|| {
            let (name, limit) = (&volume.name, shortest(limit));
            format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". ")
        })
    })
}

fn pod(candidate: &Candidate<'_>) -> Option<String> {
    let limit = pod_limits(candidate.pod.spec.as_ref()?).get(STORAGE).map(unsigned)?;
    let parts = candidate.layers().chain(candidate.logs_and_volumes());
    let used: Space = parts.flatten().fold(Space::default(), |a, b| a + b);
    (used.bytes > limit).then(|| {
        let limit = shortest(limit);
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
    })
}

fn container(candidate: &Candidate<'_>, layout: DiskLayout) -> Option<String> {
    // With a separate file system for images, layers use no space on the limited file system.
    let layers = match layout {
        DiskLayout::Single | DiskLayout::Split => true,
        DiskLayout::DedicatedImages | DiskLayout::LayersElsewhere { .. } => false,
    };
    candidate.pod.spec.as_ref()?.containers.iter().find_map(|container| {
        let limit = container_limits(container).non_zero(STORAGE).map(unsigned)?;
        let used = candidate.usage.containers.iter().find(|used| *used.name == *container.name)?;
        let layer = used.layer.filter(|_| layers).unwrap_or_default();
        ((used.logs.unwrap_or_default() + layer).bytes > limit).then(|| {
            let (name, limit) = (&container.name, shortest(limit));
            format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ")
        })
    })
}
