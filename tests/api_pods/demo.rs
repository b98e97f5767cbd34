//! `make cluster-demo`: a cluster of two nodes at work, for people. `scripts/cluster-demo` builds
//! what it needs and runs it. It prints to standard error, because the test harness writes to
//! standard output.

use super::{
    cluster::Cluster,
    controlplane::Rows,
    node::{WAITS, plain},
    support::{say_loudly as say, slot},
    two_nodes::{GET_WEB, SERVES, web_service},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::time::Instant;

fn title(text: &str) {
    say(&format!("\n== {text}"));
}

/// Shows a command of kubectl and what it prints.
fn show(cluster: &Cluster, words: &[&str]) {
    say(&format!("$ kubectl {}", words.join(" ")));
    say(cluster.plane.kubectl_text(words).trim_end());
}

/// Asks the Service by its name until both of its pods have answered.
fn show_answers(cluster: &Cluster) {
    say(&format!("$ kubectl exec client -- {}", GET_WEB[2..].join(" ")));
    let get = || cluster.exec("client", &GET_WEB);
    let mut answers = BTreeSet::new();
    let both = |text: &str| {
        say(text.trim_end());
        answers.insert(text.to_owned());
        answers.len() == 2
    };
    cluster.wait_answer("both pods answer", get, both);
}

/// Two pods that never share a node.
fn web() -> Value {
    let mut template = plain("web", SERVES);
    template["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": template["metadata"], "spec": template["spec"] },
        },
    })
}

#[test]
#[ignore = "it is a demo: make cluster-demo"]
fn a_cluster_at_work() {
    let begun = Instant::now();
    title("A control plane, and two nodes without a pod network");
    let Some(cluster) = Cluster::prepare() else { return };
    cluster.nodes.iter().for_each(|node| node.agent.start());
    let registered = || cluster.nodes.iter().all(|node| cluster.node(node.name).is_some());
    cluster.wait("both nodes are registered", registered, |registered| *registered);
    show(&cluster, &["get", "nodes"]);

    title("A DaemonSet on the host network brings the pod network, and the nodes become Ready");
    cluster.install_network();
    cluster.wait_nodes_ready();
    show(&cluster, &["get", "nodes", "-o", "wide"]);

    title("kube-proxy and CoreDNS, as kubeadm installs them, and metrics-server");
    cluster.install_services();
    cluster.install_metrics();
    show(&cluster, &["get", "pods", "-n", "kube-system", "-o", "wide"]);

    title("A Deployment with two replicas, a Service, and a client on node2");
    cluster.apply(&web().to_string());
    cluster.apply(&web_service().to_string());
    let mut client = plain("client", WAITS);
    client["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "node2" });
    cluster.apply(&client.to_string());
    cluster.wait_rolled_out("default", "deployment/web");
    cluster.wait_pod_ready("client");
    show(&cluster, &["get", "nodes,pods,services", "-o", "wide"]);

    title("The Service answers by its name, from the pods of both nodes");
    show_answers(&cluster);

    title("nodelet on node1 is killed with -9: its pods run on, and the Service answers");
    let agent = &cluster.nodes[0].agent;
    say(&format!("$ kill -9 {}", agent.pid()));
    agent.kill();
    show_answers(&cluster);

    title("nodelet on node1 is started again: it finds its pods, and restarts none");
    agent.start();
    cluster.wait("the agent answers", || agent.status().is_ok(), |up| *up);
    cluster.wait_nodes_ready();
    show(&cluster, &["get", "nodes,pods", "-o", "wide"]);

    title("kubectl top, once metrics-server has read both nodes twice");
    let read = |rows: &Result<Rows, String>| rows.as_ref().is_ok_and(|rows| rows.len() == 2);
    cluster.wait("both nodes have figures", || cluster.plane.top(&["nodes"]), read).unwrap();
    show(&cluster, &["top", "nodes"]);

    title("Cleaning up");
    cluster.finish();
    say(&format!("Everything is gone. That took {} s.", begun.elapsed().as_secs()));
}

#[test]
#[ignore = "it ends what an interrupted demo has left: make cluster-demo"]
fn clean_up() {
    slot::clean_abandoned();
}
