//! The start order: a pod waits before it begins, and never again in the same boot.

use super::world::{World, container};
use serde_json::json;

const WHY: &str = "waiting for pod db (nodelet.dev/after): it is not Ready";

fn world() -> World {
    World::of(&json!({"containers": [container("web")]}))
}

#[test]
fn a_pod_that_waits_begins_when_its_turn_comes() {
    let mut world = world();
    world.after = Some(WHY);
    world.run();
    assert_eq!(world.plan.blocked.as_deref(), Some(WHY));
    assert!(world.truth.is_empty() && world.records.is_empty());
    world.after = None;
    world.run();
    assert!(world.running("web").is_some());
}

#[test]
fn a_pod_that_has_begun_never_waits() {
    let mut world = world();
    world.run();
    world.after = Some(WHY);
    world.run();
    world.kill("web", 1);
    world.run();
    world.restart_agent();
    world.run();
    assert!(world.running("web").is_some());
    world.advance(700);
    world.sandbox_dies();
    world.restart_agent();
    world.run();
    assert!(world.running("web").is_some(), "{}", world.take_trace());
}

#[test]
fn a_pod_waits_again_after_a_reboot() {
    let mut world = world();
    world.run();
    world.after = Some(WHY);
    world.reboot();
    world.run();
    assert_eq!(world.plan.blocked.as_deref(), Some(WHY));
    assert!(world.running("web").is_none());
    world.after = None;
    world.run();
    assert!(world.running("web").is_some());
}

#[test]
fn a_job_that_has_ended_does_not_wait_after_a_reboot() {
    let mut world = World::of(&json!({"restartPolicy": "Never", "containers": [container("web")]}));
    world.run();
    world.kill("web", 0);
    world.run();
    world.after = Some(WHY);
    world.reboot();
    world.run();
    assert_eq!(world.plan.blocked, None);
    assert_eq!(world.line(), "Completed 0/1 0");
}
