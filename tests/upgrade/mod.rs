//! An upgrade: this agent starts on the state files that an earlier release wrote, beside the pods
//! that it left running. README.md says what is kept of a release, and how it is recorded.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod recording;
mod release;

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod, STUBBORN},
    proxy::Call,
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::cri::v1;
use release::{AWAY, Release, STILL};
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};

/// What the agent of a recording is configured with, besides the bench's own.
fn settings() -> Settings {
    // The first group ends in a shutdown; the second has to wait for a pod of the first.
    Settings::for_kind(Kind::Fake).kubelet(
        "shutdownGracePeriodByPodPriority:\n\
        - { priority: 0, shutdownGracePeriodSeconds: 600 }\n\
        - { priority: 1000, shutdownGracePeriodSeconds: 600 }\n",
    )
}

/// A world with all that a release left, and no agent yet.
fn world_of(release: &Release) -> World {
    let world = World::prepare(Kind::Fake, &settings());
    release.restore(&world);
    world
}

/// Checks that the agent goes on where the earlier one stopped.
#[track_caller]
fn check_continued(world: &World, release: &Release) {
    let status = world.wait("all pods are as they were", |status| {
        STILL.iter().all(|pod| status.runs(pod))
            && status.runs("interrupted")
            && status.phase("job") == "Succeeded"
            && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
            && is_evicted(status)
            // Only its last good revision can run.
            && status.rejected("kept.yaml")
    });
    let warnings = &status.node.warnings;
    assert!(warnings.is_empty(), "{warnings:#?}");
    let evicted = calls_for(world, "evicted");
    assert!(evicted.is_empty(), "an evicted pod comes back only after its pause: {evicted:#?}");
    let damaged = files_set_aside(world);
    assert!(damaged.is_empty(), "{damaged:#?}");
    assert_eq!(status.restarts("crash", "main"), 3);
    let message = status
        .container("crash", "main")
        .and_then(|container| container.state.as_ref()?.waiting.as_ref()?.message.clone());
    let message = message.unwrap_or_default();
    assert!(message.starts_with("back-off 40s "), "the back-off goes on: {message}");

    // The pod that was being stopped gets what is left of its 600 s.
    let stopped = world.wait_until(
        "the pod without a manifest is told to stop",
        || calls_for(world, "leaving"),
        |calls| calls.iter().any(|call| call.method == "StopContainer"),
    );
    let stop = stopped.iter().find(|call| call.method == "StopContainer").unwrap();
    let grace = stop.request::<v1::StopContainerRequest>().timeout;
    let left = 300..600 - i64::try_from(AWAY.as_secs()).unwrap() + 1;
    assert!(left.contains(&grace), "what is left of its grace period: {grace}");

    // A sync of every pod has come and gone by then.
    let others = || {
        let calls = world.proxy.mutating_calls();
        let known = ["leaving", "interrupted", "evicted"];
        calls.into_iter().filter(|c| !known.iter().any(|pod| c.is_for(pod))).collect::<Vec<_>>()
    };
    stays("nothing is done to other pods", Duration::from_secs(1), others, Vec::is_empty);
    for pod in STILL {
        assert_eq!(world.running_ids(pod), release.running_ids(pod), "{pod}");
    }
    let images = fs::read_to_string(world.agent.root_dir().join("nodelet/images.json")).unwrap();
    assert!(images.contains("\"pulled\":true"), "the agent has pulled one: {images}");
}

fn is_evicted(status: &Status) -> bool {
    let pod = status.pod("evicted");
    pod.is_some_and(|pod| pod.status.reason.as_deref() == Some("Evicted"))
}

fn calls_for(world: &World, pod: &str) -> Vec<Call> {
    world.proxy.mutating_calls().into_iter().filter(|call| call.is_for(pod)).collect()
}

/// Files that the agent has renamed because it could not use them.
fn files_set_aside(world: &World) -> Vec<String> {
    let dirs = [world.agent.root_dir().join("nodelet"), world.agent.run_dir()];
    let dirs = dirs.iter().flat_map(|dir| [dir.clone(), dir.join("pods")]);
    let names = dirs.flat_map(|dir| fs::read_dir(dir).unwrap().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(".damaged-") || name.contains(".of-")).collect()
}

/// All of it goes without a trace: its records and marks are understood.
#[track_caller]
fn check_removal(world: World) {
    world.remove("stubborn.yaml");
    for pod in ["leaving", "stubborn"] {
        let is_told = |calls: &Vec<Call>| calls.iter().any(|call| call.method == "StopContainer");
        world.wait_until("it is told to stop", || calls_for(&world, pod), is_told);
        // It takes no notice.
        world.running_ids(pod).iter().for_each(|id| world.kill_container(id));
    }
    world.finish();
}

#[test]
fn the_agent_goes_on_where_an_earlier_release_stopped() {
    for release in Release::all() {
        let world = world_of(&release);
        world.agent.start();
        check_continued(&world, &release);
        check_removal(world);
    }
}

/// What a later release writes as long as the version of the files stays: fields that this one does
/// not know. So this release can take over from the next one.
#[test]
fn fields_of_a_later_release_are_ignored() {
    let release = Release::newest();
    let world = world_of(&release);
    for file in release::state_files(&world) {
        let mut content: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        add_fields(&mut content, &file);
        fs::write(&file, content.to_string()).unwrap();
    }
    world.agent.start();
    check_continued(&world, &release);
    check_removal(world);
}

/// Adds an unknown field to each object of a state file that is no map of names.
fn add_fields(file: &mut Value, path: &Path) {
    let add = |place: Option<&mut Value>| {
        let object = place.and_then(Value::as_object_mut);
        let object = object.unwrap_or_else(|| panic!("no object in {}", path.display()));
        object.insert("later".to_owned(), json!({ "of": ["another", "release"] }));
    };
    add(Some(file));
    let content = &mut file["content"];
    if let Some(records) = content.as_array_mut() {
        records.iter_mut().for_each(|record| add(Some(record)));
        records.iter_mut().filter(|record| record.get("pod").is_some()).for_each(|record| {
            add(record.pointer_mut("/pod/spec"));
            add(record.get_mut("key"));
        });
    }
    if let Some(memory) = content.get_mut("memory") {
        add(Some(&mut *memory));
        add(memory.get_mut("memory"));
        let incarnations = memory["memory"]["incarnations"].as_object_mut().unwrap();
        for incarnation in incarnations.values_mut() {
            add(Some(&mut *incarnation));
            let containers = incarnation["containers"].as_object_mut().unwrap();
            containers.values_mut().for_each(|container| add(Some(container)));
        }
    }
    if !content.is_array() {
        add(Some(content));
    }
}
