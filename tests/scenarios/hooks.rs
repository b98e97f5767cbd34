//! Lifecycle hooks, in real containers.

use crate::support::{
    manifest::{FOREVER, Pod, STUBBORN},
    status::Status,
    stays,
    web::Web,
    world::{Kind, World},
};
use nodelet::cri::v1;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, net::TcpListener, time::Duration};
use tokio::time::Instant;

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

pub fn a_post_start_hook_that_never_ends_holds_up_no_restart(kind: Kind) {
    let world = World::start(kind);
    let hook = shell("test -e /host/called || { touch /host/called; sleep 100000; }");
    let dir = tempfile::tempdir().unwrap();
    let pod = Pod::running("web").set("containers/0/lifecycle", json!({ "postStart": hook }));
    world.drop_pod(&pod.host_dir(dir.path()));
    let called = || dir.path().join("called").exists();
    world.wait_until("the hook runs", called, |called| *called);
    world.wait("its container is shown as running", |status| {
        let state = status.container("web", "main").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    });
    let said = world.agent.cli(&["restart", "web"]);
    assert!(said.status.success(), "{said:?}");
    world.wait("it is restarted", |status| {
        status.runs("web") && status.restarts("web", "main") == 1
    });
    world.finish();
}

pub fn a_post_start_hook_that_never_ends_holds_up_no_removal(kind: Kind) {
    let world = World::start(kind);
    let hook = json!({ "postStart": shell("sleep 100000") });
    let mut probe = shell("exit 1");
    probe["periodSeconds"] = json!(1);
    let pod = Pod::running("web")
        .set("containers/0/lifecycle", hook)
        .set("containers/0/livenessProbe", probe);
    world.drop_pod(&pod.container("next", FOREVER));
    let called = |count: &usize| *count > 0;
    world.wait_until("the hook is called", || world.proxy.count("ExecSync", ""), called);
    let status = world.wait("its container is shown as running", |status| {
        let state = status.container("web", "main").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    });
    assert_eq!(status.waiting_reason("web", "next"), "ContainerCreating");
    // It is not probed, and not ready, before the hook has ended.
    let seen = || {
        let ready = world.agent.status().unwrap().container("web", "main").map(|main| main.ready);
        (ready, world.proxy.count("ExecSync", ""))
    };
    stays("only the hook is called", Duration::from_secs(3), seen, |seen| {
        *seen == (Some(false), 1)
    });
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

/// Adds a container that runs until it is stopped, with one hook.
fn with_hook(pod: Pod, name: &str, hook: &str, handler: Value) -> Pod {
    let index = pod.value()["spec"]["containers"].as_array().unwrap().len();
    pod.container(name, FOREVER).set(&format!("containers/{index}/lifecycle/{hook}"), handler)
}

fn get(host: &str, port: u16, path: &str) -> Value {
    json!({ "httpGet": { "host": host, "port": port, "path": path } })
}

/// A server that answers hooks in ways that are no failures: each with the container that asks.
fn answered_hooks(web: &Web) -> [(&'static str, Value); 5] {
    web.fail("/missing", "404 Not Found");
    web.fail("/broken", "500 Internal Server Error");
    // Another host, although it is the same machine.
    web.redirect("/moved", &format!("http://localhost:{}/elsewhere", web.port()));
    web.serve_without_end("/endless");
    web.serve("/plain", "");
    let mut hooks = ["missing", "broken", "moved", "endless", "plain"]
        .map(|name| (name, get("127.0.0.1", web.port(), &format!("/{name}"))));
    hooks[4].1["httpGet"]["scheme"] = json!("HTTPS");
    hooks
}

/// The answers of [`answered_hooks`] were taken as they are: a status is no failure, a redirect to
/// another host is not followed, and a server without TLS is asked again without.
#[track_caller]
fn assert_answered(status: &Status, web: &Web, failure: &str) {
    for name in ["missing", "broken", "moved", "endless", "plain"] {
        let asked = web.asked(&format!("/{name}"));
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].contains("user-agent: kube-lifecycle/"), "{asked:?}");
        let container = format!("spec.containers{{{name}}}");
        assert!(!status.has_event(failure, &container), "{name} has failed: {status:?}");
        let fell_back = status.has_event("LifecycleHTTPFallback", &container);
        assert_eq!(fell_back, name == "plain", "{name}: {status:?}");
    }
    let words = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{} got HTTP response, retry with HTTP succeeded",
        web.port()
    );
    assert!(status.has_event("LifecycleHTTPFallback", &words), "{status:?}");
    assert!(web.asked("/elsewhere").is_empty(), "a redirect to another host was followed");
}

/// Hooks that get no answer: nobody listens, nobody has the name, and the server hangs up; each
/// with the container that asks and words of the error.
fn unanswered_hooks(silent: &Web) -> [(&'static str, Value, String); 3] {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    silent.go_away(true);
    let url = |host: &str, port: u16| format!("Get \"http://{host}:{port}/hook\": ");
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    let nobody = "no such host";
    [
        (
            "refused",
            get("127.0.0.1", closed, "/hook"),
            format!("{}{refused}", url("127.0.0.1", closed)),
        ),
        ("unknown", get(nobody, 80, "/hook"), format!("{}dial tcp {nobody}:80: ", url(nobody, 80))),
        ("silent", get("127.0.0.1", silent.port(), "/hook"), url("127.0.0.1", silent.port())),
    ]
}

pub fn post_start_hooks_over_http_fail_without_an_answer(kind: Kind) {
    let world = World::start(kind);
    let (web, silent) = (Web::start(), Web::start());
    let hooks = answered_hooks(&web);
    let answered = hooks
        .into_iter()
        .fold(Pod::named("answered"), |pod, (name, hook)| with_hook(pod, name, "postStart", hook));
    world.drop_pod(&answered);
    let failing = unanswered_hooks(&silent);
    let unanswered = failing.iter().fold(Pod::named("unanswered"), |pod, (name, hook, _)| {
        with_hook(pod, name, "postStart", hook.clone())
    });
    world.drop_pod(&unanswered);
    let mut messages = BTreeMap::new();
    let status = world.wait("each hook without an answer has failed", |status| {
        for (name, ..) in &failing {
            if status.waiting_reason("unanswered", name) == "PostStartHookError" {
                let state = status.container("unanswered", name).and_then(|c| c.state.clone());
                messages.insert(*name, state.and_then(|state| state.waiting?.message));
            }
        }
        failing.iter().all(|(name, ..)| {
            messages.contains_key(name) && status.restarts("unanswered", name) >= 1
        })
    });
    let pod = status.pod("unanswered").unwrap();
    for (name, _, words) in &failing {
        let message = messages[name].clone().unwrap_or_default();
        let start = format!(
            "HTTP lifecycle hook (/hook) for Container \"{name}\" in Pod \"unanswered-node1_default({})\" \
             failed - error: {words}",
            pod.uid
        );
        assert!(message.starts_with(&start), "{message}\ninstead of {start}");
        let container = format!("spec.containers{{{name}}}");
        for (reason, text) in
            [("FailedPostStartHook", "PostStartHook failed"), ("Killing", "FailedPostStartHook")]
        {
            let told = |event: &Value| {
                event["reason"] == reason
                    && event["message"] == text
                    && event.to_string().contains(&container)
            };
            assert!(status.events.iter().any(told), "{reason} of {name}: {status:?}");
        }
    }
    assert_answered(&world.wait_running("answered"), &web, "FailedPostStartHook");
    // One that waits for an answer holds up the next container, and not the removal of the pod.
    web.hang("/hangs");
    let hung =
        with_hook(Pod::named("hung"), "main", "postStart", get("127.0.0.1", web.port(), "/hangs"));
    world.drop_pod(&hung.container("next", FOREVER));
    world.wait_until("the hook asks", || web.asked("/hangs").len(), |count| *count == 1);
    let status = world.wait("its container is shown as running", |status| {
        let state = status.container("hung", "main").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    });
    assert_eq!(status.waiting_reason("hung", "next"), "ContainerCreating");
    world.remove("hung.yaml");
    world.wait_gone("hung");
    world.finish();
}

pub fn pre_stop_hooks_over_http_hold_a_stop_only_while_they_wait(kind: Kind) {
    const GRACE: u64 = 3;
    let world = World::start(kind);
    let (web, silent) = (Web::start(), Web::start());
    let failing = unanswered_hooks(&silent);
    let failing_hooks = failing.iter().map(|(name, hook, _)| (*name, hook.clone()));
    let leaving = answered_hooks(&web).into_iter().chain(failing_hooks).fold(
        Pod::named("leaving").set("terminationGracePeriodSeconds", 20),
        |pod, (name, hook)| with_hook(pod, name, "preStop", hook),
    );
    web.hang("/hangs");
    let patient = |name: &str, hook: Value| {
        let pod = Pod::with_main(name, STUBBORN).set("terminationGracePeriodSeconds", GRACE);
        pod.set("containers/0/lifecycle", json!({ "preStop": hook }))
    };
    world.drop_pod(&leaving);
    world.drop_pod(&patient("hung", get("127.0.0.1", web.port(), "/hangs")));
    // It takes the whole grace period, and is no failure.
    world.drop_pod(&patient("sleeper", json!({ "sleep": { "seconds": GRACE } })));
    for pod in ["leaving", "hung", "sleeper"] {
        world.wait_running(pod);
    }
    world.proxy.forget_calls();
    let removed = Instant::now();
    for pod in ["leaving", "hung", "sleeper"] {
        world.remove(&format!("{pod}.yaml"));
    }
    world.wait_gone("leaving");
    let calls = world.proxy.calls();
    let stops =
        calls.iter().filter(|call| call.method == "StopContainer" && call.is_for("leaving"));
    let left: Vec<i64> =
        stops.map(|call| call.request::<v1::StopContainerRequest>().timeout).collect();
    assert!(left.len() == 8 && left.iter().all(|seconds| *seconds > 10), "{left:?} s were left");
    let status = world.agent.status().unwrap();
    assert_answered(&status, &web, "FailedPreStopHook");
    let has_failed = |status: &Status, about: &str| {
        let told = |event: &Value| {
            event["reason"] == "FailedPreStopHook"
                && event["message"] == "PreStopHook failed"
                && event.to_string().contains(about)
        };
        status.events.iter().any(told)
    };
    for (name, ..) in &failing {
        let container = format!("spec.containers{{{name}}}");
        assert!(has_failed(&status, &container), "{name}: {status:?}");
    }
    for pod in ["hung", "sleeper"] {
        world.wait_gone(pod);
        let calls = world.proxy.calls();
        let stop = calls.iter().find(|call| call.method == "StopContainer" && call.is_for(pod));
        let stop = stop.unwrap_or_else(|| panic!("{pod} was not stopped"));
        let waited = stop.at - removed;
        assert!(waited >= Duration::from_secs(GRACE), "{pod}: stopped after {waited:?}");
        // The least that a container gets.
        assert_eq!(stop.request::<v1::StopContainerRequest>().timeout, 2, "{pod}");
    }
    let status = world.agent.status().unwrap();
    assert!(has_failed(&status, "hung-node1"), "{status:?}");
    assert!(!has_failed(&status, "sleeper-node1"), "{status:?}");
    world.finish();
}
