//! The pods that the API server has bound to this node, as one of the sources of pods.

use super::WatchCache;
use crate::{
    desired::SourceSnapshot,
    mirror::{SeenPod, bound_pods, wants_the_same},
    model::{CollectOrdered as _, PodEnd},
};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Keeps the snapshot up to date. Until the API server was seen as a whole, the first value of
/// `published` stays: what an earlier run of the agent has admitted. While the API server is away,
/// what was seen last stays.
#[derive(Debug)]
pub struct PodSourceTask {
    /// `/api/v1/pods` with `spec.nodeName` of this node.
    pub seen: watch::Receiver<Arc<WatchCache<SeenPod>>>,
    /// What is wanted.
    pub published: watch::Sender<Arc<SourceSnapshot>>,
}

impl PodSourceTask {
    /// Publishes until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let seen = Arc::clone(&self.seen.borrow_and_update());
            if seen.whole {
                let before = Arc::clone(&self.published.borrow());
                let left_out = seen.left_out.values().map(|one| &one.head);
                let left_out = left_out.map(|head| {
                    let deleted = head.deletion.map(|deletion| deletion.seconds);
                    (head.uid.as_str(), PodEnd { deleted, phase: head.phase })
                });
                let wanted =
                    bound_pods(seen.objects.values(), &before, &left_out.collect_ordered());
                self.published.send_if_modified(|published| {
                    let changed = !wants_the_same(published, &wanted);
                    if changed {
                        *published = Arc::new(wanted);
                    }
                    changed
                });
            }
            // Cancel-safe: both arms only wait.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.seen.changed() => if changed.is_err() {
                    shutdown.cancelled().await;
                    return;
                },
            }
        }
    }
}
