//! The end of the grace period of a pod that is being stopped, when a later deletion has made it
//! shorter. The runtime was told the earlier period, so the processes are killed without it, and
//! hooks that still run are ended.

use crate::plan::{Action, KillPurpose, PodOrders};
use std::time::Duration;
use tokio::time::Instant;

/// The deadline of one action.
pub(super) struct Deadline {
    /// The grace period with which the runtime was asked to stop the pod; `None` for an action that
    /// stops none.
    granted: Option<u32>,
    /// When its processes are killed.
    at: Option<Instant>,
}

impl Deadline {
    pub(super) fn of(action: &Action) -> Self {
        let mut granted = None;
        if let Action::KillPod(kill) = action
            && kill.purpose == KillPurpose::Terminal
        {
            granted = kill.containers().map(|container| container.grace_seconds).max();
        }
        Self { granted, at: None }
    }

    /// Takes over a shorter period; it can only shrink.
    pub(super) fn look(&mut self, orders: &PodOrders) {
        let (Some(granted), Some(seconds)) = (self.granted, orders.deletion_seconds()) else {
            return;
        };
        if seconds < granted {
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
