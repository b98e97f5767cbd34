//! The agent's own death, at any moment.

use super::edits::replaced_in_order;
use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod, STUBBORN},
    proxy::{Call, Moment},
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::cri::v1;
use serde_json::json;
use std::{collections::BTreeMap, fs, time::Duration};

pub fn a_killed_agent_finds_its_pods_again(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("plain"));
    world.drop_pod(&Pod::running("rich").init("setup", "true").sidecar("proxy", FOREVER));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", "Never"));
    world.wait_running("plain");
    world.kill_container(&world.running_id("plain", "main"));
    let settled = |status: &Status| {
        status.runs("plain")
            && status.restarts("plain", "main") == 1
            && status.runs("rich")
            && status.phase("job") == "Succeeded"
    };
    world.wait("all is as it should be", settled);
    world.wait_released("job");
    let ids = [world.running_ids("plain"), world.running_ids("rich")];

    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("all is found as it was", settled);
    let span = Duration::from_secs(2);
    stays("nothing is touched", span, || world.proxy.mutating_calls(), Vec::is_empty);
    assert_eq!([world.running_ids("plain"), world.running_ids("rich")], ids);
    world.finish();
}

pub fn a_container_that_died_meanwhile_is_restarted(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web").container("other", FOREVER));
    world.wait_running("web");
    let (main, other) = (world.running_id("web", "main"), world.running_id("web", "other"));
    world.agent.kill();
    world.kill_container(&main);
    world.agent.start();
    world.wait("it runs again", |status| status.runs("web") && status.restarts("web", "main") == 1);
    assert_eq!(world.running_id("web", "other"), other);
    world.finish();
}

pub fn a_manifest_removed_meanwhile_ends_its_pod_with_its_own_grace(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::with_main("web", STUBBORN).set("terminationGracePeriodSeconds", 4));
    world.drop_pod(&Pod::running("stays"));
    world.wait_running("web");
    world.wait_running("stays");
    let stays_ids = world.running_ids("stays");
    world.agent.kill();
    world.remove("web.yaml");
    world.proxy.forget_calls();
    world.agent.start();
    world.wait_gone("web");
    let calls = world.proxy.calls();
    let stop = calls.iter().find(|call| call.method == "StopContainer").unwrap();
    assert_eq!(stop.request::<v1::StopContainerRequest>().timeout, 4);
    assert_eq!(world.running_ids("stays"), stays_ids);
    world.finish();
}

pub fn a_manifest_edited_meanwhile_replaces_its_pod_in_order(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::with_main("web", STUBBORN).set("terminationGracePeriodSeconds", 4);
    world.drop_pod(&pod);
    let before = world.wait_running("web").pod("web").unwrap().uid.clone();
    world.agent.kill();
    world.drop_pod(&pod.clone().env("VERSION", "2").set("terminationGracePeriodSeconds", 1));
    world.proxy.forget_calls();
    world.agent.start();
    let status = world.wait("the new pod runs", |status| {
        status.runs("web") && status.pod("web").is_some_and(|pod| pod.uid != before)
    });
    replaced_in_order(&world, before.as_str(), status.pod("web").unwrap().uid.as_str(), 4);
    world.finish();
}

pub fn a_manifest_broken_meanwhile_keeps_its_pod(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("web");
    world.drop_pod(&pod);
    world.wait_running("web");
    let ids = world.running_ids("web");
    world.agent.kill();
    world.write("web.yaml", "kind: [");
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("the broken manifest is reported and the pod runs", |status| {
        status.rejected("web.yaml") && status.runs("web")
    });
    let span = Duration::from_secs(2);
    stays("nothing is touched", span, || world.proxy.mutating_calls(), Vec::is_empty);
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

/// What the configuration allowed when the pod was accepted, and does not after a restart.
pub fn a_manifest_refused_after_a_restart_keeps_its_pod(kind: Kind) {
    const ALLOWED: &str = "allowedUnsafeSysctls: [net.core.*]\n";
    let world = World::start_with(kind, &Settings::for_kind(kind).kubelet(ALLOWED));
    let sysctls = json!([{ "name": "net.core.somaxconn", "value": "200" }]);
    world.drop_pod(&Pod::running("tuned").set("securityContext", json!({ "sysctls": sysctls })));
    for name in ["other", "goes"] {
        world.drop_pod(&Pod::running(name));
        world.wait_running(name);
    }
    world.wait_running("tuned");
    let ids = || ["tuned", "other", "goes"].map(|pod| world.running_ids(pod));
    let before = ids();

    world.agent.kill();
    let config = fs::read_to_string(world.agent.config_file()).unwrap();
    assert!(config.contains(ALLOWED));
    fs::write(world.agent.config_file(), config.replace(ALLOWED, "")).unwrap();
    world.remove("goes.yaml");
    world.proxy.forget_calls();
    world.agent.start();
    let status = world.wait("the manifest is rejected and its pod runs", |status| {
        status.rejected("tuned.yaml") && status.runs("tuned") && status.runs("other")
    });
    let error = status.node.sources[0].error.clone().unwrap_or_default();
    for part in ["manifests/tuned.yaml", "default/tuned-node1", "net.core.somaxconn"] {
        assert!(error.contains(part), "no {part} in the source's error: {error}");
    }
    let span = Duration::from_secs(3);
    stays("nothing is touched", span, || world.proxy.mutating_calls(), Vec::is_empty);
    assert_eq!(ids(), before);

    // The others are looked after as ever.
    world.kill_container(&world.running_id("other", "main"));
    world.wait("the other one is restarted", |status| status.restarts("other", "main") == 1);
    world.drop_pod(&Pod::running("comes"));
    world.wait_running("comes");
    assert_eq!(world.running_ids("tuned"), before[0]);

    let forgotten = world.agent.cli(&["forget", "tuned"]);
    assert!(forgotten.status.success(), "{forgotten:?}");
    world.wait_gone("tuned");
    world.wait_gone("goes");
    world.wait("the source is fine again", |status| status.node.sources[0].error.is_none());
    world.finish();
}

pub fn back_off_outlives_the_agent(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    let backs_off = |status: &Status| status.waiting_reason("crash", "main") == "CrashLoopBackOff";
    world.wait("it backs off", backs_off);
    let begun = tokio::time::Instant::now();
    world.proxy.forget_calls();
    for _ in 0..3 {
        world.agent.kill();
        world.agent.start();
        world.wait("it still backs off", backs_off);
    }
    // It is 10 s long; on a slow machine it may be over by now.
    let due = usize::from(begun.elapsed() > Duration::from_secs(8));
    let starts = world.proxy.count("StartContainer", "crash");
    assert!(starts <= due, "back-off turned into hammering: {starts} starts");
    world.finish();
}

/// The chapters of a pod's life. Together they hold every kind of mutating call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chapter {
    Comes,
    Edited,
    Goes,
}

const LIFE: [Chapter; 3] = [Chapter::Comes, Chapter::Edited, Chapter::Goes];

impl Chapter {
    /// Lets it happen to a pod, and waits until all is as it should be.
    #[track_caller]
    fn live(self, world: &World, name: &str) {
        let pod = Pod::named(name).init("setup", "true").sidecar("proxy", FOREVER);
        let pod = pod.container("main", FOREVER);
        match self {
            Self::Comes => {
                world.drop_pod(&pod);
                world.wait_running(name);
            }
            Self::Edited => {
                let before = world.wait_running(name).pod(name).unwrap().uid.clone();
                world.drop_pod(&pod.env("VERSION", "2"));
                world.wait("the edited pod runs", |status| {
                    status.runs(name) && status.pod(name).is_some_and(|pod| pod.uid != before)
                });
            }
            Self::Goes => {
                world.remove(&format!("{name}.yaml"));
                world.wait_gone(name);
            }
        }
        never_twice(world, name);
    }
}

/// No sandbox and no container was begun twice for one incarnation of a pod.
#[track_caller]
fn never_twice(world: &World, name: &str) {
    let calls = world.proxy.mutating_calls();
    let mut begun: BTreeMap<(String, String), Vec<&Call>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.reached && call.is_for(name)) {
        let pod = call.pod.as_ref().unwrap();
        if matches!(call.method.as_str(), "RunPodSandbox" | "StartContainer") {
            begun.entry((pod.uid.clone(), pod.container.clone())).or_default().push(call);
        }
    }
    for (what, calls) in begun {
        assert_eq!(calls.len(), 1, "{what:?} was begun more than once: {calls:#?}");
    }
}

/// In each life of a pod the agent dies once in each chapter: in the first life at the chapters'
/// first calls, then at their second ones, and so on.
pub fn killed_around_every_mutating_call(kind: Kind) {
    let world = World::start(kind);
    let recording = LIFE.map(|chapter| {
        let begun = world.proxy.mutating_calls().len();
        chapter.live(&world, "recorded");
        world.wait_until("every call has ended", || world.proxy.calls_under_way(), |n| *n == 0);
        world.proxy.mutating_calls().split_off(begun)
    });
    assert!(recording.iter().map(Vec::len).sum::<usize>() >= 14, "{recording:#?}");
    world.agent.revive_when_dead(true);
    for n in 0..recording.iter().map(Vec::len).max().unwrap() {
        for moment in [Moment::Before, Moment::After] {
            let name = format!("at{n}{}", if moment == Moment::Before { "b" } else { "a" });
            world.proxy.forget_calls();
            for (chapter, calls) in LIFE.into_iter().zip(&recording) {
                world.wait_until("the agent answers", || world.agent.status().is_ok(), |up| *up);
                let Some(call) = calls.get(n) else {
                    chapter.live(&world, &name);
                    continue;
                };
                let begun = world.proxy.mutating_calls().len();
                world.proxy.at_mutating_call(begun + n, moment, world.agent.killer());
                chapter.live(&world, &name);
                // Garbage collection may need fewer calls in another run; every other call must
                // come.
                let came = !world.proxy.hook_pending();
                let garbage = chapter == Chapter::Goes && n + 2 >= calls.len();
                assert!(came || garbage, "call {call:?} of {chapter:?} did not come, {moment:?}");
                world.proxy.lift_all();
            }
        }
    }
    world.wait_until("the agent answers", || world.agent.status().is_ok(), |up| *up);
    world.agent.revive_when_dead(false);
    world.finish();
}
