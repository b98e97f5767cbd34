//! The node ends pods of the API server: memory runs short, or a critical pod needs the room.

use super::{
    node::{Node, WAITS, condition, is_ready, plain},
    support::{agent::NODE_NAME, manifest::Pod, process::memory_kib, stays},
};
use serde_json::{Value, json};
use std::time::Duration;

/// What all pods together may use, in MiB, and what of it has to stay free.
const ALL_PODS_MIB: u64 = 700;
const FREE_MIB: u64 = 300;
/// More than the pod of the API server has when the threshold is crossed.
const OF_STATIC_MIB: u64 = 250;

/// A volume in memory, and where the container has it.
fn in_memory() -> (Value, Value) {
    let volume = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
    (volume, json!([{ "name": "memory", "mountPath": "/memory" }]))
}

/// The pod has failed, with this reason, and its condition says that the node is why.
#[track_caller]
fn wait_ended_by_node(node: &Node, pod: &str, reason: &str) -> Value {
    let pod = node.wait_pod(pod, "has failed", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], reason, "{pod:#}");
    let target = condition(&pod, "DisruptionTarget").unwrap();
    assert_eq!(target["status"], "True", "{target}");
    assert_eq!(target["reason"], "TerminationByKubelet", "{target}");
    pod
}

#[test]
fn a_pod_that_takes_too_much_memory_stays_evicted() {
    let reserved = memory_kib() / 1024 - ALL_PODS_MIB;
    let lines = format!(
        "systemReserved: {{ memory: {reserved}Mi }}\nevictionPressureTransitionPeriod: 1s\n\
         evictionHard: {{ memory.available: {FREE_MIB}Mi }}\n"
    );
    let Some(node) = Node::start_with(&lines, &[]) else { return };
    let (volume, mount) = in_memory();
    // It uses more than the other, and is a candidate after all pods of the API server.
    let script =
        format!("head -c {OF_STATIC_MIB}m /dev/zero >/memory/a; touch /memory/full; {WAITS}");
    let full = json!({ "exec": { "command": ["test", "-e", "/memory/full"] } });
    let large = Pod::with_main("large", &script)
        .set("volumes", volume.clone())
        .set("containers/0/volumeMounts", mount.clone())
        .set("containers/0/readinessProbe", full);
    node.world.drop_pod(&large);
    let mirror = format!("large-{NODE_NAME}");
    node.wait_pod_ready(&mirror);
    node.create(&plain("innocent", WAITS));
    node.wait_pod_ready("innocent");
    let others = || (node.running(&mirror), node.running("innocent"));
    let before = others();

    let grows = "while :; do head -c 5m /dev/zero >>/memory/a; sleep 0.1; done";
    let mut hog = plain("hog", grows);
    hog["spec"]["volumes"] = volume;
    hog["spec"]["containers"][0]["volumeMounts"] = mount;
    node.create(&hog);
    let evicted = wait_ended_by_node(&node, "hog", "Evicted");
    let message = evicted["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    assert!(message.contains("Container main was using "), "{message}");
    let state = &evicted["status"]["containerStatuses"][0]["state"];
    assert!(state["terminated"].is_object(), "{state}");
    assert_eq!(others(), before, "nothing happened to the others");

    // It is never started again, also not by a later agent.
    node.wait("nothing of it is left", || node.running("hog"), Vec::is_empty);
    node.world.agent.kill();
    node.world.agent.start();
    node.wait_ready();
    let pressure = || {
        let this = node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"));
        condition(&this, "MemoryPressure").unwrap()["status"].clone()
    };
    node.wait("the pressure is over", pressure, |status| *status == "False");
    node.create(&plain("later", WAITS));
    node.wait_pod_ready("later");
    let status = || node.pod("hog").unwrap()["status"].clone();
    let as_before = |status: &Value| *status == evicted["status"];
    stays("the status of the evicted pod", Duration::from_secs(3), status, as_before);
    assert_eq!(others(), before, "nothing happened to the others");
    node.delete("hog");
    node.wait_pod_gone("hog");
    node.world.remove("large.yaml");
    node.finish();
}

/// A pod that is bound to the node already and requests this much CPU, in millicores.
fn requesting(name: &str, millis: u64) -> Value {
    let mut pod = plain(name, WAITS);
    pod["spec"]["nodeName"] = json!(NODE_NAME);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": format!("{millis}m") } });
    pod
}

#[test]
fn critical_pods_take_the_room_of_others() {
    let Some(node) = Node::start() else { return };
    let cpus =
        node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"))["status"]["allocatable"]["cpu"]
            .clone();
    let all = cpus.as_str().unwrap().parse::<u64>().unwrap() * 1000;
    node.create(&requesting("small", 200));
    node.create(&requesting("large", all - 300));
    node.wait_pod_ready("small");
    node.wait_pod_ready("large");
    let small = node.running("small");

    // The pod that goes is the one that makes enough room.
    let mut critical = requesting("critical", 500);
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    node.create(&critical);
    let preempted = wait_ended_by_node(&node, "large", "Preempting");
    let message = "Preempted in order to admit critical pod";
    assert_eq!(preempted["status"]["message"], message);
    node.wait_pod_ready("critical");

    // So does a static pod.
    node.create(&requesting("next", all - 700));
    node.wait_pod_ready("next");
    let cpu = json!({ "cpu": "500m" });
    let critical = Pod::running("static").set("priorityClassName", "system-node-critical");
    node.world.drop_pod(&critical.set("containers/0/resources/requests", cpu));
    let preempted = wait_ended_by_node(&node, "next", "Preempting");
    assert_eq!(preempted["status"]["message"], message);
    node.wait_pod_ready(&format!("static-{NODE_NAME}"));
    for pod in ["large", "next"] {
        assert_eq!(node.running(pod), Vec::<String>::new(), "{pod}");
    }
    assert_eq!(node.running("small"), small);
    assert!(is_ready(&node.pod("critical").unwrap()));
    node.world.remove("static.yaml");
    node.finish();
}
