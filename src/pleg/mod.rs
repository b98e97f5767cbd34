//! Observes the pods of the runtime: lists them, follows its events, and publishes the changes.
//!
//! Only listings count; events are hints that say when to list. With events everything is listed
//! every 10 s, without them every second, and at once when a worker asks for its pod. Objects that
//! have changed since the last listing are inspected, several at a time. An inspection that hangs
//! marks its pod and delays nothing else. Only a listing that keeps failing makes the node
//! unhealthy. The first listing is handed on before its pods are inspected, so that pods which are
//! not in it can start at once; those in it that seem unchanged are inspected after all others. The
//! end of a container is handed on twice: with the exit code that containerd's event tells, while
//! the container still counts as running, and as soon as the runtime's view shows it.
//!
//! ```text
//! events ─► hint ─┐            ┌─► unchanged ─────────────────────────┐
//! look_now ───────┼─► list ─► compare (core) ─► inspect changed ─► core ─► PlegUpdate
//! relist timer ───┘                                  └─ hangs: pod marked, result taken later
//! ```
//!
//! It owns the picture of the runtime and nothing else: it decides nothing about pods.

mod core;
mod events;
mod hints;
mod inspect;
mod readiness;
mod run;
mod termination;

use crate::{
    cri::RuntimeClient,
    model::{HungPod, Now, ObservedPod, PodKey, RuntimeView, ToldDriver},
};
use std::{sync::Arc, time::Duration};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, PartialEq)]
pub struct PlegUpdate {
    /// Boot time at which the listing began. For a complete update every pod that is not in it was
    /// found unchanged at that time; each pod in it carries its own `listed_at`.
    pub listed_at: Duration,
    /// Whether everything was listed. The first update is complete and has every pod, in `pods` or
    /// in `listed`.
    pub complete: bool,
    /// The pods that changed or were asked for; an empty [`ObservedPod`] when nothing is left.
    pub pods: Vec<(PodKey, Arc<ObservedPod>)>,
    /// Pods of the first listing that are yet to be inspected. They have what a listing tells: ids,
    /// uids, owners and states, but no addresses, no exit codes and no times. Each of them is in
    /// the `pods` of this update or of a later one, also when nothing is left of it by then. Empty
    /// after the first update.
    pub listed: Vec<(PodKey, Arc<ObservedPod>)>,
}

/// The health of the relist loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Boot time at which the last full listing began.
    pub last_relist: Option<Duration>,
    /// `None` when healthy, else the kubelet's message.
    pub unhealthy: Option<String>,
    pub events_connected: bool,
    /// Pods whose inspection hangs.
    pub hung: Vec<HungPod>,
    /// The runtime's own conditions. `name` and `version` are empty until it answered once.
    pub runtime: RuntimeView,
    /// The runtime's cgroup driver.
    pub cgroup_driver: ToldDriver,
    /// Changes when the runtime has answered and may be another one than before; 0 before its first
    /// answer.
    pub runtime_number: u64,
}

/// Intervals and limits.
#[derive(Clone, Copy, Debug)]
pub struct PlegSettings {
    pub clock: fn() -> Now,
    /// Between whole listings while no events arrive.
    pub relist_period: Duration,
    /// Between whole listings while events arrive.
    pub relist_period_with_events: Duration,
    /// Between questions for the runtime's conditions.
    pub status_period: Duration,
    /// An inspection that takes longer marks its pod as hung.
    pub inspect_patience: Duration,
    /// Inspections at a time, hung ones not counted.
    pub inspect_concurrency: usize,
}

impl PlegSettings {
    /// The defaults, with the clock to use.
    #[must_use]
    pub fn new(clock: fn() -> Now) -> Self {
        Self {
            clock,
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            status_period: Duration::from_secs(5),
            inspect_patience: Duration::from_secs(2),
            inspect_concurrency: 8,
        }
    }
}

/// The loop is not running (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the relist loop has ended")]
pub struct PlegStopped;

#[derive(Clone, Debug)]
pub struct PlegHandle {
    looks: mpsc::Sender<PodKey>,
    health: watch::Receiver<Arc<Health>>,
    heartbeat: watch::Receiver<Duration>,
}

impl PlegHandle {
    /// Asks for a look at one pod name. It is always answered by an update that has `key`, from a
    /// listing that began after this call; several requests may get one answer. While the runtime
    /// does not answer, so does this: the answer comes with the next listing that succeeds.
    ///
    /// # Errors
    /// When the loop has ended.
    ///
    /// # Cancel safety
    /// Cancel safe: the request is made or not.
    pub async fn look_now(&self, key: PodKey) -> Result<(), PlegStopped> {
        self.looks.send(key).await.map_err(|_| PlegStopped)
    }

    /// The latest health of the relist loop.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Arc<Health>> {
        self.health.clone()
    }

    /// When the loop last came round, as `clock::awake`; it does so also while the runtime hangs.
    #[must_use]
    pub fn heartbeat(&self) -> watch::Receiver<Duration> {
        self.heartbeat.clone()
    }
}

/// The loop, see [`Pleg::run`].
#[derive(Debug)]
pub struct Pleg {
    client: RuntimeClient,
    settings: PlegSettings,
    looks: mpsc::Receiver<PodKey>,
    updates: mpsc::Sender<PlegUpdate>,
    health: watch::Sender<Arc<Health>>,
    heartbeat: watch::Sender<Duration>,
}

/// Requests that may wait to be read. The loop reads them at once: it never waits for a reader of
/// updates.
const LOOKS: usize = 64;
/// Updates that may wait to be read; further ones are merged into one.
const UPDATES: usize = 16;

/// Why the runtime is not ready before its first answer.
pub const NOT_ASKED: &str = "container runtime status check may not have completed yet";

impl Pleg {
    /// The loop, the handle to ask it, and what it hands on. Run it with [`Pleg::run`].
    #[must_use]
    pub fn new(
        client: RuntimeClient,
        settings: PlegSettings,
    ) -> (Self, PlegHandle, mpsc::Receiver<PlegUpdate>) {
        let (look, looks) = mpsc::channel(LOOKS);
        let (updates, updates_out) = mpsc::channel(UPDATES);
        let (health, health_out) = watch::channel(Arc::new(Health {
            last_relist: None,
            unhealthy: Some("pleg has yet to be successful".to_owned()),
            events_connected: false,
            hung: Vec::new(),
            runtime: RuntimeView {
                endpoint: client.endpoint().to_owned(),
                not_ready: Some(NOT_ASKED.to_owned()),
                network_not_ready: Some("network state unknown".to_owned()),
                ..RuntimeView::default()
            },
            cgroup_driver: ToldDriver::Unknown,
            runtime_number: 0,
        }));
        let (heartbeat, heartbeat_out) = watch::channel(Duration::ZERO);
        let handle = PlegHandle { looks: look, health: health_out, heartbeat: heartbeat_out };
        (Self { client, settings, looks, updates, health, heartbeat }, handle, updates_out)
    }

    /// Runs until `shutdown`, or until the receiver of the updates is gone. Reads that are under
    /// way are dropped then.
    pub async fn run(self, shutdown: CancellationToken) {
        let (this, updates) = run::Loop::new(self);
        this.run(updates, shutdown).await;
    }
}

#[cfg(test)]
mod tests;
