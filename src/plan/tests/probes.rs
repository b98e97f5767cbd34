//! What the results of probes do to a pod.

use super::world::{Program, World, container};
use crate::model::{ContainerId, ProbeResults};
use serde_json::{Value, json};

/// A container with these probes. What a probe asks does not matter here.
fn probed(name: &str, probes: &[&str]) -> Value {
    let mut container = container(name);
    for probe in probes {
        container[format!("{probe}Probe")] = json!({"exec": {"command": ["true"]}});
    }
    container
}

fn instance(world: &World, name: &str) -> ContainerId {
    let running = world.truth.containers.iter().find(|c| &*c.name == name && c.state.is_running());
    running.expect("runs").id.clone()
}

/// The prober publishes a result about the instance that runs.
fn result(world: &mut World, name: &str, set: impl FnOnce(&mut ProbeResults)) {
    let id = instance(world, name);
    set(world.probes.entry(id).or_default());
    world.run();
}

#[test]
fn a_container_is_ready_as_its_readiness_probe_says() {
    let mut world = World::of(&json!({"containers": [probed("web", &["readiness"])]}));
    world.run();
    assert_eq!(world.line(), "Running 0/1 0");
    result(&mut world, "web", |results| results.readiness = Some(true));
    assert_eq!(world.line(), "Running 1/1 0");
    result(&mut world, "web", |results| results.readiness = Some(false));
    assert_eq!(world.line(), "Running 0/1 0");
    assert_eq!(world.truth.containers.len(), 1, "readiness restarts nothing");
}

#[test]
fn a_ready_container_stays_ready_over_a_restart_of_the_agent() {
    let spec = json!({"containers": [probed("web", &["startup", "readiness"])]});
    let mut world = World::of(&spec);
    world.run();
    result(&mut world, "web", |results| results.startup = Some(true));
    assert_eq!(world.line(), "Running 0/1 0");
    result(&mut world, "web", |results| results.readiness = Some(true));
    let ready = world.status.clone();
    world.take_trace();
    world.restart_agent();
    world.advance(60);
    world.run();
    assert_eq!(world.status, ready);
    let trace = world.take_trace();
    assert!(!trace.contains("= "), "the status has changed: {trace}");
    // Its successor is another instance.
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "Running 0/1 1");
}

#[test]
fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let mut web = probed("web", &["liveness"]);
    web["livenessProbe"]["terminationGracePeriodSeconds"] = json!(7);
    let mut world = World::of(&json!({"containers": [web], "restartPolicy": "OnFailure"}));
    // It ends with success when it is told to.
    world.on_term = 0;
    world.run();
    world.take_trace();
    result(&mut world, "web", |results| results.liveness = Some(false));
    let trace = world.take_trace();
    assert!(trace.contains("kill web (grace 7 s)"), "the grace period of the probe: {trace}");
    assert!(!trace.contains("Completed"), "it has not ended for good: {trace}");
    assert_eq!(world.line(), "Running 1/1 1");
    // The restart counts as one after a crash: the next one waits.
    result(&mut world, "web", |results| results.liveness = Some(false));
    assert_eq!(world.line(), "CrashLoopBackOff 0/1 1");
    world.advance(11);
    assert_eq!(world.line(), "Running 1/1 2");
}

/// Otherwise, a job that then ends with success hours later would start again.
#[test]
fn a_kill_that_a_crash_has_interrupted_is_repeated() {
    let web = probed("web", &["liveness"]);
    let mut world = World::of(&json!({"containers": [web], "restartPolicy": "OnFailure"}));
    world.run();
    let next = world.count + 1;
    world.die_at(next, true);
    result(&mut world, "web", |results| results.liveness = Some(false));
    let trace = world.take_trace();
    let (_, after) = trace.split_once("agent restarted").unwrap();
    assert!(after.contains("kill web (grace 30 s)"), "{trace}");
    assert_eq!(world.line(), "Running 1/1 1");
}

#[test]
fn a_failed_probe_restarts_at_once_after_a_long_run() {
    let mut world = World::of(&json!({"containers": [probed("web", &["liveness"])]}));
    world.run();
    // The delays are 0, 10, 20, 40 and 80 s.
    for restarts in 1..=4 {
        world.advance(60);
        result(&mut world, "web", |results| results.liveness = Some(false));
        assert_eq!(world.line(), format!("Running 1/1 {restarts}"));
    }
    world.advance(60);
    result(&mut world, "web", |results| results.liveness = Some(false));
    assert_eq!(world.line(), "CrashLoopBackOff 0/1 4");
    world.advance(81);
    assert_eq!(world.line(), "Running 1/1 5");
    // An end of its own waits, however long it has run.
    world.advance(200);
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "CrashLoopBackOff 0/1 5");
}

#[test]
fn a_failed_probe_ends_a_container_that_is_never_restarted() {
    for set in [(|results| results.liveness = Some(false)) as fn(&mut ProbeResults), |results| {
        results.startup = Some(false);
    }] {
        let web = probed("web", &["startup", "liveness"]);
        let mut world = World::of(&json!({"containers": [web], "restartPolicy": "Never"}));
        world.run();
        // It ends with success when it is told to, and that counts.
        world.on_term = 0;
        result(&mut world, "web", set);
        assert_eq!(world.line(), "Completed 0/1 0");
    }
}

#[test]
fn a_sidecar_holds_up_the_rest_until_it_has_started() {
    let mut sidecar = probed("proxy", &["startup", "liveness"]);
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({
        "initContainers": [sidecar, container("warm")],
        "containers": [container("web")],
    });
    let mut world = World::of(&spec).program("warm", &[Program::Ends(1, 0)]);
    world.run();
    assert_eq!(world.line(), "Init:0/2 0/2 0");
    result(&mut world, "proxy", |results| results.startup = Some(false));
    assert_eq!(world.line(), "Init:0/2 0/2 1", "{}", world.take_trace());
    world.take_trace();
    result(&mut world, "proxy", |results| results.startup = Some(true));
    world.advance(5);
    assert_eq!(world.line(), "Running 2/2 1");
    result(&mut world, "proxy", |results| results.liveness = Some(false));
    assert_eq!(world.line(), "Running 1/2 1");
    world.advance(20);
    assert_eq!(world.line(), "Running 1/2 2", "it has yet to start again");
}
