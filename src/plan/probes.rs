//! What the results of probes mean for a container that runs.

use super::{
    Action, ContainerKind, PodPlan, Restart,
    kill::{Stop, kind_of},
    name::Cx,
    restart::container_policy,
};
use crate::model::{ObservedContainer, ProbeKind, ProbeResults, k8s};
use crate::podspec::grace_seconds;

/// True when the instance has started: it has no startup probe, or the probe has succeeded.
pub(crate) fn is_started(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> bool {
    container.startup_probe.is_none() || cx.input.memory.has_started(instance)
}

/// Kills an instance that has failed its liveness or startup probe, with the grace period of the
/// probe if it has one. Returns true when it does. The container starts again after its back-off,
/// unless its restart policy is `Never`. A kill that was begun and has not ended the instance (the
/// agent has crashed during the preStop hook) is repeated, whatever the probe says now: the
/// instance may have had its SIGTERM.
pub(crate) fn kill_unhealthy(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
    plan: &mut PodPlan,
) -> bool {
    let begun = cx.memory.container(&container.name).failed_probe.as_ref() == Some(&instance.id);
    let of_begun = || match is_started(cx, container, instance) {
        true => ProbeKind::Liveness,
        false => ProbeKind::Startup,
    };
    let results = cx.input.probes.get(&instance.id);
    let failed = results.and_then(ProbeResults::fatal).or_else(|| begun.then(of_begun));
    let Some(failed) = failed else { return false };
    let restarts = container_policy(cx, container) != "Never";
    let name = &container.name;
    let message = match kind_of(Some(cx.pod), name) {
        ContainerKind::Regular | ContainerKind::Ephemeral => {
            let then = if restarts { ", will be restarted" } else { "" };
            format!("Container {name} failed {} probe{then}", failed.name())
        }
        ContainerKind::Init | ContainerKind::Sidecar => {
            format!("Init container {name} failed {} probe", failed.name())
        }
    };
    let of_probe = failed.of(container).and_then(|probe| probe.termination_grace_period_seconds);
    let of_probe = of_probe.and_then(|seconds| u32::try_from(seconds).ok());
    let stop = Stop {
        key: cx.input.key,
        pod: Some(cx.pod),
        grace_seconds: of_probe.unwrap_or_else(|| grace_seconds(Some(cx.pod))),
        restart: if restarts { Restart::AfterBackOff } else { Restart::ByPolicy },
    };
    plan.actions.push(Action::KillContainer(stop.kill(instance, Some(message))));
    true
}
