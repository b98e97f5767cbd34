//! Decides for one pod name which incarnations are removed, and when the wished one may start.

use super::{
    Action, Incarnation, KillPurpose, NameInput, Notice, PodPlan, Restart, Waiting, Wish,
    asked::show_restart,
    kill::{Stop, plan_retire},
    memory::{FirstStart, Recollection, Stage},
    occupancy::{Occupancy, Own},
    pod::plan_pod,
    sandbox,
    shutdown::plan_undecided,
};
use crate::model::{
    CollectOrdered as _, DesiredPod, Event, EventKind, EventTarget, Now, PodUid, k8s,
};
use crate::podspec::{grace_seconds, is_static, pod_display};
use std::{collections::BTreeSet, time::Duration};

/// Decides what to do now for one pod name. It is called again after the plan was executed or has
/// failed, at `wake_at`, and whenever the input has changed.
#[must_use]
pub fn plan_name(input: &NameInput<'_>, now: Now) -> PodPlan {
    let mut plan = PodPlan::default();
    let retiring = retiring(input);
    for uid in &retiring {
        plan_retire(input, uid, now, &mut plan);
    }
    plan_undecided(input, now, &mut plan);
    let (desired, keep) = match &input.orders.wish {
        Wish::Run(desired) | Wish::End { pod: desired, .. } => (desired, None),
        Wish::Keep { pod, why } => (pod, Some(*why)),
        Wish::Gone | Wish::Undecided => return plan,
    };
    if let Some(hold) = input.orders.hold_of(&desired.uid, input.incarnation(&desired.uid)) {
        plan.block(&hold.message);
        plan.held = retiring.is_empty();
        return plan;
    }
    if !retiring.is_empty() {
        if plan.blocked.is_none() {
            let uids: Vec<&str> = retiring.iter().map(PodUid::as_str).collect();
            plan.blocked =
                Some(format!("waiting for uid {} of this name to be gone", uids.join(", ")));
        }
        return plan;
    }
    let cx = Cx::new(input, desired, now);
    let ends = matches!(input.orders.wish, Wish::End { .. });
    match input.orders.waits.as_deref().filter(|_| cx.is_new() && !ends) {
        Some(why) => plan.blocked = Some(why.to_owned()),
        None => plan_pod(&cx, &mut plan),
    }
    if let (Some(why), None) = (keep, &plan.interrupted) {
        let from_api = !is_static(cx.pod);
        let restarts = from_api && sandbox::usable(&cx).is_some();
        plan.withhold(why, KeptPod { ends: from_api, restarts });
    }
    show_restart(&mut plan);
    plan
}

/// The uids of the incarnations to remove, sorted.
fn retiring(input: &NameInput<'_>) -> BTreeSet<PodUid> {
    let mut uids: BTreeSet<PodUid> =
        input.known.iter().map(|known| known.uid.clone()).collect_ordered();
    uids.extend(input.occupancy().own_sandboxes().map(|sandbox| sandbox.uid.clone()));
    uids.retain(|uid| {
        let killed = input.incarnation(uid).is_some_and(|known| known.kill.is_some());
        killed || input.orders.retires(uid, input.incarnation(uid))
    });
    uids
}

impl<'a> NameInput<'a> {
    /// What the runtime has under this name, by owner.
    pub(crate) fn occupancy(&self) -> Occupancy<'a> {
        Occupancy::new(self.observed, &self.settings.owner)
    }

    pub(crate) fn incarnation(&self, uid: &PodUid) -> Option<&'a Incarnation> {
        self.known.iter().find(|known| known.uid == *uid)
    }

    /// The sandboxes and containers of `uid` that belong to this agent.
    pub(crate) fn own(&self, uid: &PodUid) -> Own<'a> {
        self.occupancy().own(uid, self.incarnation(uid).is_some())
    }
}

/// Everything that planning the wished pod reads.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) input: &'a NameInput<'a>,
    pub(crate) uid: &'a PodUid,
    pub(crate) pod: &'a k8s::Pod,
    pub(crate) init: &'a [k8s::Container],
    pub(crate) regular: &'a [k8s::Container],
    pub(crate) own: Own<'a>,
    pub(crate) memory: &'a Recollection,
    pub(crate) now: Now,
}

impl<'a> Cx<'a> {
    fn new(input: &'a NameInput<'a>, desired: &'a DesiredPod, now: Now) -> Self {
        let spec = desired.pod.spec.as_ref();
        Self {
            input,
            uid: &desired.uid,
            pod: &desired.pod,
            init: spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default(),
            regular: spec.map(|s| s.containers.as_slice()).unwrap_or_default(),
            own: input.own(&desired.uid),
            memory: input.memory.of(&desired.uid),
            now,
        }
    }

    /// True when nothing has been done for the pod yet.
    fn is_new(&self) -> bool {
        self.own.is_empty() && self.input.incarnation(self.uid).is_none()
    }

    /// True when the pod has begun since the machine has started. Only before that it waits for other
    /// pods: neither a crash nor a restart of the agent makes it wait again.
    pub(crate) fn has_begun(&self) -> bool {
        self.memory.first_start == FirstStart::Begun || self.own.is_alive()
    }

    /// How containers are stopped: with the grace period of the pod.
    pub(crate) fn stop(&self, restart: Restart) -> Stop<'_> {
        let pod = Some(self.pod);
        Stop { key: self.input.key, pod, grace_seconds: grace_seconds(pod), restart }
    }

    /// How much is left of a grace period that began when the pod was first stopped, in whole
    /// seconds.
    pub(crate) fn time_left(&self, seconds: u32) -> u32 {
        self.memory.ending.map_or(seconds, |ending| ending.time_left(seconds, self.now))
    }

    /// `<name>_<namespace>(<uid>)`, the pod's name in messages.
    pub(crate) fn display(&self) -> String {
        pod_display(self.input.key, self.uid)
    }

    /// An event on the pod (`field_path: None`) or on one of its containers.
    pub(crate) fn event(
        &self,
        field_path: Option<String>,
        kind: EventKind,
        reason: &'static str,
        message: String,
    ) -> Event {
        let (key, uid) = (self.input.key.clone(), self.uid.clone());
        Event { target: EventTarget::Pod { key, uid, field_path }, kind, reason, message }
    }

    /// True when a step that has failed must wait before it is retried. Adds the reason to the
    /// plan.
    pub(crate) fn held_back(&self, stage: Stage, plan: &mut PodPlan) -> bool {
        let Some((retry, due)) = self.memory.held_back(stage, self.now) else { return false };
        plan.block(&retry.message);
        plan.wake(due);
        true
    }
}

/// What is done for a pod that may only keep what runs.
#[derive(Clone, Copy, Debug)]
struct KeptPod {
    /// It is stopped when it has ended, is evicted, or the machine shuts down.
    ends: bool,
    /// Its containers start again in their sandbox, with the volumes as they are.
    restarts: bool,
}

impl KeptPod {
    fn allows(self, action: &Action) -> bool {
        match action {
            Action::StartContainer(_) | Action::KillContainer(_) | Action::RemoveContainer(_) => {
                self.restarts
            }
            Action::KillPod(kill) => match kill.purpose {
                KillPurpose::Terminal => self.ends,
                KillPurpose::RestartAll { .. } | KillPurpose::Asked => self.restarts,
                // Also of another revision than the one that is kept.
                KillPurpose::Shutdown => true,
                KillPurpose::Restart | KillPurpose::Retire { .. } | KillPurpose::Surplus => false,
            },
            Action::Release { .. } => self.ends,
            Action::PreparePod { .. }
            | Action::CreateSandbox(_)
            | Action::Resize(_)
            | Action::RemoveSandbox(_)
            | Action::CleanUp { .. } => false,
        }
    }
}

impl PodPlan {
    /// Drops the actions that a pod that only keeps what runs has to wait for.
    fn withhold(&mut self, why: &str, kept: KeptPod) {
        let before = self.actions.len();
        self.actions.retain(|action| kept.allows(action));
        if self.actions.len() < before {
            self.block(why);
        }
        let ends = kept.ends && self.terminal.is_some();
        if !kept.restarts && !ends {
            self.notices.clear();
        }
    }

    /// Asks for the next plan at this boot time or earlier.
    pub(crate) fn wake(&mut self, at: Duration) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }

    /// Sets why the pod is waiting. The first reason stays.
    pub(crate) fn block(&mut self, why: &str) {
        if self.blocked.is_none() {
            self.blocked = Some(why.to_owned());
        }
    }

    /// Sets why a container does not run.
    pub(crate) fn wait(&mut self, container: &str, reason: &str, message: String) {
        self.waiting.insert(container.into(), Waiting { reason: reason.to_owned(), message });
    }

    /// Adds an event that is recorded once for each occasion.
    pub(crate) fn notice(&mut self, occasion: impl Into<String>, event: Event) {
        self.notices.push(Notice { occasion: occasion.into(), event });
    }
}
