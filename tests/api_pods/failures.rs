//! What may fail in the life of a pod: the agent, the way to the API server, the runtime.

use super::{
    controlplane::link,
    node::{Node, PODS, WAITS, condition, is_ready, plain},
    support::{
        agent::NODE_NAME,
        proxy::{Call, Moment},
        stays,
    },
};
use nodelet::cri::v1;
use serde_json::{Value, json};
use std::time::Duration;

/// The whole life of a pod: it runs, its container crashes once, it is deleted. Whenever somebody
/// looks, it runs at most once.
fn live(node: &Node, name: &str) {
    let script = "trap 'exit 0' TERM; [ -e /data/crashed ] || { touch /data/crashed; exit 1; }; while true; do sleep 1 & wait $!; done";
    let mut pod = plain(name, script);
    pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    node.create(&pod);
    let look = || {
        let running = node.running(name);
        assert!(running.len() <= 1, "{name} runs twice: {running:?}");
        node.pod(name)
    };
    node.wait(&format!("pod {name} runs after its crash"), look, |pod| {
        pod.as_ref().is_some_and(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            is_ready(pod) && restarts.as_i64() > Some(0)
        })
    });
    node.delete(name);
    node.wait(&format!("pod {name} is gone"), look, Option::is_none);
    node.wait_pod_gone(name);
}

/// How often a call for a pod has reached the runtime.
fn reached(node: &Node, method: &str, pod: &str) -> usize {
    let calls = node.world.proxy.mutating_calls();
    calls.iter().filter(|call| call.reached && call.method == method && call.is_for(pod)).count()
}

#[test]
fn killed_around_every_mutating_call_of_a_life() {
    let Some(node) = Node::start() else { return };
    live(&node, "recorded");
    let calls = node.world.proxy.mutating_calls();
    let of_pod: Vec<&Call> = calls.iter().filter(|call| call.is_for("recorded")).collect();
    assert!(of_pod.len() >= 9, "{of_pod:#?}");
    node.world.agent.revive_when_dead(true);
    for n in 0..of_pod.len() {
        let moment = if n % 2 == 0 { Moment::Before } else { Moment::After };
        // So that the agent dies over no call for an earlier pod.
        node.wait("no pod is left", || node.world.cri.sandboxes(), Vec::is_empty);
        node.world.proxy.forget_calls();
        node.world.proxy.at_mutating_call(n, moment, node.world.agent.killer());
        let name = format!("at{n}");
        live(&node, &name);
        assert_eq!(reached(&node, "RunPodSandbox", &name), 1, "call {n}");
        assert_eq!(reached(&node, "StartContainer", &name), 2, "call {n}, with the crash");
        // The last calls may be under way when the object is gone.
        let is_late = n + 2 >= of_pod.len();
        assert!(is_late || !node.world.proxy.hook_pending(), "call {n} did not come");
        node.world.proxy.lift_all();
        node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    }
    // The agent is still revived here: the last kill may come after its pod is gone.
    node.finish();
}

/// Where the agent writes about pods and their events: what lies in namespace `default`.
const WRITTEN: &str = "/api/v1/namespaces/default/";

#[test]
fn killed_around_every_write_about_a_pod() {
    let Some(node) = Node::start() else { return };
    let http = &node.link.http;
    http.forget();
    live(&node, "recorded");
    let requests = http.requests();
    let writes: Vec<(&str, &str)> = requests
        .iter()
        .filter(|request| request.is_write() && request.path.starts_with(WRITTEN))
        .map(|request| (request.verb.as_str(), request.path.as_str()))
        .collect();
    let of_pod = format!("{PODS}/recorded");
    for write in [
        ("PATCH", format!("{of_pod}/status")),
        ("DELETE", of_pod),
        ("POST", format!("{WRITTEN}events")),
    ] {
        assert!(writes.contains(&(write.0, &write.1)), "{write:?} is missing: {writes:#?}");
    }
    node.world.agent.revive_when_dead(true);
    for n in 0..writes.len() {
        let moment = if n % 2 == 0 { link::Moment::Before } else { link::Moment::After };
        let pid = node.world.agent.pid();
        http.on("WRITE", WRITTEN).after(n).run(moment, node.world.agent.killer());
        live(&node, &format!("at{n}"));
        // The last events may come after the object is gone, or be counted up in one request.
        let is_late = n + 3 >= writes.len();
        assert!(is_late || node.world.agent.pid() != pid, "write {n} did not come: {writes:#?}");
        http.lift_all();
        node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    }
    // The agent is still revived here: the last kill may come after its pod is gone.
    node.finish();
}

#[test]
fn pods_run_on_while_the_api_server_is_away() {
    let Some(node) = Node::start() else { return };
    node.create(&plain("web", WAITS));
    node.create(&plain("goes", WAITS));
    let before = node.wait_pod_ready("web");
    node.wait_pod_ready("goes");
    node.link.tcp.refuse(true);
    node.link.tcp.cut();
    let first = node.running("web");
    node.world.kill_container(&first[0]);
    let restarted = |before: &[String], now: &[String]| now.len() == 1 && now != before;
    node.wait("it is restarted", || node.running("web"), |now| restarted(&first, now));
    // The next agent knows the pod from its record alone.
    node.world.agent.kill();
    node.world.agent.start();
    node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    let second = node.running("web");
    node.world.kill_container(&second[0]);
    node.wait("it is restarted", || node.running("web"), |now| restarted(&second, now));
    assert_eq!(node.world.cri.sandboxes().len(), 2);
    node.delete("goes");
    node.link.heal();
    let after = node.wait_pod("web", "is shown with its restarts", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 2
    });
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
    node.wait_pod_gone("goes");
    node.finish();
}

/// The machine has booted, and no API server is there: what a pod needs is in its record, but the
/// API server may have deleted it meanwhile.
#[test]
fn a_pod_may_start_from_its_record_after_a_reboot() {
    let Some(node) = Node::start() else { return };
    let mut marked = plain("marked", WAITS);
    marked["metadata"]["annotations"] = json!({ "nodelet.dev/run-from-checkpoint": "true" });
    let mut deleted = marked.clone();
    deleted["metadata"]["name"] = json!("deleted");
    for pod in [&marked, &deleted, &plain("plain", WAITS)] {
        node.create(pod);
    }
    let names = ["marked", "deleted", "plain"];
    let before = names.map(|name| node.wait_pod_ready(name));
    node.link.tcp.refuse(true);
    node.link.tcp.cut();
    node.world.agent.kill();
    for container in names.iter().flat_map(|name| node.running(name)) {
        node.world.kill_container(&container);
    }
    for sandbox in node.world.cri.sandboxes() {
        node.world.kill_sandbox(&sandbox.id);
    }
    // As after a boot, the runtime knows it when the agent starts.
    let up = || {
        let sandboxes = node.world.cri.sandboxes().into_iter();
        let ready = v1::PodSandboxState::SandboxReady;
        let of_names = names.iter().map(|name| node.running(name).len()).sum::<usize>();
        sandboxes.filter(|sandbox| sandbox.state() == ready).count() + of_names
    };
    node.wait("nothing runs", up, |up| *up == 0);
    let force = ["delete", "pod", "deleted", "--force", "--grace-period=0"];
    node.plane.kubectl_text(&force);
    node.world.agent.on_another_boot("00000000-0000-4000-8000-000000000001");
    node.world.agent.start();
    for name in ["marked", "deleted"] {
        node.wait(&format!("{name} runs"), || node.running(name).len(), |running| *running == 1);
    }
    let none = |running: &Vec<String>| running.is_empty();
    stays("the other does not run", Duration::from_secs(3), || node.running("plain"), none);
    let running = node.running("marked");

    node.link.heal();
    node.wait_pod_gone("deleted");
    for (name, before) in [("marked", &before[0]), ("plain", &before[2])] {
        let after = node.wait_pod(name, "is Ready after the reboot", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        });
        assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    }
    assert_eq!(node.running("marked"), running, "it was not started once more");
    node.finish();
}

/// The controllers give up on a node soon.
const HASTY: [&str; 2] = ["--node-monitor-grace-period=6s", "--node-monitor-period=1s"];

#[test]
fn pods_outlive_an_agent_that_is_away_for_a_short_time() {
    let Some(node) =
        Node::start_with("nodeStatusUpdateFrequency: 1s\nnodeLeaseDurationSeconds: 4", &HASTY)
    else {
        return;
    };
    node.create(&plain("web", WAITS));
    let before = node.wait_pod_ready("web");
    node.world.agent.kill();
    let gives_up = || node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"));
    let unknown = |found: &Value| {
        condition(found, "Ready").is_some_and(|condition| condition["status"] == "Unknown")
    };
    node.wait("the node is not Ready", gives_up, unknown);
    node.wait_pod("web", "is not Ready", |pod| !is_ready(pod));
    node.world.agent.start();
    node.wait_ready();
    let after = node.wait_pod_ready("web");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&after), id(&before));
    node.finish();
}

#[test]
fn pods_that_were_evicted_while_the_agent_was_away_end() {
    let Some(node) = Node::start() else { return };
    let mut web = plain("web", WAITS);
    web["spec"]["tolerations"] = json!([
        {"key": "unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
    ]);
    node.create(&web);
    node.wait_pod_ready("web");
    node.world.agent.kill();
    // Kubernetes taints no node of a cluster of which all nodes are away.
    node.plane.kubectl_text(&["taint", "nodes", NODE_NAME, "unreachable=:NoExecute"]);
    let deleted = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
    node.wait_pod("web", "is deleted", deleted);
    assert_eq!(node.world.cri.sandboxes().len(), 1, "it runs on");
    node.plane.kubectl_text(&["taint", "nodes", NODE_NAME, "unreachable-"]);
    node.world.agent.start();
    node.wait_pod_gone("web");
    node.finish();
}
