//! Images that are there, and images that are not.

use crate::support::{
    images::BUSYBOX,
    manifest::Pod,
    world::{Kind, World},
};

const ABSENT: &str = "nodelet.test/absent:1";

pub fn pull_policies_and_their_reasons(kind: Kind) {
    let world = World::start(kind);
    let pod = |name: &str, image: &str, policy: &str| {
        Pod::running(name)
            .set("containers/0/image", image)
            .set("containers/0/imagePullPolicy", policy)
    };
    world.drop_pod(&pod("never", ABSENT, "Never"));
    world.drop_pod(&pod("present", BUSYBOX, "Never"));
    world.drop_pod(&pod("invalid", "nodelet.test/UPPER:1", "IfNotPresent"));
    world.drop_pod(&pod("absent", ABSENT, "IfNotPresent"));
    // The registry cannot be reached: what is here already is good enough for a static pod.
    world.drop_pod(&pod("always", BUSYBOX, "Always"));
    let status = world.wait("each is judged", |status| {
        let pulls = ["ErrImagePull", "ImagePullBackOff"];
        status.runs("present")
            && status.runs("always")
            && status.waiting_reason("never", "main") == "ErrImageNeverPull"
            && status.waiting_reason("invalid", "main") == "InvalidImageName"
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
