use super::*;
use crate::model::PodKey;

fn at(seconds: u64) -> Now {
    let wall = Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap()).unwrap();
    Now { boot: Duration::from_secs(1000 + seconds), wall }
}

fn pod_event(pod: &str, kind: EventKind, reason: &'static str, message: &str) -> Event {
    let target = EventTarget::Pod {
        key: PodKey::new("default", pod),
        uid: pod.into(),
        field_path: Some("spec.containers{c}".to_owned()),
    };
    Event { target, kind, reason, message: message.to_owned() }
}

fn warn(pod: &str, message: &str) -> Event {
    pod_event(pod, EventKind::Warning, "Failed", message)
}

/// Each entry as `count message`, oldest first.
fn shown(correlator: &Correlator) -> Vec<String> {
    let log = correlator.log();
    log.entries.iter().map(|e| format!("{} {}", e.count, e.event.message)).collect()
}

#[test]
fn identical_events_are_counted_and_keep_their_first_time() {
    let mut c = Correlator::default();
    assert_eq!(c.observe(warn("a", "x"), at(0)), Verdict::New);
    assert_eq!(c.observe(warn("b", "x"), at(1)), Verdict::New, "another pod");
    assert_eq!(c.observe(warn("a", "x"), at(90)), Verdict::Counted(2));
    assert_eq!(shown(&c), ["1 x", "2 x"]);
    let log = c.log();
    let last = log.entries.last().unwrap();
    assert_eq!((last.first, last.last), (at(0).wall, at(90).wall));
    let mut elsewhere = warn("a", "x");
    elsewhere.kind = EventKind::Normal;
    assert_eq!(c.observe(elsewhere, at(91)), Verdict::New, "another type");
}

#[test]
fn annotations_are_those_of_the_last_occurrence() {
    let mut c = Correlator::default();
    let used =
        |amount: &str| Annotations::from([("offending_containers_usage", amount.to_owned())]);
    assert_eq!(c.observe_annotated(warn("a", "x"), used("1Mi"), at(0)), Verdict::New);
    assert_eq!(c.observe(warn("b", "x"), at(0)), Verdict::New);
    assert_eq!(c.observe_annotated(warn("a", "x"), used("2Mi"), at(1)), Verdict::Counted(2));
    let kept: Vec<Annotations> =
        c.log().entries.iter().map(|entry| entry.annotations.clone()).collect();
    assert_eq!(kept, [Annotations::new(), used("2Mi")]);
}

#[test]
fn the_tenth_different_message_within_ten_minutes_is_combined() {
    let mut c = Correlator::default();
    for n in 1..=9 {
        assert_eq!(c.observe(warn("a", &format!("m{n}")), at(n)), Verdict::New);
    }
    assert_eq!(c.observe(warn("a", "m3"), at(10)), Verdict::Counted(2), "not a different one");
    assert_eq!(c.observe(warn("a", "m10"), at(11)), Verdict::New);
    assert_eq!(c.observe(warn("a", "m11"), at(12)), Verdict::Counted(2));
    assert_eq!(c.observe(warn("a", "m1"), at(13)), Verdict::Counted(3), "even a known one");
    assert_eq!(shown(&c).last().unwrap(), "3 (combined from similar events): m1");
    assert_eq!(shown(&c).len(), 10);
    assert_eq!(c.observe(warn("b", "m1"), at(13)), Verdict::New, "another pod is not affected");
    let quiet = 13 + 601;
    assert_eq!(c.observe(warn("a", "m20"), at(quiet)), Verdict::New, "after ten quiet minutes");
    assert_eq!(shown(&c).last().unwrap(), "1 m20");
}

#[test]
fn slow_similar_events_are_not_combined() {
    let mut c = Correlator::default();
    for n in 0..20 {
        c.observe(warn("a", &format!("m{n}")), at(n * 100));
    }
    assert!(shown(&c).iter().all(|s| !s.contains("combined")), "{:?}", shown(&c));
}

#[test]
fn an_object_makes_25_entries_at_once_then_one_in_five_minutes() {
    let mut c = Correlator::default();
    let reasons: Vec<&'static str> =
        (0..40).map(|n| &*Box::leak(format!("R{n}").into_boxed_str())).collect();
    let event = |n: usize| pod_event("a", EventKind::Normal, reasons[n], "m");
    for n in 0..25 {
        assert_eq!(c.observe(event(n), at(0)), Verdict::New);
    }
    assert_eq!(c.observe(event(25), at(0)), Verdict::Dropped);
    assert_eq!(c.observe(event(3), at(1)), Verdict::Counted(2), "repeats are always counted");
    assert_eq!(c.observe(warn("a", "w"), at(1)), Verdict::New, "types are apart");
    assert_eq!(
        c.observe(pod_event("b", EventKind::Normal, "R", "m"), at(1)),
        Verdict::New,
        "pods are apart"
    );
    assert_eq!(c.observe(event(25), at(299)), Verdict::Dropped);
    assert_eq!(c.observe(event(25), at(301)), Verdict::New);
    assert_eq!(c.observe(event(26), at(302)), Verdict::Dropped);
    assert_eq!(c.log().dropped, 3);
}

#[test]
fn memory_is_bounded_and_the_least_recent_goes_first() {
    let mut c = Correlator::default();
    c.observe(warn("first", "m"), at(0));
    for n in 0..1000 {
        c.observe(warn(&format!("p{n}"), "m"), at(1 + n));
        c.observe(warn("first", "m"), at(1 + n));
    }
    let log = c.log();
    assert_eq!(log.entries.len(), MAX_ENTRIES);
    assert!(c.allowances.len() <= MAX_ALLOWANCES);
    assert_eq!(log.entries.last().unwrap().count, 1001, "seen all the time, so never dropped");
    assert!(log.entries.windows(2).all(|w| w[0].last <= w[1].last));
}

#[test]
fn a_clock_set_back_does_not_disturb_the_windows() {
    let mut c = Correlator::default();
    c.observe(warn("a", "m"), at(5000));
    let set_back = Now { wall: at(0).wall, ..at(5001) };
    assert_eq!(c.observe(warn("a", "m"), set_back), Verdict::Counted(2));
}
