//! When the status is written.

use super::NodeReport;
use crate::model::{Now, k8s};
use std::time::Duration;

/// How long the first status waits for the runtime at most.
const RUNTIME_ANSWERS: Duration = Duration::from_secs(10);

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

    /// How long the first status of this run waits at most for the runtime to answer; `None` when it
    /// does not wait. The status of the run before, of the same boot, is closer to the truth until
    /// then: the pods of a node that is not ready for a moment may all be marked as not ready.
    #[must_use]
    pub fn wait_for_runtime(
        &self,
        report: &NodeReport,
        node: &k8s::Node,
        now: Now,
    ) -> Option<Duration> {
        let told = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let same_boot = told.is_some_and(|info| info.boot_id == report.info.boot_id);
        let conditions = &report.conditions;
        let only_runtime = !conditions.runtime.is_empty() && !conditions.shutdown;
        let until = self.begun.saturating_add(self.periods.update.min(RUNTIME_ANSWERS));
        let waits = self.due.is_none() && same_boot && only_runtime && now.boot < until;
        waits.then(|| until.saturating_sub(now.boot))
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
