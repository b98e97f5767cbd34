use super::{
    files::{NodeLogs, OldFile, SetAside, Tidying, over_total},
    *,
};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 10 * MIB;
const INTERVAL: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn look(growth: &mut Growth, size: u64, now: Duration) -> NextLook {
    growth.look(size, now, LIMIT, INTERVAL)
}

/// The sizes at which the files of a container are rotated that writes `rate` bytes a second from
/// `begin` on. Its first bytes reach a new file with a delay.
fn rotated_at(rate: u64, begin: Duration) -> Vec<u64> {
    let written = |from: Duration, now: Duration| {
        let nanos = u128::from(rate) * now.saturating_sub(from).as_nanos();
        u64::try_from(nanos / 1_000_000_000).unwrap()
    };
    let mut growth = Growth::new(Duration::ZERO);
    let first = NextLook::first(Duration::ZERO);
    // The log is quiet at first: a watch reports the first byte.
    assert_eq!(look(&mut growth, 0, first), NextLook::Quiet(INTERVAL));
    growth.woken(begin);
    let (mut since, mut now) = (begin, NextLook::first(begin));
    let mut sizes = Vec::new();
    while sizes.len() < 5 {
        let size = written(since, now);
        match look(&mut growth, size, now) {
            NextLook::Rotate => {
                sizes.push(size);
                since = now + ms(2);
                now = growth.rotated(now, LIMIT);
            }
            NextLook::At(due) => now = due,
            NextLook::Quiet(due) => panic!("quiet at {now:?} until {due:?}, size {size}"),
        }
    }
    sizes
}

#[test]
fn a_log_is_rotated_close_to_its_limit_at_any_rate() {
    for rate in [1_000, 100_000, MIB, 30 * MIB, 100 * MIB, 200_000_000] {
        let sizes = rotated_at(rate, ms(300_000));
        // What is written between two looks that are as close as they get. For the first file also
        // what is written until the first look.
        let close = LIMIT..=LIMIT + (rate / 50).max(LIMIT / 20);
        assert!((LIMIT..=LIMIT + rate / 20 + LIMIT / 20).contains(&sizes[0]), "{rate}: {sizes:?}");
        assert!(sizes[1..].iter().all(|size| close.contains(size)), "{rate}: {sizes:?}");
    }
}

#[test]
fn a_log_that_grows_slowly_is_looked_at_on_whole_seconds() {
    let mut growth = Growth::new(ms(0));
    assert_eq!(look(&mut growth, 100, ms(100)), NextLook::At(ms(1000)));
    assert_eq!(look(&mut growth, 200, ms(1003)), NextLook::At(ms(2000)));
    assert_eq!(look(&mut growth, 300, ms(2700)), NextLook::At(ms(4000)));
    // Nothing more: the next look is only for a hint that gets lost.
    assert_eq!(look(&mut growth, 300, ms(4000)), NextLook::Quiet(ms(10_000)));
    assert_eq!(look(&mut growth, 300, ms(10_001)), NextLook::Quiet(ms(20_000)));
    // Truncated by someone.
    assert_eq!(look(&mut growth, 0, ms(20_000)), NextLook::At(ms(21_000)));
    assert_eq!(growth.size(), 0);
    // A clock that stands still.
    assert_eq!(look(&mut growth, LIMIT - 1, ms(20_000)), NextLook::At(ms(20_010)));
    assert_eq!(look(&mut growth, LIMIT, ms(20_000)), NextLook::Rotate);
}

#[test]
fn current_files_take_at_most_half_of_the_total() {
    assert_eq!(share(LIMIT, None, 1000, MIB), LIMIT);
    assert_eq!(share(LIMIT, Some(100 * MIB), 1, 0), LIMIT);
    assert_eq!(share(LIMIT, Some(100 * MIB), 0, 0), LIMIT);
    assert_eq!(share(LIMIT, Some(100 * MIB), 50, 0), MIB);
    assert_eq!(share(LIMIT, Some(100 * MIB), 5, 10 * MIB), 8 * MIB);
    assert_eq!(share(LIMIT, Some(100 * MIB), 5, 90 * MIB), 5 * MIB);
    assert_eq!(share(LIMIT, Some(MIB), 1000, 0), 16 << 10);
}

#[test]
fn stamps_are_never_used_twice_and_keep_their_order() {
    let now: jiff::Timestamp = "2026-11-24T12:35:48.123456789Z".parse().unwrap();
    let next = |names: &[&str]| SetAside::of(names.iter().copied(), 0).next_stamp(now);
    assert_eq!(next(&[]), "20261124-123548.123456");
    assert_eq!(next(&["0.log", "1.log.20261124-123549.000000"]), "20261124-123548.123456");
    for (newest, expected) in [
        ("0.log.20261124-123548", "20261124-123548.123456"),
        ("0.log.20261124-123548.123456", "20261124-123548.123457"),
        ("0.log.20261124-123548.123456.gz", "20261124-123548.123457"),
        // Set back, or the kubelet's, which is in local time.
        ("0.log.20261124-135959.999999", "20261124-140000.000000"),
        ("0.log.20261124-135959", "20261124-135959.000001"),
        // Another program's.
        ("0.log.1", "20261124-123548.123456"),
        ("0.log.29991324-123548", "20261124-123548.123456"),
        ("0.log.20261124-13595", "20261124-123548.123456"),
        ("0.log.20261124-135959.x", "20261124-123548.123456"),
        ("0.log.20261124-135959.1234567", "20261124-123548.123456"),
    ] {
        assert_eq!(next(&["0.log", newest]), expected, "{newest}");
    }
    let first = "20261124-123548";
    assert!(*first < *next(&[]), "the kubelet's stamp of the same second is older");
}

#[test]
fn the_oldest_files_are_surplus() {
    let names = [
        "3.log",
        "3.log.20260101-000003",
        "3.log.20260101-000001.gz",
        "3.log.20260101-000002",
        "3.log.20260101-000002.gz",
        "3.log.backup",
        "2.log.20250101-000000",
    ];
    let set_aside = SetAside::of(names, 3);
    let surplus = |keep| set_aside.surplus(keep).collect::<Vec<_>>();
    assert!(surplus(3).is_empty());
    assert_eq!(surplus(2), ["20260101-000001"]);
    assert_eq!(surplus(0), ["20260101-000001", "20260101-000002", "20260101-000003"]);
}

#[test]
fn all_but_the_newest_file_are_compressed() {
    let names = [
        "0.log",
        "0.log.20260101-000001.gz",
        "0.log.20260101-000002",
        "0.log.20260101-000003",
        "0.log.20260101-000003.gz",
        "0.log.20260101-000004",
        "0.log.20260101-000005",
        "0.log.20260101-000004.gz.tmp",
        "0.log.mine",
        "1.log.20260101-000001.gz.tmp",
    ];
    let set_aside = SetAside::of(names, 0);
    let expected = Tidying {
        unfinished: &["0.log.20260101-000004.gz.tmp".to_owned()],
        doubled: vec!["20260101-000003"],
        to_compress: vec!["20260101-000002", "20260101-000004"],
    };
    assert_eq!(set_aside.tidying(), expected);
}

fn set_aside(place: u8, stamp: &str, size: u64) -> OldFile<u8> {
    OldFile { place, stamp: stamp.to_owned(), size, is_last: false }
}

/// The places of the files that are removed.
fn removed(total: u64, current: u64, limit: u64, old: &[OldFile<u8>]) -> Vec<u8> {
    let logs = NodeLogs { total, current, ended: 0, old: old.to_vec() };
    over_total(logs, limit).into_iter().map(|old| old.place).collect()
}

#[test]
fn the_oldest_files_of_the_node_go_first() {
    let files = [set_aside(1, "20260103-000000", 5), set_aside(2, "20260101-000000", 3)];
    let removed = |total, limit| removed(total, total - 8, limit, &files);
    assert!(removed(10, 10).is_empty());
    assert_eq!(removed(11, 10), [2]);
    assert_eq!(removed(14, 10), [2, 1]);
    assert_eq!(removed(100, 10), [2, 1], "the current files alone take more");
}

#[test]
fn last_files_of_ended_instances_go_above_half() {
    let last = |place, stamp, size| OldFile { is_last: true, ..set_aside(place, stamp, size) };
    let files = [
        set_aside(1, "20260101-000000", 2),
        last(2, "20260103-000000", 3),
        last(3, "20260102-000000.000001", 3),
    ];
    let removed = |total, current| removed(total, current, 10, &files);
    assert!(removed(10, 8).is_empty());
    assert_eq!(removed(12, 5), [1], "the current files take half");
    assert_eq!(removed(13, 5), [1, 3], "that is not enough");
    assert_eq!(removed(12, 7), [3], "they take more than half");
    assert_eq!(removed(14, 7), [3, 1]);
    assert_eq!(removed(20, 18), [3, 2, 1], "instances that run take more than half");
}

#[test]
fn the_end_of_a_log_does_not_go_before_its_older_parts() {
    let last = OldFile { is_last: true, ..set_aside(1, "20260103-000000", 3) };
    let files = [set_aside(1, "20260102-000000", 2), set_aside(2, "20260101-000000", 2), last];
    let logs = |total| NodeLogs { total, current: 8, ended: 3, old: files.to_vec() };
    let removed = |total| over_total(logs(total), 10);
    assert_eq!(removed(11), files[..1]);
    assert_eq!(removed(13), [files[0].clone(), files[2].clone()]);
}
