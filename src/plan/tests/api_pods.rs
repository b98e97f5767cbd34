//! Pods of the API server: how they end, what is never started again, and what becomes of them
//! while the API server is away.

use super::world::{Fault, OWNER, Program, Want, World, container, desired, from_api};
use crate::{
    model::{
        ContainerState, Hold, HoldStop, ObjectAnswer, ObjectKey, ObjectKind, PodEnd, SandboxState,
        Shutdown, ShutdownPeriods, TerminalPhase, k8s,
    },
    plan::PodMemory,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

fn web() -> Value {
    json!({"containers": [container("web")]})
}

fn running(spec: &Value) -> World {
    let mut world = World::of_api(spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world
}

fn deleted(seconds: u32) -> Option<PodEnd> {
    Some(PodEnd { deleted: Some(seconds), phase: None })
}

fn ended(phase: TerminalPhase) -> Option<PodEnd> {
    Some(PodEnd { deleted: None, phase: Some(phase) })
}

fn hold(reason: &str, stop: HoldStop) -> Hold {
    let disruption = Some(("TerminationByKubelet".to_owned(), "no room".to_owned()));
    Hold { reason: reason.to_owned(), message: "no room".to_owned(), stop, disruption }
}

fn shutdown(turn: usize) -> Option<Shutdown> {
    let periods = ShutdownPeriods::of_total(Duration::from_secs(30), Duration::from_secs(10));
    Some(Shutdown { periods, turn })
}

fn actions(world: &mut World) -> Vec<String> {
    world.list();
    world.plan = world.plan();
    world.plan.actions.iter().map(ToString::to_string).collect()
}

/// The actions of all passes until the pod is settled.
fn done(world: &mut World) -> String {
    world.run();
    let trace = world.take_trace();
    let steps = trace.lines().filter_map(|line| Some(line.trim().split_once(' ')?.1));
    let steps = steps.filter(|step| !["=", "-", "event"].iter().any(|mark| step.starts_with(mark)));
    steps.collect::<Vec<_>>().join(", ")
}

fn phase(world: &World) -> Option<TerminalPhase> {
    world.records.values().next()?.terminal.as_ref().map(|terminal| terminal.phase)
}

fn told(world: &World) -> (Option<&str>, Option<&str>) {
    let status = world.status.as_ref().unwrap();
    (status.phase.as_deref(), status.reason.as_deref())
}

fn condition<'a>(world: &'a World, name: &str) -> Option<&'a k8s::PodCondition> {
    let conditions = world.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == name)
}

/// The object of the pod goes, and everything else with it.
fn forget(world: &mut World) {
    (world.want, world.end, world.hold) = (Want::Gone, None, None);
    world.run();
    world.advance(60);
    assert!(world.truth.is_empty() && world.records.is_empty(), "{}", world.take_trace());
    assert!(world.memory.is_empty() && world.prepared.is_empty());
}

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
        ("a shutdown", |w| w.shutdown = shutdown(0)),
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
                let at = Some(world.count + count);
                if before {
                    world.die_before = at;
                } else {
                    world.die_after = at;
                }
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
    world.hold = Some(("a".into(), hold("OutOfcpu", HoldStop::Within(30))));
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
            (world.shutdown, world.keep) = (shutdown(0), keep);
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
    world.shutdown = shutdown(0);
    assert_eq!(done(&mut world), "");
    world.shutdown = shutdown(1);
    assert_eq!(done(&mut world), "kill pod (end) [web 10 s] s1, release");
}

#[test]
fn a_pod_that_comes_during_a_shutdown_is_refused_for_good() {
    let mut world = World::of_api(&web());
    world.shutdown = shutdown(0);
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
fn the_active_deadline_counts_from_the_start_time() {
    let mut spec = web();
    spec["activeDeadlineSeconds"] = json!(100);
    let mut world = running(&spec);
    world.restart_agent();
    world.memory = PodMemory::default();
    world.run();
    world.advance(94);
    assert_eq!(world.line(), "Running 1/1 0");
    world.advance(2);
    assert!(world.plan.stopped, "{}", world.take_trace());
    assert_eq!(told(&world), (Some("Failed"), Some("DeadlineExceeded")));
    world.reboot();
    world.advance(60);
    assert_eq!(world.take_trace().matches("start web").count(), 0);
}

#[test]
fn containers_restart_in_a_live_sandbox_while_the_api_server_is_away() {
    let mut world = running(&web());
    world.restart_agent();
    world.keep = true;
    world.kill("web", 1);
    assert_eq!(done(&mut world), "start web (restart 1)");
    assert_eq!(world.line(), "Running 1/1 1");
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "CrashLoopBackOff 0/1 1");
    world.advance(10);
    assert_eq!(world.line(), "Running 1/1 2");
    world.take_trace();

    world.sandbox_dies();
    world.advance(600);
    assert_eq!(done(&mut world), "", "no new sandbox");
    assert_eq!(world.plan.blocked.as_deref(), Some("kept"));
    world.keep = false;
    world.run();
    assert_eq!(world.running("web").map(|one| one.restart_count), Some(3));
}

#[test]
fn a_static_pod_that_is_kept_restarts_nothing() {
    let mut world = World::of(&web());
    world.run();
    world.keep = true;
    world.kill("web", 1);
    world.take_trace();
    assert_eq!(done(&mut world), "");
}

#[test]
fn a_restart_rule_stops_all_containers_of_a_kept_pod_first() {
    let mut api = container("api");
    api["restartPolicy"] = json!("Never");
    api["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    ]);
    let mut world = running(&json!({"containers": [container("web"), api]}));
    world.keep = true;
    world.kill("api", 42);
    // The world fails when a container is removed while it runs.
    let steps = done(&mut world);
    assert!(steps.starts_with("kill pod (restart all) [web 2 s], remove web"), "{steps}");
    assert_eq!(world.line(), "Running 2/2 2", "{steps}");
}

#[test]
fn a_kept_pod_is_evicted_and_ends_by_itself() {
    let mut world = running(&web());
    world.keep = true;
    world.hold = Some(("a".into(), hold("Preempting", HoldStop::Within(10))));
    assert_eq!(done(&mut world), "kill pod (end) [web 10 s] s1, release");
    assert!(world.plan.stopped);

    let mut spec = web();
    spec["restartPolicy"] = json!("Never");
    let mut world = running(&spec);
    world.keep = true;
    world.kill("web", 0);
    assert_eq!(done(&mut world), "kill pod (end) s1, release");
    assert_eq!(phase(&world), Some(TerminalPhase::Succeeded));
}

#[test]
fn a_kept_container_without_its_objects_waits_and_says_so() {
    let mut reader = container("web");
    reader["env"] = json!([
        {"name": "P", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "p", "optional": false}}}
    ]);
    let mut world = running(&web());
    world.want = Want::Run(Box::new(from_api(desired("a", &json!({"containers": [reader]})))));
    world.keep = true;
    world.kill("web", 1);
    assert_eq!(done(&mut world), "");
    let why = "waiting until ConfigMaps, Secrets and tokens have been read from the API server";
    assert_eq!(world.plan.blocked.as_deref(), Some(why));
    let key = ObjectKey::new(ObjectKind::ConfigMap, "default", "conf");
    Arc::make_mut(&mut world.objects.api).objects.insert(key, ObjectAnswer::Missing);
    world.run();
    let waiting = &world.plan.waiting["web"];
    assert_eq!(waiting.reason, "CreateContainerConfigError");
    assert!(waiting.message.contains("configmap \"conf\" not found"), "{}", waiting.message);
}

#[derive(Clone, Debug)]
enum Happening {
    Advance(u64),
    Ends(usize, i32),
    SandboxDies,
    AgentRestarts,
    AgentDiesAfter(usize),
    AgentDiesBefore(usize),
    Reboot,
    Kept(bool),
    Fails(Fault),
    Evicted,
    ShutsDown,
}

const NAMES: [&str; 3] = ["c0", "c1", "i0"];

fn happening() -> impl Strategy<Value = Happening> {
    let faults = prop::sample::select(vec![
        Fault::Prepare,
        Fault::Sandbox,
        Fault::SandboxHalf,
        Fault::Pull,
        Fault::Start,
        Fault::Kill,
        Fault::Remove,
        Fault::Release,
    ]);
    prop_oneof![
        4 => (0_u64..60).prop_map(Happening::Advance),
        4 => (0..NAMES.len(), prop::sample::select(vec![0, 1, 137]))
            .prop_map(|(container, code)| Happening::Ends(container, code)),
        2 => Just(Happening::SandboxDies),
        2 => Just(Happening::AgentRestarts),
        3 => (1_usize..6).prop_map(Happening::AgentDiesAfter),
        3 => (1_usize..6).prop_map(Happening::AgentDiesBefore),
        1 => Just(Happening::Reboot),
        2 => any::<bool>().prop_map(Happening::Kept),
        4 => faults.prop_map(Happening::Fails),
        1 => Just(Happening::Evicted),
        1 => Just(Happening::ShutsDown),
    ]
}

fn happen(world: &mut World, happening: &Happening) {
    match happening {
        Happening::Advance(seconds) => world.advance(*seconds),
        Happening::Ends(container, code) => {
            if world.running(NAMES[*container]).is_some() {
                world.kill(NAMES[*container], *code);
            }
        }
        Happening::SandboxDies => {
            if world.truth.sandboxes.iter().any(|s| s.state == SandboxState::Ready) {
                world.sandbox_dies();
            }
        }
        Happening::AgentRestarts => world.restart_agent(),
        Happening::AgentDiesAfter(actions) => world.die_after = Some(world.count + actions),
        Happening::AgentDiesBefore(actions) => world.die_before = Some(world.count + actions),
        Happening::Reboot => world.reboot(),
        Happening::Kept(keep) => world.keep = *keep,
        Happening::Fails(fault) => world.fault(*fault),
        Happening::Evicted => {
            world.hold = Some(("a".into(), hold("Evicted", HoldStop::Within(10))));
        }
        Happening::ShutsDown => world.shutdown = shutdown(0),
    }
    world.run();
}

fn spec() -> impl Strategy<Value = Value> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let init = prop::option::of(any::<bool>());
    (policy, init, 1_usize..=2).prop_map(|(policy, init, regular)| {
        let init: Vec<Value> = init
            .into_iter()
            .map(|sidecar| {
                let mut container = container(NAMES[2]);
                if sidecar {
                    container["restartPolicy"] = json!("Always");
                }
                container
            })
            .collect();
        let containers: Vec<Value> =
            NAMES.iter().take(regular).map(|name| container(name)).collect();
        json!({"restartPolicy": policy, "initContainers": init, "containers": containers})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The world fails when anything is prepared or started after the deletion was seen, and when a
    /// pod is shown as stopped while it runs or has volumes.
    #[test]
    fn a_deleted_pod_is_stopped_and_nothing_of_it_starts_again(
        spec in spec(),
        before in prop::collection::vec(happening(), 0..12),
        seconds in 0_u32..60,
        after in prop::collection::vec(happening(), 0..12),
        ends in prop::collection::vec((0_u64..30, prop::sample::select(vec![0, 1])), 0..3),
        on_term in prop::sample::select(vec![0, 137]),
    ) {
        let mut programs: Vec<Program> =
            ends.into_iter().map(|(after, code)| Program::Ends(after, code)).collect();
        programs.push(Program::Forever);
        let mut world = World::of_api(&spec).program("c0", &programs);
        world.on_term = on_term;
        world.run();
        for happening in &before {
            happen(&mut world, happening);
        }
        let final_phase = phase(&world);
        world.end = deleted(seconds);
        world.run();
        for happening in &after {
            happen(&mut world, happening);
        }
        world.faults.clear();
        (world.die_after, world.die_before) = (None, None);
        world.run();
        world.advance(300);
        prop_assert!(world.plan.stopped, "{}", world.take_trace());
        let alive = world.truth.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || world.truth.containers.iter().any(|c| matches!(c.state, ContainerState::Running { .. }));
        prop_assert!(!alive && world.prepared.is_empty(), "{}", world.take_trace());
        prop_assert!(phase(&world).is_some());
        if final_phase.is_some() {
            prop_assert_eq!(phase(&world), final_phase, "a final phase never changes");
        }
        forget(&mut world);
    }
}
