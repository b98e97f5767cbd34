//! A pod that is not to run for now: what of it goes, how, what is shown, and that it begins anew.

use super::world::{Fault, Want, World, container, desired};
use crate::model::{Hold, HoldStop};
use serde_json::{Value, json};

fn web(grace: u32) -> Value {
    json!({"containers": [container("web")], "terminationGracePeriodSeconds": grace})
}

fn hold(stop: HoldStop) -> Hold {
    Hold {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        stop,
        disruption: Some((
            "TerminationByKubelet".to_owned(),
            "The node was low on resource: memory. ".to_owned(),
        )),
    }
}

fn running(spec: &Value) -> World {
    let mut world = World::of(spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world
}

fn first_action(world: &mut World) -> String {
    world.list();
    world.plan().actions.first().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn the_grace_period_is_never_longer_than_the_hold_leaves() {
    for (grace, stop, expected) in [
        (30, HoldStop::AtOnce, "kill pod (retire) [web 2 s] s1"),
        (30, HoldStop::Within(7), "kill pod (retire) [web 7 s] s1"),
        (5, HoldStop::Within(7), "kill pod (retire) [web 5 s] s1"),
        (30, HoldStop::Within(1), "kill pod (retire) [web 2 s] s1"),
    ] {
        let mut world = running(&web(grace));
        world.hold = Some(("a".into(), hold(stop)));
        assert_eq!(first_action(&mut world), expected, "{grace} {stop:?}");
    }
}

#[test]
fn a_hold_never_prolongs_a_stop_and_may_shorten_it() {
    for (passed, stop, expected) in [
        (3, HoldStop::Within(7), "kill pod (retire) [web 7 s] s1"),
        (28, HoldStop::Within(7), "kill pod (retire) [web 2 s] s1"),
        (10, HoldStop::AtOnce, "kill pod (retire) [web 2 s] s1"),
    ] {
        let mut world = running(&web(30));
        world.want = Want::Gone;
        world.fault(Fault::Kill);
        world.list();
        let plan = world.plan();
        world.perform(&plan.actions[0]);
        world.pass_time(std::time::Duration::from_secs(passed));
        world.hold = Some(("a".into(), hold(stop)));
        assert_eq!(first_action(&mut world), expected, "{passed} {stop:?}");
    }
}

#[test]
fn nothing_of_a_held_pod_stays_and_its_status_says_why() {
    let mut world = running(&web(30));
    world.hold = Some(("a".into(), hold(HoldStop::AtOnce)));
    world.run();
    assert!(world.truth.containers.is_empty() && world.truth.sandboxes.is_empty());
    assert!(world.records.is_empty());
    let status = world.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(status.message.as_deref(), Some("The node was low on resource: memory. "));
    let conditions = status.conditions.unwrap();
    assert_eq!(conditions[0].type_, "DisruptionTarget");
    assert_eq!(conditions[0].reason.as_deref(), Some("TerminationByKubelet"));
    world.advance(600);
    assert!(world.truth.sandboxes.is_empty(), "{}", world.take_trace());
}

#[test]
fn it_begins_anew_when_the_hold_is_lifted_whatever_its_policy() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut spec = web(1);
        spec["restartPolicy"] = json!(policy);
        let mut world = running(&spec);
        world.hold = Some(("a".into(), hold(HoldStop::AtOnce)));
        world.run();
        world.restart_agent();
        world.run();
        assert!(world.truth.sandboxes.is_empty());
        world.lift();
        world.run();
        assert_eq!(world.line(), "Running 1/1 0", "{policy}: {}", world.take_trace());
    }
}

/// The kill is written down before it begins: what is half gone is not taken up again.
#[test]
fn a_hold_that_is_lifted_in_the_middle_is_carried_out_first() {
    for actions in 1..=3 {
        let mut world = running(&web(30));
        world.hold = Some(("a".into(), hold(HoldStop::Within(5))));
        world.list();
        let plan = world.plan();
        for action in plan.actions.iter().take(actions) {
            world.perform(action);
        }
        world.restart_agent();
        world.lift();
        world.run();
        assert_eq!(world.line(), "Running 1/1 0", "{actions}: {}", world.take_trace());
        assert_eq!(world.truth.sandboxes.len(), 1);
        let trace = world.take_trace();
        assert_eq!(world.truth.sandboxes[0].attempt, 0, "{trace}");
    }
}

#[test]
fn a_pod_that_was_refused_before_it_ran_leaves_no_trace() {
    let mut world = World::of(&web(30));
    world.hold = Some(("a".into(), hold(HoldStop::AtOnce)));
    world.run();
    assert_eq!(world.take_trace().matches("create sandbox").count(), 0);
    assert!(world.records.is_empty());
    assert_eq!(world.plan.blocked.as_deref(), Some("The node was low on resource: memory. "));
    world.lift();
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
}

#[test]
fn a_job_that_has_ended_is_not_held() {
    let mut spec = web(30);
    spec["restartPolicy"] = json!("Never");
    let mut world = running(&spec);
    world.kill("web", 0);
    world.run();
    world.hold = Some(("a".into(), hold(HoldStop::AtOnce)));
    world.run();
    assert_eq!(world.line(), "Completed 0/1 0");
    world.lift();
    world.run();
    assert_eq!(world.line(), "Completed 0/1 0");
}

/// The end was not known yet when the hold was decided. The first try, a second earlier, has failed.
#[test]
fn sidecars_of_a_job_that_has_ended_stop_within_the_hold() {
    for (stop, expected) in [
        (HoldStop::Within(7), "kill pod (end) [proxy 6 s] s1"),
        (HoldStop::AtOnce, "kill pod (end) [proxy 2 s] s1"),
    ] {
        let mut spec = web(30);
        spec["restartPolicy"] = json!("Never");
        let mut sidecar = container("proxy");
        sidecar["restartPolicy"] = json!("Always");
        spec["initContainers"] = json!([sidecar]);
        let mut world = running(&spec);
        world.kill("web", 0);
        world.fault(Fault::Kill);
        world.run();
        world.hold = Some(("a".into(), hold(stop)));
        world.advance(2);
        let trace = world.take_trace();
        assert!(trace.contains(expected), "{stop:?}:{trace}");
        assert_eq!(world.line(), "Completed 0/2 0", "{trace}");
    }
}

#[test]
fn another_incarnation_under_the_name_is_not_meant() {
    let mut world = running(&web(30));
    world.hold = Some(("a".into(), hold(HoldStop::AtOnce)));
    world.want = Want::Run(Box::new(desired("b", &web(30))));
    world.run();
    assert_eq!(world.line(), "Running 1/1 0", "{}", world.take_trace());
    assert!(world.truth.sandboxes.iter().all(|sandbox| sandbox.uid.as_str() == "b"));
}

#[test]
fn a_container_that_ends_by_itself_meanwhile_is_not_restarted() {
    let mut world = running(&web(30));
    world.kill("web", 1);
    world.hold = Some(("a".into(), hold(HoldStop::Within(10))));
    world.run();
    assert!(world.truth.containers.is_empty() && world.records.is_empty());
    assert_eq!(world.take_trace().matches("start web").count(), 0);
}

#[test]
fn waiting_for_room_delays_only_pods_that_have_not_begun() {
    let mut world = World::of(&web(30));
    world.waits = Some("waiting for room");
    world.run();
    assert!(world.truth.sandboxes.is_empty());
    assert_eq!(world.plan.blocked.as_deref(), Some("waiting for room"));
    world.waits = None;
    world.run();
    world.waits = Some("waiting for room");
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "Running 1/1 1");
}
