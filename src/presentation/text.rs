//! Lengths of time in kubectl's words, and text from elsewhere on one line.

use jiff::Timestamp;
use std::time::Duration;

/// A length of time in kubectl's words: `45s`, `3m12s`, `15m`, `5h30m`, `2d`, `1y30d`.
pub(crate) fn age(length: Duration) -> String {
    let seconds = length.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |whole: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{small}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The age of something that happened at `then`; `0s` for the future.
pub(crate) fn age_at(then: Timestamp, now: Timestamp) -> String {
    age(Duration::try_from(now.duration_since(then)).unwrap_or(Duration::ZERO))
}

/// `2026-11-20T10:00:00Z (3m12s ago)`
pub(crate) fn time_and_age(then: Timestamp, now: Timestamp) -> String {
    format!("{then:.0} ({} ago)", age_at(then, now))
}

/// Text from elsewhere on one line, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn ages_read_like_kubectls() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (192, "3m12s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (5 * 3600 + 1800, "5h30m"),
            (8 * 3600, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (50 * 3600, "2d2h"),
            (8 * 86_400, "8d"),
            (729 * 86_400, "729d"),
            (730 * 86_400, "2y"),
            (760 * 86_400, "2y30d"),
            (9 * 365 * 86_400, "9y"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text, "{seconds}");
        }
    }

    #[test]
    fn the_future_has_no_age() {
        let now: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        assert_eq!(age_at("2026-11-20T11:00:00Z".parse().unwrap(), now), "0s");
        let then = "2026-11-20T09:59:00.123456789Z".parse().unwrap();
        assert_eq!(time_and_age(then, now), "2026-11-20T09:59:00Z (59s ago)");
    }
}
