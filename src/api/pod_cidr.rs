//! Tells the container runtime which addresses the cluster has assigned to the pods of this node
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
    /// Tells when the runtime is another one.
    pub health: watch::Receiver<Arc<Health>>,
    /// The runtime.
    pub runtime: RuntimeClient,
}

/// What the runtime is told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Telling {
    pod_cidr: String,
    /// [`Health::runtime_number`]
    runtime_number: u64,
}

impl PodCidrTask {
    /// Tells the runtime until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut told = None;
        loop {
            let nodes = Arc::clone(&self.nodes.borrow_and_update());
            let runtime_number = self.health.borrow_and_update().runtime_number;
            let due = due(nodes.objects.values().next().map(|node| &**node), runtime_number, &told);
            let mut failed = false;
            if let Some(telling) = due {
                failed = !self.tell(&telling).await;
                told = (!failed).then_some(telling);
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

    /// False when it is to be tried again.
    async fn tell(&self, telling: &Telling) -> bool {
        let pod_cidr = &telling.pod_cidr;
        match self.runtime.update_pod_cidr(pod_cidr).await {
            Ok(()) => {
                tracing::info!(pod_cidr, "the runtime knows the addresses of this node's pods");
                true
            }
            // It takes no addresses.
            Err(CriError::Unimplemented { .. }) => true,
            Err(err) => {
                tracing::warn!(pod_cidr, %err, "cannot tell the runtime the addresses of pods");
                false
            }
        }
    }
}

/// What the runtime is to be told now. `told` is what was told last.
fn due(node: Option<&k8s::Node>, runtime_number: u64, told: &Option<Telling>) -> Option<Telling> {
    let spec = node?.spec.as_ref()?;
    let several = spec.pod_cidrs.as_ref().map(|all| all.join(",")).filter(|all| !all.is_empty());
    let pod_cidr = several.or_else(|| spec.pod_cidr.clone()).filter(|cidr| !cidr.is_empty())?;
    let wanted = Telling { pod_cidr, runtime_number };
    (runtime_number > 0 && told.as_ref() != Some(&wanted)).then_some(wanted)
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
        let telling = |pod_cidr: &str, runtime_number| {
            Some(Telling { pod_cidr: pod_cidr.to_owned(), runtime_number })
        };
        let (both, one) = ("10.1.0.0/24,fd00::/64", "10.2.0.0/24");
        let dual = node(&["10.1.0.0/24", "fd00::/64"]);
        for (node, number, told, expected) in [
            (None, 1, None, None),
            (Some(node(&[])), 1, None, None),
            (Some(dual.clone()), 0, None, None),
            (Some(dual.clone()), 1, None, telling(both, 1)),
            (Some(dual.clone()), 1, telling(both, 1), None),
            (Some(dual), 2, telling(both, 1), telling(both, 2)),
            (Some(node(&[one])), 2, telling(both, 2), telling(one, 2)),
        ] {
            assert_eq!(due(node.as_ref(), number, &told), expected, "{node:?} {told:?}");
        }
    }
}
