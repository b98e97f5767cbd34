//! What nobody's worker does: which cgroup driver is in use, the cgroups that all pods share, and what
//! crashes left behind.
//!
//! Leftovers (cgroups, pod directories, log directories, log links of pods that are no more) are
//! removed when, and only when, every source has said everything and the runtime was listed: until
//! then a pod may be unknown because nobody has asked for it yet.

use super::build::{enforces_pods, reserved};
use crate::{
    blocking::{CGROUPS, LOOKS},
    cgroup::{Limits, NodeCapacity, node_limits},
    config::Config,
    model::{CgroupDriver, Event, EventKind, EventTarget, PodUid, ToldDriver},
    pleg::Health,
    worker::{Host, Known, blocking, chain, remove_host_directories, unmount_and_delete},
};
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Between two tries while the cgroup of all pods can't be made, as with the kubelet, and between two looks whether it
/// is still the one that was made.
const RETRY: Duration = Duration::from_secs(60);
/// Between two looks for leftovers. They come from crashes, and the first look finds those; this
/// one is for what could not be removed then.
const LOOK: Duration = Duration::from_secs(600);

pub(super) struct Housekeeping {
    host: Arc<Host>,
    limits: Limits,
    health: watch::Receiver<Arc<Health>>,
    known: watch::Receiver<Arc<Known>>,
    trouble: watch::Sender<Vec<String>>,
    enforced: bool,
    /// The directory in which that was done.
    made: Option<u64>,
}

impl Housekeeping {
    pub(super) fn new(
        host: Arc<Host>,
        config: &Config,
        capacity: &NodeCapacity,
        known: watch::Receiver<Arc<Known>>,
        trouble: watch::Sender<Vec<String>>,
    ) -> Self {
        let limits = node_limits(capacity, &reserved(config), enforces_pods(config));
        let health = host.pleg.health();
        Self { host, limits, health, known, trouble, enforced: false, made: None }
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        // What was enforced last.
        let mut done: Option<(CgroupDriver, u64)> = None;
        let mut next_try = Instant::now();
        let mut next_look = Instant::now();
        let (mut enforcing, mut leftovers) = (None, Vec::new());
        // A removal may take long: the cgroups that all pods share don't wait for it.
        let mut sweep: Option<Pin<Box<dyn Future<Output = Vec<String>> + Send>>> = None;
        loop {
            let known = Arc::clone(&self.known.borrow_and_update());
            let told = self.health.borrow().cgroup_driver;
            self.host.cgroups.runtime_tells(told);
            let driver = self.host.cgroups.driver_state().borrow().driver;
            if let Some(driver) = driver {
                let wanted = Some((driver, known.burstable_shares));
                let due = !self.enforced && Instant::now() >= next_try;
                let removed = self.enforced && self.host.cgroups.kubepods_inode() != self.made;
                if removed {
                    tracing::warn!("the cgroup of all pods was removed, and is made again");
                }
                if due || removed || done != wanted {
                    enforcing = self.enforce(known.burstable_shares).await;
                    done = wanted;
                    next_try = Instant::now() + RETRY;
                }
            }
            if known.complete && sweep.is_none() && Instant::now() >= next_look {
                let sweeper = Sweeper { host: Arc::clone(&self.host), known: self.known.clone() };
                sweep = Some(Box::pin(sweeper.sweep()));
            }
            let trouble: Vec<String> = enforcing.iter().chain(&leftovers).cloned().collect();
            self.trouble.send_if_modified(|published| {
                let changed = *published != trouble;
                *published = trouble;
                changed
            });
            // Until everything is known there is nothing to look for, and a change will tell; so will
            // the end of a sweep.
            let idle = known.complete && sweep.is_none();
            let look = if idle { next_look } else { Instant::now() + LOOK };
            let wake = match (&done, self.enforced) {
                (None, _) => look,
                (Some(_), true) => look.min(Instant::now() + RETRY),
                (Some(_), false) => look.min(next_try),
            };
            // Every arm only waits, and the next round reads everything anew. The sweep is kept across rounds; at the
            // end it is dropped, and the agent's next life goes on with it.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                found = ended(&mut sweep) => {
                    leftovers = found;
                    sweep = None;
                    next_look = Instant::now() + LOOK;
                }
                changed = self.known.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                }
                other = another(&mut self.health, told) => {
                    if other.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Node allocatable and the tiers.
    async fn enforce(&mut self, burstable_shares: u64) -> Option<String> {
        let done = self.host.cgroups.ensure_shared(&self.limits, burstable_shares).await;
        self.made = self.host.cgroups.kubepods_inode();
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
                format!("Failed to update Node Allocatable Limits \"kubepods\": {}", chain(error)),
            ),
        };
        self.enforced = done.is_ok();
        let trouble = done.is_err().then(|| message.clone());
        self.host.events.record(Event { target: EventTarget::Node, kind, reason, message });
        trouble
    }
}

/// Removes what crashes have left.
struct Sweeper {
    host: Arc<Host>,
    known: watch::Receiver<Arc<Known>>,
}

impl Sweeper {
    /// Removes what is left of pods that are no more; returns what could not be removed.
    ///
    /// The directories are listed first and what is known is looked up after: a pod that is being
    /// prepared meanwhile is either not in the listing or known.
    async fn sweep(self) -> Vec<String> {
        let mut trouble = Vec::new();
        let volumes = self.host.volumes.clone();
        let listed = match blocking(&LOOKS, move || volumes.list_pods()).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return vec![format!("cannot look for leftover pods: {error}")],
            Err(error) => return vec![format!("looking for leftover pods has crashed: {error}")],
        };
        for uid in listed {
            // Known by now, perhaps: the removal of the one before may have taken long.
            if self.known.borrow().uids.contains(&uid) {
                continue;
            }
            tracing::info!(%uid, "removing what is left of a pod that is no more");
            if let Err(sentence) = self.remove_leftovers(&uid).await {
                tracing::warn!(%uid, "{sentence}");
                trouble.push(format!("leftovers of pod {uid}: {sentence}"));
            }
        }
        let files = self.host.files.clone();
        let known = Arc::clone(&self.known.borrow());
        let links =
            blocking(&LOOKS, move || files.remove_dead_links(|id| known.containers.contains(id)));
        if let Ok(Err(error)) = links.await {
            trouble.push(format!("cannot remove dead log links: {error}"));
        }
        trouble
    }

    /// The directory below the root directory is what makes a leftover ours: cgroups and log
    /// directories are listed for everybody who runs pods on this machine. So it goes last.
    async fn remove_leftovers(&self, uid: &PodUid) -> Result<(), String> {
        let (cgroups, wanted) = (self.host.cgroups.clone(), uid.clone());
        let found = blocking(&CGROUPS, move || cgroups.list_pods())
            .await?
            .map_err(|error| chain(&error))?;
        for pod in found.into_iter().filter(|pod| pod.uid == wanted) {
            self.host.cgroups.remove_pod(&pod.name).await.map_err(|error| chain(&error))?;
        }
        let files = self.host.files.clone();
        let logs = blocking(&LOOKS, move || files.list_pod_logs()).await?;
        let logs = logs.map_err(|error| chain(&error))?;
        let keys = logs.into_iter().filter(|logs| logs.uid == *uid).map(|logs| logs.key).collect();
        unmount_and_delete(&self.host.volumes, uid).await?;
        remove_host_directories(&self.host.volumes, &self.host.files, uid, keys).await
    }
}

/// Waits for the end of a sweep; for ever when there is none.
async fn ended(
    sweep: &mut Option<Pin<Box<dyn Future<Output = Vec<String>> + Send>>>,
) -> Vec<String> {
    match sweep {
        Some(sweep) => sweep.await,
        None => std::future::pending().await,
    }
}

/// Waits until the runtime says something else of its cgroup driver.
async fn another(
    health: &mut watch::Receiver<Arc<Health>>,
    told: ToldDriver,
) -> Result<(), watch::error::RecvError> {
    health.wait_for(|health| health.cgroup_driver != told).await.map(drop)
}
