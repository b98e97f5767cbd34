//! The sandbox that the pod uses, and when it is replaced.

use super::{
    Action, CreateSandbox, KillPod, KillPurpose, PodPlan, Restart, backoff::Exited, kill::is_alive,
    memory::Stage, name::Cx, objects::volumes_ready,
};
use crate::model::{EventKind, NetworkMode, ObservedSandbox, SandboxState, k8s};
use crate::podspec::{
    Unsupported, is_host_network, is_runtime_class_known, is_static, unsupported,
};

/// The ready sandbox in which the pod's containers run, or the newest one when none runs yet.
pub(crate) fn current<'a>(cx: &Cx<'a>) -> Option<&'a ObservedSandbox> {
    cx.own.ready_sandboxes().max_by_key(|sandbox| {
        let inhabited = cx.own.containers.iter().any(|c| c.sandbox_id == sandbox.id && is_alive(c));
        (inhabited, sandbox.attempt)
    })
}

/// The current sandbox, when containers can be started in it.
pub(crate) fn usable<'a>(cx: &Cx<'a>) -> Option<&'a ObservedSandbox> {
    current(cx).filter(|sandbox| serves(sandbox, cx.pod))
}

/// True when a ready sandbox has the network that the pod wants.
pub(crate) fn serves(sandbox: &ObservedSandbox, pod: &k8s::Pod) -> bool {
    match (is_host_network(pod), sandbox.network) {
        (true, NetworkMode::Node) => true,
        (false, NetworkMode::Pod) => !sandbox.lacks_address(),
        (true, NetworkMode::Pod) | (false, NetworkMode::Node) => false,
    }
}

/// Makes the first sandbox or replaces the current one, or sets why the pod waits.
pub(crate) fn plan_sandbox(cx: &Cx<'_>, plan: &mut PodPlan) {
    let mut foreign = cx.input.occupancy().foreign_sandboxes();
    if let Some(foreign) = foreign.find(|s| s.state == SandboxState::Ready) {
        let whose = match &foreign.owner {
            Some(owner) => format!("the nodelet with owner id {owner}"),
            None => "another agent".to_owned(),
        };
        plan.block(&format!(
            "a pod of the same name runs already and belongs to {whose} (sandbox {}); it is left alone",
            foreign.id
        ));
        return;
    }
    if let (Some(why), false) = (&cx.input.runtime.network_not_ready, is_host_network(cx.pod)) {
        let message = format!("network is not ready: {why}");
        plan.block(&message);
        let event = cx.event(None, EventKind::Warning, "NetworkNotReady", message.clone());
        plan.notice(message, event);
        return;
    }
    if !is_supported(cx, plan) || !is_handler_known(cx, plan) || !volumes_ready(cx, plan) {
        return;
    }
    if [Stage::Sandbox, Stage::Prepare].into_iter().any(|stage| cx.held_back(stage, plan)) {
        return;
    }
    let newest = cx.own.sandboxes.iter().max_by_key(|s| s.attempt).copied();
    if let Some(newest) = newest
        && !plan_replacement(cx, newest, plan)
    {
        return;
    }
    let taken = cx.input.observed.sandboxes.iter().filter(|s| s.uid == *cx.uid);
    let attempt = taken
        .map(|s| s.attempt.saturating_add(1))
        .chain([cx.memory.sandbox_attempt])
        .max()
        .unwrap_or_default();
    plan.actions.push(Action::PreparePod { uid: cx.uid.clone() });
    let replaces = newest.map(|newest| newest.id.clone());
    plan.actions.push(Action::CreateSandbox(CreateSandbox {
        uid: cx.uid.clone(),
        attempt,
        replaces,
    }));
}

/// True when the agent has every feature that the pod needs. A static pod without support was
/// rejected with its manifest. A pod of the API server waits, and an event says for what.
fn is_supported(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    if is_static(cx.pod) {
        return true;
    }
    let Some(Unsupported { reason, message }) = unsupported(cx.pod) else { return true };
    plan.block(&message);
    let event = cx.event(None, EventKind::Warning, reason, message.clone());
    plan.notice(message, event);
    false
}

/// True when the agent knows whether the pod's runtime class exists. A sandbox of a class that does
/// not exist fails, and is tried again.
fn is_handler_known(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let known = is_runtime_class_known(cx.pod, cx.input.objects);
    if !known {
        plan.block("waiting until RuntimeClasses have been read from the API server");
    }
    known
}

/// Stops the containers of the pod and the sandbox that is to be replaced. Returns false when the
/// pod must wait.
fn plan_replacement(cx: &Cx<'_>, newest: &ObservedSandbox, plan: &mut PodPlan) -> bool {
    // A change of the network's mode is an edit, and no failure.
    let wanted = if is_host_network(cx.pod) { NetworkMode::Node } else { NetworkMode::Pod };
    if newest.state == SandboxState::NotReady || newest.network == wanted {
        let died = cx.memory.sandbox.finished(newest.id.as_str(), cx.now);
        let exited = Exited { id: newest.id.as_str(), definition: None };
        let delay = cx.memory.sandbox.delay(&exited, cx.now);
        let due = died.after(delay);
        if due > cx.now.boot {
            let why = match newest.state {
                SandboxState::NotReady => "died again",
                SandboxState::Ready => "has no address again",
            };
            plan.block(&format!("its sandbox {why}; a new one follows after a back-off"));
            plan.wake(due);
            return false;
        }
    }
    if newest.state == SandboxState::NotReady || newest.network == NetworkMode::Pod {
        let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        let event = cx.event(None, EventKind::Normal, "SandboxChanged", message);
        plan.notice(newest.id.as_str(), event);
    }
    let stop = cx.stop(Restart::AtOnce);
    // A dead sandbox is stopped as well, which releases its address and host ports. Older dead
    // sandboxes were stopped before.
    let sandboxes =
        cx.own.sandboxes.iter().filter(|s| s.state == SandboxState::Ready || s.id == newest.id);
    plan.actions.push(Action::KillPod(KillPod {
        uid: cx.uid.clone(),
        purpose: KillPurpose::Restart,
        groups: stop.groups(&cx.own.containers),
        sandboxes: sandboxes.map(|s| s.id.clone()).collect(),
    }));
    true
}
