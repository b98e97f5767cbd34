//! Keeps the lease of the node: four renewals in its duration, on a connection of its own.

use super::{ApiError, Clients, Link, Pause, Trouble, Verb, call, jitter};
use crate::{
    clock,
    metrics::{metrics, unix},
    node::{self, NodeRef},
};
use k8s_openapi::api::coordination::v1::Lease;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The task.
#[derive(Debug)]
pub struct LeaseTask {
    /// `nodeLeaseDurationSeconds`
    pub seconds: i32,
    /// The way to the server.
    pub link: watch::Receiver<Link>,
    /// The registered node.
    pub node: watch::Receiver<Option<NodeRef>>,
    /// For people.
    pub published: watch::Sender<LeaseState>,
}

/// How the lease is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Wall time of the last renewal.
    pub renewed: Option<jiff::Timestamp>,
    /// Why the last try failed.
    pub trouble: Option<Trouble>,
}

impl LeaseTask {
    /// Renews until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut last: Option<Lease> = None;
        let mut pause = Pause::default();
        loop {
            let clients = self.link.borrow_and_update().clone();
            let node = self.node.borrow_and_update().clone();
            let wait = match (clients, node) {
                (Some(clients), Some(node)) => {
                    // Cancel-safe: whether a write that is dropped was carried out is found out by
                    // the next one.
                    let outcome = tokio::select! {
                        () = shutdown.cancelled() => return,
                        _ = self.link.changed() => {
                            self.link.mark_changed();
                            continue;
                        }
                        outcome = renew(&clients, &node, self.seconds, last.take()) => outcome,
                    };
                    self.take(outcome, &mut last, &mut pause)
                }
                (None, _) | (_, None) => Duration::MAX,
            };
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = self.link.changed() => if changed.is_err() { return },
                changed = self.node.changed() => if changed.is_err() { return },
            }
        }
    }

    /// How long to wait until the next renewal, or the next try.
    fn take(
        &self,
        outcome: Result<Lease, ApiError>,
        last: &mut Option<Lease>,
        pause: &mut Pause,
    ) -> Duration {
        let now = clock::now().wall;
        match outcome {
            Ok(lease) => {
                metrics().lease_renewals.with_label_values(&["success"]).inc();
                metrics().lease_renewed_at.set(unix(now));
                *last = Some(lease);
                pause.reset();
                self.published.send_modify(|state| {
                    if state.trouble.take().is_some() {
                        tracing::info!("the lease is renewed again");
                    }
                    state.renewed = Some(now);
                });
                let seconds = u64::try_from(self.seconds).unwrap_or(1).max(1);
                let period = Duration::from_secs(seconds) / 4;
                period + jitter(period / 25)
            }
            Err(error) => {
                metrics().lease_renewals.with_label_values(&["error"]).inc();
                self.published.send_modify(|state| {
                    if Trouble::note(&mut state.trouble, error.to_string(), now) {
                        tracing::warn!(err = %error, "cannot renew the lease");
                    }
                });
                pause.after_failure()
            }
        }
    }
}

async fn renew(
    clients: &Clients,
    node: &NodeRef,
    seconds: i32,
    last: Option<Lease>,
) -> Result<Lease, ApiError> {
    let client = &clients.heartbeat;
    let own = format!("{LEASES}/{}", node.name);
    let last = match last {
        Some(last) => last,
        None => match call::<Lease>(client, Verb::Get, &own, None::<&()>).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => {
                let new = node::lease(&node.name, &node.uid, seconds, clock::now());
                return call(client, Verb::Create, LEASES, Some(&new)).await;
            }
            Err(error) => return Err(error),
        },
    };
    let renewed = node::renewed(&last, &node.name, &node.uid, seconds, clock::now());
    call(client, Verb::Replace, &own, Some(&renewed)).await
}
