//! Objects of the API that several tests make, and what they look at in them.

use crate::support::images::BUSYBOX;
use serde_json::{Value, json};

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, of: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == of)
}

pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition["status"] == "True")
}

/// As [`shell`], without a token.
pub fn plain(name: &str, script: &str) -> Value {
    let mut pod = shell(name, script);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod
}

/// A pod with one container that runs a shell command.
pub fn shell(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "main",
                "image": BUSYBOX,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", script],
            }],
        },
    })
}

/// Ends at once when it is told to.
pub const WAITS: &str = "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done";
