//! Regular containers: they start in the order of the spec, independently of each other.

use super::{
    Action, ContainerKind, PodPlan, Restart,
    init::kill,
    kill::is_alive,
    name::Cx,
    objects::kill_outdated,
    probes::kill_unhealthy,
    restart::{Verdict, is_changed, plan_start, verdict},
};
use crate::model::{ContainerState, ObservedSandbox};
use crate::podspec::ephemeral_containers;

/// Starts, restarts and replaces the regular containers of an initialised pod.
pub(crate) fn plan_regular(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) {
    plan_unlisted(cx, plan);
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

/// Stops containers that the pod no longer has (a pod with a fixed uid may be edited in place), and
/// those that run beside a newer container of their name: the runtime may have carried out a start
/// that it reported as failed.
fn plan_unlisted(cx: &Cx<'_>, plan: &mut PodPlan) {
    let stop = cx.stop(Restart::ByPolicy);
    let listed = |name: &str| {
        cx.init.iter().chain(cx.regular).any(|c| c.name == name)
            || ephemeral_containers(cx.pod).iter().any(|c| c.name == name)
    };
    for container in cx.own.containers.iter().filter(|c| is_alive(c)) {
        let name = &container.name;
        let message = match cx.own.newest(name) {
            _ if !listed(name) => format!("Container {name} is no longer part of the pod"),
            Some(newest) if newest.id != container.id => {
                format!("Container {name} runs twice, the older one is stopped")
            }
            Some(_) | None => continue,
        };
        plan.actions.push(Action::KillContainer(stop.kill(container, Some(message))));
    }
}
