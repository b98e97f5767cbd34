//! Changes of cpu and memory while containers run.

use super::world::{Fault, Program, Want, World, container, desired};
use crate::model::{ContainerAmounts, CpuMemory, PodUid, ResizeWait};
use serde_json::{Value, json};
use std::sync::Arc;

fn sized(name: &str, cpu: &str, memory: &str) -> Value {
    let mut container = container(name);
    container["resources"] = json!({
        "requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory},
    });
    container
}

fn spec(containers: &Value) -> Value {
    json!({"containers": containers, "terminationGracePeriodSeconds": 5})
}

fn running(containers: &Value) -> World {
    let mut world = World::of(&spec(containers));
    world.run();
    world.take_trace();
    world
}

/// The manifest is edited; the uid stays.
fn edit(world: &mut World, containers: &Value) {
    world.want = Want::Run(Box::new(desired("a", &spec(containers))));
}

fn amounts(cpu: i64, mebibytes: i64) -> ContainerAmounts {
    let memory = Some(mebibytes << 20);
    let own = CpuMemory {
        cpu_request: Some(cpu),
        cpu_limit: None,
        memory_request: memory,
        memory_limit: memory,
    };
    ContainerAmounts { own, ..ContainerAmounts::default() }
}

/// What a container has that was resized.
fn has(world: &World, name: &str) -> Option<ContainerAmounts> {
    world.resized.get(&world.running(name).unwrap().id).copied()
}

fn in_progress(world: &World) -> Option<Option<String>> {
    let conditions = world.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let found = conditions.iter().find(|one| one.type_ == "PodResizeInProgress")?;
    assert_eq!(found.status, "True");
    Some(found.message.clone())
}

/// The memory limit in the status of a container.
fn shown_limit(world: &World) -> String {
    let statuses = world.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
    let web = statuses.iter().find(|status| status.name == "web").unwrap();
    web.resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0.clone()
}

#[test]
fn an_edit_of_cpu_and_memory_changes_what_runs() {
    let mut world = running(&json!([sized("web", "100m", "64Mi"), sized("side", "1", "32Mi")]));
    edit(&mut world, &json!([sized("web", "200m", "128Mi"), sized("side", "1000m", "32768Ki")]));
    world.run();
    let trace = world.take_trace();
    assert!(trace.contains("prepare"), "{trace}");
    // The other one has the same amounts in other words.
    assert!(trace.contains("resize web, the pod"), "{trace}");
    assert_eq!(has(&world, "web"), Some(amounts(200, 128)));
    assert_eq!(world.line(), "Running 2/2 0");
    assert_eq!(in_progress(&world), None);
    assert_eq!(shown_limit(&world), "128Mi");
    // Nothing more, also not after a restart of the agent.
    world.restart_agent();
    world.run();
    assert!(!world.take_trace().contains("resize"));
    // An instance that is started later has the new amounts from the beginning.
    world.kill("web", 1);
    world.run();
    assert_eq!(has(&world, "web"), None);
    assert!(!world.take_trace().contains("resize"));
}

#[test]
fn an_init_container_that_runs_is_resized() {
    let pod = |cpu| {
        let mut spec = spec(&json!([sized("web", cpu, "64Mi")]));
        spec["initContainers"] = json!([sized("setup", cpu, "64Mi")]);
        spec
    };
    let mut world = World::of(&pod("100m")).program("setup", &[Program::Ends(60, 0)]);
    world.run();
    world.take_trace();
    world.want = Want::Run(Box::new(desired("a", &pod("200m"))));
    world.run();
    let trace = world.take_trace();
    assert!(trace.contains("resize setup, the pod"), "{trace}");
    assert_eq!(has(&world, "setup"), Some(amounts(200, 64)));
    assert_eq!(in_progress(&world), None);
    world.advance(90);
    assert_eq!(world.line(), "Running 1/1 0");
    let trace = world.take_trace();
    assert!(!trace.contains("resize"), "web has the new amounts from the beginning: {trace}");
    assert_eq!(trace.matches("start setup").count(), 0, "{trace}");
}

#[test]
fn a_resize_says_once_that_it_begins() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    let told = |world: &mut World| world.take_trace().matches("event ResizeStarted").count();
    world.fault(Fault::Resize);
    edit(&mut world, &json!([sized("web", "100m", "32Mi")]));
    world.run();
    let details = r#"{"containers":[{"name":"web","resources":{"limits":{"memory":"32Mi"},"requests":{"cpu":"100m","memory":"32Mi"}}}],"generation":0}"#;
    let trace = world.take_trace();
    let event = format!("event ResizeStarted Pod resize started: {details}\n");
    assert_eq!(trace.matches(&event).count(), 1, "{trace}");
    world.restart_agent();
    world.advance(300);
    assert_eq!((told(&mut world), in_progress(&world)), (0, None), "another try is no new resize");
    for (memory, count) in [("64Mi", 1), ("64Mi", 0), ("32Mi", 1)] {
        edit(&mut world, &json!([sized("web", "100m", memory)]));
        world.run();
        assert_eq!(told(&mut world), count, "{memory}");
    }
}

#[test]
fn a_resize_that_fails_is_tried_again_and_says_so() {
    let mut world = running(&json!([sized("web", "100m", "64Mi"), sized("side", "1", "64Mi")]));
    edit(&mut world, &json!([sized("web", "100m", "32Mi"), sized("side", "1", "32Mi")]));
    world.fault(Fault::Resize);
    world.run();
    assert_eq!(in_progress(&world), Some(Some("below usage".to_owned())));
    assert_eq!(world.line(), "Running 2/2 0", "the pod runs on");
    assert_eq!(has(&world, "web"), Some(amounts(100, 32)), "the first one was changed");
    assert_eq!(has(&world, "side"), None);
    assert!(world.plan().wake_at.is_some());
    world.take_trace();
    world.advance(300);
    let trace = world.take_trace();
    assert!(trace.contains("resize side") && !trace.contains("web,"), "{trace}");
    assert_eq!(in_progress(&world), None);
}

#[test]
fn an_edit_that_is_taken_back_ends_the_resize() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    edit(&mut world, &json!([sized("web", "100m", "32Mi")]));
    world.fault(Fault::Resize);
    world.run();
    assert_eq!(has(&world, "web"), Some(amounts(100, 32)));
    edit(&mut world, &json!([sized("web", "100m", "64Mi")]));
    world.advance(300);
    assert_eq!(has(&world, "web"), Some(amounts(100, 64)));
    assert_eq!(in_progress(&world), None);
}

#[test]
fn a_resize_policy_restarts_the_container_alone() {
    let policy = |mut container: Value| {
        container["resizePolicy"] = json!([
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        ]);
        container
    };
    let pod = |cpu, memory| json!([policy(sized("web", cpu, memory)), sized("side", "1", "32Mi")]);
    let mut world = running(&pod("100m", "64Mi"));
    edit(&mut world, &pod("200m", "64Mi"));
    world.run();
    assert_eq!(has(&world, "web"), Some(amounts(200, 64)));
    assert_eq!(world.line(), "Running 2/2 0");
    world.take_trace();
    edit(&mut world, &pod("200m", "128Mi"));
    world.run();
    let trace = world.take_trace();
    let order = ["resize \n", "kill web", "resize the pod", "start web (restart 1)"];
    let places: Vec<_> = order.iter().map(|step| trace.find(step)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {trace}");
    assert_eq!(has(&world, "web"), None, "it was made with the new amounts");
    assert_eq!(world.line(), "Running 2/2 1");
    assert_eq!(in_progress(&world), None);
}

#[test]
fn an_agent_that_dies_during_a_resize_finishes_it_later() {
    for before in [true, false] {
        let mut world = running(&json!([sized("web", "100m", "64Mi")]));
        edit(&mut world, &json!([sized("web", "100m", "32Mi")]));
        world.die_at(world.count + 1, before);
        world.run();
        assert_eq!(has(&world, "web"), Some(amounts(100, 32)), "{before}");
        assert_eq!(in_progress(&world), None);
        let trace = world.take_trace();
        assert!(trace.contains("-- agent"), "{trace}");
    }
}

/// The cpu and memory of the pod's cgroup.
fn cgroup(world: &World) -> (Option<i64>, Option<i64>) {
    let cgroup = world.cgroups[&PodUid::from("a")];
    (cgroup.cpu_request, cgroup.memory_limit.map(|bytes| bytes >> 20))
}

#[test]
fn the_pod_is_resized_before_a_container_starts_that_waits() {
    let crashed = |world: &mut World| {
        world.run();
        for _ in 0..2 {
            world.kill("web", 1);
            world.run();
        }
    };
    let without_image = |world: &mut World| {
        world.fault(Fault::Pull);
        world.run();
    };
    let waits: [&dyn Fn(&mut World); 2] = [&crashed, &without_image];
    for (wait, (memory, mebibytes)) in
        waits.into_iter().flat_map(|wait| [(wait, ("128Mi", 128)), (wait, ("32Mi", 32))])
    {
        let mut world = World::of(&spec(&json!([sized("web", "100m", "64Mi")])));
        wait(&mut world);
        assert!(world.running("web").is_none());
        assert_eq!(cgroup(&world), (Some(100), Some(64)));
        world.take_trace();
        edit(&mut world, &json!([sized("web", "200m", memory)]));
        world.run();
        assert_eq!(cgroup(&world), (Some(200), Some(mebibytes)));
        assert_eq!(in_progress(&world), None);
        world.advance(30);
        assert!(world.running("web").is_some());
        let trace = world.take_trace();
        let order = ["prepare", "resize the pod", "start web"];
        let places: Vec<_> = order.iter().map(|step| trace.find(step)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {trace}");
        assert_eq!(trace.matches("resize the pod").count(), 1, "{trace}");
        assert!(!trace.contains("resize web"), "it was made with the new amounts: {trace}");
    }
}

#[test]
fn an_agent_that_dies_resizes_a_waiting_pod_later() {
    for step in 1..=4 {
        for before in [true, false] {
            let mut world = running(&json!([sized("web", "100m", "64Mi")]));
            for _ in 0..2 {
                world.kill("web", 1);
                world.run();
            }
            edit(&mut world, &json!([sized("web", "200m", "128Mi")]));
            world.die_at(world.count + step, before);
            world.run();
            world.advance(30);
            assert_eq!(cgroup(&world), (Some(200), Some(128)), "{step} {before}");
            assert_eq!(in_progress(&world), None);
        }
    }
}

#[test]
fn a_new_sandbox_has_the_cgroup_of_the_specification() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    world.sandbox_dies();
    edit(&mut world, &json!([sized("web", "200m", "128Mi")]));
    world.run();
    assert_eq!(world.line(), "Running 1/1 1");
    assert_eq!(cgroup(&world), (Some(200), Some(128)));
    let trace = world.take_trace();
    assert!(!trace.contains("resize"), "{trace}");
}

#[test]
fn a_container_with_another_image_stops_before_the_pod_shrinks() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    let mut edited = sized("web", "100m", "32Mi");
    edited["image"] = json!("registry/web:2");
    edit(&mut world, &json!([edited]));
    world.run();
    let trace = world.take_trace();
    let order = ["kill web", "resize the pod", "start web"];
    let places: Vec<_> = order.iter().map(|step| trace.find(step)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {trace}");
    assert_eq!(cgroup(&world), (Some(100), Some(32)));
}

#[test]
fn a_cgroup_of_an_earlier_release_is_left_alone() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    let mut saved = serde_json::to_value(&world.memory).unwrap();
    let known = saved["incarnations"]["a"].as_object_mut().unwrap().remove("cgroup");
    assert!(known.is_some());
    world.memory = serde_json::from_value(saved).unwrap();
    for _ in 0..2 {
        world.kill("web", 1);
        world.run();
    }
    edit(&mut world, &json!([sized("web", "200m", "128Mi")]));
    world.run();
    assert!(!world.take_trace().contains("resize"));
}

#[test]
fn an_edit_of_the_pods_own_resources_is_a_resize() {
    let pod = |memory| {
        let mut spec = spec(&json!([sized("web", "100m", "64Mi")]));
        spec["resources"] = json!({"limits": {"memory": memory}});
        spec
    };
    let mut world = World::of(&pod("1Gi"));
    world.run();
    world.take_trace();
    world.want = Want::Run(Box::new(desired("a", &pod("2Gi"))));
    world.run();
    assert!(world.take_trace().contains("resize web, the pod"));
    assert_eq!(in_progress(&world), None);
}

#[test]
fn a_container_of_an_unknown_size_is_left_alone() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    for container in &mut world.truth.containers {
        container.made_with = None;
    }
    world.list();
    edit(&mut world, &json!([sized("web", "100m", "32Mi")]));
    world.run();
    assert_eq!(has(&world, "web"), None);
}

#[test]
fn a_resize_without_room_changes_nothing() {
    let mut world = running(&json!([sized("web", "100m", "64Mi")]));
    edit(&mut world, &json!([sized("web", "100m", "128Mi")]));
    let message = "Node didn't have enough capacity: memory, requested: 2, capacity: 1".to_owned();
    world.resize_wait = Some(Arc::new(ResizeWait { reason: "Infeasible", message }));
    world.run();
    let trace = world.take_trace();
    assert!(!trace.contains("resize web") && !trace.contains("prepare"), "{trace}");
    assert_eq!(trace.matches("event ResizeInfeasible").count(), 1, "{trace}");
    let status = world.status.clone().unwrap();
    let pending = status.conditions.as_ref().unwrap();
    let pending = pending.iter().find(|one| one.type_ == "PodResizePending").unwrap();
    assert_eq!((&*pending.status, pending.reason.as_deref()), ("True", Some("Infeasible")));
    assert_eq!(shown_limit(&world), "64Mi");
    let web = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(web.allocated_resources.as_ref().unwrap()["memory"].0, "64Mi");
    world.run();
    assert!(!world.take_trace().contains("event"), "it is told once");
    world.resize_wait = None;
    world.run();
    assert_eq!(has(&world, "web"), Some(amounts(100, 128)));
    assert_eq!(shown_limit(&world), "128Mi");
}

/// A volume of a running pod can't be prepared, a hostPath that is gone for example.
#[test]
fn a_resize_that_can_not_be_prepared_is_tried_again_after_a_pause() {
    let mut world = running(&json!([sized("web", "1", "64Mi"), sized("other", "1", "64Mi")]));
    edit(&mut world, &json!([sized("web", "2", "64Mi"), sized("other", "1", "64Mi")]));
    for _ in 0..4 {
        world.fault(Fault::Prepare);
    }
    let before = world.count;
    world.run();
    let tried = world.count - before;
    assert_eq!(tried, 1, "it is tried once: {}", world.take_trace());
    world.advance(30);
    assert_eq!(has(&world, "web"), Some(amounts(2000, 64)));
}
