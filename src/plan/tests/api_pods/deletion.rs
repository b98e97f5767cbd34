//! Deletion: a pod of the API server is stopped, and then its object may go.

use super::{
    super::world::{Fault, OWNER, Want, World, container, desired, from_api},
    actions, deleted, done, forget, hold, phase, running, shutdown, web,
};
use crate::model::{HoldStop, TerminalPhase};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_deleted_pod_stops_and_its_exit_codes_are_its_phase() {
    use TerminalPhase::{Failed, Succeeded};
    for (policy, code, expected) in [
        ("Always", 0, Succeeded),
        ("Always", 137, Failed),
        ("OnFailure", 0, Succeeded),
        ("Never", 143, Failed),
    ] {
        let mut spec = web();
        spec["restartPolicy"] = json!(policy);
        let mut world = running(&spec);
        world.on_term = code;
        world.end = deleted(30);
        let steps = done(&mut world);
        assert_eq!(steps, "kill pod (end) [web 30 s] s1, kill pod (end) s1, release", "{policy}");
        assert!(world.plan.stopped);
        assert_eq!(phase(&world), Some(expected), "{policy} {code}");
        assert_eq!(world.truth.containers.len(), 1, "its status and logs stay until it is gone");
        world.advance(600);
        assert_eq!(done(&mut world), "");
        forget(&mut world);
    }
}

#[test]
fn a_pod_with_an_end_of_its_own_keeps_it_when_it_is_deleted() {
    let mut spec = web();
    spec["restartPolicy"] = json!("Never");
    let mut world = running(&spec);
    world.kill("web", 0);
    world.run();
    assert_eq!(phase(&world), Some(TerminalPhase::Succeeded));
    assert!(world.plan.stopped, "before it is deleted");
    world.end = deleted(30);
    world.run();
    assert!(world.plan.stopped);
    assert_eq!(phase(&world), Some(TerminalPhase::Succeeded));
}

#[test]
fn a_deletion_grants_what_it_says_and_its_period_only_shrinks() {
    for (seconds, expected) in [(60, 60), (30, 30), (5, 5), (0, 2)] {
        let mut world = running(&web());
        world.end = deleted(seconds);
        assert_eq!(actions(&mut world), [format!("kill pod (end) [web {expected} s] s1")]);
    }
    let mut world = running(&web());
    let mut next = |end, passed| {
        world.end = end;
        world.fault(Fault::Kill);
        world.list();
        let plan = world.plan();
        let action = plan.actions[0].to_string();
        world.perform(&plan.actions[0]);
        world.pass_time(Duration::from_secs(passed));
        action
    };
    assert_eq!(next(deleted(60), 12), "kill pod (end) [web 60 s] s1");
    assert_eq!(next(deleted(60), 4), "kill pod (end) [web 48 s] s1");
    assert_eq!(next(deleted(40), 6), "kill pod (end) [web 24 s] s1");
    assert_eq!(next(deleted(60), 30), "kill pod (end) [web 18 s] s1", "never longer");
    assert_eq!(next(deleted(60), 0), "kill pod (end) [web 2 s] s1");
}

/// The earlier stop grants its own time; the deletion counts for all containers.
#[test]
fn a_deletion_stops_a_container_that_is_being_stopped() {
    let mut spec = json!({"containers": [container("web"), container("other")]});
    spec["terminationGracePeriodSeconds"] = json!(120);
    let mut world = running(&spec);
    let id = world.truth.containers.iter().find(|one| &*one.name == "web").unwrap().id.clone();
    world.probes.entry(id).or_default().liveness = Some(false);
    assert_eq!(actions(&mut world), ["kill web (grace 120 s)"]);
    let kill = world.plan.actions[0].clone();
    world.memory.begin(&kill, &world.settings, world.now);
    world.end = deleted(3);
    world.on_term = 0;
    let steps = done(&mut world);
    let stop = "kill pod (end) [web 3 s, other 3 s] s1";
    assert_eq!(steps, format!("{stop}, kill pod (end) s1, release"));
    assert_eq!(phase(&world), Some(TerminalPhase::Succeeded));
    forget(&mut world);
}

#[test]
fn a_failed_stop_is_retried_after_a_back_off() {
    let mut world = running(&web());
    world.end = deleted(30);
    world.fault(Fault::Kill);
    world.fault(Fault::Kill);
    world.run();
    assert_eq!(world.take_trace().matches("kill pod").count(), 1);
    assert_eq!(world.plan.blocked.as_deref(), Some("cannot kill"));
    assert!(world.plan.terminal.is_none() && !world.plan.stopped);
    world.advance(10);
    let trace = world.take_trace();
    let kills: Vec<&str> = trace.lines().filter(|line| line.contains("[web")).collect();
    assert_eq!(kills.len(), 2, "{trace}");
    assert!(world.plan.stopped, "{trace}");
}

#[test]
fn a_force_deletion_goes_on_with_what_is_left_of_the_period() {
    for (granted, expected) in [(deleted(10), 6), (None, 30)] {
        let mut world = running(&web());
        if granted.is_some() {
            world.end = granted;
            world.fault(Fault::Kill);
            world.list();
            let plan = world.plan();
            world.perform(&plan.actions[0]);
            world.pass_time(Duration::from_secs(4));
        }
        (world.want, world.end) = (Want::Gone, None);
        let expected = format!("kill pod (retire) [web {expected} s] s1");
        assert_eq!(actions(&mut world)[0], expected);
        forget(&mut world);
    }
}

#[test]
fn a_pod_is_stopped_when_its_volumes_are_gone_and_not_before() {
    let mut world = running(&web());
    world.end = deleted(30);
    world.fault(Fault::Release);
    world.run();
    assert!(!world.plan.stopped, "{}", world.take_trace());
    assert_eq!(world.plan.blocked.as_deref(), Some("volume is busy"));
    world.advance(10);
    assert!(world.plan.stopped);
}

#[test]
fn a_pod_that_the_runtime_does_not_tell_of_is_not_stopped() {
    let mut world = running(&web());
    world.end = deleted(30);
    world.truth.inspect_error = Some("deadline exceeded".to_owned());
    world.run();
    assert!(!world.plan.stopped && world.plan.actions.is_empty());
    assert!(world.plan.blocked.as_deref().unwrap().contains("deadline exceeded"));
    world.truth.inspect_error = None;
    world.runtime.not_ready = Some("starting".to_owned());
    world.run();
    assert!(world.plan.stopped, "a runtime that is not ready can stop containers");
}

#[test]
fn a_pod_whose_uid_another_agent_runs_is_not_stopped() {
    for owner in [None, Some("another")] {
        let mut world = running(&web());
        world.truth.sandboxes[0].owner = owner.map(Into::into);
        world.end = deleted(30);
        world.run();
        assert_eq!(world.take_trace().matches("kill").count(), 0);
        assert!(!world.plan.stopped && world.plan.blocked.is_some());
        world.truth.sandboxes[0].owner = Some(OWNER.into());
        world.run();
        assert!(world.plan.stopped);
    }
}

#[test]
fn a_half_made_sandbox_is_removed_before_the_pod_is_stopped() {
    let mut world = World::of_api(&web());
    world.fault(Fault::SandboxHalf);
    // The second call is refused, because the first one is still under way.
    for _ in 0..2 {
        world.list();
        for action in world.plan().actions {
            world.perform(&action);
        }
        world.hidden.append(&mut world.truth.sandboxes);
        world.pass_time(Duration::from_secs(2));
    }
    world.take_trace();
    world.end = deleted(30);
    assert_eq!(done(&mut world), "remove sandbox s1, release");
    assert!(world.plan.stopped && world.hidden.is_empty());
}

#[test]
fn a_pod_that_is_deleted_before_it_began_ends_at_once() {
    type Mutation = fn(&mut World);
    let cases: [(&str, Mutation); 5] = [
        ("as it is", |_| {}),
        ("no runtime", |w| w.runtime.not_ready = Some("x".to_owned())),
        ("no room", |w| w.waits = Some("waiting for room")),
        ("a shutdown", |w| w.shutdown = Some(shutdown(0))),
        ("a hold", |w| w.hold = Some(("a".into(), hold("OutOfcpu", HoldStop::Within(30))))),
    ];
    for (name, mutate) in cases {
        let mut world = World::of_api(&web());
        world.end = deleted(30);
        mutate(&mut world);
        assert_eq!(done(&mut world), "release", "{name}");
        assert!(world.plan.stopped, "{name}");
        assert_eq!(phase(&world), Some(TerminalPhase::Failed), "{name}");
        forget(&mut world);
    }
}

#[test]
fn a_pod_that_waits_for_its_image_ends_at_once_when_it_is_deleted() {
    let mut world = World::of_api(&web());
    for _ in 0..9 {
        world.fault(Fault::Pull);
    }
    world.run();
    world.advance(3);
    world.take_trace();
    world.end = deleted(30);
    assert_eq!(done(&mut world), "kill pod (end) s1, release");
    assert!(world.plan.stopped);
    assert_eq!(phase(&world), Some(TerminalPhase::Failed));
}

#[test]
fn a_deletion_that_the_agent_missed_is_carried_out() {
    for reboots in [false, true] {
        let mut world = running(&web());
        if reboots {
            world.reboot();
        } else {
            world.restart_agent();
        }
        world.end = deleted(30);
        world.run();
        assert!(world.plan.stopped);
        assert_eq!(world.take_trace().matches("start web").count(), 0);
        forget(&mut world);
    }
}

#[test]
fn a_deletion_is_finished_without_the_api_server() {
    for reboots in [false, true] {
        for keep in [false, true] {
            let mut world = running(&web());
            world.on_term = 0;
            world.end = deleted(30);
            world.list();
            let plan = world.plan();
            world.perform(&plan.actions[0]);
            if reboots {
                world.reboot();
            } else {
                world.restart_agent();
            }
            // Its record does not tell the agent what the API server wants. `keep` is false with
            // the annotation `run-from-checkpoint`.
            (world.end, world.keep) = (None, keep);
            world.run();
            assert_eq!(world.take_trace().matches("start web").count(), 0);
            assert!(world.plan.stopped, "{reboots} {keep}");
            assert_eq!(phase(&world), Some(TerminalPhase::Succeeded));
        }
    }
}

#[test]
fn a_new_uid_starts_when_nothing_of_the_old_one_is_left() {
    let mut world = running(&web());
    world.fault(Fault::Kill);
    world.want = Want::Run(Box::new(from_api(desired("b", &web()))));
    // The world fails when a pod starts beside another one.
    world.run();
    assert!(world.truth.containers.iter().all(|one| one.uid.as_str() == "a"));
    world.advance(60);
    assert_eq!(world.line(), "Running 1/1 0", "{}", world.take_trace());
    assert!(world.truth.containers.iter().all(|one| one.uid.as_str() == "b"));
}
