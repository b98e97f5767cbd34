//! How fast a log grows, and when to look at it next.

use std::time::Duration;

/// The shortest time between two looks at a log: at 200 MB/s, 2 MB.
const SHORTEST: Duration = Duration::from_millis(10);
/// The time between two looks at a log that grows slowly. Such looks fall on whole seconds, so that
/// all slow logs are looked at together.
const SLOW: Duration = Duration::from_secs(1);
/// After a hint that a log has begun to grow: what it grows meanwhile shows its rate.
const FIRST: Duration = Duration::from_millis(50);
const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// No log is rotated below this size, however little a node's logs may take.
const SMALLEST: u64 = 16 << 10;

/// The log of one instance of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Size at the last look, in bytes.
    size: u64,
    /// When that was, as boot time.
    at: Duration,
    /// Bytes a second between the last two looks.
    rate: u64,
}

/// What a look at a log leads to. Times are boot time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLook {
    /// It has reached its limit.
    Rotate,
    /// It grows: look again then.
    At(Duration),
    /// It does not grow: a hint says when it does. Look again then, in case the hint gets lost.
    Quiet(Duration),
}

impl NextLook {
    /// The first look at a log, or the first after a hint that it has begun to grow.
    #[must_use]
    pub fn first(now: Duration) -> Duration {
        now.saturating_add(FIRST)
    }
}

impl Growth {
    /// A log of which nothing is known.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self { size: 0, at: now, rate: 0 }
    }

    /// Size at the last look, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A hint: until now it had the size of the last look.
    pub fn woken(&mut self, now: Duration) {
        self.at = now;
    }

    /// It begins anew with an empty file. Returns when to look at it next: when it will be full if
    /// it grows as before. What it has now says nothing, because the runtime has just made it.
    pub fn rotated(&mut self, now: Duration, limit: u64) -> Duration {
        (self.size, self.at) = (0, now);
        let full = self.time_for(limit).unwrap_or(FIRST);
        now.saturating_add(full.clamp(SHORTEST, SLOW))
    }

    /// How long so many bytes take at its rate; `None` when it does not grow.
    fn time_for(&self, bytes: u64) -> Option<Duration> {
        let nanos = u128::from(bytes) * NANOS_PER_SECOND;
        let nanos = nanos.checked_div(u128::from(self.rate))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Takes in a look: the size in bytes, the log's limit in bytes, and the time between two looks
    /// at a log that does not grow.
    pub fn look(&mut self, size: u64, now: Duration, limit: u64, interval: Duration) -> NextLook {
        let elapsed = now.saturating_sub(self.at).max(Duration::from_millis(1));
        let grown = size.saturating_sub(self.size);
        let truncated = size < self.size;
        let rate = u128::from(grown) * NANOS_PER_SECOND / elapsed.as_nanos();
        *self = Self { size, at: now, rate: u64::try_from(rate).unwrap_or(u64::MAX) };
        if size >= limit {
            return NextLook::Rotate;
        }
        if grown == 0 && !truncated {
            return NextLook::Quiet(multiple_after(now, interval));
        }
        let left = self.time_for(limit - size).unwrap_or(Duration::MAX);
        NextLook::At(if left < 2 * SLOW {
            now.saturating_add(left.max(SHORTEST))
        } else {
            multiple_after(now, SLOW)
        })
    }
}

/// The first multiple of `period` that is more than half a period away.
fn multiple_after(now: Duration, period: Duration) -> Duration {
    let nanos = period.as_nanos().max(1);
    let count = (now.as_nanos() + nanos / 2) / nanos + 1;
    Duration::from_nanos(u64::try_from(count * nanos).unwrap_or(u64::MAX))
}

/// The size in bytes from which on a log is rotated: `max_size`, or less where the node's logs may
/// take little, so that `logs` current files and the `ended` bytes of instances that have ended
/// take at most half of `max_total_size`. A quarter is there for the current files in any case.
#[must_use]
pub fn share(max_size: u64, max_total_size: Option<u64>, logs: usize, ended: u64) -> u64 {
    let Some(total) = max_total_size else { return max_size };
    let logs = u64::try_from(logs).unwrap_or(u64::MAX).max(1);
    let of_current = (total / 2).saturating_sub(ended).max(total / 4);
    max_size.min((of_current / logs).max(SMALLEST))
}
