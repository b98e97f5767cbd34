//! Pods of the API server that use features which the agent lacks.

use super::world::{World, container};
use serde_json::{Value, json};

const MISSING: &str =
    "MountVolume.SetUp failed for volume \"data\" : csi volumes are not supported by this node";

/// A pod that mounts a CSI volume.
fn csi() -> Value {
    let mut web = container("web");
    web["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let volume = json!({"name": "data", "csi": {"driver": "d"}});
    json!({"restartPolicy": "Never", "containers": [web], "volumes": [volume]})
}

#[test]
fn a_pod_with_an_unsupported_feature_stays_pending() {
    let mut world = World::of_api(&csi());
    world.run();
    assert_eq!(world.line(), "ContainerCreating 0/1 0");
    assert_eq!(world.plan.blocked.as_deref(), Some(MISSING));
    let trace = world.take_trace();
    assert_eq!(trace.matches(&format!("event FailedMount {MISSING}")).count(), 1, "{trace}");
    for _ in 0..2 {
        world.advance(600);
        world.run();
    }
    let trace = world.take_trace();
    assert!(!trace.contains("event"), "it was recorded a while ago: {trace}");
    assert!(world.truth.sandboxes.is_empty(), "nothing is made for the pod");
    let phase = world.status.as_ref().and_then(|status| status.phase.as_deref());
    assert_eq!(phase, Some("Pending"));
}

#[test]
fn static_pods_are_not_checked_again() {
    let mut world = World::of(&csi());
    world.run();
    assert!(!world.take_trace().contains("not supported by this node"));
}
