//! Names of the files that a rotation sets aside, and which of them are removed or compressed.

use crate::model::{LogKind, LogName, Order as _};
use jiff::{Timestamp, ToSpan as _, civil::DateTime, tz::TimeZone};
use std::{collections::BTreeMap, time::Duration};

/// A file is compressed only when it was not written to for this long: the runtime may still be
/// writing the last lines to a file that was set aside a moment ago.
pub const SETTLED: Duration = Duration::from_secs(10);

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

/// A file that was set aside, of any container of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldFile<P> {
    /// Where it lies.
    pub place: P,
    /// Its stamp.
    pub stamp: String,
    /// In bytes.
    pub size: u64,
}

/// What is to be removed so that all logs take at most `max_total_size` of the `total` bytes that
/// they have: the oldest files of the whole node first.
#[must_use]
pub fn over_total<P>(
    mut files: Vec<OldFile<P>>,
    total: u64,
    max_total_size: u64,
) -> Vec<OldFile<P>> {
    files.order_by(|a, b| a.stamp.cmp(&b.stamp));
    let mut total = total;
    files
        .into_iter()
        .take_while(|file| {
            let over = total > max_total_size;
            total = total.saturating_sub(file.size);
            over
        })
        .collect()
}
