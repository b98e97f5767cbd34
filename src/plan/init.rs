//! Init containers and sidecars: they start one after the other, in the order of the spec.
//!
//! Only instances in the current sandbox count. In a new sandbox all of them run again.

use super::{
    Action, ContainerKind, PodPlan, Restart,
    name::Cx,
    objects::kill_outdated,
    probes::{is_started, kill_unhealthy},
    restart::{container_policy, is_changed, is_init_failure, plan_start},
};
use crate::model::{ContainerState, ObservedContainer, ObservedSandbox, k8s};
use crate::podspec::is_sidecar;

/// Runs the init containers and keeps the sidecars running. Returns true when regular containers
/// may start.
pub(crate) fn plan_init(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) -> bool {
    // A regular container is created in a sandbox only after all init containers have ended there.
    let initialized = cx.regular.iter().any(|c| cx.own.newest_in(&c.name, sandbox).is_some());
    if initialized {
        for sidecar in cx.init.iter().filter(|container| is_sidecar(container)) {
            keep_running(cx, sidecar, sandbox, plan);
        }
        return true;
    }
    let furthest = cx
        .init
        .iter()
        .enumerate()
        .rev()
        .find_map(|(index, c)| Some((index, c, cx.own.newest_in(&c.name, sandbox)?)));
    let next = match furthest {
        None => 0,
        Some((index, container, instance)) => {
            for sidecar in cx.init[..index].iter().filter(|container| is_sidecar(container)) {
                keep_running(cx, sidecar, sandbox, plan);
            }
            let done = if is_sidecar(container) {
                keep_running(cx, container, sandbox, plan)
            } else {
                run_to_end(cx, container, instance, sandbox, plan)
            };
            if !done {
                return false;
            }
            index + 1
        }
    };
    let Some(container) = cx.init.get(next) else { return true };
    plan_start(cx, container, kind_of_init(container), sandbox, plan);
    false
}

pub(super) fn kind_of_init(container: &k8s::Container) -> ContainerKind {
    if is_sidecar(container) { ContainerKind::Sidecar } else { ContainerKind::Init }
}

/// Runs a plain init container. Returns true when it has done its work.
fn run_to_end(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
    sandbox: &ObservedSandbox,
    plan: &mut PodPlan,
) -> bool {
    match instance.state {
        ContainerState::Running { .. } => false,
        ContainerState::Exited { .. } if !is_init_failure(container, instance) => true,
        // A failure that is not retried ends the pod, once a listing has confirmed it.
        ContainerState::Created | ContainerState::Exited { .. } => {
            plan_start(cx, container, ContainerKind::Init, sandbox, plan);
            false
        }
        ContainerState::Unknown => {
            // It may have done a part of its work, which `Never` lets nobody do twice.
            let never = container_policy(cx, container) == "Never";
            let stop = cx.stop(if never { Restart::ByPolicy } else { Restart::AtOnce });
            plan.actions.push(Action::KillContainer(stop.kill(instance, None)));
            false
        }
    }
}

/// Keeps a sidecar running. Returns true when it has started and is not about to be replaced.
fn keep_running(
    cx: &Cx<'_>,
    container: &k8s::Container,
    sandbox: &ObservedSandbox,
    plan: &mut PodPlan,
) -> bool {
    let Some(instance) = cx.own.newest_in(&container.name, sandbox) else {
        plan_start(cx, container, ContainerKind::Sidecar, sandbox, plan);
        return false;
    };
    match instance.state {
        ContainerState::Running { .. } if !is_changed(container, instance) => {
            !kill_outdated(cx, container, instance, plan)
                && !kill_unhealthy(cx, container, instance, plan)
                && is_started(cx, container, instance)
        }
        ContainerState::Running { .. } => {
            let message = format!("Init container {} definition changed", container.name);
            kill(cx, instance, Some(message), plan);
            false
        }
        ContainerState::Unknown => {
            kill(cx, instance, None, plan);
            false
        }
        ContainerState::Created | ContainerState::Exited { .. } => {
            plan_start(cx, container, ContainerKind::Sidecar, sandbox, plan);
            false
        }
    }
}

/// Kills an instance, so that the next plan starts another one.
pub(crate) fn kill(
    cx: &Cx<'_>,
    instance: &ObservedContainer,
    message: Option<String>,
    plan: &mut PodPlan,
) {
    let stop = cx.stop(Restart::AtOnce);
    plan.actions.push(Action::KillContainer(stop.kill(instance, message)));
}
