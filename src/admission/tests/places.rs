//! Who keeps a place, who gets one next, who waits.

use super::*;

const NO_CPU: &str = "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu";

fn starts(found: &[String], expected: &[&str]) {
    let same = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
    assert!(same, "found {found:#?}\nexpected {expected:#?}");
}

#[test]
fn what_runs_is_never_refused() {
    let mut node = node().short_of(&[Pressure::Memory, Pressure::Disk]);
    node.facts.allocatable = Allocatable::default();
    node.facts.app_armor = false;
    let unfit = pod(
        "b",
        json!({
            "nodeSelector": {"rack": "a"}, "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}},
        }),
    );
    node = node.runs([asks("a", 0, "99", "99Gi"), unfit, port("c", 0, 80), port("d", 0, 80)]);
    starts(&node.admits(), &["a admitted", "b admitted", "c admitted", "d admitted"]);
}

#[test]
fn what_has_ended_takes_nothing() {
    let ended = [asks("a", 0, "4", "8Gi"), port("b", 0, 80)];
    let node = node().with(Standing::Ended, ended);
    let node = node.wants([asks("x", 0, "4", "8Gi"), port("y", 0, 80)]);
    starts(&node.admits(), &["a admitted", "b admitted", "x admitted", "y admitted"]);
}

#[test]
fn an_evicted_pod_is_held_as_its_record_says() {
    let mut node = node().wants([asks("a", 0, "4", "1Gi")]);
    let record = "a Evicted: The node was low on resource: memory. ";
    let subject = Arc::clone(&node.pods[0].pod);
    evicted(&mut node, &subject, "uid-a");
    assert_eq!(node.admits(), [record], "the event is told by who evicts");
    // While it runs, what it has is not free; another pod waits for it.
    node.set("a", Standing::Running);
    node = node.wants([asks("x", 0, "1", "1Gi"), pod("y", json!({}))]);
    let waits = "x waits: it needs resources of pods that are being stopped: default/a";
    assert_eq!(node.admits(), [record, waits, "y admitted"]);
    node.set("a", Standing::New { since: None });
    assert_eq!(node.admits(), [record, "x admitted", "y admitted"]);
    // Another incarnation is not meant, nor one that had ended before.
    evicted(&mut node, &subject, "uid-of-another");
    starts(&node.admits(), &["a admitted", &format!("x {NO_CPU}"), "y admitted", "event x"]);
    evicted(&mut node, &subject, "uid-a");
    node.set("a", Standing::Ended);
    assert_eq!(node.admits(), ["a admitted", "x admitted", "y admitted"]);
}

#[test]
fn a_hold_lasts_until_what_runs_is_gone() {
    let mut node = node().runs([asks("a", 0, "1", "1Gi")]);
    let subject = Arc::clone(&node.pods[0].pod);
    evicted(&mut node, &subject, "uid-a");
    node.before = admit(&node.input()).admissions;
    node.pressure.evicted.clear();
    starts(&node.again(), &["a Evicted: The node was low"]);
    node.set("a", Standing::New { since: None });
    assert_eq!(node.again(), ["a admitted"]);
}

/// Under one uid, a change of the QoS class is decided as a new pod.
#[test]
fn what_runs_is_not_stopped_for_an_edit_that_is_taken_back() {
    let mut node = node().wants([asks("a", 0, "100", "1Gi")]);
    starts(&node.again(), &[&format!("a {NO_CPU}"), "event a "]);
    node.remove("a");
    node = node.runs([pod("a", json!({}))]);
    assert_eq!(node.again(), ["a admitted"]);
}

#[test]
fn a_pod_refused_for_pressure_after_its_eviction_is_told_so() {
    let mut node = node().wants([pod("a", json!({}))]);
    let subject = Arc::clone(&node.pods[0].pod);
    evicted(&mut node, &subject, "uid-a");
    node.before = admit(&node.input()).admissions;
    node.pressure.evicted.clear();
    node = node.short_of(&[Pressure::Memory]);
    starts(&node.again(), &["a Evicted: Pod was rejected: ", "event a Evicted: The node had"]);
    starts(&node.again(), &["a Evicted: Pod was rejected: "]);
}

#[test]
fn a_pod_that_can_not_begin_yet_waits_and_takes_no_room() {
    let mut node = node().wants([asks("x", 0, "2", "1Gi"), asks("y", 0, "2", "1Gi")]);
    node.facts.allocatable.cpu_milli = 2000;
    let waiting = &mut node.pods[0];
    waiting.waits = Some("its uid is used".to_owned());
    assert_eq!(node.admits(), ["x waits: its uid is used", "y admitted"]);
}

#[test]
fn the_most_important_pod_is_first_then_who_waits_longest() {
    let four = |name: &str, priority| asks(name, priority, "4", "1Gi");
    let mut node = node()
        .wants([four("a", 0), four("b", 0)])
        .with(waiting(20), [four("c", 0), four("d", 0)])
        .with(waiting(10), [four("e", 0)])
        .with(waiting(30), [four("f", 7)])
        .wants([four("g", 100)]);
    node.facts.allocatable.pods = 110;
    for next in ["g", "f", "e", "c", "d", "a", "b"] {
        let admitted: Vec<String> =
            node.admits().into_iter().filter(|line| line.ends_with(" admitted")).collect();
        assert_eq!(admitted, [format!("{next} admitted")]);
        node.remove(next);
    }
}

#[test]
fn a_smaller_pod_need_not_wait_for_a_large_one() {
    let node = node().runs([asks("a", 0, "3", "1Gi")]);
    let node = node.wants([asks("x", 9, "2", "1Gi"), asks("y", 0, "1", "1Gi")]);
    let found = node.admits();
    starts(&found, &["a admitted", &format!("x {NO_CPU}"), "y admitted", "event x OutOfcpu"]);
    let told = "event x OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 4000, capacity: 4000";
    assert_eq!(found[3], told, "what the smaller one took is told as used");
}

#[test]
fn a_refused_pod_is_reported_once_and_admitted_with_room() {
    let mut node = node().runs([asks("a", 0, "3", "1Gi")]).wants([asks("x", 0, "2", "1Gi")]);
    starts(&node.again(), &["a admitted", &format!("x {NO_CPU}"), "event x OutOfcpu"]);
    starts(&node.again(), &["a admitted", &format!("x {NO_CPU}")]);
    // Another reason is news.
    node.facts.allocatable.pods = 1;
    starts(&node.again(), &["a admitted", "x OutOfpods", "event x OutOfpods"]);
    node.facts.allocatable.pods = 5;
    node.remove("a");
    assert_eq!(node.again(), ["x admitted"]);
}

#[test]
fn who_was_admitted_and_has_not_begun_keeps_the_place() {
    let mut node = node().wants([asks("a", 0, "3", "1Gi")]);
    node.before = admit(&node.input()).admissions;
    node = node.short_of(&[Pressure::Disk]).wants([asks("b", 9, "2", "1Gi")]);
    starts(&node.admits(), &["a admitted", "b Evicted", "event b Evicted"]);
    node = node.short_of(&[]);
    starts(&node.admits(), &["a admitted", &format!("b {NO_CPU}"), "event b"]);
    // Except before a critical one.
    node = node.wants([asks("c", CRITICAL, "2", "1Gi")]);
    starts(&node.admits(), &[&format!("a {NO_CPU}"), "b admitted", "c admitted", "event a"]);
}

#[test]
fn room_of_pods_that_stop_is_waited_for() {
    let gone = asks("gone", 0, "3", "1Gi");
    let mut node = node().leaves(&gone).wants([asks("x", 0, "2", "1Gi"), asks("y", 0, "9", "0")]);
    let waits = "x waits: it needs resources of pods that are being stopped: default/gone";
    let found = node.admits();
    starts(&found, &[waits, &format!("y {NO_CPU}"), "event y"]);
    assert_eq!(found[0], waits);
    // It is next, whoever comes; what fits beside both need not wait.
    node = node.wants([asks("a", 0, "3", "1Gi"), asks("b", 0, "1", "1Gi")]);
    node.set("x", waiting(1));
    starts(&node.admits(), &[&format!("a {NO_CPU}"), "b waits", waits, "y", "event a", "event y"]);
    node.leaving.clear();
    starts(
        &node.admits(),
        &[&format!("a {NO_CPU}"), "b admitted", "x admitted", "y", "event a", "event y"],
    );
}

#[test]
fn what_is_not_known_to_be_unwished_is_not_told_to_be_stopped() {
    let (perhaps, gone) = (asks("perhaps", 0, "2", "1Gi"), asks("gone", 0, "2", "1Gi"));
    let node = node().may_leave(&perhaps).wants([asks("x", 0, "4", "1Gi")]);
    let unknown = "that may still be removed: default/perhaps";
    assert_eq!(node.admits(), [format!("x waits: it needs resources of pods {unknown}")]);
    let waits = "x waits: it needs resources of pods that are being stopped: default/gone; or";
    assert_eq!(node.leaves(&gone).admits(), [format!("{waits} {unknown}")]);
}

#[test]
fn a_port_of_a_pod_that_stops_is_waited_for() {
    let node = node().leaves(&port("gone", 0, 80)).wants([port("x", 0, 80), port("y", 0, 81)]);
    let waits = "x waits: it needs resources of pods that are being stopped: default/gone";
    assert_eq!(node.admits(), [waits, "y admitted"]);
}

#[test]
fn an_edited_pod_takes_over_its_own_room() {
    // x follows on itself: it has its place before those that waited, also under pressure, and does
    // not wait for itself.
    let before = asks("x", 0, "3", "1Gi");
    let mut node = node()
        .leaves(&before)
        .with(waiting(1), [asks("a", 0, "2", "1Gi"), asks("b", 0, "500m", "1Gi")])
        .wants([asks("x", 0, "2500m", "1Gi")])
        .short_of(&[Pressure::Memory]);
    starts(
        &node.admits(),
        &[&format!("a {NO_CPU}"), "b admitted", "x admitted", "event a OutOfcpu"],
    );
    // Until the old one is gone, the larger of the two counts.
    node = node.wants([asks("c", 0, "1", "1Gi")]);
    node.remove("b");
    starts(&node.admits(), &["a", "c admitted", "x admitted", "event a OutOfcpu"]);
    node = node.wants([asks("d", 0, "500m", "1Gi")]);
    let waits = "d waits: it needs resources of pods that are being stopped: default/x";
    starts(&node.admits(), &["a", "c admitted", waits, "x admitted", "event a"]);
    // More than there is, it does not get; its room then goes to others.
    node.remove("x");
    node = node.wants([asks("x", 0, "4001m", "1Gi")]);
    let x = format!("x {NO_CPU}");
    starts(&node.admits(), &["a waits", "c waits", "d waits", &x, "event x"]);
}

#[test]
fn an_edit_does_not_bring_an_evicted_pod_back_under_pressure() {
    // The edit came first, and the old revision ran on while the new one was prepared.
    let edited = pod("x", json!({}));
    let mut node = node().leaves(&pod("x", json!({}))).wants([Arc::clone(&edited)]);
    assert_eq!(node.again(), ["x admitted"]);
    node = node.short_of(&[Pressure::Disk]);
    assert_eq!(node.again(), ["x admitted"]);
    evicted(&mut node, &edited, "uid-of-the-old-revision");
    starts(&node.again(), &["x Evicted: Pod was rejected: The node had", "event x"]);
    // Also when nothing of the old one is left.
    node.leaving.clear();
    node.pressure.evicted.clear();
    starts(&node.again(), &["x Evicted"]);
    node.pressure.conditions.clear();
    assert_eq!(node.again(), ["x admitted"]);
}

#[test]
fn nothing_new_begins_before_the_node_was_looked_at() {
    let mut node = node().runs([pod("a", json!({}))]);
    node = node.wants([pod("x", json!({})), pod("y", json!({"priority": CRITICAL}))]);
    node.pressure = PressureOrders::default();
    let waits = "x waits: the resources of the node have not been read yet";
    assert_eq!(node.admits(), ["a admitted", waits, "y admitted"]);
    node.pressure.known = true;
    assert_eq!(node.again(), ["a admitted", "x admitted", "y admitted"]);
}

#[test]
fn static_pods_are_critical_where_they_are_spared() {
    let metadata = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    let spared = |spares: bool| {
        let mut node = node().short_of(&[Pressure::Disk]);
        node.facts.spares_static_pods = spares;
        node.wants([pod("x", json!({"metadata": metadata})), pod("y", json!({}))]).admits()
    };
    starts(&spared(false), &["x Evicted", "y Evicted", "event x", "event y"]);
    starts(&spared(true), &["x admitted", "y Evicted", "event y"]);
}

#[test]
fn another_incarnation_has_nothing_of_what_was_decided() {
    let mut node = node().runs([asks("a", 0, "4", "1Gi")]).wants([asks("x", 0, "1", "1Gi")]);
    node.before = admit(&node.input()).admissions;
    assert_eq!(node.admits().len(), 2, "no event again");
    let edited = DesiredPod { uid: "other".into(), ..(*asks("x", 0, "1", "1Gi")).clone() };
    node.remove("x");
    node = node.wants([Arc::new(edited)]);
    starts(&node.admits(), &["a admitted", &format!("x {NO_CPU}"), "event x OutOfcpu"]);
}

#[test]
fn labels_refuse_a_pod_only_when_they_are_newer_than_it() {
    let spec = json!({"nodeSelector": {"disk": "ssd"}});
    let mut node = node().with(waiting(7), [pod("x", spec.clone())]);
    let read_at = |node: &mut Node, seconds| {
        node.scheduling.as_mut().unwrap().read_at = Duration::from_secs(seconds);
    };
    let waits = "x waits: the labels of the node are read again";
    read_at(&mut node, 6);
    assert_eq!(node.admits(), [waits]);
    assert!(admit(&node.input()).asks_for_node);
    node.set("x", Standing::New { since: None });
    assert_eq!(node.admits(), [waits], "it has just come");
    node.set("x", waiting(7));
    read_at(&mut node, 7);
    starts(&node.admits(), &["x NodeAffinity", "event x NodeAffinity"]);
    assert!(!admit(&node.input()).asks_for_node);
    node = node.labeled("disk", "ssd");
    assert_eq!(node.admits(), ["x admitted"]);
    // Other refusals do not wait, and a static pod is not lost.
    read_at(&mut node, 6);
    starts(&node.wants([asks("y", 0, "99", "1Gi")]).admits(), &["x", "y OutOfcpu", "event y"]);
    let mut of_file = spec;
    of_file["nodeSelector"]["rack"] = json!("a");
    of_file["metadata"] = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    let mut node = super::node().wants([pod("z", of_file)]);
    read_at(&mut node, 0);
    starts(&node.admits(), &["z NodeAffinity", "event z NodeAffinity"]);
}
