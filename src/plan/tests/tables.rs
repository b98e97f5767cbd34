//! One base pod and mutations: what the next plan is.

use super::world::{Fault, Program, Want, World, container, desired, long_ago};
use crate::{
    model::{
        ContainerState, NetworkMode, ObservedContainer, ResizeWait, SandboxState, TerminalPhase,
    },
    plan::{Action, KillPurpose, PodMemory, Restart},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

fn web() -> Value {
    json!({"containers": [container("web")]})
}

fn running(spec: &Value) -> World {
    let mut world = World::of(spec);
    world.run();
    world.advance(5);
    world
}

fn actions(world: &mut World) -> Vec<String> {
    world.list();
    world.plan = world.plan();
    world.plan.actions.iter().map(ToString::to_string).collect()
}

#[test]
fn when_a_sandbox_is_replaced() {
    type Mutation = fn(&mut World);
    let replaced = "kill pod (restart) [web 30 s] s1, prepare, create sandbox (attempt 1)";
    let cases: [(&str, Mutation, &str); 9] = [
        ("as it is", |_| {}, ""),
        ("none", |w| w.truth = Default::default(), "prepare, create sandbox (attempt 1)"),
        (
            "none, and nothing is remembered",
            |w| {
                w.truth = Default::default();
                w.memory = PodMemory::default();
            },
            "prepare, create sandbox (attempt 0)",
        ),
        ("not ready", |w| w.truth.sandboxes[0].state = SandboxState::NotReady, replaced),
        ("another network", |w| w.truth.sandboxes[0].network = NetworkMode::Node, replaced),
        ("no address", |w| w.truth.sandboxes[0].ips.clear(), replaced),
        (
            "its network is not ready, but nothing has to be made",
            |w| w.runtime.network_not_ready = Some("x".to_owned()),
            "",
        ),
        (
            "its inspection hangs",
            |w| {
                w.truth.sandboxes[0].state = SandboxState::NotReady;
                w.truth.inspect_error = Some("s1: deadline exceeded".to_owned());
            },
            "",
        ),
        (
            "the runtime is not ready",
            |w| {
                w.truth.sandboxes[0].state = SandboxState::NotReady;
                w.runtime.not_ready = Some("x".to_owned());
            },
            "",
        ),
    ];
    for (name, mutate, expected) in cases {
        let mut world = running(&web());
        mutate(&mut world);
        assert_eq!(actions(&mut world).join(", "), expected, "{name}");
    }
}

#[test]
fn sandboxes_without_an_address_are_replaced_with_a_back_off() {
    let mut world = World::of(&web());
    (0..4).for_each(|_| world.fault(Fault::NoAddress));
    let newest = |w: &World| w.truth.sandboxes.iter().map(|s| s.attempt).max();
    world.run();
    for (seconds, attempt) in [(0, 1), (9, 1), (2, 2), (18, 2), (3, 3)] {
        world.advance(seconds);
        assert_eq!(newest(&world), Some(attempt), "{}", world.take_trace());
        let blocked = "its sandbox has no address again; a new one follows after a back-off";
        assert_eq!(world.plan.blocked.as_deref(), Some(blocked));
    }
    world.advance(30);
    assert_eq!(newest(&world), Some(3));
    world.advance(12);
    assert_eq!(newest(&world), Some(4));
    assert!(world.running("web").is_some());
}

#[test]
fn a_sandbox_with_another_network_is_replaced_without_a_back_off() {
    let mut world = World::of(&web());
    (0..2).for_each(|_| world.fault(Fault::NoAddress));
    world.run();
    assert!(actions(&mut world).is_empty());
    world.truth.sandboxes.last_mut().unwrap().network = NetworkMode::Node;
    assert!(!actions(&mut world).is_empty());
}

#[test]
fn of_two_that_run_under_one_name_the_newer_stays() {
    let mut world = running(&web());
    let mut newer = world.truth.containers[0].clone();
    newer.id = "c9".into();
    newer.restart_count += 1;
    world.truth.containers.push(newer);
    let older = world.truth.containers[0].id.clone();
    assert_eq!(actions(&mut world).len(), 1);
    let Action::KillContainer(kill) = &world.plan.actions[0] else { panic!("{:?}", world.plan) };
    assert_eq!(kill.id, older);
}

#[test]
fn who_is_restarted_after_which_exit_code() {
    let rule = |action: &str, operator: &str| json!([{"action": action, "exitCodes": {"operator": operator, "values": [42]}}]);
    let none = Value::Null;
    let cases = [
        // pod policy, container policy, rules, exit code, restarted
        ("Always", none.clone(), none.clone(), 0, "start"),
        ("Always", none.clone(), none.clone(), 1, "start"),
        ("OnFailure", none.clone(), none.clone(), 0, "end"),
        ("OnFailure", none.clone(), none.clone(), 1, "start"),
        ("Never", none.clone(), none.clone(), 1, "end"),
        ("Never", json!("Always"), none.clone(), 0, "start"),
        ("Never", json!("OnFailure"), none.clone(), 0, "end"),
        ("Never", json!("OnFailure"), none.clone(), 1, "start"),
        ("Always", json!("Never"), none.clone(), 1, "end"),
        ("Always", json!("Never"), rule("Restart", "In"), 42, "start"),
        ("Always", json!("Never"), rule("Restart", "In"), 1, "end"),
        ("Always", json!("Never"), rule("Restart", "NotIn"), 42, "end"),
        ("Always", json!("Never"), rule("Restart", "NotIn"), 1, "start"),
        ("Always", json!("Never"), rule("RestartAllContainers", "In"), 42, "restart all"),
        // Rules count only beside a policy of the container.
        ("Never", none.clone(), rule("Restart", "In"), 42, "end"),
    ];
    for (pod, own, rules, code, expected) in cases {
        let mut web = container("web");
        web["restartPolicy"] = own.clone();
        web["restartPolicyRules"] = rules.clone();
        let mut world = running(&json!({"restartPolicy": pod, "containers": [web]}));
        world.kill("web", code);
        let actions = actions(&mut world).join(", ");
        let got = match actions.as_str() {
            "prepare, start web (restart 1)" => "start",
            "kill pod (end) s1, release" => "end",
            "kill pod (restart all), remove web c2 (logs stay)" => "restart all",
            other => other,
        };
        assert_eq!(got, expected, "{pod} {own} {rules} {code}");
        if expected == "end" {
            let phase = if code == 0 { TerminalPhase::Succeeded } else { TerminalPhase::Failed };
            assert_eq!(world.plan.terminal.as_ref().map(|t| t.phase), Some(phase));
        }
    }
}

#[test]
fn states_of_a_container_and_what_follows() {
    let exited = |code, reason: &str| ContainerState::Exited {
        started_at: Some(long_ago()),
        finished_at: long_ago(),
        exit_code: code,
        reason: reason.into(),
        message: "".into(),
    };
    for (state, expected) in [
        (ContainerState::Running { started_at: long_ago() }, ""),
        (ContainerState::Created, "prepare, start web (created c2)"),
        (ContainerState::Unknown, "kill web (grace 30 s)"),
        (exited(0, "Completed"), "prepare, start web (restart 1)"),
        (exited(137, "OOMKilled"), "prepare, start web (restart 1)"),
    ] {
        let mut world = running(&web());
        world.truth.containers[0].state = state.clone();
        assert_eq!(actions(&mut world).join(", "), expected, "{state:?}");
    }
    let of_another_manifest = |one: &mut ObservedContainer| one.hash = "another".into();
    let in_another_sandbox = |one: &mut ObservedContainer| one.sandbox_id = "another".into();
    for makes_unfit in [of_another_manifest, in_another_sandbox] {
        let mut world = running(&web());
        let created = &mut world.truth.containers[0];
        created.state = ContainerState::Created;
        makes_unfit(created);
        let expected = "prepare, remove web c2 (logs stay), start web (restart 1)";
        assert_eq!(actions(&mut world).join(", "), expected);
    }
    let mut world = running(&web());
    world.truth.containers[0].name = "former".into();
    let expected = "kill former (grace 30 s), prepare, start web (restart 1)";
    assert_eq!(actions(&mut world).join(", "), expected);
}

#[test]
fn which_ends_need_no_look_before_the_restart() {
    let at_once = "prepare, start web (restart 1)";
    for (policy, code, expected) in [
        ("Always", 0, at_once),
        ("Always", 137, at_once),
        ("OnFailure", 1, at_once),
        ("OnFailure", 0, ""),
        ("Never", 1, ""),
    ] {
        let mut world =
            running(&json!({"restartPolicy": policy, "containers": [container("web")]}));
        world.tell_end("web", code);
        assert_eq!(actions(&mut world).join(", "), expected, "{policy} {code}");
    }
    // What is left of the processes is killed before the end is seen.
    for shared in ["hostPID", "shareProcessNamespace"] {
        let mut world = running(&json!({(shared): true, "containers": [container("web")]}));
        world.tell_end("web", 1);
        assert_eq!(actions(&mut world).join(", "), "", "{shared}");
    }
    // The end of a sidecar waits for the runtime's view, and so does that of an init container.
    let mut proxy = container("proxy");
    proxy["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [proxy], "containers": [container("web")]});
    let mut world = running(&spec);
    world.tell_end("proxy", 1);
    assert_eq!(actions(&mut world).join(", "), "");
    // All containers restart together only when the end is seen.
    let mut web = container("web");
    web["restartPolicy"] = json!("Never");
    web["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    ]);
    let mut world = running(&json!({"containers": [web]}));
    world.tell_end("web", 1);
    assert_eq!(actions(&mut world).join(", "), "");
}

#[test]
fn a_restart_before_the_end_is_seen_counts_once() {
    let mut world = running(&web());
    let first = world.tell_end("web", 1);
    world.run();
    let states: Vec<_> = world.truth.containers.iter().map(|c| c.state.is_running()).collect();
    assert_eq!(states, [true, true], "the successor runs beside the ended one");
    assert_eq!(actions(&mut world).join(", "), "", "and the ended one is not stopped");
    world.end(&first, 1);
    world.run();
    assert_eq!(actions(&mut world).join(", "), "");

    // The second end is followed by a back-off, with which the first was counted.
    let second = world.tell_end("web", 1);
    assert_eq!(actions(&mut world).join(", "), "", "a back-off shows how it ended");
    world.end(&second, 1);
    world.run();
    let restarts = |world: &World| {
        world.truth.containers.iter().map(|container| container.restart_count).max()
    };
    world.advance(8);
    assert_eq!(restarts(&world), Some(1));
    world.advance(4);
    assert_eq!(restarts(&world), Some(2));
}

#[test]
fn a_pod_is_stopped_while_a_told_end_does_not_show() {
    let mut web = container("web");
    web["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye"]}}});
    let mut world = running(&json!({"containers": [web]}));
    let first = world.tell_end("web", 1);
    world.run();
    world.truth.sandboxes[0].state = SandboxState::NotReady;
    world.list();
    let plan = world.plan();
    let [Action::KillPod(kill), ..] = &plan.actions[..] else { panic!("{:?}", plan.actions) };
    for one in kill.containers() {
        let expected =
            if one.id == first { (false, Restart::ByPolicy) } else { (true, Restart::AtOnce) };
        assert_eq!((one.pre_stop, one.restart), expected, "{}", one.id);
    }
    // The newest starts again without a back-off.
    world.run();
    let newest = world.truth.containers.iter().map(|one| one.restart_count).max();
    assert_eq!(newest, Some(2));
}

#[test]
fn a_kill_says_why_in_the_words_for_the_kind_of_container() {
    let mut proxy = container("proxy");
    proxy["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [proxy], "containers": [container("web")]});
    let changed: fn(&mut ObservedContainer) = |one| one.hash = "another".into();
    let unknown: fn(&mut ObservedContainer) = |one| one.state = ContainerState::Unknown;
    for (name, change, expected) in [
        ("proxy", changed, "Init container proxy definition changed"),
        ("web", changed, "Container web definition changed, will be restarted"),
        ("proxy", unknown, "Init container is in \"unknown\" state, try killing it before restart"),
        ("web", unknown, "Container is in \"unknown\" state, try killing it before restart"),
    ] {
        let mut world = running(&spec);
        change(world.truth.containers.iter_mut().find(|one| &*one.name == name).unwrap());
        world.list();
        let plan = world.plan();
        let [Action::KillContainer(kill)] = &plan.actions[..] else { panic!("{:?}", plan.actions) };
        assert_eq!((&*kill.name, kill.event.message.as_str()), (name, expected));
    }
}

#[test]
fn an_oom_killed_init_container_has_failed_even_with_code_0() {
    for policy in ["Always", "OnFailure"] {
        let spec = json!({"restartPolicy": policy, "initContainers": [container("setup")],
                          "containers": [container("web")]});
        let mut world = World::of(&spec);
        world.run();
        world.kill("setup", 0);
        let ContainerState::Exited { reason, .. } = &mut world.truth.containers[0].state else {
            panic!()
        };
        *reason = "OOMKilled".into();
        assert_eq!(actions(&mut world).join(", "), "prepare, start setup (restart 1)", "{policy}");
    }
}

#[test]
fn an_init_container_in_unknown_state_follows_its_restart_policy() {
    for (policy, expected) in [("Never", "Init:Error 0/1 0"), ("OnFailure", "Running 1/1 0")] {
        let spec = json!({"restartPolicy": policy, "initContainers": [container("setup")],
                          "containers": [container("web")]});
        let mut world = World::of(&spec).program("setup", &[Program::Forever, Program::Ends(1, 0)]);
        world.run();
        world.truth.containers[0].state = ContainerState::Unknown;
        world.run();
        world.advance(5);
        assert_eq!(world.line(), expected, "{policy}");
    }
}

#[test]
fn a_rule_for_success_does_not_restart_an_initialised_pod() {
    let mut setup = container("setup");
    setup["restartPolicy"] = json!("Never");
    setup["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [1]}}
    ]);
    let spec = json!({"initContainers": [setup], "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.kill("setup", 0);
    assert_eq!(actions(&mut world).join(", "), "prepare, start web");
    let mut world = World::of(&spec);
    world.run();
    world.kill("setup", 3);
    let expected = "kill pod (restart all), remove setup c2 (logs stay)";
    assert_eq!(actions(&mut world).join(", "), expected);
}

#[test]
fn a_finish_in_the_future_counts_from_when_it_was_first_seen() {
    let mut world = running(&web());
    for _ in 0..2 {
        world.kill("web", 1);
        let future = world.now.wall.checked_add(jiff::SignedDuration::from_hours(5)).unwrap();
        for container in &mut world.truth.containers {
            if let ContainerState::Exited { finished_at, .. } = &mut container.state {
                *finished_at = future;
            }
        }
        world.run();
    }
    let wait = world.plan.wake_at.unwrap() - world.now.boot;
    assert!(wait <= Duration::from_secs(10) && wait > Duration::from_secs(9), "{wait:?}");
    world.advance(11);
    assert_eq!(world.running("web").map(|c| c.restart_count), Some(2));
}

#[test]
fn setting_the_wall_clock_changes_no_back_off() {
    for hours in [-5, 5] {
        let mut world = running(&web());
        for _ in 0..2 {
            world.kill("web", 1);
            world.run();
        }
        let due = world.plan.wake_at;
        world.now.wall =
            world.now.wall.checked_add(jiff::SignedDuration::from_hours(hours)).unwrap();
        assert!(actions(&mut world).is_empty());
        assert_eq!(world.plan.wake_at, due, "{hours}");
    }
}

#[test]
fn the_crash_loop_cap_also_shortens_the_first_delay() {
    let mut world = World::of(&web());
    world.settings.crash_loop_cap = Duration::from_secs(3);
    world.run();
    for _ in 0..5 {
        world.kill("web", 1);
        world.run();
        world.advance(3);
        assert!(world.running("web").is_some());
    }
}

#[test]
fn other_images_and_resources_begin_a_back_off_anew() {
    let spec = |field: &str, value: Value| {
        let mut container = container("web");
        // An edit to another QoS class would replace the pod.
        container["resources"] = json!({"requests": {"cpu": "50m"}});
        container[field] = value;
        json!({"containers": [container]})
    };
    let resources = json!({"requests": {"cpu": "100m"}});
    for (edited, waits, anew) in [
        (spec("image", json!("registry/web:2")), None, true),
        (spec("resources", resources.clone()), None, true),
        (spec("resources", resources), Some("Deferred"), false),
        (spec("args", json!(["x"])), None, false),
    ] {
        let mut world = running(&spec("args", json!([])));
        for _ in 0..2 {
            world.kill("web", 1);
            world.run();
        }
        assert_eq!(world.line(), "CrashLoopBackOff 0/1 1");
        world.want = Want::Run(Box::new(desired("a", &edited)));
        world.resize_wait = waits.map(|reason| {
            let message = "Node didn't have enough resource: cpu".to_owned();
            Arc::new(ResizeWait { reason, message })
        });
        world.run();
        let found = world.line();
        assert_eq!(
            found,
            if anew { "Running 1/1 2" } else { "CrashLoopBackOff 0/1 1" },
            "{edited}"
        );
        world.advance(10);
        world.run();
        world.kill("web", 1);
        world.run();
        let message = &world.plan.waiting["web"].message;
        let delay = if anew { "back-off 10s" } else { "back-off 20s" };
        assert!(message.starts_with(delay), "{edited}: {message}");
    }
}

#[test]
fn waiting_reasons_carry_the_fields_wording() {
    let mut world = running(&web());
    for _ in 0..2 {
        world.kill("web", 1);
        world.run();
    }
    let waiting = &world.plan.waiting["web"];
    assert_eq!(waiting.reason, "CrashLoopBackOff");
    assert_eq!(
        waiting.message,
        "back-off 10s restarting failed container=web pod=web-n1_default(a)"
    );
    let mut world = World::of(&web());
    for _ in 0..3 {
        world.fault(Fault::Pull);
    }
    world.run();
    world.advance(25);
    let waiting = &world.plan.waiting["web"];
    assert_eq!(waiting.reason, "ImagePullBackOff");
    let message = "Back-off pulling image \"registry/web:1\": ErrImagePull: registry is down";
    assert_eq!(waiting.message, message);
}

#[test]
fn the_image_of_a_volume_backs_off_as_a_containers_own() {
    let volumes = json!([{"name": "models", "image": {"reference": "registry/models:1"}}]);
    let mut web = container("web");
    web["volumeMounts"] = json!([{"name": "models", "mountPath": "/models"}]);
    let mut world = World::of(&json!({"containers": [web], "volumes": volumes}));
    for _ in 0..3 {
        world.fault(Fault::Pull);
    }
    world.run();
    world.advance(25);
    let waiting = &world.plan.waiting["web"];
    assert_eq!(waiting.reason, "ImagePullBackOff");
    let message = "Back-off pulling image \"registry/models:1\": ErrImagePull: registry is down";
    assert_eq!(waiting.message, message);
    let trace = world.take_trace();
    assert!(trace.contains("20 start web (no pull)"), "{trace}");
    world.faults.clear();
    world.advance(10);
    assert!(world.plan.waiting.is_empty(), "{:?}", world.plan.waiting);
}

#[test]
fn a_look_for_one_image_asks_no_registry_for_another() {
    let volumes = json!([{"name": "models", "image": {"reference": "registry/models:1"}}]);
    let mut web = container("web");
    web["imagePullPolicy"] = json!("Always");
    web["volumeMounts"] = json!([{"name": "models", "mountPath": "/models"}]);
    let mut world = World::of(&json!({"containers": [web], "volumes": volumes}));
    for _ in 0..3 {
        world.fault(Fault::Pull);
    }
    world.run();
    world.advance(29);
    let trace = world.take_trace();
    assert_eq!(trace.matches("start web").count(), 2, "{trace}");
}

#[test]
fn what_happens_while_pulls_back_off_by_pull_policy() {
    let looks = "0 start web, 0 = ErrImagePull 0/1 0, 10 start web, 20 = ImagePullBackOff 0/1 0, 20 start web (no pull), 30 start web, 30 = ErrImagePull 0/1 0, 40 = ImagePullBackOff 0/1 0, 40 start web (no pull)";
    // The image may be on the machine, and the registry may have denied it: only the next pull can
    // tell.
    let waits = "0 start web, 0 = ErrImagePull 0/1 0, 10 start web, 20 = ImagePullBackOff 0/1 0, 30 start web, 30 = ErrImagePull 0/1 0, 40 = ImagePullBackOff 0/1 0";
    for (policy, expected) in [("IfNotPresent", looks), ("Always", waits)] {
        let mut web = container("web");
        web["imagePullPolicy"] = json!(policy);
        let mut world = World::of(&json!({"containers": [web]}));
        for _ in 0..9 {
            world.fault(Fault::Pull);
        }
        world.run();
        world.advance(45);
        let trace = world.take_trace();
        let told = |line: &&str| {
            line.contains("start web")
                || line.contains("= ErrImage")
                || line.contains("= ImagePull")
        };
        let lines: Vec<&str> = trace.lines().map(str::trim).filter(told).collect();
        assert_eq!(lines.join(", "), expected, "{policy}");
    }
}

#[test]
fn no_pull_is_early_because_something_else_failed_since() {
    let mut world = World::of(&web());
    world.fault(Fault::Pull);
    world.fault(Fault::Pull);
    for _ in 0..9 {
        world.fault(Fault::Config);
    }
    world.run();
    world.advance(33);
    let trace = world.take_trace();
    let starts = trace.lines().map(str::trim).filter(|line| line.contains("start web"));
    let expected =
        "0 start web, 10 start web, 20 start web (no pull), 24 start web (no pull), 32 start web";
    let starts: Vec<&str> = starts.collect();
    assert_eq!(starts.join(", "), expected);
    assert_eq!(world.plan.waiting["web"].reason, "CreateContainerConfigError");
}

#[test]
fn grace_periods_of_pods_that_leave() {
    for (grace, expected, written) in [
        (Value::Null, 30, 30),
        (json!(5), 5, 5),
        (json!(0), 2, 1),
        (json!(1), 2, 1),
        (json!(99_999_999_999_i64), u32::MAX, u32::MAX),
    ] {
        let mut spec = web();
        spec["terminationGracePeriodSeconds"] = grace.clone();
        let mut world = running(&spec);
        world.want = Want::Gone;
        actions(&mut world);
        let Action::KillPod(kill) = &world.plan.actions[0] else { panic!("{:?}", world.plan) };
        assert_eq!(kill.groups[0][0].grace_seconds, expected, "{grace}");
        let KillPurpose::Retire { deadline } = &kill.purpose else { panic!("{kill:?}") };
        assert_eq!(deadline.grace_seconds, written, "{grace}");
    }
    let mut world = running(&web());
    world.want = Want::Gone;
    world.records.clear();
    let expected = "kill pod (retire) [web 30 s] s1, remove web c2, remove sandbox s1, clean up";
    assert_eq!(actions(&mut world).join(", "), expected, "without a record");
}

#[test]
fn a_record_is_cleaned_up_also_when_the_runtime_has_nothing() {
    let mut world = running(&web());
    world.truth = Default::default();
    world.want = Want::Run(Box::new(desired("b", &web())));
    assert_eq!(actions(&mut world), ["clean up"]);
    assert_eq!(world.plan.blocked.as_deref(), Some("waiting for uid a of this name to be gone"));
    world.run();
    assert_eq!(world.running("web").map(|c| c.uid.as_str()), Some("b"));
}

#[test]
fn what_goes_on_failing_is_never_tried_twice_at_the_same_time() {
    for later in [Fault::Config, Fault::Create, Fault::Start, Fault::ImageNever, Fault::Pull] {
        let mut world = World::of(&web());
        world.fault(Fault::Pull);
        for _ in 0..40 {
            world.fault(later);
        }
        world.run();
        world.advance(60);
        let trace = world.take_trace();
        let tries = trace.lines().filter(|line| line.contains("start web")).count();
        assert!((2..16).contains(&tries), "{tries} tries, {later:?}:\n{trace}");
    }
}

#[test]
fn removals_that_fail_wait_before_everything_is_restarted() {
    let mut web = container("web");
    web["restartPolicy"] = json!("Never");
    web["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]);
    let mut world = running(&json!({"containers": [web, container("other")]}));
    for _ in 0..40 {
        world.fault(Fault::Remove);
    }
    world.kill("web", 7);
    world.run();
    world.advance(30);
    let trace = world.take_trace();
    let tries = trace.lines().filter(|line| line.contains("remove ")).count();
    assert!((1..12).contains(&tries), "{tries} tries:\n{trace}");
}

#[test]
fn a_pod_of_another_owner_keeps_what_it_runs_on() {
    let mut world = running(&web());
    world.truth.sandboxes[0].owner = Some("somebody-else".into());
    world.want = Want::Gone;
    assert_eq!(actions(&mut world), Vec::<String>::new());
    let blocked = world.plan.blocked.clone().unwrap_or_default();
    assert!(blocked.contains("somebody-else"), "{blocked}");
    world.truth.sandboxes[0].state = SandboxState::NotReady;
    assert_eq!(actions(&mut world), Vec::<String>::new(), "its container runs on");
    world.truth.containers.clear();
    assert_eq!(actions(&mut world), ["clean up"]);
}

#[test]
fn an_ended_pod_is_kept_while_it_runs_for_another_owner() {
    let mut spec = web();
    spec["restartPolicy"] = json!("Never");
    let mut world = running(&spec);
    world.kill("web", 0);
    world.run();
    // A reboot: the record has its end, nobody remembers that its resources were let go.
    world.memory = PodMemory::default();
    world.truth.sandboxes[0].owner = Some("somebody-else".into());
    world.truth.sandboxes[0].state = SandboxState::Ready;
    assert_eq!(actions(&mut world), Vec::<String>::new());
    world.truth.sandboxes.clear();
    world.truth.containers.clear();
    assert_eq!(actions(&mut world), ["release"]);
}

#[test]
fn a_created_container_that_stays_delays_its_start() {
    let mut world = running(&web());
    let instance = &mut world.truth.containers[0];
    (instance.state, instance.hash) = (ContainerState::Created, "of another spec".into());
    for _ in 0..40 {
        world.fault(Fault::Remove);
    }
    world.run();
    world.advance(30);
    let trace = world.take_trace();
    let tries = trace.lines().filter(|line| line.contains("remove ")).count();
    assert!((2..12).contains(&tries), "{tries} tries:\n{trace}");
    world.faults.clear();
    world.advance(300);
    assert!(world.running("web").is_some());
}
