//! The collection of unused images, which the agent runs every five minutes: by age and by the
//! usage of their file system.

use super::disk_pressure::made_image;
use crate::support::{
    agent::Settings,
    loop_disk::LoopDisk,
    manifest::Pod,
    registry::Registry,
    skips::skip_without,
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::model::Signal;
use std::{fs::File, io::Write as _, time::Duration};

const MIB: u64 = 1 << 20;
/// Size of the file system of images.
const DISK_MIB: u64 = 128;
/// Longer than the time between two collections, in seconds.
const A_COLLECTION: i64 = 301;

/// A world whose agent has its own clocks, and a registry. `None`, and `SKIPPED` is printed, if a
/// program is missing.
fn prepare(kind: Kind, kubelet: &str) -> Option<(World, Registry)> {
    let world = World::prepare(kind, &Settings::for_kind(kind).kubelet(kubelet));
    let mut registry = Registry::prepare(&world.slot)?;
    if skip_without(&[(world.agent.has_own_time(), "libfaketime (scripts/prerequisites test)")]) {
        return None;
    }
    registry.start(false);
    Some((world, registry))
}

/// Makes an image that only the registry has; gives its name.
fn pullable(world: &World, registry: &Registry, name: &str) -> String {
    let containerd = world.runtime.containerd();
    let image = made_image(world, name);
    registry.push(containerd, &image, &format!("{name}:1"));
    containerd.ctr(&["images", "rm", "--sync", &image]);
    registry.image(&format!("{name}:1"))
}

/// Has a pod run with an image, which the agent pulls for it.
fn run(world: &World, name: &str, image: &str) {
    world.drop_pod(&Pod::running(name).set("containers/0/image", image));
    world.wait_running(name);
}

/// As [`run`], and removes the pod.
fn run_once(world: &World, name: &str, image: &str) {
    run(world, name, image);
    world.remove(&format!("{name}.yaml"));
    world.wait_gone(name);
}

/// Waits until the agent has listed the images for the first time, which removes nothing. It never
/// removes images that it found then, because another program may need them.
fn wait_first_look(world: &World) {
    let looks = || world.proxy.calls().iter().filter(|call| call.method == "ListImages").count();
    world.wait_until("the images are listed first", looks, |looks| *looks > 0);
}

fn wait_removed(world: &World, image: &str) {
    world.wait_until(&format!("{image} is removed"), || world.cri.has_image(image), |has| !has);
}

/// The records of images that were pulled.
fn pull_records(world: &World) -> usize {
    let dir = world.agent.root_dir().join("image_manager/pulled");
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

pub fn images_go_when_unused_for_the_maximum_age(kind: Kind) {
    let settings =
        "imageMinimumGCAge: 1s\nimageMaximumGCAge: 4m\nimageGCHighThresholdPercent: 100\n";
    let Some((world, registry)) = prepare(kind, settings) else { return };
    world.agent.start();
    wait_first_look(&world);
    let [old, young, used] = ["old", "young", "used"].map(|name| pullable(&world, &registry, name));
    let foreign = made_image(&world, "foreign");
    run(&world, "used", &used);
    run_once(&world, "old", &old);
    // Too early for a collection.
    world.agent.set_clock(200);
    run_once(&world, "young", &young);
    assert!(world.cri.has_image(&old));
    assert_eq!(pull_records(&world), 3);

    world.agent.set_clock(A_COLLECTION);
    wait_removed(&world, &old);
    world.wait_until("so is its record", || pull_records(&world), |records| *records == 2);
    let kept = || [&young, &used, &foreign].map(|image| world.cri.has_image(image));
    stays("the others stay", Duration::from_secs(1), kept, |kept| *kept == [true; 3]);

    world.agent.set_clock(2 * A_COLLECTION);
    wait_removed(&world, &young);
    assert_eq!(kept(), [false, true, true]);
    assert_eq!(world.agent.status().unwrap().restarts("used", "main"), 0);
    world.finish();
}

/// The least recently used one goes, and no more than the low threshold asks for. Without an image
/// to remove, an event says so. The threshold of evictions is never crossed.
pub fn images_go_from_the_high_threshold_on(kind: Kind) {
    const EVICTED_FROM_MIB: u64 = 1;
    let settings = format!(
        "imageMinimumGCAge: 1s\nimageGCHighThresholdPercent: 90\nimageGCLowThresholdPercent: 85\n\
         evictionHard: {{ imagefs.available: {EVICTED_FROM_MIB}Mi }}\n"
    );
    let Some((world, registry)) = prepare(kind, &settings) else { return };
    let disk = LoopDisk::make(&world.slot, "images", DISK_MIB, 4096);
    let containerd = world.runtime.containerd();
    containerd.kill();
    disk.over("containerd", &containerd.root_dir());
    containerd.start_again();
    containerd.import_images();
    world.agent.start();
    wait_first_look(&world);
    let [first, second, used] =
        ["first", "second", "used"].map(|name| pullable(&world, &registry, name));
    run(&world, "used", &used);
    run_once(&world, "first", &first);
    run_once(&world, "second", &second);
    let mut outside = File::create(disk.path("outside")).unwrap();
    let mut clock = 0;
    // The collection goes by the latest reading, which may be ten seconds old. Containerd frees
    // what it has removed a while later.
    let mut collect_with = |mib: u64| {
        clock += 11;
        world.agent.set_clock(clock);
        world.wait("the disk is read", |status| {
            let size = disk.available().saturating_sub(mib * MIB);
            outside.write_all(&vec![1; usize::try_from(size).unwrap()]).unwrap();
            let mut signals = status.node.pressure.signals.iter();
            let images = signals.find(|signal| signal.signal == Signal::ImagefsAvailable);
            images.and_then(|signal| signal.available).is_some_and(|left| left < (mib + 1) * MIB)
        });
        clock += A_COLLECTION;
        world.agent.set_clock(clock);
    };

    collect_with(10);
    wait_removed(&world, &first);
    let kept = || [&second, &used].map(|image| world.cri.has_image(image));
    stays("the others stay", Duration::from_secs(1), kept, |kept| *kept == [true; 2]);

    // Each time less than before: a reading from before the collection does not pass for a new one.
    collect_with(5);
    wait_removed(&world, &second);
    collect_with(2);
    let said = |status: &Status| status.has_event("FreeDiskSpaceFailed", "");
    let status = world.wait("it is said that nothing can be removed", said);
    assert!(world.cri.has_image(&used));
    assert_eq!(status.restarts("used", "main"), 0);
    assert!(status.node.pressure.steps.is_empty(), "{:?}", status.node.pressure.steps);
    world.finish();
}
