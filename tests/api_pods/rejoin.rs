//! A node that is cordoned, deleted, and joins again under the same name.

use super::{
    node::{Node, WAITS, condition, is_ready, plain},
    support::agent::NODE_NAME,
};
use serde_json::{Value, json};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1";

fn this(node: &Node) -> Value {
    node.admin().find(&format!("/api/v1/nodes/{NODE_NAME}")).unwrap_or_default()
}

fn uid_and_container(pod: &Value) -> (Value, Value) {
    (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["containerID"].clone())
}

/// The scheduler has found no node for the pod.
fn is_unscheduled(pod: &Value) -> bool {
    condition(pod, "PodScheduled").is_some_and(|condition| condition["status"] == "False")
}

#[test]
fn pods_outlive_a_cordon_and_a_deletion_of_their_node() {
    let Some(node) = Node::start() else { return };
    node.create(&plain("web", WAITS));
    let web = uid_and_container(&node.wait_pod_ready("web"));

    node.plane.kubectl_text(&["cordon", NODE_NAME]);
    node.create(&plain("later", WAITS));
    node.wait_pod("later", "has no node", is_unscheduled);
    // A restarted agent keeps its node cordoned.
    node.world.agent.kill();
    let renewed = || node.admin().get(LEASE)["spec"]["renewTime"].clone();
    let before = renewed();
    node.world.agent.start();
    node.wait("the lease is renewed", renewed, |now| *now != before);
    node.wait_ready();
    assert_eq!(this(&node)["spec"]["unschedulable"], true);
    assert!(is_unscheduled(&node.pod("later").unwrap()));
    assert_eq!(uid_and_container(&node.wait_pod_ready("web")), web);
    node.plane.kubectl_text(&["uncordon", NODE_NAME]);
    let later = uid_and_container(&node.wait_pod_ready("later"));

    let first = this(&node)["metadata"]["uid"].clone();
    node.plane.kubectl_text(&["delete", "node", NODE_NAME]);
    let again = |this: &Value| this["metadata"]["uid"].is_string() && is_ready(this);
    let second = node.wait("the node has joined again", || this(&node), again);
    assert_ne!(second["metadata"]["uid"], first);
    // What runs and what is written from then on.
    node.create(&plain("new", WAITS));
    node.wait_pod_ready("new");
    for (pod, before) in [("web", &web), ("later", &later)] {
        assert_eq!(uid_and_container(&node.wait_pod_ready(pod)), *before);
    }
    node.world.kill_container(&node.running("web")[0]);
    node.wait_pod("web", "is restarted", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == json!(1)
    });
    let owner = || node.admin().get(LEASE)["metadata"]["ownerReferences"][0]["uid"].clone();
    node.wait("the lease belongs to it", owner, |uid| *uid == second["metadata"]["uid"]);
    node.finish();
}
