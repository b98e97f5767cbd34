//! Calls that hang, fail or lose their answers, and events that go astray.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    proxy::EventFault,
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::cri::v1;
use std::time::Duration;
use tonic::Code;

/// Soft deadline of calls in these worlds.
const IMPATIENT: &str = "runtimeRequestTimeout: 2s\n";

/// An image may name a stop signal that containerd does not know.
pub fn a_container_that_cannot_be_stopped_ends_with_its_sandbox(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.proxy.on("StopContainer").pod("web").fail(Code::Unknown, "unknown signal \"SIGNONE\"");
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

/// containerd takes a container for ended whose start was cut short, and does not remove it because
/// it runs. Here it is started behind the back of CRI.
pub fn a_container_that_has_ended_and_runs_is_removed(kind: Kind) {
    let world = World::start(kind);
    let script = "[ ! -e /ran ] || exec sleep 1000; touch /ran";
    let pod = Pod::running("web").container("once", script).set("restartPolicy", "OnFailure");
    world.drop_pod(&pod);
    world.wait("it has ended", |status| {
        let ended = |one: &serde_json::Value| {
            one["name"] == "once" && one["state"]["terminated"].is_object()
        };
        status.pod("web").is_some_and(|pod| {
            let status = serde_json::to_value(&pod.status).unwrap();
            status["containerStatuses"].as_array().is_some_and(|all| all.iter().any(ended))
        })
    });
    let containers = world.cri.containers();
    let is_once =
        |one: &&v1::Container| one.metadata.as_ref().is_some_and(|data| data.name == "once");
    let id = &containers.iter().find(is_once).unwrap().id;
    world.runtime.containerd().ctr(&["task", "start", "--detach", "--null-io", id]);
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

pub fn a_hung_call_holds_up_only_its_pod(kind: Kind) {
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let world = World::start_with(kind, &Settings::for_kind(kind).kubelet(IMPATIENT));
        let rule = world.proxy.on(method).pod("stuck").hang();
        world.drop_pod(&Pod::running("stuck"));
        let stuck = || world.proxy.count(method, "stuck");
        world.wait_until("the call is made", stuck, |n| *n == 1);
        world.drop_pod(&Pod::running("free"));
        world.wait_running("free");
        world.kill_container(&world.running_id("free", "main"));
        let status = world.wait("others go on, and the hung pod is named", |status| {
            status.restarts("free", "main") == 1
                && status.pod("stuck").is_some_and(|pod| pod.hung.is_some())
        });
        assert!(!status.runs("stuck"));
        assert_eq!(world.proxy.count(method, "stuck"), 1, "a call that hangs is not made twice");
        world.proxy.lift(rule);
        world.wait_running("stuck");
        world.finish();
    }
}

pub fn every_hung_call_of_a_pod_is_named(kind: Kind) {
    let world = World::start_with(kind, &Settings::for_kind(kind).kubelet(IMPATIENT));
    world.drop_pod(&Pod::running("web").container("other", FOREVER));
    world.wait_running("web");
    let first = world.proxy.on("StopContainer").pod("web").times(1).hang();
    world.proxy.on("StopContainer").pod("web").hang();
    world.remove("web.yaml");
    let named = |status: &Status| {
        let hung = status.pod("web").and_then(|pod| pod.hung.as_deref()).unwrap_or_default();
        ["main", "other"].map(|name| hung.contains(&format!("StopContainer {name}: no answer")))
    };
    world.wait("both are named", |status| named(status) == [true, true]);
    world.proxy.lift(first);
    world.wait("the one that has ended is not", |status| {
        let named = named(status);
        named != [true, true] && named != [false, false]
    });
    world.proxy.lift_all();
    world.wait_gone("web");
    world.finish();
}

pub fn a_hung_inspection_holds_up_only_its_pod(kind: Kind) {
    let world = World::start_with(kind, &Settings::for_kind(kind).kubelet(IMPATIENT));
    world.drop_pod(&Pod::running("stuck"));
    world.drop_pod(&Pod::running("free"));
    world.wait_running("stuck");
    world.wait_running("free");
    let rule = world.proxy.on("ContainerStatus").pod("stuck").hang();
    let (stuck, free) = (world.running_id("stuck", "main"), world.running_id("free", "main"));
    world.kill_container(&stuck);
    world.wait("the pod whose inspection hangs is named", |status| {
        !status.node.pleg.hung.is_empty()
            || status.pod("stuck").is_some_and(|pod| pod.hung.is_some())
    });
    world.kill_container(&free);
    let status = world.wait("others go on", |status| status.restarts("free", "main") == 1);
    assert!(status.node.pleg.unhealthy.is_none(), "the node stays healthy: {status:?}");
    world.proxy.lift(rule);
    world.wait("it comes back", |status| {
        status.restarts("stuck", "main") == 1 && status.runs("stuck")
    });
    world.finish();
}

pub fn lost_answers_make_no_doubles(kind: Kind) {
    let world = World::start(kind);
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        world.proxy.on(method).pod("web").times(1).lose_answer();
    }
    world.drop_pod(&Pod::running("web"));
    world.wait_for(Duration::from_secs(90), "the pod runs", |status| status.runs("web"));
    assert_eq!(world.running_ids("web").len(), 1);
    let ready = |s: &&v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
    assert_eq!(world.sandboxes("web").iter().filter(ready).count(), 1);
    for method in ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"] {
        world.proxy.on(method).pod("web").times(1).lose_answer();
    }
    world.remove("web.yaml");
    world.wait_for(Duration::from_secs(90), "it is gone", |status| status.pods.is_empty());
    world.finish();
}

/// A start was carried out, its answer lost, and nobody can say what runs: as when the runtime is
/// killed in the middle of it.
pub fn nothing_is_started_again_before_it_is_known_what_runs(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("free"));
    world.wait_running("free");
    world.proxy.on("StartContainer").pod("web").times(1).lose_answer();
    let blind = world.proxy.on("ListContainers").fail(Code::Unavailable, "not yet");
    world.drop_pod(&Pod::running("web"));
    let created = || world.proxy.count("CreateContainer", "web");
    world.wait_until("it is created", created, |n| *n == 1);
    stays("nothing is tried again", Duration::from_secs(4), created, |n| *n == 1);
    world.proxy.lift(blind);
    world.wait_running("web");
    assert_eq!((created(), world.running_ids("web").len()), (1, 1));
    world.finish();
}

pub fn failed_calls_are_tried_again(kind: Kind) {
    let world = World::start(kind);
    world.proxy.on("RunPodSandbox").pod("web").times(1).fail(Code::Unknown, "no network today");
    world.proxy.on("CreateContainer").pod("web").times(1).fail(Code::Unknown, "no snapshot today");
    world.drop_pod(&Pod::running("web"));
    world.wait("the failure is told", |status| {
        status.has_event("FailedCreatePodSandBox", "no network today")
    });
    let status =
        world.wait_for(Duration::from_secs(60), "the pod runs", |status| status.runs("web"));
    assert!(status.has_event("Failed", "no snapshot today"), "{status:?}");
    world.proxy.on("StopContainer").pod("web").times(1).fail(Code::Unknown, "not now");
    world.remove("web.yaml");
    world.wait_for(Duration::from_secs(60), "it is gone", |status| status.pods.is_empty());
    world.finish();
}

pub fn lost_events_are_made_up_for_by_relisting(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.proxy.events(EventFault::Drop);
    world.kill_container(&world.running_id("web", "main"));
    world.wait("its death is noticed", |status| {
        status.restarts("web", "main") == 1 && status.runs("web")
    });
    world.proxy.lift_all();
    world.finish();
}

pub fn doubled_events_change_nothing(kind: Kind) {
    let world = World::start(kind);
    world.proxy.events(EventFault::Duplicate);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.kill_container(&world.running_id("web", "main"));
    world.wait("it is restarted", |status| {
        status.restarts("web", "main") == 1 && status.runs("web")
    });
    let starts = || world.proxy.count("StartContainer", "web");
    stays("once", Duration::from_secs(2), starts, |n| *n == 2);
    world.finish();
}

pub fn reordered_events_change_nothing(kind: Kind) {
    let world = World::start(kind);
    world.proxy.events(EventFault::Reorder);
    world.drop_pod(&Pod::running("web").init("setup", "true").sidecar("proxy", FOREVER));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", "Never"));
    world.drop_pod(&Pod::running("leaves"));
    world.wait("all is as written", |status| {
        status.runs("web") && status.runs("leaves") && status.phase("job") == "Succeeded"
    });
    let proxy = world.running_id("web", "proxy");
    // An end that is told of after the start of what follows it must not be taken for the end of
    // that.
    world.kill_container(&world.running_id("web", "main"));
    world.remove("leaves.yaml");
    world.wait("one is restarted, one is gone", |status| {
        status.restarts("web", "main") == 1 && status.runs("web") && status.pod("leaves").is_none()
    });
    let starts =
        || ["web", "job", "leaves"].map(|pod| world.proxy.count("StartContainer", pod)).to_vec();
    stays("each start is made once", Duration::from_secs(2), starts, |n| *n == [4, 1, 1]);
    assert_eq!(world.running_id("web", "proxy"), proxy);
    world.finish();
}
