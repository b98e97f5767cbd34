//! Which ConfigMaps and Secrets the volumes and containers of a pod have got. It is known only while
//! the agent runs, and nowhere saved: not even a hash of a Secret lies on disk.

use super::Input;
use crate::{
    model::{
        ContainerId, DataObject, DesiredPod, NodeObjects, ObjectKey, ObservedPod, PodUid,
        RESTART_ON_CONFIG_CHANGE, k8s,
    },
    plan::Outcome,
    podspec::{ObjectRef, object_refs},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The objects that a pod reads, as they are at one time; `None`: it is not there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ObjectsRead(BTreeMap<ObjectKey, Option<Arc<DataObject>>>);

impl ObjectsRead {
    pub(super) fn of(pod: &k8s::Pod, objects: &NodeObjects) -> Self {
        let keys = object_refs(pod).into_iter().filter(ObjectRef::is_read).map(|found| found.key);
        Self(keys.map(|key| (key.clone(), objects.found.get(&key).cloned())).collect())
    }

    /// Whether there are other data now. An object that is gone is no other one.
    fn is_outdated_by(&self, now: &Self) -> bool {
        let differs = |(key, object): (&ObjectKey, &Option<Arc<DataObject>>)| {
            object.is_some() && self.0.get(key) != Some(object)
        };
        now.0.iter().any(differs)
    }
}

/// What was used last.
#[derive(Debug, Default)]
pub(super) struct ObjectsUsed {
    /// What the volumes of an incarnation were made from; `None` before this run of the agent has
    /// written them.
    written: Option<(PodUid, ObjectsRead)>,
    /// What containers began with, of a pod with [`RESTART_ON_CONFIG_CHANGE`]. For a container that
    /// an earlier run of the agent started, it is what there was when this run saw it first.
    begun_with: BTreeMap<ContainerId, ObjectsRead>,
}

impl ObjectsUsed {
    /// Takes in what an action has done with `objects`.
    pub(super) fn take(&mut self, outcome: &Outcome, objects: ObjectsRead) {
        if let Outcome::Prepared { uid } = outcome {
            self.written = Some((uid.clone(), objects));
        } else if let Outcome::ContainerStarted(container) = outcome
            && !objects.0.is_empty()
        {
            self.begun_with.insert(container.id.clone(), objects);
        }
    }

    /// True when the volumes of the wished pod were made from the objects of `input`.
    pub(super) fn are_written(&self, input: &Input) -> bool {
        let Some(desired) = input.orders.wish.pod() else { return true };
        let written = self.written.as_ref().filter(|(uid, _)| *uid == desired.uid);
        let now = || ObjectsRead::of(&desired.pod, &input.objects);
        written.is_some_and(|(_, objects)| *objects == now())
    }

    /// The containers that run and began with other objects than there are now, if the pod wants
    /// them restarted.
    pub(super) fn outdated(
        &mut self,
        input: &Input,
        observed: &ObservedPod,
    ) -> BTreeSet<ContainerId> {
        let Some(pod) = input.orders.wish.pod().filter(|pod| wants_restarts(pod)) else {
            self.begun_with.clear();
            return BTreeSet::new();
        };
        if !input.objects.known {
            return BTreeSet::new();
        }
        let now = ObjectsRead::of(&pod.pod, &input.objects);
        let own = observed.containers.iter().filter(|container| container.uid == pod.uid);
        let running: BTreeSet<&ContainerId> =
            own.filter(|container| container.state.is_running()).map(|own| &own.id).collect();
        self.begun_with.retain(|id, _| running.contains(id));
        let mut outdated = BTreeSet::new();
        for id in running {
            let before = self.begun_with.entry(id.clone()).or_insert_with(|| now.clone());
            if before.is_outdated_by(&now) {
                outdated.insert(id.clone());
            }
        }
        outdated
    }
}

fn wants_restarts(pod: &DesiredPod) -> bool {
    let annotations = pod.pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(RESTART_ON_CONFIG_CHANGE)).is_some_and(|text| text == "true")
}
