//! Merges what the sources want into one pod per name.
//!
//! A name wanted twice stays with the pod that runs; while nothing of the name runs, with the one
//! that comes first by source kind, location and place in the file, so that the choice does not
//! change by itself. The other one gets a verdict that names both places. Admission (resources,
//! node conditions) will stand here as well.

use crate::model::{DesiredPod, Origin, PodKey, PodUid, SourceKind, SourceView};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    Unknown,
    /// The last good manifests of an earlier life: enough to keep them running, not to remove
    /// anything.
    Checkpoint,
    /// Everything that it has now: what is not in it is not wanted.
    Complete,
}

/// What a source wants, published whole.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    pub kind: SourceKind,
    pub knowledge: Knowledge,
    pub pods: Vec<Arc<DesiredPod>>,
    /// Those of them that it can't vouch for yet: an earlier run of the agent accepted them and
    /// they were not looked for since, or their manifest is missing and may be removed. They keep
    /// what runs, and nothing is started for them.
    pub unconfirmed: BTreeSet<PodKey>,
    /// For people.
    pub view: SourceView,
}

/// A pod that gives way to another one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub key: PodKey,
    /// Where the one that is used is written.
    pub kept: Origin,
    /// Where the one that is not used is written.
    pub dropped: Origin,
    /// For people; names both places.
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// One pod per name.
    pub pods: BTreeMap<PodKey, Arc<DesiredPod>>,
    /// Those of them that keep what runs, and for which nothing is started.
    pub unconfirmed: BTreeSet<PodKey>,
    /// Pods that gave way, sorted.
    pub duplicates: Vec<Duplicate>,
    /// Whether every source has told something: what its first look showed, or the last good
    /// manifests.
    pub told: bool,
    /// Whether every source is complete: only then a name that is not in `pods` is unwanted.
    pub complete: bool,
}

/// Merges what the sources want. `running` tells the uid that runs (or is being started) under a
/// name.
///
/// No source at all counts as complete knowledge that nothing is wanted.
#[must_use]
pub fn merge<'a>(
    sources: &'a [Arc<SourceSnapshot>],
    running: &dyn Fn(&PodKey) -> Option<PodUid>,
) -> Desired {
    let of_source = |source: &'a Arc<SourceSnapshot>| {
        source.pods.iter().map(move |pod| (pod, source.unconfirmed.contains(&pod.key)))
    };
    let mut candidates: Vec<(&Arc<DesiredPod>, bool)> =
        sources.iter().flat_map(of_source).collect();
    candidates.sort_by(|(a, _), (b, _)| {
        let loses = |pod: &DesiredPod| running(&pod.key).as_ref() != Some(&pod.uid);
        (loses(a), &a.origin).cmp(&(loses(b), &b.origin))
    });
    let mut pods: BTreeMap<PodKey, Arc<DesiredPod>> = BTreeMap::new();
    let mut by_uid: BTreeMap<&PodUid, &Arc<DesiredPod>> = BTreeMap::new();
    let mut unconfirmed = BTreeSet::new();
    let mut duplicates = Vec::new();
    for (pod, is_unconfirmed) in candidates {
        let kept = pods.get(&pod.key).or_else(|| by_uid.get(&pod.uid).copied());
        match kept.cloned() {
            Some(kept) => duplicates.push(duplicate(&kept, pod)),
            None => {
                by_uid.insert(&pod.uid, pod);
                if is_unconfirmed {
                    unconfirmed.insert(pod.key.clone());
                }
                pods.insert(pod.key.clone(), Arc::clone(pod));
            }
        }
    }
    duplicates.sort_by(|a, b| (&a.key, &a.dropped).cmp(&(&b.key, &b.dropped)));
    let complete = sources.iter().all(|source| source.knowledge == Knowledge::Complete);
    let told = sources.iter().all(|source| source.knowledge != Knowledge::Unknown);
    Desired { pods, unconfirmed, duplicates, told, complete }
}

fn duplicate(kept: &DesiredPod, dropped: &DesiredPod) -> Duplicate {
    let place = |origin: &Origin| format!("{} (line {})", origin.location, origin.line);
    let what = if kept.key == dropped.key {
        format!("duplicate pod name \"{}\"", dropped.key)
    } else {
        format!("pod \"{}\" has the same metadata.uid as pod \"{}\"", dropped.key, kept.key)
    };
    Duplicate {
        key: dropped.key.clone(),
        kept: kept.origin.clone(),
        dropped: dropped.origin.clone(),
        message: format!(
            "{what}: the one in {} is used, the one in {} is ignored",
            place(&kept.origin),
            place(&dropped.origin)
        ),
    }
}

#[cfg(test)]
mod tests;
