//! The agent's part in a cluster: makes the tasks that speak to an API server, and puts together what people see of it. Where no
//! kubeconfig is named none of this exists.

use super::node_report::NodeReportTask;
use crate::{
    admission::{Allocatable, Capacity},
    api::{
        self, EventsTask, LeaseState, LeaseTask, Link, NodeState, NodeTask, Picture, PodsInputs,
        PodsReport, PodsTask, Reflector, Trouble,
    },
    config::{Config, Rate},
    cri::RuntimeClient,
    event::{EventLog, Recorder},
    mirror::SeenPod,
    model::{Bucket, ClusterTrouble, ClusterView, Known, NodeView, k8s},
    node::{NodeRef, Registration, ReportPeriods},
    worker::PodViews,
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are published together.
const SETTLE: Duration = Duration::from_millis(100);

/// What the cluster's part needs of the rest.
pub(super) struct ClusterInputs {
    pub node_name: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: Capacity,
    pub allocatable: Allocatable,
    pub runtime: RuntimeClient,
    pub node: watch::Receiver<Arc<NodeView>>,
    pub pods: watch::Receiver<Arc<PodViews>>,
    pub known: watch::Receiver<Arc<Known>>,
    pub log: watch::Receiver<Arc<EventLog>>,
    pub events: Recorder,
    pub published: watch::Sender<Option<Arc<ClusterView>>>,
}

/// A task with its name.
pub(super) type Part = (&'static str, std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

/// Everything that speaks to the API server.
#[allow(clippy::too_many_lines, reason = "one list of the parts and of what connects them")]
pub(super) fn parts(
    config: &Arc<Config>,
    kubeconfig: &Path,
    inputs: ClusterInputs,
    shutdown: &CancellationToken,
) -> Vec<Part> {
    let cluster = &config.cluster;
    let (connections, link, credentials) =
        api::link_channel(kubeconfig.to_owned(), env!("CARGO_PKG_VERSION"));
    let (seen_node, node_picture) = watch::channel(Arc::new(Picture::<k8s::Node>::default()));
    let (seen_pods, pod_picture) = watch::channel(Arc::new(Picture::<SeenPod>::default()));
    let (registered, registered_node) = watch::channel(None::<NodeRef>);
    let (report, reports) = watch::channel(None);
    let (node_state, node_states) = watch::channel(NodeState::default());
    let (lease_state, lease_states) = watch::channel(LeaseState::default());
    let (pods_report, pods_reports) = watch::channel(Arc::new(PodsReport::default()));
    let (events_waiting, waiting) = watch::channel(0);
    let bucket = |rate: Rate| (rate.qps > 0).then(|| Bucket::new(rate.qps, rate.burst.max(1)));
    let node_name = inputs.node_name.clone();
    let node_reflector = Reflector {
        collection: "/api/v1/nodes",
        field_selector: format!("metadata.name={node_name}"),
        link: link.clone(),
        published: seen_node,
    };
    let pod_reflector = Reflector {
        collection: "/api/v1/pods",
        field_selector: format!("spec.nodeName={node_name}"),
        link: link.clone(),
        published: seen_pods,
    };
    let report_task = NodeReportTask {
        config: Arc::clone(config),
        node_name: node_name.clone(),
        capacity: inputs.capacity,
        allocatable: inputs.allocatable,
        runtime: inputs.runtime,
        view: inputs.node,
        published: report,
    };
    let node_task = NodeTask {
        registration: registration(config, inputs.labels),
        periods: ReportPeriods { update: cluster.status_update, report: cluster.status_report },
        report: reports,
        link: link.clone(),
        picture: node_picture.clone(),
        registered,
        published: node_state,
        events: inputs.events.clone(),
    };
    let lease_task = LeaseTask {
        seconds: cluster.lease_seconds,
        link: link.clone(),
        node: registered_node.clone(),
        published: lease_state,
    };
    let events_task = EventsTask {
        node: node_name.clone(),
        link: link.clone(),
        log: inputs.log,
        budget: bucket(cluster.events),
        waiting: events_waiting,
    };
    let recorder = inputs.events;
    let pods_task = PodsTask::new(PodsInputs {
        link: link.clone(),
        picture: pod_picture.clone(),
        views: inputs.pods,
        known: inputs.known,
        node: registered_node.clone(),
        events: Box::new(move |event| recorder.record(event)),
        budget: bucket(cluster.api),
        report: pods_report,
    });
    let view_task = ClusterViewTask {
        kubeconfig: kubeconfig.display().to_string(),
        link,
        credentials,
        nodes: node_picture,
        pods: pod_picture,
        registered: registered_node,
        node: node_states,
        lease: lease_states,
        mirrors: pods_reports,
        events_waiting: waiting,
        published: inputs.published,
    };
    let stop = || shutdown.clone();
    vec![
        ("credentials", Box::pin(connections.run(stop()))),
        ("watch of the node", Box::pin(node_reflector.run(stop()))),
        ("watch of pods", Box::pin(pod_reflector.run(stop()))),
        ("node report", Box::pin(report_task.run(stop()))),
        ("node status", Box::pin(node_task.run(stop()))),
        ("lease", Box::pin(lease_task.run(stop()))),
        ("events of the cluster", Box::pin(events_task.run(stop()))),
        ("mirror pods", Box::pin(pods_task.run(stop()))),
        ("cluster view", Box::pin(view_task.run(stop()))),
    ]
}

fn registration(config: &Config, labels: BTreeMap<String, String>) -> Registration {
    let cluster = &config.cluster;
    let taints = cluster.taints.iter().map(|taint| k8s::Taint {
        key: taint.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: taint.effect.clone(),
        time_added: None,
    });
    Registration {
        enabled: cluster.register,
        labels,
        taints: taints.collect(),
        provider_id: cluster.provider_id.clone(),
    }
}

/// Puts together what people see.
struct ClusterViewTask {
    kubeconfig: String,
    link: watch::Receiver<Link>,
    credentials: watch::Receiver<Option<String>>,
    nodes: watch::Receiver<Arc<Picture<k8s::Node>>>,
    pods: watch::Receiver<Arc<Picture<SeenPod>>>,
    registered: watch::Receiver<Option<NodeRef>>,
    node: watch::Receiver<NodeState>,
    lease: watch::Receiver<LeaseState>,
    mirrors: watch::Receiver<Arc<PodsReport>>,
    events_waiting: watch::Receiver<usize>,
    published: watch::Sender<Option<Arc<ClusterView>>>,
}

impl ClusterViewTask {
    async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let view = self.assemble();
            self.published.send_if_modified(|published| {
                let changed = published.as_deref() != Some(&view);
                if changed {
                    *published = Some(Arc::new(view));
                }
                changed
            });
            // Cancel-safe: every arm only waits for a change, and the next round reads all of them anew.
            let changed = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.link.changed() => changed,
                changed = self.credentials.changed() => changed,
                changed = self.nodes.changed() => changed,
                changed = self.pods.changed() => changed,
                changed = self.registered.changed() => changed,
                changed = self.node.changed() => changed,
                changed = self.lease.changed() => changed,
                changed = self.mirrors.changed() => changed,
                changed = self.events_waiting.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    fn assemble(&mut self) -> ClusterView {
        let link = self.link.borrow_and_update().clone();
        let nodes = Arc::clone(&self.nodes.borrow_and_update());
        let pods = Arc::clone(&self.pods.borrow_and_update());
        let node = self.node.borrow_and_update().clone();
        let lease = self.lease.borrow_and_update().clone();
        let mirrors = Arc::clone(&self.mirrors.borrow_and_update());
        let of = |what: &str, trouble: Option<Trouble>| {
            let told = |trouble: Trouble| ClusterTrouble {
                what: what.to_owned(),
                error: trouble.what,
                since: Some(trouble.since),
            };
            trouble.map(told)
        };
        let plain = |what: &str, error: Option<String>| {
            error.map(|error| ClusterTrouble { what: what.to_owned(), error, since: None })
        };
        let watch = nodes.trouble.clone().or_else(|| pods.trouble.clone());
        let troubles = [
            plain("credentials", self.credentials.borrow_and_update().clone()),
            plain("watch", watch),
            of("node status", node.trouble),
            of("lease", lease.trouble),
            of("pods", mirrors.trouble.clone()),
        ];
        ClusterView {
            kubeconfig: self.kubeconfig.clone(),
            server: link.map(|clients| clients.server.to_string()),
            node_uid: self.registered.borrow_and_update().clone().map(|node| node.uid),
            watching: nodes.live && pods.live,
            status_posted: node.posted,
            lease_renewed: lease.renewed,
            mirrors: mirrors.mirrored,
            pods_waiting: mirrors.waiting,
            events_waiting: *self.events_waiting.borrow_and_update(),
            troubles: troubles.into_iter().flatten().collect(),
            notes: node.notes.into_iter().chain(notes(&mirrors)).collect(),
        }
    }
}

/// What the API server said of single pods, one sentence each.
fn notes(pods: &PodsReport) -> impl Iterator<Item = String> {
    let refused =
        pods.refused.iter().map(|(key, why)| format!("{key} is not shown as it should be: {why}"));
    let declined = pods.declined.iter().map(|key| {
        format!(
            "{key} was bound to this node by the API server and is not run: only static pods are"
        )
    });
    refused.chain(declined)
}
