//! Changes of pods that run: conditions that others write, and resources.

use super::{
    node::{Node, PODS, WAITS, condition, is_ready, plain},
    support::process::{Process, cgroup_value},
};
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

/// The API server refuses both for nodes that do not declare the features.
#[test]
fn resizes_of_an_init_container_and_of_a_whole_pod() {
    let Some(node) = Node::start() else { return };
    let resources = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu } });
    let mut pod = plain("web", WAITS);
    let mut init = pod["spec"]["containers"][0].clone();
    init["name"] = json!("setup");
    init["command"] = json!(["sh", "-c", "until [ -e /data/go ]; do sleep 0.1; done"]);
    init["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    init["resources"] = resources("100m");
    pod["spec"]["initContainers"] = json!([init]);
    pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    node.create(&pod);
    node.wait_pod("web", "runs its init container", |pod| {
        pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object()
    });
    let setup = json!([{ "name": "setup", "resources": resources("200m") }]);
    let patch = json!({ "spec": { "initContainers": setup } });
    node.admin().patch(&format!("{PODS}/web/resize"), &patch).unwrap().ok();
    node.wait_pod("web", "reports the new size of its init container", |pod| {
        let status = &pod["status"]["initContainerStatuses"][0];
        status["resources"]["limits"]["cpu"] == "200m"
            && condition(pod, "PodResizeInProgress").is_none()
    });
    let limit = node.exec_in("web", "setup", &["sh", "-c", CPU_LIMIT]);
    assert_eq!(limit.split_whitespace().next(), Some("20000"), "{limit}");
    node.exec_in("web", "setup", &["touch", "/data/go"]);
    let ready = node.wait_pod_ready("web");
    let status = &ready["status"]["initContainerStatuses"][0];
    assert_eq!(status["restartCount"], 0, "{status}");

    let mut whole = plain("whole", WAITS);
    whole["spec"]["resources"] = resources("100m");
    node.create(&whole);
    let before = node.wait_pod_ready("whole");
    let patch = json!({ "spec": { "resources": resources("200m") } });
    node.admin().patch(&format!("{PODS}/whole/resize"), &patch).unwrap().ok();
    let resized = node.wait_pod("whole", "reports its new size", |pod| {
        pod["status"]["resources"]["limits"]["cpu"] == "200m"
            && condition(pod, "PodResizeInProgress").is_none()
    });
    assert_eq!(resized["status"]["allocatedResources"]["cpu"], "200m");
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&resized), id(&before));
    let pid = node.world.cri.container_pid(&node.running("whole")[0]);
    let cgroup = Process::by_pid(pid).cgroup("cpu");
    let limit = cgroup_value(cgroup.parent().unwrap(), "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(limit.split_whitespace().next(), Some("20000"), "{limit}");
    node.finish();
}

/// Shell: the CPU limit of the container's cgroup, in microseconds of 100 ms.
const CPU_LIMIT: &str =
    "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu*/cpu.cfs_quota_us 2>/dev/null | head -n 1";

#[test]
fn a_resize_changes_a_running_container() {
    let Some(node) = Node::start() else { return };
    let mut pod = plain("web", WAITS);
    let resources = |cpu: &str| json!({ "requests": { "cpu": cpu, "memory": "32Mi" }, "limits": { "cpu": cpu, "memory": "64Mi" } });
    pod["spec"]["containers"][0]["resources"] = resources("100m");
    node.create(&pod);
    node.wait_pod_ready("web");
    let limit = || {
        let text = node.exec("web", &["sh", "-c", CPU_LIMIT]);
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
