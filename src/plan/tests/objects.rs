//! Pods that read ConfigMaps and Secrets.

use super::world::{Want, World, container};
use crate::{
    model::{
        ApiObjects, ClaimAnswer, DataObject, ObjectAnswer, ObjectKey, ObjectKind, PersistentSource,
        PersistentVolume, ServiceAccountToken, TokenAnswer, TokenKey,
    },
    podspec::{claim_keys, token_keys},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// A pod that mounts ConfigMap `conf` and takes a variable from Secret `pass`.
fn reader() -> Value {
    let mut web = container("web");
    web["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    web["env"] = json!([
        {"name": "P", "valueFrom": {"secretKeyRef": {"name": "pass", "key": "word"}}}
    ]);
    json!({
        "containers": [web],
        "volumes": [{"name": "v", "configMap": {"name": "conf"}}],
    })
}

fn put(world: &mut World, kind: ObjectKind, name: &str, key: &str, value: &str) {
    let object = DataObject::sample(kind, name, &[(key, value)]);
    world.objects.found.insert(object.key.clone(), Arc::new(object));
    world.volumes_current = false;
}

#[test]
fn a_pod_waits_for_its_objects_and_starts_when_they_come() {
    let mut world = World::of(&reader());
    world.run();
    assert_eq!(world.line(), "ContainerCreating 0/1 0");
    let missing = "MountVolume.SetUp failed for volume \"v\" : configmap \"conf\" not found";
    assert_eq!(world.plan.blocked.as_deref(), Some(missing));
    assert!(world.truth.sandboxes.is_empty(), "nothing is tried");
    let trace = world.take_trace();
    assert_eq!(trace.matches(&format!("event FailedMount {missing}")).count(), 1, "{trace}");
    world.advance(600);
    world.run();
    assert!(!world.take_trace().contains("event"), "it is told once");

    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "1");
    world.run();
    assert_eq!(world.line(), "CreateContainerConfigError 0/1 0");
    let trace = world.take_trace();
    let told = "event Failed Error: secret \"pass\" not found";
    assert_eq!(trace.matches(told).count(), 1, "{trace}");

    put(&mut world, ObjectKind::Secret, "pass", "other", "1");
    world.run();
    let told = "event Failed Error: couldn't find key word in Secret default/pass";
    assert!(world.take_trace().contains(told));

    put(&mut world, ObjectKind::Secret, "pass", "word", "1");
    world.run();
    assert_eq!(world.line(), "Running 1/1 0", "at once, without a back-off");
}

#[test]
fn nothing_is_said_before_all_objects_were_read() {
    let mut world = World::of(&reader());
    world.objects.known = false;
    world.run();
    assert_eq!(world.line(), "ContainerCreating 0/1 0");
    let why = "waiting until ConfigMaps and Secrets have been read";
    assert_eq!(world.plan.blocked.as_deref(), Some(why));
    assert!(!world.take_trace().contains("event"));
}

#[test]
fn changed_objects_are_written_and_restart_nothing() {
    let mut world = World::of(&reader());
    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "1");
    put(&mut world, ObjectKind::Secret, "pass", "word", "1");
    world.run();
    world.take_trace();
    world.run();
    assert!(!world.take_trace().contains("prepare"), "nothing has changed");

    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "2");
    world.run();
    let trace = world.take_trace();
    assert_eq!(trace.matches("prepare").count(), 1, "{trace}");
    assert_eq!(world.line(), "Running 1/1 0");

    world.restart_agent();
    world.run();
    let trace = world.take_trace();
    assert_eq!(trace.matches("prepare").count(), 1, "what was written is not known: {trace}");
    assert_eq!(world.line(), "Running 1/1 0");
}

#[test]
fn volumes_with_labels_or_annotations_are_written_again() {
    let source = |field: &str| json!({"items": [{"path": "f", "fieldRef": {"fieldPath": field}}]});
    let projected = |field: &str| json!({"sources": [{"downwardAPI": source(field)}]});
    for (volume, written) in [
        (json!({"name": "v", "downwardAPI": source("metadata.labels")}), 1),
        (json!({"name": "v", "downwardAPI": source("metadata.annotations['a']")}), 1),
        (json!({"name": "v", "projected": projected("metadata.annotations")}), 1),
        (json!({"name": "v", "downwardAPI": source("metadata.name")}), 0),
    ] {
        let mut web = container("web");
        web["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        let mut world = World::of(&json!({"containers": [web], "volumes": [volume]}));
        world.run();
        world.take_trace();
        world.volumes_current = false;
        world.run();
        let trace = world.take_trace();
        assert_eq!(trace.matches("prepare").count(), written, "{volume}: {trace}");
        assert_eq!(world.line(), "Running 1/1 0");
    }
}

#[test]
fn a_running_pod_goes_on_without_its_objects() {
    let mut world = World::of(&reader());
    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "1");
    put(&mut world, ObjectKind::Secret, "pass", "word", "1");
    world.run();
    world.objects.found.retain(|key, _| key.kind == ObjectKind::Secret);
    world.volumes_current = false;
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
    // Its volume is there: it also starts again.
    world.kill("web", 1);
    world.run();
    world.advance(10);
    world.run();
    assert_eq!(world.line(), "Running 1/1 1");
    // Its environment is not.
    world.objects.found.clear();
    world.kill("web", 1);
    world.run();
    world.advance(30);
    world.run();
    assert_eq!(world.line(), "CreateContainerConfigError 0/1 1");
}

#[test]
fn a_pod_without_references_is_prepared_once() {
    let mut world = World::of(&json!({
        "containers": [container("web")],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }));
    world.run();
    world.take_trace();
    world.restart_agent();
    put(&mut world, ObjectKind::Secret, "pass", "word", "1");
    world.run();
    assert!(!world.take_trace().contains("prepare"));
}

#[test]
fn an_outdated_container_is_restarted_after_its_volumes_are_written() {
    let mut world = World::of(&reader());
    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "1");
    put(&mut world, ObjectKind::Secret, "pass", "word", "1");
    world.run();
    world.take_trace();
    put(&mut world, ObjectKind::ConfigMap, "conf", "a", "2");
    world.outdated = world.truth.containers.iter().map(|c| c.id.clone()).collect();
    world.run();
    let trace = world.take_trace();
    let at = |text: &str| trace.find(text).unwrap_or_else(|| panic!("no {text}: {trace}"));
    assert!(at("prepare") < at("kill web"), "{trace}");
    assert!(at("kill web") < at("start web"), "{trace}");
    assert!(!trace.contains("BackOff"), "it did not crash: {trace}");
    assert_eq!(world.line(), "Running 1/1 1");
}

/// A world whose pod comes from the API server, and mounts a token beside its objects.
fn api_world() -> World {
    let mut spec = reader();
    let sources = json!([{"configMap": {"name": "conf"}}, {"serviceAccountToken": {"path": "t"}}]);
    spec["volumes"] = json!([{"name": "v", "projected": {"sources": sources}}]);
    let mut world = World::of_api(&spec);
    answer(&mut world, |api| api.services = None);
    world
}

fn answer(world: &mut World, change: impl FnOnce(&mut ApiObjects)) {
    change(Arc::make_mut(&mut world.objects.api));
    world.volumes_current = false;
}

/// An answer for an object of the pod; `found`: its key and value.
fn object_answer(
    kind: ObjectKind,
    name: &str,
    found: Option<(&str, &str)>,
) -> (ObjectKey, ObjectAnswer) {
    let answer = found.map(|found| Arc::new(DataObject::sample(kind, name, &[found])));
    let answer = answer.map_or(ObjectAnswer::Missing, ObjectAnswer::Found);
    (ObjectKey::new(kind, "default", name), answer)
}

fn token_answer(world: &World, answer: TokenAnswer) -> (TokenKey, TokenAnswer) {
    let Want::Run(pod) = &world.want else { panic!("no pod is wanted") };
    (token_keys(&pod.pod).remove(0), answer)
}

#[test]
fn a_pod_of_the_api_server_waits_quietly_for_answers() {
    use ObjectKind::{ConfigMap, Secret};
    let mut world = api_world();
    let quiet = "waiting until ConfigMaps, Secrets and tokens have been read from the API server";
    world.run();
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet));
    answer(&mut world, |api| {
        api.objects.extend([
            object_answer(ConfigMap, "conf", None),
            object_answer(Secret, "pass", Some(("word", "1"))),
        ]);
    });
    world.run();
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet), "the token has no answer");
    assert!(!world.take_trace().contains("event"));

    let refused = token_answer(&world, TokenAnswer::Refused("no".into()));
    answer(&mut world, |api| api.tokens.extend([refused]));
    world.run();
    let missing = "MountVolume.SetUp failed for volume \"v\" : configmap \"conf\" not found";
    assert!(world.take_trace().contains(&format!("event FailedMount {missing}")));

    answer(&mut world, |api| {
        api.objects.extend([object_answer(ConfigMap, "conf", Some(("a", "1")))]);
    });
    world.run();
    let refused = "MountVolume.SetUp failed for volume \"v\" : failed to fetch token: no";
    assert!(world.take_trace().contains(&format!("event FailedMount {refused}")));

    let token = TokenAnswer::Issued(ServiceAccountToken::new("one"));
    let issued = token_answer(&world, token);
    answer(&mut world, |api| api.tokens.extend([issued]));
    world.run();
    assert_eq!(world.line(), "ContainerCreating 0/1 0");
    let quiet = "waiting until Services have been read from the API server";
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet));
    assert!(!world.take_trace().contains("event Failed"));

    answer(&mut world, |api| api.services = Some(Arc::default()));
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
}

#[test]
fn a_pod_waits_for_its_volume_claim() {
    let mut web = container("web");
    web["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
    let mut world = World::of_api(&json!({"containers": [web], "volumes": [volume]}));
    answer(&mut world, |api| api.services = Some(Arc::default()));
    world.run();
    let quiet = "waiting until PersistentVolumeClaims have been read from the API server";
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet));
    assert!(!world.take_trace().contains("event"));

    let claim_answer = |world: &mut World, claim| {
        let Want::Run(pod) = &world.want else { panic!("no pod is wanted") };
        let key = claim_keys(&pod.pod).remove(0);
        answer(world, |api| api.claims.extend([(key, claim)]));
        world.run();
    };
    claim_answer(&mut world, ClaimAnswer::Failed("PVC is not bound".into()));
    let told = "event FailedMount MountVolume.SetUp failed for volume \"v\" : error processing PVC default/data: PVC is not bound";
    let trace = world.take_trace();
    assert_eq!(trace.matches(told).count(), 1, "{trace}");
    assert!(world.truth.sandboxes.is_empty(), "nothing is tried");

    claim_answer(&mut world, ClaimAnswer::Elsewhere("pv".into()));
    let told = "event FailedMount MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
    let trace = world.take_trace();
    assert_eq!(trace.matches(told).count(), 1, "{trace}");
    assert_eq!(world.line(), "ContainerCreating 0/1 0");

    let source = PersistentSource::Local { path: "/disk".into() };
    let (name, mount_options) = ("pv".into(), Vec::new());
    let volume = PersistentVolume { name, is_block: false, source, mount_options, gid: None };
    claim_answer(&mut world, ClaimAnswer::Bound(Arc::new(volume)));
    assert_eq!(world.line(), "Running 1/1 0");

    // Without the volume's path no container can start again.
    answer(&mut world, |api| api.claims.clear());
    world.kill("web", 1);
    world.run();
    world.advance(10);
    world.run();
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet));
}

#[test]
fn a_pod_waits_for_its_runtime_class() {
    let spec = json!({"runtimeClassName": "sandboxed", "containers": [container("web")]});
    let mut world = World::of_api(&spec);
    answer(&mut world, |api| api.services = Some(Arc::default()));
    world.run();
    let quiet = "waiting until RuntimeClasses have been read from the API server";
    assert_eq!(world.plan.blocked.as_deref(), Some(quiet));
    assert!(!world.take_trace().contains("event"));
    // Whether the class exists is found when the sandbox is made.
    answer(&mut world, |api| api.runtime_classes = Some(Arc::default()));
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
}

#[test]
fn a_running_pod_goes_on_while_nothing_is_known() {
    let mut world = api_world();
    let token = TokenAnswer::Issued(ServiceAccountToken::new("one"));
    let token = token_answer(&world, token);
    answer(&mut world, |api| {
        api.tokens.extend([token]);
        api.objects.extend([
            object_answer(ObjectKind::ConfigMap, "conf", Some(("a", "1"))),
            object_answer(ObjectKind::Secret, "pass", Some(("word", "1"))),
        ]);
        api.services = Some(Arc::default());
    });
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
    world.take_trace();
    // The agent restarts while the API server is away.
    world.restart_agent();
    answer(&mut world, |api| *api = ApiObjects::default());
    world.run();
    assert_eq!(world.line(), "Running 1/1 0");
    let trace = world.take_trace();
    assert!(!trace.contains("prepare") && !trace.contains("event"), "{trace}");
}
