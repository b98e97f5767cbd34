//! The loop that keeps the cgroups that all pods share, and sweeps leftovers.

use super::sweep::{Sweeper, Swept};
use crate::{
    cgroup::{Cgroups, Limits},
    event::Recorder,
    model::{CgroupDriver, Event, EventKind, EventTarget, Known, ToldDriver, error_chain},
    pleg::Health,
    publish::PublishIfChanged as _,
};
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// The time between two tries to make the cgroup of all pods, as in the kubelet, and between two
/// checks that it is still the one that was made.
const RETRY: Duration = Duration::from_secs(60);
/// The time between two sweeps. Leftovers come from crashes, so the first sweep finds them; later
/// ones are for those that could not be removed.
const LOOK: Duration = Duration::from_secs(600);

/// A sweep that runs.
type Sweep = Pin<Box<dyn Future<Output = Swept> + Send>>;

/// What [`Housekeeping`] works with.
pub struct HousekeepingParts {
    /// The cgroups of pods.
    pub cgroups: Cgroups,
    /// The limits of all pods together.
    pub limits: Limits,
    /// Takes events.
    pub events: Recorder,
    /// Removes what crashes have left.
    pub sweeper: Sweeper,
    /// What is known of the runtime.
    pub health: watch::Receiver<Arc<Health>>,
    /// The pods that are known.
    pub known: watch::Receiver<Arc<Known>>,
    /// Sentences for the node's status.
    pub trouble: watch::Sender<Vec<String>>,
}

/// The loop that keeps the shared cgroups and sweeps leftovers.
pub struct Housekeeping {
    parts: HousekeepingParts,
    /// The limits of all pods were written.
    enforced: bool,
    /// Inode of the cgroup of all pods in which that was done.
    made: Option<u64>,
}

impl Housekeeping {
    /// A loop that has done nothing yet.
    #[must_use]
    pub fn new(parts: HousekeepingParts) -> Self {
        Self { parts, enforced: false, made: None }
    }

    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        // The settings that were written last.
        let mut done: Option<(CgroupDriver, u64)> = None;
        let mut next_try = Instant::now();
        let mut next_look = Instant::now();
        let (mut enforcing, mut foreign) = (None, None);
        let mut swept = Swept::default();
        // A removal may take long: the cgroups that all pods share don't wait for it.
        let mut sweep: Option<Sweep> = None;
        loop {
            let known = Arc::clone(&self.parts.known.borrow_and_update());
            let told = self.parts.health.borrow().cgroup_driver;
            self.parts.cgroups.runtime_tells(told);
            let driver = self.parts.cgroups.driver_state().borrow().driver;
            if let Some(driver) = driver {
                let wanted = Some((driver, known.burstable_shares));
                let due = !self.enforced && Instant::now() >= next_try;
                let removed = self.enforced && self.parts.cgroups.kubepods_inode() != self.made;
                if removed {
                    tracing::warn!("the cgroup of all pods was removed and is created again");
                }
                if due || removed || done != wanted {
                    enforcing = self.enforce(known.burstable_shares).await;
                    done = wanted;
                    next_try = Instant::now() + RETRY;
                }
            }
            if known.is_complete() && sweep.is_none() && Instant::now() >= next_look {
                sweep = Some(Box::pin(self.parts.sweeper.clone().sweep()));
            }
            let named = swept.foreign(&known);
            if let Some(sentence) = named.as_ref().filter(|_| named != foreign) {
                tracing::warn!("{sentence}");
            }
            foreign = named;
            let trouble: Vec<String> =
                enforcing.iter().chain(&foreign).chain(swept.failures()).cloned().collect();
            self.parts.trouble.publish_if_changed(trouble);
            // No sweep is due before all pods are known or while another sweep runs. A change of
            // `known` and the end of the sweep wake the loop.
            let idle = known.is_complete() && sweep.is_none();
            let look = if idle { next_look } else { Instant::now() + LOOK };
            let wake = match (&done, self.enforced) {
                (None, _) => look,
                (Some(_), true) => look.min(Instant::now() + RETRY),
                (Some(_), false) => look.min(next_try),
            };
            // Cancel-safe: every arm only waits, and the next round reads everything again. The
            // sweep outlives the select. A shutdown drops it, and the next run of the agent sweeps
            // again.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                found = ended(&mut sweep) => {
                    if let Some(event) = found.event() {
                        self.parts.events.record(event);
                    }
                    swept = found;
                    sweep = None;
                    next_look = Instant::now() + LOOK;
                }
                changed = self.parts.known.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return;
                    }
                }
                other = another(&mut self.parts.health, told) => {
                    if other.is_err() {
                        shutdown.cancelled().await;
                        return;
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Writes the limits of all pods and the shares of the QoS classes. Returns a sentence for the
    /// node's status when that failed.
    async fn enforce(&mut self, burstable_shares: u64) -> Option<String> {
        let done = self.parts.cgroups.ensure_shared(&self.parts.limits, burstable_shares).await;
        self.made = self.parts.cgroups.kubepods_inode();
        let (kind, reason, message) = match &done {
            Ok(()) if self.enforced => return None,
            Ok(()) => (
                EventKind::Normal,
                "NodeAllocatableEnforced",
                "Updated Node Allocatable limit across pods".to_owned(),
            ),
            Err(error) => (
                EventKind::Warning,
                "FailedNodeAllocatableEnforcement",
                format!(
                    "Failed to update Node Allocatable Limits \"kubepods\": {}",
                    error_chain(error)
                ),
            ),
        };
        self.enforced = done.is_ok();
        let trouble = done.is_err().then(|| message.clone());
        self.parts.events.record(Event { target: EventTarget::Node, kind, reason, message });
        trouble
    }
}

/// Waits for the end of a sweep; waits for ever when there is none.
async fn ended(sweep: &mut Option<Sweep>) -> Swept {
    match sweep {
        Some(sweep) => sweep.await,
        None => std::future::pending().await,
    }
}

/// Waits until the runtime reports another cgroup driver than `told`.
async fn another(
    health: &mut watch::Receiver<Arc<Health>>,
    told: ToldDriver,
) -> Result<(), watch::error::RecvError> {
    health.wait_for(|health| health.cgroup_driver != told).await.map(drop)
}
