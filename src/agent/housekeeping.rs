//! What nobody's worker does: which cgroup driver is in use, the cgroups that all pods share, and
//! what crashes left behind.
//!
//! Leftovers (cgroups, pod directories, log directories, log links of pods that are no more) are
//! removed when, and only when, every source has said everything and the runtime was listed: until
//! then a pod may be unknown because nobody has asked for it yet. A pod directory that does not
//! carry this agent's owner id is listed and never touched.

use super::build::{enforces_pods, reserved};
use crate::{
    blocking::LOOKS,
    cgroup::{Limits, NodeCapacity, node_limits},
    config::Config,
    model::{CgroupDriver, Event, EventKind, EventTarget, PodUid, ToldDriver},
    pleg::Health,
    volume::{DirOwner, Volumes},
    worker::{Host, Known, blocking, chain, remove_leftovers},
};
use std::{collections::BTreeSet, pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Between two tries while the cgroup of all pods can't be made, as with the kubelet, and between
/// two looks whether it is still the one that was made.
const RETRY: Duration = Duration::from_secs(60);
/// Between two looks for leftovers. They come from crashes, and the first look finds those; this
/// one is for what could not be removed then.
const LOOK: Duration = Duration::from_secs(600);
/// Directories of other programs that the status names.
const NAMED: usize = 3;

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
            // Until everything is known there is nothing to look for, and a change will tell; so
            // will the end of a sweep.
            let idle = known.complete && sweep.is_none();
            let look = if idle { next_look } else { Instant::now() + LOOK };
            let wake = match (&done, self.enforced) {
                (None, _) => look,
                (Some(_), true) => look.min(Instant::now() + RETRY),
                (Some(_), false) => look.min(next_try),
            };
            // Every arm only waits, and the next round reads everything anew. The sweep is kept
            // across rounds; at the end it is dropped, and the agent's next life goes on with it.
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
        let (volumes, owner) = (self.host.volumes.clone(), self.host.settings.owner.clone());
        let looked = blocking(&LOOKS, move || by_owner(&volumes, listed, &owner)).await;
        let PodDirs { ours, others } = match looked {
            Ok(looked) => looked,
            Err(error) => return vec![format!("looking for leftover pods has crashed: {error}")],
        };
        trouble.extend(self.name_others(others));
        for uid in &ours {
            // Before the look at what is known: a pod that becomes known now waits for the end.
            let Some(_turn) = self.host.leftovers.begin(uid) else { continue };
            // Known by now, perhaps: the removal of the one before may have taken long.
            if self.known.borrow().uids.contains(uid) {
                continue;
            }
            tracing::info!(%uid, "removing what is left of a pod that is no more");
            if let Err(sentence) = remove_leftovers(&self.host, uid).await {
                tracing::warn!(%uid, "{sentence}");
                trouble.push(format!("leftovers of pod {uid}: {sentence}"));
            }
        }
        let files = self.host.files.clone();
        let known = Arc::clone(&self.known.borrow());
        let links = blocking(&LOOKS, move || {
            files.remove_dead_links(|uid| ours.contains(uid), |id| known.containers.contains(id))
        });
        if let Ok(Err(error)) = links.await {
            trouble.push(format!("cannot remove dead log links: {error}"));
        }
        trouble
    }

    /// What a person should know about pod directories that another program made.
    fn name_others(&self, mut others: Vec<PodUid>) -> Option<String> {
        let known = self.known.borrow();
        others.retain(|uid| !known.uids.contains(uid));
        let sentence = foreign_sentence(&others)?;
        tracing::warn!("{sentence}");
        Some(sentence)
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

/// Pod directories below the root directory.
struct PodDirs {
    /// Those with this agent's owner id.
    ours: BTreeSet<PodUid>,
    /// The others, sorted.
    others: Vec<PodUid>,
}

/// A directory that can't be read counts as another program's. Blocks.
fn by_owner(volumes: &Volumes, listed: Vec<PodUid>, owner: &str) -> PodDirs {
    let is_ours = |uid: &PodUid| match volumes.dir_owner(uid) {
        Ok(DirOwner::Agent { owner: found, .. }) => found == owner,
        Ok(DirOwner::Free | DirOwner::Unknown) | Err(_) => false,
    };
    let (ours, others): (BTreeSet<_>, BTreeSet<_>) = listed.into_iter().partition(is_ours);
    PodDirs { ours, others: others.into_iter().collect() }
}

/// Names the pod directories of other programs, a bounded number of them; `None` when there is
/// none.
fn foreign_sentence(others: &[PodUid]) -> Option<String> {
    let named: Vec<String> =
        others.iter().take(NAMED).map(|uid| uid.as_str().escape_debug().to_string()).collect();
    let more = match others.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let sentence = format!(
        "{} in pods/ of the root directory not made by this agent, left alone: {}{more}",
        match others.len() {
            0 => return None,
            1 => "1 directory".to_owned(),
            count => format!("{count} directories"),
        },
        named.join(", ")
    );
    Some(sentence)
}

/// Waits until the runtime says something else of its cgroup driver.
async fn another(
    health: &mut watch::Receiver<Arc<Health>>,
    told: ToldDriver,
) -> Result<(), watch::error::RecvError> {
    health.wait_for(|health| health.cgroup_driver != told).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_directories_are_named_up_to_a_bound() {
        let uids =
            |names: &[&str]| names.iter().map(|name| PodUid::from(*name)).collect::<Vec<_>>();
        assert_eq!(foreign_sentence(&[]), None);
        let one = foreign_sentence(&uids(&["a\u{1b}[31m"])).unwrap_or_default();
        assert!(
            one.starts_with("1 directory in pods/") && one.ends_with(": a\\u{1b}[31m"),
            "{one}"
        );
        let many = foreign_sentence(&uids(&["a", "b", "c", "d", "e"])).unwrap_or_default();
        assert!(
            many.starts_with("5 directories") && many.ends_with(": a, b, c and 2 more"),
            "{many}"
        );
    }
}
