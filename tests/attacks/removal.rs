//! Containers that make their own removal expensive.

use crate::{
    support::{manifest::Pod, say_loudly, wait_until, world::World},
    watchdog::Watchdog,
};
use serde_json::json;
use std::{
    fs::{self, File},
    path::PathBuf,
    time::Duration,
};
use tokio::time::Instant;

/// A pod with an emptyDir at `/d`.
fn with_volume(name: &str) -> Pod {
    Pod::running(name)
        .set("volumes", json!([{ "name": "d", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "d", "mountPath": "/d" }]))
}

/// A removal ends in this time although the disk serves others: where they write much, a disk
/// removes 400 directories a second.
const LONGEST_REMOVAL: Duration = Duration::from_secs(400);

/// Where a pod's emptyDir is on the host: filled here, it is filled sooner than by the container.
fn volume(world: &World, pod: &str) -> PathBuf {
    let uid = world.agent.status().unwrap().pod(pod).unwrap().uid.clone();
    let pods = world.agent.root_dir().join("pods");
    pods.join(uid.as_str()).join("volumes/kubernetes.io~empty-dir/d")
}

/// `count` directories, each with one in it, below 63 others.
fn fill_with_deep_directories(world: &World, pod: &str, count: usize) {
    let mut directory = volume(world, pod);
    for _ in 0..63 {
        directory.push("a");
    }
    for n in 0..count {
        fs::create_dir_all(directory.join(n.to_string()).join("below")).unwrap();
    }
}

/// Removes pods with deep directory trees together; another pod starts meanwhile.
fn remove_deep_trees(pods: &[(&str, usize)]) {
    let Some(world) = crate::world(|s| s) else { return };
    for (name, _) in pods {
        world.drop_pod(&with_volume(name));
    }
    for (name, count) in pods {
        world.wait_running(name);
        fill_with_deep_directories(&world, name, *count);
    }
    let dog = Watchdog::start(&world);
    for (name, _) in pods {
        world.remove(&format!("{name}.yaml"));
    }
    let begun = Instant::now();
    world.drop_pod(&Pod::running("late"));
    let status = world.wait("a new pod runs", |status| status.runs("late"));
    // A busy disk may take long, and the removal takes longer then.
    let took = begun.elapsed();
    let removing = pods.iter().all(|(name, _)| status.pod(name).is_some());
    assert!(took < Duration::from_secs(15) || removing, "it took {took:?}");
    world.wait_for(LONGEST_REMOVAL, "the pods are gone", |status| {
        pods.iter().all(|(name, _)| status.pod(name).is_none())
    });
    dog.finish(&world);
    world.finish();
}

#[test]
fn deep_directory_trees_delay_no_other_pod() {
    let mut pods = vec![("tree", 6000)];
    let names: Vec<String> = (0..10).map(|n| format!("tree-{n}")).collect();
    pods.extend(names.iter().map(|name| (name.as_str(), 2500)));
    remove_deep_trees(&pods);
}

#[test]
#[ignore = "takes about 60 s"]
fn a_hundred_thousand_deep_directories_delay_no_other_pod() {
    remove_deep_trees(&[("tree", 100_000), ("small", 10)]);
}

#[test]
fn three_hundred_thousand_long_names_take_no_memory() {
    let Some(world) = crate::world(|s| s) else { return };
    world.drop_pod(&with_volume("links"));
    world.wait_running("links");
    let directory = volume(&world, "links");
    // A file can have 65,000 links.
    for file in 0..6 {
        let source = directory.join(file.to_string());
        File::create(&source).unwrap();
        for n in 0..50_000 {
            fs::hard_link(&source, directory.join(format!("{file}{n:0246}"))).unwrap();
        }
    }
    let dog = Watchdog::start(&world);
    world.remove("links.yaml");
    world.wait_for(LONGEST_REMOVAL, "the pod is gone", |status| status.pod("links").is_none());
    let seen = dog.finish(&world);
    assert!(seen.peak_anon_kib < 32 * 1024, "{seen:?}");
    world.finish();
}

#[test]
fn a_large_removal_does_not_delay_the_end_of_the_agent() {
    let Some(world) = crate::world(|s| s) else { return };
    world.drop_pod(&with_volume("tree"));
    world.wait_running("tree");
    let directory = volume(&world, "tree");
    fill_with_deep_directories(&world, "tree", 60_000);
    world.remove("tree.yaml");
    let containers = || world.running_ids("tree");
    world.wait_until("the removal begins", containers, Vec::is_empty);
    let begun = Instant::now();
    assert_eq!(world.agent.terminate(), Some(0));
    assert!(begun.elapsed() < crate::PATIENCE, "it took {:?}", begun.elapsed());
    if !directory.exists() {
        say_loudly("the removal ended before the agent was told to stop");
    }
    world.agent.start();
    let gone = |there: &bool| !there;
    wait_until("the removal ends", LONGEST_REMOVAL, || directory.exists(), gone);
    world.finish();
}
