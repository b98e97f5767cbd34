//! The container runtime stops, hangs and is upgraded below pods of the API server.

use super::{
    controlplane::Options,
    node::{Node, WAITS, condition, plain},
    support::{
        agent::NODE_NAME, containerd::Suite, poll_until, process::Stopped, skips::skip_without,
        world::Kind,
    },
};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Age of the last good answer of the runtime from which on it counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// Age of the last listing of pods from which on the agent counts as unhealthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);
/// The agent asks every 5 s.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(5);

/// What must be the same after the runtime is back.
#[derive(Debug, PartialEq)]
struct Before {
    running: Vec<String>,
    container: Value,
    uid: Value,
}

fn before(node: &Node, pod: &str) -> Before {
    let object = node.pod(pod).unwrap();
    let status = &object["status"]["containerStatuses"][0];
    Before {
        running: node.running(pod),
        container: serde_json::json!([status["containerID"], status["restartCount"]]),
        uid: object["metadata"]["uid"].clone(),
    }
}

/// The condition of the node.
fn ready(node: &Node) -> Value {
    let this = node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"));
    condition(&this, "Ready").unwrap().clone()
}

/// Waits until the node is not Ready: not too early, and with the kubelet's words. `stopped` is when
/// the runtime has stopped.
#[track_caller]
fn becomes_not_ready(node: &Node, stopped: Instant) {
    let ready =
        node.wait("the node is not Ready", || ready(node), |ready| ready["status"] == "False");
    let after = stopped.elapsed();
    // The last good answer may be older than one question: on a busy machine it comes late.
    assert!(after > DOWN_AFTER - BETWEEN_QUESTIONS * 3, "{after:?}");
    assert_eq!(ready["reason"], "KubeletNotReady");
    assert_eq!(ready["message"], "container runtime is down");
}

/// While the runtime is away, a pod is made and another one is deleted.
fn change_pods(node: &Node) {
    node.create(&on_this_node("new"));
    node.delete("goes");
    let deleted = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
    node.wait_pod("goes", "is deleted", deleted);
}

/// A pod that needs no scheduler, which binds none to a node that is not Ready.
fn on_this_node(name: &str) -> Value {
    let mut pod = plain(name, WAITS);
    pod["spec"]["nodeName"] = NODE_NAME.into();
    pod
}

/// The runtime is back: pods are as before, and what was asked for meanwhile is done.
fn all_is_well(node: &Node, stays: &Before) {
    node.wait_ready();
    node.wait_pod_ready("new");
    node.wait_pod_gone("goes");
    node.wait_pod_ready("stays");
    assert_eq!(before(node, "stays"), *stays);
}

fn with_two_pods(node: &Node) -> Before {
    for name in ["stays", "goes"] {
        node.create(&plain(name, WAITS));
    }
    node.wait_pod_ready("goes");
    node.wait_pod_ready("stays");
    before(node, "stays")
}

/// The runtime hangs while pods change, and the node is not Ready. It goes on when the guard is
/// dropped. Also returns since when it hangs.
fn with_a_runtime_that_hangs(node: &Node) -> (Before, Stopped, Instant) {
    let stays = with_two_pods(node);
    let stopped = Instant::now();
    let frozen = node.world.runtime.containerd().freeze();
    change_pods(node);
    becomes_not_ready(node, stopped);
    (stays, frozen, stopped)
}

#[test]
fn a_runtime_that_hangs_and_goes_on() {
    let Some(node) = Node::start() else { return };
    let (stays, frozen, _) = with_a_runtime_that_hangs(&node);
    assert!(node.pod("goes").is_some(), "its container has not ended");
    drop(frozen);
    all_is_well(&node, &stays);
    node.finish();
}

#[test]
#[ignore = "takes four minutes: make soak"]
fn a_runtime_that_hangs_for_minutes() {
    let Some(node) = Node::start() else { return };
    let (stays, frozen, stopped) = with_a_runtime_that_hangs(&node);
    let message = || ready(&node)["message"].as_str().unwrap().to_owned();
    let unhealthy = |message: &String| message.contains("PLEG");
    let message = poll_until(UNHEALTHY_AFTER * 2, message, unhealthy).unwrap();
    // The last listing was just before the runtime was stopped.
    assert!(stopped.elapsed() > UNHEALTHY_AFTER - BETWEEN_QUESTIONS * 3);
    let before = "[container runtime is down, PLEG is not healthy: pleg was last seen active 3m";
    assert!(message.starts_with(before), "{message}");
    assert!(message.ends_with("s ago; threshold is 3m0s]"), "{message}");
    drop(frozen);
    all_is_well(&node, &stays);
    node.finish();
}

#[test]
fn a_runtime_that_stops_and_comes_back_upgraded() {
    let suites = [Suite::Bookworm, Suite::Trixie];
    let there = suites.iter().all(|suite| suite.directory().is_some());
    if skip_without(&[(there, "containerds (scripts/containerd-versions fetch)")]) {
        return;
    }
    let options = Options::default().controller_manager(&[]);
    let Some(node) = Node::prepare_with(Kind::Debian(suites[0]), "", &options) else { return };
    node.world.agent.start();
    node.wait_ready();
    let stays = with_two_pods(&node);
    let version = || {
        let this = node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"));
        this["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap().to_owned()
    };
    assert!(version().contains(&suites[0].version()), "{}", version());
    let stopped = Instant::now();
    node.world.kill_runtime();
    change_pods(&node);
    becomes_not_ready(&node, stopped);
    node.world.runtime.containerd().upgrade(suites[1]);
    all_is_well(&node, &stays);
    let expected = suites[1].version();
    node.wait("the node shows the version", version, |version| version.contains(&expected));
    node.finish();
}
