//! Regular containers: they start in the order of the spec, independently of each other.

use super::{
    Action, ContainerKind, PodPlan, Restart,
    init::kill,
    kill::is_alive,
    name::Cx,
    objects::kill_outdated,
    occupancy::Own,
    probes::kill_unhealthy,
    restart::{Verdict, is_changed, plan_start, restarts_at_once, verdict},
};
use crate::model::{ContainerState, ObservedSandbox, k8s};
use crate::podspec::{ephemeral_containers, is_sidecar};

/// Starts, restarts and replaces the regular containers of an initialised pod.
pub(crate) fn plan_regular(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) {
    for container in cx.regular {
        let Some(instance) = cx.own.newest(&container.name) else {
            plan_start(cx, container, ContainerKind::Regular, sandbox, plan);
            continue;
        };
        match instance.state {
            ContainerState::Running { .. } => {
                if is_changed(container, instance) {
                    let message = format!(
                        "Container {} definition changed, will be restarted",
                        container.name
                    );
                    kill(cx, instance, Some(message), plan);
                } else if instance.sandbox_id != sandbox.id {
                    kill(cx, instance, None, plan);
                } else if restarts_at_once(cx, container, instance) {
                    plan_start(cx, container, ContainerKind::Regular, sandbox, plan);
                } else if !kill_outdated(cx, container, instance, plan) {
                    kill_unhealthy(cx, container, instance, plan);
                }
            }
            ContainerState::Unknown => kill(cx, instance, None, plan),
            ContainerState::Created => {
                plan_start(cx, container, ContainerKind::Regular, sandbox, plan);
            }
            ContainerState::Exited { .. } => match verdict(cx, container, instance) {
                Verdict::Restart | Verdict::RestartAll => {
                    plan_start(cx, container, ContainerKind::Regular, sandbox, plan);
                }
                Verdict::Stay => {}
            },
        }
    }
}

/// True when a container runs that the edited `pod` does not have, or has with another definition:
/// it is stopped soon.
pub(crate) fn stops_for_edit(own: &Own<'_>, pod: &k8s::Pod) -> bool {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    own.containers.iter().filter(|instance| is_alive(instance)).any(|instance| {
        let is_it = |container: &&k8s::Container| *container.name == *instance.name;
        match init.iter().find(is_it) {
            // An init container runs to its end as it is.
            Some(container) => is_sidecar(container) && is_changed(container, instance),
            None => match regular.iter().find(is_it) {
                Some(container) => is_changed(container, instance),
                None => ephemeral_containers(pod).iter().all(|one| *one.name != *instance.name),
            },
        }
    })
}

/// Stops containers that the pod no longer has (a pod with a fixed uid may be edited in place), and
/// those that run beside a newer container of their name: the runtime may have carried out a start
/// that it reported as failed. They are stopped before the edit is taken in, because their preStop
/// hooks are in the record.
pub(crate) fn plan_unlisted(cx: &Cx<'_>, plan: &mut PodPlan) {
    let stop = cx.stop(Restart::ByPolicy);
    let listed = |name: &str| {
        cx.init.iter().chain(cx.regular).any(|c| c.name == name)
            || ephemeral_containers(cx.pod).iter().any(|c| c.name == name)
    };
    for container in cx.own.containers.iter().filter(|c| is_alive(c)) {
        let name = &container.name;
        let message = match cx.own.newest(name) {
            _ if !listed(name) => format!("Container {name} is no longer part of the pod"),
            // One that has ended already needs no stop.
            Some(newest) if newest.id != container.id && container.ended_with.is_none() => {
                format!("Container {name} runs twice, the older one is stopped")
            }
            Some(_) | None => continue,
        };
        plan.actions.push(Action::KillContainer(stop.kill(container, Some(message))));
    }
}
