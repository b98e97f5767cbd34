//! Tables: who was evicted, how long it stays away, and what outlives a restart.

use super::*;
use crate::model::{Hold, HoldStop, Pressure};
use std::collections::BTreeSet;

const MEMORY: Cause = Cause::Signal(Signal::MemoryAvailable);

fn hold() -> Hold {
    Hold {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        stop: HoldStop::AtOnce,
        disruption: None,
    }
}

fn pressure(conditions: &[Pressure]) -> BTreeSet<Pressure> {
    conditions.iter().copied().collect()
}

fn evicted_at(now: Now) -> (Evictions, Pod) {
    let pod = Pod::new("web", json!({}));
    let mut evictions = Evictions::default();
    evictions.evict(&pod.candidate(), MEMORY, hold(), now);
    (evictions, pod)
}

/// Both clocks run together, from boot second 0 on.
fn at(seconds: u64) -> Now {
    now(seconds, 1_000_000 + i64::try_from(seconds).unwrap())
}

#[test]
fn an_evicted_pod_waits_for_pressure_readings_and_its_pause() {
    let (evictions, pod) = evicted_at(at(100));
    assert_eq!(evictions.away()[&pod.key].uid, pod.uid);
    assert_eq!(*evictions.away()[&pod.key].hold, hold());
    let memory = [Pressure::Memory];
    for (second, conditions, known, back) in [
        (130, &memory[..], true, false),
        (9000, &memory, true, false),
        (130, &[], false, false),
        (129, &[], true, false),
        (130, &[], true, true),
        (130, &[Pressure::Disk], true, true),
    ] {
        let mut evictions = evictions.clone();
        let conditions = pressure(conditions);
        let waiting = evictions.waiting(&pod.key, &conditions, known, at(second));
        assert_eq!(waiting.is_none(), back, "{second} {conditions:?} {known}");
        let looked = evictions.look(&conditions, known, at(second));
        assert_eq!(looked.back.contains(&pod.key), back);
        assert_eq!(looked.changed, back);
        assert_eq!(evictions.away().is_empty(), back);
    }
}

#[test]
fn what_still_runs_does_not_come_back() {
    let (mut evictions, pod) = evicted_at(at(100));
    evictions.observe(|_, uid| *uid == pod.uid);
    let waiting = evictions.waiting(&pod.key, &pressure(&[]), true, at(9000)).unwrap();
    assert!(waiting.stopping && waiting.pause.is_zero());
    assert!(evictions.look(&pressure(&[]), true, at(9000)).back.is_empty());
    // Found above its limit again while the runtime hangs: that is the same eviction.
    assert_eq!(evictions.evict(&pod.candidate(), MEMORY, hold(), at(9000)).count, 1);
    evictions.observe(|_, _| false);
    assert_eq!(evictions.look(&pressure(&[]), true, at(9000)).back, [pod.key]);
}

#[test]
fn who_was_given_time_can_be_hurried_once() {
    let (mut evictions, at_once) = evicted_at(at(100));
    let soft = Pod::new("soft", json!({}));
    let hold = Hold { stop: HoldStop::Within(30), ..hold() };
    evictions.evict(&soft.candidate(), MEMORY, hold.clone(), at(100));
    assert!(!evictions.hurry(&soft.key, &"other".into(), at(101)), "another incarnation");
    assert!(evictions.hurry(&soft.key, &soft.uid, at(101)));
    assert_eq!(*evictions.away()[&soft.key].hold, Hold { stop: HoldStop::AtOnce, ..hold });
    assert!(!evictions.hurry(&soft.key, &soft.uid, at(101)), "it is told already");
    assert!(!evictions.hurry(&at_once.key, &at_once.uid, at(101)));
    evictions.look(&pressure(&[]), true, at(130));
    assert!(!evictions.hurry(&soft.key, &soft.uid, at(101)), "it is back");
}

#[test]
fn who_is_hurried_is_late_by_the_time_of_that() {
    let pod = Pod::new("web", json!({}));
    let hold = Hold { stop: HoldStop::Within(600), ..hold() };
    let mut evictions = Evictions::default();
    evictions.evict(&pod.candidate(), Cause::Signal(Signal::NodefsAvailable), hold, at(100));
    evictions.observe(|_, _| true);
    assert_eq!(evictions.hurry_all(Pressure::Disk, at(400)), [pod.key]);
    let coming = |second| evictions.relief_is_coming(Pressure::Disk, at(second));
    assert!(coming(400) && coming(429) && !coming(430));
}

/// Whatever it was given, and whoever told it to go: also an earlier life of the agent.
#[test]
fn a_hard_threshold_leaves_evicted_pods_one_second() {
    let pod = Pod::new("web", json!({}));
    let hold = Hold { stop: HoldStop::Within(600), ..hold() };
    let stop = |evictions: &Evictions| evictions.away()[&pod.key].hold.stop;
    for cause in [Cause::Signal(Signal::NodefsAvailable), Cause::Limit(LocalLimit::Pod)] {
        let mut evictions = Evictions::default();
        evictions.evict(&pod.candidate(), cause, hold.clone(), at(100));
        assert!(evictions.hurry_all(Pressure::Disk, at(101)).is_empty(), "nothing of it runs");
        let records: Vec<EvictionRecord> = evictions.records().cloned().collect();
        let restored = Evictions::restored(records, at(100));
        for mut evictions in [evictions, restored] {
            evictions.observe(|_, _| true);
            assert!(evictions.hurry_all(Pressure::Disk, at(100)).is_empty(), "it has its second");
            assert!(evictions.hurry_all(Pressure::Memory, at(101)).is_empty(), "of something else");
            assert_eq!(stop(&evictions), HoldStop::Within(600));
            assert_eq!(
                evictions.hurry_all(Pressure::Disk, at(101)),
                std::slice::from_ref(&pod.key)
            );
            assert_eq!(stop(&evictions), HoldStop::AtOnce);
            assert!(evictions.hurry_all(Pressure::Disk, at(102)).is_empty(), "nothing new");
        }
    }
}

#[test]
fn who_still_goes_relieves_what_it_was_evicted_for() {
    let signal = Cause::Signal;
    let (memory, disk, pid) = (Pressure::Memory, Pressure::Disk, Pressure::Pid);
    for (cause, relieved) in [
        (signal(Signal::AllocatableMemoryAvailable), &[memory][..]),
        (signal(Signal::ImagefsInodesFree), &[disk]),
        (signal(Signal::PidAvailable), &[pid]),
        (Cause::Limit(LocalLimit::Container), &[disk]),
        (Cause::Limit(LocalLimit::Pod), &[disk]),
        (Cause::Limit(LocalLimit::EmptyDir), &[memory, disk]),
    ] {
        let pod = Pod::new("web", json!({}));
        let mut evictions = Evictions::default();
        let hold = Hold { stop: HoldStop::Within(40), ..hold() };
        evictions.evict(&pod.candidate(), cause, hold, at(100));
        let coming = |evictions: &Evictions, second| -> Vec<Pressure> {
            let all = [memory, disk, pid].into_iter();
            all.filter(|one| evictions.relief_is_coming(*one, at(second))).collect()
        };
        assert!(coming(&evictions, 100).is_empty(), "nothing of it runs");
        assert!(!evictions.observe(|_, _| true));
        assert_eq!(coming(&evictions, 169), relieved, "{cause:?}");
        assert!(coming(&evictions, 170).is_empty(), "it is late");
        // The agent starts anew, and its pause is over by then.
        let records: Vec<EvictionRecord> = evictions.records().cloned().collect();
        let mut restored = Evictions::restored(records, at(160));
        assert!(!restored.observe(|_, _| true));
        assert_eq!(coming(&restored, 169), relieved, "{cause:?}");
        assert!(coming(&restored, 170).is_empty());
        assert!(restored.observe(|_, _| false), "it has come to its end");
        assert!(coming(&restored, 165).is_empty() && !restored.observe(|_, _| false));
    }
    // Killed at once, it may have memory in volumes until it is cleared away.
    let (mut evictions, _) = evicted_at(at(100));
    evictions.observe(|_, _| true);
    let coming = |second| evictions.relief_is_coming(memory, at(second));
    assert!(coming(129) && !coming(130));
}

#[test]
fn what_it_waits_for_is_told() {
    let (mut evictions, pod) = evicted_at(at(100));
    let conditions = pressure(&[Pressure::Memory, Pressure::Pid]);
    let waiting = evictions.waiting(&pod.key, &conditions, false, at(110)).unwrap();
    let want = Waiting {
        stopping: false,
        condition: Some(Pressure::Memory),
        unknown: true,
        pause: seconds(20),
    };
    assert_eq!(waiting, want);
    assert_eq!(evictions.look(&conditions, false, at(110)).next_look, Some(seconds(20)));
    assert_eq!(evictions.look(&conditions, true, at(130)).next_look, None);
    assert_eq!(
        evictions.waiting(&PodKey::new("default", "other"), &conditions, true, at(110)),
        None
    );
}

#[test]
fn the_first_pause_that_ends_says_when_to_look() {
    let (mut evictions, _) = evicted_at(at(100));
    for (name, second) in [("a", 120), ("z", 90)] {
        evictions.evict(&Pod::new(name, json!({})).candidate(), MEMORY, hold(), at(second));
    }
    let looked = evictions.look(&pressure(&[]), true, at(115));
    assert_eq!((looked.next_look, looked.back), (Some(seconds(5)), vec![]));
    let looked = evictions.look(&pressure(&[]), true, at(120));
    assert_eq!(looked.back, [PodKey::new("default", "z")]);
    assert_eq!(looked.next_look, Some(seconds(10)));
}

#[test]
fn a_limit_of_its_own_waits_for_no_condition() {
    let pod = Pod::new("web", json!({}));
    let mut evictions = Evictions::default();
    evictions.evict(&pod.candidate(), Cause::Limit(LocalLimit::EmptyDir), hold(), at(100));
    let every = pressure(&[Pressure::Memory, Pressure::Disk, Pressure::Pid]);
    assert_eq!(evictions.look(&every, true, at(130)).back, [pod.key]);
}

#[test]
fn each_eviction_doubles_the_pause_up_to_half_an_hour() {
    let (mut evictions, pod) = evicted_at(at(0));
    let mut second = 0;
    for (count, pause) in
        [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 960), (7, 1800), (8, 1800)]
    {
        let record = evictions.records().next().unwrap().clone();
        assert_eq!((record.count, record.pause_seconds), (count, pause));
        second += pause;
        assert!(evictions.look(&pressure(&[]), true, at(second - 1)).back.is_empty());
        assert_eq!(
            evictions.look(&pressure(&[]), true, at(second)).back,
            std::slice::from_ref(&pod.key)
        );
        second += 3599;
        evictions.evict(&pod.candidate(), MEMORY, hold(), at(second));
    }
}

#[test]
fn an_hour_without_an_eviction_makes_it_forgotten() {
    let (mut evictions, pod) = evicted_at(at(0));
    evictions.look(&pressure(&[]), true, at(30));
    let mut late = evictions.clone();
    assert!(!evictions.look(&pressure(&[]), true, at(3629)).changed);
    let looked = evictions.look(&pressure(&[]), true, at(3630));
    assert!(looked.changed && looked.back.is_empty());
    assert_eq!(evictions.records().count(), 0);
    // The same where nobody looked in between.
    assert_eq!(late.evict(&pod.candidate(), MEMORY, hold(), at(3630)).count, 1);
}

#[test]
fn another_pod_of_the_name_begins_anew() {
    let (mut evictions, mut pod) = evicted_at(at(0));
    evictions.look(&pressure(&[]), true, at(30));
    pod.uid = PodUid::from("edited");
    let record = evictions.evict(&pod.candidate(), MEMORY, hold(), at(60));
    assert_eq!((record.count, record.uid.as_str()), (1, "edited"));
    assert!(!evictions.retain(|record| record.uid.as_str() == "edited"));
    assert!(evictions.retain(|record| record.uid.as_str() == "web"));
    assert!(evictions.away().is_empty());
}

#[test]
fn a_pod_that_is_away_is_not_evicted_again() {
    let (mut evictions, pod) = evicted_at(at(0));
    let before = evictions.clone();
    let record = evictions.evict(&pod.candidate(), MEMORY, hold(), at(10));
    assert_eq!((record.count, record.pause_seconds), (1, 30));
    assert_eq!(evictions, before);
}

#[test]
fn records_survive_their_file() {
    let (mut evictions, _) = evicted_at(at(100));
    let record = evictions.records().next().unwrap();
    let text = serde_json::to_value(record).unwrap();
    assert_eq!(
        text,
        json!({
            "key": {"namespace": "default", "name": "web"},
            "uid": "web",
            "cause": {"signal": "memory.available"},
            "hold": {
                "reason": "Evicted",
                "message": "The node was low on resource: memory. ",
                "stop": "atOnce",
            },
            "at": "1970-01-12T13:48:20Z",
            "count": 1,
            "pauseSeconds": 30,
        })
    );
    assert_eq!(&serde_json::from_value::<EvictionRecord>(text).unwrap(), record);
    evictions.look(&pressure(&[]), true, at(130));
    let back = evictions.records().next().unwrap();
    let text = serde_json::to_string(back).unwrap();
    assert!(text.contains("\"back\":\"1970-01-12T13:48:50Z\""), "{text}");
    assert_eq!(&serde_json::from_str::<EvictionRecord>(&text).unwrap(), back);
    let limit = serde_json::to_string(&Cause::Limit(LocalLimit::Container)).unwrap();
    assert_eq!(limit, r#"{"limit":"ephemeralcontainerfs.limit"}"#);
}

#[test]
fn pauses_go_on_over_a_reboot() {
    let (evictions, pod) = evicted_at(at(10_000));
    let records: Vec<EvictionRecord> = evictions.records().cloned().collect();
    let wall = 1_000_000 + 10_000;
    // Seconds on the new boot's clock, on the wall since the eviction; what is left of the pause.
    for (boot, passed, left) in [
        (5, 10, Some(20)),
        (5, 29, Some(1)),
        (5, 30, None),
        (5, 9000, None),
        // The wall clock was set back: it counts from now.
        (5, -5000, Some(30)),
    ] {
        let then = now(boot, wall + passed);
        let restored = Evictions::restored(records.clone(), then);
        let waiting = restored.waiting(&pod.key, &pressure(&[]), true, then);
        assert_eq!(waiting.map(|w| w.pause.as_secs()), left, "{boot} {passed}");
        assert!(restored.records().all(|record| record.at <= then.wall));
    }
}

#[test]
fn a_damaged_pause_is_no_longer_than_the_longest() {
    let (evictions, pod) = evicted_at(at(100));
    let mut record = evictions.records().next().unwrap().clone();
    record.pause_seconds = u64::MAX;
    let restored = Evictions::restored([record], at(100));
    let waiting = restored.waiting(&pod.key, &pressure(&[]), true, at(100)).unwrap();
    assert_eq!(waiting.pause, seconds(1800));
}

#[test]
fn who_was_back_before_a_reboot_is_back_and_its_hour_goes_on() {
    let (mut evictions, pod) = evicted_at(at(100));
    evictions.look(&pressure(&[]), true, at(130));
    let records: Vec<EvictionRecord> = evictions.records().cloned().collect();
    let mut restored = Evictions::restored(records.clone(), now(5, 1_000_000 + 130 + 3599));
    assert!(restored.away().is_empty());
    assert!(!restored.look(&pressure(&[]), true, now(5, 0)).changed);
    assert!(restored.look(&pressure(&[]), true, now(6, 0)).changed);
    // A time in the future counts from now.
    let mut set_back = Evictions::restored(records, now(5, 0));
    assert!(!set_back.look(&pressure(&[]), true, now(5 + 3599, 0)).changed);
    assert_eq!(set_back.evict(&pod.candidate(), MEMORY, hold(), now(3600, 0)).count, 2);
}
