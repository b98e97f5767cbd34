//! Updates of running pods: what a new revision waits for, and when it is rolled back.

use crate::support::{
    images::BUSYBOX,
    manifest::Pod,
    status::Status,
    world::{Kind, World},
};
use nodelet::model::PodUpdate;
use serde_json::json;

/// Of a registry that refuses at once, whatever resolver the machine has.
const ABSENT: &str = "127.0.0.1:1/absent:1";

/// Why the new revision of the pod waits; empty when it does not.
fn waits(status: &Status, pod: &str) -> String {
    match status.pod(pod).and_then(|view| view.update.as_ref()) {
        Some(PodUpdate::Waits(why)) => why.clone(),
        Some(PodUpdate::RolledBack(_)) | None => String::new(),
    }
}

fn is_rolled_back(status: &Status, pod: &str) -> bool {
    let update = status.pod(pod).and_then(|view| view.update.as_ref());
    matches!(update, Some(PodUpdate::RolledBack(_)))
}

/// When the pod became Ready, in whole seconds; `None` when it is not.
fn ready_since(status: &Status, pod: &str) -> Option<jiff::Timestamp> {
    let conditions = status.pod(pod)?.status.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    ready.last_transition_time.as_ref().map(|since| since.0)
}

pub fn an_update_waits_for_its_image(kind: Kind) {
    let world = World::start(kind);
    let web = Pod::running("web").env("VERSION", "1");
    world.drop_pod(&web);
    world.wait_running("web");
    let before = world.running_ids("web");
    let update = web.clone().env("VERSION", "2").set("containers/0/image", ABSENT);
    world.drop_pod(&update);
    let status =
        world.wait("the update waits", |status| waits(status, "web").contains("ErrImagePull"));
    assert!(status.has_event("UpdateWaiting", "the old one runs on"), "{status:?}");
    assert_eq!(world.running_ids("web"), before, "nothing was stopped for it");

    world.agent.kill();
    world.agent.start();
    world.wait("it waits also after a restart of the agent", |status| {
        waits(status, "web").contains("ErrImagePull")
    });
    assert_eq!(world.running_ids("web"), before);
    world.kill_container(&before[0]);
    let status = world.wait("the old revision restarts its container", |status| {
        status.runs("web") && status.restarts("web", "main") == 1
    });
    assert!(!waits(&status, "web").is_empty(), "{status:?}");

    let before = world.running_ids("web");
    world.drop_pod(&web);
    world.wait("the edit is taken back", |status| {
        status.runs("web") && status.pod("web").is_some_and(|view| view.update.is_none())
    });
    assert_eq!(world.running_ids("web"), before);
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    world.drop_pod(&update.set("containers/0/image", BUSYBOX));
    world.wait("an image that is there is enough", |status| {
        status.runs("web") && status.pod("web").is_some_and(|view| view.uid != uid)
    });
    world.drop_pod(&Pod::running("web").set("containers/0/image", ABSENT));
    world.wait("the next update waits", |status| !waits(status, "web").is_empty());
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

pub fn an_update_waits_for_its_objects(kind: Kind) {
    let world = World::start(kind);
    let web = Pod::running("web");
    world.drop_pod(&web);
    world.wait_running("web");
    let before = world.running_ids("web");
    let from = json!([{ "configMapRef": { "name": "late" } }]);
    world.drop_pod(&web.clone().set("containers/0/envFrom", from));
    world.wait("the update waits", |status| {
        waits(status, "web").contains("configmap \"late\" not found")
    });
    assert_eq!(world.running_ids("web"), before);
    let metadata = json!({ "name": "late" });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
    world.write("late.yaml", &map.to_string());
    world.wait("the new revision runs", |status| {
        let now = world.running_ids("web");
        status.runs("web") && waits(status, "web").is_empty() && now.len() == 1 && now != before
    });
    world.finish();
}

pub fn a_revision_that_is_not_ready_is_rolled_back(kind: Kind) {
    let world = World::start(kind);
    let tried = json!({
        "nodelet.dev/rollback": "true",
        "nodelet.dev/min-ready-seconds": "1",
        "nodelet.dev/progress-deadline-seconds": "2",
    });
    let good = Pod::running("web").meta("annotations", tried).env("VERSION", "1");
    world.drop_pod(&good);
    let first = world.wait_running("web").pod("web").unwrap().uid.clone();
    // A revision counts as good when it was Ready for a second. Nothing else shows that. The time
    // is rounded down to whole seconds, and the agent needs a moment to note it.
    world.wait("it was Ready for a second", |status| {
        ready_since(status, "web")
            .is_some_and(|since| jiff::Timestamp::now().duration_since(since).as_secs() >= 3)
    });
    let bad = Pod::with_main("web", "exit 1")
        .meta("annotations", good.value()["metadata"]["annotations"].clone());
    world.drop_pod(&bad);
    let status = world.wait("the previous revision runs again", |status| {
        is_rolled_back(status, "web") && status.runs("web")
    });
    let view = status.pod("web").unwrap();
    assert_ne!(view.uid, first, "as another incarnation");
    let container = &view.pod.as_ref().unwrap().spec.as_ref().unwrap().containers[0];
    assert_eq!(container.env, good_env(&good), "{container:?}");
    let image = container.image.as_deref().unwrap();
    assert!(image.contains("sha256:"), "by the id of the image that it ran: {image}");
    assert!(status.has_event("RolledBack", "not Ready within 2 s"), "{status:?}");

    let before = world.running_ids("web");
    world.agent.kill();
    world.agent.start();
    world
        .wait("it stays rolled back", |status| is_rolled_back(status, "web") && status.runs("web"));
    assert_eq!(world.running_ids("web"), before);
    let hook = json!({ "postStart": { "sleep": { "seconds": 3600 } } });
    let hangs = good
        .clone()
        .set("containers/0/lifecycle", hook)
        .set("terminationGracePeriodSeconds", json!(3600));
    let too_large = json!({ "requests": { "cpu": "5000" } });
    let too_large = good.clone().set("containers/0/resources", too_large);
    for (what, bad) in [("its hook hangs", hangs), ("there is no room", too_large)] {
        world.drop_pod(&bad);
        world.wait(what, |status| !is_rolled_back(status, "web"));
        let status = world.wait("the previous revision runs again", |status| {
            is_rolled_back(status, "web") && status.runs("web")
        });
        let view = status.pod("web").unwrap();
        let container = &view.pod.as_ref().unwrap().spec.as_ref().unwrap().containers[0];
        assert_eq!(container.env, good_env(&good), "{what}: {container:?}");
        assert_eq!(container.lifecycle, None, "{what}");
    }
    // A slow start is no reason to roll this one back.
    let mut patient = good.value()["metadata"]["annotations"].clone();
    patient["nodelet.dev/progress-deadline-seconds"] = json!("60");
    world.drop_pod(&good.clone().env("VERSION", "3").meta("annotations", patient));
    world.wait("the next edit runs", |status| {
        let now = world.running_ids("web");
        status.runs("web") && !is_rolled_back(status, "web") && now.len() == 1 && now != before
    });
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

fn good_env(pod: &Pod) -> Option<Vec<nodelet::model::k8s::EnvVar>> {
    serde_json::from_value(pod.value()["spec"]["containers"][0]["env"].clone()).unwrap()
}
