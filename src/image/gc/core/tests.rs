#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const SETTINGS: GcSettings = GcSettings {
    high_percent: 85,
    low_percent: 80,
    minimum_age: Duration::from_secs(120),
    maximum_age: None,
    include_foreign: false,
};

/// Seconds after boot, which was at one million seconds of wall time.
fn at(seconds: u64) -> Now {
    let wall = 1_000_000 + i64::try_from(seconds).unwrap();
    Now { boot: Duration::from_secs(seconds), wall: Timestamp::from_second(wall).unwrap() }
}

fn image(id: &str) -> Present {
    Present {
        id: format!("sha256:{id}"),
        tags: vec![format!("docker.io/library/{id}:1")],
        digests: vec![format!("docker.io/library/{id}@sha256:{}", "a".repeat(64))],
        size: 100,
        pinned: false,
    }
}

/// A pull of the image, which took this second.
fn pull(id: &str, seconds: u64) -> EndedPull {
    EndedPull { id: format!("sha256:{id}"), began: at(seconds).boot, ended: at(seconds) }
}

/// A history in which all of these were pulled one second after another.
fn history(ids: &[&str]) -> ImageHistory {
    let mut history = ImageHistory::default().resumed("boot-1");
    for (n, id) in ids.iter().enumerate() {
        history.pulled(pull(id, u64::try_from(n).unwrap()));
    }
    history
}

fn names(images: &[Removable]) -> Vec<&str> {
    images.iter().map(|image| image.image.name()).map(|name| &name[18..name.len() - 2]).collect()
}

#[test]
fn what_anybody_needs_stays() {
    let ids = ["pinned", "running", "byref", "named", "untagged", "free", "young"];
    let mut present = ids.map(image).to_vec();
    present[0].pinned = true;
    present[4].tags.clear();
    present.push(image("foreign"));
    let mut known = history(&ids[..6]);
    known.pulled(pull("young", 1000));
    let mut in_use = InUse::default();
    in_use.by_container("sha256:running");
    in_use.by_container("byref:1");
    in_use.by_manifest("named:1");
    in_use.by_manifest(&format!("untagged@sha256:{}", "a".repeat(64)));
    let found = plan(&present, &in_use, &known, &SETTINGS, at(1100));
    assert_eq!(names(&found.removable), ["free"]);
    let kept = |name: &str| found.kept[&format!("docker.io/library/{name}:1")];
    assert_eq!(kept("pinned"), KeptBecause::Pinned);
    assert_eq!((kept("running"), kept("byref")), (KeptBecause::InUse, KeptBecause::InUse));
    assert_eq!(kept("named"), KeptBecause::Named);
    assert_eq!(kept("young"), KeptBecause::Young);
    assert_eq!(kept("foreign"), KeptBecause::Foreign);
    assert_eq!(found.kept.len(), 7, "the untagged one by its digest: {:?}", found.kept);
    // Unknown to the history: it is as new as can be.
    let foreign = GcSettings { include_foreign: true, ..SETTINGS };
    let found = plan(&present, &in_use, &known, &foreign, at(1100));
    assert_eq!(found.kept["docker.io/library/foreign:1"], KeptBecause::Young);
    known.observe(&present, &in_use, at(1100).boot, at(1100), |_| false);
    let found = plan(&present, &in_use, &known, &foreign, at(1220));
    assert_eq!(names(&found.removable), ["free", "young", "foreign"]);
}

#[test]
fn the_least_recently_used_goes_first() {
    let ids = ["used-late", "never-late", "used-early", "never-early"];
    let present = ids.map(image);
    let mut known = history(&["never-early", "used-early", "used-late", "never-late"]);
    for (used, seconds) in [("used-early", 500), ("used-late", 600)] {
        let mut in_use = InUse::default();
        in_use.by_container(&format!("{used}:1"));
        known.observe(&present, &in_use, at(seconds).boot, at(seconds), |_| false);
    }
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(1000));
    let order = ["never-early", "never-late", "used-early", "used-late"];
    assert_eq!(names(&found.removable), order);
    let idle: Vec<u64> = found.removable.iter().map(|image| image.idle.as_secs()).collect();
    assert_eq!(idle, [1000, 997, 500, 400]);
    let old = |seconds| {
        let maximum_age = Some(Duration::from_secs(seconds));
        found.too_old(&GcSettings { maximum_age, ..SETTINGS })
    };
    assert_eq!(names(&old(450)), ["never-early", "never-late", "used-early"]);
    assert_eq!(names(&old(1000)), [""; 0]);
    assert_eq!(found.too_old(&SETTINGS), []);
}

#[test]
fn the_history_survives_restarts_and_reboots() {
    let present = ["a", "b"].map(image);
    let mut known = history(&["a", "b"]);
    let mut in_use = InUse::default();
    in_use.by_container("a:1");
    known.observe(&present, &in_use, at(300).boot, at(300), |_| false);
    let text = serde_json::to_string(&known).unwrap();
    let loaded: ImageHistory = serde_json::from_str(&text).unwrap();
    assert_eq!(loaded.images, known.images);
    // The wall clock is set to another decade: within one boot nobody minds.
    let jumped = Now { wall: Timestamp::from_second(2_000_000_000).unwrap(), ..at(400) };
    let same = loaded.clone().resumed("boot-1");
    let found = plan(&present, &InUse::default(), &same, &SETTINGS, jumped);
    assert_eq!(names(&found.removable), ["b", "a"]);
    assert_eq!(found.removable[1].idle, Duration::from_secs(100));
    // After a reboot the wall clock is all there is.
    let next = loaded.resumed("boot-2");
    let later = Now { boot: Duration::from_secs(5), ..at(700) };
    let found = plan(&present, &InUse::default(), &next, &SETTINGS, later);
    assert_eq!(found.removable[1].idle, Duration::from_secs(400));
    // One that has gone back makes everything young.
    let back = Now { wall: Timestamp::UNIX_EPOCH, ..later };
    assert!(plan(&present, &InUse::default(), &next, &SETTINGS, back).removable.is_empty());
}

#[test]
fn the_history_is_saved_for_what_matters() {
    let present = ["a", "b"].map(image);
    let saved = history(&["a", "b"]);
    let mut in_use = InUse::default();
    in_use.by_container("a:1");
    let used_at = |before: &ImageHistory, seconds| {
        let mut known = before.clone();
        known.observe(&present, &in_use, at(seconds).boot, at(seconds), |_| false);
        known
    };
    assert!(!saved.is_worth_saving(&saved));
    let first = used_at(&saved, 300);
    assert!(first.is_worth_saving(&saved), "used for the first time");
    assert!(!used_at(&first, 600).is_worth_saving(&first));
    assert!(used_at(&first, 300 + 3600).is_worth_saving(&first));
    let mut ended = used_at(&first, 600);
    ended.observe(&present, &InUse::default(), at(700).boot, at(700), |_| false);
    assert!(ended.is_worth_saving(&first), "its last use was later than it was saved");
    assert!(!ended.is_worth_saving(&ended));
    let mut pulled = first.clone();
    pulled.pulled(pull("c", 301));
    assert!(pulled.is_worth_saving(&first) && first.is_worth_saving(&pulled));
    assert!(first.clone().resumed("boot-2").is_worth_saving(&first));
}

#[test]
fn an_image_stays_whose_it_was() {
    let present = [image("a")];
    let mut known = ImageHistory::default();
    known.observe(&present, &InUse::default(), at(1).boot, at(1), |_| false);
    // Imported before, and the registry was asked for it again.
    known.pulled(pull("a", 2));
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(900));
    assert_eq!(found.kept["docker.io/library/a:1"], KeptBecause::Foreign);
    // Pulled while the runtime was being asked: not forgotten. Removed and pulled again: ours.
    let other = [image("b")];
    known.observe(&other, &InUse::default(), at(3).boot, at(3), |_| false);
    known.pulled(pull("a", 11));
    known.observe(&other, &InUse::default(), at(10).boot, at(12), |_| false);
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(900));
    assert_eq!(names(&found.removable), ["a"]);
}

#[test]
fn an_image_that_somebody_imports_after_its_removal_is_theirs() {
    let present = ["a", "b"].map(image);
    let mut known = ImageHistory::default();
    known.pulled(pull("a", 1));
    known.pulled(pull("b", 1));
    known.removed(["sha256:a", "sha256:b"]);
    known.pulled(pull("b", 11));
    known.observe(&present, &InUse::default(), at(20).boot, at(20), |_| false);
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(900));
    assert_eq!(names(&found.removable), ["b"]);
    assert_eq!(found.kept["docker.io/library/a:1"], KeptBecause::Foreign);
}

#[test]
fn an_image_that_is_listed_during_its_pull_is_pulled() {
    let present = ["a", "b"].map(image);
    let mut known = ImageHistory::default();
    known.observe(&present[1..], &InUse::default(), at(1).boot, at(1), |_| false);
    known.observe(&present, &InUse::default(), at(11).boot, at(11), |_| false);
    for id in ["a", "b"] {
        known.pulled(EndedPull { began: at(10).boot, ..pull(id, 12) });
    }
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(900));
    assert_eq!(names(&found.removable), ["a"]);
    assert_eq!(found.kept["docker.io/library/b:1"], KeptBecause::Foreign);
}

#[test]
fn an_unknown_image_with_a_record_is_pulled() {
    let present = ["a", "b"].map(image);
    let mut known = ImageHistory::default();
    known.observe(&present[..1], &InUse::default(), at(1).boot, at(1), |_| false);
    // A record of an image that was there before changes nothing.
    known.observe(&present, &InUse::default(), at(2).boot, at(2), |_| true);
    let found = plan(&present, &InUse::default(), &known, &SETTINGS, at(900));
    assert_eq!(names(&found.removable), ["b"]);
    assert_eq!(found.kept["docker.io/library/a:1"], KeptBecause::Foreign);
}

#[test]
fn a_listing_without_any_image_forgets_nothing() {
    let before = history(&["a", "b"]);
    let mut known = before.clone();
    known.observe(&[], &InUse::default(), at(300).boot, at(300), |_| false);
    assert_eq!(known, before);
}

#[test]
fn thresholds_tell_how_much_to_free() {
    for (available, capacity, expected) in [
        (1000, 1000, None),
        // 85 % in use, down to 80.
        (150, 1000, Some(50)),
        (0, 1000, Some(200)),
        // Rounded as the kubelet does: 15.9 % free are 15.
        (159, 1000, Some(41)),
        (160, 1000, None),
        (2000, 1000, None),
        (u64::MAX / 100, u64::MAX, Some(u64::MAX / 5 - u64::MAX / 100)),
    ] {
        assert_eq!(to_free(&SETTINGS, available, capacity), expected, "{available}/{capacity}");
    }
    let off = GcSettings { high_percent: 100, ..SETTINGS };
    assert!(off.is_off() && !SETTINGS.is_off());
    assert_eq!(to_free(&off, 50, 1000), None);
}

#[test]
fn events_are_worded_as_the_kubelet_words_them() {
    let event = not_enough(1 << 30, 10 << 30, 4096);
    assert_eq!(event.reason, "FreeDiskSpaceFailed");
    let start = "Insufficient free disk space on the node's image filesystem (90% of 10.0GiB used). \
                 Failed to free sufficient space by deleting unused images (freed 4096 bytes).";
    assert!(event.message.starts_with(start), "{}", event.message);
    assert_eq!(failed("x".to_owned()).reason, "ImageGCFailed");
    for (bytes, text) in [(0, "0.0B"), (1023, "1023.0B"), (1536, "1.5KiB"), (5 << 40, "5120.0GiB")]
    {
        assert_eq!(binary(bytes), text);
    }
}
