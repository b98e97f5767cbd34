//! Pods from their binding to the end of their objects.

use super::{
    node::{Node, PODS, WAITS, is_ready, plain},
    scale::{DEPLOYMENTS, JOBS, deployment, job},
    support::{agent::NODE_NAME, status::Status},
};
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_bound_pod_runs_and_its_deletion_ends_it() {
    let Some(node) = Node::start() else { return };
    node.create(&plain("web", WAITS));
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
        let mut pod = plain(name, script);
        pod["spec"]["restartPolicy"] = json!("Never");
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

/// The API server refuses the way back from an end with success.
#[test]
fn a_job_that_a_failed_probe_has_ended_runs_again() {
    let Some(node) = Node::start() else { return };
    let mut job = plain("job", "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done");
    job["spec"]["restartPolicy"] = json!("OnFailure");
    job["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": { "command": ["sh", "-c", "! [ -e /ill ]"] },
        "periodSeconds": 1,
        "timeoutSeconds": 10,
        "failureThreshold": 1,
    });
    node.create(&job);
    node.wait_pod_ready("job");
    node.world.proxy.on("CreateContainer").pod("job").hang();
    node.exec("job", &["touch", "/ill"]);
    let main = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let pod = node.wait_pod("job", "does not run", |pod| main(pod)["state"]["running"].is_null());
    assert!(main(&pod)["state"]["waiting"].is_object(), "{:#}", main(&pod));
    assert_eq!(main(&pod)["lastState"]["terminated"]["exitCode"], 0, "{:#}", main(&pod));
    node.world.proxy.lift_all();
    node.wait_pod("job", "runs again", |pod| {
        main(pod)["restartCount"] == 1 && main(pod)["ready"] == true
    });
    node.finish();
}

/// The scheduler binds such a pod only to nodes that declare the feature.
#[test]
fn a_restart_rule_restarts_all_containers() {
    let Some(node) = Node::start() else { return };
    let mut pod = plain(
        "web",
        &format!("[ -e /data/crashed ] || {{ touch /data/crashed; exit 42; }}; {WAITS}"),
    );
    let mut beside = pod["spec"]["containers"][0].clone();
    beside["name"] = json!("beside");
    beside["command"] = json!(["sh", "-c", WAITS]);
    let main = &mut pod["spec"]["containers"][0];
    main["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    main["restartPolicy"] = json!("Never");
    main["restartPolicyRules"] = json!([
        { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } },
    ]);
    pod["spec"]["containers"].as_array_mut().unwrap().push(beside);
    pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    node.create(&pod);
    let restarts = |pod: &Value| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.iter().map(|status| status["restartCount"].clone()).collect::<Vec<_>>()
    };
    node.wait_pod("web", "runs after the restart of both", |pod| {
        is_ready(pod) && restarts(pod) == [json!(1), json!(1)]
    });
    node.finish();
}

#[test]
fn a_second_deletion_can_only_shorten_the_grace_period() {
    let Some(node) = Node::start() else { return };
    let mut stubborn = plain("stubborn", "trap '' TERM; while true; do sleep 1; done");
    stubborn["spec"]["terminationGracePeriodSeconds"] = json!(600);
    // During this hook no process runs that could be killed.
    let mut sleeps = stubborn.clone();
    sleeps["metadata"]["name"] = json!("sleeps");
    sleeps["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "sleep": { "seconds": 600 } } });
    for pod in [&stubborn, &sleeps] {
        node.create(pod);
    }
    let names = ["stubborn", "sleeps"];
    for name in names {
        node.wait_pod_ready(name);
        node.delete(name);
        node.wait_pod(name, "is being deleted", |pod| {
            pod["metadata"]["deletionGracePeriodSeconds"] == 600
        });
    }
    node.wait("one is being stopped", || stops(&node, "stubborn"), |stops| *stops > 0);
    let told = |status: &Status| status.has_event("Killing", "sleeps");
    node.world.wait("the hook of the other is called", told);
    for name in names {
        node.plane.kubectl_text(&["delete", "pod", name, "--grace-period=1", "--wait=false"]);
    }
    for name in names {
        node.wait_pod_gone(name);
    }
    node.finish();
}

/// Calls that stop a container of a pod.
fn stops(node: &Node, pod: &str) -> usize {
    let calls = node.world.proxy.calls();
    calls.iter().filter(|call| call.method == "StopContainer" && call.is_for(pod)).count()
}

#[test]
fn a_deletion_goes_on_after_a_crash_of_the_agent() {
    let Some(node) = Node::start() else { return };
    // It ends when it may, and not before the agent was killed.
    let slow = "trap 'while [ ! -e /host/end ]; do sleep 0.1; done; exit 0' TERM; while true; do sleep 1 & wait $!; done";
    let mut pod = plain("slow", slow);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(300);
    let host = node.world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    pod["spec"]["volumes"] = json!([{ "name": "host", "hostPath": { "path": host } }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "host", "mountPath": "/host" }]);
    node.create(&pod);
    node.wait_pod_ready("slow");
    node.delete("slow");
    node.wait("it is being stopped", || stops(&node, "slow"), |stops| *stops > 0);
    node.world.agent.kill();
    node.world.agent.start();
    node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    assert_eq!(node.running("slow").len(), 1, "it is still being stopped");
    fs::write(host.join("end"), "").unwrap();
    node.wait_pod_gone("slow");
    node.finish();
}

#[test]
fn pods_that_were_deleted_while_the_agent_was_away_end() {
    let Some(node) = Node::start() else { return };
    for name in ["gracefully", "forcibly", "new"] {
        node.create(&plain(name, WAITS));
        node.wait_pod_ready(name);
    }
    node.world.agent.kill();
    node.delete("gracefully");
    for name in ["forcibly", "new"] {
        let force = ["delete", "pod", name, "--force", "--grace-period=0"];
        node.plane.kubectl_text(&force);
    }
    // Another pod of the same name, on the same node.
    let mut second = plain("new", WAITS);
    second["spec"]["nodeName"] = json!(NODE_NAME);
    let uid = node.create(&second)["metadata"]["uid"].clone();
    node.world.agent.start();
    for name in ["gracefully", "forcibly"] {
        node.wait_pod_gone(name);
    }
    let ready = node.wait_pod_ready("new");
    assert_eq!(ready["metadata"]["uid"], uid);
    // The object of a pod may go before the sandbox that its containers have left.
    let sandboxes = || node.world.cri.sandboxes();
    node.wait("only that of the new one is left", sandboxes, |left| left.len() == 1);
    node.finish();
}

#[test]
fn a_pod_for_which_there_is_no_room_fails_for_good() {
    let Some(node) = Node::start() else { return };
    let mut large = plain("large", WAITS);
    large["spec"]["nodeName"] = json!(NODE_NAME);
    large["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1000" } });
    node.create(&large);
    let failed = node.wait_pod("large", "is refused", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(failed["status"]["reason"], "OutOfcpu", "{failed:#}");
    let message = failed["status"]["message"].as_str().unwrap();
    assert!(message.contains("Node didn't have enough resource: cpu"), "{message}");
    // The agent reads the Node before the pod fails for its labels.
    let mut apart = plain("apart", WAITS);
    apart["spec"]["nodeName"] = json!(NODE_NAME);
    apart["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    node.create(&apart);
    let failed = node.wait_pod("apart", "is refused", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(failed["status"]["reason"], "NodeAffinity", "{failed:#}");
    node.delete("apart");
    node.wait_pod_gone("apart");
    assert!(node.world.cri.sandboxes().is_empty());
    // It stays so after a restart of the agent.
    node.world.agent.kill();
    node.world.agent.start();
    node.wait_ready();
    node.create(&plain("small", WAITS));
    node.wait_pod_ready("small");
    assert_eq!(node.pod("large").unwrap()["status"]["phase"], "Failed");
    node.delete("large");
    node.wait_pod_gone("large");
    node.finish();
}

/// The task "Advertise Extended Resources for a Node" of the Kubernetes documentation.
#[test]
fn an_extended_resource_of_the_node_is_given_to_pods() {
    const DONGLE: &str = "example.com/dongle";
    let Some(node) = Node::start() else { return };
    let advertise = |amount: &str| {
        let patch = json!({ "status": { "capacity": { DONGLE: amount } } });
        let path = format!("/api/v1/nodes/{NODE_NAME}/status");
        node.admin().patch(&path, &patch).unwrap().ok();
        let path = format!("/api/v1/nodes/{NODE_NAME}");
        let allocatable = || node.admin().get(&path)["status"]["allocatable"][DONGLE].clone();
        node.wait("it is allocatable", allocatable, |found| *found == amount);
    };
    advertise("4");
    advertise("2");
    let asks = |name: &str, amount: &str| {
        let mut pod = plain(name, WAITS);
        pod["spec"]["nodeName"] = json!(NODE_NAME);
        let amounts = json!({ DONGLE: amount });
        pod["spec"]["containers"][0]["resources"] =
            json!({ "requests": amounts, "limits": amounts });
        node.create(&pod);
    };
    asks("fits", "2");
    node.wait_pod_ready("fits");
    asks("large", "1");
    let failed = node.wait_pod("large", "is refused", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(failed["status"]["reason"], "OutOfexample.com/dongle", "{failed:#}");
    for name in ["fits", "large"] {
        node.delete(name);
        node.wait_pod_gone(name);
    }
    node.finish();
}

#[test]
fn workloads_run_scale_and_drain() {
    let Some(node) = Node::start() else { return };
    let template = |name: &str, script: &str| {
        let mut pod = plain(name, script);
        let spec = pod["spec"].take();
        json!({ "metadata": { "labels": { "app": name } }, "spec": spec })
    };
    let mut web = deployment("web", WAITS);
    web["spec"]["replicas"] = json!(3);
    node.admin().create(DEPLOYMENTS, &web).unwrap().ok();
    let ready = |number: i64| {
        let web = || node.admin().get(&format!("{DEPLOYMENTS}/web"))["status"].clone();
        node.wait(&format!("{number} replicas are ready"), web, |status| {
            status["readyReplicas"].as_i64().unwrap_or_default() == number
                && status["replicas"].as_i64().unwrap_or_default() == number
                && status["updatedReplicas"].as_i64().unwrap_or_default() == number
        });
    };
    ready(3);
    node.plane.kubectl_text(&["scale", "deployment", "web", "--replicas=5"]);
    ready(5);
    node.plane.kubectl_text(&["set", "env", "deployment", "web", "VERSION=2"]);
    node.plane.kubectl_text(&["rollout", "status", "deployment", "web", "--timeout=120s"]);
    ready(5);

    let work = job("work", 6, 3, plain("work", "sleep 0.5"));
    node.admin().create(JOBS, &work).unwrap().ok();
    node.plane.kubectl_text(&["wait", "--for=condition=Complete", "job/work", "--timeout=120s"]);

    let daemon = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": template("agent", WAITS),
        },
    });
    node.admin().create("/apis/apps/v1/namespaces/default/daemonsets", &daemon).unwrap().ok();
    let set = || {
        let path = "/apis/apps/v1/namespaces/default/daemonsets/agent";
        node.admin().get(path)["status"]["numberReady"].clone()
    };
    node.wait("the daemon is ready", set, |ready| *ready == 1);

    // A disruption budget holds up a drain, and no pod ends meanwhile.
    let budget =
        ["create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=5"];
    node.plane.kubectl_text(&budget);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web";
    let healthy = || node.admin().get(budgets)["status"]["currentHealthy"].clone();
    node.wait("the budget is known", healthy, |healthy| *healthy == 5);
    let drain = ["drain", NODE_NAME, "--ignore-daemonsets", "--force"];
    let refused = node.plane.kubectl(&[&drain[..], &["--timeout=7s"]].concat());
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("violate the pod's disruption budget"), "{errors}");
    assert!(!refused.status.success());
    ready(5);
    node.plane.kubectl_text(&["delete", "poddisruptionbudget", "web"]);
    node.plane.kubectl_text(&[&drain[..], &["--timeout=120s"]].concat());
    let pods = node.admin().get(PODS)["items"].as_array().unwrap().clone();
    let bound: Vec<&Value> =
        pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).collect();
    assert!(bound.iter().all(|pod| pod["metadata"]["labels"]["app"] != "web"), "{bound:#?}");
    node.finish();
}

/// The agent does not read a pod with so many values, nor one whose JSON is so large. It follows the
/// others, also after a restart, and a pod that has become too large runs on.
#[test]
fn a_pod_that_is_too_large_hides_no_other() {
    let Some(node) = Node::start() else { return };
    node.create(&plain("grows", WAITS));
    node.wait_pod_ready("grows");
    let running = node.running("grows");
    let annotations: Value = (0..12_000).map(|n| (format!("a{n}"), json!(""))).collect();
    let mut wide = plain("wide", WAITS);
    wide["metadata"]["annotations"] = annotations.clone();
    node.create(&wide);
    // The API server takes 1.2 MiB, and sends each character as six.
    let mut long = plain("long", WAITS);
    long["spec"]["containers"][0]["args"] = json!(["<".repeat(1_200_000)]);
    long["spec"]["nodeName"] = NODE_NAME.into();
    node.create(&long);
    let grown = json!({ "metadata": { "annotations": annotations } });
    node.admin().patch(&format!("{PODS}/grows"), &grown).unwrap().ok();
    let told = |name: &str| {
        let events = node.admin().get("/api/v1/namespaces/default/events");
        events["items"].as_array().unwrap().iter().any(|event| {
            event["reason"] == "PodTooLarge" && event["involvedObject"]["name"] == name
        })
    };
    for name in ["wide", "long", "grows"] {
        node.wait(&format!("{name} is told of"), || told(name), |told| *told);
    }
    node.create(&plain("next", WAITS));
    node.wait_pod_ready("next");
    node.world.agent.kill();
    node.world.agent.start();
    node.create(&plain("after-restart", WAITS));
    node.wait_pod_ready("after-restart");
    assert_eq!((node.running("grows"), node.running("wide")), (running, Vec::new()));
    assert_eq!(node.running("long"), Vec::<String>::new());
    for name in ["wide", "long", "grows"] {
        node.delete(name);
        node.wait_pod_gone(name);
    }
    node.finish();
}

/// Pods that have ended stay in a cluster until somebody deletes them. Here they are more than the
/// agent keeps.
#[test]
fn ended_pods_leave_room_for_others() {
    let Some(node) = Node::start() else { return };
    node.world.agent.kill();
    let annotations: Value = (0..5_000).map(|n| (format!("a{n}"), json!(""))).collect();
    for n in 0..60 {
        let name = format!("ended-{n}");
        let mut pod = plain(&name, "true");
        pod["metadata"]["annotations"] = annotations.clone();
        pod["spec"]["nodeName"] = NODE_NAME.into();
        node.create(&pod);
        let ended = json!({ "status": { "phase": "Failed", "reason": "Evicted" } });
        node.admin().patch(&format!("{PODS}/{name}/status"), &ended).unwrap().ok();
    }
    // The API server shows it behind the others.
    node.create(&plain("next", WAITS));
    node.world.agent.start();
    node.wait_pod_ready("next");
    let events = node.admin().get("/api/v1/namespaces/default/events");
    let events = events["items"].as_array().unwrap();
    assert!(events.iter().all(|event| event["reason"] != "PodTooLarge"), "{events:#?}");
    node.finish();
}
