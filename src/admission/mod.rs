//! May a pod run on this node? Decided for all wished pods at once, whenever something changes.
//!
//! ```text
//! wished pods ─┐
//! leaving pods ┤            ┌─► Admitted
//! node facts ──┼─► admit ───┼─► Waits: there is room for it once others have stopped
//! Node object ─┤            └─► Held: refused, evicted, or preempted; and the events that tell so
//! pressure ────┤
//! decisions ───┘                (refused ones are asked about again with every call)
//! ```
//!
//! The rules, their order, reasons and messages are the kubelet's. Three things are not:
//!
//! - A pod that runs, or ran before the agent or the machine restarted, keeps its place. Only a
//!   critical pod can preempt it; pressure, rules and other pods can't.
//! - A refused pod is not lost: the next call considers it again, the pod with the highest priority
//!   first.
//! - Resources of pods that are stopping are waited for; they are no reason to refuse a pod.
//!
//! As with the kubelet, a pod of the API server fails for the labels of the node only when the Node
//! was read after the pod had come ([`Ruling::asks_for_node`]).
//!
//! Before that, [`StartOrder`] says which pods wait for other pods; those take no part yet.
//!
//! Critical is what has a priority of 2000000000 and more, static or not (see
//! [`NodeFacts::spares_static_pods`]). The module keeps nothing and starts nothing: the caller
//! gives the last decisions back with [`Input::before`].

mod affinity;
mod after;
mod allocatable;
mod board;
mod node;
mod ports;
mod preempt;
mod refusal;
mod resources;
mod rules;
mod taints;

pub use affinity::volume_is_usable;
pub use after::{Cycle, Progress, StartOrder};
pub use allocatable::{Allocatable, Capacity, Reserved, allocatable, percent_of, pod_capacity};
pub use node::{NodeFacts, go_arch, kernel_version, node_labels};
pub use refusal::PREEMPTING;

use crate::{
    model::{
        CollectOrdered as _, DesiredPod, Event, Hold, NodeScheduling, Order as _, PodKey, PodUid,
        PressureOrders, ResizeWait, RuntimeView, k8s, priority_of,
    },
    podspec::is_static,
};
use board::{Board, Occupant, Preempted, Victims};
use refusal::Refusal;
use resources::Room;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

/// A wished pod, as admission sees it.
#[derive(Clone, Debug)]
pub struct Subject {
    pub pod: Arc<DesiredPod>,
    pub standing: Standing,
    /// Why it can't begin yet, whatever room there is.
    pub waits: Option<String>,
    /// The pod as it runs, where its cpu or memory are to be changed.
    pub resize_of: Option<Arc<k8s::Pod>>,
}

/// How far a wished incarnation has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing of it is there.
    New {
        /// Boot time since when it wants to be let in; `None`: it has just come.
        since: Option<Duration>,
    },
    /// It runs, or ran when the agent or the machine went down: it has a record or a sandbox. Also
    /// while it is stopped.
    Running,
    /// It has ended for good: it takes nothing, and is not run again.
    Ended,
}

/// An incarnation that still runs and is not wished: its manifest was removed or edited.
#[derive(Clone, Debug)]
pub struct Leaving {
    pub key: PodKey,
    /// The pod as it runs.
    pub pod: Arc<k8s::Pod>,
    /// A source has not said everything yet: it may be wished after all, and nothing of it is
    /// stopped.
    pub undecided: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Every wished pod, at most one of a name. In any order.
    pub pods: &'a [Subject],
    /// What still runs besides them. In any order.
    pub leaving: &'a [Leaving],
    pub node: &'a NodeFacts,
    /// What the Node object says about pods. `None`: there is no API server, or it has not
    /// shown the Node yet. Pods of the API server wait for it.
    pub scheduling: Option<&'a NodeScheduling>,
    /// What the runtime can do. It has no name until it has answered for the first time.
    pub runtime: &'a RuntimeView,
    /// The conditions that hold, and the evicted pods.
    pub pressure: &'a PressureOrders,
    /// The result of the last call; empty for the first call.
    pub before: &'a Admissions,
}

impl Input<'_> {
    /// The hold of an incarnation that was evicted. The eviction loop emits its event.
    fn evicted(&self, pod: &DesiredPod) -> Option<&Arc<Hold>> {
        let evicted = self.pressure.evicted.get(&pod.key)?;
        (evicted.uid == pod.uid).then_some(&evicted.hold)
    }

    /// The labels of the node. People change those of the Node object, so these come first.
    fn labels(&self) -> &BTreeMap<String, String> {
        self.scheduling.map_or(&self.node.labels, |scheduling| &scheduling.labels)
    }

    fn room(&self) -> Room<'_> {
        let extended = self.scheduling.map(|scheduling| &scheduling.extended);
        Room { allocatable: &self.node.allocatable, extended }
    }

    fn taints(&self) -> &[k8s::Taint] {
        self.scheduling.map(|scheduling| scheduling.taints.as_slice()).unwrap_or_default()
    }
}

/// What was decided about every wished pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admissions(BTreeMap<PodKey, Admission>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    pub uid: PodUid,
    pub decision: Decision,
    /// Why its cpu and memory are not changed yet.
    pub resize: Option<Arc<ResizeWait>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Admitted,
    /// Soon: what it waits for, in one sentence. Its status stays as it is.
    Waits(String),
    /// Not now. What runs of it is stopped, and it begins anew when it is admitted.
    Held(Arc<Hold>),
}

impl Admissions {
    #[must_use]
    pub fn get(&self, key: &PodKey, uid: &PodUid) -> Option<&Decision> {
        self.0.get(key).filter(|admission| admission.uid == *uid).map(|found| &found.decision)
    }

    /// Why an incarnation keeps the cpu and memory that it has.
    #[must_use]
    pub fn resize_wait(&self, key: &PodKey, uid: &PodUid) -> Option<&Arc<ResizeWait>> {
        self.0.get(key).filter(|admission| admission.uid == *uid)?.resize.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PodKey, &Admission)> {
        self.0.iter()
    }

    /// Why an incarnation was held.
    fn hold(&self, pod: &DesiredPod) -> Option<&Arc<Hold>> {
        match self.get(&pod.key, &pod.uid)? {
            Decision::Held(hold) => Some(hold),
            Decision::Admitted | Decision::Waits(_) => None,
        }
    }
}

/// What follows from one call of [`admit`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ruling {
    pub admissions: Admissions,
    /// The events of new refusals and preemptions.
    pub events: Vec<Event>,
    /// For each pod that is preempted now, the first resource that the critical pod lacks.
    pub preempted_for: Vec<String>,
    /// A pod waits until the Node object is read once more.
    pub asks_for_node: bool,
}

/// Decides about every wished pod.
#[must_use]
pub fn admit(input: &Input<'_>) -> Ruling {
    let mut board = Board::new(input.room());
    let mut decisions: BTreeMap<&PodKey, Decision> = BTreeMap::new();
    for leaving in input.leaving {
        let mut occupant = Occupant::new(&leaving.key, &leaving.pod);
        occupant.undecided = leaving.undecided;
        board.goes(occupant);
    }
    let (mut candidates, mut resizes) = (Vec::new(), Vec::new());
    for subject in input.pods {
        let pod = &subject.pod;
        let evicted = input.evicted(pod);
        // A pod that is being stopped can't continue: other pods already count on its resources.
        // A refusal was of an edit that is taken back: what runs was never stopped for it.
        let stopped = || input.before.hold(pod).filter(|hold| !hold.is_refusal());
        let hold = evicted.or_else(stopped);
        let decision = match (subject.standing, hold) {
            (Standing::Ended, _) => Decision::Admitted,
            (Standing::Running, Some(hold)) => {
                board.goes(Occupant::new(&pod.key, &pod.pod));
                Decision::Held(Arc::clone(hold))
            }
            (Standing::Running, None) => {
                // A resize does not take room from pods that run.
                let runs = subject.resize_of.as_ref().unwrap_or(&pod.pod);
                board.stays(Occupant::new(&pod.key, runs));
                if subject.resize_of.is_some() {
                    resizes.push(pod);
                }
                Decision::Admitted
            }
            (Standing::New { .. }, Some(hold)) if evicted.is_some() => {
                Decision::Held(Arc::clone(hold))
            }
            (Standing::New { since }, _) => {
                if let Some(why) = &subject.waits {
                    decisions.insert(&pod.key, Decision::Waits(why.clone()));
                    continue;
                }
                candidates.push(Candidate::new(input, pod, since));
                continue;
            }
        };
        decisions.insert(&pod.key, decision);
    }
    // Pods that run grow before others come.
    resizes.order_by_key(|pod| (Reverse(priority_of(&pod.pod)), &pod.key));
    let waits: BTreeMap<&PodKey, ResizeWait> = resizes
        .into_iter()
        .filter_map(|pod| Some((&pod.key, board.resize(Occupant::new(&pod.key, &pod.pod))?)))
        .collect_ordered();
    candidates.sort_by_cached_key(Candidate::rank);
    let mut refused = Vec::new();
    for candidate in candidates {
        match candidate.take_room(input, &mut board) {
            Ok(decision) => drop(decisions.insert(&candidate.pod.key, decision)),
            Err(refusal) => refused.push((candidate, refusal)),
        }
    }
    let mut asks_for_node = false;
    for (candidate, refusal) in refused {
        // The reason is computed again, because pods that came later may have taken more resources.
        let refusal = candidate.check(input, &board).err().unwrap_or(refusal);
        let decision = if refusal.is_for_labels() && candidate.came_after_labels(input) {
            asks_for_node = true;
            Decision::Waits("the labels of the node are read again".to_owned())
        } else {
            refusal.into_decision(&candidate.pod.pod)
        };
        decisions.insert(&candidate.pod.key, decision);
    }
    let mut preempted_for = Vec::new();
    for Preempted { key, pod, lacks } in board.preempted() {
        decisions.insert(key, Decision::Held(Arc::new(refusal::preempted(pod))));
        preempted_for.extend(lacks.map(|resource| resource.to_string()));
    }
    let (admissions, events) = finish(input, decisions, waits);
    Ruling { admissions, events, preempted_for, asks_for_node }
}

/// Adds the uids to the decisions, and makes the events.
fn finish(
    input: &Input<'_>,
    mut decisions: BTreeMap<&PodKey, Decision>,
    mut waits: BTreeMap<&PodKey, ResizeWait>,
) -> (Admissions, Vec<Event>) {
    let mut pods: Vec<&Arc<DesiredPod>> = input.pods.iter().map(|subject| &subject.pod).collect();
    pods.order_by_key(|pod| &pod.key);
    let mut admissions = Admissions::default();
    let mut events = Vec::new();
    for pod in pods {
        let Some(decision) = decisions.remove(&pod.key) else { continue };
        if let Decision::Held(hold) = &decision
            && input.evicted(pod).is_none()
        {
            events.extend(refusal::event(pod, hold, input.before.hold(pod).map(Arc::as_ref)));
        }
        let resize = waits.remove(&pod.key).map(Arc::new);
        let admission = Admission { uid: pod.uid.clone(), decision, resize };
        admissions.0.insert(pod.key.clone(), admission);
    }
    (admissions, events)
}

/// A pod that does not run yet.
struct Candidate<'a> {
    pod: &'a Arc<DesiredPod>,
    since: Option<Duration>,
    critical: bool,
    /// It was admitted before and has not started, or replaces a pod of the same name that runs and
    /// was not evicted.
    has_place: bool,
}

impl<'a> Candidate<'a> {
    fn new(input: &Input<'_>, pod: &'a Arc<DesiredPod>, since: Option<Duration>) -> Self {
        let admitted = input.before.get(&pod.key, &pod.uid) == Some(&Decision::Admitted);
        let follows = input.leaving.iter().any(|leaving| leaving.key == pod.key);
        // An earlier incarnation lost its place, and a new manifest does not win it back.
        let evicted = input.pressure.evicted.contains_key(&pod.key);
        Self {
            pod,
            since,
            critical: is_critical(&pod.pod, input.node),
            has_place: (admitted || follows) && !evicted,
        }
    }

    /// The order of candidates: critical pods first, then pods that have a place, then by priority,
    /// then the pod that has waited longest.
    fn rank(&self) -> (bool, bool, Reverse<i32>, Duration, PodKey) {
        let since = self.since.unwrap_or(Duration::MAX);
        let priority = Reverse(priority_of(&self.pod.pod));
        (!self.critical, !self.critical && !self.has_place, priority, since, self.pod.key.clone())
    }

    /// True for a pod of the API server that may have been bound for labels that are not known yet:
    /// the watches of pods and of the Node are two. Its refusal would be final.
    fn came_after_labels(&self, input: &Input<'_>) -> bool {
        let since = self.since.unwrap_or(Duration::MAX);
        let is_older = |node: &NodeScheduling| node.read_at < since;
        !is_static(&self.pod.pod) && input.scheduling.is_some_and(is_older)
    }

    /// Reserves its resources, and preempts other pods if necessary.
    fn take_room(&self, input: &Input<'_>, board: &mut Board<'a>) -> Result<Decision, Refusal> {
        if !self.critical && !self.has_place && !input.pressure.known {
            let message = "the resources of the node have not been read yet";
            return Ok(Decision::Waits(message.to_owned()));
        }
        if input.runtime.name.is_empty() && rules::asks_for_strict_groups(&self.pod.pod) {
            let message =
                "the runtime has not reported yet which supplementalGroupsPolicy it supports";
            return Ok(Decision::Waits(message.to_owned()));
        }
        if input.scheduling.is_none() && !is_static(&self.pod.pod) {
            let message = "the labels and taints of the node have not been read yet";
            return Ok(Decision::Waits(message.to_owned()));
        }
        let victims = self.check(input, board)?;
        board.preempt(&victims);
        let occupant = Occupant::new(&self.pod.key, &self.pod.pod);
        let waits = board.waits_for(&occupant);
        board.stays(occupant);
        Ok(waits.map_or(Decision::Admitted, Decision::Waits))
    }

    /// Checks the rules in the kubelet's order. Returns the pods that must be preempted for a
    /// critical pod when only resources are missing.
    fn check(&self, input: &Input<'_>, board: &Board<'_>) -> Result<Victims, Refusal> {
        let (pod, node) = (&self.pod.pod, input.node);
        if !self.critical && !self.has_place {
            rules::pressure(pod, &input.pressure.conditions)?;
        }
        rules::sysctls(pod, node)?;
        rules::operating_system(pod)?;
        rules::supplemental_groups(pod, input.runtime)?;
        let occupant = Occupant::new(&self.pod.key, pod);
        let shortages = board.shortages(&occupant);
        if let Some(first) = shortages.first().filter(|_| !self.critical) {
            return Err(Refusal::out_of(first));
        }
        rules::placement(pod, &node.name, input.labels())?;
        board.ports_free(&occupant)?;
        rules::taints(pod, input.taints())?;
        rules::app_armor(pod, node)?;
        if shortages.is_empty() {
            return Ok(Victims::default());
        }
        board.victims(&shortages, |other| is_preemptable(pod, other, node))
    }
}

/// True for a pod that is considered before all others and is never refused for pressure.
fn is_critical(pod: &k8s::Pod, node: &NodeFacts) -> bool {
    priority_of(pod) >= crate::model::SYSTEM_CRITICAL_PRIORITY
        || node.spares_static_pods && is_static(pod)
}

/// True where a critical pod may preempt `other`. As for the kubelet, a critical pod gives way only
/// when both have a priority written: a missing one is not 0 here.
fn is_preemptable(pod: &k8s::Pod, other: &k8s::Pod, node: &NodeFacts) -> bool {
    let written = |one: &k8s::Pod| one.spec.as_ref().and_then(|spec| spec.priority);
    let is_lower = || written(other).zip(written(pod)).is_some_and(|(its, ours)| its < ours);
    !is_critical(other, node) || is_lower()
}

#[cfg(test)]
mod tests;
