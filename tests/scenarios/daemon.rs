//! The daemon dies, stands still, and comes late; its pods do not notice.

use crate::support::{
    agent::Settings,
    manifest::Pod,
    proxy::Call,
    status::Status,
    stays,
    world::{Kind, World},
};
use std::{os::unix::net::UnixListener, time::Duration};
use tonic::Code;

/// Soft deadline of calls, so that what hangs is told soon.
const IMPATIENT: &str = "runtimeRequestTimeout: 2s\n";

fn names(prefix: &str, number: usize) -> Vec<String> {
    (0..number).map(|n| format!("{prefix}{n:02}")).collect()
}

/// Starts pods and waits until all run.
fn run_pods(world: &World, names: &[String]) {
    for name in names {
        world.drop_pod(&Pod::running(name));
    }
    let all = |status: &Status| names.iter().all(|name| status.runs(name));
    world.wait_for(Duration::from_secs(120), "all run", all);
}

fn ids(world: &World, pods: &[String]) -> Vec<Vec<String>> {
    pods.iter().map(|pod| world.running_ids(pod)).collect()
}

/// True when a pod whose container was killed once was restarted once. A containerd that dies while
/// it creates or starts the successor may know it afterwards in a state in which it can't be
/// started. Such a container counts, because it may have run, as with the kubelet.
fn restarts_fit(world: &World, pod: &str, status: &Status) -> bool {
    let is_cut = |call: &Call| {
        matches!(call.method.as_str(), "CreateContainer" | "StartContainer")
            && call.is_for(pod)
            && call.answered.is_none_or(|(code, _)| code != Code::Ok)
    };
    let cut = world.proxy.calls().iter().filter(|call| is_cut(call)).count();
    let restarts = usize::try_from(status.restarts(pod, "main"));
    restarts.is_ok_and(|restarts| (1..=1 + cut).contains(&restarts))
}

pub fn killed_ten_times_under_thirty_pods(kind: Kind) {
    let world = World::start(kind);
    let (quiet, unlucky) = (names("quiet", 20), names("unlucky", 10));
    run_pods(&world, &[quiet.clone(), unlucky.clone()].concat());
    let before = ids(&world, &quiet);
    world.proxy.forget_calls();
    for (round, pod) in unlucky.iter().enumerate() {
        let kill_container = world.container_killer(&world.running_id(pod, "main"));
        // By turns right before the daemon, which may or may not have told of it, and while it is
        // away.
        if round % 2 == 0 {
            kill_container();
            world.runtime.kill();
        } else {
            world.runtime.kill();
            kill_container();
        }
        world.runtime.start_again();
        world.wait("it is restarted", |s| s.runs(pod) && restarts_fit(&world, pod, s));
    }
    let status = world.wait("events arrive", |status| status.node.pleg.events_connected);
    assert_eq!(ids(&world, &quiet), before);
    for pod in &quiet {
        assert_eq!(status.restarts(pod, "main"), 0, "{pod}");
    }
    for pod in &unlucky {
        assert_eq!(world.running_ids(pod).len(), 1, "{pod}");
        assert!(restarts_fit(&world, pod, &status), "{pod}: {}", status.restarts(pod, "main"));
        assert_eq!(world.sandboxes(pod).len(), 1, "{pod}");
    }
    let touched = || quiet.iter().filter(|pod| world.proxy.count("StopContainer", pod) > 0).count();
    assert_eq!(touched(), 0);
    world.finish();
}

/// The daemon is stopped for `span`; whatever was to be done meanwhile is done after it.
pub fn stands_still_for(kind: Kind, span: Duration) {
    let world = World::start_with(kind, &Settings::for_kind(kind).kubelet(IMPATIENT));
    let quiet = names("quiet", 4);
    run_pods(&world, &quiet);
    run_pods(&world, &["unlucky".to_owned(), "leaves".to_owned()]);
    let before = ids(&world, &quiet);
    let kill_container = world.container_killer(&world.running_id("unlucky", "main"));
    world.proxy.forget_calls();

    let frozen = world.runtime.containerd().freeze();
    kill_container();
    world.remove("leaves.yaml");
    world.drop_pod(&Pod::running("late"));
    let hangs = |status: &Status, pod: &str| status.pod(pod).is_some_and(|pod| pod.hung.is_some());
    world.wait("the pods that wait for it are named", |status| {
        hangs(status, "late") && hangs(status, "leaves")
    });
    let all_shown = || world.agent.status().map(|s| quiet.iter().all(|pod| s.runs(pod)));
    stays("the status goes on being told", span, all_shown, |shown| *shown == Ok(true));
    if span > Duration::from_secs(35) {
        let status = world.agent.status().unwrap();
        let told = status.node.runtime.not_ready.as_deref();
        assert_eq!(told, Some("container runtime is down"), "{status:?}");
    }
    drop(frozen);

    world.wait("all that was to be done is done", |status| {
        status.node.runtime.not_ready.is_none()
            && status.runs("late")
            && status.runs("unlucky")
            && status.restarts("unlucky", "main") == 1
            && status.pod("leaves").is_none()
    });
    assert_eq!(ids(&world, &quiet), before);
    for pod in ["late", "unlucky"] {
        assert_eq!(world.running_ids(pod).len(), 1, "{pod}");
        assert_eq!(world.proxy.count("StartContainer", pod), 1, "{pod}");
    }
    let calls = world.proxy.mutating_calls();
    let touched: Vec<_> = calls.iter().filter(|call| call.is_for("quiet")).collect();
    assert!(touched.is_empty(), "{touched:#?}");
    world.finish();
}

pub fn a_daemon_that_stands_still_restarts_nothing(kind: Kind) {
    stands_still_for(kind, Duration::from_secs(2));
}

pub fn a_socket_that_does_not_answer_yet_is_waited_for(kind: Kind) {
    let world = World::start(kind);
    let quiet = names("quiet", 2);
    run_pods(&world, &quiet);
    let before = ids(&world, &quiet);
    world.agent.kill();
    world.runtime.kill();
    world.proxy.forget_calls();

    // At first nobody listens; then somebody does who says nothing.
    world.agent.start();
    world.drop_pod(&Pod::running("new"));
    world.wait("the agent tells what it waits for", |status| {
        let why = status.node.runtime.not_ready.as_ref();
        why.is_some_and(|why| why.contains("can't be reached")) && !status.runs("new")
    });
    let socket = world.runtime.socket();
    std::fs::remove_file(&socket).unwrap();
    let mute = UnixListener::bind(&socket).unwrap();
    mute.set_nonblocking(true).unwrap();
    let visitor = || mute.accept().ok();
    let visitor = world.wait_until("the agent connects", visitor, Option::is_some);
    let runs = || world.agent.status().map(|status| status.runs("new"));
    stays("the agent waits", Duration::from_secs(2), runs, |runs| *runs == Ok(false));
    assert_eq!(world.proxy.mutating_calls().len(), 0, "{:#?}", world.proxy.mutating_calls());
    drop((mute, visitor));

    world.runtime.start_again();
    world.wait("all run", |s| s.runs("new") && quiet.iter().all(|pod| s.runs(pod)));
    assert_eq!(ids(&world, &quiet), before);
    assert_eq!(world.proxy.count("StartContainer", "quiet"), 0);
    world.finish();
}
