//! `kubeadm join`: kubeadm of Kubernetes 1.36 in the machine makes it a node of a control plane that
//! runs on the host. nodelet is installed as `kubelet`, under the unit and the drop-in of the
//! packages `kubelet` and `kubeadm`. docs/cluster.md has the same commands.

use crate::{
    cluster::Cluster,
    controlplane::{self, kubeadm, kubeconfig::Kubeconfig, objects::is_ready},
    machine::{HOST, Hardware, SOON},
    node::{Driver, Node, Options},
    support::{manifest::Pod, wait_until},
};
use serde_json::{Value, json};
use std::{fs, path::Path};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1";
const NODE: &str = "/api/v1/nodes/node1";
/// The mirror pod of the static pod `web`.
const MIRROR: &str = "/api/v1/namespaces/default/pods/web-node1";
/// Where kubeadm has the agent read manifests.
const WEB: &str = "/etc/kubernetes/manifests/web.yaml";
/// Where the output of `kubeadm join` goes.
const JOIN_LOG: &str = "/run/join.log";

/// A machine joins, its agent restarts, the machine reboots, and it leaves the cluster.
pub fn kubeadm_makes_a_machine_a_node() {
    let Some(cluster) = Cluster::start_for_joining() else { return };
    let node = boot(&cluster.programs);
    install(&node);
    node.note("nodelet is installed as kubelet");
    let command = cluster.join_command();
    static_pods_run_before_the_request_is_approved(&node, &cluster, &command);
    node.note("the request is approved");
    let joined = kubeadm_ends_and_the_node_is_ready(&node, &cluster);
    node.note("the node is Ready");
    files_are_those_of_kubeadm(&node);
    the_journal_is_read_over_the_api(&node, &cluster);
    let joined = an_agent_that_restarts_is_the_same_node(&node, &cluster, &joined);
    node.note("the agent has restarted");
    a_machine_that_reboots_is_the_same_node(&node, &cluster, &joined);
    node.note("the machine has rebooted");
    kubeadm_reset_removes_everything(&node);
}

/// What must stay the same for as long as the node exists.
#[derive(Debug, PartialEq, Eq)]
struct NodeIdentity {
    node_uid: String,
    requests: Vec<String>,
}

/// A node that has joined, and its static pod.
struct Joined {
    identity: NodeIdentity,
    boot_id: Value,
    container: String,
}

impl Cluster {
    /// A control plane that lets nodes join as one that `kubeadm init` has made.
    fn start_for_joining() -> Option<Self> {
        let signer = "--controllers=*,bootstrapsigner,tokencleaner";
        let options = controlplane::Options::default().controller_manager(&[signer]);
        let cluster = Self::start(options)?;
        cluster.init();
        Some(cluster)
    }

    /// Makes the objects that `kubeadm join` and a joining node need.
    fn init(&self) {
        let config = self.slot.dir().join("kubeadm.yaml");
        let version = kubeadm::run(&self.programs, &["version", "--output", "short"]);
        let port = self.plane.address().port();
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             nodeRegistration: {{ name: control-plane, criSocket: 'unix:///run/none.sock' }}\n\
             localAPIEndpoint: {{ advertiseAddress: {HOST}, bindPort: {port} }}\n\
             ---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
             kubernetesVersion: {version}",
        );
        fs::write(&config, text).unwrap();
        let (config, admin) = (config.to_str().unwrap(), self.plane.admin_kubeconfig());
        let files = ["--config", config, "--kubeconfig", admin.to_str().unwrap()];
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            kubeadm::run(&self.programs, &[&["init", "phase"], phase, &files].concat());
        }
        // The administrator's kubeconfig has the address that is right on the host.
        let info = self.plane.admin.get(CLUSTER_INFO);
        let kubeconfig = seen_from_the_machine(info["data"]["kubeconfig"].as_str().unwrap());
        let patch = json!({ "data": { "kubeconfig": kubeconfig } });
        self.plane.admin.patch(CLUSTER_INFO, &patch).unwrap().ok();
    }

    /// Makes a token; gives the command for the node, once the token is good for it.
    fn join_command(&self) -> String {
        let admin = self.plane.admin_kubeconfig();
        let create = ["token", "create", "--print-join-command", "--kubeconfig"];
        let printed =
            kubeadm::run(&self.programs, &[&create[..], &[admin.to_str().unwrap()]].concat());
        let id = printed.split("--token ").nth(1).and_then(|rest| rest.split('.').next());
        let signature = format!("jws-kubeconfig-{}", id.unwrap());
        let info = || self.find(CLUSTER_INFO);
        let signed = |info: &Value| info["data"][&signature].is_string();
        wait_until("the controller manager signs cluster-info", SOON, info, signed);
        seen_from_the_machine(printed.trim())
    }

    /// What is at `path`, or null.
    fn find(&self, path: &str) -> Value {
        self.plane.admin.find(path).unwrap_or_default()
    }

    fn requests(&self) -> Vec<Value> {
        self.plane.admin.get(REQUESTS)["items"].as_array().unwrap().clone()
    }

    fn identity(&self) -> NodeIdentity {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        NodeIdentity {
            node_uid: self.find(NODE)["metadata"]["uid"].as_str().unwrap().to_owned(),
            requests: self.requests().iter().map(name).collect(),
        }
    }

    /// Waits until the node and the mirror pod are Ready, and as `accept` wants them.
    #[track_caller]
    fn wait_ready(&self, node: &Node, accept: impl Fn(&Value, &Value) -> bool) -> Joined {
        let look = || (self.find(NODE), self.find(MIRROR));
        let fits = |(node, mirror): &(Value, Value)| {
            is_ready(node) && is_ready(mirror) && accept(node, mirror)
        };
        let (found, mirror) = node.wait_until("the node and its pod are Ready", look, fits);
        Joined {
            identity: self.identity(),
            boot_id: found["status"]["nodeInfo"]["bootID"].clone(),
            container: container_id(&mirror).to_owned(),
        }
    }
}

/// `text` with the host's loopback address as the machine has to name it.
fn seen_from_the_machine(text: &str) -> String {
    text.replace("127.0.0.1", &HOST.to_string())
}

fn container_id(pod: &Value) -> &str {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default()
}

/// A machine with kubeadm and the units of the packages.
fn boot(programs: &Path) -> Node {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/kubeadm");
    let unit = "usr/lib/systemd/system/kubelet.service";
    let drop_in = "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf";
    Node::boot(&Options {
        hardware: Hardware { reaches_host: true, ..Hardware::default() },
        // As kubeadm configures the node.
        driver: Driver::Systemd,
        kubelet: "maxPods: 42\nenableSystemLogQuery: true".to_owned(),
        files: vec![
            (programs.join("kubeadm"), "usr/bin/kubeadm"),
            (programs.join("kubectl"), "usr/bin/kubectl"),
            (units.join("kubelet.service"), unit),
            (units.join("10-kubeadm.conf"), drop_in),
        ],
    })
}

/// Installs nodelet as docs/cluster.md says.
fn install(node: &Node) {
    // What the machine of a user has: a name of its own, and the kubelet of the package.
    node.sh("echo box >/etc/hostname; hostname box; ln -s /bin/false /usr/bin/kubelet");
    node.sh("set -e\n\
         systemctl disable --no-reload --quiet --now nodelet\n\
         dpkg-divert --quiet --local --rename --add /usr/bin/kubelet\n\
         install -m 0755 /usr/local/bin/nodelet /usr/bin/kubelet\n\
         systemctl enable --no-reload --quiet kubelet\n\
         echo KUBELET_EXTRA_ARGS=--config-dir=/etc/nodelet/config.d >/etc/default/kubelet\n\
         echo net.ipv4.ip_forward=1 >/etc/sysctl.d/kubernetes.conf\n\
         sysctl --quiet --load=/etc/sysctl.d/kubernetes.conf");
    let version = node.sh("kubelet --version");
    assert!(version.starts_with("Kubernetes v1.36."), "{version}");
}

/// The controller manager approves nothing while it is stopped.
fn static_pods_run_before_the_request_is_approved(node: &Node, cluster: &Cluster, command: &str) {
    node.write(WEB, &Pod::running("web").text());
    let frozen = cluster.plane.controller_manager.as_ref().unwrap().freeze();
    // kubeadm looks for the configuration of the kernel, which the image lacks.
    let ignored = "--ignore-preflight-errors=SystemVerification";
    let command = format!("{command} --node-name node1 {ignored}");
    node.sh(&format!("({command}; echo \"ended with $?\") >{JOIN_LOG} 2>&1 &"));
    let look = || (cluster.requests().len(), join_log(node));
    let (requests, log) = node.wait_until("the agent requests a certificate", look, |(n, log)| {
        *n > 0 || log.contains("ended with")
    });
    assert_eq!(requests, 1, "{log}");
    node.note("the agent requests a certificate");
    node.wait("the static pod runs", |status| status.runs("web"));
    let request = cluster.requests().remove(0);
    assert!(request["status"]["conditions"].is_null(), "{request:#}");
    let user = request["spec"]["username"].as_str().unwrap();
    assert!(user.starts_with("system:bootstrap:"), "{request:#}");
    node.sh("test ! -e /etc/kubernetes/kubelet.conf && test ! -e /var/lib/kubelet/pki/kubelet-client-current.pem");
    assert_eq!((cluster.find(NODE), cluster.find(MIRROR)), (Value::Null, Value::Null));
    drop(frozen);
    let approved = |requests: &Vec<Value>| requests[0]["status"]["certificate"].is_string();
    let requests = node.wait_until("the certificate is signed", || cluster.requests(), approved);
    let conditions = &requests[0]["status"]["conditions"];
    // What the approver of the controller manager writes.
    assert_eq!(conditions[0]["type"], "Approved", "{conditions:#}");
    assert_eq!(conditions[0]["reason"], "AutoApproved", "{conditions:#}");
}

/// What kubeadm has printed until now, and how it ended.
fn join_log(node: &Node) -> String {
    node.run(&format!("cat {JOIN_LOG}")).output
}

fn kubeadm_ends_and_the_node_is_ready(node: &Node, cluster: &Cluster) -> Joined {
    let ended = |log: &String| log.contains("ended with");
    let log = node.wait_until("kubeadm ends", || join_log(node), ended);
    assert!(log.contains("This node has joined the cluster"), "{log}");
    assert!(log.ends_with("ended with 0\n"), "{log}");
    let joined = cluster.wait_ready(node, |_, _| true);
    assert_eq!(joined.identity.requests.len(), 1, "{:?}", joined.identity);
    assert_eq!(cluster.find(NODE)["status"]["capacity"]["pods"], "42", "/etc/default/kubelet");
    joined
}

fn files_are_those_of_kubeadm(node: &Node) {
    let modes = node.sh(
        "stat -L -c '%a %n' /etc/kubernetes/kubelet.conf /var/lib/kubelet/pki/kubelet-client-current.pem",
    );
    let expected = "600 /etc/kubernetes/kubelet.conf\n\
                    600 /var/lib/kubelet/pki/kubelet-client-current.pem\n";
    assert_eq!(modes, expected);
    let left = node.run("ls /etc/kubernetes/bootstrap-kubelet.conf /var/lib/nodelet/pki");
    assert_eq!(left.output.matches("No such file").count(), 2, "{}", left.output);
    let socket = node.sh("cat /var/lib/kubelet/instance-config.yaml");
    assert!(socket.contains("containerRuntimeEndpoint: \"unix:///"), "{socket}");
    // The host has another name.
    let flags = node.sh("cat /var/lib/kubelet/kubeadm-flags.env");
    assert_eq!(flags, "KUBELET_KUBEADM_ARGS=\"--hostname-override=node1\"\n");
}

/// The node log query: what services have written to the journal.
fn the_journal_is_read_over_the_api(node: &Node, cluster: &Cluster) {
    let [_, certificate, key] = Kubeconfig::files(&cluster.plane.admin_kubeconfig());
    for (file, place) in [(certificate, "/run/admin.crt"), (key, "/run/admin.key")] {
        node.write(place, &fs::read_to_string(file).unwrap());
    }
    let raw = |path: &str| {
        format!(
            "kubectl --server=https://127.0.0.1:10250 --insecure-skip-tls-verify \
             --client-certificate=/run/admin.crt --client-key=/run/admin.key get --raw '{path}' 2>&1"
        )
    };
    let get = |path: &str| node.sh(&raw(path));
    let of_agent = get("/logs/?query=kubelet&tailLines=3");
    let lines: Vec<&str> = of_agent.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.contains(" nodelet[")), "{of_agent}");
    let started = get("/logs/?query=kubelet&query=containerd&boot=0&pattern=(?i)started");
    assert!(started.contains("Started kubelet.service"), "{started}");
    let ever =
        get("/logs/?query=kubelet&sinceTime=2020-01-01T00:00:00Z&untilTime=2037-01-01T00:00:00Z");
    assert!(ever.contains("Started kubelet.service"), "{ever}");
    let later = get("/logs/?query=kubelet&sinceTime=2037-01-01T00:00:00Z");
    assert!(!later.contains("nodelet["), "{later}");
    let wrong = node.run(&raw("/logs/?query=kubelet&pattern=["));
    assert!(wrong.output.contains("failed (exit status: 1)"), "{}", wrong.output);
}

fn an_agent_that_restarts_is_the_same_node(
    node: &Node,
    cluster: &Cluster,
    before: &Joined,
) -> Joined {
    let renewed = || cluster.find(LEASE)["spec"]["renewTime"].clone();
    node.sh("systemctl stop kubelet");
    let before_start = renewed();
    node.sh("systemctl start kubelet");
    node.wait_until("the lease is renewed", renewed, |now| *now != before_start);
    node.wait("the pod still runs", |status| status.runs("web"));
    let after = cluster.wait_ready(node, |_, _| true);
    assert_eq!(after.identity, before.identity);
    assert_eq!(after.container, before.container, "no container is restarted");
    after
}

fn a_machine_that_reboots_is_the_same_node(node: &Node, cluster: &Cluster, before: &Joined) {
    node.reboot();
    let after = cluster.wait_ready(node, |node, mirror| {
        node["status"]["nodeInfo"]["bootID"] != before.boot_id
            && container_id(mirror) != before.container
    });
    assert_eq!(after.identity, before.identity);
}

fn kubeadm_reset_removes_everything(node: &Node) {
    let log = node.sh("kubeadm reset --force 2>&1");
    assert_eq!((node.cri.containers().len(), node.cri.sandboxes().len()), (0, 0), "{log}");
    let left = node.sh(
        "find /var/lib/kubelet /etc/kubernetes/manifests /etc/kubernetes/pki -mindepth 1; \
         ls /etc/kubernetes/*.conf 2>/dev/null; grep ' /var/lib/kubelet/' /proc/self/mountinfo; true",
    );
    assert_eq!(left, "", "{log}");
    assert_eq!(node.property("kubelet", "ActiveState"), "inactive", "{log}");
}
