//! Pods that come, run, end and go.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    stays,
    world::{Kind, SOON, World},
};
use nodelet::{cri::v1, model::OWNER_LABEL};
use std::{fs, time::Duration};
use tonic::Code;

pub fn a_dropped_manifest_runs(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    let status = world.wait_running("web");
    let pod = status.pod("web").unwrap();
    assert!(!pod.status.pod_ip.as_ref().unwrap().is_empty());
    assert_eq!(pod.status.qos_class.as_deref(), Some("BestEffort"));

    let sandboxes = world.sandboxes("web");
    assert_eq!(sandboxes.len(), 1, "{sandboxes:#?}");
    let labels = &sandboxes[0].labels;
    assert_eq!(labels["io.kubernetes.pod.uid"], pod.uid.as_str());
    assert_eq!(labels["io.kubernetes.pod.namespace"], "default");
    assert_eq!(labels["app"], "web");
    assert!(labels.contains_key(OWNER_LABEL), "{labels:?}");
    let container = world.running_id("web", "main");
    let shown = status.container("web", "main").unwrap().container_id.clone().unwrap();
    assert_eq!(shown, format!("containerd://{container}"));
    for reason in ["Pulled", "Created", "Started"] {
        assert!(status.has_event(reason, "web"), "no event {reason}: {status:?}");
    }
    world.finish();
}

pub fn init_containers_and_sidecars_keep_their_order(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::named("web")
        .init("first", "sleep 0.3")
        .sidecar("proxy", FOREVER)
        .init("second", "sleep 0.3")
        .sidecar("shipper", FOREVER)
        .container("main", FOREVER)
        .container("other", FOREVER);
    world.drop_pod(&pod);
    world.wait_running("web");
    let order = ["first", "proxy", "second", "shipper", "main", "other"];
    assert_eq!(called_for(&world, "StartContainer"), order);
    let created = |name: &str| container_named(&world, name).created_at;
    let finished =
        |name: &str| world.cri.container_status(&container_named(&world, name).id).finished_at;
    assert!(
        finished("first") <= created("proxy"),
        "the sidecar waits for the init container before it"
    );
    assert!(finished("second") <= created("shipper"));

    world.proxy.forget_calls();
    world.remove("web.yaml");
    world.wait_gone("web");
    let stopped = called_for(&world, "StopContainer");
    let place = |name: &str| stopped.iter().position(|stopped| stopped == name).unwrap();
    assert!(place("main").max(place("other")) < place("shipper"), "{stopped:?}");
    assert!(place("shipper") < place("proxy"), "{stopped:?}");
    world.finish();
}

pub fn jobs_run_to_their_end(kind: Kind) {
    let world = World::start(kind);
    let never =
        |name: &str, script: &str| Pod::with_main(name, script).set("restartPolicy", "Never");
    world.drop_pod(&never("good", "sleep 0.2; exit 0"));
    world.drop_pod(&never("bad", "exit 4"));
    world.drop_pod(&never("helped", "sleep 0.2").sidecar("helper", FOREVER));
    world.drop_pod(&Pod::with_main("stubborn", "exit 4").set("restartPolicy", "OnFailure"));
    let ended = world.wait("the jobs have ended", |status| {
        status.phase("good") == "Succeeded"
            && status.phase("bad") == "Failed"
            && status.phase("helped") == "Succeeded"
            && status.restarts("stubborn", "main") >= 1
    });
    assert_eq!(ended.terminated("bad", "main").unwrap().exit_code, 4);
    assert_eq!(ended.terminated("good", "main").unwrap().reason.as_deref(), Some("Completed"));
    let starts =
        || world.proxy.count("StartContainer", "good") + world.proxy.count("StartContainer", "bad");
    stays("ended jobs are not started again", Duration::from_secs(2), starts, |n| *n == 2);
    world.finish();
}

/// A job has ended by itself, so nothing is killed when its manifest goes; it comes back before the
/// last of it is gone.
pub fn a_job_that_comes_back_during_its_removal_runs_again(kind: Kind) {
    let world = World::start(kind);
    let job = Pod::with_main("job", "exit 0").set("restartPolicy", "Never");
    world.drop_pod(&job);
    world.wait("it has ended", |status| status.phase("job") == "Succeeded");
    let refusal =
        world.proxy.on("RemovePodSandbox").pod("job").fail(Code::Internal, "not just now");
    world.proxy.forget_calls();
    world.remove("job.yaml");
    let attempts = || world.proxy.count("RemovePodSandbox", "job");
    world.wait_until("its sandbox is to be removed", attempts, |n| *n > 0);
    world.drop_pod(&job);
    let accepted = || world.agent.log().matches("manifest accepted").count();
    world.wait_until("its manifest is back", accepted, |n| *n == 2);
    // The agent may die in between and knows it all the same.
    world.agent.kill();
    world.agent.start();
    world.proxy.lift(refusal);
    let starts = || world.proxy.count("StartContainer", "job");
    world.wait_until("it runs again", starts, |n| *n == 1);
    let status = world.wait("it has ended", |status| status.phase("job") == "Succeeded");
    assert_eq!(status.restarts("job", "main"), 0, "it began anew");
    world.finish();
}

pub fn a_crashing_container_backs_off(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    let status = world.wait("the container waits in back-off", |status| {
        status.restarts("crash", "main") == 1
            && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
    });
    assert_eq!(status.terminated("crash", "main").unwrap().exit_code, 3);
    assert!(status.has_event("BackOff", "crash"), "{status:?}");
    world.wait("the second restart", |status| status.restarts("crash", "main") == 2);
    let starts: Vec<_> =
        world.proxy.calls().into_iter().filter(|call| call.method == "StartContainer").collect();
    let delays = [starts[1].at - starts[0].at, starts[2].at - starts[1].at];
    // A slow start takes seconds, and the next pause would be 20 s.
    assert!(delays[0] < Duration::from_millis(9_900), "the first has no pause: {delays:?}");
    assert!(delays[1] > Duration::from_millis(9_900), "the second waits 10 s: {delays:?}");
    assert!(delays[1] < Duration::from_millis(19_900), "and not longer: {delays:?}");
    // That of the first instance is gone.
    let uid = world.sandboxes("crash")[0].metadata.clone().unwrap().uid;
    let logs = world.agent.root_dir().join("pods").join(uid).join("containers/main");
    assert_eq!(fs::read_dir(logs).unwrap().count(), 2, "files of termination messages");
    world.finish();
}

pub fn a_killed_container_comes_back(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web").container("other", FOREVER));
    world.wait_running("web");
    let (killed, other) = (world.running_id("web", "main"), world.running_id("web", "other"));
    let sandbox = world.sandboxes("web")[0].id.clone();
    world.kill_container(&killed);
    let status = world.wait("the container runs again", |status| {
        status.restarts("web", "main") == 1 && status.runs("web")
    });
    assert_eq!(status.terminated("web", "main").unwrap().exit_code, 137);
    assert_ne!(world.running_id("web", "main"), killed);
    assert_eq!(world.running_id("web", "other"), other, "its neighbour is left alone");
    assert_eq!(status.restarts("web", "other"), 0);
    let sandboxes = world.sandboxes("web");
    assert_eq!((sandboxes.len(), &sandboxes[0].id), (1, &sandbox), "the sandbox is kept");
    world.finish();
}

pub fn a_pod_past_its_deadline_is_ended(kind: Kind) {
    let world = World::start(kind);
    // Its start, which counts, may take some seconds.
    world.drop_pod(&Pod::running("slow").set("activeDeadlineSeconds", 10));
    world.wait_running("slow");
    let status = world.wait("the pod has failed", |status| status.phase("slow") == "Failed");
    let reason = status.pod("slow").unwrap().status.reason.clone();
    assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    let running = || world.running_ids("slow");
    world.wait_until("its container is stopped", running, Vec::is_empty);
    world.finish();
}

pub fn nothing_is_done_when_nothing_changes(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web").init("setup", "true").sidecar("proxy", FOREVER));
    world.wait_running("web");
    world.wait_until("the agent has settled", || quiet_for_a_second(&world), |quiet| *quiet);
    world.proxy.forget_calls();
    let mutating = || world.proxy.mutating_calls();
    stays("no mutating call", Duration::from_secs(3), mutating, Vec::is_empty);
    let reads = world.proxy.calls().len();
    assert!(reads <= 12, "{reads} calls in 3 s of idling: {:#?}", world.proxy.calls());
    world.finish();
}

pub fn many_pods_at_once(kind: Kind) {
    const PODS: usize = 110;
    let world = World::start(kind);
    for n in 0..PODS {
        world.drop_pod(&Pod::running(&format!("pod{n:03}")));
    }
    let all = |status: &crate::support::status::Status| {
        status.pods.len() == PODS && (0..PODS).all(|n| status.runs(&format!("pod{n:03}")))
    };
    world.wait_for(Duration::from_secs(300), "110 pods run", all);
    let ready = world.cri.sandboxes();
    assert_eq!(ready.len(), PODS, "one sandbox for each pod");
    assert!(ready.iter().all(|s| s.state() == v1::PodSandboxState::SandboxReady));
    let mut ips: Vec<String> = ready
        .iter()
        .map(|sandbox| world.cri.sandbox_status(&sandbox.id).network.unwrap().ip)
        .collect();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), PODS, "an address for each pod");
    world.check_usage(110);
    for n in 0..PODS {
        world.remove(&format!("pod{n:03}.yaml"));
    }
    world.wait_for(Duration::from_secs(300), "all are gone", |status| status.pods.is_empty());
    world.remove_all();
}

/// Whether nothing was changed for a second, as far as the recording goes.
fn quiet_for_a_second(world: &World) -> bool {
    let calls = world.proxy.mutating_calls();
    calls.last().is_none_or(|last| last.at.elapsed() > Duration::from_secs(1))
}

/// The containers that `method` was called for, in order.
fn called_for(world: &World, method: &str) -> Vec<String> {
    let calls = world.proxy.calls();
    let ours = calls.into_iter().filter(|call| call.method == method);
    ours.filter_map(|call| call.pod).map(|pod| pod.container).collect()
}

#[track_caller]
fn container_named(world: &World, name: &str) -> v1::Container {
    let containers = world.containers("web");
    let found =
        containers.into_iter().find(|c| c.metadata.as_ref().is_some_and(|m| m.name == name));
    found.unwrap_or_else(|| panic!("no container {name} within {SOON:?}"))
}

pub fn pods_start_one_after_the_other_where_told(kind: Kind) {
    let settings =
        Settings { nodelet: "startConcurrency: 1".to_owned(), ..Settings::for_kind(kind) };
    let world = World::start_with(kind, &settings);
    let methods = ["RunPodSandbox", "CreateContainer", "StartContainer"];
    for method in methods {
        world.proxy.on(method).delay(Duration::from_millis(100));
    }
    let pods = ["one", "two", "three"];
    for pod in pods {
        world.drop_pod(&Pod::running(pod));
    }
    for pod in pods {
        world.wait_running(pod);
    }
    let mut calls = world.proxy.mutating_calls();
    calls.retain(|call| methods.contains(&call.method.as_str()));
    assert_eq!(calls.len(), 9, "{calls:#?}");
    for pair in calls.windows(2) {
        let ended = pair[0].answered.map(|(_, at)| at);
        assert!(ended.is_some_and(|ended| ended <= pair[1].at), "at the same time: {pair:#?}");
    }
    world.finish();
}
