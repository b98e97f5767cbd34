//! Regular containers: they start in the order of the spec, independently of each other.

use super::{
    Action, ContainerKind, PodPlan, Restart,
    init::kill,
    kill::{is_alive, kind_of},
    name::Cx,
    objects::kill_outdated,
    occupancy::Own,
    probes::kill_unhealthy,
    restart::{Verdict, is_changed, plan_start, restarts_at_once, verdict},
};
use crate::model::{ContainerState, ObservedSandbox, k8s};
use crate::podspec::any_container_of;

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
    own.containers.iter().filter(|instance| is_alive(instance)).any(|instance| {
        let Some(container) = any_container_of(pod, &instance.name) else { return true };
        match kind_of(Some(pod), &instance.name) {
            // These run to their ends as they are.
            ContainerKind::Init | ContainerKind::Ephemeral => false,
            ContainerKind::Sidecar | ContainerKind::Regular => is_changed(&container, instance),
        }
    })
}

/// Stops containers that the pod no longer has (a pod with a fixed uid may be edited in place), and
/// those that run beside a newer container of their name: the runtime may have carried out a start
/// that it reported as failed. They are stopped before the edit is taken in, because their preStop
/// hooks are in the record. The hook of an older container is not called: what it asks for over the
/// network would reach the newer one.
pub(crate) fn plan_unlisted(cx: &Cx<'_>, plan: &mut PodPlan) {
    let stop = cx.stop(Restart::ByPolicy);
    for container in cx.own.containers.iter().filter(|c| is_alive(c)) {
        let name = &container.name;
        // One whose end is known from its event shows as running for a moment.
        let is_older = cx.own.newest(name).is_some_and(|newest| newest.id != container.id)
            && container.ended_with.is_none();
        let message = if any_container_of(cx.pod, name).is_none() {
            format!("Container {name} is no longer part of the pod")
        } else if is_older {
            format!("Container {name} runs twice, the older one is stopped")
        } else {
            continue;
        };
        let mut kill = stop.kill(container, Some(message));
        kill.pre_stop &= !is_older;
        plan.actions.push(Action::KillContainer(kill));
    }
}
