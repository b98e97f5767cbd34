//! How containers and pods are stopped, and how an incarnation is removed.

use super::{
    Action, KillContainer, KillDeadline, KillPod, KillPurpose, MIN_STOP_SECONDS, NameInput,
    PodPlan, RemoveContainer, RemoveSandbox, Restart,
    action::ContainerKind,
    memory::{Ending, Stage, whole_seconds},
    occupancy::Own,
};
use crate::model::{
    ContainerState, Event, EventKind, EventTarget, Now, ObservedContainer, PodKey, PodUid, k8s,
};
use crate::podspec::{ephemeral_containers, grace_seconds, is_sidecar};
use std::time::Duration;

/// True when a process of the container may run: the container must be stopped before it can be
/// removed.
pub(crate) fn is_alive(container: &ObservedContainer) -> bool {
    match container.state {
        ContainerState::Running { .. } | ContainerState::Unknown => true,
        ContainerState::Created | ContainerState::Exited { .. } => false,
    }
}

/// The kind of a container by its name. A container that is in no list of the spec counts as
/// regular.
pub(crate) fn kind_of(pod: Option<&k8s::Pod>, name: &str) -> ContainerKind {
    let init = pod.and_then(|pod| pod.spec.as_ref()).and_then(|s| s.init_containers.as_ref());
    match init.into_iter().flatten().find(|container| container.name == name) {
        Some(container) if is_sidecar(container) => ContainerKind::Sidecar,
        Some(_) => ContainerKind::Init,
        None if is_ephemeral(pod, name) => ContainerKind::Ephemeral,
        None => ContainerKind::Regular,
    }
}

fn is_ephemeral(pod: Option<&k8s::Pod>, name: &str) -> bool {
    pod.is_some_and(|pod| ephemeral_containers(pod).iter().any(|one| one.name == name))
}

/// How the containers of one incarnation are stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop<'a> {
    pub(crate) key: &'a PodKey,
    pub(crate) pod: Option<&'a k8s::Pod>,
    pub(crate) grace_seconds: u32,
    pub(crate) restart: Restart,
}

impl Stop<'_> {
    /// The action that stops one container. `message` is the text of its event; `None`: the usual
    /// text.
    pub(crate) fn kill(
        &self,
        container: &ObservedContainer,
        message: Option<String>,
    ) -> KillContainer {
        let kind = kind_of(self.pod, &container.name);
        // By itself, as its event tells, and not by this kill.
        let ended = container.ended_with.is_some();
        let message = message.unwrap_or_else(|| match container.state {
            ContainerState::Unknown => {
                let what = match kind {
                    ContainerKind::Init | ContainerKind::Sidecar => "Init container",
                    ContainerKind::Regular | ContainerKind::Ephemeral => "Container",
                };
                format!("{what} is in \"unknown\" state, try killing it before restart")
            }
            ContainerState::Created
            | ContainerState::Running { .. }
            | ContainerState::Exited { .. } => format!("Stopping container {}", container.name),
        });
        KillContainer {
            uid: container.uid.clone(),
            id: container.id.clone(),
            name: container.name.clone(),
            grace_seconds: self.grace_seconds.max(MIN_STOP_SECONDS),
            event: Event {
                target: EventTarget::Pod {
                    key: self.key.clone(),
                    uid: container.uid.clone(),
                    field_path: Some(kind.field_path(&container.name)),
                },
                kind: EventKind::Normal,
                reason: "Killing",
                message,
            },
            restart: if ended { Restart::ByPolicy } else { self.restart },
            pre_stop: self.grace_seconds > 0 && !ended,
        }
    }

    /// All containers that may run. Regular, init and ephemeral containers are the first group; the
    /// sidecars follow in reverse order of declaration.
    pub(crate) fn groups(&self, containers: &[&ObservedContainer]) -> Vec<Vec<KillContainer>> {
        let alive = || containers.iter().filter(|container| is_alive(container));
        let first: Vec<_> = alive()
            .filter(|c| kind_of(self.pod, &c.name) != ContainerKind::Sidecar)
            .map(|c| self.kill(c, None))
            .collect();
        let mut groups = vec![first];
        let spec = self.pod.and_then(|pod| pod.spec.as_ref());
        let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        for sidecar in init.iter().rev().filter(|container| is_sidecar(container)) {
            let named = alive().filter(|c| *c.name == *sidecar.name);
            groups.push(named.map(|c| self.kill(c, None)).collect());
        }
        groups.retain(|group| !group.is_empty());
        groups
    }
}

/// Removes one incarnation as far as possible: stops it, removes its containers and sandboxes,
/// cleans up.
pub(crate) fn plan_retire(input: &NameInput<'_>, uid: &PodUid, now: Now, plan: &mut PodPlan) {
    let known = input.incarnation(uid);
    let pod = known.and_then(|known| known.pod.as_deref());
    let own = input.own(uid);
    let memory = input.memory.of(uid);
    for stage in [Stage::Kill, Stage::Remove, Stage::CleanUp] {
        if let Some((retry, due)) = memory.held_back(stage, now) {
            plan.block(&format!("uid {uid} of this name is not gone yet: {}", retry.message));
            plan.wake(due);
            return;
        }
    }
    let kill = Retirement {
        key: input.key,
        uid,
        pod,
        begun: known.and_then(|known| known.kill),
        ending: memory.ending,
        ordered: input.orders.stop_seconds(uid, pod),
    };
    plan.actions.extend(kill.kill(&own, now).map(Action::KillPod));
    for container in &own.containers {
        plan.actions.push(remove(container, false));
    }
    for sandbox in &own.sandboxes {
        let (uid, id) = (uid.clone(), sandbox.id.clone());
        plan.actions.push(Action::RemoveSandbox(RemoveSandbox { uid, id }));
    }
    if let Some(foreign) = input.occupancy().foreign_use(uid) {
        let owner = foreign.owner.as_deref().unwrap_or("nobody");
        plan.block(&format!(
            "uid {uid} of this name runs in sandbox {}, whose owner is {owner}: its volumes and cgroup stay",
            foreign.id
        ));
        return;
    }
    plan.actions.push(Action::CleanUp { uid: uid.clone() });
}

/// The removal of one incarnation.
struct Retirement<'a> {
    key: &'a PodKey,
    uid: &'a PodUid,
    pod: Option<&'a k8s::Pod>,
    /// The deadline in its record, if the removal has begun.
    begun: Option<KillDeadline>,
    /// The stop that it has begun before: a pod of the API server was deleted, and its object is
    /// gone.
    ending: Option<Ending>,
    /// The shortest period that a deletion, a hold or a shutdown gives it, in seconds.
    ordered: Option<u32>,
}

impl Retirement<'_> {
    /// The action that stops the pod; `None` when nothing runs.
    fn kill(&self, own: &Own<'_>, now: Now) -> Option<KillPod> {
        if !own.is_alive() {
            return None;
        }
        let deadline = self.deadline(now);
        let left = deadline.at.saturating_sub(now.boot);
        let left = whole_seconds(left).min(deadline.grace_seconds);
        let stop =
            Stop { key: self.key, pod: self.pod, grace_seconds: left, restart: Restart::ByPolicy };
        Some(KillPod {
            uid: self.uid.clone(),
            purpose: KillPurpose::Retire { deadline },
            groups: stop.groups(&own.containers),
            sandboxes: own.ready_sandboxes().map(|s| s.id.clone()).collect(),
        })
    }

    /// The deadline that was granted first, unless a later order allows less time.
    fn deadline(&self, now: Now) -> KillDeadline {
        let of = |grace_seconds: u32| KillDeadline {
            grace_seconds,
            at: now.boot + Duration::from_secs(u64::from(grace_seconds)),
        };
        let own = self.begun.unwrap_or_else(|| {
            let seconds = grace_seconds(self.pod);
            of(self.ending.map_or(seconds, |ending| ending.time_left(seconds, now)))
        });
        let ordered = self.ordered.map(|seconds| of(seconds.min(own.grace_seconds)));
        ordered.filter(|ordered| ordered.at < own.at).unwrap_or(own)
    }
}

pub(crate) fn remove(container: &ObservedContainer, keep_logs: bool) -> Action {
    Action::RemoveContainer(RemoveContainer {
        uid: container.uid.clone(),
        id: container.id.clone(),
        name: container.name.clone(),
        keep_logs,
        restart_count: container.restart_count,
    })
}
