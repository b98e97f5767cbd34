//! How soon pods are measured again when none could be evicted.

use super::ACTIVE_PAUSE;
use crate::{
    model::{Now, Reading},
    pressure::core::{rank::RELEVANT_PART, threshold::Threshold},
};
use std::time::Duration;

/// The next measurement waits for this many times the duration of the last one: what fills the disk
/// is not a pod, and looking at all files of all pods slows the disk down further.
const REST: u32 = 4;

/// A ranking without a pod to evict.
#[derive(Clone, Copy, Debug)]
pub(super) struct Futile {
    /// Boot time before which no pods are measured for the threshold again.
    until: Duration,
    /// They are measured earlier if less than this is available: what has gone since may be in a
    /// pod.
    unless_below: u64,
}

impl Futile {
    /// After a measurement that `took` this long. `unmeasured`: it left out a pod that the one before
    /// did not leave out. Such a pod may have had no turn, so that it comes first the next time,
    /// which comes sooner. One that can never be measured is no reason for that.
    pub(super) fn new(
        threshold: &Threshold,
        latest: &Reading,
        took: Duration,
        unmeasured: bool,
        now: Now,
    ) -> Self {
        let rest = if unmeasured { took } else { took.saturating_mul(REST) };
        let kept_free = threshold.value.resolve(latest.capacity);
        let fallen = latest.available.saturating_sub(kept_free / RELEVANT_PART);
        Self {
            until: now.boot.saturating_add(rest.max(ACTIVE_PAUSE)),
            unless_below: fallen.max(latest.available / 2),
        }
    }

    /// True while no pods are measured, with this much available.
    pub(super) fn rests(&self, available: u64, now: Now) -> bool {
        now.boot < self.until && available >= self.unless_below
    }
}
