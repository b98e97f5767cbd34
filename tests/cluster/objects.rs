//! What a node makes at the API server, in its shortest form.

use serde_json::{Value, json};
use std::net::SocketAddr;

/// Where nodes are.
pub const NODES: &str = "/api/v1/nodes";
/// Where their leases are.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Where pods are.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// A node that is Ready.
pub fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is",
        }] },
    })
}

/// A node's lease, renewed long ago.
pub fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": name, "namespace": "kube-node-lease" },
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    })
}

/// A pod on a node, which the API server may send there by itself.
pub fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
    })
}

/// A node's mirror of a static pod. `node` is the Node as the API server has it.
pub fn mirror(name: &str, node: &Value) -> Value {
    let node_name = node["metadata"]["name"].as_str().unwrap();
    let mut pod = pod(name, node_name);
    pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "some-hash" });
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node["metadata"]["uid"],
        "controller": true,
    }]);
    pod
}

/// The status and reason of a node's condition.
pub fn condition(node: &Value, kind: &str) -> Option<(String, String)> {
    let conditions = node["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

/// The collection of webhooks that may refuse objects.
pub const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A webhook at this address, which takes connections and never speaks. It is asked about every
/// write of a pod that has this label, and may fail.
pub fn silent_webhook(address: SocketAddr, label: &str, value: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "silent" },
        "webhooks": [{
            "name": "silent.nodelet.dev",
            "clientConfig": { "url": format!("https://{address}/") },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["pods", "pods/status"],
            }],
            "objectSelector": { "matchLabels": { label: value } },
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    })
}

/// A webhook that nobody answers, asked about every pod that has this label.
pub fn dead_webhook(label: &str, value: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "dead" },
        "webhooks": [{
            "name": "dead.nodelet.dev",
            // Port 9 is nobody's: refused at once.
            "clientConfig": { "url": "https://127.0.0.1:9/" },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }],
            "objectSelector": { "matchLabels": { label: value } },
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }],
    })
}
