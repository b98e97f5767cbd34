//! The start order of pods: what a pod with `nodelet.dev/after` waits for before it begins.
//!
//! ```text
//!  wished pods ──► StartOrder::new ──► edges, cycles       when the wishes change
//!  progress ─────► StartOrder::waits ──► why each pod waits  when a pod of the order gets on
//! ```
//!
//! A pod waits for pods that are ready, and for jobs that have succeeded. It is asked once, before
//! the pod begins: what becomes of the others later does not matter. A pod that waits takes no
//! room from other pods, and room is looked for when its turn has come.
//!
//! Pods of the API server have no part in it.

use crate::{
    model::{AFTER, CollectOrdered as _, DesiredPod, Origin, PodKey},
    podspec::{after, is_job, is_static},
};
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    iter::successors,
    sync::Arc,
};

/// How far a wished incarnation has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It has not started, has not become ready, or is not ready at the moment.
    #[default]
    NotReady,
    Ready,
    Succeeded,
    /// It has failed for good, was evicted or was refused; the reason, if there is one.
    Failed(Option<String>),
}

/// A pod that waits for itself, by way of other pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    pub key: PodKey,
    /// Where its manifest is.
    pub origin: Origin,
    /// For people. It names all pods of the cycle.
    pub message: String,
}

/// Which pods wait for which.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartOrder {
    followers: BTreeMap<PodKey, Follower>,
    cycles: Vec<Cycle>,
}

#[derive(Clone, Debug, PartialEq)]
struct Follower {
    /// By the name in the manifest.
    predecessors: Vec<(String, Predecessor)>,
    /// The pods from this one to itself, if it is in a cycle.
    cycle: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Predecessor {
    /// No manifest has the name.
    Unknown,
    Pod(Arc<DesiredPod>),
}

impl StartOrder {
    /// Reads the order from the wished pods.
    #[must_use]
    pub fn new(wished: &BTreeMap<PodKey, Arc<DesiredPod>>, node_name: &str) -> Self {
        let mut order = Self::default();
        let is_in_manifest = |pod: &&Arc<DesiredPod>| is_static(&pod.pod);
        for (key, pod) in wished.iter().filter(|(_, pod)| is_in_manifest(pod)) {
            let predecessors: Vec<_> = after(&pod.pod)
                .map(|name| {
                    let full = PodKey::new(&key.namespace, &format!("{name}-{node_name}"));
                    let pod = wished.get(&full).filter(is_in_manifest).cloned();
                    (name.to_owned(), pod.map_or(Predecessor::Unknown, Predecessor::Pod))
                })
                .collect();
            if !predecessors.is_empty() {
                order.followers.insert(key.clone(), Follower { predecessors, cycle: None });
            }
        }
        let names = |path: Vec<&PodKey>| {
            let suffix = format!("-{node_name}");
            let short =
                |key: &PodKey| key.name.strip_suffix(&*suffix).unwrap_or(&key.name).to_owned();
            path.into_iter().map(short).collect::<Vec<String>>().join(" -> ")
        };
        let paths: Vec<(PodKey, String)> = order
            .followers
            .keys()
            .filter_map(|key| Some((key.clone(), names(order.path_to_itself(key)?))))
            .collect();
        for (key, path) in paths {
            if let Some(pod) = wished.get(&key) {
                let message = format!(
                    "the pods wait for each other, so none of them starts: {path}. Those that run \
                     keep running"
                );
                let origin = pod.origin.clone();
                order.cycles.push(Cycle { key: key.clone(), origin, message });
            }
            if let Some(follower) = order.followers.get_mut(&key) {
                follower.cycle = Some(path);
            }
        }
        order
    }

    /// The pods of all cycles, by name.
    #[must_use]
    pub fn cycles(&self) -> &[Cycle] {
        &self.cycles
    }

    /// The names that no manifest has, with the pods whose manifests have them.
    pub fn unknown(&self) -> impl Iterator<Item = (&PodKey, &str)> {
        self.followers.iter().flat_map(|(key, follower)| {
            let unknown = follower.predecessors.iter();
            let unknown = unknown.filter(|(_, found)| *found == Predecessor::Unknown);
            unknown.map(move |(name, _)| (key, name.as_str()))
        })
    }

    /// True when another pod waits for this one before it begins.
    #[must_use]
    pub fn has_followers(&self, key: &PodKey) -> bool {
        self.followers.values().any(|follower| follower.keys().any(|found| found == key))
    }

    /// Why pods must wait before they begin; one sentence for each pod that has to.
    #[must_use]
    pub fn waits(&self, progress: &dyn Fn(&DesiredPod) -> Progress) -> BTreeMap<PodKey, Arc<str>> {
        let waiting = self.followers.iter().filter_map(|(key, follower)| {
            Some((key.clone(), Arc::from(follower.waits(progress)?)))
        });
        waiting.collect_ordered()
    }

    /// The shortest way from a pod over the pods that it waits for to itself.
    fn path_to_itself(&self, start: &PodKey) -> Option<Vec<&PodKey>> {
        let (start, _) = self.followers.get_key_value(start)?;
        // By pod, the pod on the way to it that waits for it.
        let mut reached_from: BTreeMap<&PodKey, &PodKey> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(pod) = queue.pop_front() {
            for next in self.followers.get(pod).into_iter().flat_map(Follower::keys) {
                if next == start {
                    let back = successors(Some(pod), |pod| reached_from.get(*pod).copied());
                    let mut path: Vec<&PodKey> = [start].into_iter().chain(back).collect();
                    path.reverse();
                    return Some(path);
                }
                if let Entry::Vacant(entry) = reached_from.entry(next) {
                    entry.insert(pod);
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

impl Follower {
    fn keys(&self) -> impl Iterator<Item = &PodKey> {
        self.predecessors.iter().filter_map(|(_, found)| match found {
            Predecessor::Pod(pod) => Some(&pod.key),
            Predecessor::Unknown => None,
        })
    }

    fn waits(&self, progress: &dyn Fn(&DesiredPod) -> Progress) -> Option<String> {
        if let Some(path) = &self.cycle {
            return Some(format!("waiting for itself ({AFTER}): {path}"));
        }
        let reasons: Vec<String> = self
            .predecessors
            .iter()
            .filter_map(|(name, found)| {
                let why = match found {
                    Predecessor::Unknown => "no manifest has this name".to_owned(),
                    Predecessor::Pod(pod) => missing(pod, progress(pod))?,
                };
                Some(format!("pod {name} ({AFTER}): {why}"))
            })
            .collect();
        (!reasons.is_empty()).then(|| format!("waiting for {}", reasons.join("; ")))
    }
}

/// Why a pod that waits for `pod` does not begin yet.
fn missing(pod: &DesiredPod, progress: Progress) -> Option<String> {
    match (progress, is_job(&pod.pod)) {
        (Progress::Ready, false) | (Progress::Succeeded, true) => None,
        (Progress::Failed(Some(reason)), _) => Some(format!("it has failed: {reason}")),
        (Progress::Failed(None), _) => Some("it has failed".to_owned()),
        (Progress::Ready | Progress::NotReady, true) => Some("it has not succeeded yet".to_owned()),
        (Progress::NotReady | Progress::Succeeded, false) => Some("it is not Ready".to_owned()),
    }
}
