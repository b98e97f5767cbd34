//! The two clocks, which one place of the shell reads and passes on as an argument.

use jiff::Timestamp;
use std::time::Duration;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time since boot, suspend included (`CLOCK_BOOTTIME`). Delays, back-offs and deadlines go by
    /// it.
    pub boot: Duration,
    /// Wall time: for display, and for comparison with what the runtime stored.
    pub wall: Timestamp,
}

impl Now {
    /// Age of something that happened at wall time `then`; zero when `then` lies in the future.
    #[must_use]
    pub fn age_of(&self, then: Timestamp) -> Duration {
        Duration::try_from(self.wall.duration_since(then)).unwrap_or(Duration::ZERO)
    }
}
