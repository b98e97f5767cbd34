//! Which pods may use an image that is on the node: pods with the credentials that have pulled it,
//! and images that another program has brought.

use crate::support::{
    agent::Settings,
    gate::{Flow, Gate},
    images::BUSYBOX,
    manifest::Pod,
    process::Process,
    registry::Registry,
    status::Status,
    world::{Kind, World},
};
use serde_json::json;
use std::{fs, path::Path};

const NAME: &str = "busybox:pulled";
/// base64 of `puller:secret`
const RIGHT: &str = "cHVsbGVyOnNlY3JldA==";
/// SHA-256 of `{"username":"puller","password":"secret"}`, which is how a kubelet tells credentials
/// apart.
const RIGHT_HASH: &str = "2ce87c099a822b8b4f227dbc0d14d90a375e40bff9b375819d09dce49433d22a";
const POLICY: &str = "imagePullCredentialsVerificationPolicy";

fn pod(name: &str, image: &str, policy: &str) -> Pod {
    Pod::running(name).set("containers/0/image", image).set("containers/0/imagePullPolicy", policy)
}

fn with_secret(pod: Pod, secret: &str) -> Pod {
    pod.set("imagePullSecrets", json!([{ "name": secret }]))
}

fn write_secret(world: &World, registry: &Registry, name: &str) {
    let config = format!("{{\"auths\":{{\"{}\":{{\"auth\":\"{RIGHT}\"}}}}}}", registry.address());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": config },
    });
    world.write(&format!("secret-{name}.yaml"), &secret.to_string());
}

/// Waits until the pod was denied the image; gives the message.
fn wait_denied(world: &World, name: &str) -> String {
    let denied = |status: &Status| {
        let reason = status.waiting_reason(name, "main");
        ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
    };
    let status = world.wait(&format!("{name} is denied the image"), denied);
    let state = status.container(name, "main").and_then(|c| c.state.clone());
    state.and_then(|state| state.waiting?.message).unwrap_or_default()
}

/// The names and the texts of all files in a directory of records.
fn records(world: &World, part: &str) -> Vec<(String, String)> {
    let dir = world.agent.root_dir().join("image_manager").join(part);
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let paths = entries.map(|entry| entry.path());
    paths.map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect()
}

/// Sets the policy for the next start.
fn set_policy(world: &World, lines: &str) {
    let file = world.agent.config_file();
    let text = fs::read_to_string(&file).unwrap();
    let kept = text.lines().filter(|line| !line.contains("Verification"));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    let policy = format!("kind: KubeletConfiguration\n{lines}");
    fs::write(file, kept.replacen("kind: KubeletConfiguration\n", &policy, 1)).unwrap();
}

fn restart(world: &World) {
    world.agent.kill();
    world.agent.start();
}

pub fn an_image_of_a_secret_is_for_pods_with_its_credentials(kind: Kind) {
    let world = World::start(kind);
    let Some(mut registry) = Registry::prepare(&world.slot) else { return };
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, NAME);
    registry.stop();
    registry.start(true);
    let image = registry.image(NAME);
    let pulls = |pod: &str| world.proxy.count("PullImage", pod);
    let starts = |pod: &str| world.proxy.count("StartContainer", pod);
    write_secret(&world, &registry, "first");
    world.drop_pod(&with_secret(pod("owner", &image, "IfNotPresent"), "first"));
    world.wait_running("owner");

    // A pod without the Secret waits, as if the image were not there.
    world.drop_pod(&pod("stranger", &image, "IfNotPresent"));
    world.drop_pod(&pod("never", &image, "Never"));
    let message = wait_denied(&world, "stranger");
    assert!(message.contains("authorization failed") || message.contains("401"), "{message}");
    world.wait("it is missing", |s| s.waiting_reason("never", "main") == "ErrImageNeverPull");
    // The same content under the name by which another program has brought it is for all, also
    // beside an update that waits for an image that it may not use.
    world.drop_pod(&pod("updated", BUSYBOX, "IfNotPresent"));
    world.wait_running("updated");
    let before = world.running_ids("updated");
    world.drop_pod(&pod("updated", &image, "IfNotPresent"));
    world.wait_until("the update pulls", || pulls("updated"), |pulls| *pulls > 0);
    assert_eq!(world.running_ids("updated"), before);

    // The same credentials under another name need no pull, and are written down.
    write_secret(&world, &registry, "second");
    world.drop_pod(&with_secret(pod("twin", &image, "IfNotPresent"), "second"));
    world.wait_running("twin");
    assert_eq!((pulls("owner"), pulls("twin")), (1, 0));
    let [(name, text)] = &*records(&world, "pulled") else { panic!("one image was pulled") };
    assert!(name.starts_with("sha256-") && name.len() == 71, "{name}");
    for part in ["\"first\"", "\"second\"", "ImagePulledRecord", RIGHT_HASH] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let password = ["puller", "secret\"", RIGHT];
    assert!(!password.iter().any(|part| text.contains(part)), "{text}");
    assert!(!world.agent.log().contains(RIGHT_HASH), "the log has the hash");

    // The next run of the agent knows all of it, also where the registry is away.
    restart(&world);
    world.wait("the agent answers", |status| status.runs("owner"));
    world.kill_container(&world.running_id("owner", "main"));
    world.wait("its container is restarted", |s| {
        s.runs("owner") && s.restarts("owner", "main") == 1
    });
    assert_eq!(pulls("owner"), 1);
    world.drop_pod(&pod("late", &image, "IfNotPresent"));
    wait_denied(&world, "late");
    registry.stop();
    world.drop_pod(&pod("offline", &image, "Always"));
    world.drop_pod(&with_secret(pod("owner-offline", &image, "Always"), "first"));
    world.wait_running("owner-offline");
    let message = wait_denied(&world, "offline");
    assert!(message.contains("connection refused"), "{message}");
    assert_eq!(["stranger", "never", "late", "offline"].map(starts), [0; 4]);

    set_policy(&world, &format!("{POLICY}: NeverVerify\n"));
    restart(&world);
    world.drop_pod(&pod("anybody", &image, "IfNotPresent"));
    world.wait_running("anybody");
    assert_eq!(pulls("anybody"), 0);
    world.finish();
}

/// On containerd 2.1 and later.
pub fn a_volume_of_a_secrets_image_is_for_pods_with_its_credentials(kind: Kind) {
    let world = World::start(kind);
    let Some(mut registry) = Registry::prepare(&world.slot) else { return };
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, NAME);
    registry.stop();
    registry.start(true);
    let image = registry.image(NAME);
    let mounts = |name: &str| {
        let image = json!({ "reference": image, "pullPolicy": "IfNotPresent" });
        Pod::running(name)
            .set("volumes", json!([{ "name": "files", "image": image }]))
            .set("containers/0/volumeMounts", json!([{ "name": "files", "mountPath": "/files" }]))
    };
    write_secret(&world, &registry, "first");
    world.drop_pod(&with_secret(mounts("owner"), "first"));
    world.wait_running("owner");
    assert!(Process::of(&world, "owner", "main").path("/files/bin/busybox").is_file());
    world.drop_pod(&mounts("stranger"));
    wait_denied(&world, "stranger");
    assert_eq!(world.proxy.count("CreateContainer", "stranger"), 0);
    world.finish();
}

pub fn a_preloaded_image_is_for_every_pod_unless_all_are_verified(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&pod("default", BUSYBOX, "Never"));
    world.wait_running("default");
    set_policy(&world, &format!("{POLICY}: AlwaysVerify\n"));
    restart(&world);
    world.drop_pod(&pod("strict", BUSYBOX, "Never"));
    world.wait("it is verified", |s| s.waiting_reason("strict", "main") == "ErrImageNeverPull");
    assert!(world.agent.status().unwrap().runs("default"), "what runs goes on");
    let name = BUSYBOX.split(':').next().unwrap();
    let list = format!("preloadedImagesVerificationAllowlist: ['{name}']\n");
    set_policy(&world, &format!("{POLICY}: NeverVerifyAllowlistedImages\n{list}"));
    restart(&world);
    world.wait_running("strict");
    world.finish();
}

pub fn an_agent_killed_in_a_pull_leaves_its_intent(kind: Kind) {
    let world = World::start_with(kind, &Settings::for_kind(kind));
    let Some(mut registry) = Registry::prepare(&world.slot) else { return };
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, NAME);
    let gate = Gate::before(registry.port());
    gate.set(Flow::Shut);
    let image = format!("127.0.0.1:{}/{NAME}", gate.port());
    world.drop_pod(&pod("web", &image, "IfNotPresent"));
    world.wait_until("the pull is under way", || gate.visitors(), |n| *n > 0);
    let intents = || records(&world, "pulling");
    let [(name, text)] = &*intents() else { panic!("{:?}", intents()) };
    assert!(name.starts_with("sha256-") && text.contains(&image), "{name} {text}");
    world.agent.kill();
    world.wait_until("the runtime gives the pull up", || gate.visitors(), |n| *n == 0);
    assert_eq!(intents().len(), 1);

    // The image is there when the next agent comes: it may have come from that pull.
    let preloaded = format!("127.0.0.1:{}/preloaded:1", gate.port());
    for name in [&image, &preloaded] {
        world.runtime.containerd().ctr(&["images", "tag", BUSYBOX, name]);
        world.wait_until("the runtime has it", || world.cri.has_image(name), |has| *has);
    }
    world.agent.start();
    world.wait_until("the image is verified", || gate.visitors(), |n| *n > 0);
    assert_eq!(world.proxy.count("StartContainer", "web"), 0);
    world.drop_pod(&pod("other", &preloaded, "IfNotPresent"));
    world.wait_running("other");
    assert_eq!(world.proxy.count("PullImage", "other"), 0);
    gate.set(Flow::Open);
    world.wait_running("web");
    world.wait_until("the pull is recorded", || intents().len(), |n| *n == 0);
    assert!(records(&world, "pulled")[0].1.contains("nodePodsAccessible"));
    world.finish();
}
