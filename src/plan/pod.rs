//! Plans the wished pod when no other incarnation is left: what must go is removed before anything
//! new is made.

use super::{
    Action, KillPod, KillPurpose, PodPlan, RemoveContainer, RemoveSandbox, Restart, Terminal,
    asked::plan_asked,
    end::{OrderedEnd, plan_ended},
    ephemeral::plan_ephemeral,
    gc::plan_gc,
    init::plan_init,
    memory::{Leftover, Stage},
    name::Cx,
    objects::plan_volumes,
    regular::{plan_regular, plan_unlisted},
    resize::plan_resize,
    restart::{Verdict, exit_code, is_init_failure, plan_restart_all, verdict},
    sandbox::{self, current, plan_sandbox},
    shutdown::plan_shutdown,
};
use crate::model::{ContainerState, EventKind, TerminalPhase};
use crate::plan::backoff::Moment;
use std::time::Duration;

pub(crate) fn plan_pod(cx: &Cx<'_>, plan: &mut PodPlan) {
    if let Some(error) = &cx.input.observed.inspect_error {
        // The last known state may be outdated, so starting or restarting anything now could be
        // wrong.
        plan.terminal = cx.input.incarnation(cx.uid).and_then(|known| known.terminal.clone());
        plan.block(&format!("the runtime does not tell its state: {error}"));
        return;
    }
    if plan_shutdown(cx, plan) {
        return;
    }
    let ended = plan_end(cx, plan);
    if plan_ended(cx, ended, &OrderedEnd::of(cx), plan) {
        return;
    }
    if wait_for_others(cx, plan) {
        return;
    }
    if let Some(why) = &cx.input.runtime.not_ready {
        plan.block(&format!("the container runtime is not ready: {why}"));
        return;
    }
    if cx.held_back(Stage::Kill, plan) {
        return;
    }
    plan_leftovers(cx, plan);
    plan_surplus(cx, plan);
    let Some(sandbox) = sandbox::usable(cx) else {
        plan_sandbox(cx, plan);
        return;
    };
    if !plan_restart_all(cx, sandbox, plan) && !plan_asked(cx, plan) {
        plan_unlisted(cx, plan);
        plan_volumes(cx, plan);
        plan_ephemeral(cx, sandbox, plan);
        plan_resize(cx, sandbox, plan);
        if plan_init(cx, sandbox, plan) {
            plan_regular(cx, sandbox, plan);
        }
        plan_gc(cx, plan);
    }
}

/// Holds a pod back that has not begun and waits for others. True when it does.
fn wait_for_others(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let Some(why) = cx.input.orders.after.as_deref().filter(|_| !cx.has_begun()) else {
        return false;
    };
    plan.block(why);
    // As for other waits, the containers after the first init container are only `PodInitializing`.
    let first = if cx.init.is_empty() { cx.regular } else { cx.init.get(..1).unwrap_or_default() };
    for container in first {
        plan.wait(&container.name, "WaitingForPods", why.to_owned());
    }
    true
}

/// How the pod has ended for good; `None` when it has not.
fn plan_end(cx: &Cx<'_>, plan: &mut PodPlan) -> Option<Terminal> {
    let known = cx.input.incarnation(cx.uid);
    if let Some(terminal) = known.and_then(|known| known.terminal.clone()) {
        return Some(terminal);
    }
    if let Some(terminal) = plan_deadline(cx, plan) {
        return Some(terminal);
    }
    if !cx.input.settled {
        return None;
    }
    let init_failed = cx.init.iter().any(|container| {
        cx.own.newest(&container.name).is_some_and(|instance| {
            is_init_failure(container, instance)
                && verdict(cx, container, instance) == Verdict::Stay
        })
    });
    if init_failed {
        return Some(Terminal::of_phase(TerminalPhase::Failed));
    }
    let mut succeeded = true;
    let mut all_ended = !cx.regular.is_empty();
    let mut any_started = false;
    let mut any_goes_on = false;
    for container in cx.regular {
        match cx.own.newest(&container.name) {
            Some(instance) => match &instance.state {
                ContainerState::Exited { .. } => {
                    any_started = true;
                    succeeded &= exit_code(cx, instance) == Some(0);
                    let stays = verdict(cx, container, instance) == Verdict::Stay;
                    all_ended &= stays;
                    any_goes_on |= !stays;
                }
                ContainerState::Running { .. } => {
                    any_started = true;
                    all_ended = false;
                }
                ContainerState::Created | ContainerState::Unknown => all_ended = false,
            },
            None => all_ended = false,
        }
    }
    if all_ended {
        let phase = if succeeded { TerminalPhase::Succeeded } else { TerminalPhase::Failed };
        return Some(Terminal::of_phase(phase));
    }
    // A pod that is never restarted does not outlive its sandbox once a regular container has
    // started. (The kubelet also gives up a pod whose init containers alone have run; here such a
    // pod starts again.)
    let never = restart_policy(cx) == "Never";
    let lost = never && any_started && !any_goes_on && sandbox::usable(cx).is_none();
    lost.then(|| Terminal::of_phase(TerminalPhase::Failed))
}

/// The pod's restart policy, or the default.
pub(crate) fn restart_policy<'a>(cx: &Cx<'a>) -> &'a str {
    cx.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

fn plan_deadline(cx: &Cx<'_>, plan: &mut PodPlan) -> Option<Terminal> {
    let seconds = cx.pod.spec.as_ref()?.active_deadline_seconds?;
    // A pod of the API server that still waits for its volumes has no record, and its object has
    // the time at which it was accepted.
    let reported = cx.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let recorded = cx.input.incarnation(cx.uid).and_then(|known| known.started_at);
    let accepted = recorded.or(reported.map(|time| time.0));
    let started = cx.memory.started.or_else(|| Some(Moment::of_wall(accepted?, cx.now)))?;
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    if !started.is_older_than(limit, cx.now) {
        plan.wake(started.after(limit));
        return None;
    }
    let message = "Pod was active on the node longer than the specified deadline";
    let reason = "DeadlineExceeded";
    plan.notice("deadline", cx.event(None, EventKind::Normal, reason, message.to_owned()));
    Some(Terminal {
        phase: TerminalPhase::Failed,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        disruption: None,
    })
}

/// Removes objects that an interrupted call left and that hold a name.
pub(crate) fn plan_leftovers(cx: &Cx<'_>, plan: &mut PodPlan) {
    for leftover in &cx.memory.leftovers {
        let uid = cx.uid.clone();
        plan.actions.push(match leftover {
            Leftover::Sandbox(id) => Action::RemoveSandbox(RemoveSandbox { uid, id: id.clone() }),
            Leftover::Container(id) => Action::RemoveContainer(RemoveContainer {
                uid,
                id: id.clone(),
                name: "".into(),
                keep_logs: true,
                restart_count: 0,
            }),
        });
    }
}

/// Stops and removes ready sandboxes other than the current one. (The kubelet replaces all of them.
/// Here the sandbox whose containers run is kept, so that nothing restarts.)
fn plan_surplus(cx: &Cx<'_>, plan: &mut PodPlan) {
    let Some(kept) = current(cx) else { return };
    let stop = cx.stop(Restart::AtOnce);
    for surplus in cx.own.ready_sandboxes().filter(|s| s.id != kept.id) {
        let inside: Vec<_> =
            cx.own.containers.iter().copied().filter(|c| c.sandbox_id == surplus.id).collect();
        let (uid, id) = (cx.uid.clone(), surplus.id.clone());
        plan.actions.push(Action::KillPod(KillPod {
            uid: uid.clone(),
            purpose: KillPurpose::Surplus,
            groups: stop.groups(&inside),
            sandboxes: vec![id.clone()],
        }));
        plan.actions.push(Action::RemoveSandbox(RemoveSandbox { uid, id }));
    }
}
