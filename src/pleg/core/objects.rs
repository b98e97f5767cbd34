//! What is listed and inspected, and how it is compared and replaced within a pod.

use crate::model::{
    ContainerId, ContainerState, NetworkMode, ObservedContainer, ObservedPod, ObservedSandbox,
    Order as _, PodKey, SandboxId, SandboxState,
};
use std::{collections::BTreeMap, mem, time::Duration};

#[derive(Clone, Debug, Default)]
pub(in crate::pleg) struct Listing {
    /// Boot time at which it began.
    pub(in crate::pleg) began: Duration,
    /// Sandboxes without what only an inspection tells.
    pub(in crate::pleg) sandboxes: Vec<(PodKey, ObservedSandbox)>,
    /// Containers without what only an inspection tells.
    pub(in crate::pleg) containers: Vec<(PodKey, ObservedContainer)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pleg) enum Scope {
    All,
    /// The pods that were asked for.
    Asked,
}

/// Something that is inspected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pleg) enum Object {
    Sandbox(SandboxId),
    Container(ContainerId),
}

impl Object {
    pub(in crate::pleg) fn call(&self) -> String {
        match self {
            Self::Sandbox(id) => format!("PodSandboxStatus of {id}"),
            Self::Container(id) => format!("ContainerStatus of {id}"),
        }
    }
}

/// An inspection to make: the object as far as it is known, to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pleg) enum Subject {
    /// As listed, with the addresses that it had.
    Sandbox(ObservedSandbox),
    Container(Box<ObservedContainer>),
}

impl Subject {
    pub(in crate::pleg) fn object(&self) -> Object {
        match self {
            Self::Sandbox(sandbox) => Object::Sandbox(sandbox.id.clone()),
            Self::Container(container) => Object::Container(container.id.clone()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pleg) enum Found {
    Complete(Subject),
    /// It is gone since it was listed.
    Gone,
    /// It could not be inspected, and why.
    Failed(String),
}

/// An inspection to make, of a pod's object.
pub(in crate::pleg) type Inspection = (PodKey, Subject);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pleg) struct KnownObject {
    pub(in crate::pleg) subject: Subject,
    pub(in crate::pleg) alive: bool,
}

pub(super) fn by_pod(listing: Listing) -> BTreeMap<PodKey, ObservedPod> {
    let mut pods: BTreeMap<PodKey, ObservedPod> = BTreeMap::new();
    for (key, sandbox) in listing.sandboxes {
        pods.entry(key).or_default().sandboxes.push(sandbox);
    }
    for (key, container) in listing.containers {
        pods.entry(key).or_default().containers.push(container);
    }
    // The first push makes room for four, and these lists are kept for as long as the pod is.
    for pod in pods.values_mut() {
        pod.sandboxes.shrink_to_fit();
        pod.containers.shrink_to_fit();
    }
    pods
}

/// Whether a listed pod has the same objects in the same states as the known one. A pod whose
/// inspection failed is never unchanged.
pub(super) fn is_unchanged(known: &ObservedPod, listed: &ObservedPod) -> bool {
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
pub(super) fn same_sandbox(known: &ObservedSandbox, listed: &ObservedSandbox) -> bool {
    let lacks_address = known.network == NetworkMode::Pod && known.ips.is_empty();
    known.state == listed.state && !(known.state == SandboxState::Ready && lacks_address)
}

pub(super) fn same_state(known: &ContainerState, listed: &ContainerState) -> bool {
    mem::discriminant(known) == mem::discriminant(listed)
}

/// Whether two pictures of a pod show the same.
pub(super) fn is_same(one: &ObservedPod, other: &ObservedPod) -> bool {
    one.sandboxes == other.sandboxes
        && one.containers == other.containers
        && one.inspect_error == other.inspect_error
}

pub(super) fn put(pod: &mut ObservedPod, subject: Subject) {
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

/// Shows an object as it was last seen, if it was. A container that has started since then runs, as
/// the listing says: only an end needs what an inspection tells.
pub(super) fn put_back(pod: &mut ObservedPod, before: &ObservedPod, object: &Object) {
    match object {
        Object::Sandbox(id) => {
            let known = before.sandboxes.iter().find(|sandbox| sandbox.id == *id).cloned();
            known.into_iter().for_each(|known| put(pod, Subject::Sandbox(known)));
        }
        Object::Container(id) => {
            let of_id = |container: &&ObservedContainer| container.id == *id;
            let Some(mut known) = before.containers.iter().find(of_id).cloned() else { return };
            let listed = pod.containers.iter().find(of_id).map(|listed| &listed.state);
            if let Some(state) = listed.filter(|state| state.is_running())
                && !known.state.is_running()
            {
                known.state = state.clone();
            }
            put(pod, Subject::Container(Box::new(known)));
        }
    }
}

pub(super) fn drop_object(pod: &mut ObservedPod, object: &Object) {
    match object {
        Object::Sandbox(id) => pod.sandboxes.retain(|sandbox| sandbox.id != *id),
        Object::Container(id) => pod.containers.retain(|container| container.id != *id),
    }
}

/// Newest first: by attempt and restart count, since clocks may be set back.
pub(super) fn sort(pod: &mut ObservedPod) {
    pod.sandboxes.order_by(|a, b| {
        (&a.uid, b.attempt, b.created_at, &a.id).cmp(&(&b.uid, a.attempt, a.created_at, &b.id))
    });
    pod.containers.order_by(|a, b| {
        (&a.uid, &a.name, b.restart_count, b.created_at, &a.id).cmp(&(
            &b.uid,
            &b.name,
            a.restart_count,
            a.created_at,
            &b.id,
        ))
    });
}
