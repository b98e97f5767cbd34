//! Tables: what is written becomes which thresholds, and what is refused.

use super::*;

fn shown(thresholds: &[Threshold]) -> String {
    let text = |t: &Threshold| match t.min_reclaim {
        Some(reclaim) => format!("{t}+{reclaim}"),
        None => t.to_string(),
    };
    thresholds.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn values_are_quantities_or_parts_of_the_capacity() {
    for (text, capacity, value, printed) in [
        ("100Mi", 7, 100 * MI, "100Mi"),
        ("1.5Gi", 7, 1536 * MI, "1536Mi"),
        ("64M", 7, 64_000_000, "64M"),
        ("1000", 7, 1000, "1k"),
        ("1", 7, 1, "1"),
        ("500m", 7, 1, "1"),
        ("10%", 1000, 100, "10%"),
        ("10%", 999, 99, "10%"),
        ("12.5%", 1000, 125, "12.5%"),
        ("0.000001%", 100_000_000, 1, "0.000001%"),
        ("99.9%", u64::MAX, 18_428_297_329_635_842_063, "99.9%"),
        ("+5%", 100, 5, "5%"),
    ] {
        let all = thresholds(&format!("memory.available={text}"), "", "", "");
        let [threshold] = all[..] else { panic!("{text}: {all:?}") };
        assert_eq!(threshold.value.resolve(capacity), value, "{text}");
        assert_eq!(threshold.to_string(), format!("memory.available<{printed}"));
        let again = format!("memory.available={}", threshold.value);
        assert_eq!(thresholds(&again, "", "", ""), all, "reads what it prints");
    }
}

#[test]
fn amounts_are_shown_in_the_largest_whole_unit() {
    for (number, in_binary, in_decimal) in [
        (0, "0", "0"),
        (1023, "1023", "1023"),
        (1024, "1Ki", "1024"),
        (62_717_952, "61248Ki", "62717952"),
        (50_000, "50000", "50k"),
        (100 * MI, "100Mi", "104857600"),
        (1 << 60, "1Ei", "1152921504606846976"),
        (u64::MAX, "18446744073709551615", "18446744073709551615"),
    ] {
        assert_eq!((binary(number).as_str(), decimal(number).as_str()), (in_binary, in_decimal));
    }
    assert_eq!(shortest(64_000_000), "64M");
    assert_eq!(shortest(GI), "1Gi");
    assert_eq!(shortest(10_112_000), "9875Ki", "10112k is as long");
    assert_eq!(Amount::percent(10).shown(50_000), "5000");
    assert_eq!(Amount::Number(5000).shown(50_000), "5k");
    for (signal, text) in [
        (Signal::MemoryAvailable, "2000Ki"),
        (Signal::AllocatableMemoryAvailable, "2000Ki"),
        (Signal::NodefsAvailable, "2000Ki"),
        (Signal::NodefsInodesFree, "2048k"),
        (Signal::PidAvailable, "2048k"),
    ] {
        assert_eq!(measured(signal, 2_048_000), text, "{signal}");
    }
}

#[test]
fn nothing_and_everything_are_off() {
    for off in ["0%", "100%", "0.0%", "100.0%"] {
        assert_eq!(thresholds(&format!("pid.available={off}"), "", "", ""), [], "{off}");
        // And need no grace period.
        assert_eq!(thresholds("", &format!("pid.available={off}"), "", ""), [], "{off}");
    }
}

#[test]
fn thresholds_are_sorted_with_grace_and_minimum_reclaim() {
    let all = thresholds(
        "pid.available=10 memory.available=100Mi nodefs.available=10%",
        "memory.available=200Mi nodefs.available=15%",
        "memory.available=1m30s nodefs.available=0s",
        "memory.available=50Mi nodefs.available=1% pid.available=0",
    );
    assert_eq!(
        shown(&all),
        "memory.available<100Mi+50Mi memory.available<200Mi for 1m30s+50Mi \
         nodefs.available<10%+1% nodefs.available<15%+1% pid.available<10"
    );
    let hard: Vec<bool> = all.iter().map(Threshold::is_hard).collect();
    assert_eq!(hard, [true, false, true, true, true], "no grace period is none");
    let same = thresholds("pid.available=5", "pid.available=5", "pid.available=0s", "");
    assert_eq!(shown(&same), "pid.available<5", "once");
    assert_eq!(all[0].relieved_at(GI), 150 * MI);
    assert_eq!(all[4].relieved_at(GI), 10);
}

#[test]
fn defaults_are_the_kubelets() {
    let default = EvictionSettings::default();
    assert_eq!(
        shown(&default.thresholds),
        "memory.available<100Mi allocatableMemory.available<100Mi nodefs.available<10% \
         nodefs.inodesFree<5% imagefs.available<15% imagefs.inodesFree<5%"
    );
    assert_eq!((default.transition, default.max_pod_grace), (seconds(300), 0));
    assert_eq!(default.static_pods, StaticPods::Ranked);
    assert_eq!(default.memory_signal, MemorySignal::WorkingSet);
    assert!(default.local_storage_limits);
}

#[test]
fn missing_defaults_are_merged_when_asked_for() {
    let written = Written {
        hard: entries("memory.available=1Gi"),
        merge_defaults: true,
        ..Written::default()
    };
    assert_eq!(
        shown(&parse(&written).unwrap().thresholds),
        "memory.available<1Gi nodefs.available<10% nodefs.inodesFree<5% imagefs.available<15% \
         imagefs.inodesFree<5%"
    );
    // What is switched off is named.
    let off = Written { hard: entries("nodefs.available=0%"), ..written };
    assert!(!shown(&parse(&off).unwrap().thresholds).contains("nodefs.available"));
}

#[test]
fn only_hard_memory_counts_for_all_pods_together() {
    let written = Written {
        hard: entries("memory.available=100Mi pid.available=5"),
        soft: entries("memory.available=200Mi"),
        soft_grace: entries("memory.available=1m"),
        enforce_pods: true,
        ..Written::default()
    };
    assert_eq!(
        shown(&parse(&written).unwrap().thresholds),
        "memory.available<100Mi memory.available<200Mi for 1m0s \
         allocatableMemory.available<100Mi pid.available<5"
    );
}

#[test]
fn what_is_wrong_names_its_key() {
    for (setting, entry, want) in [
        (Setting::Hard, "memory=1Gi", "unsupported eviction signal memory"),
        (Setting::Soft, "x=1Gi", "unsupported eviction signal x"),
        (Setting::SoftGrace, "x=1m", "unsupported eviction signal x"),
        (Setting::MinReclaim, "x=1Gi", "unsupported eviction signal x"),
        (
            Setting::Hard,
            "pid.available=many",
            "eviction threshold pid.available must be a quantity like 100Mi, or a percentage like 10%: many",
        ),
        (
            Setting::Hard,
            "pid.available=1e1%",
            "eviction threshold pid.available must be a quantity like 100Mi, or a percentage like 10%: 1e1%",
        ),
        (
            Setting::Hard,
            "pid.available=%",
            "eviction threshold pid.available must be a quantity like 100Mi, or a percentage like 10%: %",
        ),
        (Setting::Hard, "pid.available=0", "eviction threshold pid.available must be positive: 0"),
        (
            Setting::Hard,
            "pid.available=-5",
            "eviction threshold pid.available must be positive: -5",
        ),
        (
            Setting::Hard,
            "pid.available=-500m",
            "eviction threshold pid.available must be positive: -500m",
        ),
        (
            Setting::Hard,
            "pid.available=-1%",
            "eviction percentage threshold pid.available must be >= 0%: -1%",
        ),
        (
            Setting::Hard,
            "pid.available=100.5%",
            "eviction percentage threshold pid.available must be <= 100%: 100.5%",
        ),
        (
            Setting::Soft,
            "pid.available=5",
            "grace period must be specified for the soft eviction threshold pid.available",
        ),
        (
            Setting::SoftGrace,
            "pid.available=-1m",
            "grace period of the soft eviction threshold pid.available must be a duration like 1m30s that is not negative: -1m",
        ),
        (
            Setting::MinReclaim,
            "pid.available=-1",
            "minimum reclaim of pid.available must not be negative: -1",
        ),
        (
            Setting::MinReclaim,
            "pid.available=0%",
            "minimum reclaim of pid.available must be more than 0% and at most 100%: 0%",
        ),
        (
            Setting::MinReclaim,
            "pid.available=101%",
            "minimum reclaim of pid.available must be more than 0% and at most 100%: 101%",
        ),
    ] {
        let of = |wanted: Setting| if setting == wanted { entry } else { "" };
        let [hard, soft, grace, reclaim] = Setting::ALL.map(of);
        let wrong = read(hard, soft, grace, reclaim).unwrap_err();
        assert_eq!(wrong.len(), 1, "{entry}: {wrong:?}");
        assert_eq!((wrong[0].setting, wrong[0].to_string().as_str()), (setting, want));
        let (key, value) = entry.split_once('=').unwrap();
        assert_eq!((wrong[0].key.as_str(), wrong[0].value.as_str()), (key, value));
    }
}

#[test]
fn every_mistake_is_told_at_once() {
    let wrong = read(
        "a=1 pid.available=0",
        "memory.available=-1 nodefs.available=5%",
        "nodefs.available=soon b=1s",
        "c=1 pid.available=-1",
    );
    let told: Vec<(&str, String)> =
        wrong.unwrap_err().into_iter().map(|m| (m.setting.name(), m.key)).collect();
    let told: Vec<(&str, &str)> = told.iter().map(|(s, k)| (*s, k.as_str())).collect();
    assert_eq!(
        told,
        [
            ("evictionHard", "a"),
            ("evictionHard", "pid.available"),
            ("evictionSoft", "memory.available"),
            ("evictionSoft", "memory.available"),
            ("evictionSoftGracePeriod", "b"),
            ("evictionSoftGracePeriod", "nodefs.available"),
            ("evictionMinimumReclaim", "c"),
            ("evictionMinimumReclaim", "pid.available"),
        ]
    );
}

#[test]
fn entries_without_effect_are_noticed() {
    let parsed = read(
        "containerfs.available=5% pid.available=5",
        "",
        "pid.available=1m",
        "pid.available=5 nodefs.available=5",
    )
    .unwrap();
    let noticed: Vec<(&str, &str)> =
        parsed.notices.iter().map(|n| (n.setting.name(), n.signal.name())).collect();
    assert_eq!(
        noticed,
        [
            ("evictionHard", "containerfs.available"),
            ("evictionSoftGracePeriod", "pid.available"),
            ("evictionMinimumReclaim", "nodefs.available"),
        ]
    );
    assert_eq!(shown(&parsed.thresholds), "pid.available<5+5");
}

#[test]
fn containerfs_follows_the_file_system_that_it_lies_on() {
    let all = thresholds(
        "nodefs.available=10% imagefs.available=15% nodefs.inodesFree=1 imagefs.inodesFree=2 pid.available=3",
        "",
        "",
        "nodefs.available=1Gi",
    );
    let own =
        "nodefs.available<10%+1Gi nodefs.inodesFree<1 imagefs.available<15% imagefs.inodesFree<2";
    for (layout, want) in [
        (DiskLayout::Single, "containerfs.available<10%+1Gi containerfs.inodesFree<1"),
        (DiskLayout::DedicatedImages, "containerfs.available<15% containerfs.inodesFree<2"),
        (DiskLayout::Split, "containerfs.available<10%+1Gi containerfs.inodesFree<1"),
    ] {
        let on = settings(all.clone()).on_machine(layout, true);
        assert_eq!(shown(&on.thresholds), format!("{own} {want} pid.available<3"), "{layout:?}");
        assert_eq!(on.on_machine(layout, true), on, "once and for all");
    }
}

#[test]
fn pods_without_a_common_limit_have_no_memory_left_or_not() {
    let settings = EvictionSettings::default();
    let signal = |limited: bool| {
        let on = settings.on_machine(DiskLayout::Single, limited);
        on.thresholds.iter().any(|t| t.signal == Signal::AllocatableMemoryAvailable)
    };
    assert!(signal(true) && !signal(false));
}

#[test]
fn thresholds_that_would_always_be_met_are_refused() {
    let check = |hard: &str, reclaim: &str, capacity: u64| {
        let settings = settings(thresholds(hard, "", "", reclaim));
        let capacities = BTreeMap::from([(Signal::MemoryAvailable, capacity)]);
        let told = settings.check_against(&capacities).map_err(|wrong| wrong[0].to_string());
        told.err()
    };
    assert_eq!(check("memory.available=1Gi", "", GI + 1), None);
    assert_eq!(
        check("memory.available=1Gi", "", GI).unwrap(),
        "eviction threshold memory.available<1Gi must be below the capacity: 1Gi"
    );
    assert_eq!(
        check("memory.available=90%", "memory.available=11%", GI).unwrap(),
        "eviction threshold memory.available<90% must be below the capacity, together with its minimum reclaim of 11%: 1Gi"
    );
    assert_eq!(check("memory.available=99.9%", "", GI), None);
    assert_eq!(check("pid.available=99999999", "", GI), None, "its capacity is not known");
    assert_eq!(check("memory.available=1Gi", "", 0), None, "not known either");
    let two = settings(thresholds(
        "memory.available=1Gi",
        "memory.available=2Gi",
        "memory.available=1m",
        "",
    ));
    let wrong = two.check_against(&BTreeMap::from([(Signal::MemoryAvailable, GI)])).unwrap_err();
    assert_eq!(wrong.len(), 2);
}
