//! The one place that reads the clocks. Everything else takes [`Now`] as an argument.

use crate::model::Now;
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Reads both clocks.
///
/// # Panics
/// Never on Linux: both clocks exist since 2.6.39, and the kernel keeps wall time within what
/// [`Timestamp`] holds; a reading that can't be had counts as zero.
#[must_use]
pub fn now() -> Now {
    let boot = read(ClockId::CLOCK_BOOTTIME);
    let wall = read(ClockId::CLOCK_REALTIME);
    let wall = i64::try_from(wall.as_secs())
        .ok()
        .and_then(|seconds| {
            Timestamp::new(seconds, i32::try_from(wall.subsec_nanos()).unwrap_or(0)).ok()
        })
        .unwrap_or(Timestamp::UNIX_EPOCH);
    Now { boot, wall }
}

/// Time since boot in which the machine was not suspended. Timers go by it, and so do heartbeats: a
/// loop can't come round while the machine is suspended.
#[must_use]
pub fn awake() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn clocks_run_and_wall_time_is_after_this_was_written() {
        let (first, second) = (super::now(), super::now());
        assert!(second.boot >= first.boot && first.boot.as_nanos() > 0);
        let (earlier, later) = (super::awake(), super::awake());
        assert!(later >= earlier && earlier.as_nanos() > 0);
        assert!(first.wall.as_second() > 1_700_000_000, "{}", first.wall);
    }
}
