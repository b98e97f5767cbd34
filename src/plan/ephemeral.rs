//! Ephemeral containers: each is started once, whatever else the pod does, and never again.
//!
//! They count neither for the phase nor for the end of the pod, and they are stopped with it. The
//! dead instance shows that a container has run, so it stays until the pod goes.
//!
//! (The kubelet never starts an instance that was created and not started. Such an instance is
//! left when the agent dies in the middle of a start, so here it is started.)

use super::{Action, ContainerKind, PodPlan, Restart, name::Cx, restart::plan_start};
use crate::model::{ContainerId, ContainerState, EventKind, ObservedSandbox, k8s};
use crate::podspec::{Unsupported, as_container, ephemeral_containers, unsupported_ephemeral};

/// Starts the ephemeral containers that have not run yet. They do not wait for init containers.
pub(crate) fn plan_ephemeral(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) {
    for ephemeral in ephemeral_containers(cx.pod) {
        let Some(instance) = cx.own.newest(&ephemeral.name) else {
            start(cx, ephemeral, sandbox, plan);
            continue;
        };
        match instance.state {
            ContainerState::Created => start(cx, ephemeral, sandbox, plan),
            ContainerState::Running { .. } if instance.sandbox_id != sandbox.id => {
                let stop = cx.stop(Restart::ByPolicy);
                plan.actions.push(Action::KillContainer(stop.kill(instance, None)));
            }
            ContainerState::Running { .. }
            | ContainerState::Exited { .. }
            | ContainerState::Unknown => {}
        }
    }
}

fn start(
    cx: &Cx<'_>,
    ephemeral: &k8s::EphemeralContainer,
    sandbox: &ObservedSandbox,
    plan: &mut PodPlan,
) {
    let container = as_container(ephemeral);
    let (reason, message) = match target(cx, ephemeral, sandbox) {
        Target::Absent(message) => ("Failed", message),
        Target::Unset | Target::Running(_) => match unsupported_ephemeral(cx.pod, &container) {
            Some(Unsupported { reason, message }) => (reason, message),
            None => return plan_start(cx, &container, ContainerKind::Ephemeral, sandbox, plan),
        },
    };
    let told = if reason == "Failed" { format!("Error: {message}") } else { message.clone() };
    let path = Some(ContainerKind::Ephemeral.field_path(&ephemeral.name));
    plan.notice(message.clone(), cx.event(path, EventKind::Warning, reason, told));
    plan.wait(&ephemeral.name, "CreateContainerConfigError", message);
}

/// The container whose process id namespace an ephemeral container shares.
enum Target<'a> {
    /// It names none: the settings of the pod apply.
    Unset,
    Running(&'a ContainerId),
    /// The target does not run: why nothing is started, one sentence. The start is not tried, so
    /// nothing backs off when the target runs.
    Absent(String),
}

fn target<'a>(
    cx: &Cx<'a>,
    ephemeral: &k8s::EphemeralContainer,
    sandbox: &ObservedSandbox,
) -> Target<'a> {
    let name = ephemeral.target_container_name.as_deref().filter(|name| !name.is_empty());
    let Some(name) = name else { return Target::Unset };
    match cx.own.newest_in(name, sandbox) {
        Some(instance) if instance.state.is_running() => Target::Running(&instance.id),
        Some(_) => Target::Absent(format!("target container {name} is not running")),
        None => Target::Absent(format!("unable to find target container {name}")),
    }
}

/// The id of the target of the ephemeral container `name`, if it has one that runs.
pub(crate) fn target_id(cx: &Cx<'_>, name: &str, sandbox: &ObservedSandbox) -> Option<ContainerId> {
    let ephemeral = ephemeral_containers(cx.pod).iter().find(|one| one.name == name)?;
    match target(cx, ephemeral, sandbox) {
        Target::Running(id) => Some(id.clone()),
        Target::Unset | Target::Absent(_) => None,
    }
}
