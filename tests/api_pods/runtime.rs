//! What the container runtime is told by objects of the cluster: handlers of RuntimeClasses, and
//! the addresses of pods.

use super::{
    node::{Node, PODS, WAITS, plain},
    support::agent::NODE_NAME,
};
use serde_json::{Value, json};

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

fn create_class(node: &Node, name: &str, handler: &str) {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": name }, "handler": handler,
    });
    node.admin().create(CLASSES, &class).unwrap().ok();
}

/// A pod of the class with its name.
fn of_class(name: &str) -> Value {
    let mut pod = plain(name, WAITS);
    pod["spec"]["runtimeClassName"] = json!(name);
    pod
}

#[test]
fn a_runtime_class_selects_the_handler() {
    let Some(node) = Node::start() else { return };
    for (name, handler) in [("good", "runc"), ("bad", "none"), ("late", "runc")] {
        create_class(&node, name, handler);
    }
    node.create(&of_class("good"));
    node.create(&of_class("bad"));
    // The API server takes no pod of a class that is not there. This one is scheduled later.
    let mut late = of_class("late");
    late["spec"]["schedulingGates"] = json!([{ "name": "example.com/class-is-gone" }]);
    node.create(&late);
    node.plane.kubectl_text(&["delete", "runtimeclass", "late"]);
    let no_gates = json!({ "spec": { "schedulingGates": null } });
    node.admin().patch(&format!("{PODS}/late"), &no_gates).unwrap().ok();
    node.wait_pod_ready("good");
    let told = || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    for why in [r#"no runtime for "none" is configured"#, r#"RuntimeClass "late" not found"#] {
        node.wait(&format!("an event says: {why}"), told, |events| events.contains(why));
    }
    for pod in ["bad", "late"] {
        assert_eq!(node.pod(pod).unwrap()["status"]["phase"], "Pending", "{pod}");
    }
    create_class(&node, "late", "runc");
    node.wait_pod_ready("late");
    node.finish();
}

#[test]
fn the_runtime_is_told_the_addresses_of_pods() {
    let Some(node) = Node::start() else { return };
    let calls = || {
        let all = node.world.proxy.calls();
        all.iter().filter(|call| call.method == "UpdateRuntimeConfig").count()
    };
    assert_eq!(calls(), 0, "the node has no addresses yet");
    let spec = json!({ "spec": { "podCIDR": "10.77.1.0/24", "podCIDRs": ["10.77.1.0/24"] } });
    node.admin().patch(&format!("/api/v1/nodes/{NODE_NAME}"), &spec).unwrap().ok();
    let before = node.wait("the runtime is told", calls, |calls| *calls > 0);
    node.world.kill_runtime();
    node.world.runtime.start_again();
    node.wait("it is told again after its restart", calls, |calls| *calls > before);
    node.finish();
}
