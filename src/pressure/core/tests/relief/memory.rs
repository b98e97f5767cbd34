//! Memory and process ids.

use super::*;

#[test]
fn page_cache_is_reclaimed_before_a_pod_is_evicted() {
    let mut world = hard_memory();
    world.run(hog());
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    assert!(world.round(50).is_empty(), "the kernel has time");
    world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Complete));
    world.read(Signal::MemoryAvailable, 140 * MI);
    assert_eq!(world.round(50), ["asked the kernel to reclaim page cache of pods"]);
    assert!(world.round(50).is_empty() && world.orders().evicted.is_empty());
}

#[test]
fn a_kernel_that_still_reclaims_is_stopped_when_memory_is_free() {
    let mut world = hard_memory();
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    world.read(Signal::MemoryAvailable, 140 * MI);
    assert!(world.round(1000).is_empty() && world.relief.is_reclaiming(), "some is to be spare");
    let stopped = "asked the kernel to reclaim page cache of pods, but it reclaimed less";
    assert_eq!(world.round(1000), [stopped]);
    assert!(!world.relief.is_reclaiming());
}

#[test]
fn page_cache_that_grows_again_at_once_is_reclaimed_again() {
    let mut world = hard_memory();
    world.run(hog());
    for _ in 0..3 {
        world.read(Signal::MemoryAvailable, 60 * MI);
        assert_eq!(world.round(50), ["reclaim page cache"]);
        world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Complete));
        world.read(Signal::MemoryAvailable, 140 * MI);
        assert_eq!(world.round(50), ["asked the kernel to reclaim page cache of pods"]);
    }
}

#[test]
fn a_pod_is_evicted_at_once_where_the_kernel_reclaims_nothing() {
    let mut world = hard_memory();
    world.run(hog());
    world.run(Pod::new("small", json!({})).memory(MI));
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.round(0), [] as [&str; 0], "a reading decides once");
    assert_eq!(world.round(1), ["measure cgroups of hog small"]);
    assert!(world.orders().evicted.is_empty() && !world.saved());
    world.answer();
    assert_eq!(world.round(1), ["evict hog"]);
    assert!(world.saved(), "the record is saved before the workers get the order");
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce));
}

#[test]
fn the_next_pod_waits_until_the_evicted_one_is_gone() {
    let mut world = evicted_for_memory(hog());
    world.run(Pod::new("second", json!({})).memory(300 * MI));
    assert!(world.round(50).is_empty() && world.round(1000).is_empty());
    // Its processes have ended, its containers are not removed yet.
    world.without_tasks.insert("hog".into());
    assert!(world.round(50).is_empty(), "a reading after its end has to show the effect");
    world.read(Signal::MemoryAvailable, 90 * MI);
    assert_eq!(world.round(50), ["evicted default/hog"]);
    assert_eq!(world.round(50), ["measure cgroups of second"]);
    world.answer();
    assert_eq!(world.round(1), ["evict second"]);
}

#[test]
fn memory_of_a_volume_is_free_only_when_the_pod_has_ended() {
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]});
    let mut world = evicted_for_memory(Pod::new("hog", volumes).memory(400 * MI));
    world.without_tasks.insert("hog".into());
    world.read(Signal::MemoryAvailable, 500 * MI);
    assert!(world.round(50).is_empty() && world.round(50).is_empty());
    world.end("hog");
    assert!(world.round(50).is_empty());
    assert_eq!(world.round(50), ["evicted default/hog"]);
}

#[test]
fn a_pod_that_does_not_stop_delays_the_next_within_limits() {
    let mut world = evicted_for_memory(hog());
    world.run(Pod::new("second", json!({})).memory(300 * MI));
    world.round(29_000);
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(1000), ["hog is late"]);
    assert_eq!(world.round(50), ["evicted default/hog, which did not stop in time"]);
    assert_eq!(world.round(50), ["measure cgroups of second"]);
}

#[test]
fn page_cache_is_awaited_for_two_seconds_while_memory_holds() {
    let run = |second: &dyn Fn(&mut World) -> Vec<String>| {
        let mut world = hard_memory();
        world.run(hog());
        world.read(Signal::MemoryAvailable, 60 * MI);
        assert_eq!(world.round(50), ["reclaim page cache"]);
        second(&mut world)
    };
    assert!(run(&|world| world.round(1900)).is_empty());
    assert_eq!(run(&|world| world.round(2000)), ["measure cgroups of hog"]);
    let shrinking = |world: &mut World| {
        world.read(Signal::MemoryAvailable, 55 * MI);
        world.round(50)
    };
    assert_eq!(run(&shrinking), ["measure cgroups of hog"]);
}

#[test]
fn page_cache_reclaim_is_retried_after_a_minute() {
    let mut world = hard_memory();
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Partial));
    assert_eq!(
        world.round(50),
        ["asked the kernel to reclaim page cache of pods, but it reclaimed less"]
    );
    assert_eq!(world.round(1000), ["measure cgroups of "]);
    world.answer();
    assert_eq!(world.round(1), ["no pod helps"]);
    assert_eq!(world.round(57_000), ["measure cgroups of "]);
    world.answer();
    world.round(1);
    assert_eq!(world.round(3000), ["reclaim page cache"]);
    // Memory that is free meanwhile ends the pause.
    world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Complete));
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.round(50);
    world.round(50);
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
}

#[test]
fn page_cache_reclaim_is_retried_for_a_hard_threshold() {
    let mut world = World::new(soft_memory());
    world.round(0);
    world.read(Signal::MemoryAvailable, 150 * MI);
    world.round(2000);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Complete));
    world.round(50);
    assert_eq!(world.round(50), ["measure cgroups of "], "once for the soft threshold");
    world.answer();
    world.read(Signal::MemoryAvailable, 60 * MI);
    let actions = world.round(50);
    assert!(actions.contains(&"reclaim page cache".to_owned()), "{actions:?}");
}

#[test]
fn a_hard_threshold_cuts_short_the_grace_period_of_a_soft_one() {
    let mut world = World::new(soft_memory());
    world.run(Pod::new("hog", json!({"terminationGracePeriodSeconds": 300})).memory(400 * MI));
    world.run(Pod::new("second", json!({})).memory(200 * MI));
    world.round(0);
    world.read(Signal::MemoryAvailable, 150 * MI);
    world.round(2000);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog second", "evict hog"]);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::Within(300)));
    assert!(world.round(20_000).is_empty(), "the soft threshold waits for it");
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog second", "hurry hog"]);
    assert!(world.saved());
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce));
    assert!(world.round(50).is_empty(), "nobody else is evicted while it goes");
}

#[test]
fn a_pod_that_has_time_to_stop_is_awaited_without_hurry() {
    let (soft, grace) = ("memory.available=100Gi", "memory.available=1s");
    let thresholds = thresholds("memory.available=1Gi", soft, grace, "");
    let mut world = World::new(EvictionSettings { thresholds, ..soft_memory() });
    world.run(Pod::new("hog", json!({"terminationGracePeriodSeconds": 300})).memory(80 * GI));
    world.round(0);
    world.signals.insert(Signal::MemoryAvailable, (90 * GI, 1000 * GI));
    world.round(2000);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog", "evict hog"]);
    assert!(world.round(20_000).is_empty());
    assert_eq!(world.pauses(), (seconds(1), seconds(10)));
    assert!(world.round(278_900).is_empty());
    assert_eq!(world.pauses().0, seconds(1));
    assert!(world.round(100).is_empty());
    assert_eq!(world.pauses(), (Duration::from_millis(50), Duration::from_millis(500)));
}

#[test]
fn memory_of_a_starting_container_is_not_counted_for_the_pod() {
    let mut world = hard_memory();
    let starting = Pod::new("starting", json!({})).memory(400 * MI);
    world.publish(&starting, false);
    world.usage.insert(starting.key.clone(), starting.usage);
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of ", "no pod helps"]);
}

#[test]
fn users_outside_of_pods_are_reported_once_in_ten_minutes() {
    let mut world = hard_memory();
    world.run(Pod::new("small", json!({})).memory(MI));
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of small", "no pod helps"]);
    let reports = |world: &mut World| {
        world.round(1000);
        without_page_cache(world);
        world.decide().contains(&"no pod helps".to_owned())
    };
    assert!(!reports(&mut world));
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.round(400_000);
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert!(!reports(&mut world), "also when memory was free meanwhile");
    world.round(200_000);
    assert!(reports(&mut world));
}

#[test]
fn a_measurement_is_dropped_when_memory_is_free_again() {
    let mut world = hard_memory();
    world.run(hog());
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.round(1), ["measure cgroups of hog"]);
    world.read(Signal::MemoryAvailable, 500 * MI);
    assert!(world.round(50).is_empty());
    world.answer();
    assert!(world.round(50).is_empty(), "memory is not short any more");
    assert!(world.orders().evicted.is_empty());
}

#[test]
fn process_ids_have_no_page_cache() {
    let mut world = World::new(hard("pid.available=100"));
    world.round(0);
    world.round(2000);
    world.run(Pod::new("bomb", json!({})).processes(700));
    world.read(Signal::PidAvailable, 50);
    assert_eq!(world.decide(), ["measure cgroups of bomb", "evict bomb"]);
    assert_eq!(world.stop_of("bomb"), Some(HoldStop::AtOnce));
}

#[test]
fn an_evicted_pod_comes_back_after_the_condition_and_its_pause() {
    let mut world = evicted_for_memory(hog());
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.end("hog");
    world.round(50);
    assert_eq!(world.round(50), ["evicted default/hog"]);
    assert!(world.orders().conditions.contains(&Pressure::Memory));
    world.round(60_000);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce), "the condition holds");
    let actions = world.round(300_000);
    assert_eq!(actions, ["let hog back"]);
    assert!(world.saved() && world.stop_of("hog").is_none());
}

#[test]
fn a_pod_that_hangs_is_not_let_back() {
    let mut world = evicted_for_memory(hog());
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.round(31_000);
    world.round(50);
    world.round(400_000);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce));
    world.end("hog");
    assert_eq!(world.round(50), ["let hog back"]);
}

#[test]
fn a_signal_that_no_pod_relieves_does_not_hold_up_another() {
    let mut world = World::new(hard("memory.available=100Mi pid.available=100"));
    world.round(0);
    world.run(Pod::new("bomb", json!({})).memory(0).processes(700));
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.read(Signal::PidAvailable, 50);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.round(1), ["measure cgroups of bomb"]);
    world.answer();
    assert_eq!(world.round(1), ["no pod helps", "measure cgroups of bomb"]);
    world.answer();
    assert_eq!(world.round(1), ["evict bomb"]);
}

#[test]
fn memory_that_no_pod_relieves_leaves_disks_their_turn() {
    let mut world = World::new(hard("memory.available=100Mi nodefs.available=100Mi"));
    world.round(0);
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["measure cgroups of "]);
    world.answer();
    assert_eq!(world.round(0), ["no pod helps", "free images"], "by the reading of the disk");
}

#[test]
fn pods_of_an_api_server_are_evicted_before_static_ones() {
    let mut world = hard_memory();
    world.run(hog());
    world.run(Pod::requesting("other", 1000, "1Gi").memory(200 * MI).api());
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog other", "evict other"]);
}

#[test]
fn a_static_pod_that_is_never_evicted_is_named() {
    let mut settings = hard("memory.available=100Mi");
    settings.static_pods = StaticPods::Never;
    let mut world = World::new(settings.clone());
    world.run(hog());
    world.run(Pod::new("small", json!({})).memory(MI));
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(0);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    let named = "only exempt pods help: hog (it is static, and staticPodEviction is never)";
    assert_eq!(world.decide(), ["measure cgroups of hog small", named]);
    assert!(world.orders().evicted.is_empty());
    assert!(world.orders().conditions.contains(&Pressure::Memory));
    // The agent restarts with the default.
    settings.static_pods = StaticPods::Ranked;
    world.relief = Relief::restored(Evictions::default(), &settings, world.now);
    world.settings = settings;
    world.round(0);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog small", "evict hog"]);
}

#[test]
fn of_many_small_pods_as_few_are_evicted_as_it_takes() {
    let mut world = hard_memory();
    for n in 0..16 {
        world.run(Pod::new(&format!("small{n:02}"), json!({})).memory(30 * MI));
    }
    let mut available = 45 * MI;
    world.read(Signal::MemoryAvailable, available);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    without_page_cache(&mut world);
    let mut evicted = Vec::new();
    for _ in 0..16 {
        let actions = world.decide();
        let Some(name) = actions.iter().find_map(|action| action.strip_prefix("evict ")) else {
            continue;
        };
        evicted.push(name.to_owned());
        world.end(name);
        available += 30 * MI;
        world.read(Signal::MemoryAvailable, available);
        world.round(50);
        assert_eq!(world.round(50), [format!("evicted default/{name}")]);
    }
    // 45 MiB and two times 30 MiB are enough for a threshold of 100 MiB.
    assert_eq!(evicted, ["small00", "small01"]);
}

#[test]
fn pods_are_left_alone_while_memory_stays_above_the_threshold() {
    let mut world = hard_memory();
    world.run(hog());
    for available in [500, 100, 400, 101, 300, 100] {
        world.read(Signal::MemoryAvailable, available * MI);
        assert!(world.decide().is_empty(), "{available} MiB");
        assert!(world.orders().conditions.is_empty(), "{available} MiB");
    }
    world.read(Signal::MemoryAvailable, 100 * MI - 1);
    assert_eq!(world.round(50), ["reclaim page cache"]);
}
