//! What the worker, and a later stop of the pod, must know about the containers that an action
//! stops.
//!
//! ```text
//!  nothing ─► stops containers ─► stops sandboxes ─► end
//!                    └── overtaken by the end of the pod ─┘
//! ```
//!
//! An action that stops containers can be overtaken: the end of the pod is planned and executed
//! beside it (`worker::earlier`). The stop of a sandbox is not overtaken, because two calls would
//! run the CNI plugins for one network at the same time. So an action that is overtaken leaves its
//! sandboxes to the end of the pod.

use crate::model::{ContainerId, ContainerState, ObservedPod};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The containers that one action stops, and its preStop hooks.
#[derive(Clone, Debug, Default)]
pub(in crate::worker) struct StopControl {
    stops: watch::Sender<Stops>,
    /// The hooks are ended now.
    cut: CancellationToken,
}

#[derive(Debug, Default)]
struct Stops {
    /// Empty before the stop of containers, and after [`StopControl::end`]. True: the hook of the container has ended, or
    /// there is none.
    containers: BTreeMap<ContainerId, bool>,
    /// The end of the pod has overtaken the action.
    overtaken: bool,
}

impl StopControl {
    /// The stop of these containers begins.
    pub(super) fn begin<'a>(&self, ids: impl IntoIterator<Item = &'a ContainerId>) {
        let ids = ids.into_iter().map(|id| (id.clone(), false));
        self.stops.send_modify(|stops| stops.containers.extend(ids));
    }

    /// The hook of a container has ended, or there is none.
    pub(super) fn end_hook(&self, id: &ContainerId) {
        self.stops.send_modify(|stops| {
            stops.containers.insert(id.clone(), true);
        });
    }

    /// The stop of the containers has ended, and with it what is left of their hooks. Returns false
    /// if the action was overtaken: then it stops no sandbox.
    pub(super) fn end(&self) -> bool {
        let mut overtaken = false;
        self.stops.send_modify(|stops| {
            overtaken = stops.overtaken;
            if overtaken {
                stops.containers.values_mut().for_each(|ended| *ended = true);
            } else {
                stops.containers.clear();
            }
        });
        !overtaken
    }

    /// Overtakes the action, if it stops containers and the end of the pod can be planned: all of
    /// them have been observed since they have started.
    pub(in crate::worker) fn overtake(&self, observed: &ObservedPod) -> bool {
        let has_started = |id: &ContainerId| {
            let container = observed.containers.iter().find(|container| container.id == *id);
            container.is_some_and(|container| container.state != ContainerState::Created)
        };
        self.stops.send_if_modified(|stops| {
            let ids = &stops.containers;
            stops.overtaken = !ids.is_empty() && ids.keys().all(has_started);
            stops.overtaken
        })
    }

    /// True when the action stops this container, or has stopped it after it was overtaken.
    pub(super) fn stops(&self, id: &ContainerId) -> bool {
        self.stops.borrow().containers.contains_key(id)
    }

    /// Ends the hooks: the grace period of the pod is over, or nothing waits for them.
    pub(in crate::worker) fn cut(&self) {
        self.cut.cancel();
    }

    /// Waits until the hooks are to end.
    pub(super) async fn wait_cut(&self) {
        self.cut.cancelled().await;
    }

    /// Waits until the hook of this container has ended.
    async fn hook_ended(&self, id: &ContainerId) {
        let ended = |stops: &Stops| stops.containers.get(id).is_none_or(|ended| *ended);
        // The sender is `self`.
        let ended = self.stops.subscribe().wait_for(ended).await.is_ok();
        debug_assert!(ended, "the stops ended early");
    }

    /// Waits for the hook of a container of this earlier action, and ends it after `grace`, or
    /// earlier if the hooks of the `later` action are to end. The containers of a pod have the same
    /// grace period, so all hooks of this action may be ended together.
    pub(super) async fn take_over(&self, id: &ContainerId, grace: Duration, later: &Self) {
        // All arms only wait.
        tokio::select! {
            biased;
            () = self.hook_ended(id) => return,
            () = later.wait_cut() => {}
            () = tokio::time::sleep(grace) => {}
        }
        self.cut();
        self.hook_ended(id).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use jiff::Timestamp;

    fn running() -> ContainerState {
        ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }
    }

    fn stop_of(ids: &[&str]) -> StopControl {
        let (control, ids) = (StopControl::default(), ids.iter().map(|id| (*id).into()));
        control.begin(&ids.collect::<Vec<ContainerId>>());
        control
    }

    #[test]
    fn a_stop_is_overtaken_when_its_containers_were_observed() {
        let control = stop_of(&["a", "b"]);
        let created = ObservedPod::example(&[("a", running()), ("b", ContainerState::Created)]);
        for unknown in
            [ObservedPod::example(&[]), ObservedPod::example(&[("a", running())]), created]
        {
            assert!(!control.overtake(&unknown), "{unknown:?}");
        }
        assert!(control.overtake(&ObservedPod::example(&[("a", running()), ("b", running())])));
        assert!(!control.end(), "the end of the pod stops the sandboxes");
    }

    #[test]
    fn nothing_is_overtaken_while_no_container_is_stopped() {
        let all = ObservedPod::example(&[("a", running())]);
        assert!(!StopControl::default().overtake(&all));
        let control = stop_of(&["a"]);
        assert!(control.end(), "it stops its sandboxes itself");
        assert!(!control.overtake(&all));
    }

    #[tokio::test]
    async fn a_later_stop_waits_for_the_hook_of_its_container_only() {
        let (earlier, later, long) = (stop_of(&["a", "b"]), stop_of(&[]), Duration::MAX);
        let (a, b) = ("a".into(), "b".into());
        assert!(earlier.take_over(&a, long, &later).now_or_never().is_none());
        earlier.end_hook(&a);
        earlier.take_over(&a, long, &later).await;
        assert!(earlier.wait_cut().now_or_never().is_none(), "the hook of b keeps its time");
        let ends = async {
            earlier.wait_cut().await;
            earlier.end_hook(&b);
        };
        tokio::join!(earlier.take_over(&b, Duration::ZERO, &later), ends);
    }

    #[tokio::test]
    async fn hooks_of_a_stop_that_was_given_up_are_waited_for_no_longer() {
        let (earlier, later) = (stop_of(&["a"]), StopControl::default());
        assert!(earlier.overtake(&ObservedPod::example(&[("a", running())])));
        assert!(!earlier.end());
        earlier.take_over(&"a".into(), Duration::MAX, &later).await;
        assert!(earlier.stops(&"a".into()), "the hook is not called again");
    }
}
