//! A shutdown of the machine: who ends when, with how much time, what is shown, and that nothing of
//! it stays.

use super::world::{Fault, Want, World, container, desired};
use crate::{
    model::{ContainerState, SandboxState, Shutdown, ShutdownPeriods},
    plan::{Action, Restart},
};
use serde_json::{Value, json};
use std::time::Duration;

fn web() -> Value {
    json!({"containers": [container("web")]})
}

/// 20 s for ordinary pods, then 10 s for critical ones.
fn shutdown(turn: usize) -> Option<Shutdown> {
    let periods = ShutdownPeriods::of_total(Duration::from_secs(30), Duration::from_secs(10));
    Some(Shutdown { periods, turn })
}

fn running(spec: &Value) -> World {
    let mut world = World::of(spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world
}

fn actions(world: &mut World) -> Vec<String> {
    world.list();
    world.plan = world.plan();
    world.plan.actions.iter().map(ToString::to_string).collect()
}

fn reason(world: &World) -> Option<&str> {
    world.status.as_ref()?.reason.as_deref()
}

#[test]
fn the_shutdown_grace_period_begins_with_the_turn_of_the_pod() {
    let critical = 2_000_000_000;
    for (priority, grace, turn, expected) in [
        (Value::Null, 7, 0, vec!["kill pod (shutdown) [web 7 s] s1"]),
        (Value::Null, 300, 0, vec!["kill pod (shutdown) [web 20 s] s1"]),
        (json!(-4), 300, 1, vec!["kill pod (shutdown) [web 20 s] s1"]),
        (json!(critical), 300, 0, vec![]),
        (json!(critical), 300, 1, vec!["kill pod (shutdown) [web 10 s] s1"]),
        (json!(critical), 0, 1, vec!["kill pod (shutdown) [web 2 s] s1"]),
    ] {
        let mut spec = web();
        spec["priority"] = priority.clone();
        spec["terminationGracePeriodSeconds"] = json!(grace);
        let mut world = running(&spec);
        world.shutdown = shutdown(turn);
        assert_eq!(actions(&mut world), expected, "{priority} {grace} {turn}");
    }
}

#[test]
fn sidecars_end_last() {
    let sidecar = json!({"name": "proxy", "image": "registry/proxy:1", "restartPolicy": "Always"});
    let mut world =
        running(&json!({"initContainers": [sidecar], "containers": [container("web")]}));
    world.shutdown = shutdown(0);
    assert_eq!(actions(&mut world), ["kill pod (shutdown) [web 20 s] [proxy 20 s] s1"]);
}

/// The first try, a second earlier, has failed.
#[test]
fn sidecars_of_a_pod_that_has_ended_stop_within_the_shutdown() {
    for (grace, turn, expected) in [
        (300, 0, "kill pod (end) [proxy 19 s] s1"),
        (7, 0, "kill pod (end) [proxy 6 s] s1"),
        (300, 1, "kill pod (end) [proxy 19 s] s1"),
    ] {
        let sidecar =
            json!({"name": "proxy", "image": "registry/proxy:1", "restartPolicy": "Always"});
        let mut world = running(&json!({
            "restartPolicy": "Never",
            "initContainers": [sidecar],
            "containers": [container("web")],
            "terminationGracePeriodSeconds": grace,
        }));
        world.kill("web", 0);
        world.fault(Fault::Kill);
        world.run();
        world.shutdown = shutdown(turn);
        world.advance(2);
        let trace = world.take_trace();
        assert!(trace.contains(expected), "{grace} {turn}:{trace}");
        assert_eq!(world.line(), "Completed 0/2 0", "{trace}");
    }
}

#[test]
fn a_pod_that_is_being_removed_stops_within_the_shutdown() {
    for (passed, turn, expected) in [
        (0, None, "kill pod (retire) [web 300 s] s1"),
        (0, Some(0), "kill pod (retire) [web 20 s] s1"),
        (295, Some(0), "kill pod (retire) [web 5 s] s1"),
    ] {
        let mut spec = web();
        spec["terminationGracePeriodSeconds"] = json!(300);
        let mut world = running(&spec);
        world.want = Want::Gone;
        if passed > 0 {
            world.fault(Fault::Kill);
            world.list();
            let plan = world.plan();
            world.perform(&plan.actions[0]);
            world.pass_time(Duration::from_secs(passed));
        }
        world.shutdown = turn.and_then(shutdown);
        assert_eq!(actions(&mut world)[0], expected, "{passed} {turn:?}");
    }
}

#[test]
fn a_pod_ended_by_a_shutdown_runs_again_after_the_boot() {
    let mut world = running(&web());
    world.shutdown = shutdown(0);
    world.run();
    let status = world.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Terminated"));
    let message = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(status.message.as_deref(), Some(message));
    let conditions = status.conditions.unwrap();
    let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(
        (target.status.as_str(), target.reason.as_deref()),
        ("True", Some("TerminationByKubelet"))
    );
    assert_eq!(target.message.as_deref(), Some(message));
    assert!(matches!(world.truth.containers[0].state, ContainerState::Exited { .. }));
    assert_eq!(world.truth.sandboxes[0].state, SandboxState::NotReady);
    world.advance(600);
    assert_eq!(world.truth.containers.len(), 1, "not restarted: {}", world.take_trace());
    assert!(world.records.values().all(|r| r.terminal.is_none() && r.kill.is_none()));

    world.shutdown = None;
    world.reboot();
    world.run();
    assert_eq!(world.line(), "Running 1/1 1", "{}", world.take_trace());
}

#[test]
fn a_cancelled_shutdown_restarts_every_pod_at_once() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut spec = web();
        spec["restartPolicy"] = json!(policy);
        let mut world = running(&spec);
        world.shutdown = shutdown(0);
        world.run();
        assert_eq!(reason(&world), Some("Terminated"));
        world.restart_agent();
        world.run();
        assert_eq!(reason(&world), Some("Terminated"), "the agent may come and go meanwhile");
        world.shutdown = None;
        world.run();
        assert_eq!(world.line(), "Running 1/1 1", "{policy}: {}", world.take_trace());
        let status = world.status.clone().unwrap();
        assert_eq!((status.reason, status.message), (None, None));
        let conditions = status.conditions.unwrap();
        assert!(conditions.iter().all(|c| c.type_ != "DisruptionTarget"), "{conditions:?}");
    }
}

#[test]
fn interrupted_containers_run_again_after_a_boot() {
    for (policy, exit_code, expected) in [
        ("Always", 0, "Running"),
        ("OnFailure", 0, "Running"),
        ("OnFailure", 143, "Running"),
        ("Never", 0, "Failed"),
        ("Never", 143, "Failed"),
    ] {
        let mut spec = web();
        spec["restartPolicy"] = json!(policy);
        let mut world = running(&spec);
        world.on_term = exit_code;
        world.shutdown = shutdown(0);
        world.run();
        world.shutdown = None;
        world.reboot();
        world.run();
        let phase = world.status.clone().unwrap().phase;
        assert_eq!(
            phase.as_deref(),
            Some(expected),
            "{policy} {exit_code}: {}",
            world.take_trace()
        );
    }
}

#[test]
fn a_pod_that_has_ended_by_itself_keeps_its_end() {
    let mut spec = web();
    spec["restartPolicy"] = json!("Never");
    let mut world = running(&spec);
    world.kill("web", 0);
    world.run();
    world.shutdown = shutdown(1);
    world.run();
    assert_eq!(world.line(), "Completed 0/1 0");
}

#[test]
fn a_pod_goes_on_until_its_turn() {
    let mut spec = web();
    spec["priority"] = json!(2_000_000_000);
    let mut world = running(&spec);
    world.shutdown = shutdown(0);
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "Running 1/1 1");
}

#[test]
fn no_pod_begins_while_the_machine_goes_down() {
    let mut world = World::of(&web());
    world.shutdown = shutdown(0);
    world.run();
    assert!(world.truth.sandboxes.is_empty());
    let trace = world.take_trace();
    let event = "event NodeShutdown Pod was rejected as the node is shutting down.";
    assert_eq!(trace.matches(event).count(), 1, "{trace}");
    let why = world.plan.blocked.as_deref();
    assert_eq!(why, Some("the node is shutting down: no pod is started any more"));
    world.shutdown = None;
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
}

#[test]
fn a_shutdown_ends_unconfirmed_pods_and_keeps_their_records() {
    let mut world = running(&web());
    world.want = Want::Undecided;
    world.shutdown = shutdown(0);
    assert_eq!(actions(&mut world), ["kill pod (shutdown) [web 20 s] s1"]);
    world.run();
    assert!(world.records.values().all(|record| record.kill.is_none()));
    world.shutdown = None;
    world.want = Want::Run(Box::new(desired("a", &web())));
    world.run();
    assert_eq!(world.line(), "Running 1/1 1");
}

#[test]
fn a_pod_that_is_only_kept_ends_as_well() {
    let mut world = running(&web());
    world.keep = true;
    world.shutdown = shutdown(0);
    assert_eq!(actions(&mut world), ["kill pod (shutdown) [web 20 s] s1"]);
}

#[test]
fn what_runs_ends_as_well_while_only_another_revision_is_kept() {
    let mut world = running(&web());
    let mut edited = web();
    edited["containers"][0]["image"] = json!("other");
    world.want_uid("b", &edited);
    world.keep = true;
    world.shutdown = shutdown(0);
    assert_eq!(actions(&mut world), ["kill pod (shutdown) [web 20 s] s1"]);
}

#[test]
fn what_cannot_be_stopped_is_tried_again() {
    let mut world = running(&web());
    world.shutdown = shutdown(0);
    world.fault(Fault::Kill);
    world.list();
    world.plan = world.plan();
    let [Action::KillPod(kill)] = &world.plan.actions[..] else { panic!("{:?}", world.plan) };
    assert!(kill.containers().all(|container| container.restart == Restart::AtOnce));
    world.run();
    assert!(world.plan.wake_at.is_some(), "{:?}", world.plan);
    world.advance(60);
    assert!(!world.truth.containers[0].state.is_running(), "{}", world.take_trace());
}
