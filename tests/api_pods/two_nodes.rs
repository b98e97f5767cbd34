//! A cluster of two nodes whose pod network, kube-proxy and CoreDNS are pods of nodelet.

use super::{
    cluster::Cluster,
    controlplane::Rows,
    node::{PODS, WAITS, condition, is_ready, plain},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Serves the name of its pod on port 8080.
pub const SERVES: &str = "mkdir -p /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www";
/// Prints what `http://web` answers. wget has a deadline of its own, but crashes with it.
pub const GET_WEB: [&str; 6] = ["timeout", "5", "wget", "-q", "-O-", "http://web"];

/// A Deployment of two pods, both on this node.
fn deployment(name: &str, node: &str, script: &str) -> Value {
    let mut template = plain(name, script);
    template["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": template["metadata"], "spec": template["spec"] },
        },
    })
}

/// The Service `web`, for the pods with label `app: web`.
pub fn web_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    })
}

/// A pod that the test binds to a node itself.
fn pod_on(node: &str, name: &str, script: &str) -> Value {
    let mut pod = plain(name, script);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

#[test]
fn a_service_is_reached_by_name_from_the_other_node() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.apply(&deployment("web", "node1", SERVES).to_string());
    cluster.apply(&deployment("client", "node2", WAITS).to_string());
    cluster.apply(&web_service().to_string());
    for workload in ["deployment/web", "deployment/client"] {
        cluster.wait_rolled_out("default", workload);
    }
    let get = || cluster.exec("deployment/client", &GET_WEB);
    let mut answers = BTreeSet::new();
    let both = |text: &str| {
        answers.insert(text.to_owned());
        answers.len() == 2
    };
    cluster.wait_answer("both pods answer node2 by the name of the Service", get, both);

    // The pods and the Service go on without the agent, and it finds them again.
    let agent = &cluster.nodes[0].agent;
    agent.kill();
    cluster.wait_answer("the pods answer without the agent", get, |text| answers.contains(text));
    agent.start();
    cluster.wait("the agent answers", || agent.status().is_ok(), |up| *up);
    cluster.wait_answer("the pods answer", get, |text| answers.contains(text));
    let pods = cluster.plane.admin.get("/api/v1/pods");
    for pod in pods["items"].as_array().unwrap() {
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod:#}");
    }
    cluster.finish();
}

#[test]
fn a_daemon_set_brings_the_pod_network() {
    let Some(cluster) = Cluster::prepare() else { return };
    cluster.nodes.iter().for_each(|node| node.agent.start());
    let not_ready = |node: &Option<Value>| {
        let ready = node.as_ref().and_then(|node| condition(node, "Ready"));
        ready.is_some_and(|ready| {
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "False" && message.contains("NetworkPluginNotReady")
        })
    };
    for node in &cluster.nodes {
        let node = || cluster.node(node.name);
        cluster.wait("the node has no network", node, not_ready);
    }
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    cluster.wait("the account is there", || cluster.plane.admin.find(account), Option::is_some);
    let mut host = pod_on("node1", "host", WAITS);
    host["spec"]["hostNetwork"] = json!(true);
    for pod in [&pod_on("node1", "waits", WAITS), &host] {
        cluster.plane.admin.create(PODS, pod).unwrap().ok();
    }
    let host = cluster.wait_pod_ready("host");
    assert_eq!(host["status"]["podIP"], cluster.nodes[0].address());
    assert!(not_ready(&cluster.node("node1")), "{:#?}", cluster.node("node1"));
    let waits = cluster.pod("waits").unwrap();
    assert!(!is_ready(&waits) && waits["status"]["podIP"].is_null(), "{waits:#}");

    cluster.install_network();
    cluster.wait_nodes_ready();
    let waits = cluster.wait_pod_ready("waits");
    let address = waits["status"]["podIP"].as_str().unwrap();
    assert!(address.starts_with(&cluster.nodes[0].containerd.pod_network()), "{address}");
    cluster.finish();
}

#[test]
fn a_host_port_is_reached_on_the_address_of_the_node() {
    let Some(cluster) = Cluster::with_network() else { return };
    let mut web = pod_on("node1", "web", SERVES);
    web["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 8080, "hostPort": 8000 }]);
    cluster.plane.admin.create(PODS, &web).unwrap().ok();
    cluster.plane.admin.create(PODS, &pod_on("node2", "client", WAITS)).unwrap().ok();
    cluster.wait_pod_ready("web");
    cluster.wait_pod_ready("client");
    let url = format!("http://{}:8000", cluster.nodes[0].address());
    let get = ["timeout", "5", "busybox", "wget", "-q", "-O-", &url];
    let from_web = |text: &str| text == "web\n";
    cluster.wait_answer("node2 gets an answer", || cluster.nodes[1].run(&get), from_web);
    cluster.wait_answer("a pod there does", || cluster.exec("client", &get), from_web);
    cluster.finish();
}

#[test]
fn kubectl_top_shows_both_nodes_and_their_pods() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.install_metrics();
    for node in &cluster.nodes {
        cluster.plane.admin.create(PODS, &pod_on(node.name, node.name, WAITS)).unwrap().ok();
    }
    let names = |rows: Rows| rows.into_iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    let top = |what: &str| cluster.plane.top(&[what]).map(names);
    for what in ["nodes", "pods"] {
        let both = |shown: &Result<Vec<String>, String>| {
            shown.as_ref().is_ok_and(|names| *names == ["node1", "node2"])
        };
        cluster.wait(&format!("both {what} have figures"), || top(what), both).unwrap();
    }
    cluster.finish();
}
