//! A cluster of two nodes on one machine. Each node has a network namespace, a containerd, a cgroup
//! and directories of its own, those of a slot. The control plane runs on the host.
//!
//! ```text
//!   kube-apiserver, on 10.214.A.1
//!    ├── wire of slot A ── 10.214.A.2, node1, pods in 10.211.A.0/24 ──┐
//!    │                                                              cable
//!    └── wire of slot B ── 10.214.B.2, node2, pods in 10.211.B.0/24 ──┘
//! ```
//!
//! Nothing leaves the machine: the default route of a node leads to a device that drops every
//! packet.

use super::{
    controlplane::{
        ControlPlane, METRICS_SERVER_ACCOUNT, Options,
        link::{Namespace, address_in, address_outside},
    },
    node::{PODS, SOON, is_ready, settings},
    support::{
        agent::{Agent, Settings},
        containerd::Containerd,
        images, ip, poll_until, skip_without_containerd,
        skips::skip_without,
        slot::Slot,
    },
    upstream,
};
use serde_json::Value;
use std::{fmt, process::Command};

const NAMES: [&str; 2] = ["node1", "node2"];

/// A node with its runtime and its network. Fields are dropped in this order.
pub struct Machine {
    pub agent: Agent,
    pub containerd: Containerd,
    _namespace: Namespace,
    pub slot: Slot,
    pub name: &'static str,
}

/// Two nodes and their control plane. Fields are dropped in this order.
pub struct Cluster {
    pub plane: ControlPlane,
    pub nodes: [Machine; 2],
}

impl Machine {
    /// A node that does not run yet, without a pod network.
    fn prepare(name: &'static str, slot: Slot, namespace: Namespace, settings: &Settings) -> Self {
        let containerd = Containerd::start_in_namespace(&slot, &slot.network_namespace());
        let agent = Agent::prepare(&slot, &containerd.socket(), settings);
        agent.set_node_name(name);
        agent.in_network_namespace(&slot.network_namespace());
        agent.add_flag(format!("--node-ip={}", address_in(&slot)));
        containerd.set_network_ready(false);
        Self { agent, containerd, _namespace: namespace, slot, name }
    }

    /// Runs a command in the network namespace of the node; gives what it prints, and an error when
    /// it fails.
    pub fn run(&self, command: &[&str]) -> Result<String, String> {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net=/run/netns/{}", self.slot.network_namespace()));
        let output = nsenter.args(command).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The address of the node.
    pub fn address(&self) -> String {
        address_in(&self.slot).to_string()
    }
}

impl Cluster {
    /// A cluster whose agents do not run yet, and whose nodes have no pod network; `None` when the
    /// test must be skipped.
    pub fn prepare() -> Option<Self> {
        Self::prepare_with(Options::default().controller_manager(&[]), "")
    }

    /// As [`Self::prepare`], with these components of the control plane besides kube-scheduler, and
    /// with more lines of the KubeletConfiguration of both nodes.
    pub fn prepare_with(options: Options, lines: &str) -> Option<Self> {
        if skip_without_containerd() {
            return None;
        }
        let pods = (upstream::kube_proxy(), upstream::coredns(), upstream::metrics_server());
        let (Some(programs), (Some(kube_proxy), Some(coredns), Some(metrics_server))) =
            (upstream::control_plane(), pods)
        else {
            skip_without(&[(
                false,
                "a control plane, kube-proxy, CoreDNS and metrics-server, or Go to build them",
            )]);
            return None;
        };
        let archive = images::of_cluster(&[kube_proxy, coredns, metrics_server]);
        let slots = [Slot::take(), Slot::take()];
        let namespaces = [Namespace::make(&slots[0]), Namespace::make(&slots[1])];
        connect(&slots);
        // The API server asks metrics-server by the addresses of its pods: kube-proxy does not run
        // on the host.
        let options = options.aggregation().apiserver("--enable-aggregator-routing=true");
        let options = options.scheduler().listen_on(address_outside(&slots[0]));
        let settings = settings().kubelet(lines);
        let plane = ControlPlane::start(&slots[0], &programs, &options);
        let mut parts = NAMES.into_iter().zip(slots.into_iter().zip(namespaces));
        let nodes = [(); 2].map(|()| {
            let (name, (slot, namespace)) = parts.next().unwrap();
            let node = Machine::prepare(name, slot, namespace, &settings);
            node.containerd.ctr(&["images", "import", archive.to_str().unwrap()]);
            node.agent.join(&plane.node_kubeconfig(name, plane.address()));
            let clients = node.slot.dir().join("clients.crt");
            std::fs::write(&clients, plane.authority().pem()).unwrap();
            node.agent.add_flag(format!("--client-ca-file={}", clients.display()));
            node
        });
        Some(Self { plane, nodes })
    }

    /// A cluster with a pod network; both nodes are Ready.
    pub fn with_network() -> Option<Self> {
        let cluster = Self::prepare()?;
        cluster.nodes.iter().for_each(|node| node.agent.start());
        cluster.install_network();
        cluster.wait_nodes_ready();
        Some(cluster)
    }

    /// A cluster with a pod network, kube-proxy and CoreDNS; everything is Ready.
    pub fn start() -> Option<Self> {
        let cluster = Self::with_network()?;
        cluster.install_services();
        Some(cluster)
    }

    /// Makes the DaemonSet that brings the pod network.
    pub fn install_network(&self) {
        let [first, second] = self.nodes.each_ref().map(|node| node.slot.number().to_string());
        let base = self.nodes[0].slot.dir().parent().unwrap();
        let objects = include_str!("network.yaml")
            .replace("BASE", base.to_str().unwrap())
            .replace("FIRST", &first)
            .replace("SECOND", &second);
        self.apply(&objects);
    }

    /// Makes kube-proxy and CoreDNS, and waits until they are Ready. CoreDNS comes second: a
    /// connection to a Service that it opens too early takes 30 s to fail.
    pub fn install_services(&self) {
        let server = self.plane.address().to_string();
        self.apply(&include_str!("kube-proxy.yaml").replace("SERVER", &server));
        self.wait_rolled_out("kube-system", "daemonset/kube-proxy");
        self.apply(include_str!("coredns.yaml"));
        self.wait_rolled_out("kube-system", "deployment/coredns");
    }

    /// Makes metrics-server, and waits until it is Ready.
    pub fn install_metrics(&self) {
        self.apply(METRICS_SERVER_ACCOUNT);
        self.apply(include_str!("metrics-server.yaml"));
        self.wait_rolled_out("kube-system", "deployment/metrics-server");
    }

    /// `kubectl apply` of YAML or JSON.
    #[track_caller]
    pub fn apply(&self, objects: &str) {
        let arguments = ["apply", "--filename=-"];
        let applied = self.plane.kubectl_as(&self.plane.admin_kubeconfig(), &arguments, objects);
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    }

    /// A node as the API server has it.
    pub fn node(&self, name: &str) -> Option<Value> {
        self.plane.admin.find(&format!("/api/v1/nodes/{name}"))
    }

    /// The pod `name` of namespace `default`.
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.plane.admin.find(&format!("{PODS}/{name}"))
    }

    /// Waits until a pod of namespace `default` is Ready.
    #[track_caller]
    pub fn wait_pod_ready(&self, name: &str) -> Value {
        let ready = |pod: &Option<Value>| pod.as_ref().is_some_and(is_ready);
        self.wait(&format!("pod {name} is Ready"), || self.pod(name), ready).unwrap()
    }

    /// Waits until both nodes are Ready, and pods of namespace `default` can be made.
    #[track_caller]
    pub fn wait_nodes_ready(&self) {
        for name in NAMES {
            let ready = |node: &Option<Value>| node.as_ref().is_some_and(is_ready);
            self.wait(&format!("{name} is Ready"), || self.node(name), ready);
        }
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        self.wait("the account is there", || self.plane.admin.find(account), Option::is_some);
    }

    /// Waits until all pods of a Deployment or a DaemonSet (`deployment/NAME`) are Ready.
    #[track_caller]
    pub fn wait_rolled_out(&self, namespace: &str, workload: &str) {
        let status = || {
            let words = ["-n", namespace, "rollout", "status", workload, "--watch=false"];
            let output = self.plane.kubectl(&words);
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        };
        let done = |text: &String| text.contains("successfully rolled out");
        self.wait(&format!("{workload} is rolled out"), status, done);
    }

    /// Waits until something is as wanted; shows the pods and the logs of the agents when it does
    /// not become so.
    #[track_caller]
    pub fn wait<T: fmt::Debug>(
        &self,
        what: &str,
        look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> T {
        let last = match poll_until(SOON, look, accept) {
            Ok(value) => return value,
            Err(last) => last,
        };
        let pods = ["get", "pods", "-A", "-o", "wide"];
        let proxies = ["-n", "kube-system", "logs", "-l", "k8s-app=kube-proxy", "--prefix"];
        let shown = [&pods[..], &["get", "events", "-A"], &proxies]
            .map(|words| String::from_utf8_lossy(&self.plane.kubectl(words).stdout).into_owned());
        let logs = self.nodes.each_ref().map(|node| node.agent.log_tail(40));
        panic!(
            "not within {SOON:?}: {what}\n--- last: {last:#?}\n--- {}\n--- node1: {}\n--- node2: {}",
            shown.join("\n--- "),
            logs[0],
            logs[1]
        );
    }

    /// Waits until something that may fail answers as wanted; gives the answer.
    #[track_caller]
    pub fn wait_answer(
        &self,
        what: &str,
        ask: impl FnMut() -> Result<String, String>,
        mut accept: impl FnMut(&str) -> bool,
    ) -> String {
        let fits = |answer: &Result<String, String>| answer.as_deref().is_ok_and(&mut accept);
        self.wait(what, ask, fits).unwrap()
    }

    /// What a command prints in a container of a pod (`NAME` or `deployment/NAME`); an error when
    /// it fails.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<String, String> {
        let output = self.plane.kubectl(&[&["exec", pod, "--"], command].concat());
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Removes every pod through the API, and checks that nothing is left of them on either node.
    #[track_caller]
    pub fn finish(self) {
        for namespace in ["default", "kube-system"] {
            let kinds = "deployments,replicasets,daemonsets,statefulsets,jobs";
            let delete = |kinds, more| {
                let words = ["-n", namespace, "delete", kinds, "--all", "--wait=false", more];
                self.plane.kubectl_text(&words);
            };
            delete(kinds, "--ignore-not-found");
            delete("pods", "--grace-period=1");
        }
        let left = || self.plane.admin.get("/api/v1/pods")["items"].as_array().map(Vec::len);
        self.wait("every pod is gone", left, |left| *left == Some(0));
        for node in &self.nodes {
            let leaks = || [node.agent.leaks(), node.containerd.leaks()].concat();
            self.wait(&format!("{} is clean", node.name), leaks, Vec::is_empty);
        }
    }
}

/// Connects the nodes in these slots with each other, and their pods with the control plane.
fn connect(slots: &[Slot; 2]) {
    let [first, second] = slots.each_ref().map(Slot::network_namespace);
    ip(&format!("link add cable netns {first} type veth peer name cable netns {second}"));
    let control_plane = address_outside(&slots[0]);
    for (slot, peer) in [(&slots[0], &slots[1]), (&slots[1], &slots[0])] {
        let inside = |arguments: &str| ip(&format!("-n {} {arguments}", slot.network_namespace()));
        let (address, outside) = (address_in(slot), address_outside(slot));
        let (number, peer_number, peer) = (slot.number(), peer.number(), address_in(peer));
        inside("link set lo up");
        inside("link set cable up");
        inside(&format!("route add {peer} dev cable src {address}"));
        inside(&format!("route add 10.211.{peer_number}.0/24 via {peer} dev cable onlink"));
        if outside != control_plane {
            inside(&format!("route add {control_plane} via {outside}"));
        }
        // kube-proxy rewrites what is for a Service, which needs a route before that.
        inside("link add beyond type bridge");
        inside("link set beyond up arp off");
        inside(&format!("route add default dev beyond src {address}"));
        ip(&format!("route replace 10.211.{number}.0/24 via {address}"));
    }
}
