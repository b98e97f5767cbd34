//! Names of the files that a rotation sets aside, and which of them are removed or compressed.

use crate::model::{LogKind, LogName, Order as _};
use jiff::{Timestamp, ToSpan as _, civil::DateTime, tz::TimeZone};
use std::{collections::BTreeMap, time::Duration};

/// A file is compressed only when it was not written to for this long: the runtime may still be
/// writing the last lines to a file that was set aside a moment ago.
pub const SETTLED: Duration = Duration::from_secs(10);
/// The last file of an instance is emptied only when it was not written to for this long: the agent
/// may not know yet that the instance runs.
pub const LAST_FILE_IDLE: Duration = Duration::from_secs(60);

/// The files that rotations of one instance's log have set aside, by stamp, oldest first. Files
/// whose names have no stamp are another program's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    stamps: BTreeMap<String, Forms>,
    /// Names of compressed files that were never finished.
    unfinished: Vec<String>,
}

/// In which forms a file is there: in both when the agent has ended between the end of the
/// compression and the removal of the plain file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Forms {
    plain: bool,
    compressed: bool,
}

impl SetAside {
    /// From the names in a container's log directory.
    #[must_use]
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>, restart_count: u32) -> Self {
        let mut found = Self::default();
        for name in names {
            let Some(parsed) = LogName::parse(name) else { continue };
            if parsed.restart_count != restart_count {
                continue;
            }
            match parsed.kind {
                LogKind::Current => {}
                LogKind::Unfinished => found.unfinished.push(name.to_owned()),
                LogKind::SetAside { stamp, compressed } => {
                    if is_stamp(stamp) {
                        let forms = found.stamps.entry(stamp.to_owned()).or_default();
                        forms.plain |= !compressed;
                        forms.compressed |= compressed;
                    }
                }
            }
        }
        found
    }

    /// The stamp of a file that is set aside now: later than those of all others, also when the
    /// clock was set back.
    #[must_use]
    pub fn next_stamp(&self, now: Timestamp) -> String {
        let now = now.to_zoned(TimeZone::UTC).datetime();
        let newest = self.stamps.keys().next_back().and_then(|stamp| time_of(stamp));
        let after = newest.and_then(|newest| newest.checked_add(1.microsecond()).ok());
        stamp_of(after.map_or(now, |after| after.max(now)))
    }

    /// The stamps of the oldest files, all but `keep`.
    pub fn surplus(&self, keep: usize) -> impl Iterator<Item = &str> {
        self.stamps.keys().take(self.stamps.len().saturating_sub(keep)).map(String::as_str)
    }

    /// What is to be done apart from rotations.
    #[must_use]
    pub fn tidying(&self) -> Tidying<'_> {
        let newest = self.stamps.keys().next_back();
        let mut tidying = Tidying { unfinished: &self.unfinished, ..Tidying::default() };
        for (stamp, forms) in &self.stamps {
            match (forms.plain, forms.compressed) {
                (true, true) => tidying.doubled.push(stamp),
                (true, false) if Some(stamp) != newest => tidying.to_compress.push(stamp),
                (true | false, _) => {}
            }
        }
        tidying
    }
}

/// What is to be done apart from rotations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tidying<'a> {
    /// Names of files to be removed: compressions that were never finished.
    pub unfinished: &'a [String],
    /// Stamps whose plain file is to be removed: they have a compressed one.
    pub doubled: Vec<&'a str>,
    /// Stamps whose file is to be compressed, oldest first: all but the newest, which log shippers
    /// may still be reading.
    pub to_compress: Vec<&'a str>,
}

/// The name of the plain file of a stamp.
#[must_use]
pub fn plain_name(restart_count: u32, stamp: &str) -> String {
    format!("{restart_count}.log.{stamp}")
}

/// The name of the compressed file of a stamp.
#[must_use]
pub fn compressed_name(restart_count: u32, stamp: &str) -> String {
    format!("{restart_count}.log.{stamp}.gz")
}

/// The stamp of this time.
#[must_use]
pub fn stamp_at(time: Timestamp) -> String {
    stamp_of(time.to_zoned(TimeZone::UTC).datetime())
}

/// `20261124-123548.123456`
fn stamp_of(time: DateTime) -> String {
    format!("{}.{:06}", time.strftime("%Y%m%d-%H%M%S"), time.subsec_nanosecond() / 1000)
}

/// True for the stamp of a rotation. A file with another text at this place of its name is another
/// program's.
#[must_use]
pub fn is_stamp(text: &str) -> bool {
    time_of(text).is_some()
}

/// The time of a stamp of ours, or of one of the kubelet's, which has no fraction.
fn time_of(stamp: &str) -> Option<DateTime> {
    let (seconds, fraction) = stamp.split_once('.').unwrap_or((stamp, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if fraction.len() > 6 || !digits(fraction) {
        return None;
    }
    let (date, time) = seconds.split_once('-')?;
    if date.len() != 8 || time.len() != 6 || !digits(date) || !digits(time) {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    let whole = DateTime::strptime("%Y%m%d-%H%M%S", seconds).ok()?;
    whole.checked_add(micros.microseconds()).ok()
}

/// A file that may be removed, of any container of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldFile<P> {
    /// Where it lies.
    pub place: P,
    /// The stamp in its name. For the last file of an instance: when it was written to last, in the
    /// same form.
    pub stamp: String,
    /// In bytes.
    pub size: u64,
    /// It is the last file of an instance that has ended. Otherwise, a rotation has set it aside.
    pub is_last: bool,
}

/// The logs of all containers of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLogs<P> {
    /// Bytes of all files.
    pub total: u64,
    /// Bytes of the current files, with the last files of instances that have ended.
    pub current: u64,
    /// Bytes of the last files of instances that have ended.
    pub ended: u64,
    /// The files that may be removed.
    pub old: Vec<OldFile<P>>,
}

/// What is to be removed so that all logs take at most `max_total_size` bytes. Of each kind, the
/// oldest files of the whole node go first:
/// 1. last files of ended instances, each after what was set aside of the same log, until the
///    current files take at most half of `max_total_size`. Otherwise, they would leave no room for
///    files that were set aside, and each of those would be removed soon after its rotation;
/// 2. files that were set aside;
/// 3. the other last files.
#[must_use]
pub fn over_total<P: PartialEq>(logs: NodeLogs<P>, max_total_size: u64) -> Vec<OldFile<P>> {
    let NodeLogs { mut total, mut current, mut old, .. } = logs;
    old.order_by(|a, b| a.stamp.cmp(&b.stamp));
    let (mut last, mut set_aside): (Vec<_>, Vec<_>) =
        old.into_iter().partition(|file| file.is_last);
    let over_half = last.iter().take_while(|file| {
        let over = current > max_total_size / 2;
        current = current.saturating_sub(file.size);
        over
    });
    let over_half = over_half.count();
    let others = last.split_off(over_half);
    let mut first = Vec::new();
    for file in last {
        first.extend(set_aside.extract_if(.., |older| older.place == file.place));
        first.push(file);
    }
    first
        .into_iter()
        .chain(set_aside)
        .chain(others)
        .take_while(|file| {
            let over = total > max_total_size;
            total = total.saturating_sub(file.size);
            over
        })
        .collect()
}
