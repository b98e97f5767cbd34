//! Names of the log files of a container.

/// The log files of one directory that are looked at in one go. A container that may write there
/// can make any number.
pub const MOST_LOG_NAMES: usize = 10_000;

/// Parts of the name of a log file: `0.log`, `0.log.20261124-123548.123456`, and the latter with
/// `.gz` when it is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogName<'a> {
    /// Which instance of the container has written it.
    pub restart_count: u32,
    /// What it holds.
    pub kind: LogKind<'a>,
}

/// What a log file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind<'a> {
    /// The runtime writes it.
    Current,
    /// A rotation has set it aside.
    SetAside {
        /// What stands between `.log.` and `.gz`: the time of the rotation.
        stamp: &'a str,
        /// It is compressed (gzip).
        compressed: bool,
    },
    /// A compressed file that is being written, or was when its writer ended.
    Unfinished,
}

impl<'a> LogName<'a> {
    /// Reads a file's name; `None` for the name of something else.
    #[must_use]
    pub fn parse(file: &'a str) -> Option<Self> {
        let (number, rest) = file.split_once(".log")?;
        let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let restart_count = number.parse().ok().filter(|_| plain)?;
        let kind = match rest.strip_prefix('.') {
            None if rest.is_empty() => LogKind::Current,
            None => return None,
            Some(rest) if rest.ends_with(".tmp") => LogKind::Unfinished,
            Some(rest) => match rest.strip_suffix(".gz") {
                Some(stamp) => LogKind::SetAside { stamp, compressed: true },
                None => LogKind::SetAside { stamp: rest, compressed: false },
            },
        };
        Some(Self { restart_count, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_log_files_are_read() {
        let set_aside = |stamp, compressed| Some(LogKind::SetAside { stamp, compressed });
        for (name, restart_count, kind) in [
            ("0.log", 0, Some(LogKind::Current)),
            ("12.log.20260101-000000", 12, set_aside("20260101-000000", false)),
            ("3.log.20260101-000000.000001.gz", 3, set_aside("20260101-000000.000001", true)),
            ("3.log.1", 3, set_aside("1", false)),
            ("3.log.20260101-000000.gz.tmp", 3, Some(LogKind::Unfinished)),
            ("x.log", 0, None),
            (".log", 0, None),
            ("1.logs", 0, None),
            ("1.txt", 0, None),
            ("-1.log", 0, None),
            ("99999999999.log", 0, None),
        ] {
            let expected = kind.map(|kind| LogName { restart_count, kind });
            assert_eq!(LogName::parse(name), expected, "{name}");
        }
    }
}
