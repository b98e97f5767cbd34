//! The agent's part in a cluster: makes the tasks that talk to an API server. Without a kubeconfig
//! there are none.

use super::remembered::remembered_answers;
use crate::{
    admission::{Allocatable, Capacity},
    api::{
        self, ClusterViewTask, EventsTask, IdentitySettings, IdentityTask, LeaseState, LeaseTask,
        Link, NodeState, NodeTask, ObjectsTask, PodCidrTask, PodSourceTask, PodsInputs, PodsTask,
        Reflector, Trouble, WatchCache,
    },
    config::{Config, Rate},
    cri::RuntimeClient,
    desired::SourceSnapshot,
    event::{EventLog, Recorder},
    machine::NodeIps,
    machine_report::{NodeReportSettings, NodeReportTask},
    mirror::{SeenPod, recorded_pods},
    model::{
        Bucket, ClusterView, Known, NodeConditions, NodeObjects, NodeScheduling, NodeView,
        PodViews, SavedAnswers, SourceKind, k8s,
    },
    node::{NodeRef, Registration, ReportPeriods, static_only_taint},
    pleg::Health,
    store::{Loaded, PodRecord},
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the cluster's part needs of the rest.
pub(super) struct ClusterInputs {
    pub machine: Machine,
    pub pods: watch::Receiver<Arc<PodViews>>,
    pub known: watch::Receiver<Arc<Known>>,
    pub log: watch::Receiver<Arc<EventLog>>,
    pub events: Recorder,
    pub admission: NodeForAdmission,
    pub published: watch::Sender<Option<Arc<ClusterView>>>,
    /// Changes when credentials are to be read again.
    pub reload: watch::Receiver<u64>,
    /// Where pods of the API server are published, if they are run.
    pub api_pods: Option<ApiPods>,
}

/// What the admission of pods has to do with the Node object.
pub(super) struct NodeForAdmission {
    /// What it says about pods.
    pub scheduling: watch::Sender<Option<Arc<NodeScheduling>>>,
    /// Since when a pod waits until it is read once more.
    pub wanted: watch::Receiver<Duration>,
}

/// Where the pods that the API server binds to the node are published, and what they read of it.
pub(super) struct ApiPods {
    pub pods: watch::Sender<Arc<SourceSnapshot>>,
    pub objects: watch::Sender<Arc<NodeObjects>>,
    /// As an earlier run of the agent has read them.
    answers: SavedAnswers,
}

impl ApiPods {
    /// The pods that an earlier run of the agent has admitted are wanted until the API server was
    /// seen.
    pub(super) fn new(loaded: &mut Loaded) -> Self {
        // One whose removal has begun never starts again.
        let records = loaded.pods.values().flatten().filter(|record| record.kill.is_none());
        let recorded = records.filter_map(PodRecord::desired);
        let recorded = recorded.filter(|pod| pod.origin.source == SourceKind::Api).map(Arc::new);
        Self {
            pods: watch::Sender::new(Arc::new(recorded_pods(recorded.collect()))),
            objects: watch::Sender::new(Arc::new(ObjectsTask::nothing())),
            answers: remembered_answers(loaded),
        }
    }

    fn tasks(
        self,
        seen: watch::Receiver<Arc<WatchCache<SeenPod>>>,
        node: watch::Receiver<Option<Arc<NodeScheduling>>>,
        link: &watch::Receiver<Link>,
        stop: &CancellationToken,
    ) -> (watch::Receiver<Option<String>>, [Part; 2]) {
        let pods = self.pods.subscribe();
        let objects = ObjectsTask::new(link.clone(), pods, node, self.objects, self.answers);
        let source = PodSourceTask { seen, published: self.pods };
        let trouble = objects.trouble();
        let parts: [Part; 2] = [
            ("pods of the API server", Box::pin(source.run(stop.clone()))),
            ("objects of pods", Box::pin(objects.run(stop.clone()))),
        ];
        (trouble, parts)
    }
}

/// The machine that the node stands for.
pub(super) struct Machine {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: Capacity,
    pub allocatable: Allocatable,
    pub runtime: RuntimeClient,
    pub health: watch::Receiver<Arc<Health>>,
    pub view: watch::Receiver<Arc<NodeView>>,
    pub conditions: watch::Receiver<Arc<NodeConditions>>,
    pub node_ips: watch::Receiver<NodeIps>,
}

pub(super) type Part = (&'static str, std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

/// Everything that speaks to the API server, and the way to it.
pub(super) fn parts(
    config: &Arc<Config>,
    kubeconfig: &Path,
    inputs: ClusterInputs,
    shutdown: &CancellationToken,
) -> (Vec<Part>, watch::Receiver<Link>) {
    warn_of_proxy();
    let identity = identity_settings(config, kubeconfig, &inputs.machine.name);
    let (connections, link, credentials) =
        api::link_channel(kubeconfig.to_owned(), identity.rotated(), env!("CARGO_PKG_VERSION"));
    let own = |field: &str| format!("{field}={}", inputs.machine.name);
    let (node_watch, nodes) = Reflector::new("/api/v1/nodes", own("metadata.name"), link.clone());
    let certificates = certificates(config, identity, &nodes, &link);
    let (pod_watch, pods) = Reflector::new("/api/v1/pods", own("spec.nodeName"), link.clone());
    let (registered, registered_node) = watch::channel(None);
    let (lease_state, lease) = watch::channel(LeaseState::default());
    let (pods_report, mirrors) = watch::channel(Arc::default());
    let (waiting, events_waiting) = watch::channel(0);
    let lease_task = LeaseTask {
        seconds: config.cluster.lease_seconds,
        link: link.clone(),
        node: registered_node.clone(),
        published: lease_state,
    };
    let events_task = EventsTask {
        node: inputs.machine.name.clone(),
        link: link.clone(),
        log: inputs.log,
        budget: bucket(config.cluster.events),
        waiting,
    };
    let recorder = inputs.events.clone();
    let pods_task = PodsTask::new(PodsInputs {
        link: link.clone(),
        picture: pods.clone(),
        views: inputs.pods,
        known: inputs.known,
        node: registered_node.clone(),
        events: Box::new(move |event| recorder.record(event)),
        runs_api_pods: config.source.api_pods,
        budget: bucket(config.cluster.api),
        report: pods_report,
    });
    let admission = inputs.admission;
    let labels = admission.scheduling.subscribe();
    let of_api = inputs.api_pods.map(|api| api.tasks(pods.clone(), labels, &link, shutdown));
    let (objects, of_api) = of_api.unzip();
    let pod_cidr_task = pod_cidr_task(&inputs.machine, &nodes);
    let own_node = OwnNode { link: link.clone(), picture: nodes.clone(), registered, admission };
    let (report_task, node_task, node) =
        node_tasks(config, inputs.machine, inputs.events, own_node);
    let of_reviews = link.clone();
    let view_task = ClusterViewTask {
        kubeconfig: kubeconfig.display().to_string(),
        link,
        credentials,
        client_certificate: certificates.client,
        serving_certificate: certificates.serving,
        nodes,
        pods,
        objects,
        registered: registered_node,
        node,
        lease,
        mirrors,
        events_waiting,
        published: inputs.published,
    };
    let stop = || shutdown.clone();
    let mut parts: Vec<Part> = vec![
        ("credentials", Box::pin(connections.run(inputs.reload.clone(), stop()))),
        ("watch of the node", Box::pin(node_watch.run(stop()))),
        ("watch of pods", Box::pin(pod_watch.run(stop()))),
        ("node report", Box::pin(report_task.run(stop()))),
        ("node status", Box::pin(node_task.run(stop()))),
        ("pod CIDR", Box::pin(pod_cidr_task.run(stop()))),
        ("lease", Box::pin(lease_task.run(stop()))),
        ("events of the cluster", Box::pin(events_task.run(stop()))),
        ("mirror pods", Box::pin(pods_task.run(stop()))),
        ("cluster view", Box::pin(view_task.run(stop()))),
    ];
    parts.extend(of_api.into_iter().flatten());
    for (name, task) in certificates.tasks {
        parts.push((name, Box::pin(task.run(inputs.reload.clone(), stop()))));
    }
    (parts, of_reviews)
}

fn pod_cidr_task(
    machine: &Machine,
    nodes: &watch::Receiver<Arc<WatchCache<k8s::Node>>>,
) -> PodCidrTask {
    let (health, runtime) = (machine.health.clone(), machine.runtime.clone());
    PodCidrTask { nodes: nodes.clone(), health, runtime }
}

fn identity_settings(config: &Config, kubeconfig: &Path, node_name: &str) -> IdentitySettings {
    IdentitySettings {
        kubeconfig: kubeconfig.to_owned(),
        bootstrap: config.cluster.identity.bootstrap.clone(),
        rotate: config.cluster.identity.rotate,
        directory: config.certificate_dir(),
        node_name: node_name.to_owned(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// What looks after certificates, and what they wait for.
struct Certificates {
    tasks: Vec<(&'static str, IdentityTask)>,
    client: Option<watch::Receiver<Option<Trouble>>>,
    serving: Option<watch::Receiver<Option<Trouble>>>,
}

fn certificates(
    config: &Config,
    identity: IdentitySettings,
    nodes: &watch::Receiver<Arc<WatchCache<k8s::Node>>>,
    link: &watch::Receiver<Link>,
) -> Certificates {
    let name = identity.node_name.clone();
    let (client, client_trouble) = IdentityTask::client(identity, link.clone()).unzip();
    let serving = config.server.bootstrap.then(|| {
        IdentityTask::serving(&config.certificate_dir(), name, nodes.clone(), link.clone())
    });
    let (serving, serving_trouble) = serving.unzip();
    let client = client.map(|task| ("client certificate", task));
    let serving = serving.map(|task| ("serving certificate", task));
    Certificates {
        tasks: client.into_iter().chain(serving).collect(),
        client: client_trouble,
        serving: serving_trouble,
    }
}

/// Client-go would use the proxy.
fn warn_of_proxy() {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(name) = ["HTTPS_PROXY", "https_proxy"].into_iter().find(|name| is_set(name)) {
        tracing::warn!("{name} is set and not used: the agent connects to the API server directly");
    }
}

fn bucket(rate: Rate) -> Option<Bucket> {
    (rate.qps > 0).then(|| Bucket::new(rate.qps, rate.burst.max(1)))
}

/// Where the node is seen and registered.
struct OwnNode {
    link: watch::Receiver<Link>,
    picture: watch::Receiver<Arc<WatchCache<k8s::Node>>>,
    registered: watch::Sender<Option<NodeRef>>,
    admission: NodeForAdmission,
}

/// What finds out how the machine is, what says so to the API server, and how far that is.
fn node_tasks(
    config: &Arc<Config>,
    machine: Machine,
    events: Recorder,
    own: OwnNode,
) -> (NodeReportTask, NodeTask, watch::Receiver<NodeState>) {
    let cluster = &config.cluster;
    let (published, report) = watch::channel(None);
    let (state, states) = watch::channel(NodeState::default());
    let node_task = NodeTask {
        registration: registration(config, machine.labels),
        periods: ReportPeriods { update: cluster.status_update, report: cluster.status_report },
        report,
        link: own.link,
        picture: own.picture,
        registered: own.registered,
        scheduling: own.admission.scheduling,
        wanted: own.admission.wanted,
        published: state,
        events,
    };
    let report_task = NodeReportTask {
        settings: NodeReportSettings {
            period: cluster.status_update,
            max_images: cluster.max_images,
            cloud_provider: cluster.cloud_provider,
            node_ip_given: config.node.ips.iter().any(|ip| !ip.is_unspecified()),
            port: config.server.is_served(true).then_some(config.server.address.port()),
            local_storage: config.eviction.local_storage_limits,
        },
        node_name: machine.name,
        capacity: machine.capacity,
        allocatable: machine.allocatable,
        runtime: machine.runtime,
        view: machine.view,
        conditions: machine.conditions,
        node_ips: machine.node_ips,
        published,
    };
    (report_task, node_task, states)
}

fn registration(config: &Config, labels: BTreeMap<String, String>) -> Registration {
    let cluster = &config.cluster;
    let taints = cluster.taints.iter().map(|taint| k8s::Taint {
        key: taint.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: taint.effect.clone(),
        time_added: None,
    });
    let static_only = (!config.source.api_pods).then(static_only_taint);
    Registration {
        enabled: cluster.register,
        attach_detach: cluster.attach_detach,
        labels,
        taints: taints.chain(static_only).collect(),
        provider_id: cluster.provider_id.clone(),
        cloud_provider: cluster.cloud_provider,
        node_ips: config.node.ips.clone(),
    }
}
