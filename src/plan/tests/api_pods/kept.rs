//! Pods of the API server that the agent keeps while that server is away.

use super::{
    super::world::{Want, World, container, desired, from_api},
    done, hold, phase, running, web,
};
use crate::model::{HoldStop, ObjectAnswer, ObjectKey, ObjectKind, TerminalPhase};
use serde_json::json;
use std::sync::Arc;

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
