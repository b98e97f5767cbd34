//! The machine goes down: pods end, those of the lowest priority first. All that is written down is
//! which containers were ended, so that none of them counts as having done its work: what runs
//! again after the next boot is what would after a loss of power. When the shutdown is called off,
//! everything does.

use super::{
    Action, KillPod, KillPurpose, NameInput, PodPlan, Terminal, Wish,
    kill::{Stop, grace_seconds},
    memory::Stage,
    name::Cx,
};
use crate::model::{EventKind, Now, PodUid, Shutdown, k8s, priority_of};

/// Plans the wished pod's part in a shutdown; `false` when it just goes on.
pub(crate) fn plan_shutdown(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let Some(shutdown) = &cx.input.orders.shutdown else { return false };
    let known = cx.input.incarnation(cx.uid);
    if known.is_some_and(|known| known.terminal.is_some()) {
        return false;
    }
    if known.is_none() && cx.own.is_empty() {
        let message = "Pod was rejected as the node is shutting down.".to_owned();
        plan.block("the node is shutting down: no pod is started any more");
        plan.notice("shutdown", cx.event(None, EventKind::Warning, "NodeShutdown", message));
        return true;
    }
    let Some(seconds) = seconds(shutdown, Some(cx.pod)) else { return false };
    plan.interrupted = Some(Terminal::by_shutdown());
    plan_stop(cx.input, cx.uid, Some(cx.pod), (seconds, cx.now), plan);
    true
}

/// Ends what runs under a name about which no source has said anything yet.
pub(crate) fn plan_undecided(input: &NameInput<'_>, now: Now, plan: &mut PodPlan) {
    let Some(shutdown) = &input.orders.shutdown else { return };
    let kept = match &input.orders.wish {
        Wish::Undecided => None,
        Wish::Keep { pod, .. } => Some(&pod.uid),
        Wish::Run(_) | Wish::Gone => return,
    };
    let staying = input.known.iter().filter(|known| known.kill.is_none());
    let staying = staying.filter(|known| Some(&known.uid) != kept);
    for known in staying {
        let pod = known.pod.as_deref();
        if let Some(seconds) = seconds(shutdown, pod) {
            plan_stop(input, &known.uid, pod, (seconds, now), plan);
        }
    }
}

/// How long the pod has, now that its turn has come.
fn seconds(shutdown: &Shutdown, pod: Option<&k8s::Pod>) -> Option<u32> {
    let seconds = shutdown.seconds_for(pod.map(priority_of).unwrap_or_default())?;
    Some(seconds.min(grace_seconds(pod)))
}

/// Stops everything, unless the last try has failed just now. What is stopped counts as stopped in
/// order to run again.
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
    let stop = Stop { key: input.key, pod, grace_seconds, restart: true };
    plan.actions.push(Action::KillPod(KillPod {
        uid: uid.clone(),
        purpose: KillPurpose::Shutdown,
        groups: stop.groups(&own.containers),
        sandboxes: own.ready_sandboxes().map(|sandbox| sandbox.id.clone()).collect(),
    }));
}
