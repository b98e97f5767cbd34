//! Merges what the sources want into one pod per name.
//!
//! If two manifests have the same name, the one that is in use stays in use, also when it is edited.
//! It is recognized by its source and location, because an edit changes the uid. If that does not
//! decide, the manifest whose pod runs is used, and then the first by source kind, location and
//! place in the file. So the choice does not change by itself. The other manifest gets a verdict
//! that names both places.

use crate::model::{
    Completeness, DesiredPod, Order as _, Origin, PodEnd, PodKey, PodUid, SourceKind, SourceView,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    Unknown,
    /// The last good manifests that an earlier run of the agent saved. They are enough to keep pods
    /// running, but not to remove anything.
    Checkpoint,
    /// All manifests that the source has now. A pod that is not among them is not wanted.
    Complete,
}

/// What a source wants.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    pub kind: SourceKind,
    pub knowledge: Knowledge,
    pub pods: Vec<Arc<DesiredPod>>,
    /// The pods that the source cannot confirm: an earlier run of the agent accepted them and the
    /// source has not looked for them since, or their manifest is missing and may have been
    /// removed. What runs of them keeps running, and nothing is started.
    pub unconfirmed: BTreeSet<PodKey>,
    /// The pods that are to end, or have ended, although their objects are still there: of the API
    /// server.
    pub ends: BTreeMap<PodKey, PodEnd>,
    /// For people.
    pub view: Arc<SourceView>,
}

/// A pod that is ignored because another one has the same name or uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub key: PodKey,
    /// Where the manifest that is used was found.
    pub kept: Origin,
    /// Where the manifest that is ignored was found.
    pub dropped: Origin,
    /// For people. It names both places.
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// One pod per name.
    pub pods: BTreeMap<PodKey, Arc<DesiredPod>>,
    /// The pods among them that keep what runs and for which nothing is started.
    pub unconfirmed: BTreeSet<PodKey>,
    /// The pods that are ignored, sorted.
    pub duplicates: Vec<Duplicate>,
    /// True when every source has published its first look or the last good manifests.
    pub told: bool,
    /// The pods among them that are to end, or have ended.
    pub ends: BTreeMap<PodKey, PodEnd>,
    /// Which names that are not in `pods` are unwanted.
    pub complete: Completeness,
}

/// Merges what the sources want. For a name, `in_use` returns the place of the manifest that is in
/// use, and `running` the uid that runs or is being started.
///
/// Without any source the knowledge is complete, and nothing is wanted.
#[must_use]
pub fn merge<'a>(
    sources: &'a [Arc<SourceSnapshot>],
    in_use: &dyn Fn(&PodKey) -> Option<&'a Origin>,
    running: &dyn Fn(&PodKey) -> Option<PodUid>,
) -> Desired {
    let of_source =
        |source: &'a Arc<SourceSnapshot>| source.pods.iter().map(move |pod| (pod, source));
    let mut candidates: Vec<(&Arc<DesiredPod>, &Arc<SourceSnapshot>)> =
        sources.iter().flat_map(of_source).collect();
    candidates.order_by(|(a, _), (b, _)| {
        let loses = |pod: &DesiredPod| {
            let elsewhere = |used: &Origin| {
                (used.source != pod.origin.source, used.location != pod.origin.location)
            };
            let elsewhere = in_use(&pod.key).map_or((true, true), elsewhere);
            (elsewhere, running(&pod.key).as_ref() != Some(&pod.uid))
        };
        (loses(a), &a.origin).cmp(&(loses(b), &b.origin))
    });
    let mut pods: BTreeMap<PodKey, Arc<DesiredPod>> = BTreeMap::new();
    let mut by_uid: BTreeMap<&PodUid, &Arc<DesiredPod>> = BTreeMap::new();
    let mut unconfirmed = BTreeSet::new();
    let mut ends = BTreeMap::new();
    let mut duplicates = Vec::new();
    for (pod, source) in candidates {
        let kept = pods.get(&pod.key).or_else(|| by_uid.get(&pod.uid).copied());
        match kept.cloned() {
            Some(kept) => duplicates.push(duplicate(&kept, pod)),
            None => {
                by_uid.insert(&pod.uid, pod);
                if source.unconfirmed.contains(&pod.key) {
                    unconfirmed.insert(pod.key.clone());
                }
                if let Some(end) = source.ends.get(&pod.key) {
                    ends.insert(pod.key.clone(), *end);
                }
                pods.insert(pod.key.clone(), Arc::clone(pod));
            }
        }
    }
    duplicates.order_by(|a, b| (&a.key, &a.dropped).cmp(&(&b.key, &b.dropped)));
    let (of_api, of_static): (Vec<_>, Vec<_>) =
        sources.iter().partition(|one| one.kind == SourceKind::Api);
    let is_complete =
        |all: &[&Arc<SourceSnapshot>]| all.iter().all(|one| one.knowledge == Knowledge::Complete);
    let complete = match (is_complete(&of_static), is_complete(&of_api)) {
        (true, true) => Completeness::All,
        (true, false) => Completeness::Static,
        (false, true) => Completeness::Api,
        (false, false) => Completeness::None,
    };
    let told = sources.iter().all(|source| source.knowledge != Knowledge::Unknown);
    Desired { pods, unconfirmed, ends, duplicates, told, complete }
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
