//! Durations as Go writes them (`1h30m`, `1.5s`, `100ms`), the notation of KubeletConfiguration.

use std::time::Duration;

/// Units with their length in nanoseconds; longer names first, so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a Go duration that is not negative. `None` when `text` is none (`5`, `1d`, `-1s`, `""`).
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let number_len = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, after) = rest.split_at(number_len);
        let (unit, length) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        nanos = nanos.checked_add(whole.checked_mul(length)?)?;
        let mut place = length;
        for digit in fraction.bytes() {
            place /= 10;
            nanos = nanos.checked_add(u64::from(digit - b'0') * place)?;
        }
        rest = &after[unit.len()..];
    }
    i64::try_from(nanos).ok().map(|_| Duration::from_nanos(nanos))
}

/// Prints a duration as Go does: `1h30m0s`, `1.5s`, `100ms`, `0s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000_000_000 {
        let (unit, length) = [("ms", 1_000_000), ("µs", 1_000), ("ns", 1)]
            .into_iter()
            .find(|(_, l)| nanos >= *l)
            .unwrap_or(("ns", 1));
        return format!("{}{unit}", decimal(nanos, length));
    }
    let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        (_, _) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Whole seconds rounded down to 1, 2 or 5 times a power of ten: for a text that says how long
/// something has gone on, and that is not to be another one every second.
#[must_use]
pub fn rough_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs();
    let power = seconds.checked_ilog10().map_or(0, |digits| 10_u64.pow(digits));
    let steps = [5, 2, 1].map(|step| power * step);
    steps.into_iter().find(|step| *step <= seconds).unwrap_or(0)
}

fn decimal(amount: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let (whole, fraction) = (amount / unit, amount % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rough_seconds_change_rarely() {
        for (seconds, rough) in
            [(0, 0), (1, 1), (4, 2), (5, 5), (9, 5), (10, 10), (31, 20), (99, 50), (7200, 5000)]
        {
            assert_eq!(rough_seconds(Duration::from_secs(seconds)), rough, "{seconds}");
        }
        let day = (0..86_400).map(|s| rough_seconds(Duration::from_secs(s)));
        let texts: std::collections::BTreeSet<u64> = day.collect();
        assert!(texts.len() < 20, "{texts:?}");
    }

    #[test]
    fn reads_what_go_reads_and_prints_it_back() {
        for (text, millis, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("20s", 20_000, "20s"),
            ("1.5s", 1500, "1.5s"),
            ("100ms", 100, "100ms"),
            ("1h30m5.5s", 5_405_500, "1h30m5.5s"),
            ("5m", 300_000, "5m0s"),
            (".5s", 500, "500ms"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(format_duration(duration), printed);
            assert_eq!(parse_duration(printed), Some(duration));
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["", "5", "1d", "-1s", "s", ".s", "1.2.3s", "1s ", "99999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
