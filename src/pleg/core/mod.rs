//! The picture of the runtime, compared with each new listing. Pure: it says what to inspect, is
//! told what was found, and gives out what changed.
//!
//! ```text
//!             listing: all as before                     listing: something changed
//! settled ────────────────────────────► settled  settled ──────────────────────────► inspecting
//! inspecting ── everything answered ──► settled  inspecting ── patience is over ──► hung
//! hung ── everything answered ──► settled        inspecting, hung ── listing ──► same, listing kept for later
//! ```
//!
//! One pod has at most one inspection under way, so an object that hangs is asked about once. A
//! pod that hangs is given out with its last good picture and the name of what hangs.

use crate::model::{
    ContainerId, ContainerState, HungPod, NetworkMode, ObservedContainer, ObservedPod,
    ObservedSandbox, PodKey, SandboxId, SandboxState,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

/// What a listing showed, by pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// Boot time at which it began.
    pub(super) began: Duration,
    /// Sandboxes without what only an inspection tells.
    pub(super) sandboxes: Vec<(PodKey, ObservedSandbox)>,
    /// Containers without what only an inspection tells.
    pub(super) containers: Vec<(PodKey, ObservedContainer)>,
}

/// What was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everything.
    All,
    /// The pods that were asked for.
    Asked,
}

/// Something that is inspected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    /// A sandbox.
    Sandbox(SandboxId),
    /// A container.
    Container(ContainerId),
}

impl Object {
    fn call(&self) -> String {
        match self {
            Self::Sandbox(id) => format!("PodSandboxStatus of {id}"),
            Self::Container(id) => format!("ContainerStatus of {id}"),
        }
    }
}

/// An inspection to make: the object as far as it is known, to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// As listed, with the addresses that it had.
    Sandbox(ObservedSandbox),
    /// As listed.
    Container(Box<ObservedContainer>),
}

impl Subject {
    pub(super) fn object(&self) -> Object {
        match self {
            Self::Sandbox(sandbox) => Object::Sandbox(sandbox.id.clone()),
            Self::Container(container) => Object::Container(container.id.clone()),
        }
    }
}

/// What an inspection gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The object, complete.
    Complete(Subject),
    /// It is gone since it was listed.
    Gone,
    /// It could not be inspected, and why.
    Failed(String),
}

/// An inspection to make, of a pod's object.
pub(super) type Inspection = (PodKey, Subject);

/// What was given out to be published.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct News {
    /// When the listing began, see `PlegUpdate`.
    pub(super) listed_at: Duration,
    /// Whether it was of everything.
    pub(super) complete: bool,
    /// Pods that changed or were asked for.
    pub(super) pods: Vec<(PodKey, Arc<ObservedPod>)>,
}

/// Everything known of the runtime.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pods: BTreeMap<PodKey, Record>,
    /// To be given out.
    ready: BTreeMap<PodKey, Arc<ObservedPod>>,
    /// Beginning of a listing of everything that was not announced yet.
    round: Option<Duration>,
    /// Whether a listing of everything was announced ever.
    announced: bool,
}

#[derive(Debug, Default)]
struct Record {
    /// As last given out or found unchanged since.
    observed: Arc<ObservedPod>,
    /// To be inspected whatever lists say: its last inspection failed, or somebody asked for it.
    suspects: BTreeSet<Object>,
    job: Option<Job>,
    /// The latest listing, when it came while `job` runs.
    next: Option<Draft>,
}

/// A pod as listed, on its way to being complete.
#[derive(Debug)]
struct Draft {
    pod: ObservedPod,
    /// Give it out though it may be unchanged.
    asked: bool,
}

#[derive(Debug)]
struct Job {
    draft: Draft,
    waiting: BTreeSet<Object>,
    failed: Vec<String>,
    /// What is past everybody's patience.
    hangs: BTreeSet<Object>,
}

impl Picture {
    /// Takes in a listing. `asked` are the pods that must be given out in any case; a listing of
    /// less than everything is of those pods. Returns what to inspect.
    pub(super) fn apply(
        &mut self,
        listing: Listing,
        scope: &Scope,
        asked: &BTreeSet<PodKey>,
    ) -> Vec<Inspection> {
        let began = listing.began;
        let mut listed = by_pod(listing);
        let mut inspections = Vec::new();
        let mut keys = asked.clone();
        match scope {
            Scope::All => {
                keys.extend(self.pods.keys().cloned());
                keys.extend(listed.keys().cloned());
                self.round = Some(began);
            }
            Scope::Asked => {}
        }
        for key in keys {
            let mut pod = listed.remove(&key).unwrap_or_default();
            pod.listed_at = began;
            let asked = asked.contains(&key);
            if pod.is_empty() && !self.pods.contains_key(&key) {
                if asked {
                    self.ready.insert(key, Arc::new(pod));
                }
                continue;
            }
            let record = self.pods.entry(key.clone()).or_default();
            match &mut record.job {
                Some(job) => {
                    let waited = record.next.take().is_some_and(|next| next.asked);
                    record.next = Some(Draft { pod, asked: asked || waited });
                    if asked && !job.hangs.is_empty() {
                        self.give_out_hung(&key);
                    }
                }
                None => self.begin(&key, Draft { pod, asked }, &mut inspections),
            }
        }
        inspections
    }

    /// Takes in the result of an inspection. Returns what else to inspect, for a listing that came
    /// in the meantime.
    pub(super) fn inspected(
        &mut self,
        key: &PodKey,
        object: &Object,
        found: Found,
    ) -> Vec<Inspection> {
        let Some(record) = self.pods.get_mut(key) else { return Vec::new() };
        let Some(job) = record.job.as_mut().filter(|job| job.waiting.contains(object)) else {
            return Vec::new();
        };
        job.waiting.remove(object);
        job.hangs.remove(object);
        record.suspects.remove(object);
        match found {
            Found::Complete(subject) => put(&mut job.draft.pod, subject),
            Found::Gone => drop_object(&mut job.draft.pod, object),
            Found::Failed(why) => {
                put_back(&mut job.draft.pod, &record.observed, object);
                job.failed.push(why);
                record.suspects.insert(object.clone());
            }
        }
        if !job.waiting.is_empty() {
            return Vec::new();
        }
        let Some(mut job) = record.job.take() else { return Vec::new() };
        job.draft.pod.inspect_error = (!job.failed.is_empty()).then(|| job.failed.join("; "));
        let mut inspections = Vec::new();
        match record.next.take() {
            None => self.settle(key, job.draft),
            // A newer listing is there: what was found only completes it, and is not given out by
            // itself, because listings are given out in their order.
            Some(mut next) => {
                record.observed = Arc::new(job.draft.pod);
                next.asked = true;
                self.begin(key, next, &mut inspections);
            }
        }
        inspections
    }

    /// An inspection has been waited for long enough: its pod is given out as hanging.
    pub(super) fn overdue(&mut self, key: &PodKey, object: &Object) {
        let job = self.pods.get_mut(key).and_then(|record| record.job.as_mut());
        if let Some(job) = job.filter(|job| job.waiting.contains(object)) {
            job.hangs.insert(object.clone());
            self.give_out_hung(key);
        }
    }

    /// Has an object inspected with the next listing of its pod, changed or not.
    pub(super) fn suspect(&mut self, key: &PodKey, id: &str) {
        if let Some(record) = self.pods.get_mut(key) {
            let container = record.observed.containers.iter().find(|c| c.id.as_str() == id);
            let object = container.map(|c| Object::Container(c.id.clone()));
            record.suspects.extend(object);
        }
    }

    /// Whether something can be given out.
    pub(super) fn has_news(&self) -> bool {
        self.round.is_some() && self.is_settled() || self.announced && !self.ready.is_empty()
    }

    /// What changed since this was called last. The first time it is everything.
    pub(super) fn take_news(&mut self) -> Option<News> {
        if !self.has_news() {
            return None;
        }
        let pods: Vec<_> = mem::take(&mut self.ready).into_iter().collect();
        if self.is_settled()
            && let Some(listed_at) = self.round.take()
        {
            self.announced = true;
            return Some(News { listed_at, complete: true, pods });
        }
        let listed_at = pods.iter().map(|(_, pod)| pod.listed_at).max().unwrap_or_default();
        Some(News { listed_at, complete: false, pods })
    }

    /// Whether nothing is being inspected but what hangs.
    pub(super) fn is_settled(&self) -> bool {
        self.pods.values().all(|r| r.job.as_ref().is_none_or(|job| !job.hangs.is_empty()))
    }

    /// Whether something could not be inspected and is to be tried again soon.
    pub(super) fn has_suspects(&self) -> bool {
        self.pods.values().any(|record| !record.suspects.is_empty() && record.job.is_none())
    }

    /// The pods that hang, and on what.
    pub(super) fn hung(&self) -> Vec<HungPod> {
        let hung = self.pods.iter().filter_map(|(key, record)| {
            let job = record.job.as_ref().filter(|job| !job.hangs.is_empty())?;
            Some(HungPod { key: key.clone(), what: hanging(job) })
        });
        hung.collect()
    }

    /// The pod that has a sandbox or container of this id, and whether that is alive as far as is
    /// known.
    pub(super) fn find(&self, id: &str) -> Option<(&PodKey, Known)> {
        self.pods.iter().find_map(|(key, record)| {
            let pod = &record.observed;
            let container = pod.containers.iter().find(|c| c.id.as_str() == id);
            let sandbox = pod.sandboxes.iter().find(|s| s.id.as_str() == id);
            let known = match (container, sandbox) {
                (Some(container), _) => Known {
                    object: Object::Container(container.id.clone()),
                    alive: container.state.is_running(),
                },
                (None, Some(sandbox)) => Known {
                    object: Object::Sandbox(sandbox.id.clone()),
                    alive: sandbox.state == SandboxState::Ready,
                },
                (None, None) => return None,
            };
            Some((key, known))
        })
    }

    fn begin(&mut self, key: &PodKey, mut draft: Draft, inspections: &mut Vec<Inspection>) {
        let Some(record) = self.pods.get_mut(key) else { return };
        let before = record.observed.clone();
        if !draft.asked && record.suspects.is_empty() && is_unchanged(&before, &draft.pod) {
            return;
        }
        let mut subjects = Vec::new();
        for sandbox in &mut draft.pod.sandboxes {
            let known = before.sandboxes.iter().find(|known| known.id == sandbox.id);
            if let Some(known) = known {
                let listed = mem::replace(&mut sandbox.state, known.state);
                *sandbox = known.clone();
                sandbox.state = listed;
            }
            let object = Object::Sandbox(sandbox.id.clone());
            if known.is_none_or(|known| !same_sandbox(known, sandbox))
                || record.suspects.contains(&object)
            {
                subjects.push(Subject::Sandbox(sandbox.clone()));
            }
        }
        for container in &mut draft.pod.containers {
            let known = before.containers.iter().find(|known| known.id == container.id);
            let object = Object::Container(container.id.clone());
            match known.filter(|known| same_state(&known.state, &container.state)) {
                Some(known) if !record.suspects.contains(&object) => *container = known.clone(),
                _ => subjects.push(Subject::Container(Box::new(container.clone()))),
            }
        }
        let waiting: BTreeSet<Object> = subjects.iter().map(Subject::object).collect();
        // What is not listed any more needs no second look.
        record.suspects.retain(|object| waiting.contains(object));
        if waiting.is_empty() {
            self.settle(key, draft);
            return;
        }
        record.job = Some(Job { draft, waiting, failed: Vec::new(), hangs: BTreeSet::new() });
        inspections.extend(subjects.into_iter().map(|subject| (key.clone(), subject)));
    }

    /// A pod's picture is complete: keeps it, and gives it out if it is news.
    fn settle(&mut self, key: &PodKey, mut draft: Draft) {
        let Some(record) = self.pods.get_mut(key) else { return };
        sort(&mut draft.pod);
        let pod = Arc::new(draft.pod);
        if draft.asked || !is_same(&record.observed, &pod) {
            self.ready.insert(key.clone(), pod.clone());
        }
        if pod.is_empty() {
            self.pods.remove(key);
        } else {
            record.observed = pod;
        }
    }

    /// Gives out a pod that hangs: what was inspected as found, the rest as last seen.
    fn give_out_hung(&mut self, key: &PodKey) {
        let Some(record) = self.pods.get_mut(key) else { return };
        let Some(job) = &record.job else { return };
        let mut pod = job.draft.pod.clone();
        for object in &job.waiting {
            put_back(&mut pod, &record.observed, object);
        }
        if let Some(next) = &mut record.next {
            pod.listed_at = next.pod.listed_at;
            next.asked = false;
        }
        pod.inspect_error = Some(hanging(job));
        sort(&mut pod);
        let pod = Arc::new(pod);
        record.observed = pod.clone();
        self.ready.insert(key.clone(), pod);
    }
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Which it is.
    pub(super) object: Object,
    /// Whether it runs.
    pub(super) alive: bool,
}

fn hanging(job: &Job) -> String {
    let calls: Vec<String> = job.hangs.iter().map(Object::call).collect();
    format!("{} does not answer", calls.join(", "))
}

fn by_pod(listing: Listing) -> BTreeMap<PodKey, ObservedPod> {
    let mut pods: BTreeMap<PodKey, ObservedPod> = BTreeMap::new();
    for (key, sandbox) in listing.sandboxes {
        pods.entry(key).or_default().sandboxes.push(sandbox);
    }
    for (key, container) in listing.containers {
        pods.entry(key).or_default().containers.push(container);
    }
    pods
}

/// Whether a listed pod has the same objects in the same states as the known one. A pod whose
/// inspection failed is never unchanged.
fn is_unchanged(known: &ObservedPod, listed: &ObservedPod) -> bool {
    known.inspect_error.is_none()
        && known.sandboxes.len() == listed.sandboxes.len()
        && known.containers.len() == listed.containers.len()
        && listed.sandboxes.iter().all(|sandbox| {
            known.sandboxes.iter().any(|k| k.id == sandbox.id && same_sandbox(k, sandbox))
        })
        && listed.containers.iter().all(|container| {
            let mut same = known.containers.iter().filter(|k| k.id == container.id);
            same.any(|k| same_state(&k.state, &container.state))
        })
}

/// A ready sandbox that should have an address and has none is looked at until it has one.
fn same_sandbox(known: &ObservedSandbox, listed: &ObservedSandbox) -> bool {
    let lacks_address = known.network == NetworkMode::Pod && known.ips.is_empty();
    known.state == listed.state && !(known.state == SandboxState::Ready && lacks_address)
}

fn same_state(known: &ContainerState, listed: &ContainerState) -> bool {
    mem::discriminant(known) == mem::discriminant(listed)
}

/// Whether two pictures of a pod show the same.
fn is_same(one: &ObservedPod, other: &ObservedPod) -> bool {
    one.sandboxes == other.sandboxes
        && one.containers == other.containers
        && one.inspect_error == other.inspect_error
}

fn put(pod: &mut ObservedPod, subject: Subject) {
    match subject {
        Subject::Sandbox(found) => {
            let place = pod.sandboxes.iter_mut().find(|sandbox| sandbox.id == found.id);
            place.into_iter().for_each(|sandbox| *sandbox = found.clone());
        }
        Subject::Container(found) => {
            let place = pod.containers.iter_mut().find(|container| container.id == found.id);
            place.into_iter().for_each(|container| *container = (*found).clone());
        }
    }
}

/// Shows an object as it was last seen, if it was.
fn put_back(pod: &mut ObservedPod, before: &ObservedPod, object: &Object) {
    match object {
        Object::Sandbox(id) => {
            let known = before.sandboxes.iter().find(|sandbox| sandbox.id == *id).cloned();
            known.into_iter().for_each(|known| put(pod, Subject::Sandbox(known)));
        }
        Object::Container(id) => {
            let known = before.containers.iter().find(|container| container.id == *id).cloned();
            known.into_iter().for_each(|known| put(pod, Subject::Container(Box::new(known))));
        }
    }
}

fn drop_object(pod: &mut ObservedPod, object: &Object) {
    match object {
        Object::Sandbox(id) => pod.sandboxes.retain(|sandbox| sandbox.id != *id),
        Object::Container(id) => pod.containers.retain(|container| container.id != *id),
    }
}

/// Newest first: by attempt and restart count, since clocks may be set back.
fn sort(pod: &mut ObservedPod) {
    pod.sandboxes.sort_by(|a, b| {
        (&a.uid, b.attempt, b.created_at, &a.id).cmp(&(&b.uid, a.attempt, a.created_at, &b.id))
    });
    pod.containers.sort_by(|a, b| {
        (&a.uid, &a.name, b.restart_count, b.created_at, &a.id).cmp(&(
            &b.uid,
            &b.name,
            a.restart_count,
            a.created_at,
            &b.id,
        ))
    });
}

#[cfg(test)]
mod tests;
