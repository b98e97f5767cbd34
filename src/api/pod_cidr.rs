//! Sends the container runtime the addresses that the cluster has assigned to the pods of this node
//! (`spec.podCIDRs` of the Node). A runtime that makes its network configuration from a template
//! needs them; others ignore the call.
//!
//! The call is made when the addresses appear or change, and again when the runtime may have been
//! restarted. A failed call is repeated.

use super::{MAX_PAUSE, WatchCache};
use crate::{
    cri::{CriError, RuntimeClient},
    model::k8s,
    pleg::Health,
};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The task.
#[derive(Debug)]
pub struct PodCidrTask {
    /// Our Node, the only one that the watch shows.
    pub nodes: watch::Receiver<Arc<WatchCache<k8s::Node>>>,
    /// Changes when the runtime is another one.
    pub health: watch::Receiver<Arc<Health>>,
    /// The runtime.
    pub runtime: RuntimeClient,
}

/// What is sent to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodCidrUpdate {
    pod_cidr: String,
    /// [`Health::runtime_number`]
    runtime_number: u64,
}

impl PodCidrTask {
    /// Updates the runtime until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let (mut last_sent, mut trouble) = (None, None);
        loop {
            let nodes = Arc::clone(&self.nodes.borrow_and_update());
            let runtime_number = self.health.borrow_and_update().runtime_number;
            let node = nodes.objects.values().next().map(|node| &**node);
            let mut failed = false;
            if let Some(update) = due(node, runtime_number, &last_sent) {
                failed = !self.send(&update, &mut trouble).await;
                last_sent = (!failed).then_some(update);
            }
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.nodes.changed() => if changed.is_err() { return },
                changed = self.health.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(MAX_PAUSE), if failed => {}
            }
        }
    }

    /// False when it is to be tried again. An unchanged error is logged once.
    async fn send(&self, update: &PodCidrUpdate, trouble: &mut Option<String>) -> bool {
        let pod_cidr = &update.pod_cidr;
        match self.runtime.update_pod_cidr(pod_cidr).await {
            Ok(()) => {
                tracing::info!(pod_cidr, "the runtime knows the addresses of this node's pods");
            }
            // It takes no addresses.
            Err(CriError::Unimplemented { .. }) => {}
            Err(error) => {
                let err = error.to_string();
                if trouble.as_ref() != Some(&err) {
                    tracing::warn!(pod_cidr, err, "cannot send the runtime the addresses of pods");
                    *trouble = Some(err);
                }
                return false;
            }
        }
        *trouble = None;
        true
    }
}

/// What is to be sent to the runtime now.
fn due(
    node: Option<&k8s::Node>,
    runtime_number: u64,
    last_sent: &Option<PodCidrUpdate>,
) -> Option<PodCidrUpdate> {
    let spec = node?.spec.as_ref()?;
    let several = spec.pod_cidrs.as_ref().map(|all| all.join(",")).filter(|all| !all.is_empty());
    let pod_cidr = several.or_else(|| spec.pod_cidr.clone()).filter(|cidr| !cidr.is_empty())?;
    let wanted = PodCidrUpdate { pod_cidr, runtime_number };
    (runtime_number > 0 && last_sent.as_ref() != Some(&wanted)).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cidrs: &[&str]) -> k8s::Node {
        let all = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
        let spec = k8s::NodeSpec {
            pod_cidr: cidrs.first().map(|cidr| (*cidr).to_owned()),
            pod_cidrs: Some(all),
            ..k8s::NodeSpec::default()
        };
        k8s::Node { spec: Some(spec), ..k8s::Node::default() }
    }

    #[test]
    fn the_runtime_is_told_once_and_after_its_restart() {
        let update = |pod_cidr: &str, runtime_number| {
            Some(PodCidrUpdate { pod_cidr: pod_cidr.to_owned(), runtime_number })
        };
        let (both, one) = ("10.1.0.0/24,fd00::/64", "10.2.0.0/24");
        let dual = node(&["10.1.0.0/24", "fd00::/64"]);
        for (node, number, told, expected) in [
            (None, 1, None, None),
            (Some(node(&[])), 1, None, None),
            (Some(dual.clone()), 0, None, None),
            (Some(dual.clone()), 1, None, update(both, 1)),
            (Some(dual.clone()), 1, update(both, 1), None),
            (Some(dual), 2, update(both, 1), update(both, 2)),
            (Some(node(&[one])), 2, update(both, 2), update(one, 2)),
        ] {
            assert_eq!(due(node.as_ref(), number, &told), expected, "{node:?} {told:?}");
        }
    }
}
