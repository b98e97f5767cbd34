//! How long pods have when the machine shuts down.

use super::{
    read::{Reader, Zero},
    tree::Tree,
};
use crate::model::{ShutdownPeriod, ShutdownPeriods, format_duration};
use serde_json::Value as Json;
use std::{collections::BTreeSet, time::Duration};

const TOTAL: &str = "shutdownGracePeriod";
const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";

/// What an agent does under systemd that was told nothing: a pod's default grace period is 30 s,
/// and systemd itself gives a service three times as much.
pub(super) fn under_systemd() -> ShutdownPeriods {
    ShutdownPeriods::of_total(Duration::from_secs(30), Duration::from_secs(10))
}

/// The groups with their times; `None` when the configuration has no such field. A zero counts as
/// set.
pub(super) fn periods(r: &mut Reader<'_>) -> Option<ShutdownPeriods> {
    let total = seconds(r, TOTAL);
    let critical = seconds(r, CRITICAL);
    let groups = by_priority(r);
    let positive = |time: Option<Duration>| time.is_some_and(|time| !time.is_zero());
    if let Some(groups) = groups.filter(|groups| !groups.is_empty()) {
        for (path, time) in [(TOTAL, total), (CRITICAL, critical)] {
            if let (true, Some(time)) = (positive(time), time) {
                let must = format!("must not be set together with {BY_PRIORITY}");
                invalid(r, path, time, &must);
            }
        }
        return Some(ShutdownPeriods::new(groups));
    }
    if let Some(time) = critical.filter(|critical| *critical > total.unwrap_or_default()) {
        invalid(r, CRITICAL, time, &format!("must not be longer than {TOTAL}"));
    }
    let said = [TOTAL, CRITICAL, BY_PRIORITY].iter().any(|path| r.tree.get(path).is_some());
    let (total, critical) = (total.unwrap_or_default(), critical.unwrap_or_default());
    said.then(|| match total.is_zero() {
        true => ShutdownPeriods::default(),
        false => ShutdownPeriods::of_total(total, critical),
    })
}

fn invalid(r: &mut Reader<'_>, path: &str, time: Duration, must: &str) {
    if let Some(tree) = r.tree.get(path) {
        r.invalid(tree.place(), path, Json::from(format_duration(time)), must);
    }
}

/// Nothing, or a second at least.
fn seconds(r: &mut Reader<'_>, path: &str) -> Option<Duration> {
    let time = r.duration(path, Zero::Value, Duration::ZERO..=Duration::MAX)?;
    if !time.is_zero() && time < Duration::from_secs(1) {
        invalid(r, path, time, "must be 0s, or 1s or more");
        return None;
    }
    Some(time)
}

fn by_priority(r: &mut Reader<'_>) -> Option<Vec<ShutdownPeriod>> {
    let Some(Tree::List(_, items)) = r.tree.get(BY_PRIORITY) else { return None };
    let mut seen = BTreeSet::new();
    let mut groups = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let number = |name: &str| match item.get(name) {
            Some(Tree::Leaf(place, json)) => (json.as_i64().unwrap_or_default(), place),
            Some(Tree::Object(..) | Tree::List(..)) | None => (0, item.place()),
        };
        let (priority, at) = number("priority");
        if !seen.insert(priority) {
            let path = format!("{BY_PRIORITY}[{index}].priority");
            r.invalid(at, &path, priority, "must be unique");
        }
        let (seconds, at) = number("shutdownGracePeriodSeconds");
        match (i32::try_from(priority), u32::try_from(seconds)) {
            (Ok(priority), Ok(seconds)) => groups.push(ShutdownPeriod { priority, seconds }),
            (_, Err(_)) => {
                let path = format!("{BY_PRIORITY}[{index}].shutdownGracePeriodSeconds");
                r.invalid(at, &path, seconds, "must be between 0 and 4294967295");
            }
            // The type of the field was checked before.
            (Err(_), Ok(_)) => {}
        }
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::config::parse_and_validate;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    /// Priority and seconds of each group.
    fn read(text: &str) -> Option<Vec<(i32, u32)>> {
        let loaded = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap();
        assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
        let periods = loaded.config.shutdown?;
        Some(periods.groups().iter().map(|group| (group.priority, group.seconds)).collect())
    }

    #[test]
    fn the_groups_come_from_either_the_two_keys_or_the_list() {
        let critical = crate::model::SYSTEM_CRITICAL_PRIORITY;
        for (text, groups) in [
            ("", None),
            ("shutdownGracePeriod: null\n", None),
            ("shutdownGracePeriod: 0s\n", Some(vec![])),
            ("shutdownGracePeriodByPodPriority: []\n", Some(vec![])),
            ("shutdownGracePeriod: 30s\n", Some(vec![(0, 30), (critical, 0)])),
            (
                "shutdownGracePeriod: 1m\nshutdownGracePeriodCriticalPods: 10s\n",
                Some(vec![(0, 50), (critical, 10)]),
            ),
            (
                "shutdownGracePeriod: 0s\nshutdownGracePeriodByPodPriority:\n\
                 - {priority: 1000, shutdownGracePeriodSeconds: 5}\n- {shutdownGracePeriodSeconds: 7}\n",
                Some(vec![(0, 7), (1000, 5)]),
            ),
        ] {
            assert_eq!(read(text), groups, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let entry =
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}";
        for (text, problem) in [
            (
                "shutdownGracePeriod: 500ms\n".to_owned(),
                "shutdownGracePeriod: Invalid value: \"500ms\": must be 0s, or 1s or more",
            ),
            (
                "shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 6s\n".to_owned(),
                "shutdownGracePeriodCriticalPods: Invalid value: \"6s\": must not be longer than shutdownGracePeriod",
            ),
            (
                "shutdownGracePeriodCriticalPods: 6s\n".to_owned(),
                "shutdownGracePeriodCriticalPods: Invalid value: \"6s\": must not be longer than shutdownGracePeriod",
            ),
            (
                format!("shutdownGracePeriod: 5s\n{entry}]\n"),
                "shutdownGracePeriod: Invalid value: \"5s\": must not be set together with shutdownGracePeriodByPodPriority",
            ),
            (
                format!("{entry}, {{priority: 1}}]\n"),
                "shutdownGracePeriodByPodPriority[1].priority: Invalid value: 1: must be unique",
            ),
            (
                format!("{entry}, {{shutdownGracePeriodSeconds: -1}}]\n"),
                "shutdownGracePeriodByPodPriority[1].shutdownGracePeriodSeconds: Invalid value: -1: must be between 0 and 4294967295",
            ),
        ] {
            let error = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap_err();
            let told = error.to_string();
            assert!(told.ends_with(problem), "{text}: {told}");
            assert_eq!(error.mistakes.len(), 1, "{told}");
        }
    }
}
