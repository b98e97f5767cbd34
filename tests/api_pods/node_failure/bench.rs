//! A cluster of two nodes with workloads on `node2`, whose agent is nodelet or the upstream
//! kubelet. The agent of `node1` is always nodelet: its pods replace those of `node2`.

use super::{
    super::{
        cluster::{Cluster, Machine},
        controlplane::{Options, link::address_in},
        node::{PODS, WAITS, condition, is_ready, plain},
        scale::DEPLOYMENTS,
        support::{cri::Cri, process::Stopped},
        two_nodes::web_service,
        upstream::Kubelet,
    },
    timeline::Facts,
};
use nodelet::cri::v1::{Container, ContainerState};
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

/// The node under test.
const NODE: &str = "node2";
/// The workloads: of a Deployment, a StatefulSet, a DaemonSet and a Job. Each has one pod on
/// `node2`.
pub const WORKLOADS: [&str; 4] = ["web", "db", "daemon", "work"];
/// What is noted of `spec.unschedulable`.
pub const SCHEDULING: &str = "scheduling on the node";
/// A pod that is bound to `node2` during a fault.
pub const LATE: &str = "late";

/// The agent of `node2`.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// This project.
    Nodelet,
    /// The upstream kubelet, with its binary.
    Kubelet(PathBuf),
}

impl Candidate {
    /// Its name in a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nodelet => "nodelet",
            Self::Kubelet(_) => "kubelet",
        }
    }
}

/// How long the control plane waits before it does something about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timings {
    /// A grace period of 10 s, tolerations of 20 s, and heartbeats every second.
    Short,
    /// The defaults: a grace period of 50 s, tolerations of 300 s, and heartbeats every 10 s.
    Real,
}

impl Timings {
    fn options(self) -> Options {
        match self {
            Self::Real => Options::default().controller_manager(&[]),
            Self::Short => Options::default()
                .controller_manager(&[
                    "--node-monitor-period=1s",
                    "--node-monitor-grace-period=10s",
                    // So many nodes per second can get a taint.
                    "--node-eviction-rate=10",
                ])
                // Longer than a node may take to be Ready again, so that no pod is deleted then.
                .apiserver("--default-not-ready-toleration-seconds=20")
                .apiserver("--default-unreachable-toleration-seconds=20"),
        }
    }

    /// Lines of the KubeletConfiguration.
    fn lines(self) -> &'static str {
        match self {
            Self::Real => "",
            Self::Short => "nodeStatusUpdateFrequency: 1s\nnodeLeaseDurationSeconds: 4\n",
        }
    }

    /// How long a fault lasts of which the control plane must not notice anything.
    pub fn unnoticed(self) -> Duration {
        match self {
            Self::Short => Duration::from_secs(2),
            Self::Real => Duration::from_secs(20),
        }
    }

    /// How long a step of an experiment may take.
    pub fn deadline(self) -> Duration {
        match self {
            // The kubelet sees that a runtime hangs when its calls are late, after minutes.
            Self::Short => Duration::from_secs(300),
            Self::Real => Duration::from_secs(900),
        }
    }
}

/// Which packets between a node and the API server are lost, without a word to either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// All of them.
    Both,
    /// Those from the API server to the node.
    ToNode,
    /// Those from the node to the API server.
    FromNode,
}

/// A pod of a workload as it was before the fault.
#[derive(Clone, Debug)]
pub struct Original {
    /// The uid of its object.
    pub uid: String,
    /// The name of its object.
    pub name: String,
    /// The id of its container, as the API server has it.
    pub container: Value,
}

/// The pods on `node2` before the fault, by workload.
pub type Originals = BTreeMap<&'static str, Original>;

/// Fields are dropped in this order.
pub struct Bench {
    /// The container runtime of `node2`, while it hangs.
    frozen: RefCell<Option<Stopped>>,
    /// Whether the container runtime of `node2` answers.
    runtime_answers: Cell<bool>,
    /// The agent of `node2`, where it is not that of the cluster.
    kubelet: Option<Kubelet>,
    cluster: Cluster,
    /// Of the nodes.
    runtimes: [Cri; 2],
    timings: Timings,
}

impl Bench {
    /// A cluster that is Ready, without workloads; `None` when the test must be skipped.
    pub fn start(candidate: &Candidate, timings: Timings) -> Option<Self> {
        let cluster = Cluster::prepare_with(timings.options(), timings.lines())?;
        let node = &cluster.nodes[1];
        let kubelet = match candidate {
            Candidate::Nodelet => None,
            Candidate::Kubelet(binary) => {
                let (slot, socket) = (&node.slot, node.containerd.socket());
                let kubelet = Kubelet::prepare(slot, binary, &socket, &socket, timings.lines());
                let namespace = slot.network_namespace();
                let mut kubelet =
                    kubelet.named(NODE).in_network_namespace(&namespace, address_in(slot));
                kubelet.join(&cluster.plane.node_kubeconfig(NODE, cluster.plane.address()));
                Some(kubelet)
            }
        };
        let runtimes = cluster.nodes.each_ref().map(|node| Cri::new(&node.containerd.socket()));
        let (frozen, runtime_answers) = (RefCell::default(), Cell::new(true));
        let bench = Self { frozen, runtime_answers, kubelet, cluster, runtimes, timings };
        bench.cluster.nodes[0].agent.start();
        bench.start_agent();
        bench.cluster.install_network();
        bench.cluster.wait_nodes_ready();
        std::fs::create_dir(bench.shared_dir()).unwrap();
        Some(bench)
    }

    /// The timings that it was started with.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    fn node(&self) -> &Machine {
        &self.cluster.nodes[1]
    }

    /// Starts the agent of `node2`.
    pub fn start_agent(&self) {
        match &self.kubelet {
            Some(kubelet) => kubelet.start(),
            None => self.node().agent.start(),
        }
    }

    /// `kill -9` to the agent of `node2`.
    pub fn kill_agent(&self) {
        match &self.kubelet {
            Some(kubelet) => kubelet.kill(),
            None => self.node().agent.kill(),
        }
    }

    /// `kill -9` to the container runtime of `node2`. Its containers run on.
    pub fn kill_runtime(&self) {
        self.runtime_answers.set(false);
        self.node().containerd.kill();
    }

    /// Starts the container runtime of `node2` again.
    pub fn start_runtime(&self) {
        self.node().containerd.start_again();
        self.runtime_answers.set(true);
    }

    /// Has the container runtime of `node2` stand still.
    pub fn freeze_runtime(&self) {
        self.runtime_answers.set(false);
        self.frozen.replace(Some(self.node().containerd.freeze()));
    }

    /// Has it go on.
    pub fn thaw_runtime(&self) {
        self.frozen.take();
        self.runtime_answers.set(true);
    }

    /// Cordons `node2` and evicts pods, as `kubectl drain` does.
    #[track_caller]
    pub fn drain(&self, evicted: &[&Original]) {
        self.set_unschedulable(true);
        for Original { name, .. } in evicted {
            let metadata = json!({ "name": name });
            let eviction =
                json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
            self.create(&format!("{PODS}/{name}/eviction"), &eviction);
        }
    }

    /// Has all pods run on `node2`.
    pub fn use_node_alone(&self) {
        self.cluster.plane.kubectl_text(&["cordon", "node1"]);
    }

    /// Creates an object in a collection.
    #[track_caller]
    pub fn create(&self, collection: &str, object: &Value) {
        self.cluster.plane.admin.create(collection, object).unwrap().ok();
    }

    /// Changes the Deployment `web`.
    #[track_caller]
    pub fn change_web(&self, patch: &Value) {
        self.cluster.plane.admin.patch(&format!("{DEPLOYMENTS}/web"), patch).unwrap().ok();
    }

    /// The uids of the pods of which a container runs on `node2`.
    pub fn running_pods(&self) -> Vec<String> {
        running(&self.runtimes[1].containers())
    }

    /// Lets `node2` take pods again.
    pub fn uncordon(&self) {
        self.set_unschedulable(false);
    }

    fn set_unschedulable(&self, unschedulable: bool) {
        let patch = json!({ "spec": { "unschedulable": unschedulable } });
        self.cluster.plane.admin.patch(&format!("/api/v1/nodes/{NODE}"), &patch).unwrap().ok();
    }

    /// Whether the agent of `node2` runs.
    pub fn agent_runs(&self) -> bool {
        match &self.kubelet {
            Some(kubelet) => kubelet.is_running(),
            None => self.node().agent.is_running(),
        }
    }

    /// The last lines of the log of the agent of `node2`.
    pub fn log_tail(&self) -> String {
        match &self.kubelet {
            Some(kubelet) => kubelet.log_tail(40),
            None => self.node().agent.log_tail(40),
        }
    }

    /// Drops packets between `node2` and the API server, or stops doing so.
    #[track_caller]
    pub fn lose(&self, direction: Direction, lose: bool) {
        // The wire to the API server; the other node is at the end of another one.
        let (into, out) = (["INPUT", "-i"], ["OUTPUT", "-o"]);
        let chains = match direction {
            Direction::Both => vec![into, out],
            Direction::ToNode => vec![into],
            Direction::FromNode => vec![out],
        };
        let change = if lose { "-I" } else { "-D" };
        for [chain, end] in chains {
            let command = ["iptables", "-w", change, chain, end, "peer", "-j", "DROP"];
            self.node().run(&command).unwrap();
        }
    }

    /// A directory that both nodes have, as if it were a network file system.
    fn shared_dir(&self) -> PathBuf {
        self.cluster.nodes[0].slot.dir().join("shared")
    }

    /// What containers of the StatefulSet's pod have written when they found another one running.
    pub fn ran_twice(&self) -> Option<String> {
        std::fs::read_to_string(self.shared_dir().join("twice")).ok()
    }

    /// Makes the workloads and waits until they are Ready, with a pod of each on `node2`.
    #[track_caller]
    pub fn place(&self) -> Originals {
        self.use_node_alone();
        for object in workloads(&self.shared_dir()) {
            self.cluster.apply(&object.to_string());
        }
        self.cluster.apply(&web_service().to_string());
        let ready = |originals: &Originals| originals.len() == WORKLOADS.len();
        let placed = self.cluster.wait("the workloads are Ready", || self.originals(), ready);
        self.cluster.plane.kubectl_text(&["uncordon", "node1"]);
        placed
    }

    /// The pods on `node2` that are Ready.
    fn originals(&self) -> Originals {
        let pods = self.pods();
        let found = WORKLOADS.into_iter().filter_map(|app| {
            let fits = |pod: &&Value| {
                app_of(pod) == app && pod["spec"]["nodeName"] == NODE && is_ready(pod)
            };
            let pod = pods.iter().find(fits)?;
            let text = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
            let container = container_of(pod);
            Some((app, Original { uid: text("uid"), name: text("name"), container }))
        });
        found.collect()
    }

    /// Whether a pod and its container are those from before, and nothing was restarted.
    pub fn is_unchanged(&self, original: &Original) -> bool {
        let pods = self.pods();
        let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == *original.uid);
        pod.is_some_and(|pod| {
            container_of(pod) == original.container
                && pod["status"]["containerStatuses"][0]["restartCount"] == 0
        })
    }

    /// Binds a pod to `node2`.
    #[track_caller]
    pub fn create_late_pod(&self) {
        let mut pod = plain(LATE, WAITS);
        pod["spec"]["nodeName"] = json!(NODE);
        self.create(PODS, &pod);
    }

    /// Deletes pods by force: their objects are gone at once.
    #[track_caller]
    pub fn delete_by_force(&self, originals: &Originals) {
        for original in originals.values() {
            self.cluster.plane.admin.delete(&format!("{PODS}/{}", original.name)).unwrap().ok();
        }
    }

    /// Removes the workloads.
    #[track_caller]
    pub fn clear(&self) {
        let kinds = "services,deployments,statefulsets,daemonsets,jobs";
        self.cluster.plane.kubectl_text(&["delete", kinds, "-l", "app", "--wait=false"]);
        let pods = ["delete", "pods", "--all", "--grace-period=1", "--wait=false"];
        self.cluster.plane.kubectl_text(&pods);
        self.cluster.wait("the workloads are gone", || self.pods(), Vec::is_empty);
        // The last container may have been killed, and then it has kept its lock.
        for name in ["db", "twice"] {
            let path = self.shared_dir().join(name);
            _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }

    /// Removes everything and checks that nothing is left. What an upstream kubelet has left is not
    /// looked at.
    #[track_caller]
    pub fn finish(self) {
        match self.kubelet {
            Some(kubelet) => kubelet.kill(),
            None => self.cluster.finish(),
        }
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Value> {
        self.cluster.plane.admin.get(PODS)["items"].as_array().cloned().unwrap_or_default()
    }

    /// The state of everything that an experiment is about.
    pub fn observe(&self, originals: &Originals) -> Facts {
        let mut facts = Facts::new();
        let mut note = |subject: String, state: &str| facts.insert(subject, state.to_owned());
        let node = self.cluster.node(NODE).unwrap_or_default();
        note("node".to_owned(), node_state(&node));
        let is_off = node["spec"]["unschedulable"] == true;
        note(SCHEDULING.to_owned(), if is_off { "off" } else { "on" });
        for effect in ["NoSchedule", "NoExecute"] {
            note(format!("taint {effect}"), taint(&node, effect));
        }
        note("endpoint of the Service".to_owned(), self.endpoint());
        // The pods are read first: a container that still runs after that has no object.
        let pods = self.pods();
        let answers = self.runtime_answers.get();
        let running = answers.then(|| self.running_pods());
        for (app, original) in originals {
            let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == *original.uid);
            note(format!("pod {app}"), pod_state(pod));
            if let Some(running) = &running {
                let runs = running.contains(&original.uid);
                note(format!("container {app}"), if runs { "running" } else { "stopped" });
            }
            let volumes = self.root_dir().join("pods").join(&original.uid).join("volumes");
            note(format!("volumes {app}"), if volumes.exists() { "there" } else { "removed" });
            let new = |pod: &&Value| {
                let uid = &pod["metadata"]["uid"];
                app_of(pod) == *app && *uid != *original.uid && !is_elsewhere(app, pod)
            };
            note(format!("replacement {app}"), &replacement_state(pods.iter().find(new)));
        }
        if let Some(late) = pods.iter().find(|pod| app_of(pod) == LATE) {
            note(format!("pod {LATE}"), pod_state(Some(late)));
        }
        note("db on two nodes".to_owned(), if self.ran_twice().is_some() { "yes" } else { "no" });
        facts
    }

    /// The root directory of the agent of `node2`.
    fn root_dir(&self) -> PathBuf {
        match &self.kubelet {
            Some(kubelet) => kubelet.root_dir(),
            None => self.node().agent.root_dir(),
        }
    }

    /// Whether the Service has an endpoint that is ready.
    fn endpoint(&self) -> &'static str {
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let slices = self.cluster.plane.admin.get(path);
        let slices = slices["items"].as_array().into_iter().flatten();
        let of_web = slices
            .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web");
        let mut endpoints = of_web.flat_map(|slice| slice["endpoints"].as_array()).flatten();
        let ready = endpoints.any(|endpoint| endpoint["conditions"]["ready"] == true);
        if ready { "ready" } else { "not ready" }
    }
}

/// The pod of a DaemonSet on the other node is none that replaces anything.
fn is_elsewhere(app: &str, pod: &Value) -> bool {
    app == "daemon" && pod["spec"]["nodeName"] == "node1"
}

fn app_of(pod: &Value) -> &str {
    pod["metadata"]["labels"]["app"].as_str().unwrap_or_default()
}

fn container_of(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["containerID"].clone()
}

/// The uids of the pods of running containers, without those of the pod network.
fn running(containers: &[Container]) -> Vec<String> {
    let running = containers.iter().filter(|one| {
        one.state() == ContainerState::ContainerRunning
            && one.labels.get("io.kubernetes.pod.namespace").is_some_and(|name| name == "default")
    });
    running.filter_map(|one| one.labels.get("io.kubernetes.pod.uid").cloned()).collect()
}

fn node_state(node: &Value) -> &'static str {
    match condition(node, "Ready").and_then(|ready| ready["status"].as_str()) {
        Some("True") => "Ready",
        Some("Unknown") => "Unknown",
        Some(_) | None => "not Ready",
    }
}

/// Why the node has a taint of this effect, when the node lifecycle controller has set one.
fn taint(node: &Value, effect: &str) -> &'static str {
    let taints = node["spec"]["taints"].as_array();
    let mut keys = taints.into_iter().flatten().filter(|taint| taint["effect"] == effect);
    keys.find_map(|taint| match taint["key"].as_str()? {
        "node.kubernetes.io/unreachable" => Some("unreachable"),
        "node.kubernetes.io/not-ready" => Some("not-ready"),
        _ => None,
    })
    .unwrap_or("none")
}

fn pod_state(pod: Option<&Value>) -> &'static str {
    match pod {
        None => "gone",
        Some(pod) if pod["metadata"]["deletionTimestamp"].is_string() => "Terminating",
        Some(pod) if is_ready(pod) => "Ready",
        Some(_) => "not Ready",
    }
}

fn replacement_state(pod: Option<&Value>) -> String {
    match pod {
        None => "none".to_owned(),
        Some(pod) if is_ready(pod) => {
            format!("Ready on {}", pod["spec"]["nodeName"].as_str().unwrap_or_default())
        }
        Some(_) => "Pending".to_owned(),
    }
}

/// Holds a lock in a directory that all nodes share, and writes down when somebody else has it.
/// The lock is given back when the container is stopped, and by nothing else.
const HOLDS_LOCK: &str = "mkdir /shared/db || hostname >>/shared/twice; \
     trap 'rmdir /shared/db; exit 0' TERM; while true; do sleep 1 & wait $!; done";

/// The workloads. Each pod has a volume in memory, which is a mount.
fn workloads(shared: &Path) -> Vec<Value> {
    let template = |name: &str, script: &str| {
        let mut pod = plain(name, script);
        let volume = json!({ "name": "data", "emptyDir": { "medium": "Memory" } });
        pod["spec"]["volumes"] = json!([volume]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "data", "mountPath": "/data" }]);
        json!({ "metadata": { "labels": { "app": name } }, "spec": pod["spec"] })
    };
    let object = |kind: &str, group: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "labels": { "app": name } });
        json!({ "apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec })
    };
    let selected = |template: Value| {
        let selector = json!({ "matchLabels": template["metadata"]["labels"] });
        json!({ "selector": selector, "template": template })
    };
    let mut db = template("db", HOLDS_LOCK);
    let volumes = db["spec"]["volumes"].as_array_mut().unwrap();
    volumes.push(json!({ "name": "shared", "hostPath": { "path": shared } }));
    let mounts = db["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({ "name": "shared", "mountPath": "/shared" }));
    let mut work = template("work", WAITS);
    work["spec"]["restartPolicy"] = json!("Never");
    vec![
        object("Deployment", "apps/v1", "web", selected(template("web", WAITS))),
        object("StatefulSet", "apps/v1", "db", selected(db)),
        object("DaemonSet", "apps/v1", "daemon", selected(template("daemon", WAITS))),
        object("Job", "batch/v1", "work", json!({ "template": work })),
    ]
}
