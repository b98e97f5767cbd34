//! What the container runtime is told by objects of the cluster: handlers of RuntimeClasses, and
//! the addresses of pods.

use super::{
    node::{Node, WAITS, plain},
    support::agent::NODE_NAME,
};
use serde_json::json;

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

#[test]
fn a_runtime_class_selects_the_handler() {
    let Some(node) = Node::start() else { return };
    for (class, handler) in [("good", "runc"), ("bad", "none")] {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": class }, "handler": handler,
        });
        node.admin().create(CLASSES, &class).unwrap().ok();
        let mut pod = plain(class["metadata"]["name"].as_str().unwrap(), WAITS);
        pod["spec"]["runtimeClassName"] = class["metadata"]["name"].clone();
        node.create(&pod);
    }
    node.wait_pod_ready("good");
    let told = || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    let refused = r#"no runtime for "none" is configured"#;
    node.wait("the runtime has no such handler", told, |events| events.contains(refused));
    assert_eq!(node.pod("bad").unwrap()["status"]["phase"], "Pending");
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
