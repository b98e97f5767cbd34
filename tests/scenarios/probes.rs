//! Probes, on both runtimes. The commands read files of the host, which the test makes and removes.

use crate::support::{
    manifest::{FOREVER, Pod},
    status::Status,
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::{fs, net::TcpListener};
use tempfile::TempDir;

/// A probe, once a second, that succeeds while a file of the host is there. A busy machine may need
/// longer than a second to run the command.
fn file(name: &str) -> Value {
    json!({
        "exec": { "command": ["cat", format!("/host/{name}")] },
        "periodSeconds": 1,
        "timeoutSeconds": 10,
    })
}

fn make(dir: &TempDir, name: &str) {
    fs::write(dir.path().join(name), "here\n").unwrap();
}

fn remove(dir: &TempDir, name: &str) {
    fs::remove_file(dir.path().join(name)).unwrap();
}

/// The messages of the events with this reason.
fn messages<'a>(status: &'a Status, reason: &str) -> impl Iterator<Item = &'a str> {
    let events = status.events.iter().filter(move |event| event["reason"] == reason);
    events.filter_map(|event| event["message"].as_str())
}

fn condition(status: &Status, pod: &str, kind: &str) -> Value {
    let conditions = status.pod(pod).and_then(|view| view.status.conditions.clone());
    let found = conditions.into_iter().flatten().find(|condition| condition.type_ == kind);
    serde_json::to_value(found).unwrap()
}

fn is_up_and_unready(status: &Status, pod: &str) -> bool {
    status.phase(pod) == "Running" && status.container(pod, "main").is_some_and(|c| !c.ready)
}

pub fn readiness_follows_its_command(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    let pod = Pod::running("web").set("containers/0/readinessProbe", file("ready"));
    world
        .drop_pod(&pod.set("containers/0/readinessProbe/failureThreshold", 1).host_dir(dir.path()));
    let failed = "Readiness probe failed: cat: can't open '/host/ready': No such file or directory";
    let status = world.wait("it runs and is not ready", |status| {
        is_up_and_unready(status, "web") && messages(status, "Unhealthy").any(|m| m == failed)
    });
    assert_eq!(condition(&status, "web", "Ready")["status"], "False");
    let unready = "containers with unready status: [main]";
    assert_eq!(condition(&status, "web", "ContainersReady")["message"], unready);
    let shown = world.agent.cli(&["status", "web"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    for text in ["Readiness:", "exec [cat /host/ready]", "last attempt failed", "can't open"] {
        assert!(shown.contains(text), "{text} is not in\n{shown}");
    }
    make(&dir, "ready");
    let status = world.wait_running("web");
    assert_eq!(condition(&status, "web", "Ready")["status"], "True");
    remove(&dir, "ready");
    let status = world.wait("it is not ready", |status| is_up_and_unready(status, "web"));
    assert_eq!(status.restarts("web", "main"), 0);
    world.finish();
}

pub fn a_failed_liveness_probe_restarts_its_container(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    make(&dir, "alive");
    for (name, policy) in [("web", "Always"), ("once", "Never")] {
        let pod = Pod::running(name).set("containers/0/livenessProbe", file("alive"));
        let pod = pod.set("containers/0/livenessProbe/failureThreshold", 2);
        let pod = pod.set("terminationGracePeriodSeconds", 30);
        world.drop_pod(&pod.set("restartPolicy", policy).host_dir(dir.path()));
    }
    world.wait_running("web");
    world.wait_running("once");
    remove(&dir, "alive");
    let status = world.wait("one is restarted, the other has ended", |status| {
        status.restarts("web", "main") >= 1 && status.phase("once") == "Succeeded"
    });
    for message in [
        "Container main failed liveness probe, will be restarted",
        "Container main failed liveness probe",
    ] {
        assert!(messages(&status, "Killing").any(|m| m == message), "{message}");
    }
    make(&dir, "alive");
    world.wait_running("web");
    assert_eq!(status.restarts("once", "main"), 0);
    world.finish();
}

pub fn other_probes_wait_for_the_startup_probe(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    let pod = Pod::running("web")
        .set("containers/0/startupProbe", file("started"))
        .set("containers/0/startupProbe/failureThreshold", 1000)
        .set("containers/0/livenessProbe", file("alive"))
        .set("containers/0/livenessProbe/failureThreshold", 1)
        .set("containers/0/readinessProbe", file("alive"));
    world.drop_pod(&pod.host_dir(dir.path()));
    let status = world.wait("the startup probe has failed several times", |status| {
        let event = |event: &&Value| event["reason"] == "Unhealthy";
        status.events.iter().find(event).is_some_and(|event| event["count"].as_u64() >= Some(3))
    });
    assert!(messages(&status, "Unhealthy").all(|m| m.starts_with("Startup probe failed: ")));
    assert_eq!(status.container("web", "main").and_then(|main| main.started), Some(false));
    make(&dir, "alive");
    make(&dir, "started");
    let status = world.wait_running("web");
    assert_eq!(status.restarts("web", "main"), 0);
    assert_eq!(status.container("web", "main").and_then(|main| main.started), Some(true));
    world.finish();
}

pub fn a_sidecar_that_has_not_started_holds_up_the_others(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    let pod = Pod::running("web")
        .sidecar("proxy", FOREVER)
        .set("initContainers/0/startupProbe", file("started"))
        .set("initContainers/0/startupProbe/failureThreshold", 1000);
    world.drop_pod(&pod.host_dir(dir.path()));
    let status = world.wait("its startup probe fails", |status| {
        messages(status, "Unhealthy").any(|m| m.starts_with("Startup probe failed: "))
    });
    assert_eq!(status.phase("web"), "Pending");
    assert_eq!(world.proxy.count("CreateContainer", "web"), 1);
    make(&dir, "started");
    world.wait_running("web");
    world.finish();
}

pub fn a_ready_pod_stays_ready_while_the_agent_restarts(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    make(&dir, "ready");
    let pod = Pod::running("web")
        .set("containers/0/startupProbe", file("ready"))
        .set("containers/0/readinessProbe", file("ready"))
        .set("containers/0/readinessProbe/failureThreshold", 1);
    world.drop_pod(&pod.host_dir(dir.path()));
    let before = condition(&world.wait_running("web"), "web", "Ready");
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    let status = world.wait("it was probed again", |status| {
        assert!(status.pod("web").is_none() || status.runs("web"), "{status:?}");
        status.runs("web") && world.proxy.count("ExecSync", "") >= 2
    });
    assert_eq!(condition(&status, "web", "Ready"), before);
    remove(&dir, "ready");
    world.wait("it is not ready", |status| is_up_and_unready(status, "web"));
    world.finish();
}

pub fn a_probe_that_hangs_holds_up_no_other(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    let hangs = json!({ "exec": { "command": ["sleep", "100000"] }, "timeoutSeconds": 10000 });
    let pod = Pod::running("stuck").set("containers/0/readinessProbe", hangs);
    world.drop_pod(
        &pod.container("other", FOREVER)
            .set("containers/1/readinessProbe", file("ready"))
            .host_dir(dir.path()),
    );
    world.wait("it is probed", |_| world.proxy.count("ExecSync", "") >= 3);
    make(&dir, "ready");
    let status = world.wait("the other container is ready", |status| {
        status.container("stuck", "other").is_some_and(|other| other.ready)
    });
    assert!(is_up_and_unready(&status, "stuck"));
    world.finish();
}

/// containerd kills the shell at the timeout, and then waits for all who hold its output.
pub fn a_probe_whose_children_go_on_has_timed_out(kind: Kind) {
    let world = World::start(kind);
    let probe = json!({
        "exec": { "command": ["sh", "-c", "sleep 100000 | cat"] },
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": 1,
    });
    world.drop_pod(&Pod::running("web").set("containers/0/livenessProbe", probe));
    let status = world.wait("it is restarted", |status| status.restarts("web", "main") == 1);
    let failed = "Liveness probe failed: command timed out: \"sh -c sleep 100000 | cat\"";
    assert!(messages(&status, "Unhealthy").any(|text| text.starts_with(failed)), "{status:?}");
    world.finish();
}

/// Servers in containers, in the pod network and in that of the host.
pub fn probes_over_the_network(kind: Kind) {
    let world = World::start(kind);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let serve = |port: u16| {
        format!("mkdir -p /www; echo hello >/www/index.html; exec httpd -f -p {port} -h /www")
    };
    let http = |fields: Value| json!({ "httpGet": fields, "periodSeconds": 1 });
    let pod = Pod::with_main("web", &serve(8080))
        .set("containers/0/ports", json!([{ "name": "http", "containerPort": 8080 }]))
        .set(
            "containers/0/startupProbe",
            json!({ "tcpSocket": { "port": "http" }, "periodSeconds": 1 }),
        )
        .set("containers/0/readinessProbe", http(json!({ "port": "http", "path": "/index.html" })));
    world.drop_pod(&pod);
    let pod = Pod::with_main("missing", &serve(8080))
        .set("containers/0/readinessProbe", http(json!({ "port": 8080, "path": "/nothing" })));
    world.drop_pod(&pod);
    let pod = Pod::with_main("host", &serve(free))
        .set("hostNetwork", true)
        .set("containers/0/readinessProbe", http(json!({ "port": free })));
    world.drop_pod(&pod);
    let refused = Pod::running("refused").set(
        "containers/0/livenessProbe",
        json!({ "tcpSocket": { "port": 9 }, "periodSeconds": 1, "failureThreshold": 1 }),
    );
    world.drop_pod(&refused);
    world.wait_running("web");
    world.wait_running("host");
    let status = world.wait("the other two have failed", |status| {
        let not_found = "Readiness probe failed: HTTP probe failed with statuscode: 404";
        messages(status, "Unhealthy").any(|m| m == not_found)
            && status.restarts("refused", "main") >= 1
    });
    assert!(is_up_and_unready(&status, "missing"));
    assert!(messages(&status, "Unhealthy").any(|m| {
        m.starts_with("Liveness probe failed: dial tcp ")
            && m.ends_with(":9: connect: connection refused")
    }));
    world.finish();
}
