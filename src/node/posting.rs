//! When the status is written.

use crate::model::Now;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportPeriods {
    /// `nodeStatusUpdateFrequency`: it is computed.
    pub update: Duration,
    /// `nodeStatusReportFrequency`: it is written although nothing has changed.
    pub report: Duration,
}

/// Decides whether a status is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Posting {
    periods: ReportPeriods,
    /// Boot time at which this run of the agent began to report.
    begun: Duration,
    /// Boot time from which on it is due, changed or not.
    due: Option<Duration>,
}

impl Posting {
    /// Nothing was written yet: the first is due.
    #[must_use]
    pub fn new(periods: ReportPeriods, now: Now) -> Self {
        Self { periods, begun: now.boot, due: None }
    }

    /// Whether the first status of this run waits for the runtime. Until the runtime has answered,
    /// the status of an earlier run is closer to the truth: a node that is not ready for a moment
    /// has all its pods marked as not ready. Like the kubelet's fast start, but for one update
    /// period at most.
    #[must_use]
    pub fn waits_for_runtime(&self, ready: bool, now: Now) -> bool {
        !ready && self.due.is_none() && now.boot < self.begun.saturating_add(self.periods.update)
    }

    /// Whether to write a status that has or has not changed.
    #[must_use]
    pub fn is_due(&self, changed: bool, now: Now) -> bool {
        changed || self.due.is_none_or(|due| now.boot >= due)
    }

    /// It was written. After a change the next report that nothing asks for is due within half a
    /// period to one and a half, by `spread` (0 to 1), so that nodes that changed together do not
    /// report together for ever: the kubelet's rule.
    pub fn posted(&mut self, changed: bool, spread: f64, now: Now) {
        let first = self.due.is_none();
        let factor = if changed || first { 0.5 + spread.clamp(0.0, 1.0) } else { 1.0 };
        self.due = Some(now.boot.saturating_add(self.periods.report.mul_f64(factor)));
    }
}
