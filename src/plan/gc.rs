//! Dead containers and sandboxes that are kept for nothing.
//!
//! Of each container the newest dead instance stays, for `lastState` and its logs. A dead sandbox
//! goes once it is empty and another one is newer. Unlike the kubelet this does not wait for a
//! timer: what has become superfluous goes at the end of the same pass.

use super::{Action, PodPlan, RemoveSandbox, kill::remove, memory::Stage, name::Cx};
use crate::model::{ContainerState, ObservedContainer, SandboxState};
use std::collections::BTreeMap;

/// Removes what has become superfluous.
pub(crate) fn plan_gc(cx: &Cx<'_>, plan: &mut PodPlan) {
    if let Some((_, due)) = cx.memory.held_back(Stage::Remove, cx.now) {
        plan.wake(due);
        return;
    }
    let surplus = superfluous(cx);
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

/// All instances but the newest one and the newest that ended.
fn superfluous<'a>(cx: &Cx<'a>) -> Vec<&'a ObservedContainer> {
    let mut by_name: BTreeMap<&str, Vec<&ObservedContainer>> = BTreeMap::new();
    for container in &cx.own.containers {
        by_name.entry(&container.name).or_default().push(container);
    }
    let mut surplus = Vec::new();
    for instances in by_name.values_mut() {
        instances.sort_by_key(|c| std::cmp::Reverse((c.restart_count, c.created_at)));
        let mut kept_dead = false;
        for (index, instance) in instances.iter().enumerate() {
            match instance.state {
                ContainerState::Running { .. } | ContainerState::Unknown => {}
                ContainerState::Exited { .. } => {
                    if kept_dead {
                        surplus.push(*instance);
                    }
                    kept_dead = true;
                }
                ContainerState::Created if index == 0 => {}
                ContainerState::Created => surplus.push(*instance),
            }
        }
    }
    surplus
}
