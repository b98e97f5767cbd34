//! Lifecycle hooks, in real containers.

use crate::support::{
    manifest::{FOREVER, Pod},
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::fs;

fn shell(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] } })
}

/// Shell: writes a line and ends when it is told to.
const ENDS: &str = "trap 'echo term >>/host/log; exit 0' TERM; while :; do sleep 0.1; done";

pub fn a_post_start_hook_comes_before_the_next_container(kind: Kind) {
    let world = World::start(kind);
    let dir = tempfile::tempdir().unwrap();
    let pod = Pod::with_main("web", FOREVER)
        .set(
            "containers/0/lifecycle",
            json!({ "postStart": shell("sleep 1; echo hook >>/host/log") }),
        )
        .container("next", &format!("echo next >>/host/log; {FOREVER}"));
    world.drop_pod(&pod.host_dir(dir.path()));
    world.wait_running("web");
    let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    let log = world.wait_until("both have written", log, |log| log.lines().count() >= 2);
    assert_eq!(log, "hook\nnext\n");
    world.finish();
}

pub fn a_container_whose_post_start_hook_fails_is_restarted(kind: Kind) {
    let world = World::start(kind);
    let hook = json!({ "postStart": shell("echo no luck; exit 3") });
    let pod = Pod::running("web").set("containers/0/lifecycle", hook);
    world.drop_pod(&pod.set("terminationGracePeriodSeconds", 1));
    let status = world.wait("the hook has failed", |status| {
        status.waiting_reason("web", "main") == "PostStartHookError"
    });
    let state = status.container("web", "main").and_then(|status| status.state.clone());
    let message = state.and_then(|state| state.waiting?.message).unwrap_or_default();
    assert!(message.contains("exited with 3") && message.contains("no luck"), "{message}");
    world.wait("it was restarted", |status| {
        let told = |event: &Value| event["reason"] == "FailedPostStartHook";
        status.restarts("web", "main") >= 1 && status.events.iter().any(told)
    });
    world.finish();
}

pub fn a_post_start_hook_that_never_ends_holds_up_no_removal(kind: Kind) {
    let world = World::start(kind);
    let hook = json!({ "postStart": shell("sleep 100000") });
    let pod = Pod::running("web").set("containers/0/lifecycle", hook);
    world.drop_pod(&pod.container("next", FOREVER));
    let called = |count: &usize| *count > 0;
    world.wait_until("the hook is called", || world.proxy.count("ExecSync", ""), called);
    let status = world.wait("its container is shown as running", |status| {
        let state = status.container("web", "main").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    });
    assert_eq!(status.waiting_reason("web", "next"), "ContainerCreating");
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

pub fn pre_stop_hooks_come_before_the_signal(kind: Kind) {
    let world = World::start(kind);
    let dir = tempfile::tempdir().unwrap();
    let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    // The hook of the sidecar does not wait until the container has ended: it is what lets the
    // hook of the container end.
    let hook = "until [ -e /host/sidecar ]; do sleep 0.1; done; echo hook >>/host/log";
    let pod = Pod::with_main("web", ENDS)
        .set("containers/0/lifecycle", json!({ "preStop": shell(hook) }))
        .sidecar("side", FOREVER)
        .set("initContainers/0/lifecycle", json!({ "preStop": shell("touch /host/sidecar") }));
    world.drop_pod(&pod.host_dir(dir.path()).set("terminationGracePeriodSeconds", 60));
    world.wait_running("web");
    world.remove("web.yaml");
    world.wait_gone("web");
    assert_eq!(log(), "hook\nterm\n");
    world.finish();
}

/// Neither a hook that takes longer than the grace period nor one that fails keeps a pod.
pub fn a_bad_pre_stop_hook_keeps_no_pod(kind: Kind) {
    let world = World::start(kind);
    for (name, script) in [("slow", "sleep 100000"), ("failing", "exit 3")] {
        let hook = json!({ "preStop": shell(script) });
        let pod = Pod::running(name).set("containers/0/lifecycle", hook);
        world.drop_pod(&pod.set("terminationGracePeriodSeconds", 3));
    }
    world.wait_running("slow");
    world.wait_running("failing");
    world.remove("slow.yaml");
    world.remove("failing.yaml");
    world.wait("both failures are events", |status| {
        ["slow", "failing"].iter().all(|pod| status.has_event("FailedPreStopHook", pod))
    });
    world.wait_gone("slow");
    world.wait_gone("failing");
    world.finish();
}
