//! What the set publishes besides the pods: pods of other agents, uids that are no leftovers, and
//! the progress of a shutdown.

use super::{State, WorkerSet};
use crate::{
    admission::Cycle,
    desired::Duplicate,
    model::{
        CollectOrdered as _, Completeness, DesiredPod, Ending, ForeignPod, Known, PodKey, PodUid,
        SandboxState, priority_of,
    },
    plan::Occupancy,
    podspec::burstable_shares,
    publish::PublishIfChanged as _,
    worker::records::Recorded,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What the set shows besides the views of pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SetView {
    /// Pods of other owners on the same runtime.
    pub foreign: Vec<ForeignPod>,
    /// Manifests that are ignored because another one has the name.
    pub duplicates: Vec<Duplicate>,
    /// Pods that wait for each other.
    pub cycles: Vec<Cycle>,
}

impl WorkerSet {
    pub(super) fn publish_known(&self) {
        let state = &self.state;
        let observed = state.observed.values();
        let in_runtime = observed.clone().flat_map(|pod| {
            let sandboxes = pod.sandboxes.iter().map(|sandbox| &sandbox.uid);
            sandboxes.chain(pod.containers.iter().map(|container| &container.uid))
        });
        let wished = state.desired.pods.values().map(|pod| &pod.uid);
        let recorded = state.recorded.values().flatten().map(|recorded| &recorded.uid);
        let shown = state.workers.values().flat_map(|handle| &handle.shown);
        let active = state.desired.pods.values().filter(|pod| !state.has_ended(pod));
        let specs = active.filter_map(|pod| pod.pod.spec.as_ref());
        let inspected = state.listed && state.uninspected.is_empty();
        let known = Known {
            listed: inspected && state.desired.told,
            complete: match inspected {
                true => state.desired.complete,
                false => Completeness::None,
            },
            uids: wished.chain(recorded).chain(shown).chain(in_runtime).cloned().collect_ordered(),
            containers: observed
                .flat_map(|pod| &pod.containers)
                .map(|c| c.id.clone())
                .collect_ordered(),
            burstable_shares: burstable_shares(specs),
        };
        self.known.publish_if_changed(Arc::new(known));
    }

    pub(super) fn publish_ending(&self) {
        let shutdown = self.state.machine.shutdown().cloned();
        let ending = Ending { left: self.state.left(), shutdown };
        self.ending.publish_if_changed(ending);
    }

    pub(super) fn publish_dead(&self) {
        let dead = self.state.workers.values().map(|handle| handle.dead).sum();
        self.dead.publish_if_changed(dead);
    }

    pub(super) fn publish_set_view(&self) {
        let names = self.state.observed.keys();
        let occupied = names.filter_map(|key| Some((key, self.state.occupancy(key)?)));
        let foreign = occupied.flat_map(|(key, occupancy)| foreign_pods(key, occupancy)).collect();
        let duplicates = self.state.desired.duplicates.clone();
        let cycles = self.state.order.cycles().to_vec();
        let view = SetView { foreign, duplicates, cycles };
        self.set_view.publish_if_changed(Arc::new(view));
    }
}

impl State {
    /// True when a wished pod has ended for good.
    pub(super) fn has_ended(&self, pod: &DesiredPod) -> bool {
        let ended = |recorded: &Recorded| recorded.ended && recorded.uid == pod.uid;
        self.desired.ends.get(&pod.key).is_some_and(|end| end.phase.is_some())
            || self.recorded(&pod.key).iter().any(ended)
    }

    /// The pods that must end for a shutdown and still run, or whose workers have not answered
    /// their last input. A pod that is yet to be inspected has no worker that could say when it
    /// ends. Before the runtime was listed, every pod may run whose record has no end.
    pub(super) fn left(&self) -> BTreeSet<PodKey> {
        let Some(shutdown) = self.machine.shutdown() else { return BTreeSet::new() };
        let has_turn = |priority: i32| shutdown.seconds_for(priority).is_some();
        if !self.listed {
            let may_run = |one: &Recorded| !one.ended && has_turn(priority_of(&one.pod));
            let left = self.recorded.iter().filter(|(_, all)| all.iter().any(may_run));
            return left.map(|(key, _)| key).cloned().collect_ordered();
        }
        let ending = self.workers.iter().filter(|(_, handle)| has_turn(handle.priority));
        let left = ending.filter(|(_, handle)| {
            handle.alive || handle.answered != Some(handle.input.borrow().sequence)
        });
        let uninspected = self.uninspected.iter().filter(|key| self.standing_uid(key).is_some());
        left.map(|(key, _)| key).chain(uninspected).cloned().collect_ordered()
    }
}

/// The incarnations under one name that belong to other agents.
fn foreign_pods(key: &PodKey, occupancy: Occupancy<'_>) -> Vec<ForeignPod> {
    let mut found: BTreeMap<PodUid, ForeignPod> = BTreeMap::new();
    for sandbox in occupancy.foreign_sandboxes() {
        let running = sandbox.state == SandboxState::Ready;
        let entry = found.entry(sandbox.uid.clone()).or_insert_with(|| ForeignPod {
            key: key.clone(),
            uid: sandbox.uid.clone(),
            owner: sandbox.owner.as_deref().map(str::to_owned),
            running,
            ips: Vec::new(),
        });
        entry.running |= running;
        if running {
            entry.ips.clone_from(&sandbox.ips);
        }
    }
    found.into_values().collect()
}
