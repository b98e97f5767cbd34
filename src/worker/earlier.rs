//! A stop of containers during which their pod is to end. The pod was to go on after it: a probe has
//! failed (`KillContainer`), a person has asked for a restart or the sandbox is replaced (`KillPod`),
//! or a postStart hook has failed (`StartContainer`). The end of the pod does not wait for it. Both
//! go on side by side. A `KillPod` that ends the pod is not overtaken: `deadline` shortens it for a
//! later order that gives the pod less time.
//!
//! ```text
//!  stop of containers ─► the pod is to end ─► KillPod, the earlier stop beside it ─► next action
//!    a hook runs ........................ waits for the hook, ends it after the new grace period
//!    in StopContainer ................... calls StopContainer as well, with the new grace period
//!    waits for the turn of its group .... both call StopContainer when the turn has come
//!    sandboxes .......................... only the new KillPod stops them
//! ```
//!
//! A runtime sends the stop signal once. Each of two calls kills the container after its own
//! timeout, so the shorter one counts, and both return when the container has ended. The first call
//! is never cancelled: it might not have sent the signal yet, and the second call would not send
//! it. `KillPod` ends when both have ended, whatever their results are, so nothing of the pod is
//! removed or released before.
//!
//! - The earlier stop is in StopPodSandbox already: the end of the pod waits for it
//!   ([`StopControl`] says why).
//! - No listing shows the started container yet whose postStart hook has failed: the end of the pod
//!   waits for that listing, because it must stop this container, too.
//! - The earlier stop ends before `KillPod` begins: its outcome is taken in as usual.
//! - `KillPod` can't begin yet: the earlier stop goes on alone, and every other action waits for it.
//!   If other actions of the ending pod are planned without `KillPod`, its hooks are ended.
//! - The pod is not to end any more: the earlier stop goes on alone, its hooks keep their time, and
//!   a sandbox that it has left is stopped by the next plan.
//! - `KillPod` fails: the hooks are ended. The next try calls them again, as after each failed stop.
//! - The earlier stop fails beside `KillPod`: only `KillPod` counts, which has stopped the same
//!   containers.
//! - The agent is killed: both calls end. The next start plans the end from what still runs and
//!   from the time that is left. A hook that was cut off is called again.
//!
//! Volumes that are written beside the start of a container, because an object has changed, are
//! such work too: when that hangs and the start has ended, only the end of the pod goes on beside it.

use super::{
    execute::{Call, Progress, Request, StopControl},
    objects::ObjectsRead,
};
use crate::{
    model::{PodKey, PodUid},
    plan::{Action, Outcome, PodOrders},
};
use futures_util::future::join;
use tokio::sync::watch;

/// An action under way that stops containers or writes volumes.
pub(super) struct EarlierWork {
    key: PodKey,
    uid: PodUid,
    control: StopControl,
    progress: watch::Sender<Progress>,
    outcome: Call<'static, Outcome>,
    /// What volumes are written from.
    objects: ObjectsRead,
}

impl EarlierWork {
    pub(super) fn new(
        request: &Request,
        outcome: Call<'static, Outcome>,
        objects: ObjectsRead,
    ) -> Self {
        Self {
            key: request.key.clone(),
            uid: request.uid.clone(),
            control: request.stop_control.clone(),
            progress: request.progress.clone(),
            outcome,
            objects,
        }
    }

    /// The containers that it stops, and what ends their hooks.
    pub(super) fn control(&self) -> StopControl {
        self.control.clone()
    }

    /// Calls that hang are shown here, those of a later action as well.
    pub(super) fn progress(&self) -> watch::Sender<Progress> {
        self.progress.clone()
    }

    /// Leaves only the action that ends the pod. The others are planned again later. If a pod that
    /// ends is not to be stopped, nothing grants the hooks their time any more, and they are ended.
    pub(super) fn hold_back(&self, orders: &PodOrders, actions: &mut Vec<Action>) {
        let held_back = !actions.is_empty();
        actions.retain(|action| action.ends_pod() && *action.uid() == self.uid);
        if held_back && actions.is_empty() && orders.ends(&self.uid) {
            self.control.cut();
        }
    }

    /// Ends with the outcome of `kill_pod`, which includes the containers, when both have ended.
    pub(super) fn beside(self, kill_pod: Call<'static, Outcome>) -> Call<'static, Outcome> {
        Box::pin(async move {
            let kill_pod = async {
                let outcome = kill_pod.await;
                self.control.cut();
                outcome
            };
            let (outcome, earlier) = join(kill_pod, self.outcome).await;
            if let Outcome::Failed(failure) = earlier {
                let err = failure.message;
                tracing::debug!(pod = %self.key, err, "earlier work has failed");
            }
            outcome
        })
    }

    /// Waits for its end.
    pub(super) async fn finish(self) -> Outcome {
        self.outcome.await
    }
}

/// Waits for the end of earlier work, and tells what it has written volumes from; for ever when there
/// is none. It may be dropped and called again.
pub(super) async fn ended(earlier: &mut Option<EarlierWork>) -> (Outcome, ObjectsRead) {
    let Some(current) = earlier else { return std::future::pending().await };
    let outcome = (&mut current.outcome).await;
    let objects = std::mem::take(&mut current.objects);
    *earlier = None;
    (outcome, objects)
}
