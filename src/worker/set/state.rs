//! What the set knows between two inputs, and what follows from it for one pod name.

use super::{admit::Admitted, asked::Pending};
use crate::{
    admission::{Progress, StartOrder},
    desired::Desired,
    model::{
        Completeness, MachineState, NodeObjects, ObservedPod, Origin, PodKey, PodUid,
        PressureOrders, RuntimeView,
    },
    plan::{Occupancy, Rollout, Wish},
    podspec::is_static,
    store::PodRecord,
    worker::{Input, records::Recorded},
};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::watch;

/// The state of the set between two inputs.
#[derive(Default)]
pub(super) struct State {
    pub(super) workers: BTreeMap<PodKey, Handle>,
    pub(super) observed: BTreeMap<PodKey, Arc<ObservedPod>>,
    /// Names of which the runtime has something that is yet to be inspected. Their workers begin
    /// with the result.
    pub(super) uninspected: BTreeSet<PodKey>,
    /// This agent's owner id.
    pub(super) owner: Box<str>,
    /// Records that an earlier run of the agent left, of names whose workers have not begun.
    pub(super) records: BTreeMap<PodKey, Vec<PodRecord>>,
    pub(super) kept: BTreeMap<PodKey, Box<RawValue>>,
    /// The incarnations that have a record: as the worker reported last, and before its first
    /// report, as the earlier run of the agent left them.
    pub(super) recorded: BTreeMap<PodKey, Vec<Recorded>>,
    /// The revisions of pods of which one is on trial or rolled back.
    pub(super) rollouts: BTreeMap<PodKey, Arc<Rollout>>,
    pub(super) desired: Desired,
    pub(super) runtime: Arc<RuntimeView>,
    pub(super) machine: MachineState,
    pub(super) objects: Arc<NodeObjects>,
    pub(super) pressure: Arc<PressureOrders>,
    pub(super) admitted: Admitted,
    /// Which pods wait for which before they begin, and why those wait that do now.
    pub(super) order: StartOrder,
    pub(super) after: BTreeMap<PodKey, Arc<str>>,
    /// What people have asked of a pod last.
    pub(super) asked: BTreeMap<PodKey, Pending>,
    /// The number of requests so far.
    pub(super) requests: u64,
    pub(super) listed: bool,
}

/// What the set knows of a worker.
pub(super) struct Handle {
    pub(super) input: watch::Sender<Input>,
    /// The incarnation that its last report shows.
    pub(super) shown: Option<PodUid>,
    pub(super) priority: i32,
    /// True when anything ran at its last report.
    pub(super) alive: bool,
    /// How far that incarnation has got.
    pub(super) progress: Progress,
    /// The number of dead containers that are kept only for people to read.
    pub(super) dead: usize,
    /// The old revision of the pod runs on until the new one can take over.
    pub(super) update_waits: bool,
    /// The sequence number of the input that its last report answered.
    pub(super) answered: Option<u64>,
}

impl State {
    /// Puts earlier revisions in the place of those that were rolled back.
    pub(super) fn roll_back(&mut self) {
        for (key, rollout) in &self.rollouts {
            if let Some(wished) = self.desired.pods.get_mut(key)
                && let Some(previous) = rollout.in_place_of(wished)
            {
                *wished = Arc::clone(previous);
            }
        }
    }

    /// Why nothing may start for a wished pod.
    pub(super) fn starts_nothing(&self, key: &PodKey) -> Option<&'static str> {
        if self.machine == MachineState::Unknown {
            Some("waiting for logind to say whether the machine goes down")
        } else if self.desired.unconfirmed.contains(key) {
            let pod = self.desired.pods.get(key);
            Some(match pod.is_some_and(|pod| !is_static(&pod.pod)) {
                true => "waiting until the API server confirms that the pod still exists",
                false => "waiting until its manifest has been looked for",
            })
        } else {
            None
        }
    }

    pub(super) fn wish(&self, key: &PodKey) -> Wish {
        let Some(pod) = self.desired.pods.get(key).map(Arc::clone) else {
            return if self.is_unwanted(key) { Wish::Gone } else { Wish::Undecided };
        };
        if let Some(end) = self.desired.ends.get(key) {
            return Wish::End { pod, end: *end };
        }
        match self.starts_nothing(key) {
            Some(why) => Wish::Keep { pod, why },
            None => Wish::Run(pod),
        }
    }

    /// True when no source wants a name that is in none of them now. Static pods do not wait until
    /// the API server has said which pods it has, nor pods of the API server for a source of
    /// static pods that does not know everything: for that one, a last good manifest that is
    /// refused is enough, until somebody acts.
    fn is_unwanted(&self, key: &PodKey) -> bool {
        let all = |are_static: bool| {
            let recorded = self.recorded(key);
            let in_runtime = self.occupancy(key).into_iter().flat_map(Occupancy::own_sandboxes);
            let has_record = |uid: &PodUid| recorded.iter().any(|recorded| recorded.uid == *uid);
            !recorded.is_empty()
                && recorded.iter().all(|recorded| is_static(&recorded.pod) == are_static)
                && in_runtime.map(|sandbox| &sandbox.uid).all(has_record)
        };
        match self.desired.complete {
            Completeness::All => true,
            Completeness::Static => all(true),
            Completeness::Api => all(false),
            Completeness::None => false,
        }
    }

    /// True when a name has no worker and needs one: a pod is wished, or this agent has something
    /// of one. What is yet to be inspected has to wait.
    pub(super) fn needs_worker(&self, key: &PodKey) -> bool {
        if self.workers.contains_key(key) || self.uninspected.contains(key) {
            return false;
        }
        // If the agent crashed right after a pod was removed, its saved memory is still there. A
        // worker removes it.
        let saved = || self.kept.contains_key(key) || self.rollouts.contains_key(key);
        let kept = || self.desired.complete == Completeness::All && saved();
        self.desired.pods.contains_key(key) || self.standing_uid(key).is_some() || kept()
    }

    /// The incarnations under a name that have a record.
    pub(super) fn recorded(&self, key: &PodKey) -> &[Recorded] {
        self.recorded.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// What the runtime has under a name; `None` when it has nothing.
    pub(super) fn occupancy(&self, key: &PodKey) -> Option<Occupancy<'_>> {
        self.observed.get(key).map(|observed| Occupancy::new(observed, &self.owner))
    }

    /// True when the runtime has sandboxes of others under a name.
    pub(super) fn has_foreign(&self, key: &PodKey) -> bool {
        self.occupancy(key).is_some_and(|all| all.foreign_sandboxes().next().is_some())
    }

    /// The incarnation of this agent under a name: the one that the worker shows. Before the worker
    /// has shown one, it is the first that has a record, and without records the newest that runs.
    pub(super) fn standing_uid(&self, key: &PodKey) -> Option<&PodUid> {
        let shown = self.workers.get(key).and_then(|handle| handle.shown.as_ref());
        let recorded = || self.recorded(key).first().map(|recorded| &recorded.uid);
        shown.or_else(recorded).or_else(|| self.occupancy(key)?.newest_own_uid())
    }

    /// The place of the manifest that is in use for a name: the one that the last merge of the
    /// sources has chosen. Where it has none, it is that of the first record.
    pub(super) fn in_use(&self, key: &PodKey) -> Option<&Origin> {
        let recorded = || self.records.get(key)?.first()?.origin.as_ref();
        self.desired.pods.get(key).map(|pod| &pod.origin).or_else(recorded)
    }

    /// True when this agent has anything of an incarnation under a name.
    pub(super) fn has(&self, key: &PodKey, uid: &PodUid) -> bool {
        self.workers.get(key).is_some_and(|handle| handle.shown.as_ref() == Some(uid))
            || self.recorded(key).iter().any(|recorded| recorded.uid == *uid)
            || self.runs(key, uid)
    }

    /// True when this agent has a sandbox of an incarnation in the runtime.
    pub(super) fn runs(&self, key: &PodKey, uid: &PodUid) -> bool {
        self.occupancy(key).is_some_and(|all| all.own_sandboxes_of(uid).next().is_some())
    }
}
