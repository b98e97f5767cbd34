//! Ends pods while the machine shuts down, those of the lowest priority first. Only the ids of the
//! containers that were ended are saved, so that none of them counts as having succeeded. After the
//! next boot the same pods run as after a loss of power, and when the shutdown is cancelled, all of
//! them run again.

use super::{
    Action, KillPod, KillPurpose, NameInput, PodOrders, PodPlan, Restart, Terminal, Wish,
    kill::Stop, memory::Stage, name::Cx,
};
use crate::model::{EventKind, Now, PodUid, k8s, priority_of};
use crate::podspec::is_static;

/// The reason of a pod that is refused because the machine goes down.
pub const NODE_SHUTDOWN: &str = "NodeShutdown";
/// The message of its event.
pub(super) const REFUSED: &str = "Pod was rejected as the node is shutting down.";

/// Plans the wished pod's part in a shutdown. Returns false when the pod just goes on.
pub(crate) fn plan_shutdown(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    if cx.input.orders.shutdown.is_none() {
        return false;
    }
    let known = cx.input.incarnation(cx.uid);
    if known.is_some_and(|known| known.terminal.is_some()) {
        return false;
    }
    // One of the API server ends for good.
    let from_api = !is_static(cx.pod);
    if known.is_none() && cx.own.is_empty() && !matches!(cx.input.orders.wish, Wish::End { .. }) {
        plan.block("the node is shutting down: no pod is started any more");
        let message = REFUSED.to_owned();
        plan.notice("shutdown", cx.event(None, EventKind::Warning, NODE_SHUTDOWN, message));
        return !from_api;
    }
    if from_api {
        return false;
    }
    let Some(seconds) = seconds(cx.input.orders, cx.uid, Some(cx.pod)) else { return false };
    plan.interrupted = Some(Terminal::by_shutdown());
    plan_stop(cx.input, cx.uid, Some(cx.pod), (seconds, cx.now), plan);
    true
}

/// Ends what runs under a name for which no source has spoken yet.
pub(crate) fn plan_undecided(input: &NameInput<'_>, now: Now, plan: &mut PodPlan) {
    let kept = match &input.orders.wish {
        Wish::Undecided => None,
        Wish::Keep { pod, .. } => Some(&pod.uid),
        Wish::Run(_) | Wish::End { .. } | Wish::Gone => return,
    };
    let staying = input.known.iter().filter(|known| known.kill.is_none());
    let staying = staying.filter(|known| Some(&known.uid) != kept);
    for known in staying {
        let pod = known.pod.as_deref();
        if let Some(seconds) = seconds(input.orders, &known.uid, pod) {
            plan_stop(input, &known.uid, pod, (seconds, now), plan);
        }
    }
}

/// How long the pod has, in seconds, when its turn has come.
fn seconds(orders: &PodOrders, uid: &PodUid, pod: Option<&k8s::Pod>) -> Option<u32> {
    let priority = pod.map(priority_of).unwrap_or_default();
    orders.shutdown.as_ref()?.seconds_for(priority)?;
    orders.stop_seconds(uid, pod)
}

/// Stops everything, unless the last try has just failed. The stopped containers count as killed in
/// order to start again.
fn plan_stop(
    input: &NameInput<'_>,
    uid: &PodUid,
    pod: Option<&k8s::Pod>,
    (grace_seconds, now): (u32, Now),
    plan: &mut PodPlan,
) {
    let own = input.own(uid);
    if !own.is_alive() {
        return;
    }
    if let Some((retry, due)) = input.memory.of(uid).held_back(Stage::Kill, now) {
        plan.block(&retry.message);
        plan.wake(due);
        return;
    }
    let stop = Stop { key: input.key, pod, grace_seconds, restart: Restart::AtOnce };
    plan.actions.push(Action::KillPod(KillPod {
        uid: uid.clone(),
        purpose: KillPurpose::Shutdown,
        groups: stop.groups(&own.containers),
        sandboxes: own.ready_sandboxes().map(|sandbox| sandbox.id.clone()).collect(),
    }));
}
