//! Pods of the API server that end for good, and never start again.

use super::{
    super::world::{Fault, Want, World},
    actions, condition, deleted, done, ended, forget, hold, phase, running, shutdown, told, web,
};
use crate::{
    model::{Hold, HoldStop, REFUSAL_PREFIX, TerminalPhase, k8s},
    plan::PodMemory,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::sync::Arc;

#[test]
fn a_final_phase_of_the_api_server_starts_nothing() {
    for told in [TerminalPhase::Failed, TerminalPhase::Succeeded] {
        // Nothing is known of it but what the API server says.
        let mut world = World::of_api(&web());
        world.end = ended(told);
        assert_eq!(done(&mut world), "release");
        assert!(world.plan.stopped);
        assert_eq!(phase(&world), Some(told));

        // Its record is lost, and it runs.
        let mut world = running(&web());
        world.records.clear();
        world.memory = PodMemory::default();
        world.end = ended(told);
        assert_eq!(done(&mut world), "kill pod (end) [web 30 s] s1, release");
        assert!(world.plan.stopped);
        assert_eq!(phase(&world), Some(told));
        world.end = None;
        world.advance(600);
        assert_eq!(done(&mut world), "", "its record says so from now on");
    }
}

#[test]
fn a_hold_ends_a_pod_for_good() {
    let within = |seconds| HoldStop::Within(seconds);
    for (reason, stop, grace, expected) in [
        ("Evicted", HoldStop::AtOnce, 30, "[web 2 s]"),
        ("Evicted", within(7), 30, "[web 7 s]"),
        ("Evicted", within(60), 30, "[web 30 s]"),
        ("Preempting", within(30), 5, "[web 5 s]"),
    ] {
        let mut spec = web();
        spec["terminationGracePeriodSeconds"] = json!(grace);
        let mut world = running(&spec);
        world.hold = Some(("a".into(), hold(reason, stop)));
        world.run();
        let trace = world.take_trace();
        assert!(trace.contains(&format!("kill pod (end) {expected}")), "{expected} {trace}");
        assert!(world.plan.stopped && !world.plan.held);
        assert_eq!(told(&world), (Some("Failed"), Some(reason)));
        let disrupted = condition(&world, "DisruptionTarget").unwrap();
        assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
        world.hold = None;
        world.advance(3600);
        world.restart_agent();
        world.run();
        world.reboot();
        let steps = done(&mut world);
        assert!(steps.ends_with("release") && !steps.contains("start"), "{steps}");
        assert_eq!(told(&world), (Some("Failed"), Some(reason)));
        forget(&mut world);
    }
}

#[test]
fn an_eviction_cuts_a_deletion_short() {
    let mut world = running(&web());
    world.end = deleted(30);
    world.hold = Some(("a".into(), hold("Evicted", HoldStop::AtOnce)));
    assert_eq!(actions(&mut world)[0], "kill pod (end) [web 2 s] s1");
    world.run();
    assert_eq!(told(&world), (Some("Failed"), Some("Evicted")));
}

#[test]
fn dead_containers_of_an_evicted_pod_are_removed() {
    let mut world = running(&web());
    world.on_term = 7;
    world.hold = Some(("a".into(), hold("Evicted", HoldStop::Within(10))));
    world.records_saved = false;
    world.run();
    assert_eq!(world.truth.containers.len(), 1, "not before its record has its end");
    world.records_saved = true;
    world.run();
    assert!(world.truth.is_empty(), "{}", world.take_trace());
    let statuses = world.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
    let end = statuses[0].state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.exit_code, 7);
    assert!(world.plan.stopped);
}

#[test]
fn an_evicted_pod_does_not_begin_again_whenever_the_agent_dies() {
    for count in 1..6 {
        for before in [false, true] {
            for lifted in [false, true] {
                let mut world = running(&web());
                world.hold = Some(("a".into(), hold("Evicted", HoldStop::Within(10))));
                world.die_at(world.count + count, before);
                world.run();
                world.restart_agent();
                if lifted {
                    world.hold = None;
                }
                world.run();
                world.advance(600);
                let trace = world.take_trace();
                assert_eq!(trace.matches("start web").count(), 0, "{trace}");
                assert!(world.plan.stopped, "{trace}");
                assert_eq!(told(&world), (Some("Failed"), Some("Evicted")), "{trace}");
            }
        }
    }
}

#[test]
fn a_refused_pod_is_failed_without_having_run() {
    let mut world = World::of_api(&web());
    let message = format!("{REFUSAL_PREFIX}no room");
    let refusal = Hold { message, ..hold("OutOfcpu", HoldStop::Within(30)) };
    world.hold = Some(("a".into(), refusal));
    assert_eq!(done(&mut world), "release");
    assert!(world.plan.stopped);
    assert_eq!(told(&world), (Some("Failed"), Some("OutOfcpu")));
    assert!(world.status.as_ref().unwrap().container_statuses.is_none());
    world.hold = None;
    world.restart_agent();
    world.advance(600);
    assert_eq!(done(&mut world), "");
    assert_eq!(told(&world), (Some("Failed"), Some("OutOfcpu")));
}

#[test]
fn a_shutdown_ends_a_pod_for_good() {
    for keep in [false, true] {
        for (grace, expected) in [(7, 7), (300, 20)] {
            let mut spec = web();
            spec["terminationGracePeriodSeconds"] = json!(grace);
            let mut world = running(&spec);
            world.on_term = 0;
            (world.shutdown, world.keep) = (Some(shutdown(0)), keep);
            let steps = done(&mut world);
            assert_eq!(steps, format!("kill pod (end) [web {expected} s] s1, release"), "{keep}");
            assert!(world.plan.stopped && world.plan.interrupted.is_none());
            assert_eq!(told(&world), (Some("Failed"), Some("Terminated")));
            let disrupted = condition(&world, "DisruptionTarget").unwrap();
            assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
            // Called off, or the next boot.
            (world.shutdown, world.keep) = (None, false);
            world.run();
            world.reboot();
            world.run();
            assert_eq!(world.take_trace().matches("start web").count(), 0);
            assert_eq!(told(&world), (Some("Failed"), Some("Terminated")));
        }
    }
}

#[test]
fn a_shutdown_waits_for_the_turn_of_a_pod() {
    let mut spec = web();
    spec["priority"] = json!(2_000_000_000);
    let mut world = running(&spec);
    world.shutdown = Some(shutdown(0));
    assert_eq!(done(&mut world), "");
    world.shutdown = Some(shutdown(1));
    assert_eq!(done(&mut world), "kill pod (end) [web 10 s] s1, release");
}

#[test]
fn a_pod_that_comes_during_a_shutdown_is_refused_for_good() {
    let mut world = World::of_api(&web());
    world.shutdown = Some(shutdown(0));
    world.run();
    let trace = world.take_trace();
    assert!(trace.contains("event NodeShutdown Pod was rejected as the node is"), "{trace}");
    assert_eq!(told(&world), (Some("Failed"), Some("NodeShutdown")));
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(world.status.as_ref().unwrap().message.as_deref(), Some(message));
    world.shutdown = None;
    world.run();
    assert_eq!(world.take_trace().matches("start").count(), 0);
}

#[test]
fn a_pod_deleted_during_a_start_ends_as_its_containers_do() {
    let mut spec = web();
    spec["restartPolicy"] = json!("Never");
    let mut world = World::of_api(&spec);
    world.on_term = 0;
    world.list();
    world.fault(Fault::StartUnanswered);
    // Until the start has failed, and no further.
    while world.truth.containers.is_empty() {
        for action in world.plan().actions {
            world.perform(&action);
        }
    }
    world.end = deleted(30);
    assert_eq!(world.plan().terminal, None, "it may run");
    world.run();
    assert_eq!(told(&world).0, Some("Succeeded"));
}

/// Two seconds later, the pod has ended by its deadline.
#[track_caller]
fn pass_deadline(world: &mut World) {
    world.advance(2);
    assert!(world.plan.stopped, "{}", world.take_trace());
    assert_eq!(told(world), (Some("Failed"), Some("DeadlineExceeded")));
}

#[test]
fn the_active_deadline_passes_while_a_pod_waits() {
    let mut spec = web();
    spec["activeDeadlineSeconds"] = json!(100);
    let mut world = World::of_api(&spec);
    let Want::Run(pod) = &mut world.want else { unreachable!() };
    let accepted = Some(Time(world.now.wall));
    let status = k8s::PodStatus { start_time: accepted, ..k8s::PodStatus::default() };
    Arc::make_mut(&mut pod.pod).status = Some(status);
    world.runtime.network_not_ready = Some("cni plugin not initialized".to_owned());
    world.run();
    world.advance(99);
    assert_eq!(world.line(), "ContainerCreating 0/1 0");
    pass_deadline(&mut world);
}

#[test]
fn the_active_deadline_counts_from_the_start_time() {
    let mut spec = web();
    spec["activeDeadlineSeconds"] = json!(100);
    let mut world = running(&spec);
    world.restart_agent();
    world.memory = PodMemory::default();
    world.run();
    world.advance(94);
    assert_eq!(world.line(), "Running 1/1 0");
    pass_deadline(&mut world);
    world.reboot();
    world.advance(60);
    assert_eq!(world.take_trace().matches("start web").count(), 0);
}
