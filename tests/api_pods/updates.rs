//! Changes of pods that run: conditions that others write, and resources.

use super::node::{Node, PODS, WAITS, condition, is_ready, plain};
use serde_json::{Value, json};

/// The status of a condition.
fn status_of(pod: &Value, of: &str) -> Value {
    condition(pod, of).map(|condition| condition["status"].clone()).unwrap_or_default()
}

#[test]
fn a_pod_with_a_readiness_gate_is_ready_by_its_condition() {
    let Some(node) = Node::start() else { return };
    let mut pod = plain("web", WAITS);
    pod["spec"]["readinessGates"] = json!([{ "conditionType": "example.com/open" }]);
    node.create(&pod);
    let waiting = node.wait_pod("web", "waits for its gate", |pod| {
        status_of(pod, "ContainersReady") == "True" && status_of(pod, "Ready") == "False"
    });
    assert_eq!(condition(&waiting, "Ready").unwrap()["reason"], "ReadinessGatesNotReady");
    let set = |status: &str| {
        let gate = json!({ "type": "example.com/open", "status": status });
        let patch = json!({ "status": { "conditions": [gate] } });
        node.admin().patch(&format!("{PODS}/web/status"), &patch).unwrap().ok();
    };
    set("True");
    node.wait_pod_ready("web");
    set("False");
    let closed = node.wait_pod("web", "is not Ready", |pod| !is_ready(pod));
    assert_eq!(status_of(&closed, "example.com/open"), "False", "the condition stays");
    node.finish();
}

#[test]
fn a_resize_changes_a_running_container() {
    let Some(node) = Node::start() else { return };
    let mut pod = plain("web", WAITS);
    let resources = |cpu: &str| json!({ "requests": { "cpu": cpu, "memory": "32Mi" }, "limits": { "cpu": cpu, "memory": "64Mi" } });
    pod["spec"]["containers"][0]["resources"] = resources("100m");
    node.create(&pod);
    node.wait_pod_ready("web");
    let limit = || {
        let files = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu*/cpu.cfs_quota_us 2>/dev/null";
        let text = node.exec("web", &["sh", "-c", &format!("{files} | head -n 1")]);
        text.split_whitespace().next().map(ToOwned::to_owned)
    };
    assert_eq!(limit().as_deref(), Some("10000"));
    let patch =
        json!({ "spec": { "containers": [{ "name": "main", "resources": resources("200m") }] } });
    node.admin().patch(&format!("{PODS}/web/resize"), &patch).unwrap().ok();
    node.wait("the cgroup has the new limit", limit, |limit| limit.as_deref() == Some("20000"));
    let resized = node.wait_pod("web", "reports its new size", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["resources"]["limits"]["cpu"] == "200m"
            && condition(pod, "PodResizeInProgress").is_none()
            && condition(pod, "PodResizePending").is_none()
    });
    let status = &resized["status"]["containerStatuses"][0];
    assert_eq!(status["allocatedResources"]["cpu"], "200m", "{status}");
    assert_eq!(status["restartCount"], 0);
    assert!(is_ready(&resized));
    node.finish();
}
