//! What the container runtime is told by objects of the cluster: handlers of RuntimeClasses.

use super::node::{Node, WAITS, plain};
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
