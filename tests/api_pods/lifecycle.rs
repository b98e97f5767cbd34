//! Pods from their binding to the end of their objects.

use super::node::{Node, WAITS, shell};
use serde_json::{Value, json};

#[test]
fn a_bound_pod_runs_and_its_deletion_ends_it() {
    let Some(node) = Node::start() else { return };
    let mut web = shell("web", WAITS);
    web["spec"]["automountServiceAccountToken"] = json!(false);
    node.create(&web);
    let ready = node.wait_pod_ready("web");
    assert_eq!(ready["status"]["phase"], "Running");
    assert_eq!(ready["status"]["observedGeneration"], ready["metadata"]["generation"]);
    assert!(ready["status"]["podIP"].is_string(), "{}", ready["status"]);
    assert_eq!(node.exec("web", &["echo", "hello"]), "hello\n");
    node.delete("web");
    node.wait_pod_gone("web");
    node.finish();
}

#[test]
fn pods_end_with_the_phase_of_their_exit_codes() {
    let Some(node) = Node::start() else { return };
    for (name, script, phase) in
        [("good", "exit 0", "Succeeded"), ("bad", "sleep 1; exit 3", "Failed")]
    {
        let mut pod = shell(name, script);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        node.create(&pod);
        let ended = |pod: &Value| pod["status"]["phase"] == phase;
        let pod = node.wait_pod(name, "has ended", ended);
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(state["exitCode"], if phase == "Failed" { 3 } else { 0 }, "{pod:#}");
    }
    // Logs stay as long as the object.
    node.plane.kubectl_text(&["logs", "bad"]);
    node.finish();
}
