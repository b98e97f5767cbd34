//! Something runs short: who goes, who stays, what is told, and who comes back when.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::{Process, cgroup_value, memory_kib},
    status::Status,
    world::{Kind, World},
};
use nodelet::model::{Pressure, Signal};
use serde_json::json;
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

/// What all pods together may use, in MiB, and what of it has to stay free.
const ALL_PODS_MIB: u64 = 700;
const FREE_MIB: u64 = 300;
/// Grows without bound, by 200 MiB a second at most.
const HOG: &str = "sleep 2; while :; do head -c 10485760 /dev/zero | tail -c 10485760 | sleep 1000 & sleep 0.05; done";

/// A node whose pods may use little together. The machine itself has enough.
fn small_node(kind: Kind) -> Settings {
    let reserved = memory_kib() - ALL_PODS_MIB * 1024;
    Settings::for_kind(kind).kubelet(&format!(
        "systemReserved: {{ memory: {reserved}Ki }}\n\
         evictionHard: {{ memory.available: {FREE_MIB}Mi }}\n\
         evictionPressureTransitionPeriod: 3s\n"
    ))
}

pub(super) fn holds(status: &Status, condition: Pressure) -> bool {
    status.node.conditions.held().any(|held| held == condition)
}

pub(super) fn reason<'a>(status: &'a Status, pod: &str) -> &'a str {
    status.pod(pod).and_then(|pod| pod.status.reason.as_deref()).unwrap_or_default()
}

pub(super) fn has_event(status: &Status, reason: &str) -> bool {
    status.events.iter().any(|event| event["reason"] == reason)
}

/// The cgroup of all pods is removed behind the agent's back: pods are let in all the same, and it
/// is there again with its limit.
pub fn a_cgroup_of_all_pods_that_goes_away_is_made_again(kind: Kind) {
    let world = World::start_with(kind, &small_node(kind));
    world.drop_pod(&Pod::running("first"));
    world.wait_running("first");
    let memory = Process::of(&world, "first", "main").cgroup("memory");
    let is_all = |dir: &&Path| dir.ends_with("kubepods") || dir.ends_with("kubepods.slice");
    let all = memory.ancestors().find(is_all).unwrap().to_owned();
    let limit = || cgroup_value(&all, "memory.limit_in_bytes", "memory.max");
    let before = limit();
    assert_eq!(before.parse::<u64>().unwrap() >> 20, ALL_PODS_MIB);
    world.remove("first.yaml");
    world.wait_gone("first");
    let below_root = world.slot.cgroup_root();
    let name = Path::new(below_root.trim_start_matches('/')).join(all.file_name().unwrap());
    let top = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(top).unwrap().map(|entry| entry.unwrap().path());
    for dir in controllers.chain([top.to_owned()]).map(|dir| dir.join(&name)) {
        remove_cgroups(&dir);
    }
    assert!(!all.exists());
    world.drop_pod(&Pod::running("second"));
    world.wait_running("second");
    world.wait_until(
        "the limit is there again",
        || all.exists().then(limit),
        |limit| limit.as_ref() == Some(&before),
    );
    world.finish();
}

/// A cgroup and those below it; nothing runs in them.
fn remove_cgroups(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_dir()) {
        remove_cgroups(&entry.path());
    }
    fs::remove_dir(dir).unwrap();
}

/// A container that takes ever more memory among pods that take little.
pub fn a_memory_hog_goes_alone_and_comes_back_later(kind: Kind) {
    let world = World::start_with(kind, &small_node(kind));
    let innocent: Vec<String> = (0..4).map(|n| format!("innocent{n}")).collect();
    for name in &innocent {
        world.drop_pod(&Pod::running(name));
    }
    let running = |status: &Status| innocent.iter().all(|name| status.runs(name));
    world.wait("the innocent run", running);
    let ids = || -> BTreeMap<&String, Vec<String>> {
        innocent.iter().map(|name| (name, world.running_ids(name))).collect()
    };
    let before = ids();
    world.drop_pod(&Pod::with_main("hog", HOG).set("restartPolicy", "Never"));
    let mut held = false;
    let status = world.wait("the hog is evicted", |status| {
        held |= holds(status, Pressure::Memory);
        reason(status, "hog") == "Evicted"
    });
    let hog = status.pod("hog").unwrap();
    let message = hog.status.message.as_deref().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    assert!(message.contains("Container main was using "), "{message}");
    let conditions = hog.status.conditions.as_ref().unwrap();
    assert!(conditions.iter().any(|c| c.type_ == "DisruptionTarget" && c.status == "True"));
    assert!(world.sandboxes("hog").is_empty(), "nothing of it is left");
    assert!(held, "the pressure was shown");
    for reason in ["Evicted", "EvictionThresholdMet", "NodeHasInsufficientMemory"] {
        assert!(has_event(&status, reason), "{reason} in {:#?}", status.events);
    }
    assert_eq!(before, ids(), "nobody else is touched");

    // Killed while the hog is away: the next one knows.
    world.agent.kill();
    world.agent.start();
    let status = world
        .wait("all is found again", |status| running(status) && !reason(status, "hog").is_empty());
    assert_eq!(reason(&status, "hog"), "Evicted");
    let watched = |status: &Status| {
        let mut signals = status.node.pressure.signals.iter();
        signals.any(|one| one.signal == Signal::AllocatableMemoryAvailable && !one.crossed)
    };
    let over = |status: &Status| watched(status) && !holds(status, Pressure::Memory);
    let status = world.wait("the pressure is over", over);
    assert_eq!(reason(&status, "hog"), "Evicted", "its own pause is longer");
    let text = world.agent.cli(&["status"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for expected in ["Pressure: none", "allocatableMemory.available", "default/hog-node1 evicted "]
    {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
    // Its pause is half a minute; then it begins anew, although it is never restarted.
    let again = Duration::from_secs(60);
    world.wait_for(again, "it begins anew", |status| status.runs("hog"));
    world.wait("and is evicted again", |status| reason(status, "hog") == "Evicted");
    assert_eq!(before, ids(), "nobody else is touched");
    world.finish();
}

/// Pods beyond `maxPods` are refused, and tried again when there is room.
pub fn more_pods_than_the_node_takes_wait_for_room(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("maxPods: 3\n");
    let world = World::start_with(kind, &settings);
    for name in ["a", "b", "c"] {
        world.drop_pod(&Pod::running(name));
    }
    world.wait("three run", |s| s.runs("a") && s.runs("b") && s.runs("c"));
    for name in ["d", "e"] {
        world.drop_pod(&Pod::running(name));
    }
    let status = world.wait("two are refused", |status| {
        ["d", "e"].iter().all(|name| reason(status, name) == "OutOfpods")
    });
    let message = status.pod("d").unwrap().status.message.clone().unwrap();
    let expected = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    assert_eq!(message, expected);
    assert!(has_event(&status, "OutOfpods"));
    world.agent.kill();
    world.agent.start();
    let status = world.wait("all is found again", |s| {
        s.runs("a") && s.runs("b") && s.runs("c") && s.pod("e").is_some()
    });
    assert!(!status.runs("d") && !status.runs("e"));
    world.remove("a.yaml");
    world.wait("one of them takes the place", |s| {
        s.runs("d") != s.runs("e") && s.pod("a").is_none()
    });
    world.finish();
}

/// Who was refused is let in by importance when there is room, and critical pods stop others for
/// it.
pub fn admission_goes_by_priority_and_critical_pods_preempt(kind: Kind) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let part =
        |parts: usize| json!({ "requests": { "cpu": format!("{}m", cpus * 1000 * parts / 10) } });
    let asks = |name: &str, parts| Pod::running(name).set("containers/0/resources", part(parts));
    let world = World::start(kind);
    world.drop_pod(&asks("a", 4));
    world.drop_pod(&asks("b", 4).set("priority", 5));
    world.wait("two run", |s| s.runs("a") && s.runs("b"));
    // The first to come is not the first to be let in.
    for (name, priority) in [("low", 1), ("high", 20), ("middle", 10)] {
        world.drop_pod(&asks(name, 4).set("priority", priority));
        world.wait("it is refused", |status| reason(status, name) == "OutOfcpu");
    }
    let b = world.running_ids("b");
    world.remove("a.yaml");
    let status = world.wait("the most important runs", |status| status.runs("high"));
    assert_eq!(["low", "middle"].map(|name| reason(&status, name)), ["OutOfcpu"; 2]);

    let critical = asks("critical", 5).set("priorityClassName", "system-node-critical");
    world.drop_pod(&critical);
    let status = world.wait("the critical one runs", |status| status.runs("critical"));
    // The least important that is large enough; once it has stopped, it is refused like the others.
    assert!(["Preempting", "OutOfcpu"].contains(&reason(&status, "b")), "{status:?}");
    let told = status.events.iter().filter(|event| event["reason"] == "Preempting");
    let told: Vec<&str> =
        told.filter_map(|event| event["involvedObject"]["name"].as_str()).collect();
    assert_eq!(told, ["b-node1"]);
    assert!(world.running_ids("b").is_empty() && status.runs("high"));
    world.remove("critical.yaml");
    let status = world.wait("there is room again", |status| status.runs("middle"));
    assert!(status.runs("high") && !status.runs("b") && !status.runs("low"));
    world.remove("middle.yaml");
    world.wait("it comes back", |status| status.runs("b"));
    assert_ne!(world.running_ids("b"), b, "as if it had never run");
    world.finish();
}

/// 130 manifests lie there at the start of a node that takes 110: the most important run, the
/// others wait their turn. Who that is does not depend on the runtime, so this runs on the fake only;
/// 110 pods at once on a real containerd are `lifecycle::many_pods_at_once`.
pub fn more_manifests_than_the_node_takes_at_its_start(kind: Kind) {
    const MANIFESTS: usize = 130;
    const MOST: usize = 110;
    let settings = Settings::for_kind(kind).kubelet(&format!("maxPods: {MOST}\n"));
    let world = World::prepare(kind, &settings);
    let names: Vec<String> = (0..MANIFESTS).map(|n| format!("pod{n:03}")).collect();
    // The last by name, and the last to be written, is the first by priority.
    let (important, others) = names.split_last().unwrap();
    for name in others {
        world.drop_pod(&Pod::running(name));
    }
    world.drop_pod(&Pod::running(important).set("priority", 1000));
    world.agent.start();
    let several = Duration::from_secs(180);
    let status = world.wait_for(several, "as many run as the node takes", |status| {
        let refused = |name: &&String| reason(status, name) == "OutOfpods";
        names.iter().filter(|name| status.runs(name)).count() == MOST
            && names.iter().filter(refused).count() == MANIFESTS - MOST
    });
    assert!(status.runs(important));
    world.remove(&format!("{important}.yaml"));
    world.wait_for(several, "another one takes the place", |status| {
        status.pod(important).is_none()
            && names.iter().filter(|name| status.runs(name)).count() == MOST
    });
    world.check_usage(130);
    for name in others {
        world.remove(&format!("{name}.yaml"));
    }
    world.wait_for(several, "every pod is gone", |status| status.pods.is_empty());
    world.remove_all();
}

/// A pod that requests more than there is says so.
pub fn a_pod_that_requests_too_much_is_refused(kind: Kind) {
    let world = World::start(kind);
    let requests = json!({ "requests": { "cpu": "4000" } });
    world.drop_pod(&Pod::with_main("big", FOREVER).set("containers/0/resources", requests));
    let status = world.wait("it is refused", |status| reason(status, "big") == "OutOfcpu");
    let message = status.pod("big").unwrap().status.message.clone().unwrap();
    assert!(message.contains("requested: 4000000, used: 0, capacity: "), "{message}");
    world.drop_pod(&Pod::with_main("big", FOREVER));
    world.wait_running("big");
    world.finish();
}

/// The signals are shown with their thresholds.
pub fn signals_are_shown(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet(
        "evictionHard: { memory.available: 1Mi, nodefs.available: 1Mi, pid.available: \"10\" }\n",
    );
    let world = World::start_with(kind, &settings);
    let status = world.wait("the signals are read", |status| {
        let signals = &status.node.pressure.signals;
        signals.len() >= 3 && signals.iter().filter(|s| s.available.is_some()).count() >= 3
    });
    let signals: Vec<Signal> = status.node.pressure.signals.iter().map(|s| s.signal).collect();
    for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
        assert!(signals.contains(&signal), "{signal} in {signals:?}");
    }
    world.finish();
}
