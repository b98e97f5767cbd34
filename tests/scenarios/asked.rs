//! `nodelet restart` and `nodelet retry`: what a person asks the agent to do with a pod.

use crate::support::{
    manifest::{FOREVER, Pod, STUBBORN},
    status::Status,
    world::{Kind, World},
};
use nodelet::cri::v1;
use serde_json::json;

/// Runs a command that must succeed, and returns what it printed.
#[track_caller]
fn done(world: &World, arguments: &[&str]) -> String {
    let output = world.agent.cli(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail, and returns what it said.
#[track_caller]
fn refused(world: &World, arguments: &[&str]) -> String {
    let output = world.agent.cli(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn restarted(status: &Status, pod: &str, containers: &[&str], count: i32) -> bool {
    status.runs(pod) && containers.iter().all(|name| status.restarts(pod, name) == count)
}

pub fn a_person_restarts_a_pod_in_its_sandbox(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("web").container("other", FOREVER);
    world.drop_pod(&pod.init("setup", "true").sidecar("proxy", FOREVER));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", "Never"));
    world.wait_running("web");
    let sandbox = world.sandboxes("web")[0].id.clone();
    let said = done(&world, &["restart", "web"]);
    let expected = "Containers proxy, main, other of default/web-node1 are being restarted.\n";
    assert_eq!(said, expected);
    let all = ["proxy", "main", "other"];
    let status = world.wait("all are restarted", |status| restarted(status, "web", &all, 1));
    let asked = |event: &serde_json::Value| {
        event["reason"] == "Killing"
            && event["message"] == "Container main will be restarted: a person has asked for it"
    };
    assert!(status.events.iter().any(asked), "{:#?}", status.events);
    let others = world.running_id("web", "other");
    done(&world, &["restart", "default/web-node1", "-c", "main"]);
    world.wait("one is restarted", |status| restarted(status, "web", &["main"], 2));
    assert_eq!(world.running_id("web", "other"), others);
    assert_eq!(world.sandboxes("web").len(), 1);
    assert_eq!(world.sandboxes("web")[0].id, sandbox);

    world.wait("the job has ended", |status| status.phase("job") == "Succeeded");
    assert!(refused(&world, &["restart", "job"]).contains("main has ended for good"));
    assert!(refused(&world, &["restart", "web", "-c", "setup"]).contains("init container"));
    assert!(refused(&world, &["restart", "web", "-c", "x"]).contains("no container x"));
    let unknown = refused(&world, &["restart", "wbe"]);
    assert!(unknown.contains("no pod wbe") && unknown.contains("default/web-node1"), "{unknown}");
    world.finish();
}

pub fn a_killed_agent_finishes_a_restart_once(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::with_main("web", STUBBORN).container("other", FOREVER);
    world.drop_pod(&pod.set("terminationGracePeriodSeconds", 2));
    world.wait_running("web");
    world.proxy.forget_calls();
    done(&world, &["restart", "web"]);
    // Within the grace period of a container that takes no notice of SIGTERM.
    world.wait_until("both stop", || world.proxy.count("StopContainer", "web"), |n| *n == 2);
    world.agent.kill();
    world.agent.start();
    let all = ["main", "other"];
    world.wait("all are restarted", |status| restarted(status, "web", &all, 1));
    assert_eq!(world.sandboxes("web").len(), 1);
    let made = world.containers("web").len();
    done(&world, &["retry", "web"]);
    let status = world.agent.status().unwrap();
    assert!(restarted(&status, "web", &all, 1));
    assert_eq!(world.containers("web").len(), made);
    world.finish();
}

pub fn a_restart_that_is_asked_for_again_meanwhile_happens_once(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::with_main("web", STUBBORN).set("terminationGracePeriodSeconds", 10);
    world.drop_pod(&pod);
    world.wait_running("web");
    let container = world.running_id("web", "main");
    world.proxy.forget_calls();
    done(&world, &["restart", "web"]);
    world.wait_until("it stops", || world.proxy.count("StopContainer", "web"), |n| *n == 1);
    // The container hangs in its grace period.
    done(&world, &["restart", "web"]);
    done(&world, &["restart", "web", "-c", "main"]);
    world.kill_container(&container);
    world.wait("it is restarted", |status| restarted(status, "web", &["main"], 1));
    let calls = world.proxy.calls();
    let stops = calls.iter().filter(|call| call.method == "StopContainer");
    let timeouts: Vec<i64> =
        stops.map(|call| call.request::<v1::StopContainerRequest>().timeout).collect();
    assert_eq!(timeouts, [10]);
    world.finish();
}

pub fn a_restart_is_shown_until_its_containers_have_stopped(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let hang = world.proxy.on("StopContainer").pod("web").hang_answer();
    done(&world, &["restart", "web"]);
    let shown = "container main is being restarted: a person has asked for it";
    let waiting = |status: &Status| status.pod("web").and_then(|pod| pod.waiting.clone());
    world.wait("it is shown", |status| waiting(status).as_deref() == Some(shown));
    let table = done(&world, &["status"]);
    assert!(table.lines().any(|row| row.contains("web-node1") && row.contains(shown)), "{table}");
    let page = done(&world, &["status", "web"]);
    assert!(page.contains(shown), "{page}");
    world.proxy.lift(hang);
    let status = world.wait("it is restarted", |status| restarted(status, "web", &["main"], 1));
    assert_eq!(waiting(&status), None);
    world.finish();
}

pub fn a_restart_does_not_wait_for_a_pull(kind: Kind) {
    let world = World::start(kind);
    let hang = world.proxy.on("PullImage").pod("web").hang();
    let pod = Pod::running("web").container("late", FOREVER);
    let pod = pod.set("containers/1/imagePullPolicy", "Always");
    let image = pod.value()["spec"]["containers"][1]["image"].clone();
    world.drop_pod(&pod.set("containers/1/image", image));
    let pulling = || world.proxy.count("PullImage", "web");
    world.wait_until("the second container is pulled", pulling, |n| *n > 0);
    world.wait("the first runs", |status| {
        status.container("web", "main").is_some_and(|main| main.ready)
    });
    done(&world, &["restart", "web", "-c", "main"]);
    world.wait("the first is restarted", |status| {
        status.restarts("web", "main") == 1
            && status.container("web", "main").is_some_and(|main| main.ready)
    });
    let late = refused(&world, &["restart", "web", "-c", "late"]);
    assert!(late.contains("none of its containers has started yet"), "{late}");
    world.proxy.lift(hang);
    world.wait("both run", |status| status.runs("web"));
    world.finish();
}

pub fn a_person_ends_the_back_offs_of_a_pod(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", json!("Never")));
    let absent = Pod::running("absent");
    world.drop_pod(&absent.set("containers/0/image", json!("nodelet.test/absent:1")));
    world.wait("both are backed off", |status| {
        status.waiting_reason("crash", "main") == "CrashLoopBackOff"
            && status.restarts("crash", "main") >= 2
            && status.waiting_reason("absent", "main") == "ErrImagePull"
    });
    let restarts = world.agent.status().unwrap().restarts("crash", "main");
    let pulls = world.proxy.count("PullImage", "absent");
    let said = done(&world, &["retry", "crash"]);
    assert_eq!(said, "default/crash-node1 is tried again at once, without back-offs.\n");
    done(&world, &["retry", "absent"]);
    // The next tries of their own would come in 15 s at the earliest.
    let soon = std::time::Duration::from_secs(12);
    world.wait_for(soon, "both are tried again", |status| {
        status.restarts("crash", "main") > restarts
            && world.proxy.count("PullImage", "absent") > pulls
    });
    let retry = || format!("{:?}", world.agent.cli(&["retry", "job"]));
    world.wait_until("a job that has ended is not tried again", retry, |said| {
        said.contains("default/job-node1 is not tried again: it has ended, and does not run again.")
    });
    world.finish();
}
