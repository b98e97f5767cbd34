//! Disks, and the pods' own limits.

use super::*;

fn freed(images: usize, mib: u64) -> Outcome {
    Outcome::ImagesFreed(Some(ImagesFreed { images, bytes: mib * MI }))
}

/// The report of a removal of images that is not awaited any longer.
const UNDER_WAY: &str = "the removal of unused images is still under way";

#[test]
fn dead_containers_go_first_then_images_then_a_pod() {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.dead_containers = 3;
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["clear dead containers"]);
    assert!(world.round(500).is_empty());
    world.dead_containers = 0;
    assert!(world.round(500).is_empty());
    world.read(Signal::NodefsAvailable, 61 * MI);
    assert!(world.round(500).is_empty(), "the runtime frees layers some time later");
    assert_eq!(world.round(5000), ["removed 3 dead containers"]);
    assert!(!world.orders().clear_dead);
    assert_eq!(world.round(500), ["free images"]);
    assert!(world.round(500).is_empty());
    world.relief.fold(freed(2, 5));
    assert_eq!(world.round(500), ["removed 2 unused images"]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
    assert!(world.round(500).is_empty());
    world.answer();
    assert_eq!(world.round(1), ["evict hog"]);
    assert!(world.saved());
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(1)));
}

#[test]
fn images_are_removed_until_they_free_too_little() {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsAvailable, 60 * MI);
    for _ in 0..3 {
        assert_eq!(world.round(500), ["free images"]);
        world.relief.fold(freed(1, 40));
        assert_eq!(world.round(500), ["removed 1 unused images"], "the disk is filled again");
    }
    assert_eq!(world.round(500), ["free images"]);
    world.relief.fold(freed(1, 39));
    assert_eq!(world.round(500), ["removed 1 unused images"]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
}

#[test]
fn images_are_removed_for_inodes_once_a_minute() {
    // All unused images are removed at once. The bytes that they free say nothing of inodes.
    let mut world = reported("nodefs.inodesFree=100");
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsInodesFree, 60);
    assert_eq!(world.round(500), ["free images"]);
    world.relief.fold(freed(3, 40));
    assert_eq!(world.round(500), ["removed 3 unused images"]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
}

#[test]
fn no_pod_is_evicted_when_dead_containers_were_enough() {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.dead_containers = 1;
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["clear dead containers"]);
    world.dead_containers = 0;
    world.round(500);
    world.read(Signal::NodefsAvailable, 400 * MI);
    assert_eq!(world.round(500), ["removed 1 dead container"]);
    assert!(world.round(500).is_empty() && world.orders().evicted.is_empty());
}

#[test]
fn dead_containers_that_stay_delay_the_next_step_by_ten_seconds() {
    let mut world = hard_disk();
    world.dead_containers = 2;
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["clear dead containers"]);
    world.round(9_000);
    assert!(world.round(1000).is_empty());
    assert_eq!(world.round(5000), ["removed 0 dead containers"]);
    assert_eq!(world.round(500), ["free images"]);
    assert!(world.round(29_000).is_empty());
    assert_eq!(world.round(1000), [UNDER_WAY]);
}

#[test]
fn images_are_awaited_while_their_removal_makes_room() {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(500), ["free images"]);
    for mib in [61, 63, 65] {
        world.read(Signal::NodefsAvailable, mib * MI);
        assert!(world.round(29_000).is_empty());
    }
    // A pod writes, and then no more room than before is made.
    for mib in [62, 65] {
        world.read(Signal::NodefsAvailable, mib * MI);
        assert!(world.round(14_000).is_empty());
    }
    assert_eq!(world.round(2000), [UNDER_WAY]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
}

#[test]
fn images_are_awaited_for_three_minutes_at_most() {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(500), ["free images"]);
    for mib in 61..70 {
        world.read(Signal::NodefsAvailable, mib * MI);
        assert!(world.round(19_900).is_empty());
    }
    world.read(Signal::NodefsAvailable, 70 * MI);
    assert_eq!(world.round(900), [UNDER_WAY]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
}

/// A world in which `hog` was told to stop for a disk.
fn evicted() -> World {
    let mut world = hard_disk();
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.decide(), ["measure disks of hog", "evict hog"]);
    world
}

#[test]
fn a_pod_is_measured_at_once_when_images_can_not_be_freed() {
    let world = evicted();
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(1)));
}

#[test]
fn a_pod_that_fills_a_disk_is_killed_after_its_second() {
    let mut world = evicted();
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(500), ["hurry hog"]);
    assert!(world.saved());
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce));
    assert!(world.round(500).is_empty(), "once");
}

#[test]
fn a_pod_whose_grace_period_was_cut_short_is_not_waited_for_as_long() {
    let (hard, soft) = ("nodefs.available=100Mi", "nodefs.available=200Mi");
    let thresholds = thresholds(hard, soft, "nodefs.available=1s", "");
    let mut world = World::new(EvictionSettings { thresholds, ..soft_memory() });
    world.round(0);
    world.round(2000);
    let hog = disk_hog("hog");
    world.run(hog);
    world.read(Signal::NodefsAvailable, 150 * MI);
    let mut said = Vec::new();
    while said.last().map(String::as_str) != Some("evict hog") {
        said.extend(world.round(1000));
        world.relief.fold(Outcome::ImagesFreed(None));
        said.extend(world.decide());
        assert!(said.len() < 20, "{said:?}");
    }
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(30)));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(5000), ["hurry hog"]);
    assert!(world.round(29_000).is_empty());
    assert_eq!(world.round(2000), ["hog is late"]);
}

#[test]
fn the_next_pod_waits_for_the_room_of_the_evicted_one() {
    let mut world = evicted();
    world.run(disk_hog("second"));
    world.end("hog");
    assert!(world.round(500).is_empty());
    world.read(Signal::NodefsAvailable, 80 * MI);
    assert!(world.round(500).is_empty(), "half of what it used is expected");
    world.read(Signal::NodefsAvailable, 300 * MI);
    assert_eq!(world.round(500), ["evicted default/hog"]);
    assert!(world.round(500).is_empty());
    assert!(world.stop_of("second").is_none());
}

#[test]
fn images_of_an_evicted_pod_go_before_the_next_pod() {
    let mut world = evicted();
    world.run(disk_hog("second"));
    world.end("hog");
    world.read(Signal::NodefsAvailable, 80 * MI);
    assert!((0..40).any(|_| world.round(500) == ["evicted default/hog"]), "within 20 s");
    assert_eq!(world.round(500), ["free images"]);
}

#[test]
fn memory_does_not_wait_for_a_disk() {
    let mut world = World::new(hard("memory.available=100Mi nodefs.available=100Mi"));
    world.round(0);
    world.run(disk_hog("disk"));
    world.run(hog());
    let memory = PodKey::new("default", "disk");
    world.usage.get_mut(&memory).unwrap().memory = Some(0);
    world.usage.get_mut(&PodKey::new("default", "hog")).unwrap().logs = Some(space(0, 0));
    world.usage.get_mut(&PodKey::new("default", "hog")).unwrap().containers[0].layer =
        Some(space(0, 0));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(2000), ["free images"]);
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of disk hog", "evict hog"]);
    // The disk waits for the eviction, which takes a moment.
    world.relief.fold(freed(0, 0));
    assert_eq!(world.round(50), ["removed 0 unused images"]);
    assert!(world.round(50).is_empty());
    world.end("hog");
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.round(50);
    assert_eq!(world.round(50), ["evicted default/hog"]);
    assert_eq!(world.decide(), ["measure disks of disk", "evict disk"]);
}

#[test]
fn a_disk_measurement_from_before_an_eviction_is_dropped() {
    let mut world = World::new(hard("memory.available=100Mi nodefs.available=100Mi"));
    world.round(0);
    let mut hog = disk_hog("hog");
    hog.usage.memory = Some(400 * MI);
    world.run(hog);
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(2000), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.round(50), ["measure disks of hog"]);
    let disks = std::mem::take(&mut world.measuring);
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog", "evict hog"]);
    world.measuring = disks;
    world.answer();
    let actions = world.round(50);
    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn disks_are_measured_anew_when_another_pod_has_ended_meanwhile() {
    let mut world = World::new(hard("memory.available=100Mi nodefs.available=100Mi"));
    world.round(0);
    world.run(disk_hog("disk").memory(0));
    world.run(hog().disk(Some(space(0, 0)), Some(space(0, 0))));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(2000), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.round(50), ["measure disks of disk hog"]);
    let disks = std::mem::take(&mut world.measuring);
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of disk hog", "evict hog"]);
    world.end("hog");
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.round(50);
    assert_eq!(world.round(50), ["evicted default/hog"]);
    // The measurement began before the end of the pod, whose files may have made the room.
    world.measuring = disks;
    world.answer();
    assert_eq!(world.round(50), ["measure disks of disk"]);
}

#[test]
fn pods_above_a_limit_of_their_own_are_evicted_together() {
    let mut world = World::new(settings(thresholds("nodefs.available=100Mi", "", "", "")));
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    let big = || space(20 * MI, 1);
    world.run(Pod::new("one", limited.clone()).volume("v", big()));
    world.run(Pod::new("two", limited.clone()).volume("v", big()));
    world.run(Pod::new("small", limited).volume("v", space(MI, 1)));
    world.run(Pod::new("free", json!({})).disk(Some(space(300 * MI, 1)), None));
    world.round(0);
    assert_eq!(world.round(2000), ["measure limits of one small two"]);
    world.answer();
    assert_eq!(world.round(1), ["evict one", "evict two"]);
    assert!(world.saved());
    world.end("one");
    world.end("two");
    assert!(world.round(1000).is_empty());
    assert_eq!(world.round(9000), ["measure limits of small"], "every ten seconds");
}

/// A world in which the check of `limited`'s own limits lasts.
fn checking_limits() -> World {
    let mut world = World::new(settings(thresholds("nodefs.available=100Mi", "", "", "")));
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    world.run(Pod::new("limited", limited).volume("v", space(MI, 1)));
    world.round(0);
    assert_eq!(world.round(2000), ["measure limits of limited"]);
    assert!(world.round(15_000).is_empty());
    world
}

#[test]
fn a_disk_gets_its_turn_when_a_check_of_limits_ends() {
    let mut world = checking_limits();
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert!(world.round(500).is_empty());
    world.answer();
    world.read_at = Some(world.now.boot);
    assert_eq!(world.round(1), ["free images"], "by the reading that waits");
    world.relief.fold(Outcome::ImagesFreed(None));
    assert!(world.round(500).is_empty(), "once");
}

#[test]
fn a_long_check_of_limits_is_followed_by_a_pause() {
    let mut world = checking_limits();
    world.answer();
    assert!(world.round(1).is_empty() && world.round(9_000).is_empty());
    assert_eq!(world.round(1000), ["measure limits of limited"]);
}

#[test]
fn disks_are_not_measured_again_by_a_reading_from_before_the_end() {
    let mut world = hard_disk();
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.round(500), ["measure disks of "]);
    assert!(world.round(10).is_empty());
    world.read_at = Some(world.now.boot);
    world.answer();
    assert_eq!(world.round(10), ["no pod helps"]);
    assert!(world.round(100).is_empty());
    world.read_at = None;
    assert_eq!(world.round(100), ["measure disks of "]);
}

/// A world in which the root file system is short of space and inodes because of files outside of
/// pods. The pod has a limit of its own. A measurement of the disks has taken five seconds.
fn filled_from_outside() -> World {
    let both = thresholds("nodefs.available=100Mi nodefs.inodesFree=100", "", "", "");
    let mut world = World::new(settings(both));
    world.layout = DiskLayout::DedicatedImages;
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    world.run(
        Pod::new("limited", limited)
            .disk(Some(space(0, 0)), Some(space(0, 0)))
            .volume("v", space(MI, 1)),
    );
    world.read(Signal::NodefsAvailable, 60 * MI);
    world.read(Signal::NodefsInodesFree, 60);
    world.round(0);
    assert_eq!(world.round(2000), ["measure disks of limited"]);
    assert!(world.round(4999).is_empty());
    world
}

#[test]
fn one_measurement_decides_about_all_signals_of_disks() {
    let mut world = filled_from_outside();
    world.answer();
    assert_eq!(world.round(1), ["no pod helps", "no pod helps"], "once for each signal");
    let reported = |signal| {
        let actions = &world.last.as_ref().unwrap().actions;
        actions
            .iter()
            .any(|action| matches!(action, ReliefAction::ReportThreshold(of) if *of == signal))
    };
    assert!(reported(Signal::NodefsInodesFree), "the measurement was not begun for it");
}

#[test]
fn unused_images_go_for_all_signals_before_pods_are_measured() {
    let mut world = reported("nodefs.available=100Mi imagefs.available=100Mi");
    world.run(Pod::new("small", json!({})).disk(Some(space(MI, 1)), Some(space(0, 0))));
    world.read(Signal::NodefsAvailable, 60 * MI);
    world.read(Signal::ImagefsAvailable, 60 * MI);
    for _ in 0..2 {
        assert_eq!(world.round(500), ["free images"]);
        world.relief.fold(freed(0, 0));
        assert_eq!(world.round(500), ["removed 0 unused images"]);
    }
    assert_eq!(world.decide(), ["measure disks of small", "no pod helps", "no pod helps"]);
}

#[test]
fn images_are_removed_while_no_pods_are_measured() {
    let mut world = filled_from_outside();
    world.answer();
    world.round(1);
    world.layout = DiskLayout::Single;
    assert_eq!(world.round(1000), ["free images"]);
}

#[test]
fn pods_that_had_no_turn_are_measured_sooner() {
    let mut world = hard_disk();
    world.layout = DiskLayout::DedicatedImages;
    world.run(Pod::new("unknown", json!({})).disk(None, None));
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(500), ["measure disks of unknown"]);
    assert!(world.round(5000).is_empty());
    world.answer();
    assert_eq!(world.round(1), ["no pod helps"]);
    assert!(world.round(5000).is_empty());
    assert_eq!(world.round(1000), ["measure disks of unknown"]);
    // One that can't be measured at all is no reason to measure the others again and again.
    assert!(world.round(5000).is_empty());
    world.answer();
    assert!(world.round(1).is_empty() && world.round(19_000).is_empty());
    assert_eq!(world.round(2000), ["measure disks of unknown"]);
}

#[test]
fn a_removal_of_images_that_lasts_is_awaited_once_for_all_signals() {
    let mut world = reported("nodefs.available=100Mi imagefs.available=100Mi");
    world.run(disk_hog("hog"));
    world.read(Signal::NodefsAvailable, 60 * MI);
    world.read(Signal::ImagefsAvailable, 60 * MI);
    assert_eq!(world.round(500), ["free images"]);
    assert_eq!(world.round(30_000), [UNDER_WAY]);
    assert_eq!(world.round(500), ["measure disks of hog"]);
}

#[test]
fn a_hard_threshold_is_decided_before_the_soft_one_that_was_measured() {
    let soft = "nodefs.available=200Mi";
    let both = thresholds("nodefs.available=100Mi", soft, "nodefs.available=1s", "");
    let mut world = World::new(EvictionSettings {
        max_pod_grace: 600,
        local_storage_limits: false,
        ..settings(both)
    });
    world.layout = DiskLayout::DedicatedImages;
    let on_root = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    world.run(Pod::new("hog", on_root).volume("v", space(300 * MI, 1)));
    world.round(0);
    world.read(Signal::NodefsAvailable, 150 * MI);
    world.round(2000);
    assert_eq!(world.round(2000), ["measure disks of hog"]);
    world.read(Signal::NodefsAvailable, 60 * MI);
    world.answer();
    assert_eq!(world.round(500), ["evict hog"]);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(1)), "not with the grace period");
}

#[test]
fn a_disk_that_no_pod_fills_is_measured_a_fifth_of_the_time() {
    let mut world = filled_from_outside();
    world.answer();
    world.round(1);
    let mut measured = Vec::new();
    for _ in 0..20 {
        measured.extend(world.round(1000));
        world.answer();
    }
    let limits = "measure limits of limited";
    assert_eq!(measured, [limits, "measure disks of limited"], "limits have their turn");
}

#[test]
fn a_disk_that_fills_further_is_measured_at_once() {
    let mut world = filled_from_outside();
    world.answer();
    world.round(1);
    world.read(Signal::NodefsAvailable, 55 * MI);
    assert!(world.round(1000).is_empty());
    world.read(Signal::NodefsAvailable, 54 * MI);
    assert_eq!(world.round(1000), ["measure disks of limited"]);
}

#[test]
fn a_measurement_of_disks_finds_pods_above_their_own_limits() {
    let mut world = filled_from_outside();
    let key = PodKey::new("default", "limited");
    world.usage.get_mut(&key).unwrap().volumes[0].space = Some(space(11 * MI, 1));
    world.answer();
    assert_eq!(world.round(1), ["evict limited"]);
    assert!(world.saved());
}

#[test]
fn limits_are_not_checked_while_an_evicted_pod_leaves() {
    let mut world = evicted();
    world.settings.local_storage_limits = true;
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    world.run(Pod::new("limited", limited).volume("v", space(MI, 1)));
    world.read(Signal::NodefsAvailable, 500 * MI);
    assert!(world.round(11_000).is_empty());
    world.end("hog");
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(500), ["evicted default/hog"]);
    assert_eq!(world.round(500), ["measure limits of limited"]);
}

#[test]
fn disks_are_read_at_once_when_the_evicted_pod_is_gone() {
    let mut world = evicted();
    world.round(500);
    assert!(!world.last.as_ref().unwrap().read_disks);
    world.end("hog");
    world.round(500);
    assert!(world.last.as_ref().unwrap().read_disks);
}

#[test]
fn static_pods_are_not_checked_when_they_are_never_evicted() {
    let mut settings = settings(thresholds("nodefs.available=100Mi", "", "", ""));
    settings.static_pods = StaticPods::Never;
    let mut world = World::new(settings);
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    world.run(Pod::new("one", limited).volume("v", space(20 * MI, 1)));
    world.round(0);
    assert!(world.round(2000).is_empty());
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    let named = "only exempt pods help: one (it is static, and staticPodEviction is never)";
    assert_eq!(world.decide(), ["measure disks of one", named]);
}

#[test]
fn limits_of_api_pods_are_checked_when_static_pods_are_exempt() {
    let mut settings = settings(thresholds("nodefs.available=100Mi", "", "", ""));
    settings.static_pods = StaticPods::Never;
    let mut world = World::new(settings);
    let limited = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]});
    world.run(Pod::new("one", limited.clone()).volume("v", space(20 * MI, 1)));
    world.run(Pod::new("two", limited).volume("v", space(20 * MI, 1)).api());
    world.round(0);
    assert_eq!(world.round(2000), ["measure limits of two"]);
    world.answer();
    assert_eq!(world.round(1), ["evict two"]);
}

#[test]
fn a_pod_evicted_for_a_disk_comes_back_after_its_pause() {
    let mut world = evicted();
    world.end("hog");
    world.read(Signal::NodefsAvailable, 500 * MI);
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(500), ["evicted default/hog"]);
    world.round(60_000);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(1)), "the condition holds");
    assert_eq!(world.round(300_000), ["let hog back"]);
    assert!(world.saved() && world.stop_of("hog").is_none());
}
