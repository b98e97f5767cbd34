//! Keeps the node's view up to date. The view combines what the relist loop, the sources and the
//! workers publish, and is assembled again whenever one of them changes.

use crate::{
    admission::Cycle,
    cgroup::DriverState,
    clock,
    desired::{Duplicate, SourceSnapshot},
    model::{
        AFTER, ClusterView, Ending, FileVerdict, NodeConditions, NodeView, Origin, PlegView,
        PodKey, Position, PressureOrders, PressureView, Problem, SourceView,
    },
    pleg::{Health, NOT_ASKED},
    publish::{PublishIfChanged as _, any_changed, changed_if_there},
    store::{Store, parse_saved},
    worker::SetView,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are published together.
const SETTLE: Duration = Duration::from_millis(50);

pub(crate) struct NodeViewTask {
    /// The fields that never change: name, version, pid, start, notices.
    pub base: NodeView,
    pub health: watch::Receiver<Arc<Health>>,
    pub sources: Vec<watch::Receiver<Arc<SourceSnapshot>>>,
    pub set: watch::Receiver<Arc<SetView>>,
    /// Node-wide problems that housekeeping reports.
    pub trouble: watch::Receiver<Vec<String>>,
    pub trouble_of_shutdown: watch::Receiver<Vec<String>>,
    /// The progress of a shutdown of the machine.
    pub ending: watch::Receiver<Ending>,
    pub cgroup_driver: watch::Receiver<DriverState>,
    pub store_warnings: watch::Receiver<Arc<Vec<String>>>,
    pub pressure: watch::Receiver<Arc<PressureView>>,
    /// The pressures that hold.
    pub orders: watch::Receiver<Arc<PressureOrders>>,
    pub conditions: NodeConditions,
    /// Those of an earlier run, each until this one knows for the first time whether it holds.
    pub saved_conditions: NodeConditions,
    /// The view of the cluster; `None` without `--kubeconfig`.
    pub cluster: Option<watch::Receiver<Option<Arc<ClusterView>>>>,
    pub published: watch::Sender<Arc<NodeView>>,
    pub published_conditions: watch::Sender<Arc<NodeConditions>>,
}

/// The conditions of an earlier run of the agent.
pub(crate) fn saved_conditions(saved: Option<serde_json::Value>) -> NodeConditions {
    parse_saved(saved, "the saved conditions of the node")
}

impl NodeViewTask {
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            // Cancel-safe: every arm only waits for a change, and the next view reads all channels
            // again.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                changed = self.health.changed() => changed?,
                changed = self.set.changed() => changed?,
                changed = self.trouble.changed() => changed?,
                changed = self.trouble_of_shutdown.changed() => changed?,
                changed = self.ending.changed() => changed?,
                changed = self.cgroup_driver.changed() => changed?,
                changed = self.store_warnings.changed() => changed?,
                changed = self.pressure.changed() => changed?,
                changed = self.orders.changed() => changed?,
                changed = changed_if_there(&mut self.cluster) => changed?,
                () = any_changed(&mut self.sources) => {}
            }
            tokio::time::sleep(SETTLE).await;
            self.publish();
        }
    }

    /// Publishes the current conditions and the current view. It does not wait, so the first view
    /// can be published before the server starts.
    pub(crate) fn publish(&mut self) {
        let orders = Arc::clone(&self.orders.borrow_and_update());
        let health = Arc::clone(&self.health.borrow());
        let shutdown = self.ending.borrow().shutdown.is_some();
        self.conditions.update(&orders.conditions, not_ready(&health), shutdown, clock::now());
        let saved = &mut self.saved_conditions;
        self.conditions.resume(saved);
        if orders.known {
            saved.pressure.clear();
        }
        if is_known(&health) {
            saved.ready = None;
        }
        self.published_conditions.publish_if_changed(Arc::new(self.conditions.clone()));
        let view = self.assemble();
        self.published.send_replace(Arc::new(view));
    }

    fn assemble(&mut self) -> NodeView {
        let health = Arc::clone(&self.health.borrow_and_update());
        let set = Arc::clone(&self.set.borrow_and_update());
        let cgroup_driver = self.cgroup_driver.borrow_and_update().clone();
        let mut warnings = self.trouble.borrow_and_update().clone();
        warnings.extend(self.trouble_of_shutdown.borrow_and_update().iter().cloned());
        warnings.extend(cgroup_driver.warnings().cloned());
        warnings.extend(self.store_warnings.borrow_and_update().iter().cloned());
        let mut sources: Vec<Arc<SourceView>> =
            self.sources.iter_mut().map(|s| Arc::clone(&s.borrow_and_update().view)).collect();
        mark_rejected(&mut sources, &set);
        let shutdown = going_down(&self.ending.borrow_and_update());
        NodeView {
            shutdown,
            cluster: self.cluster.as_mut().and_then(|cluster| cluster.borrow_and_update().clone()),
            conditions: self.conditions.clone(),
            pressure: PressureView::clone(&self.pressure.borrow_and_update()),
            runtime: health.runtime.clone(),
            cgroup_driver: cgroup_driver.driver,
            pleg: PlegView {
                last_relist_at: health.last_relist.and_then(|at| {
                    let now = clock::now();
                    now.wall.checked_sub(now.boot.saturating_sub(at)).ok()
                }),
                unhealthy: health.unhealthy.clone(),
                events_connected: health.events_connected,
                hung: health.hung.clone(),
            },
            sources,
            warnings,
            foreign: set.foreign.clone(),
            ..self.base.clone()
        }
    }
}

/// Saves the conditions whenever one of them has changed or the run directory was lost, so that the
/// next run of the agent can continue with their times.
pub(crate) async fn save_conditions(
    mut conditions: watch::Receiver<Arc<NodeConditions>>,
    store: Store,
    shutdown: CancellationToken,
) {
    let mut losses = store.losses();
    let mut saved: Option<Arc<NodeConditions>> = None;
    loop {
        // Cancel-safe: every arm only waits.
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = conditions.changed() => if changed.is_err() { return },
            Ok(()) = losses.changed() => saved = None,
        }
        let current = Arc::clone(&conditions.borrow_and_update());
        if saved.as_ref().is_some_and(|saved| saved.same_transitions(&current)) {
            continue;
        }
        if let Err(err) = store.put_conditions(current.as_ref()).await {
            tracing::debug!(%err, "the node's conditions are not saved");
        }
        saved = Some(current);
    }
}

/// Whether the runtime has said, or failed to say, whether it can run pods.
fn is_known(health: &Health) -> bool {
    let refused = health.runtime.not_ready.as_deref().is_some_and(|why| why != NOT_ASKED);
    refused || not_ready(health).is_empty()
}

/// Every reason why the runtime can't run pods, in the kubelet's order.
fn not_ready(health: &Health) -> Vec<String> {
    let runtime = &health.runtime;
    let unhealthy = health.unhealthy.as_ref().map(|why| format!("PLEG is not healthy: {why}"));
    let all = [runtime.not_ready.clone(), unhealthy, runtime.network_not_ready.clone()];
    all.into_iter().flatten().collect()
}

/// Describes what a shutdown of the machine waits for.
fn going_down(ending: &Ending) -> Option<String> {
    let shutdown = ending.shutdown.as_ref()?;
    let rest = match (shutdown.turn + 1 < shutdown.periods.groups().len(), ending.left.len()) {
        (true, left) => {
            format!("pods are stopped in the order of their priority, waiting for {left}")
        }
        (false, 0) => "all pods have ended".to_owned(),
        (false, left) => format!("waiting for {left} more pods to end"),
    };
    Some(format!("the machine is shutting down; {rest}"))
}

/// Shows a valid manifest as rejected when another manifest has the same pod name, and when its pod
/// waits for itself, with the reason.
fn mark_rejected(sources: &mut [Arc<SourceView>], set: &SetView) {
    for duplicate in &set.duplicates {
        let Duplicate { key, dropped, message, .. } = duplicate;
        mark(sources, (key, dropped), "metadata.name", message);
    }
    for Cycle { key, origin, message } in &set.cycles {
        mark(sources, (key, origin), &format!("metadata.annotations[{AFTER}]"), message);
    }
}

fn mark(
    sources: &mut [Arc<SourceView>],
    (key, origin): (&PodKey, &Origin),
    path: &str,
    message: &str,
) {
    let position = Position { line: origin.line, column: 1 };
    let files = sources
        .iter_mut()
        .filter(|source| source.kind == origin.source)
        .flat_map(|source| &mut Arc::make_mut(source).files)
        .filter(|file| *file.location == *origin.location);
    for verdict in files.flat_map(|file| &mut file.verdicts) {
        if matches!(verdict, FileVerdict::Accepted { key: found, .. } if found == key) {
            *verdict = FileVerdict::Rejected {
                key: Some(key.clone()),
                object: None,
                position,
                problems: vec![Problem {
                    position,
                    path: path.to_owned(),
                    message: message.to_owned(),
                }],
                last_good: false,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::not_ready;
    use crate::{
        model::{RuntimeView, ToldDriver},
        pleg::Health,
    };

    #[test]
    fn a_node_whose_runtime_is_down_is_not_ready() {
        let mut health = Health {
            last_relist: None,
            unhealthy: None,
            events_connected: false,
            hung: Vec::new(),
            runtime: RuntimeView::default(),
            cgroup_driver: ToldDriver::Unknown,
            runtime_number: 0,
        };
        assert_eq!(not_ready(&health), Vec::<String>::new());
        health.runtime.not_ready = Some("container runtime is down".to_owned());
        health.runtime.network_not_ready = Some("no network".to_owned());
        health.unhealthy = Some("no listing".to_owned());
        let reasons =
            ["container runtime is down", "PLEG is not healthy: no listing", "no network"];
        assert_eq!(not_ready(&health), reasons);
    }
}
