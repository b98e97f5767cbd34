//! A shim that does not answer: its pod waits for it, and nobody else does.

use crate::support::{
    agent::Settings,
    dead_file_system::DeadFileSystem,
    manifest::{FOREVER, Pod},
    process::{Process, Stopped},
    world::{Kind, World},
};
use nix::unistd::Pid;
use serde_json::json;
use std::time::Duration;

/// Stops a pod's shim, the parent of its containers.
fn stop_shim_of(world: &World, pod: &str) -> Stopped {
    let container = world.cri.container_pid(&world.running_id(pod, "main"));
    let shim = Pid::from_raw(Process::by_pid(container).status("PPid").parse().unwrap());
    assert!(Process::by_pid(shim.as_raw()).command_line()[0].contains("containerd-shim"));
    Stopped::stop(shim)
}

pub fn a_stopped_shim_is_named_and_everything_else_goes_on(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("runtimeRequestTimeout: 3s\n");
    let world = World::start_with(kind, &settings);
    for name in ["stuck", "dies", "leaves"] {
        world.drop_pod(&Pod::running(name));
    }
    for name in ["stuck", "dies", "leaves"] {
        world.wait_running(name);
    }
    let stuck = world.running_ids("stuck");
    let uid = world.agent.status().unwrap().pod("stuck").unwrap().uid.clone();

    let shim = stop_shim_of(&world, "stuck");
    world.drop_pod(&Pod::running("stuck").env("VERSION", "2"));
    let status = world.wait("the hung call is named", |status| {
        status.pod("stuck").is_some_and(|pod| pod.hung.is_some())
    });
    let pod = status.pod("stuck").unwrap();
    assert!(pod.hung.as_deref().unwrap().contains("StopContainer main"), "{status:?}");
    assert_eq!(pod.uid, uid, "the new one waits for the old one");
    assert!(String::from_utf8_lossy(&world.agent.cli(&["status"]).stdout).contains("no answer"));

    // Meanwhile others come, are restarted, and go.
    world.drop_pod(&Pod::running("comes").init("setup", "true").sidecar("proxy", FOREVER));
    world.kill_container(&world.running_id("dies", "main"));
    world.remove("leaves.yaml");
    world.wait("others come and are restarted", |status| {
        status.runs("comes") && status.runs("dies") && status.restarts("dies", "main") == 1
    });
    world.wait_gone("leaves");
    let status = world.agent.status().unwrap();
    assert!(status.node.pleg.unhealthy.is_none(), "{status:?}");
    assert!(status.node.runtime.not_ready.is_none(), "{status:?}");

    // An agent that dies over it goes on where it was, and is no worse off.
    world.agent.kill();
    world.agent.start();
    world.drop_pod(&Pod::running("late"));
    let status = world.wait("the next agent has the same picture", |status| {
        let stuck = status.pod("stuck");
        status.runs("late") && status.runs("dies") && stuck.is_some_and(|pod| pod.hung.is_some())
    });
    assert_eq!(status.restarts("dies", "main"), 1);
    assert_eq!(world.running_ids("stuck"), stuck);
    let others = ["comes", "dies", "late"].map(|pod| world.running_ids(pod));

    drop(shim);
    let status = world.wait("the new one runs, once", |status| {
        status.runs("stuck") && status.pod("stuck").is_some_and(|pod| pod.uid != uid)
    });
    assert!(status.pod("stuck").unwrap().hung.is_none(), "{status:?}");
    assert_eq!(["comes", "dies", "late"].map(|pod| world.running_ids(pod)), others);
    world.finish();
}

pub fn a_container_that_died_under_a_stopped_shim_is_restarted_once(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("stuck"));
    world.drop_pod(&Pod::running("free"));
    world.wait_running("stuck");
    world.wait_running("free");
    let container = world.running_id("stuck", "main");
    let shim = stop_shim_of(&world, "stuck");
    world.kill_container(&container);
    world.kill_container(&world.running_id("free", "main"));
    world.wait("the other one is restarted", |s| s.runs("free") && s.restarts("free", "main") == 1);
    // Nobody can know that it is dead; nothing is started beside it.
    assert_eq!(world.proxy.count("StartContainer", "stuck"), 1);
    drop(shim);
    world.wait("it is restarted", |s| s.runs("stuck") && s.restarts("stuck", "main") == 1);
    crate::support::stays(
        "once",
        Duration::from_secs(2),
        || world.proxy.count("StartContainer", "stuck"),
        |n| *n == 2,
    );
    world.finish();
}

pub fn a_dead_file_system_delays_only_pods_that_use_it(kind: Kind) {
    const STUCK: usize = 20;
    let world = World::start(kind);
    let dead = DeadFileSystem::mount(&world.slot.dir().join("dead"));
    let volumes = json!([{"name": "data", "hostPath": {"path": dead.path().join("data"), "type": "Directory"}}]);
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let stuck: Vec<String> = (0..STUCK).map(|n| format!("stuck{n:02}")).collect();
    for name in &stuck {
        let pod = Pod::running(name).set("volumes", volumes.clone());
        world.drop_pod(&pod.set("containers/0/volumeMounts", mounts.clone()));
    }
    world.wait("what they wait for is named", |status| {
        let hung = |name: &&String| status.pod(name).is_some_and(|pod| pod.hung.is_some());
        stuck.iter().filter(hung).count() >= STUCK / 2
    });
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.kill_container(&world.running_id("web", "main"));
    world.wait("it is restarted", |s| s.runs("web") && s.restarts("web", "main") == 1);
    assert_eq!(world.agent.terminate(), Some(0), "it ends all the same");
    world.agent.start();
    for name in &stuck {
        world.remove(&format!("{name}.yaml"));
    }
    drop(dead);
    world.wait("they go", |status| status.pods.len() == 1);
    world.finish();
}
