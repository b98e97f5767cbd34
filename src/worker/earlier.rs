//! The stop of one container during which its pod is to end: a probe had failed, or the container
//! was to be replaced. The end of the pod does not wait for it. Both go on side by side:
//!
//! ```text
//!  KillContainer ─► the pod is to end ─► KillPod, the earlier stop beside it ─► next action
//!    in its hook ........................ waits for the hook, ends it after the new grace period
//!    in StopContainer ................... calls StopContainer as well, with the new grace period
//! ```
//!
//! A runtime sends the stop signal once. Each of two calls kills the container after its own
//! timeout, so the shorter one counts, and both return when the container has ended. The first call
//! is never cancelled: it might not have sent the signal yet, and the second call would not send
//! it. `KillPod` ends when both have ended, whatever their results are, so nothing of the pod is
//! removed or released before.
//!
//! - The earlier stop ends before `KillPod` begins: its outcome is taken in as usual.
//! - `KillPod` can't begin yet: the earlier stop goes on alone, and every other action waits for it.
//!   If other actions of the ending pod are planned without `KillPod`, its hook is ended.
//! - The pod is not to end any more: the earlier stop goes on alone, and its hook keeps its time.
//! - `KillPod` fails: the hook is ended. The next try calls it again, as after each failed stop.
//! - The agent is killed: both calls end. The next start plans the end from what still runs and
//!   from the time that is left. A hook that was cut off is called again.

use super::execute::{Call, HookControl, Progress, Request};
use crate::{
    model::{ContainerId, PodKey, PodUid},
    plan::{Action, KillContainer, Outcome, PodOrders},
};
use futures_util::future::join;
use tokio::sync::watch;

/// A `KillContainer` that is under way.
pub(super) struct EarlierStop {
    key: PodKey,
    uid: PodUid,
    container: ContainerId,
    hook: HookControl,
    progress: watch::Sender<Progress>,
    outcome: Call<'static, Outcome>,
}

impl EarlierStop {
    pub(super) fn new(
        kill: &KillContainer,
        request: &Request,
        outcome: Call<'static, Outcome>,
    ) -> Self {
        Self {
            key: request.key.clone(),
            uid: kill.uid.clone(),
            container: kill.id.clone(),
            hook: request.hook_control.clone(),
            progress: request.progress.clone(),
            outcome,
        }
    }

    /// The container, and what ends its hook.
    pub(super) fn hook(&self) -> (ContainerId, HookControl) {
        (self.container.clone(), self.hook.clone())
    }

    /// Calls that hang are shown here, those of a later action as well.
    pub(super) fn progress(&self) -> watch::Sender<Progress> {
        self.progress.clone()
    }

    /// Leaves only the action that stops the pod. The others are planned again later. If a pod that
    /// ends is not to be stopped, nothing grants the hook its time any more, and it is ended.
    pub(super) fn hold_back(&self, orders: &PodOrders, actions: &mut Vec<Action>) {
        let held_back = !actions.is_empty();
        actions.retain(|action| matches!(action, Action::KillPod(kill) if kill.uid == self.uid));
        if held_back && actions.is_empty() && orders.ends(&self.uid) {
            self.hook.cut();
        }
    }

    /// Ends with the outcome of `kill_pod`, which includes the container, when both have ended.
    pub(super) fn beside(self, kill_pod: Call<'static, Outcome>) -> Call<'static, Outcome> {
        Box::pin(async move {
            let kill_pod = async {
                let outcome = kill_pod.await;
                self.hook.cut();
                outcome
            };
            let (outcome, earlier) = join(kill_pod, self.outcome).await;
            if let Outcome::Failed(failure) = earlier {
                let err = failure.message;
                tracing::debug!(pod = %self.key, err, "an earlier stop has failed");
            }
            outcome
        })
    }

    /// Waits for its end.
    pub(super) async fn finish(self) -> Outcome {
        self.outcome.await
    }
}

/// Waits for the end of an earlier stop; for ever when there is none. It may be dropped and called
/// again.
pub(super) async fn stopped(earlier: &mut Option<EarlierStop>) -> Outcome {
    let Some(current) = earlier else { return std::future::pending().await };
    let outcome = (&mut current.outcome).await;
    *earlier = None;
    outcome
}
