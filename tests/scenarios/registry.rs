//! A real registry on loopback: policies, back-off, passwords, and answers that trickle or never
//! come.

use crate::support::{
    agent::Settings,
    gate::{Flow, Gate},
    images::BUSYBOX,
    manifest::Pod,
    proxy::Call,
    registry::Registry,
    status::Status,
    stays,
    world::{Kind, World},
};
use serde_json::json;
use std::{fs, time::Duration};

const NAME: &str = "busybox:pulled";

/// A world with a registry that runs and holds [`NAME`].
fn with_registry(kind: Kind, settings: &Settings) -> Option<(World, Registry)> {
    let world = World::start_with(kind, settings);
    let mut registry = Registry::prepare(&world.slot)?;
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, NAME);
    Some((world, registry))
}

fn pod(name: &str, image: &str, policy: &str) -> Pod {
    Pod::running(name).set("containers/0/image", image).set("containers/0/imagePullPolicy", policy)
}

fn waiting_message(status: &Status, pod: &str) -> String {
    let state = status.container(pod, "main").and_then(|c| c.state.clone());
    state.and_then(|state| state.waiting?.message).unwrap_or_default()
}

fn write_password(world: &World, registry: &Registry, base64: &str) {
    let config = format!("{{\"auths\":{{\"{}\":{{\"auth\":\"{base64}\"}}}}}}", registry.address());
    fs::write(world.agent.root_dir().join("config.json"), config).unwrap();
}

/// base64 of `puller:secret`
const RIGHT: &str = "cHVsbGVyOnNlY3JldA==";
/// base64 of `puller:wrong`
const WRONG: &str = "cHVsbGVyOndyb25n";

pub fn each_pull_policy_asks_the_registry_as_often_as_it_says(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind, &Settings::for_kind(kind)) else {
        return;
    };
    let image = registry.image(NAME);
    let pulls = |pod: &str| world.proxy.count("PullImage", pod);
    world.drop_pod(&pod("never", &image, "Never"));
    world.wait("it is missing", |s| s.waiting_reason("never", "main") == "ErrImageNeverPull");
    world.drop_pod(&pod("missing", &image, "IfNotPresent"));
    let status = world.wait_running("missing");
    assert!(status.has_event("Pulling", &format!("Pulling image \\\"{image}\\\"")), "{status:?}");
    world.drop_pod(&pod("present", &image, "IfNotPresent"));
    world.drop_pod(&pod("always", &image, "Always"));
    world.wait("what was pulled is there for all", |status| {
        ["present", "always", "never"].iter().all(|name| status.runs(name))
    });
    assert_eq!(["never", "missing", "present", "always"].map(pulls), [0, 1, 0, 1]);

    // Also a restart asks, and where nobody answers, what is there will do.
    registry.stop();
    world.kill_container(&world.running_id("always", "main"));
    world.kill_container(&world.running_id("present", "main"));
    let status = world.wait("both run again", |status| {
        ["present", "always"]
            .iter()
            .all(|name| status.runs(name) && status.restarts(name, "main") == 1)
    });
    assert_eq!(["present", "always"].map(pulls), [0, 2]);
    let warned = |about: &str| status.has_event("Failed", about);
    assert!(warned("connection refused") && warned("already present on the machine"), "{status:?}");
    world.finish();
}

pub fn a_registry_that_is_down_is_asked_less_and_less(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind, &Settings::for_kind(kind)) else {
        return;
    };
    let image = registry.image(NAME);
    registry.stop();
    world.drop_pod(&pod("web", &image, "IfNotPresent"));
    let status =
        world.wait("the pull fails", |s| s.waiting_reason("web", "main") == "ErrImagePull");
    let failed = format!("failed to pull and unpack image \"{image}\"");
    let message = waiting_message(&status, "web");
    assert!(message.starts_with(&failed) && message.ends_with("connection refused"), "{message}");
    assert!(status.has_event("Failed", "Error: ErrImagePull"), "{status:?}");
    assert!(
        status
            .has_event("Failed", &format!("Failed to pull image \\\"{image}\\\": failed to pull"))
    );
    let status =
        world.wait("it backs off", |s| s.waiting_reason("web", "main") == "ImagePullBackOff");
    let message = waiting_message(&status, "web");
    let expected = format!("Back-off pulling image \"{image}\": ErrImagePull: {failed}");
    assert!(message.starts_with(&expected), "{message}");
    assert!(status.has_event("BackOff", &format!("Back-off pulling image \\\"{image}\\\"")));
    assert!(status.has_event("Failed", "Error: ImagePullBackOff"), "{status:?}");

    registry.start(false);
    world.wait_running("web");
    let calls = world.proxy.calls();
    let pulls: Vec<&Call> = calls.iter().filter(|call| call.method == "PullImage").collect();
    let [first, second, third] = pulls.as_slice() else { panic!("three pulls: {pulls:#?}") };
    assert!(second.at - first.at >= Duration::from_secs(10), "{pulls:#?}");
    assert!(third.at - second.at >= Duration::from_secs(20), "{pulls:#?}");
    world.finish();
}

pub fn a_pull_that_hangs_is_cancelled_with_its_manifest(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("maxParallelImagePulls: 3\n");
    let Some((world, registry)) = with_registry(kind, &settings) else { return };
    let gate = Gate::before(registry.port());
    gate.set(Flow::Shut);
    world.drop_pod(&Pod::running("neighbour"));
    world.wait_running("neighbour");
    world.drop_pod(&pod("hangs", &format!("127.0.0.1:{}/{NAME}", gate.port()), "IfNotPresent"));
    world.wait_until("the pull is under way", || gate.visitors(), |n| *n > 0);

    // Pods that pull elsewhere, that need no pull, that die and that go: none of them waits.
    world.drop_pod(&pod("pulls", &registry.image(NAME), "IfNotPresent"));
    world.drop_pod(&Pod::running("new"));
    world.kill_container(&world.running_id("neighbour", "main"));
    world.wait("all others go on", |status| {
        status.runs("pulls") && status.runs("new") && status.restarts("neighbour", "main") == 1
    });
    world.remove("new.yaml");
    world.wait_gone("new");
    let status = world.agent.status().unwrap();
    assert_eq!(status.waiting_reason("hangs", "main"), "ContainerCreating", "{status:?}");
    assert!(gate.visitors() > 0, "the pull is still under way");

    world.remove("hangs.yaml");
    let removed = tokio::time::Instant::now();
    world.wait_gone("hangs");
    let took = removed.elapsed();
    // It hangs for far longer.
    assert!(took < Duration::from_secs(20), "{took:?}");
    world.wait_until("the runtime has let go of it", || gate.visitors(), |n| *n == 0);
    world.finish();
}

pub fn a_pull_that_trickles_arrives(kind: Kind) {
    let Some((world, registry)) = with_registry(kind, &Settings::for_kind(kind)) else { return };
    let gate = Gate::before(registry.port());
    gate.set(Flow::Trickle(10));
    let image = format!("127.0.0.1:{}/{NAME}", gate.port());
    world.drop_pod(&pod("slow", &image, "Always"));
    world.wait_until("the pull is under way", || gate.visitors(), |n| *n > 0);
    // The agent dies over it: the next one pulls again, and what runs stays.
    world.drop_pod(&Pod::running("free"));
    world.wait_running("free");
    let free = world.running_ids("free");
    assert_eq!(world.agent.status().unwrap().waiting_reason("slow", "main"), "ContainerCreating");
    world.agent.kill();
    world.wait_until("the runtime gives the pull up", || gate.visitors(), |n| *n == 0);
    gate.set(Flow::Trickle(200));
    world.agent.start();
    world.wait_running("slow");
    assert_eq!(world.running_ids("free"), free);
    world.finish();
}

pub fn a_denied_image_does_not_start_from_the_copy_on_the_machine(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind, &Settings::for_kind(kind)) else {
        return;
    };
    let image = registry.image(NAME);
    world.drop_pod(&pod("earlier", &image, "IfNotPresent"));
    world.wait_running("earlier");
    registry.stop();
    registry.start(true);
    write_password(&world, &registry, WRONG);
    world.drop_pod(&pod("web", &image, "Always"));
    let status = world.wait("it is denied", |s| s.waiting_reason("web", "main") == "ErrImagePull");
    let message = waiting_message(&status, "web");
    let said = ["401 Unauthorized", "authorization failed"];
    assert!(said.iter().any(|words| message.contains(words)), "{message}");
    world.wait("the pull backs off", |s| s.waiting_reason("web", "main") == "ImagePullBackOff");
    let started = || world.proxy.count("StartContainer", "web");
    stays("it does not start", Duration::from_secs(4), started, |n| *n == 0);
    write_password(&world, &registry, RIGHT);
    world.wait_running("web");
    // The wrong password is nowhere to be read.
    assert!(!world.agent.log().contains("wrong"), "the log has the password");
    world.finish();
}

pub fn a_secret_of_the_pod_has_the_password_of_a_registry(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind, &Settings::for_kind(kind)) else {
        return;
    };
    registry.stop();
    registry.start(true);
    // The node's own password is wrong.
    write_password(&world, &registry, WRONG);
    let image = registry.image(NAME);
    let pull_secrets = json!([{ "name": "registry" }]);
    world.drop_pod(&pod("web", &image, "Always").set("imagePullSecrets", pull_secrets));
    let status = world.wait("it is denied", |s| s.waiting_reason("web", "main") == "ErrImagePull");
    assert!(status.has_event("FailedToRetrieveImagePullSecret", "(registry)"));
    let config = format!("{{\"auths\":{{\"{}\":{{\"auth\":\"{RIGHT}\"}}}}}}", registry.address());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "registry" },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": config },
    });
    world.write("secret.yaml", &secret.to_string());
    world.wait_running("web");
    assert!(!world.agent.log().contains(RIGHT), "the log has the password");
    world.finish();
}
