//! Which ConfigMaps, Secrets and tokens the volumes and containers of a pod have got, and which
//! labels and annotations its volumes have got. It is known only while the agent runs, and nowhere
//! saved: not even a hash of a Secret lies on disk.

use super::Input;
use crate::{
    model::{
        CollectOrdered as _, ContainerId, DataObject, DesiredPod, NodeObjects, ObjectKey,
        ObjectSight, ObservedPod, PodUid, RESTART_ON_CONFIG_CHANGE, ServiceAccountToken,
        TokenAnswer, TokenKey, k8s,
    },
    plan::Outcome,
    podspec::{ObjectRef, are_objects_known, metadata_hash, object_refs, object_scope, token_keys},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The objects and tokens that a pod reads, and the metadata of its own in its volumes, as they are
/// at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectsRead {
    objects: BTreeMap<ObjectKey, Read>,
    /// Only volumes have them. So a new token makes no container outdated.
    tokens: BTreeMap<TokenKey, Option<ServiceAccountToken>>,
    /// A hash of the labels and annotations in its volumes. It makes no container outdated either.
    metadata: Option<u64>,
}

#[derive(Clone, Debug)]
struct Read {
    /// `None`: it is not there.
    object: Option<Arc<DataObject>>,
    /// All references to it are optional.
    optional: bool,
}

impl ObjectsRead {
    pub(super) fn of(pod: &k8s::Pod, objects: &NodeObjects) -> Self {
        let mut read = BTreeMap::new();
        for reference in object_refs(pod).into_iter().filter(ObjectRef::is_read) {
            let object = match objects.sight(object_scope(pod), &reference.key) {
                ObjectSight::Found(object) => Some(Arc::clone(object)),
                ObjectSight::Missing | ObjectSight::Refused(_) | ObjectSight::Unknown => None,
            };
            let entry = read.entry(reference.key).or_insert(Read { object, optional: true });
            entry.optional &= reference.optional;
        }
        let token = |key: TokenKey| {
            let issued = match objects.api.tokens.get(&key) {
                Some(TokenAnswer::Issued(token)) => Some(token.clone()),
                Some(TokenAnswer::Refused(_)) | None => None,
            };
            (key, issued)
        };
        let tokens = token_keys(pod).into_iter().map(token).collect_ordered();
        Self { objects: read, tokens, metadata: metadata_hash(pod) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.tokens.is_empty() && self.metadata.is_none()
    }

    pub(super) fn has_same_data(&self, other: &Self) -> bool {
        let (objects, others) = (&self.objects, &other.objects);
        objects.keys().eq(others.keys())
            && objects.values().zip(others.values()).all(|(a, b)| a.has_same_data(b))
            && self.tokens == other.tokens
            && self.metadata == other.metadata
    }

    /// Whether there are other data now. An object that is gone is no other one. An object that
    /// was not there although the pod needs it was not known, so it is taken as it is now.
    fn is_outdated_by(&mut self, now: &Self) -> bool {
        let mut outdated = false;
        for (key, now) in now.objects.iter().filter(|(_, now)| now.object.is_some()) {
            match self.objects.get_mut(key) {
                Some(before) if before.object.is_none() && !before.optional => {
                    *before = now.clone();
                }
                Some(before) => outdated |= !before.has_same_data(now),
                None => {}
            }
        }
        outdated
    }
}

impl Read {
    fn has_same_data(&self, other: &Self) -> bool {
        match (&self.object, &other.object) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a.data == b.data,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
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
        if let Outcome::Prepared { uid, .. } = outcome {
            self.written = Some((uid.clone(), objects));
        } else if let Outcome::ContainerStarted(container) = outcome
            && !objects.is_empty()
        {
            self.begun_with.insert(container.id.clone(), objects);
        }
    }

    /// True when the volumes of the wished pod were made from the objects of `input`, and from its
    /// labels and annotations there.
    pub(super) fn are_written(&self, input: &Input) -> bool {
        let Some(desired) = input.orders.wish.pod() else { return true };
        let written = self.written.as_ref().filter(|(uid, _)| *uid == desired.uid);
        let now = || ObjectsRead::of(&desired.pod, &input.objects);
        written.is_some_and(|(_, objects)| objects.has_same_data(&now()))
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
        if !are_objects_known(&pod.pod, &input.objects) {
            return BTreeSet::new();
        }
        let now = ObjectsRead::of(&pod.pod, &input.objects);
        let own = observed.containers.iter().filter(|container| container.uid == pod.uid);
        let running: BTreeSet<&ContainerId> = own
            .filter(|container| container.state.is_running())
            .map(|own| &own.id)
            .collect_ordered();
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

#[cfg(test)]
mod tests;
