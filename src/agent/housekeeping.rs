//! What nobody's worker does: the cgroups that all pods share, and what crashes left behind.
//!
//! Leftovers (cgroups, pod directories, log directories, log links of pods that are no more) are
//! removed when, and only when, every source has said everything and the runtime was listed: until
//! then a pod may be unknown because nobody has asked for it yet.

use super::build::{enforces_pods, reserved};
use crate::{
    cgroup::{FoundPod, Limits, NodeCapacity, node_limits},
    config::Config,
    model::{Event, EventKind, EventTarget, PodUid},
    worker::{Host, Known, chain},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two tries while the cgroup of all pods can't be made, as with the kubelet.
const RETRY: Duration = Duration::from_secs(60);
/// Between two looks for leftovers. They come from crashes, and the first look finds those; this
/// one is for what could not be removed then.
const LOOK: Duration = Duration::from_secs(600);

pub(super) struct Housekeeping {
    host: Arc<Host>,
    limits: Limits,
    known: watch::Receiver<Arc<Known>>,
    trouble: watch::Sender<Vec<String>>,
    enforced: bool,
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
        Self { host, limits, known, trouble, enforced: false }
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut shares = None;
        let mut swept = false;
        loop {
            let known = Arc::clone(&self.known.borrow_and_update());
            let mut trouble = Vec::new();
            if !self.enforced || shares != Some(known.burstable_shares) {
                trouble.extend(self.enforce(known.burstable_shares));
                shares = Some(known.burstable_shares);
            }
            let mut pause = if self.enforced { LOOK } else { RETRY };
            if known.complete && !swept {
                trouble.extend(self.sweep(&known).await);
                swept = true;
                pause = LOOK;
            }
            self.trouble.send_if_modified(|published| {
                let changed = *published != trouble;
                published.clone_from(&trouble);
                changed
            });
            // Every arm only waits, and the next round reads everything anew.
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = self.known.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(pause) => swept = false,
            }
        }
    }

    /// Node allocatable and the tiers. Short writes to cgroup files: done in place.
    fn enforce(&mut self, burstable_shares: u64) -> Option<String> {
        let cgroups = &self.host.cgroups;
        let done = cgroups
            .ensure_node_allocatable(&self.limits)
            .and_then(|()| cgroups.ensure_qos_tiers(burstable_shares));
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

    /// Removes what is left of pods that are no more; returns what could not be removed.
    async fn sweep(&self, known: &Known) -> Vec<String> {
        let (host, known) = (Arc::clone(&self.host), known.clone());
        let found = tokio::task::spawn_blocking(move || sweep_files(&host, &known)).await;
        let Swept { cgroups, mut trouble } = match found {
            Ok(swept) => swept,
            Err(error) => return vec![format!("looking for leftovers has crashed: {error}")],
        };
        for pod in cgroups {
            if let Err(error) = self.host.cgroups.remove_pod(&pod.name).await {
                trouble.push(format!("leftover cgroup of pod {}: {error}", pod.uid));
            }
        }
        for sentence in &trouble {
            tracing::warn!("{sentence}");
        }
        trouble
    }
}

/// What a look for leftovers came to.
struct Swept {
    /// Still to be removed.
    cgroups: Vec<FoundPod>,
    trouble: Vec<String>,
}

/// A pod directory below the root directory is what makes a leftover ours: cgroups and log
/// directories are listed for everybody who runs pods on this machine. The directory goes last.
fn sweep_files(host: &Host, known: &Known) -> Swept {
    let mut trouble = Vec::new();
    let gone: Vec<PodUid> = match host.volumes.list_pods() {
        Ok(found) => found.into_iter().filter(|uid| !known.uids.contains(uid)).collect(),
        Err(error) => {
            trouble.push(format!("cannot look for leftover pods: {error}"));
            Vec::new()
        }
    };
    let mut cgroups = Vec::new();
    if !gone.is_empty() {
        match host.cgroups.list_pods() {
            Ok(found) => cgroups = found.into_iter().filter(|p| gone.contains(&p.uid)).collect(),
            Err(error) => trouble.push(format!("cannot look for leftover cgroups: {error}")),
        }
        match host.files.list_pod_logs() {
            Ok(found) => {
                for logs in found.iter().filter(|logs| gone.contains(&logs.uid)) {
                    if let Err(error) = host.files.remove_pod_logs(&logs.key, &logs.uid) {
                        trouble.push(format!("leftover logs of pod {}: {error}", logs.key));
                    }
                }
            }
            Err(error) => trouble.push(format!("cannot look for leftover logs: {error}")),
        }
    }
    for uid in &gone {
        tracing::info!(%uid, "removing what is left of a pod that is no more");
        let removed = host.volumes.teardown(uid).and_then(|()| host.volumes.remove_pod_dir(uid));
        if let Err(error) = removed {
            trouble.push(error.to_string());
        }
    }
    if let Err(error) = host.files.remove_dead_links(|id| known.containers.contains(id)) {
        trouble.push(format!("cannot remove dead log links: {error}"));
    }
    Swept { cgroups, trouble }
}
