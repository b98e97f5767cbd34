//! Images that are there, and images that are not.

use crate::support::{
    images::BUSYBOX,
    manifest::Pod,
    registry::Registry,
    world::{Kind, SOON, World},
};
use std::fs;

/// Of a registry that refuses at once, whatever resolver the machine has.
const ABSENT: &str = "127.0.0.1:1/absent:1";

pub fn pull_policies_and_their_reasons(kind: Kind) {
    let world = World::start(kind);
    let pod = |name: &str, image: &str, policy: &str| {
        Pod::running(name)
            .set("containers/0/image", image)
            .set("containers/0/imagePullPolicy", policy)
    };
    world.drop_pod(&pod("never", ABSENT, "Never"));
    world.drop_pod(&pod("present", BUSYBOX, "Never"));
    world.drop_pod(&pod("absent", ABSENT, "IfNotPresent"));
    // The registry cannot be reached: what is here already is good enough for a static pod.
    world.drop_pod(&pod("always", BUSYBOX, "Always"));
    let status = world.wait_for(3 * SOON, "each is judged", |status| {
        let pulls = ["ErrImagePull", "ImagePullBackOff"];
        status.runs("present")
            && status.runs("always")
            && status.waiting_reason("never", "main") == "ErrImageNeverPull"
            && pulls.contains(&status.waiting_reason("absent", "main"))
    });
    assert!(status.has_event("ErrImageNeverPull", "never"), "{status:?}");
    assert!(status.has_event("Failed", "absent"), "{status:?}");
    world.wait("pulls back off", |status| {
        status.waiting_reason("absent", "main") == "ImagePullBackOff"
    });
    assert!(world.proxy.count("PullImage", "absent") <= 2, "back-off instead of hammering");
    assert_eq!(world.proxy.count("PullImage", "never"), 0);
    world.finish();
}

/// The user's name and password for a registry, as docker's config files have them (base64 of
/// `puller:secret` and of `puller:wrong`).
fn docker_config(address: &str, right: bool) -> String {
    let auth = if right { "cHVsbGVyOnNlY3JldA==" } else { "cHVsbGVyOndyb25n" };
    format!("{{\"auths\":{{\"{address}\":{{\"auth\":\"{auth}\"}}}}}}")
}

/// A world with a registry that holds `busybox:pulled`.
fn with_registry(kind: Kind) -> Option<(World, Registry)> {
    let world = World::start(kind);
    let mut registry = Registry::prepare(&world.slot)?;
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, "busybox:pulled");
    Some((world, registry))
}

pub fn pulls_from_a_registry_that_is_down_and_slow(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind) else { return };
    let image = registry.image("busybox:pulled");
    registry.stop();
    world.drop_pod(&Pod::running("web").set("containers/0/image", image.as_str()));
    let status = world.wait("the pull fails", |status| {
        ["ErrImagePull", "ImagePullBackOff"].contains(&status.waiting_reason("web", "main"))
    });
    assert!(status.has_event("Failed", "connection refused"), "{status:?}");
    registry.start(false);
    let status = world.wait_running("web");
    assert!(status.has_event("Pulled", "Successfully pulled image"), "{status:?}");
    world.remove("web.yaml");
    world.wait_gone("web");

    world.runtime.containerd().ctr(&["images", "rm", "--sync", &image]);
    registry.freeze(true);
    world.drop_pod(&Pod::running("slow").set("containers/0/image", image.as_str()));
    let pulling = || world.proxy.count("PullImage", "slow");
    world.wait_until("the pull is under way", pulling, |n| *n == 1);
    world.drop_pod(&Pod::running("free"));
    world.wait_running("free");
    registry.freeze(false);
    world.wait_running("slow");
    world.finish();
}

pub fn a_pull_that_the_agent_gives_up_is_no_failure(kind: Kind) {
    let world = World::start(kind);
    let hangs = world.proxy.on("PullImage").pod("web").hang();
    let pulls = || world.proxy.count("PullImage", "web");
    let pulled_again = |number: usize| {
        world.wait_until("the image is pulled", pulls, |n| *n == number);
        world.wait("it is created", |status| {
            let reason = status.waiting_reason("web", "main");
            assert_ne!(reason, "ErrImagePull", "after {number} pulls");
            reason == "ContainerCreating"
        });
    };
    let pod = Pod::running("web").set("containers/0/imagePullPolicy", "Always");
    world.drop_pod(&pod);
    pulled_again(1);
    assert_eq!(world.agent.terminate(), Some(0));
    world.agent.start();
    pulled_again(2);
    world.proxy.lift(hangs);
    world.wait_running("web");
    world.finish();
}

pub fn pulls_with_a_password(kind: Kind) {
    let Some((world, mut registry)) = with_registry(kind) else { return };
    registry.stop();
    registry.start(true);
    let image = registry.image("busybox:pulled");
    let config = world.agent.root_dir().join("config.json");
    fs::write(&config, docker_config(&registry.address(), false)).unwrap();
    world.drop_pod(&Pod::running("web").set("containers/0/image", image.as_str()));
    world.wait("a wrong password is no good", |status| {
        ["ErrImagePull", "ImagePullBackOff"].contains(&status.waiting_reason("web", "main"))
    });
    fs::write(&config, docker_config(&registry.address(), true)).unwrap();
    world.wait_running("web");
    world.finish();
}
