//! The start order: pods with `nodelet.dev/after`.

use crate::support::{
    manifest::Pod,
    status::Status,
    world::{Kind, World},
};
use nodelet::model::PodUpdate;
use serde_json::json;
use std::fs;
use tempfile::TempDir;

fn after(names: &str, pod: Pod) -> Pod {
    pod.meta("annotations", json!({ "nodelet.dev/after": names }))
}

/// What a pod waits for; empty when it does not wait.
fn waits<'a>(status: &'a Status, pod: &str) -> &'a str {
    status.pod(pod).and_then(|view| view.waiting.as_deref()).unwrap_or_default()
}

/// The annotation of a pod, as the agent has read it.
fn read_order<'a>(status: &'a Status, pod: &str) -> &'a str {
    let pod = status.pod(pod).and_then(|view| view.pod.as_ref());
    let annotations = pod.and_then(|pod| pod.metadata.annotations.as_ref());
    annotations.and_then(|all| all.get("nodelet.dev/after")).map_or("", String::as_str)
}

fn all_run(status: &Status, pods: &[&str]) -> bool {
    pods.iter().all(|pod| status.runs(pod))
}

pub fn a_pod_starts_after_the_pods_and_jobs_that_it_names(kind: Kind) {
    let world = World::start(kind);
    let dir = TempDir::new().unwrap();
    let is_ready = json!({ "exec": { "command": ["cat", "/host/ready"] }, "periodSeconds": 1 });
    let db = Pod::running("db").set("containers/0/readinessProbe", is_ready);
    let db = db.set("containers/0/readinessProbe/failureThreshold", 1).host_dir(dir.path());
    let migrate = Pod::with_main("migrate", "exit 0").set("restartPolicy", "Never");
    world.drop_pod(&after("db, migrate,late", Pod::running("web").init("setup", "exit 0")));
    world.drop_pod(&after("db", migrate));
    let unknown = "(nodelet.dev/after): no manifest has this name";
    world.wait("both wait for a file", |status| waits(status, "migrate").contains(unknown));
    world.drop_pod(&db);
    let status = world.wait("the job waits for the pod", |status| {
        waits(status, "migrate") == "waiting for pod db (nodelet.dev/after): it is not Ready"
            && status.phase("db") == "Running"
    });
    let all = "waiting for pod db (nodelet.dev/after): it is not Ready; \
               pod migrate (nodelet.dev/after): it has not succeeded yet; \
               pod late (nodelet.dev/after): no manifest has this name";
    assert_eq!(waits(&status, "web"), all);
    assert_eq!(status.phase("web"), "Pending");
    assert_eq!(status.waiting_reason("migrate", "main"), "WaitingForPods");
    assert_eq!(status.waiting_reason("web", "setup"), "WaitingForPods");
    assert_eq!(status.waiting_reason("web", "main"), "PodInitializing");
    let shown = String::from_utf8(world.agent.cli(&["status"]).stdout).unwrap();
    // Long reasons are cut.
    assert!(shown.contains("WaitingForPods") && shown.contains(&all[..80]), "{shown}");
    assert!(world.sandboxes("web").is_empty() && world.sandboxes("migrate").is_empty());

    fs::write(dir.path().join("ready"), "").unwrap();
    let late = format!("waiting for pod late {unknown}");
    let status = world.wait("only a file is missing", |status| waits(status, "web") == late);
    assert_eq!(status.phase("migrate"), "Succeeded");
    assert!(world.sandboxes("web").is_empty());
    world.drop_pod(&Pod::running("late"));
    world.wait("all run", |status| all_run(status, &["db", "late", "web"]));
    let made = |pod: &str| world.containers(pod)[0].created_at;
    assert!(made("db") < made("migrate"), "the job starts after the pod");
    assert!(world.sandboxes("late")[0].created_at < world.sandboxes("web")[0].created_at);

    let before = world.running_ids("web");
    fs::remove_file(dir.path().join("ready")).unwrap();
    let status = world.wait("the first pod is not ready", |status| !status.runs("db"));
    assert!(status.runs("web"), "{status:?}");
    assert_eq!(world.running_ids("web"), before);
    world.finish();
}

pub fn pods_that_wait_for_each_other_are_rejected_until_an_edit(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&after("b", Pod::running("a")));
    world.drop_pod(&after("a", Pod::running("b")));
    world.drop_pod(&after("a", Pod::running("c")));
    let status = world.wait("the cycle is found", |status| {
        status.rejected("a.yaml") && status.rejected("b.yaml") && !waits(status, "c").is_empty()
    });
    let verdict = format!("{:?}", status.verdicts("a.yaml"));
    for part in ["metadata.annotations[nodelet.dev/after]", "a -> b -> a"] {
        assert!(verdict.contains(part), "{verdict}");
    }
    assert!(!status.rejected("c.yaml"), "it is not part of the cycle");
    let itself = "waiting for itself (nodelet.dev/after): a -> b -> a";
    assert_eq!(waits(&status, "a"), itself);
    let not_ready = "waiting for pod a (nodelet.dev/after): it is not Ready";
    assert_eq!(waits(&status, "c"), not_ready);
    let pods = ["a", "b", "c"];
    assert!(pods.iter().all(|pod| world.sandboxes(pod).is_empty()));

    world.drop_pod(&Pod::running("b"));
    // The page of manifests follows a moment later than the pods.
    world.wait("all run, and no manifest is rejected", |status| {
        all_run(status, &pods) && !status.rejected("a.yaml") && !status.rejected("b.yaml")
    });

    let before = pods.map(|pod| world.running_ids(pod));
    world.drop_pod(&after("c", Pod::running("b")));
    let status = world.wait("running pods are in a cycle", |status| {
        ["a.yaml", "b.yaml", "c.yaml"].iter().all(|file| status.rejected(file))
    });
    assert!(all_run(&status, &pods), "{status:?}");
    world.drop_pod(&Pod::running("b"));
    world.wait("the edit is taken back", |status| {
        !["a.yaml", "b.yaml", "c.yaml"].iter().any(|file| status.rejected(file))
    });
    assert_eq!(pods.map(|pod| world.running_ids(pod)), before);
    world.finish();
}

pub fn the_start_order_restarts_nothing(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("db"));
    world.drop_pod(&after("db", Pod::running("web")));
    let both = ["db", "web"];
    let status = world.wait("both run", |status| all_run(status, &both));
    let uid = status.pod("web").unwrap().uid.clone();
    let before = world.running_ids("web");
    world.drop_pod(&after("db,nowhere", Pod::running("web")));
    let status = world.wait("the edit is read", |status| {
        read_order(status, "web") == "db,nowhere" && status.runs("web")
    });
    assert_eq!(status.pod("web").unwrap().uid, uid);
    assert_eq!(waits(&status, "web"), "", "a pod that runs waits for nothing");

    world.kill_container(&world.running_id("db", "main"));
    world.wait("the first pod is back", |status| {
        status.runs("db") && status.restarts("db", "main") == 1
    });
    let restart = world.agent.cli(&["restart", "db"]);
    assert!(restart.status.success(), "{restart:?}");
    world.wait("the first pod was restarted", |status| {
        status.runs("db") && status.restarts("db", "main") == 2
    });
    let of_db = world.running_ids("db");
    world.agent.kill();
    world.agent.start();
    world.wait("both run under the next agent", |status| all_run(status, &both));
    assert_eq!((world.running_ids("db"), world.running_ids("web")), (of_db, before));

    // Neither does a pod wait that has run before.
    world.kill_container(&world.running_id("web", "main"));
    world.wait("the second pod is back", |status| {
        status.runs("web") && status.restarts("web", "main") == 1
    });
    world.agent.kill();
    world.kill_sandbox_if_there(&world.sandboxes("web")[0].id);
    world.agent.start();
    world.wait("the second pod has another sandbox", |status| {
        status.runs("web") && world.sandboxes("web")[0].metadata.as_ref().unwrap().attempt == 1
    });
    world.finish();
}

pub fn an_update_waits_for_a_job_that_it_starts_after(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let before = world.running_ids("web");
    world.drop_pod(&after("migrate", Pod::running("web").env("VERSION", "2")));
    let why = "waiting for pod migrate (nodelet.dev/after): no manifest has this name";
    let status = world.wait("the update waits", |status| {
        let update = status.pod("web").and_then(|view| view.update.as_ref());
        matches!(update, Some(PodUpdate::Waits(found)) if found == why)
    });
    assert!(status.runs("web"), "{status:?}");
    assert_eq!(world.running_ids("web"), before);
    world.drop_pod(&Pod::with_main("migrate", "exit 0").set("restartPolicy", "Never"));
    world.wait("the new revision runs", |status| {
        let now = world.running_ids("web");
        status.runs("web") && now.len() == 1 && now != before
    });
    assert_eq!(world.agent.status().unwrap().phase("migrate"), "Succeeded");
    world.finish();
}

pub fn pods_start_in_order_again_after_a_reboot(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("db"));
    world.drop_pod(&after("db", Pod::running("web")));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", "Never"));
    world.wait("all have started", |status| {
        all_run(status, &["db", "web"]) && status.phase("job") == "Succeeded"
    });
    let edited = after("db,job,late", Pod::running("web"));
    world.drop_pod(&edited);
    world.wait("the edit is read", |status| read_order(status, "web") == "db,job,late");
    // A reboot: no sandbox is left, and /run is empty.
    world.agent.kill();
    for sandbox in ["db", "web", "job"].iter().flat_map(|pod| world.sandboxes(pod)) {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    fs::remove_dir_all(world.agent.run_dir()).unwrap();
    world.agent.start();
    let why = "waiting for pod late (nodelet.dev/after): no manifest has this name";
    let status =
        world.wait("it waits again", |status| status.runs("db") && waits(status, "web") == why);
    assert_eq!(status.waiting_reason("web", "main"), "WaitingForPods");
    assert!(world.sandboxes("web").is_empty());
    world.drop_pod(&Pod::running("late"));
    let status = world.wait("all run", |status| all_run(status, &["db", "late", "web"]));
    assert_eq!(status.phase("job"), "Succeeded", "it has ended, and is not run again");
    assert!(world.sandboxes("job").is_empty());
    world.finish();
}
