//! A machine with pods of an API server that runs on the host loses power, shuts down in order, and
//! shuts down without a grace period for pods.

use crate::{
    cluster::Cluster,
    controlplane::{
        self,
        kubeconfig::Kubeconfig,
        objects::{WAITS, is_ready, plain},
    },
    machine::{HOST, Hardware},
    node::{Driver, Node, Options},
    support::{agent::NODE_NAME, manifest::Pod, wait_until, world::full_name},
};
use hyper::Method;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, net::SocketAddr, time::Duration};

const NODE: &str = "/api/v1/nodes/node1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";
/// Gives pods no time to end.
const NO_GRACE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
     shutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\n";

/// All kinds of reboots, in one life of a machine.
pub fn pods_of_the_api_server_outlive_reboots() {
    let options = controlplane::Options::default().controller_manager(&[]).scheduler();
    let Some(cluster) = Cluster::start(options) else { return };
    let node = boot(&cluster);
    node.drop_pods(&[Pod::running("static")]);
    cluster.create_pods();
    let mut marked = plain(MARKED, WAITS);
    marked["metadata"]["annotations"] = json!({ "nodelet.dev/run-from-checkpoint": "true" });
    cluster.plane.admin.create(PODS, &marked).unwrap().ok();
    let with_marked: Vec<&str> = ALL.into_iter().chain(["static", MARKED]).collect();
    let before = cluster.wait_run(&node, &Seen::default(), &with_marked);
    node.note("the pods run");

    node.sh("sync");
    cluster.plane.apiserver.kill();
    node.cut_power();
    node.power_on();
    let running = || match node.cri.answers() {
        true => node.ready_sandboxes().into_keys().collect(),
        false => Vec::new(),
    };
    let without_api_server = [MARKED.to_owned(), full_name("static")];
    node.wait_until("two pods run", running, |names| *names == without_api_server);
    node.note("the power was lost, and the API server is away");
    cluster.plane.apiserver.start();
    cluster.plane.wait_ready();
    let after = cluster.wait_run(&node, &before, &with_marked);
    same_objects_with_one_restart_more(&before, &after);
    cluster.wait_rebooted(&node, &after.boot_id);
    node.note("the API server is back");
    let marked = format!("{PODS}/{MARKED}");
    cluster.plane.admin.send(Method::DELETE, &marked, None).unwrap().ok();
    let gone = || cluster.plane.admin.find(&marked).is_none();
    node.wait_until("the marked pod is gone", gone, |gone| *gone);
    let after = cluster.wait_all_run(&node, &Seen::default());

    node.reboot();
    let ended = cluster.wait_ended_by_shutdown(&node, &after);
    let replaced = cluster.wait_replaced(&node, &after);
    cluster.wait_rebooted(&node, &replaced.boot_id);
    assert_eq!(cluster.status_of(&ended)["phase"], "Failed", "for good");
    node.note("the machine was shut down in order");

    node.write("/etc/nodelet/config.d/20-no-grace.conf", NO_GRACE);
    node.sh("systemctl restart nodelet");
    let locks = || node.sh("systemd-inhibit --list --no-legend --no-pager");
    node.wait_until("the agent holds no lock", locks, |locks| !locks.contains("nodelet"));
    let before = cluster.wait_all_run(&node, &Seen::default());
    node.reboot();
    let after = cluster.wait_all_run(&node, &before);
    same_objects_with_one_restart_more(&before, &after);
    cluster.wait_rebooted(&node, &after.boot_id);
    node.note("the machine was shut down without a grace period");
}

/// One pod that runs.
#[derive(Clone, Debug)]
struct Running {
    uid: String,
    container: String,
    restarts: u64,
    /// The status of the container, for the message of a failure.
    status: Value,
}

/// What runs, by the label `app`; the static pod by its name.
#[derive(Debug, Default)]
struct Seen {
    boot_id: String,
    pods: BTreeMap<String, Running>,
    sandboxes: BTreeMap<String, String>,
}

/// A pod that needs no API server to start, and its label `app`.
const MARKED: &str = "marked";
/// The labels `app` of the other pods of the API server.
const ALL: [&str; 2] = ["solo", "web"];

impl Cluster {
    /// No pod can be made before.
    pub fn wait_for_account(&self) {
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        let made = || self.plane.admin.find(account).is_some();
        wait_until("the account is there", Duration::from_secs(120), made, |made| *made);
    }

    /// A pod of a Deployment, and one that nobody replaces.
    fn create_pods(&self) {
        self.wait_for_account();
        let (solo, web) = (plain("solo", WAITS), plain("web", WAITS));
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "web" } }, "template": web },
        });
        let deployments = "/apis/apps/v1/namespaces/default/deployments";
        self.plane.admin.create(deployments, &deployment).unwrap().ok();
        self.plane.admin.create(PODS, &solo).unwrap().ok();
    }

    fn pods(&self) -> Vec<Value> {
        let list = self.plane.admin.find(PODS).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    fn status_of(&self, uid: &str) -> Value {
        let mut pods = self.pods().into_iter();
        let pod = pods.find(|pod| pod["metadata"]["uid"] == *uid);
        pod.map(|pod| pod["status"].clone()).unwrap_or_default()
    }

    /// The pods that are Ready, by `app`; the static one by its name.
    fn ready_pods(&self) -> BTreeMap<String, Running> {
        let pods = self.pods();
        let ready = pods.iter().filter(|pod| is_ready(pod));
        ready.map(|pod| (app(pod), running(pod))).collect()
    }

    /// As [`Self::wait_run`], with all pods.
    #[track_caller]
    fn wait_all_run(&self, node: &Node, before: &Seen) -> Seen {
        let apps: Vec<&str> = ALL.into_iter().chain(["static"]).collect();
        self.wait_run(node, before, &apps)
    }

    /// Waits until the node has another boot than before and is Ready, and the pods of `apps` are
    /// Ready with other containers. The API server shows a pod as it was before the boot until the
    /// agent has written its status, which may be after that of the node.
    #[track_caller]
    fn wait_run(&self, node: &Node, before: &Seen, apps: &[&str]) -> Seen {
        let look = || (self.plane.admin.find(NODE).unwrap_or_default(), self.ready_pods());
        let fits = |(this, pods): &(Value, BTreeMap<String, Running>)| {
            is_ready(this)
                && this["status"]["nodeInfo"]["bootID"] != *before.boot_id
                && apps.iter().all(|app| {
                    let old = before.pods.get(*app).map(|old| &old.container);
                    pods.get(*app).is_some_and(|new| Some(&new.container) != old)
                })
        };
        let (this, pods) = node.wait_until("the node and its pods are Ready", look, fits);
        let boot_id = this["status"]["nodeInfo"]["bootID"].as_str().unwrap().to_owned();
        Seen { boot_id, pods, sandboxes: node.ready_sandboxes() }
    }

    /// Waits for the event of a boot; there is one.
    #[track_caller]
    fn wait_rebooted(&self, node: &Node, boot_id: &str) {
        let message = format!("Node {NODE_NAME} has been rebooted, boot id: {boot_id}");
        let look = || {
            let events = self.plane.admin.get(EVENTS)["items"].clone();
            let events = events.as_array().cloned().unwrap_or_default();
            let told = events.into_iter().filter(|event| event["reason"] == "Rebooted");
            told.filter(|event| event["message"] == message).collect::<Vec<_>>()
        };
        let told = node.wait_until("the reboot is told", look, |told| !told.is_empty());
        assert_eq!(told.len(), 1, "{told:#?}");
    }

    /// The pods of the API server have ended as with the kubelet; gives the uid of `solo`.
    #[track_caller]
    fn wait_ended_by_shutdown(&self, node: &Node, before: &Seen) -> String {
        for app in ALL {
            let uid = &before.pods[app].uid;
            let ended = |status: &Value| status["phase"] == "Failed";
            let status = node.wait_until("the pod has failed", || self.status_of(uid), ended);
            assert_eq!(status["reason"], "Terminated", "{app}: {status:#}");
            let message = "Pod was terminated in response to imminent node shutdown.";
            assert_eq!(status["message"], message, "{app}");
            let conditions = status["conditions"].as_array().unwrap();
            let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").unwrap();
            assert_eq!(target["status"], "True", "{app}");
            assert_eq!(target["reason"], "TerminationByKubelet", "{app}");
        }
        before.pods["solo"].uid.clone()
    }

    /// The Deployment has another pod, and the static pod is back. `solo` is made anew.
    #[track_caller]
    fn wait_replaced(&self, node: &Node, before: &Seen) -> Seen {
        let seen = self.wait_run(node, before, &["web", "static"]);
        assert_ne!(seen.pods["web"].uid, before.pods["web"].uid);
        let (old, new) = (&before.pods["static"], &seen.pods["static"]);
        assert_eq!(new.restarts, old.restarts + 1);
        let mut again = plain("solo", WAITS);
        again["metadata"]["name"] = json!("solo-again");
        self.plane.admin.create(PODS, &again).unwrap().ok();
        seen
    }
}

#[track_caller]
fn same_objects_with_one_restart_more(before: &Seen, after: &Seen) {
    let apps = |seen: &Seen| seen.pods.keys().cloned().collect::<Vec<_>>();
    assert_eq!(apps(before), apps(after));
    for (app, old) in &before.pods {
        let new = &after.pods[app];
        assert_eq!(new.uid, old.uid, "{app}");
        assert_eq!(new.restarts, old.restarts + 1, "{app}: {:#}\n{:#}", old.status, new.status);
    }
    for (pod, old) in &before.sandboxes {
        assert_ne!(after.sandboxes.get(pod), Some(old), "{pod}");
        assert!(after.sandboxes.contains_key(pod), "{pod}: {:?}", after.sandboxes);
    }
}

fn app(pod: &Value) -> String {
    pod["metadata"]["labels"]["app"].as_str().unwrap_or("static").to_owned()
}

fn running(pod: &Value) -> Running {
    let status = &pod["status"]["containerStatuses"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Running {
        uid: text(&pod["metadata"]["uid"]),
        container: text(&status["containerID"]),
        restarts: status["restartCount"].as_u64().unwrap_or_default(),
        status: status.clone(),
    }
}

/// A machine whose agent is a node of the cluster.
pub fn boot(cluster: &Cluster) -> Node {
    let node = Node::boot(&Options {
        hardware: Hardware { reaches_host: true, ..Hardware::default() },
        driver: Driver::Systemd,
        ..Options::default()
    });
    let server = SocketAddr::from((HOST, cluster.plane.address().port()));
    let kubeconfig = cluster.plane.node_kubeconfig(NODE_NAME, server);
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let dir = kubeconfig.parent().unwrap().display().to_string();
    node.write("/etc/nodelet/kubeconfig", &text.replace(&dir, "/etc/nodelet"));
    for file in Kubeconfig::files(&kubeconfig) {
        let name = file.file_name().unwrap().to_str().unwrap();
        node.write(&format!("/etc/nodelet/{name}"), &fs::read_to_string(&file).unwrap());
    }
    let arguments =
        format!("--v=2 --kubeconfig=/etc/nodelet/kubeconfig --hostname-override={NODE_NAME}");
    node.write("/etc/default/nodelet", &format!("NODELET_ARGS={arguments}\n"));
    node.sh("chmod 0600 /etc/nodelet/kubeconfig*; sync");
    node.start_agent();
    node
}
