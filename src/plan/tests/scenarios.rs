//! Scenarios against golden text (`scenarios.txt`): what happens, in order, in the words of the
//! actions.
//!
//! In front the seconds since the start; `--` what the world does; `=` what `kubectl get pods`
//! would show (STATUS, READY, RESTARTS), when it changes. When a text is to change, copy it from
//! the failure.

use super::world::{Fault, OWNER, Program, Want, World, container, desired, long_ago};
use crate::{
    model::{NetworkMode, ObservedSandbox, SandboxState},
    plan::PodMemory,
};
use serde_json::{Value, json};
use std::time::Duration;

const GOLDEN: &str = include_str!("scenarios.txt");

/// Compares what happened with the section of `GOLDEN` that has this title.
fn check(title: &str, world: &mut World) {
    let trace = world.take_trace();
    let sections = GOLDEN.split("## ");
    let golden = sections
        .filter_map(|section| section.split_once('\n'))
        .find_map(|(found, text)| (found == title).then_some(text))
        .unwrap_or_default();
    assert!(trace.trim() == golden.trim(), "\n## {title}{trace}##\n");
}

fn web() -> Value {
    json!({"containers": [container("web")]})
}

fn sidecar(name: &str) -> Value {
    json!({"name": name, "image": "registry/sidecar:1", "restartPolicy": "Always"})
}

/// An init container, two sidecars, another init container, two regular ones.
fn everything() -> Value {
    json!({
        "initContainers": [container("setup"), sidecar("proxy"), sidecar("logs"), container("warm")],
        "containers": [container("web"), container("api")],
    })
}

#[test]
fn a_pod_starts_and_a_killed_container_is_back_at_once() {
    let mut world = World::of(&web());
    world.run();
    world.kill("web", 137);
    world.run();
    check("a pod starts and a killed container is back at once", &mut world);
}

#[test]
fn a_crash_loop_slows_down_and_recovers_after_a_long_run() {
    let programs = [Program::Ends(3, 1); 7].into_iter().chain([
        Program::Ends(700, 1),
        Program::Ends(3, 1),
        Program::Forever,
    ]);
    let programs: Vec<Program> = programs.collect();
    let mut world = World::of(&web()).program("web", &programs);
    world.run();
    world.advance(2200);
    check("a crash loop slows down and recovers after a long run", &mut world);
}

#[test]
fn the_back_off_outlives_a_restart_of_the_agent() {
    let mut world = World::of(&web()).program("web", &[Program::Ends(1, 1)]);
    world.run();
    world.advance(20);
    for _ in 0..3 {
        world.restart_agent();
        world.run();
        world.advance(2);
    }
    world.advance(30);
    check("an agent that is restarted in a crash loop keeps to the back-off", &mut world);
}

#[test]
fn init_containers_and_sidecars_start_in_order() {
    let mut world = World::of(&everything());
    world.run();
    world.advance(10);
    check("init containers and sidecars start in order", &mut world);
    world.kill("proxy", 1);
    world.run();
    world.kill("api", 1);
    world.run();
    check("a sidecar that ends is restarted without its followers", &mut world);
    world.want = Want::Gone;
    world.note("-- manifest removed");
    world.run();
    check("a removed pod stops its sidecars last, in reverse order", &mut world);
    assert!(world.truth.is_empty() && world.records.is_empty() && world.memory.is_empty());
}

#[test]
fn a_failing_init_container_holds_the_pod_up() {
    let programs = [Program::Ends(1, 1), Program::Ends(1, 1), Program::Ends(1, 0)];
    let spec = json!({"initContainers": [container("setup")], "containers": [container("web")]});
    let mut world = World::of(&spec).program("setup", &programs);
    world.run();
    world.advance(30);
    check("a failing init container holds the pod up", &mut world);
}

#[test]
fn a_failing_init_container_fails_a_pod_that_is_never_restarted() {
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar("proxy"), container("setup")],
        "containers": [container("web")],
    });
    let mut world = World::of(&spec).program("setup", &[Program::Ends(1, 3)]);
    world.run();
    world.advance(30);
    check("a failing init container fails a pod that is never restarted", &mut world);
}

#[test]
fn a_dead_sandbox_is_replaced_and_everything_runs_again() {
    let spec = json!({"initContainers": [container("setup")], "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world.sandbox_dies();
    world.run();
    world.advance(5);
    check("a dead sandbox is replaced and everything runs again", &mut world);
    world.sandbox_dies();
    world.run();
    world.advance(20);
    check("a sandbox that dies again waits", &mut world);
}

#[test]
fn a_job_ends_and_is_not_run_again() {
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar("proxy")],
        "containers": [container("work")],
    });
    let mut world = World::of(&spec).program("work", &[Program::Ends(5, 0)]);
    world.run();
    world.advance(10);
    world.restart_agent();
    world.run();
    world.reboot();
    world.run();
    world.note("-- somebody removes the dead containers");
    world.truth.containers.clear();
    world.run();
    check("a job ends and is not run again", &mut world);
}

#[test]
fn a_failing_job_is_retried_on_failure_only() {
    let spec = json!({"restartPolicy": "OnFailure", "containers": [container("work"), container("other")]});
    let mut world = World::of(&spec)
        .program("work", &[Program::Ends(2, 1), Program::Ends(2, 0)])
        .program("other", &[Program::Ends(1, 0)]);
    world.run();
    world.advance(20);
    check("a failing job is retried on failure only", &mut world);
}

#[test]
fn a_changed_manifest_replaces_the_pod_once_the_old_one_is_gone() {
    let mut world =
        World::of(&json!({"terminationGracePeriodSeconds": 7, "containers": [container("web")]}));
    world.run();
    world.take_trace();
    world.want_uid("b", &web());
    world.fault(Fault::CleanUp);
    world.run();
    world.advance(5);
    check("a changed manifest replaces the pod once the old one is gone", &mut world);
}

#[test]
fn a_manifest_changed_while_the_agent_was_down() {
    let mut world =
        World::of(&json!({"terminationGracePeriodSeconds": 7, "containers": [container("web")]}));
    world.run();
    world.take_trace();
    world.restart_agent();
    world.want_uid("b", &web());
    world.run();
    check("a manifest changed while the agent was down", &mut world);
}

#[test]
fn a_pod_wished_again_while_it_goes_finishes_and_starts_clean() {
    let spec = json!({"terminationGracePeriodSeconds": 20, "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.take_trace();
    world.want = Want::Gone;
    world.note("-- manifest removed");
    world.fault(Fault::Kill);
    world.run();
    world.pass_time(Duration::from_secs(5));
    world.restart_agent();
    world.want = Want::Run(Box::new(desired("a", &spec)));
    world.note("-- manifest is back");
    world.run();
    check("a pod wished again while it goes finishes and starts clean", &mut world);
}

#[test]
fn nothing_is_done_while_sources_are_not_complete() {
    let mut world = World::of(&web());
    world.run();
    world.restart_agent();
    world.want = Want::Undecided;
    world.run();
    world.want = Want::Run(Box::new(desired("a", &web())));
    world.run();
    assert!(world.running("web").is_some_and(|c| c.restart_count == 0));
    check("nothing is done while sources are not complete", &mut world);
}

#[test]
fn nothing_is_started_for_a_pod_that_is_only_kept() {
    let happenings: [fn(&mut World); 3] =
        [World::reboot, World::sandbox_dies, |world| world.kill("web", 1)];
    for happens in happenings {
        let mut world = World::of(&web());
        world.run();
        world.take_trace();
        world.keep = true;
        happens(&mut world);
        world.run();
        world.advance(30);
        assert!(world.running("web").is_none(), "{}", world.take_trace());
        assert!(world.plan.actions.is_empty(), "{:?}", world.plan);
        assert_eq!(world.plan.blocked.as_deref(), Some("kept"));
        world.keep = false;
        world.run();
        assert!(world.running("web").is_some(), "{}", world.take_trace());
    }
}

#[test]
fn a_kept_pod_runs_on_and_a_kill_begun_is_finished() {
    let mut world = World::of(&web());
    world.run();
    world.keep = true;
    world.run();
    world.advance(30);
    assert!(world.running("web").is_some_and(|c| c.restart_count == 0));
    assert_eq!(world.plan.blocked, None);
    // Another incarnation is wished by what was saved: the one that runs is left alone.
    world.want = Want::Run(Box::new(desired("b", &web())));
    world.run();
    assert!(world.running("web").is_some());
    world.keep = false;
    world.fault(Fault::Kill);
    world.list();
    world.run();
    world.keep = true;
    world.run();
    world.advance(60);
    assert!(world.truth.is_empty() && world.records.is_empty(), "{}", world.take_trace());
}

#[test]
fn pulling_backs_off_and_an_image_imported_meanwhile_is_found() {
    let mut world = World::of(&web());
    for _ in 0..3 {
        world.fault(Fault::Pull);
    }
    world.run();
    world.advance(35);
    world.note("-- image imported");
    world.faults.clear();
    world.advance(10);
    check("pulling backs off and an image imported meanwhile is found", &mut world);
}

#[test]
fn failures_to_start_are_shown_and_retried() {
    let mut world = World::of(&json!({"containers": [container("web"), container("api")]}));
    for fault in [Fault::Prepare, Fault::Sandbox, Fault::Create, Fault::ImageNever, Fault::Start] {
        world.fault(fault);
    }
    world.run();
    world.advance(60);
    check("failures to start are shown and retried", &mut world);
}

/// The runtime is killed after it has started a container and before it says so.
#[test]
fn a_container_whose_start_was_not_answered_runs_on() {
    for (list, name) in [("containers", "job"), ("initContainers", "setup")] {
        let mut spec = json!({"restartPolicy": "Never", "containers": [container("job")]});
        spec[list] = json!([container(name)]);
        let mut world = World::of(&spec).program(name, &[Program::Ends(30, 0)]);
        world.fault(Fault::StartUnanswered);
        world.run();
        assert_eq!(world.plan.terminal, None, "{name}");
        world.advance(29);
        assert!(world.running(name).is_some(), "{}", world.take_trace());
    }
    let mut world = World::of(&web());
    world.run();
    world.kill("web", 1);
    world.fault(Fault::StartUnanswered);
    world.run();
    world.advance(700);
    world.kill("web", 1);
    world.run();
    assert_eq!(world.line(), "Running 1/1 2", "the long run ended the crash loop");
}

#[test]
fn a_half_made_sandbox_is_removed_and_the_next_attempt_taken() {
    let mut world = World::of(&web());
    world.fault(Fault::SandboxHalf);
    world.run();
    world.advance(5);
    check("a half-made sandbox is adopted", &mut world);
    let mut world = World::of(&web());
    world.run();
    world.hidden = std::mem::take(&mut world.truth.sandboxes);
    world.truth.containers.clear();
    world.take_trace();
    world.note("-- a call of a former life is still making the sandbox");
    world.memory = PodMemory::default();
    world.restart_agent();
    world.run();
    world.advance(5);
    assert!(world.hidden.is_empty());
    check("a name that is reserved is given up for the next attempt", &mut world);
}

#[test]
fn a_reboot_runs_everything_again() {
    let spec = json!({"initContainers": [container("setup")], "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world.reboot();
    world.run();
    world.advance(5);
    check("a reboot runs everything again", &mut world);
}

#[test]
fn a_deadline_ends_the_pod_also_after_a_restart_of_the_agent() {
    let spec = json!({"activeDeadlineSeconds": 60, "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.advance(50);
    world.restart_agent();
    world.run();
    world.advance(20);
    check("a deadline ends the pod, also after a restart of the agent", &mut world);
}

#[test]
fn pods_wait_for_the_network_unless_they_use_the_hosts() {
    let mut world = World::of(&web());
    world.runtime.network_not_ready = Some("cni plugin not initialized".to_owned());
    world.run();
    assert_eq!(
        world.plan.blocked.as_deref(),
        Some("network is not ready: cni plugin not initialized")
    );
    world.runtime.network_not_ready = None;
    world.run();
    check("a pod waits for the network", &mut world);
    let mut world = World::of(&json!({"hostNetwork": true, "containers": [container("web")]}));
    world.runtime.network_not_ready = Some("cni plugin not initialized".to_owned());
    world.run();
    check("a pod on the host's network does not", &mut world);
}

#[test]
fn a_changed_container_under_the_same_uid_is_restarted() {
    let mut world = World::of(
        &json!({"restartPolicy": "Never", "containers": [container("web"), container("api")]}),
    );
    world.run();
    world.take_trace();
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "web", "image": "registry/web:2"}, container("api")]});
    world.want = Want::Run(Box::new(desired("a", &spec)));
    world.note("-- image changed");
    world.run();
    check("a changed definition under the same uid restarts the container", &mut world);
}

#[test]
fn a_restart_rule_restarts_all_containers() {
    let web = json!({
        "name": "web", "image": "registry/web:1", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
    });
    let spec =
        json!({"initContainers": [container("setup")], "containers": [web, container("api")]});
    let mut world = World::of(&spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world.kill("web", 42);
    world.run();
    let status = world.status.clone().unwrap();
    let all = status.init_container_statuses.into_iter().chain(status.container_statuses);
    let ends = all.flatten().map(|of| of.last_state.unwrap().terminated.unwrap().exit_code);
    assert_eq!(ends.collect::<Vec<_>>(), [0, 137, 42], "of the former setup, api and web");
    world.advance(5);
    world.kill("web", 42);
    world.run();
    world.advance(15);
    check("a restart rule restarts all containers", &mut world);
}

#[test]
fn a_created_container_is_started_as_it_is() {
    let mut world = World::of(&web());
    world.run();
    world.take_trace();
    world.note("-- agent killed between create and start");
    world.truth.containers[0].state = crate::model::ContainerState::Created;
    world.restart_agent();
    world.run();
    check("a created container is started as it is", &mut world);
}

#[test]
fn foreign_pods_are_left_alone() {
    let mut world = World::of(&web());
    let foreign = ObservedSandbox {
        id: "foreign".into(),
        uid: "f".into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: long_ago(),
        ips: Vec::new(),
        network: NetworkMode::Pod,
        owner: Some("somebody".into()),
    };
    world.truth.sandboxes.push(foreign.clone());
    world.run();
    assert_eq!(
        world.plan.blocked.as_deref(),
        Some(
            "a pod of the same name runs already and belongs to the nodelet with owner id somebody (sandbox foreign); it is left alone"
        )
    );
    world.truth.sandboxes[0].state = SandboxState::NotReady;
    world.note("-- the foreign pod stopped");
    world.run();
    world.want = Want::Gone;
    world.run();
    assert_eq!(
        world.truth.sandboxes,
        [ObservedSandbox { state: SandboxState::NotReady, ..foreign }]
    );
    assert_ne!(OWNER, "somebody");
    check("foreign pods are left alone", &mut world);
}

#[test]
fn a_second_ready_sandbox_goes_and_nothing_restarts() {
    let mut world = World::of(&web());
    world.run();
    world.take_trace();
    let mut second = world.truth.sandboxes[0].clone();
    second.id = "late".into();
    second.attempt = 1;
    world.truth.sandboxes.push(second);
    world.note("-- a call of a former life made a second sandbox");
    world.restart_agent();
    world.run();
    check("a second ready sandbox goes and nothing restarts", &mut world);
}
