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

mod objects;

pub(super) use objects::{Found, Inspection, KnownObject, Listing, Object, Scope, Subject};

use crate::model::{
    CollectOrdered as _, ContainerState, HungPod, ObservedContainer, ObservedPod, PodKey,
    SandboxState,
};
use objects::{
    by_pod, drop_object, is_same, is_unchanged, put, put_back, same_sandbox, same_state, sort,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

/// What was given out to be published.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct News {
    /// When the listing began, see `PlegUpdate`.
    pub(super) listed_at: Duration,
    /// Whether it was of everything.
    pub(super) complete: bool,
    /// Pods that changed or were asked for.
    pub(super) pods: Vec<(PodKey, Arc<ObservedPod>)>,
    /// See [`PlegUpdate::listed`](super::PlegUpdate::listed).
    pub(super) listed: Vec<(PodKey, Arc<ObservedPod>)>,
}

/// Everything known of the runtime.
#[derive(Debug, Default)]
pub(super) struct RuntimeSnapshot {
    pods: BTreeMap<PodKey, Record>,
    /// To be given out.
    ready: BTreeMap<PodKey, Arc<ObservedPod>>,
    /// Beginning of a listing of everything that was not announced yet.
    round: Option<Duration>,
    /// Whether a listing of everything was announced ever.
    announced: bool,
    /// The pods of the first listing whose inspection is under way, until they are given out.
    first: Option<Vec<(PodKey, Arc<ObservedPod>)>>,
}

#[derive(Debug, Default)]
struct Record {
    /// As last given out or found unchanged since.
    observed: Arc<ObservedPod>,
    /// To be inspected whatever lists say: its last inspection failed, or somebody asked for it.
    suspects: BTreeSet<Object>,
    // In boxes, like `next`: most pods have none most of the time.
    job: Option<Box<Job>>,
    /// The latest listing, when it came while `job` runs.
    next: Option<Box<Draft>>,
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

impl Record {
    /// Whether the next listing has to inspect the pod anyway.
    fn is_open(&self) -> bool {
        self.job.is_some() || self.observed.inspect_error.is_some()
    }

    fn give_out(
        &mut self,
        key: &PodKey,
        pod: ObservedPod,
        ready: &mut BTreeMap<PodKey, Arc<ObservedPod>>,
    ) {
        self.observed = Arc::new(pod);
        ready.insert(key.clone(), Arc::clone(&self.observed));
    }
}

impl RuntimeSnapshot {
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
        let is_first = *scope == Scope::All && !self.announced;
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
            // A pod of the first listing is given out in any case, because its draft is too.
            let asked = is_first || asked.contains(&key);
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
                    record.next = Some(Box::new(Draft { pod, asked: asked || waited }));
                    if asked && !job.hangs.is_empty() {
                        self.give_out_hung(&key);
                    }
                }
                None => self.begin(&key, Draft { pod, asked }, &mut inspections),
            }
        }
        if is_first {
            self.first = Some(self.drafts());
        }
        inspections
    }

    /// The pods that are being inspected, as they were listed.
    fn drafts(&self) -> Vec<(PodKey, Arc<ObservedPod>)> {
        let drafts = self.pods.iter().filter_map(|(key, record)| {
            let draft = &record.job.as_ref()?.draft;
            Some((key.clone(), Arc::new(draft.pod.clone())))
        });
        drafts.collect()
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
                self.begin(key, *next, &mut inspections);
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

    /// Takes in a container that was seen to end: its pod is given out at once, otherwise as it was
    /// listed last. Nothing is taken in when the next listing has to inspect the pod anyway.
    pub(super) fn ended(&mut self, key: &PodKey, container: ObservedContainer) {
        let Some(record) = self.pods.get_mut(key).filter(|record| !record.is_open()) else {
            return;
        };
        if !container.state.is_exited() {
            return;
        }
        let mut pod = ObservedPod::clone(&record.observed);
        let mut known = pod.containers.iter_mut();
        if let Some(known) = known.find(|k| k.id == container.id && !k.state.is_exited()) {
            *known = container;
            record.give_out(key, pod, &mut self.ready);
        }
    }

    /// Takes in the exit code of a container that the runtime still shows as running: its pod is
    /// given out at once, otherwise as it was listed last.
    pub(super) fn told_end(&mut self, key: &PodKey, id: &str, exit_code: i32) {
        let Some(record) = self.pods.get_mut(key).filter(|record| !record.is_open()) else {
            return;
        };
        let mut pod = ObservedPod::clone(&record.observed);
        let mut known = pod.containers.iter_mut();
        if let Some(known) = known.find(|k| k.id.as_str() == id && k.state.is_running()) {
            known.ended_with = Some(exit_code);
            record.give_out(key, pod, &mut self.ready);
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
        let announces = self.first.is_some() || self.is_settled();
        self.round.is_some() && announces || self.announced && !self.ready.is_empty()
    }

    /// What changed since this was called last. The first time it is everything, also what is yet
    /// to be inspected.
    pub(super) fn take_news(&mut self) -> Option<News> {
        if !self.has_news() {
            return None;
        }
        let pods: Vec<_> = mem::take(&mut self.ready).into_iter().collect();
        let first = self.first.take();
        if let Some(listed_at) = self.round
            && (first.is_some() || self.is_settled())
        {
            self.announced = true;
            self.round = (!self.is_settled()).then_some(listed_at);
            let listed = first.unwrap_or_default();
            return Some(News { listed_at, complete: true, pods, listed });
        }
        let listed_at = pods.iter().map(|(_, pod)| pod.listed_at).max().unwrap_or_default();
        Some(News { listed_at, complete: false, pods, listed: Vec::new() })
    }

    /// Whether nothing is being inspected but what hangs.
    pub(super) fn is_settled(&self) -> bool {
        self.pods.values().all(|r| r.job.as_ref().is_none_or(|job| !job.hangs.is_empty()))
    }

    /// Whether something could not be inspected and is to be tried again soon.
    pub(super) fn has_suspects(&self) -> bool {
        self.pods.values().any(|record| !record.suspects.is_empty() && record.job.is_none())
    }

    /// Whether the runtime still shows a container as running whose end an event has told.
    pub(super) fn has_late_ends(&self) -> bool {
        let late = |c: &ObservedContainer| c.ended_with.is_some() && c.state.is_running();
        self.pods.values().any(|record| record.observed.containers.iter().any(late))
    }

    /// The pods that hang, and on what.
    pub(super) fn hung(&self) -> Vec<HungPod> {
        let hung = self.pods.iter().filter_map(|(key, record)| {
            let job = record.job.as_ref().filter(|job| !job.hangs.is_empty())?;
            Some(HungPod { key: key.clone(), what: hanging(job) })
        });
        hung.collect()
    }

    /// Whether a pod that is inspected for the first time seems to be as the agent's earlier run
    /// left it: all of it runs.
    pub(super) fn seems_unchanged(&self, key: &PodKey) -> bool {
        let record = self.pods.get(key).filter(|record| record.observed.is_empty());
        let Some(job) = record.and_then(|record| record.job.as_ref()) else { return false };
        let ObservedPod { sandboxes, containers, .. } = &job.draft.pod;
        sandboxes.iter().all(|sandbox| sandbox.state == SandboxState::Ready)
            && containers.iter().all(|container| container.state.is_running())
            && !containers.is_empty()
    }

    /// The pod that has a sandbox or container of this id, and whether that is alive as far as is
    /// known.
    pub(super) fn find(&self, id: &str) -> Option<(&PodKey, KnownObject)> {
        self.pods.iter().find_map(|(key, record)| {
            let pod = &record.observed;
            let container = pod.containers.iter().find(|c| c.id.as_str() == id);
            let sandbox = pod.sandboxes.iter().find(|s| s.id.as_str() == id);
            let known = match (container, sandbox) {
                (Some(container), _) => KnownObject {
                    subject: Subject::Container(Box::new(container.clone())),
                    // A created one may have been started and ended since it was seen.
                    alive: !container.state.is_exited(),
                },
                (None, Some(sandbox)) => KnownObject {
                    subject: Subject::Sandbox(sandbox.clone()),
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
                _ => {
                    let runs = container.state.is_running();
                    let told = known.and_then(|known| known.ended_with);
                    container.ended_with = told.filter(|_| runs);
                    subjects.push(Subject::Container(Box::new(container.clone())));
                }
            }
        }
        let waiting: BTreeSet<Object> = subjects.iter().map(Subject::object).collect_ordered();
        // What is not listed any more needs no second look.
        record.suspects.retain(|object| waiting.contains(object));
        if waiting.is_empty() {
            self.settle(key, draft);
            return;
        }
        let job = Job { draft, waiting, failed: Vec::new(), hangs: BTreeSet::new() };
        record.job = Some(Box::new(job));
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
        pod.inspect_error = Some(hanging(job));
        sort(&mut pod);
        let Some(next) = &mut record.next else {
            record.observed = Arc::new(pod);
            self.ready.insert(key.clone(), Arc::clone(&record.observed));
            return;
        };
        next.asked = false;
        // It says that it is as new as this listing, so it has nothing that is not in it.
        let listed = &next.pod;
        pod.sandboxes.retain(|s| listed.sandboxes.iter().any(|other| other.id == s.id));
        pod.containers.retain(|c| listed.containers.iter().any(|other| other.id == c.id));
        pod.listed_at = listed.listed_at;
        let mut shown = pod.clone();
        add_new(&mut shown, listed);
        sort(&mut shown);
        // Without what is yet to be inspected.
        record.observed = Arc::new(pod);
        self.ready.insert(key.clone(), Arc::new(shown));
    }
}

/// Adds what has come or started since. A listing does not tell how a container has ended.
fn add_new(pod: &mut ObservedPod, listed: &ObservedPod) {
    for sandbox in &listed.sandboxes {
        if pod.sandboxes.iter().all(|known| known.id != sandbox.id) {
            pod.sandboxes.push(sandbox.clone());
        }
    }
    for container in &listed.containers {
        let known = pod.containers.iter_mut().find(|known| known.id == container.id);
        match (known, &container.state) {
            (_, ContainerState::Exited { .. }) => {}
            (Some(known), state) if known.state == ContainerState::Created => {
                known.state = state.clone();
            }
            (Some(_), _) => {}
            (None, _) => pod.containers.push(container.clone()),
        }
    }
}

fn hanging(job: &Job) -> String {
    let calls: Vec<String> = job.hangs.iter().map(Object::call).collect();
    format!("{} does not answer", calls.join(", "))
}

#[cfg(test)]
mod tests;
