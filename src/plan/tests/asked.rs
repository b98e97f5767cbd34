//! What a person asks for: restarts of instances, and the end of back-offs.

use super::world::{Fault, Program, World, container};
use crate::{
    model::{Asked, ContainerId, ContainerInstance, PodKey, PodView, k8s},
    plan::{NoRestart, select_restarts},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

fn sidecar(name: &str) -> Value {
    json!({"name": name, "image": "registry/sidecar:1", "restartPolicy": "Always"})
}

fn rich() -> Value {
    json!({
        "initContainers": [container("setup"), sidecar("proxy"), sidecar("logs")],
        "containers": [container("web"), container("api")],
    })
}

fn running(spec: &Value) -> World {
    let mut world = World::of(spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world
}

fn id_of(world: &World, name: &str) -> ContainerId {
    let all = world.truth.containers.iter().filter(|c| &*c.name == name);
    all.max_by_key(|c| c.restart_count).unwrap().id.clone()
}

fn restart(world: &mut World, names: &[&str]) {
    let restart: BTreeSet<ContainerId> = names.iter().map(|name| id_of(world, name)).collect();
    world.memory.ask(&Asked { number: 1, uid: "a".into(), restart, retry: false });
}

fn retry(world: &mut World) {
    let restart = BTreeSet::new();
    world.memory.ask(&Asked { number: 1, uid: "a".into(), restart, retry: true });
}

/// The restart counts of the newest instances.
fn counts(world: &World) -> Vec<String> {
    let names = ["setup", "proxy", "logs", "web", "api"];
    let newest = names.iter().filter_map(|name| {
        let all = world.truth.containers.iter().filter(|c| &*c.name == *name);
        all.max_by_key(|c| c.restart_count)
    });
    newest.map(|c| format!("{} {}", c.name, c.restart_count)).collect()
}

const ALL: [&str; 4] = ["proxy", "logs", "web", "api"];
const RESTARTED: [&str; 4] = ["proxy 1", "logs 1", "web 1", "api 1"];

#[test]
fn all_containers_restart_at_once_in_their_sandbox() {
    let mut world = running(&rich());
    restart(&mut world, &ALL);
    world.run();
    let trace = world.take_trace();
    let actions: Vec<&str> = trace.lines().filter_map(|line| line.get(5..)).collect();
    let expected = [
        "kill pod (asked) [web 30 s, api 30 s] [logs 30 s] [proxy 30 s]",
        "= PodInitializing 0/4 0",
        "prepare",
        "start proxy (restart 1)",
        "start logs (restart 1)",
        "start web (restart 1)",
        "start api (restart 1)",
        "= Running 4/4 4",
    ];
    assert_eq!(actions, expected, "{trace}");
    assert_eq!(world.truth.sandboxes.len(), 1);
    // The order is carried out: nothing more happens.
    world.advance(100);
    assert_eq!(world.take_trace().trim(), "");
}

#[test]
fn one_container_restarts_without_the_others() {
    let mut world = running(&rich());
    let api = id_of(&world, "api");
    restart(&mut world, &["web"]);
    world.list();
    let plan = world.plan();
    let [crate::plan::Action::KillPod(kill)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    let event = &kill.groups[0][0].event;
    assert_eq!(event.reason, "Killing");
    assert_eq!(event.message, "Container web will be restarted: a person has asked for it");
    let shown = "container web is being restarted: a person has asked for it";
    assert_eq!(plan.blocked.as_deref(), Some(shown));
    world.run();
    assert_eq!(counts(&world)[1..], ["proxy 0", "logs 0", "web 1", "api 0"]);
    assert_eq!(id_of(&world, "api"), api);
}

#[test]
fn a_restart_that_is_withheld_is_not_shown() {
    let mut world = running(&rich());
    restart(&mut world, &ALL);
    world.list();
    let shown = "containers web, api, logs, proxy are being restarted: a person has asked for it";
    assert_eq!(world.plan().blocked.as_deref(), Some(shown));
    world.keep = true;
    assert_eq!(world.plan().blocked.as_deref(), Some("kept"));
}

#[test]
fn an_agent_that_dies_during_a_restart_finishes_it_once() {
    for before in [true, false] {
        for step in 1..=6 {
            let mut world = running(&rich());
            restart(&mut world, &ALL);
            world.die_at(world.count + step, before);
            world.run();
            let trace = world.take_trace();
            assert!(trace.contains("agent restarted"), "{before} {step}:{trace}");
            assert_eq!(counts(&world)[1..], RESTARTED, "{before} {step}:{trace}");
            assert_eq!(world.truth.sandboxes.len(), 1);
        }
    }
}

#[test]
fn a_repeated_request_restarts_no_later_instance() {
    let mut world = running(&rich());
    let ids: BTreeSet<ContainerId> = ALL.iter().map(|name| id_of(&world, name)).collect();
    for number in 1..4 {
        let restart = ids.clone();
        world.memory.ask(&Asked { number, uid: "a".into(), restart, retry: false });
        world.run();
    }
    assert_eq!(counts(&world)[1..], RESTARTED);
}

#[test]
fn a_failed_stop_is_tried_again() {
    let mut world = running(&rich());
    world.fault(Fault::Kill);
    restart(&mut world, &ALL);
    world.run();
    assert_eq!(counts(&world)[1..], ["proxy 0", "logs 0", "web 0", "api 0"]);
    world.advance(2);
    assert_eq!(counts(&world)[1..], RESTARTED);
}

#[test]
fn a_restart_ends_a_back_off_and_counts_as_no_crash() {
    let spec = json!({"containers": [container("web")]});
    let programs = [Program::Ends(1, 1), Program::Ends(1, 1), Program::Ends(1, 1)];
    let mut world = World::of(&spec).program("web", &programs);
    world.run();
    // The first restart was immediate, and the second waits until 10 s after the end.
    world.advance(3);
    assert_eq!(counts(&world), ["web 1"]);
    let crash = world.memory.of(&"a".into()).container("web").ends.crash.clone();
    restart(&mut world, &["web"]);
    world.run();
    assert_eq!(counts(&world), ["web 2"]);
    assert_eq!(world.memory.of(&"a".into()).container("web").ends.crash, crash);
    // The next crash waits as long as the one before.
    world.advance(9);
    assert_eq!(counts(&world), ["web 2"]);
    world.advance(3);
    assert_eq!(counts(&world), ["web 3"]);
}

#[test]
fn a_container_that_ends_for_good_before_its_restart_stays_ended() {
    let mut world =
        running(&json!({"restartPolicy": "OnFailure", "containers": [container("web")]}));
    restart(&mut world, &["web"]);
    world.kill("web", 0);
    world.run();
    assert_eq!(counts(&world), ["web 0"]);
    assert_eq!(world.line(), "Completed 0/1 0");
}

#[test]
fn a_running_container_that_is_never_restarted_restarts_when_asked() {
    let mut world = running(&json!({"restartPolicy": "Never", "containers": [container("web")]}));
    world.on_term = 0;
    restart(&mut world, &["web"]);
    world.run();
    assert_eq!(counts(&world), ["web 1"]);
    assert_eq!(world.line(), "Running 1/1 1");
}

#[test]
fn a_retry_ends_every_back_off() {
    let spec = json!({"containers": [container("web")]});
    for fault in [Fault::Prepare, Fault::Sandbox, Fault::Pull, Fault::Config, Fault::Create] {
        let mut world = World::of(&spec);
        for _ in 0..2 {
            world.fault(fault);
        }
        world.run();
        for _ in 0..2 {
            assert!(world.running("web").is_none(), "{fault:?}");
            retry(&mut world);
            world.run();
        }
        assert!(world.running("web").is_some(), "{fault:?}:{}", world.take_trace());
    }
    let mut world = World::of(&spec).program("web", &[Program::Ends(1, 1)]);
    world.run();
    world.advance(3);
    assert_eq!(world.line(), "CrashLoopBackOff 0/1 1");
    let crashed = id_of(&world, "web");
    assert!(world.memory.of(&"a".into()).container("web").ends.crash.is_some());
    retry(&mut world);
    world.list();
    let plan = world.plan();
    let start = plan.actions.last().map(ToString::to_string);
    assert_eq!(start.as_deref(), Some("start web (restart 2)"), "after {crashed}");
}

/// A view whose containers are in these states: `running`, `waiting`, or an exit code.
fn view(policy: &str, ended: bool, states: &[(&str, Value)]) -> PodView {
    let spec = json!({
        "restartPolicy": policy,
        "initContainers": [container("setup"), sidecar("proxy")],
        "containers": [container("web"), container("api")],
        "ephemeralContainers": [container("debug")],
    });
    let pod: k8s::Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
    let state = |state: &Value| match state.as_str() {
        Some(name) => json!({name: {}}),
        None => json!({"terminated": {"exitCode": state}}),
    };
    let statuses: Vec<Value> = states
        .iter()
        .map(|(name, found)| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                   "state": state(found)})
        })
        .collect();
    let phase = if ended { "Succeeded" } else { "Running" };
    let status = json!({"phase": phase, "containerStatuses": statuses});
    let status = serde_json::from_value(status).unwrap();
    let instances = states.iter().map(|(name, _)| ContainerInstance {
        name: (*name).into(),
        id: format!("id of {name}").into(),
        restart_count: 0,
        running_since: None,
        started: false,
        in_post_start: false,
    });
    PodView {
        key: PodKey::new("default", "web-n1"),
        uid: "a".into(),
        pod: Some(Arc::new(pod)),
        status: Arc::new(status),
        containers: instances.collect(),
        origin: None,
        config: crate::model::PodConfig::Desired,
        terminating: false,
        stopped: false,
        hung: None,
        waiting: None,
        update: None,
        previous: None,
        probes: Vec::new(),
    }
}

#[test]
fn a_restart_takes_what_runs_and_what_is_backed_off() {
    let states = [("setup", json!(0)), ("proxy", json!("running")), ("web", json!("waiting"))];
    let restarts = select_restarts(&view("Always", false, &states), None).unwrap();
    assert_eq!(restarts.names, ["proxy", "web"]);
    let ids: Vec<&str> = restarts.ids.iter().map(ContainerId::as_str).collect();
    assert_eq!(ids, ["id of proxy", "id of web"]);
    let one = select_restarts(&view("Always", false, &states), Some("web")).unwrap();
    assert_eq!((one.names, one.ids.len()), (vec!["web".to_owned()], 1));
}

#[test]
fn what_has_ended_for_good_is_not_restarted() {
    for (policy, code, stays) in [
        ("Always", 0, false),
        ("Always", 1, false),
        ("OnFailure", 0, true),
        ("OnFailure", 1, false),
        ("Never", 0, true),
        ("Never", 1, true),
    ] {
        let view = view(policy, false, &[("web", json!(code)), ("api", json!("running"))]);
        let restarts = select_restarts(&view, None).unwrap();
        assert_eq!(restarts.ended.contains(&"web".to_owned()), stays, "{policy} {code}");
        assert_eq!(select_restarts(&view, Some("web")).is_err(), stays, "{policy} {code}");
    }
    let ended = view("OnFailure", true, &[("web", json!(0)), ("api", json!(1))]);
    let names = vec!["web".to_owned(), "api".to_owned()];
    assert_eq!(select_restarts(&ended, None), Err(NoRestart::Ended { names, is_static: false }));
}

#[test]
fn what_cannot_be_restarted_is_refused_with_its_reason() {
    let states = [("setup", json!("running"))];
    let view = view("Always", false, &states);
    for (container, part) in [
        (None, "none of its containers has started yet"),
        (Some("setup"), "is an init container"),
        (Some("debug"), "is an ephemeral container"),
        (Some("wbe"), "has no container wbe; there are proxy, web, api"),
    ] {
        let error = select_restarts(&view, container).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let lost = PodView { pod: None, ..view };
    assert_eq!(select_restarts(&lost, None), Err(NoRestart::NoSpec));
}
