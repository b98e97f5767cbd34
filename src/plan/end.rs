//! Ends a pod of the API server for good: it was deleted, it must not run on this node, or the
//! machine shuts down.
//!
//! ```text
//!  deleted ───────────────────┐   stop within the      containers ended,   volumes and cgroup
//!  evicted, refused, preempted┼─► shortest period ───► phase recorded ───► removed: `stopped`
//!  its turn in a shutdown ────┘
//! ```
//!
//! A static pod that is evicted or shut down begins anew later; a pod of the API server never does,
//! because its controller makes another one. Its record says how it has ended until its object is
//! gone.

use super::{
    Action, KillPod, KillPurpose, PodPlan, RemoveSandbox, Restart, Terminal, Wish,
    gc::plan_gc,
    kill::{Stop, is_alive, remove},
    memory::Stage,
    name::Cx,
    pod::plan_leftovers,
    restart::exit_code,
};
use crate::model::{ContainerState, TerminalPhase, priority_of};
use crate::podspec::{grace_seconds, is_static};

/// What makes a pod of the API server end before its containers do so by themselves, and how long
/// any pod that ends has to stop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OrderedEnd {
    /// The shortest period that it was given to stop, in seconds. It also applies to the sidecars of
    /// a pod that has ended by itself.
    grace_seconds: Option<u32>,
    /// Its end, where that does not depend on its containers.
    terminal: Option<Terminal>,
    /// It is to end.
    ordered: bool,
}

impl OrderedEnd {
    pub(crate) fn of(cx: &Cx<'_>) -> Self {
        let orders = cx.input.orders;
        let grace_seconds = orders.stop_seconds(cx.uid, Some(cx.pod));
        let mut end = Self { grace_seconds, terminal: None, ordered: false };
        if is_static(cx.pod) {
            return end;
        }
        let known = cx.input.incarnation(cx.uid);
        // A phase that the API server has is final, so it comes first.
        let told = match &orders.wish {
            Wish::End { end, .. } => Some(end),
            Wish::Run(_) | Wish::Keep { .. } | Wish::Gone | Wish::Undecided => None,
        };
        if let Some(told) = told {
            end.order(told.phase.map(Terminal::of_phase));
        }
        if cx.memory.ending.is_some() || known.is_some_and(|known| known.deleted) {
            end.order(None);
        }
        if let Some(hold) = orders.hold_on(cx.uid) {
            end.order(Some(Terminal::by_hold(hold)));
        }
        if let Some(shutdown) = &orders.shutdown {
            if !cx.own.is_empty() || known.is_some() {
                if shutdown.seconds_for(priority_of(cx.pod)).is_some() {
                    end.order(Some(Terminal::by_shutdown()));
                }
            } else if told.is_none() {
                end.order(Some(Terminal::refused_by_shutdown()));
            }
        }
        end
    }

    fn order(&mut self, terminal: Option<Terminal>) {
        self.ordered = true;
        self.terminal = self.terminal.take().or(terminal);
    }

    /// How the containers are stopped. A deletion may grant more time than the specification does.
    fn stop<'a>(&self, cx: &'a Cx<'a>) -> Stop<'a> {
        let seconds = self.grace_seconds.unwrap_or_else(|| grace_seconds(Some(cx.pod)));
        Stop { grace_seconds: cx.time_left(seconds), ..cx.stop(Restart::ByPolicy) }
    }
}

/// Plans the end of a pod that has ended, or is to end now. Returns false when the pod goes on.
pub(crate) fn plan_ended(
    cx: &Cx<'_>,
    ended: Option<Terminal>,
    ordered: &OrderedEnd,
    plan: &mut PodPlan,
) -> bool {
    let ended = ended.or_else(|| ordered.terminal.clone());
    let terminal = match ended {
        None if !ordered.ordered => return false,
        // The phase of a deleted pod is known when its containers have ended and a listing has
        // shown how.
        None => {
            let runs = cx.own.containers.iter().any(|container| is_alive(container));
            (cx.input.settled && !runs).then(|| Terminal::of_phase(phase_by_exit_codes(cx)))
        }
        Some(terminal) => Some(terminal),
    };
    plan.terminal = terminal;
    stop_and_release(cx, ordered, plan);
    if !plan_evicted(cx, plan) {
        plan_gc(cx, plan);
    }
    true
}

/// Stops what still runs of the pod, and releases its resources. Its dead containers stay for its
/// status and logs.
fn stop_and_release(cx: &Cx<'_>, ordered: &OrderedEnd, plan: &mut PodPlan) {
    let (alive, foreign) = (cx.own.is_alive(), cx.input.occupancy().foreign_use(cx.uid));
    if !alive && let Some(foreign) = foreign {
        let owner = foreign.owner.as_deref().unwrap_or("nobody");
        plan.block(&format!(
            "its uid runs in sandbox {}, whose owner is {owner}: its volumes and cgroup stay",
            foreign.id
        ));
        return;
    }
    let complete = cx.memory.leftovers.is_empty();
    if !alive && complete && cx.memory.released {
        plan.stopped = true;
        return;
    }
    if cx.held_back(Stage::Kill, plan) || cx.held_back(Stage::Release, plan) {
        return;
    }
    plan_leftovers(cx, plan);
    if !cx.own.sandboxes.is_empty() || alive {
        plan.actions.push(Action::KillPod(KillPod {
            uid: cx.uid.clone(),
            purpose: KillPurpose::Terminal,
            groups: ordered.stop(cx).groups(&cx.own.containers),
            sandboxes: cx.own.sandboxes.iter().map(|s| s.id.clone()).collect(),
        }));
    }
    // The containers of a deleted pod are stopped first: their exit codes are its phase.
    if foreign.is_none() && plan.terminal.is_some() {
        plan.actions.push(Action::Release { uid: cx.uid.clone() });
    }
}

/// Removes the dead containers of an evicted pod, as the kubelet does: they take room on a disk.
/// Its status has their ends. Returns false for another pod, or while it is being stopped.
fn plan_evicted(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let known = cx.input.incarnation(cx.uid).and_then(|known| known.terminal.as_ref());
    if !plan.stopped || !cx.input.records_saved || !known.is_some_and(Terminal::is_eviction) {
        return false;
    }
    if let Some((_, due)) = cx.memory.held_back(Stage::Remove, cx.now) {
        plan.wake(due);
        return true;
    }
    plan.actions.extend(cx.own.containers.iter().map(|container| remove(container, false)));
    for sandbox in &cx.own.sandboxes {
        let (uid, id) = (cx.uid.clone(), sandbox.id.clone());
        plan.actions.push(Action::RemoveSandbox(RemoveSandbox { uid, id }));
    }
    true
}

/// `Succeeded` when every regular container has ended with exit code 0.
fn phase_by_exit_codes(cx: &Cx<'_>) -> TerminalPhase {
    let succeeded = cx.regular.iter().all(|container| {
        let newest = cx.own.newest(&container.name);
        newest.is_some_and(|instance| match &instance.state {
            ContainerState::Exited { .. } => exit_code(cx, instance) == Some(0),
            ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => {
                false
            }
        })
    });
    if succeeded { TerminalPhase::Succeeded } else { TerminalPhase::Failed }
}
