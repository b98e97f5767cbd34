//! The start of the agent, restarts, and what is not known yet.

use super::*;
use jiff::Timestamp;

fn record(world: &World) -> EvictionRecord {
    world.relief.evictions().records().next().unwrap().clone()
}

#[test]
fn no_pod_is_evicted_before_all_pods_are_reported() {
    let mut world = World::new(settings(thresholds("memory.available=100Mi", "", "", "")));
    world.run(hog());
    world.known.listed = false;
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert!(world.round(50).is_empty() && world.round(5000).is_empty());
    assert!(world.orders().conditions.contains(&Pressure::Memory), "the condition is known");
    world.known.listed = true;
    assert!(world.round(50).is_empty(), "workers report one by one");
    assert!(world.round(900).is_empty());
    assert_eq!(world.round(100), ["reclaim page cache"]);
}

#[test]
fn pods_are_evicted_while_a_manifest_is_refused() {
    // A source may be incomplete for ever.
    let mut world = hard_memory();
    world.run(hog());
    assert!(!world.known.is_complete());
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog", "evict hog"]);
}

#[test]
fn nothing_is_admitted_before_the_usage_of_all_pods_is_known() {
    let mut world = World::new(settings(thresholds("memory.available=100Mi", "", "", "")));
    world.kubepods_known = false;
    world.round(0);
    assert!(!world.orders().known);
    world.kubepods_known = true;
    world.round(50);
    assert!(world.orders().known);
    world.kubepods_known = false;
    world.round(50);
    assert!(world.orders().known, "a cgroup that is removed later is made again");
}

#[test]
fn a_runtime_that_does_not_answer_is_awaited_without_hurry() {
    let mut world = World::new(settings(thresholds("memory.available=1Gi", "", "", "")));
    world.signals.insert(Signal::MemoryAvailable, (500 * GI, 1000 * GI));
    world.kubepods_known = false;
    world.round(0);
    assert_eq!(world.pauses().0, Duration::from_millis(50), "it may just start, too");
    world.round(30_000);
    assert_eq!(world.pauses().0, seconds(1));
    world.kubepods_known = true;
    world.round(1000);
    assert_eq!(world.pauses().0, seconds(10));
}

#[test]
fn an_evicted_pod_stays_away_and_is_waited_for_after_a_restart() {
    let mut world = World::new(soft_memory());
    world.run(Pod::new("hog", json!({"terminationGracePeriodSeconds": 300})).memory(400 * MI));
    world.round(0);
    world.read(Signal::MemoryAvailable, 150 * MI);
    world.round(2000);
    assert_eq!(world.round(2000), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog", "evict hog"]);

    let evictions = Evictions::restored([record(&world)], world.now);
    let first = Relief::first_orders(&evictions, &world.settings, world.now);
    assert!(first.evicted.contains_key(&PodKey::new("default", "hog")));
    assert!(first.conditions.contains(&Pressure::Memory) && !first.known);
    let mut next = World::resumed(evictions, soft_memory());
    next.now = world.now;
    next.run(Pod::new("hog", json!({"terminationGracePeriodSeconds": 300})).memory(400 * MI));
    next.run(Pod::new("second", json!({})).memory(300 * MI));
    next.read(Signal::MemoryAvailable, 150 * MI);
    next.round(0);
    assert!(next.round(2000).is_empty() && next.round(20_000).is_empty(), "it is on its way");
    // A hard threshold does not wait for the rest of its grace period.
    next.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(next.round(50), ["reclaim page cache"]);
    without_page_cache(&mut next);
    assert_eq!(next.decide(), ["measure cgroups of hog second", "hurry hog"]);
}

#[test]
fn a_condition_is_not_restored_from_an_old_eviction() {
    for pod in [hog(), hog().api()] {
        let world = evicted_for_memory(pod);
        let at = now(0, 1_000_000).wall;
        let record = EvictionRecord { at, pause_seconds: 1800, ..record(&world) };
        // Seconds since the boot and, by the wall clock, since the eviction.
        for (boot, passed, held) in [
            (5000, 5, true),
            (5000, 299, true),
            (5000, 300, false),
            (5000, 3600, false),
            (5, 299, true),
            (5, 300, false),
            // The wall clock was set back: a time in the future counts as now.
            (5, -5000, true),
        ] {
            let later = now(boot, 1_000_000 + passed);
            let evictions = Evictions::restored([record.clone()], later);
            let orders = Relief::first_orders(&evictions, &world.settings, later);
            assert_eq!(orders.evicted.len(), 1, "it is held all the same");
            let restored = orders.conditions.contains(&Pressure::Memory);
            assert_eq!(restored, held, "{boot} {passed} {}", record.for_good);
        }
    }
}

#[test]
fn a_condition_without_a_threshold_is_not_restored() {
    let evictions = {
        let mut world = World::new(soft_memory());
        world.run(hog());
        world.round(0);
        world.read(Signal::MemoryAvailable, 60 * MI);
        world.round(2000);
        without_page_cache(&mut world);
        world.decide();
        Evictions::restored([record(&world)], world.now)
    };
    let disk = settings(thresholds("nodefs.available=100Mi", "", "", ""));
    let orders = Relief::first_orders(&evictions, &disk, now(100, 1_000_000));
    assert!(orders.conditions.is_empty() && !orders.evicted.is_empty());
}

#[test]
fn the_record_of_a_pod_that_is_not_wished_any_more_is_dropped() {
    let mut world = evicted_for_memory(hog());
    assert!(world.stop_of("hog").is_some());
    world.pods.clear();
    world.known.complete = Completeness::All;
    world.round(50);
    assert!(world.saved() && world.stop_of("hog").is_none());
}

#[test]
fn wall_time_in_the_future_does_not_keep_a_pod_away() {
    let world = evicted_for_memory(hog());
    let mut record = record(&world);
    record.at = Timestamp::from_second(9_000_000).unwrap();
    let evictions = Evictions::restored([record], now(100, 1_000_000));
    let mut next = World::resumed(evictions, world.settings.clone());
    next.round(0);
    next.round(2000);
    assert_eq!(next.round(400_000), ["let hog back"]);
}
