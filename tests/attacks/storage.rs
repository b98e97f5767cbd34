//! Containers that hide what they store on the node's disk.

use crate::{
    prepared,
    support::{
        agent::Settings, loop_disk::LoopDisk, manifest::Pod, process::Process, say_loudly,
        status::Status, world::World,
    },
    watchdog::Watchdog,
    world,
};
use inotify::{Inotify, WatchMask};
use serde_json::json;
use std::{fs, time::Duration};

/// Containers in a debug build on a busy machine take their time to make so many directories.
const LATE: Duration = Duration::from_secs(90);
/// Makes 11,000 directories at depth 64 of the emptyDir, more than a walk may remember.
const DEEP: &str = "cd /scratch; n=0; while [ $n -lt 63 ]; do mkdir a; cd a; n=$((n+1)); done; \
    seq 11000 | xargs mkdir";
/// Writes 150 MiB.
const LARGE: &str = "dd if=/dev/zero bs=1M count=150 of=";

fn reason<'a>(status: &'a Status, pod: &str) -> &'a str {
    status.pod(pod).and_then(|pod| pod.status.reason.as_deref()).unwrap_or_default()
}

/// A pod whose one container does something and stays, with an emptyDir at `/scratch`.
fn pod(name: &str, does: &str, empty_dir: &serde_json::Value) -> Pod {
    Pod::with_main(name, &format!("{does}; sleep 100000"))
        .set("volumes", json!([{ "name": "scratch", "emptyDir": empty_dir }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))
}

/// A pod that may use 10 MiB of the node's disk.
fn limited(name: &str, does: &str) -> Pod {
    let resources = json!({ "limits": { "ephemeral-storage": "10Mi" } });
    pod(name, does, &json!({})).set("containers/0/resources", resources)
}

/// Runs a pod that stores too much, and waits until it is evicted for a limit of its own.
#[track_caller]
fn is_evicted(world: &World, pod: &Pod, limit: &str) {
    let dog = Watchdog::start(world);
    let name = pod.value()["metadata"]["name"].as_str().unwrap().to_owned();
    world.drop_pod(pod);
    let told = |status: &Status| status.has_event("Evicted", limit);
    world.wait_for(LATE, &format!("{name} is to go"), told);
    let evicted = |status: &Status| reason(status, &name) == "Evicted";
    world.wait_for(LATE, &format!("{name} is evicted"), evicted);
    say_loudly(&format!("{:?}", dog.finish(world)));
}

#[test]
fn deep_directories_in_an_empty_dir_do_not_hide_its_size() {
    let Some(world) = world(|settings| settings) else { return };
    let does = format!("({DEEP}); {LARGE}/scratch/large");
    let hog = pod("hog", &does, &json!({ "sizeLimit": "10Mi" }));
    is_evicted(&world, &hog, "Usage of EmptyDir volume");
    world.finish();
}

const POD_LIMIT: &str = "exceeds the total limit of containers 10Mi.";

#[test]
fn the_hosts_file_is_no_place_to_hide_data() {
    let Some(world) = world(|settings| settings) else { return };
    is_evicted(&world, &limited("hog", &format!("{LARGE}/etc/hosts")), POD_LIMIT);
    world.finish();
}

#[test]
fn the_termination_log_is_no_place_to_hide_data() {
    let Some(world) = world(|settings| settings) else { return };
    is_evicted(&world, &limited("hog", &format!("{LARGE}/dev/termination-log")), POD_LIMIT);
    world.finish();
}

/// The runtime makes these, in a directory of its own.
#[test]
fn the_resolver_configuration_is_no_place_to_hide_data() {
    let Some(world) = world(|settings| settings) else { return };
    is_evicted(&world, &limited("hog", &format!("{LARGE}/etc/resolv.conf")), POD_LIMIT);
    is_evicted(&world, &limited("other", &format!("{LARGE}/etc/hostname")), POD_LIMIT);
    world.finish();
}

/// The first process moves to a root of its own, an overlay whose upper directory has the name of a
/// directory of the host; another process writes to the real root.
#[test]
fn a_forged_root_does_not_hide_the_writable_layer() {
    let Some(world) = prepared(|settings| settings) else { return };
    let forged = world.slot.dir().join("forged");
    fs::create_dir_all(forged.join("upper")).unwrap();
    let mut watched = Inotify::init().unwrap();
    let opened = WatchMask::OPEN | WatchMask::ACCESS;
    watched.watches().add(forged.join("upper"), opened).unwrap();
    world.agent.start();
    let path = forged.display();
    let forge = format!(
        "mount -t tmpfs t {path} && cd {path} && mkdir upper work low root && \
         mount -t overlay -o lowerdir={path}/low,upperdir={path}/upper,workdir={path}/work o root && \
         cd root && mkdir old && cp /bin/busybox . && pivot_root . old && exec /busybox sleep 100000"
    );
    let script = format!(
        "mkdir -p {path}; (sleep 2; {LARGE}/large; sleep 100000) & exec unshare -Urm sh -c '{forge}'"
    );
    let dog = Watchdog::start(&world);
    world.drop_pod(&limited("hog", &script));
    world.wait_running("hog");
    let first = Process::of(&world, "hog", "main");
    let upper = format!("upperdir={path}/upper");
    let root = || first.mount("/");
    world.wait_until("its root is forged", root, |root| root.contains(&upper));
    let evicted = |status: &Status| reason(status, "hog") == "Evicted";
    world.wait_for(LATE, "it is evicted", evicted);
    let mut buffer = [0; 4096];
    let count = watched.read_events(&mut buffer).map_or(0, Iterator::count);
    assert_eq!(count, 0, "the agent has opened the directory that the container names");
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
}

/// On a small disk a pod hides what it has in many deep directories, beside an honest pod.
#[test]
fn a_pod_that_hides_its_use_goes_before_an_honest_pod() {
    let settings = |settings: Settings| {
        settings.kubelet(
            "evictionHard: { nodefs.available: 300Mi }\nevictionPressureTransitionPeriod: 2s\n\
             imageGCHighThresholdPercent: 100\n",
        )
    };
    let Some(world) = prepared(settings) else { return };
    let disk = LoopDisk::make(&world.slot, "disk", 475, 40_000);
    disk.over("root", &world.agent.root_dir());
    disk.over("logs", &world.agent.pod_logs());
    world.agent.start();
    let dog = Watchdog::start(&world);
    let honest = "head -c 31457280 /dev/zero >/scratch/file; touch /scratch/done";
    world.drop_pod(&pod("honest", honest, &json!({})));
    world.wait_running("honest");
    let honest = world.running_ids("honest");
    world.drop_pod(&pod("hog", &format!("({DEEP}); {LARGE}/scratch/large"), &json!({})));
    let told = |status: &Status| status.has_event("Evicted", "ephemeral-storage");
    let status = world.wait_for(LATE, "somebody is to go", told);
    world.remove("hog.yaml");
    assert!(status.runs("honest"), "{status:?}");
    let calm = |status: &Status| status.node.pressure.signals.iter().all(|signal| !signal.crossed);
    world.wait_for(LATE, "the pressure is over", calm);
    assert_eq!(world.running_ids("honest"), honest, "the honest pod is untouched");
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
}

/// A directory of long names and one deeper than a path can be: neither takes much memory or
/// descriptors to measure.
#[test]
fn long_names_and_long_paths_cost_the_agent_no_memory() {
    let Some(world) = world(|settings| settings) else { return };
    let name = "n".repeat(240);
    let long = format!(
        "cd /scratch; mkdir many; cd many; : >first; \
         seq -f {name}%06.0f 60000 | while read f; do ln first $f; done; cd ..; \
         n=0; while [ $n -lt 100 ]; do mkdir {name}; cd {name}; n=$((n+1)); done; {LARGE}large"
    );
    let hog = pod("hog", &format!("({long})"), &json!({ "sizeLimit": "100Mi" }));
    is_evicted(&world, &hog, "Usage of EmptyDir volume");
    world.finish();
}
