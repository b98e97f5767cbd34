//! The end of the grace period of a pod that is being stopped, when a later deletion, a hold or a
//! shutdown has made it shorter. The runtime was told the earlier period, so the processes are
//! killed without it, and hooks that still run are ended.

use crate::{
    model::{PodUid, k8s},
    plan::{Action, PodOrders},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The deadline of one action.
pub(super) struct Deadline {
    uid: PodUid,
    pod: Option<Arc<k8s::Pod>>,
    /// The grace period with which the runtime was asked to stop the pod, or the one that the orders
    /// gave it then, if that is shorter; `None` for an action that ends no pod.
    granted: Option<u32>,
    /// When its processes are killed.
    at: Option<Instant>,
}

impl Deadline {
    /// The action was planned from these orders.
    pub(super) fn of(action: &Action, pod: Option<Arc<k8s::Pod>>, orders: &PodOrders) -> Self {
        let mut granted = None;
        if let Action::KillPod(kill) = action
            && action.ends_pod()
        {
            granted = kill.containers().map(|container| container.grace_seconds).max();
        }
        let uid = action.uid().clone();
        let granted = granted.map(|granted| {
            let ordered = orders.stop_seconds(&uid, pod.as_deref());
            ordered.map_or(granted, |ordered| ordered.min(granted))
        });
        Self { uid, pod, granted, at: None }
    }

    /// Takes over a shorter period; it can only shrink.
    pub(super) fn look(&mut self, orders: &PodOrders) {
        let Some(granted) = self.granted else { return };
        let ordered = orders.stop_seconds(&self.uid, self.pod.as_deref());
        if let Some(seconds) = ordered.filter(|seconds| *seconds < granted) {
            self.granted = Some(seconds);
            let at = Instant::now() + Duration::from_secs(seconds.into());
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
        }
    }

    /// Waits until the deadline passes, once; for ever when there is none. It may be dropped and
    /// called again.
    pub(super) async fn passed(&mut self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        model::{Event, EventKind, EventTarget, Hold, HoldStop},
        plan::{HeldPod, KillContainer, KillPod, KillPurpose, Restart, Wish},
    };

    /// Stops one container with this grace period.
    fn kill(purpose: KillPurpose, grace_seconds: u32) -> Action {
        let container = KillContainer {
            uid: "a".into(),
            id: "c1".into(),
            name: "web".into(),
            grace_seconds,
            event: Event {
                target: EventTarget::Node,
                kind: EventKind::Normal,
                reason: "Killing",
                message: String::new(),
            },
            restart: Restart::ByPolicy,
            pre_stop: true,
        };
        let groups = vec![vec![container]];
        Action::KillPod(KillPod { uid: "a".into(), purpose, groups, sandboxes: Vec::new() })
    }

    /// The pod is evicted within this time.
    fn orders(seconds: Option<u32>) -> PodOrders {
        let hold = |seconds| Hold {
            reason: "Evicted".to_owned(),
            message: String::new(),
            stop: HoldStop::Within(seconds),
            disruption: None,
        };
        let held = |seconds| HeldPod { uid: "a".into(), hold: Arc::new(hold(seconds)) };
        PodOrders {
            wish: Wish::Gone,
            shutdown: None,
            hold: seconds.map(held),
            waits: None,
            after: None,
            resize_wait: None,
            asked: None,
            clear_dead: false,
        }
    }

    #[test]
    fn only_a_later_and_shorter_order_shortens_a_stop() {
        let kill_pod = kill(KillPurpose::Terminal, 25);
        let mut deadline = Deadline::of(&kill_pod, None, &orders(None));
        deadline.look(&orders(Some(28)));
        assert_eq!(deadline.at, None, "the runtime ends it earlier");
        let before = Instant::now();
        deadline.look(&orders(Some(7)));
        let at = deadline.at.unwrap();
        assert!(at >= before + Duration::from_secs(7));
        assert!(at <= Instant::now() + Duration::from_secs(7));
        deadline.look(&orders(Some(9)));
        assert_eq!(deadline.at, Some(at));

        let kill_pod = kill(KillPurpose::Terminal, 2);
        let mut planned_so = Deadline::of(&kill_pod, None, &orders(Some(1)));
        planned_so.look(&orders(Some(1)));
        assert_eq!(planned_so.at, None, "the runtime grants two seconds at least");

        let restart = kill(KillPurpose::Asked, 25);
        let mut goes_on = Deadline::of(&restart, None, &orders(None));
        goes_on.look(&orders(Some(7)));
        assert_eq!(goes_on.at, None, "the end of the pod overtakes it");
    }
}
