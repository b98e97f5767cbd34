//! Removes dead containers and sandboxes that nobody needs.
//!
//! The newest dead instance of each container stays, for `lastState` and its logs, until a disk is
//! short. A dead sandbox is removed when it is empty and there is a newer one. The kubelet does
//! this on a timer; here it happens at the end of the pass.

use super::{Action, PodPlan, RemoveSandbox, kill::remove, memory::Stage, name::Cx};
use crate::model::{ContainerState, ObservedContainer, Order as _, SandboxState};
use std::collections::BTreeMap;

/// Removes what is no longer needed.
pub(crate) fn plan_gc(cx: &Cx<'_>, plan: &mut PodPlan) {
    let Dead { superfluous: mut surplus, for_people } = dead(cx);
    plan.dead = for_people.len();
    if let Some((_, due)) = cx.memory.held_back(Stage::Remove, cx.now) {
        plan.wake(due);
        return;
    }
    if cx.input.orders.clear_dead && cx.input.records_saved {
        surplus.extend(for_people);
    }
    plan.actions.extend(surplus.iter().map(|container| remove(container, false)));
    let newest = cx.own.sandboxes.iter().map(|sandbox| sandbox.attempt).max();
    for sandbox in &cx.own.sandboxes {
        let empty = !cx
            .input
            .observed
            .containers
            .iter()
            .any(|c| c.sandbox_id == sandbox.id && !surplus.iter().any(|s| s.id == c.id));
        if sandbox.state == SandboxState::NotReady && empty && Some(sandbox.attempt) != newest {
            let (uid, id) = (cx.uid.clone(), sandbox.id.clone());
            plan.actions.push(Action::RemoveSandbox(RemoveSandbox { uid, id }));
        }
    }
}

/// The instances that nothing depends on.
#[derive(Default)]
struct Dead<'a> {
    /// All but the newest instance and the newest one that has ended.
    superfluous: Vec<&'a ObservedContainer>,
    /// Instances that ended before the one that runs, or all of them when the record has the end of
    /// the pod. The newest instance of any other container shows that it has run, and how it ended.
    for_people: Vec<&'a ObservedContainer>,
}

fn dead<'a>(cx: &Cx<'a>) -> Dead<'a> {
    let mut by_name: BTreeMap<&str, Vec<&ObservedContainer>> = BTreeMap::new();
    for container in &cx.own.containers {
        by_name.entry(&container.name).or_default().push(container);
    }
    let ended = cx.input.incarnation(cx.uid).is_some_and(|known| known.terminal.is_some());
    let mut dead = Dead::default();
    for instances in by_name.values_mut() {
        instances.order_by_key(|c| std::cmp::Reverse((c.restart_count, c.created_at)));
        let replaced = instances.first().is_some_and(|newest| newest.state.is_running());
        let mut kept_dead = false;
        for (index, instance) in instances.iter().enumerate() {
            match instance.state {
                ContainerState::Running { .. } | ContainerState::Unknown => {}
                ContainerState::Exited { .. } => {
                    if kept_dead {
                        dead.superfluous.push(*instance);
                    } else if ended || replaced {
                        dead.for_people.push(*instance);
                    }
                    kept_dead = true;
                }
                ContainerState::Created if index == 0 => {}
                ContainerState::Created => dead.superfluous.push(*instance),
            }
        }
    }
    dead
}
