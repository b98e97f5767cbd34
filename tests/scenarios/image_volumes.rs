//! Image volumes: mounted where the runtime can, and named where it can't.

use super::disk_pressure::made_image;
use crate::support::{
    containerd::Suite,
    images::BUSYBOX,
    manifest::Pod,
    process::Process,
    status::Status,
    stays,
    world::{Kind, World},
};
use serde_json::json;
use std::time::Duration;

/// A pod that mounts an image, or a part of it.
fn mounts(name: &str, image: &str, sub_path: &str) -> Pod {
    let volumes =
        json!([{ "name": "files", "image": { "reference": image, "pullPolicy": "Never" } }]);
    let mounts = json!([{ "name": "files", "mountPath": "/files", "subPath": sub_path }]);
    Pod::running(name).set("volumes", volumes).set("containers/0/volumeMounts", mounts)
}

fn waiting_message(status: &Status, pod: &str) -> String {
    let state = status.container(pod, "main").and_then(|c| c.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.message.clone()).unwrap_or_default()
}

/// The pod waits with this message, in one event, and its container is not created.
#[track_caller]
fn waits_for_the_runtime(world: &World, pod: &str, message: &str) {
    let status = world.wait("it waits for another runtime", |status| {
        status.waiting_reason(pod, "main") == "CreateContainerConfigError"
            && waiting_message(status, pod).contains(message)
    });
    assert!(status.has_event("Failed", message), "{status:?}");
    stays(
        "nothing is created, whatever is tried again",
        Duration::from_secs(3),
        || world.proxy.count("CreateContainer", pod),
        |calls| *calls == 0,
    );
    let status = world.agent.status().unwrap();
    let told = |event: &&serde_json::Value| {
        event["message"].as_str().is_some_and(|text| text.contains(message))
    };
    assert_eq!(status.events.iter().filter(told).count(), 1, "{status:?}");
}

/// The fake and Debian 12 have containerd 1.6, which would leave out the mount without an error.
pub fn a_runtime_without_image_volumes_starts_nothing(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&mounts("web", BUSYBOX, ""));
    world.drop_pod(&Pod::running("free"));
    waits_for_the_runtime(&world, "web", "does not support image volumes");
    assert_eq!(world.proxy.count("PullImage", "web"), 0);
    world.wait_running("free");
    world.finish();
}

/// On each release's containerd.
pub fn an_image_is_mounted_where_the_runtime_can(kind: Kind) {
    let Kind::Debian(suite) = kind else { panic!("for a Debian release") };
    let world = World::start(kind);
    if suite != Suite::Sid {
        world.drop_pod(&mounts("web", BUSYBOX, ""));
        let message = format!("containerd {}", suite.version());
        waits_for_the_runtime(&world, "web", &message);
        return world.finish();
    }
    // The image comes later.
    world.drop_pod(&mounts("web", "nodelet.test/files:1", ""));
    let status = world.wait("it waits for the image", |status| {
        status.waiting_reason("web", "main") == "ErrImageNeverPull"
    });
    assert!(waiting_message(&status, "web").contains("nodelet.test/files:1"), "{status:?}");
    assert_eq!(world.proxy.count("CreateContainer", "web"), 0);
    let image = made_image(&world, "files");
    world.wait_running("web");
    let main = Process::of(&world, "web", "main");
    assert_eq!(main.path("/files/ballast").metadata().unwrap().len(), 5 << 20);
    assert!(main.path("/files/bin/busybox").is_file());
    let mount = main.mount("/files");
    assert!(mount.split(' ').nth(5).unwrap().split(',').any(|o| o == "ro"), "{mount}");
    let listed = world.containers("web").remove(0);
    assert!(listed.annotations["nodelet.dev/image-volumes"].starts_with("sha256:"));
    // A container that is restarted has it again.
    world.kill_container(&listed.id);
    world.wait("it is restarted", |s| s.restarts("web", "main") == 1 && s.runs("web"));
    assert!(Process::of(&world, "web", "main").path("/files/ballast").exists());

    // containerd 2.1 would mount the whole image instead of a part of it.
    world.drop_pod(&mounts("part", &image, "bin"));
    if suite.version().starts_with("2.1.") {
        waits_for_the_runtime(&world, "part", "mounts only whole images");
    } else {
        world.wait_running("part");
        let part = Process::of(&world, "part", "main");
        assert!(part.path("/files/busybox").exists() && !part.path("/files/ballast").exists());
    }
    world.remove("part.yaml");
    world.finish();
}
