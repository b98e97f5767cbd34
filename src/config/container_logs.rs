//! How container logs are rotated.

use super::read::{Reader, Zero};
use crate::{log_rotation::RotationSettings, model::Quantity};
use serde_json::Value as Json;
use std::time::Duration;

/// The kubelet's lower limit of `containerLogMonitorInterval`.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(3);
/// Below it, a node could keep no logs to speak of.
const SMALLEST_TOTAL: u64 = 1 << 20;

pub(super) fn settings(r: &mut Reader<'_>, nodelet: &mut Reader<'_>) -> RotationSettings {
    let default = RotationSettings::default();
    let most = i64::from(i32::MAX);
    let files = r.int("containerLogMaxFiles", Zero::Value, 2..=most);
    let workers = r.int("containerLogMaxWorkers", Zero::Value, 1..=most);
    let size = |number: i64| usize::try_from(number).ok();
    RotationSettings {
        max_size: match bytes(r, "containerLogMaxSize") {
            // Zero is what a field has that was not set.
            None | Some(Some(0)) => default.max_size,
            Some(size) => size,
        },
        max_files: files.and_then(size).unwrap_or(default.max_files),
        workers: workers.and_then(size).unwrap_or(default.workers),
        interval: r
            .duration("containerLogMonitorInterval", Zero::Value, SHORTEST_INTERVAL..=Duration::MAX)
            .unwrap_or(default.interval),
        max_total_size: total(nodelet),
    }
}

fn total(nodelet: &mut Reader<'_>) -> Option<u64> {
    let path = "containerLogMaxTotalSize";
    let (text, place) = nodelet.filled_text(path)?;
    let total = bytes(nodelet, path)?.filter(|bytes| *bytes >= SMALLEST_TOTAL);
    if total.is_none() {
        nodelet.invalid(place, path, Json::from(text), "must be 1Mi or more");
    }
    total
}

/// A quantity in bytes, `Some(None)` for a negative one. The table has checked that it is one.
fn bytes(r: &Reader<'_>, path: &str) -> Option<Option<u64>> {
    let quantity = Quantity::parse(r.filled_text(path)?.0).ok()?;
    Some(u64::try_from(quantity.value()).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::config::parse_and_validate;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    const OWN: &str = "---\napiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";

    fn read(text: &str) -> RotationSettings {
        let loaded = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap();
        assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
        loaded.config.logs
    }

    #[test]
    fn logs_are_rotated_as_configured() {
        let default = RotationSettings::default();
        assert_eq!(read(""), default);
        let unset = "containerLogMaxFiles: null\ncontainerLogMonitorInterval: null\n";
        assert_eq!(read(unset), default);
        let all = format!(
            "containerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 2\ncontainerLogMaxWorkers: 3\n\
             containerLogMonitorInterval: 3s\n{OWN}containerLogMaxTotalSize: 100Mi\n"
        );
        let expected = RotationSettings {
            max_size: Some(1 << 20),
            max_files: 2,
            workers: 3,
            interval: Duration::from_secs(3),
            max_total_size: Some(100 << 20),
        };
        assert_eq!(read(&all), expected);
        let off = RotationSettings { max_size: None, ..default };
        assert_eq!(read("containerLogMaxSize: \"-1\"\n"), off);
    }

    #[test]
    fn limits_that_keep_no_logs_are_refused() {
        for (text, problem) in [
            (
                "containerLogMaxFiles: 1\n".to_owned(),
                "containerLogMaxFiles: Invalid value: 1: must be 2 or more",
            ),
            (
                "containerLogMaxFiles: 0\n".to_owned(),
                "containerLogMaxFiles: Invalid value: 0: must be 2 or more",
            ),
            (
                "containerLogMaxWorkers: -1\n".to_owned(),
                "containerLogMaxWorkers: Invalid value: -1: must be 1 or more",
            ),
            (
                "containerLogMaxWorkers: 0\n".to_owned(),
                "containerLogMaxWorkers: Invalid value: 0: must be 1 or more",
            ),
            (
                "containerLogMonitorInterval: 0s\n".to_owned(),
                "containerLogMonitorInterval: Invalid value: \"0s\": must be 3s or more",
            ),
            (
                "containerLogMonitorInterval: 2s\n".to_owned(),
                "containerLogMonitorInterval: Invalid value: \"2s\": must be 3s or more",
            ),
            (
                "containerLogMaxSize: much\n".to_owned(),
                "containerLogMaxSize: Invalid value: \"much\": must be a quantity",
            ),
            (
                format!("{OWN}containerLogMaxTotalSize: 1023Ki\n"),
                "containerLogMaxTotalSize: Invalid value: \"1023Ki\": must be 1Mi or more",
            ),
        ] {
            let error = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(problem), "{text}: {told}");
            assert_eq!(error.mistakes.len(), 1, "{told}");
        }
    }
}
