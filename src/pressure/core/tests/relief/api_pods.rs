//! Pods of the API server, which are evicted for good: what is waited for, and what is kept.

use super::*;
use std::sync::Arc;

impl World {
    /// The pod is Failed from the beginning of its stop. Nothing else is known of it yet.
    fn fail(&mut self, name: &str) {
        self.fail_for(name, "Evicted");
    }

    fn fail_for(&mut self, name: &str, reason: &str) {
        self.change(name, |view| {
            let (phase, reason) = (Some("Failed".to_owned()), Some(reason.to_owned()));
            view.status = Arc::new(k8s::PodStatus { phase, reason, ..k8s::PodStatus::default() });
        });
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut PodView)) {
        change(Arc::make_mut(self.pods.get_mut(&PodKey::new("default", name)).unwrap()));
    }
}

fn no_container_runs(view: &mut PodView) {
    view.containers[0].running_since = None;
}

#[test]
fn a_hard_threshold_cuts_short_a_stop_that_has_begun() {
    let mut world = World::new(soft_memory());
    let spec = json!({"terminationGracePeriodSeconds": 300});
    world.run(Pod::new("hog", spec).memory(400 * MI).api());
    world.run(Pod::new("second", json!({})).memory(200 * MI));
    world.round(0);
    world.read(Signal::MemoryAvailable, 150 * MI);
    world.round(2000);
    world.round(2000);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog second", "evict hog"]);
    world.fail("hog");
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog second", "hurry hog"]);
    world.change("hog", no_container_runs);
    world.read(Signal::MemoryAvailable, 50 * MI);
    assert!(world.round(50).is_empty(), "a reading after its end has to show the effect");
}

/// `activeDeadlineSeconds` ends a pod for good while its containers still stop, which may take long.
#[test]
fn a_pod_whose_phase_is_final_is_evicted_while_it_stops() {
    let mut world = hard_memory();
    world.run(hog().api());
    world.fail_for("hog", "DeadlineExceeded");
    world.read(Signal::MemoryAvailable, 60 * MI);
    world.round(50);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), ["measure cgroups of hog", "evict hog"]);
    assert_eq!(world.stop_of("hog"), Some(HoldStop::AtOnce));

    let mut world = hard_disk();
    world.run(disk_hog("hog").api());
    world.fail_for("hog", "DeadlineExceeded");
    world.read(Signal::NodefsAvailable, 60 * MI);
    world.round(50);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.decide(), ["measure disks of hog", "evict hog"]);
    // It stays as it had ended, with its dead containers.
    world.change("hog", |view| {
        no_container_runs(view);
        view.stopped = true;
    });
    world.read(Signal::NodefsAvailable, 400 * MI);
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(500), ["evicted default/hog"]);
}

#[test]
fn the_next_eviction_waits_for_the_containers_of_the_last() {
    let mut world = evicted_for_memory(hog().api());
    world.run(Pod::new("second", json!({})).memory(300 * MI));
    world.fail("hog");
    world.read(Signal::MemoryAvailable, 90 * MI);
    assert!(world.round(50).is_empty() && world.round(1000).is_empty());
    world.change("hog", no_container_runs);
    assert!(world.round(50).is_empty(), "a reading after its end has to show the effect");
    assert_eq!(world.round(50), ["evicted default/hog"]);
}

#[test]
fn memory_of_a_volume_is_free_when_the_volumes_are_gone() {
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]});
    let mut world = evicted_for_memory(Pod::new("hog", volumes).memory(400 * MI).api());
    world.read(Signal::MemoryAvailable, 500 * MI);
    world.fail("hog");
    world.change("hog", no_container_runs);
    assert!(world.round(50).is_empty() && world.round(1000).is_empty());
    world.change("hog", |view| view.stopped = true);
    assert!(world.round(50).is_empty());
    assert_eq!(world.round(50), ["evicted default/hog"]);
}

#[test]
fn a_disk_is_relieved_when_the_dead_containers_are_gone() {
    let mut world = hard_disk();
    world.run(disk_hog("hog").api());
    world.read(Signal::NodefsAvailable, 60 * MI);
    assert_eq!(world.round(50), ["free images"]);
    world.relief.fold(Outcome::ImagesFreed(None));
    assert_eq!(world.decide(), ["measure disks of hog", "evict hog"]);
    world.fail("hog");
    world.change("hog", |view| {
        no_container_runs(view);
        view.stopped = true;
    });
    world.read(Signal::NodefsAvailable, 400 * MI);
    assert!(world.round(500).is_empty() && world.round(500).is_empty());
    world.change("hog", |view| view.containers.clear());
    assert!(world.round(500).is_empty());
    assert_eq!(world.round(500), ["evicted default/hog"]);
}

#[test]
fn the_record_of_an_evicted_pod_goes_with_its_object() {
    let mut world = evicted_for_memory(hog().api());
    world.fail("hog");
    world.change("hog", no_container_runs);
    world.read(Signal::MemoryAvailable, 500 * MI);
    for _ in 0..3 {
        let shown = world.round(3_600_000);
        assert!(!shown.iter().any(|line| line.contains("back")), "{shown:?}");
    }
    assert!(world.orders().evicted.contains_key(&PodKey::new("default", "hog")));
    // The API server was not read: nothing is known of its object.
    world.pods.clear();
    world.round(1000);
    assert_eq!(world.orders().evicted.len(), 1);
    // A source of static pods may be incomplete.
    world.known.complete = Completeness::Api;
    world.known.uids = BTreeSet::from([PodUid::from("hog")]);
    world.round(1000);
    assert_eq!(world.orders().evicted.len(), 1, "the object is still there");
    world.known.uids.clear();
    world.round(1000);
    assert!(world.orders().evicted.is_empty() && world.saved());
}

#[test]
fn a_record_of_an_earlier_version_is_of_a_pod_that_comes_back() {
    let world = evicted_for_memory(hog());
    let record = world.relief.evictions().records().next().unwrap().clone();
    let mut saved = serde_json::to_value(&record).unwrap();
    assert!(saved.as_object_mut().unwrap().remove("forGood").is_none());
    assert_eq!(serde_json::from_value::<EvictionRecord>(saved).unwrap(), record);
}
