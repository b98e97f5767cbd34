//! Changes of cpu and memory while containers run.
//!
//! The agent knows the amounts that a container was made with from an annotation on it, and the
//! amounts that it has given it since from [`super::PodMemory`]. Where they differ from the
//! specification, the container is changed in place, or restarted where its `resizePolicy` says so.
//! The cgroup of the pod grows before the containers and shrinks after them. A pod of which no
//! container runs is resized as well: its cgroup stays while its containers wait to start.

use super::{
    Action, ContainerKind, PodPlan, Resize, ResizeContainer,
    init::{kill, kind_of_init},
    memory::Stage,
    name::Cx,
    restart::is_changed,
};
use crate::model::{
    ContainerAmounts, EventKind, ObservedContainer, ObservedSandbox, k8s, short_digest,
};
use crate::podspec::{cgroup_amounts, container_amounts};
use serde_json::json;

/// Resizes the containers that run with other amounts than the specification has.
pub(crate) fn plan_resize(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) {
    let changed: Vec<Changed<'_>> = resizable(cx)
        .filter_map(|(container, kind)| {
            let instance = cx.own.newest_in(&container.name, sandbox)?;
            let runs = instance.state.is_running() && instance.ended_with.is_none();
            let runs = runs && !is_changed(container, instance);
            let actual = cx.memory.amounts_of(instance).filter(|_| runs)?;
            let wanted = container_amounts(cx.pod, container);
            (actual != wanted).then_some(Changed { container, kind, instance, actual, wanted })
        })
        .collect();
    if changed.is_empty() && !cx.memory.resizing && !is_cgroup_outdated(cx, sandbox) {
        return;
    }
    if let Some(wait) = &cx.input.orders.resize_wait {
        let reason = if wait.reason == "Deferred" { "ResizeDeferred" } else { "ResizeInfeasible" };
        let message = format!("Pod resize {}: {}", wait.reason, wait.message);
        plan.notice(message.clone(), cx.event(None, EventKind::Warning, reason, message));
        return;
    }
    if let Some((_, due)) = cx.memory.held_back(Stage::Resize, cx.now) {
        plan.wake(due);
        return;
    }
    if cx.held_back(Stage::Prepare, plan) {
        return;
    }
    let message = format!("Pod resize started: {}", resize_details(cx.pod, None));
    let event = cx.event(None, EventKind::Normal, "ResizeStarted", message);
    plan.notice(wanted(cx), event);
    let (restarted, in_place): (Vec<_>, Vec<_>) =
        changed.iter().partition(|changed| changed.needs_restart());
    // Saves the new specification before anything is changed.
    let prepare = Action::PreparePod { uid: cx.uid.clone() };
    if !plan.actions.contains(&prepare) {
        plan.actions.push(prepare);
    }
    plan.actions.push(Action::Resize(Resize {
        uid: cx.uid.clone(),
        containers: in_place.iter().map(|changed| changed.order()).collect(),
        finish: restarted.is_empty(),
    }));
    for changed in restarted {
        let name = &changed.container.name;
        let message = format!("Container {name} resize requires restart, will be restarted");
        kill(cx, changed.instance, Some(message), plan);
    }
}

/// What the kubelet writes into its events about a resize: the resources of the containers, as
/// JSON.
#[must_use]
pub fn resize_details(pod: &k8s::Pod, error: Option<&str>) -> String {
    let spec = pod.spec.as_ref();
    let containers = |list: &[k8s::Container]| {
        let described = list
            .iter()
            .map(|container| json!({ "name": container.name, "resources": container.resources }));
        described.collect::<Vec<_>>()
    };
    let mut details = json!({ "generation": pod.metadata.generation.unwrap_or_default() });
    if let Some(init) = spec.and_then(|spec| spec.init_containers.as_deref()) {
        details["initContainers"] = containers(init).into();
    }
    details["containers"] =
        spec.map(|spec| containers(&spec.containers)).unwrap_or_default().into();
    if let Some(error) = error {
        details["error"] = error.into();
    }
    details.to_string()
}

/// A hash of all amounts of the specification, which tells one resize from the next.
fn wanted(cx: &Cx<'_>) -> String {
    let all = cx.init.iter().chain(cx.regular);
    let amounts: Vec<_> = all.map(|container| container_amounts(cx.pod, container)).collect();
    short_digest(&serde_json::to_vec(&amounts).unwrap_or_default())
}

/// True when the pod's cgroup has other limits than the specification. A running container that is
/// to be replaced keeps them until it has stopped.
fn is_cgroup_outdated(cx: &Cx<'_>, sandbox: &ObservedSandbox) -> bool {
    let (Some(given), Some(spec)) = (cx.memory.cgroup, &cx.pod.spec) else { return false };
    // A plain init container that has changed is not replaced.
    let is_replaced = |(container, kind): (&k8s::Container, ContainerKind)| {
        let instance = cx.own.newest_in(&container.name, sandbox);
        kind != ContainerKind::Init
            && instance.is_some_and(|one| one.state.is_running() && is_changed(container, one))
    };
    given != cgroup_amounts(spec) && !resizable(cx).any(is_replaced)
}

/// The containers that are resized while they run. A plain init container has no `resizePolicy` that
/// restarts it.
fn resizable<'a>(cx: &Cx<'a>) -> impl Iterator<Item = (&'a k8s::Container, ContainerKind)> {
    let init = cx.init.iter().map(|container| (container, kind_of_init(container)));
    init.chain(cx.regular.iter().map(|container| (container, ContainerKind::Regular)))
}

/// A container that runs with other amounts than its specification has.
struct Changed<'a> {
    container: &'a k8s::Container,
    kind: ContainerKind,
    instance: &'a ObservedContainer,
    actual: ContainerAmounts,
    wanted: ContainerAmounts,
}

impl Changed<'_> {
    /// Whether `resizePolicy` wants a restart for what has changed.
    fn needs_restart(&self) -> bool {
        self.container.resize_policy.iter().flatten().any(|policy| {
            let differs = match policy.resource_name.as_str() {
                "cpu" => self.actual.own.differs_in_cpu(&self.wanted.own),
                "memory" => self.actual.own.differs_in_memory(&self.wanted.own),
                _ => false,
            };
            differs && policy.restart_policy == "RestartContainer"
        })
    }

    fn order(&self) -> ResizeContainer {
        ResizeContainer {
            id: self.instance.id.clone(),
            name: self.container.name.as_str().into(),
            kind: self.kind,
            from: self.actual,
            to: self.wanted,
        }
    }
}
