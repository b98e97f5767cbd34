//! Pods that are only remembered, and pods that claim the uid of another one.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    status::Status,
    stays,
    world::{Kind, World},
};
use std::{fs, time::Duration};

/// `kill -9` to the agent, and what a reboot does to the sandboxes of these pods.
fn die_and_lose_sandboxes(world: &World, pods: &[&str]) {
    world.agent.kill();
    for sandbox in pods.iter().flat_map(|pod| world.sandboxes(pod)) {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    world.proxy.forget_calls();
}

/// Fails when anything was started for a pod since its calls were forgotten.
fn assert_never_started(world: &World, pod: &str) {
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        assert_eq!(world.proxy.count(method, pod), 0, "{method} for {pod}");
    }
}

pub fn a_pod_removed_during_a_reboot_is_not_started_again(kind: Kind) {
    let world = World::start(kind);
    for pod in ["db", "web"] {
        world.drop_pod(&Pod::running(pod));
        world.wait_running(pod);
    }
    let uid = world.agent.status().unwrap().pod("db").unwrap().uid.clone();
    let directory = world.agent.root_dir().join("pods").join(uid.as_str());
    die_and_lose_sandboxes(&world, &["db", "web"]);
    world.remove("db.yaml");
    assert!(directory.exists());
    world.agent.start();
    world.wait_running("web");
    world.wait_gone("db");
    assert_never_started(&world, "db");
    assert!(!directory.exists(), "its data goes once it is known to be removed");

    // The last one: the right directory is empty.
    die_and_lose_sandboxes(&world, &["web"]);
    world.remove("web.yaml");
    world.agent.start();
    world.wait_gone("web");
    assert_never_started(&world, "web");
    world.finish();
}

/// A container that ended while the agent was down is not started again either.
pub fn a_removed_pod_with_a_dead_container_stays_ended(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("db"));
    world.wait_running("db");
    let id = world.running_id("db", "main");
    world.agent.kill();
    world.kill_container(&id);
    world.remove("db.yaml");
    world.proxy.forget_calls();
    world.agent.start();
    world.wait_gone("db");
    assert_never_started(&world, "db");
    world.finish();
}

/// What can happen to a manifest directory across a reboot: how it is done and how it is undone.
type Mishap = (&'static str, fn(&World), fn(&World));

const MISHAPS: [Mishap; 3] = [
    (
        "a broken file",
        |world| world.write("db.yaml", "kind: ["),
        |world| world.drop_pod(&Pod::running("db")),
    ),
    (
        "a missing directory",
        |world| fs::rename(world.agent.manifests(), aside(world)).unwrap(),
        |world| fs::rename(aside(world), world.agent.manifests()).unwrap(),
    ),
    (
        "an empty mount point",
        |world| {
            fs::rename(world.agent.manifests(), aside(world)).unwrap();
            fs::create_dir(world.agent.manifests()).unwrap();
        },
        |world| {
            fs::remove_dir(world.agent.manifests()).unwrap();
            fs::rename(aside(world), world.agent.manifests()).unwrap();
        },
    ),
];

fn aside(world: &World) -> std::path::PathBuf {
    world.agent.manifests().with_file_name("manifests.aside")
}

pub fn last_good_pods_start_after_a_reboot_without_their_manifests(kind: Kind) {
    let world = World::start(kind);
    let (db, web) = (Pod::running("db"), Pod::running("web"));
    for pod in [&db, &web] {
        world.drop_pod(pod);
    }
    let both = |status: &Status| status.runs("db") && status.runs("web");
    let before = world.wait("both run", both).pod("db").unwrap().uid.clone();
    for (what, happen, undo) in MISHAPS {
        die_and_lose_sandboxes(&world, &["db", "web"]);
        happen(&world);
        world.agent.start();
        world.wait(&format!("both run with {what}"), both);
        let ids = || [world.running_ids("db"), world.running_ids("web")];
        let running = ids();
        undo(&world);
        world.wait(&format!("{what} is well again"), |status| {
            both(status) && status.verdicts("db.yaml").len() == 1 && !status.rejected("db.yaml")
        });
        stays(what, Duration::from_secs(1), ids, |now| *now == running);
        let status = world.agent.status().unwrap();
        assert_eq!(status.pod("db").unwrap().uid, before, "{what}");
    }
    world.finish();
}

const UID: &str = "11111111-1111-4111-8111-111111111111";

fn with_uid(name: &str) -> Pod {
    Pod::with_main(name, "sleep 100000").meta("uid", UID).set("terminationGracePeriodSeconds", 4)
}

pub fn a_renamed_pod_waits_until_nothing_has_its_uid(kind: Kind) {
    let world = World::start_with(kind, &Settings::for_kind(kind));
    world.write("pod.yaml", &with_uid("alpha").text());
    world.wait_running("alpha");
    let hang = world.proxy.on("StopContainer").pod("alpha").hang();
    world.write("pod.yaml", &with_uid("beta").text());
    let waits = |status: &Status| {
        let waiting = status.pod("beta").and_then(|pod| pod.waiting.clone()).unwrap_or_default();
        let expected = format!("uid {UID} is still used by pod default/alpha-");
        waiting.starts_with(&expected) && waiting.ends_with(", which is being removed")
    };
    world.wait("the second one says what it waits for", waits);
    // The wait outlives the agent.
    world.agent.kill();
    world.agent.start();
    world.wait("it waits on", waits);
    assert!(!world.sandboxes("alpha").is_empty());
    assert!(world.sandboxes("beta").is_empty());
    world.proxy.lift(hang);
    world.wait_running("beta");
    assert!(world.agent.status().unwrap().pod("alpha").is_none());
    let calls = world.proxy.calls();
    let at = |method: &str, pod: &str| {
        let of_pod = calls.iter().filter(|call| call.method == method && call.is_for(pod));
        of_pod.map(|call| call.at).collect::<Vec<_>>()
    };
    let (gone, begun) = (at("RemovePodSandbox", "alpha"), at("RunPodSandbox", "beta"));
    assert_eq!(begun.len(), 1);
    assert!(gone.iter().all(|gone| *gone < begun[0]), "{gone:?} {begun:?}");
    world.finish();
}

pub fn of_two_manifests_with_one_uid_the_running_one_stays(kind: Kind) {
    let world = World::start(kind);
    let quick = |name: &str| Pod::with_main(name, FOREVER).meta("uid", UID);
    world.drop_pod(&quick("beta"));
    world.wait_running("beta");
    let ids = world.running_ids("beta");
    world.drop_pod(&quick("alpha"));
    let told = |status: &Status| {
        let text = format!("{:?}", status.node.sources);
        text.contains("has the same metadata.uid as pod") && status.pod("alpha").is_none()
    };
    world.wait("the second one is rejected", told);
    stays("one runs", Duration::from_secs(1), || world.running_ids("beta"), |now| *now == ids);
    world.agent.kill();
    world.agent.start();
    world.wait("it is again after a restart", |status| told(status) && status.runs("beta"));
    assert_eq!(world.running_ids("beta"), ids);
    assert!(world.sandboxes("alpha").is_empty());
    // The first one goes: the second one has its turn.
    world.remove("beta.yaml");
    world
        .wait("the second one runs", |status| status.runs("alpha") && status.pod("beta").is_none());
    world.finish();
}
