//! Reclaims page cache of pods before a pod is evicted.

use super::{Effects, ReclaimOutcome, Relief, ReliefAction, Seen};
use crate::{
    model::{Now, Pressure, ReliefView, Signal},
    pressure::core::state::{Acting, PressureStep},
};
use std::time::Duration;

/// How long the kernel may take before a pod is evicted. The kernel may hang, for example while it
/// writes to a disk that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two requests while memory stays short.
const PERIOD: Duration = Duration::from_secs(60);
/// If the available memory has decreased by this much since the request, memory is used faster than
/// the kernel reclaims it; bytes.
const WORSE: u64 = 4 << 20;
/// An additional amount is requested, so that memory does not run short again at once: the capacity
/// divided by this.
const SPARE_PART: u64 = 32;

/// The request to the kernel since memory is short.
#[derive(Clone, Debug)]
pub(super) enum PageCache {
    Untried,
    Running(ReclaimRequest),
    Ended(ReclaimRequest, ReclaimOutcome),
    Tried {
        at: Duration,
        /// For a hard threshold.
        hard: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReclaimRequest {
    signal: Signal,
    hard: bool,
    /// Available before.
    before: u64,
    expected: u64,
    since: Duration,
}

impl ReclaimRequest {
    fn is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= PATIENCE
    }

    fn tried(&self) -> PageCache {
        PageCache::Tried { at: self.since, hard: self.hard }
    }
}

impl PageCache {
    /// True while a pod is not evicted because the kernel may still free enough.
    pub(super) fn is_awaited(&self, now: Duration) -> bool {
        match self {
            Self::Running(request) => !request.is_late(now),
            Self::Ended(..) => true,
            Self::Untried | Self::Tried { .. } => false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    pub(super) fn fold(&mut self, outcome: ReclaimOutcome) {
        if let Self::Running(request) = self {
            *self = match outcome {
                ReclaimOutcome::Unsupported => request.tried(),
                ReclaimOutcome::Complete | ReclaimOutcome::Partial | ReclaimOutcome::Failed => {
                    Self::Ended(*request, outcome)
                }
            };
        }
    }
}

impl Relief {
    /// Asks the kernel to reclaim page cache. Returns true while evictions wait for the result.
    ///
    /// One request is made for a soft threshold, one for a hard threshold, and then one every
    /// minute.
    pub(super) fn reclaim_page_cache(
        &mut self,
        acting: &Acting,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        let hard = acting.threshold.is_hard();
        match &self.page_cache {
            PageCache::Running(request) => {
                let same = acting.threshold.signal == request.signal;
                let worse = same && acting.reading.available.saturating_add(WORSE) < request.before;
                return !request.is_late(now.boot) && !worse;
            }
            PageCache::Ended(..) => return true,
            PageCache::Tried { at, hard: tried_hard } => {
                let again = now.boot.saturating_sub(*at) >= PERIOD;
                if !again && (*tried_hard || !hard) {
                    return false;
                }
            }
            PageCache::Untried => {}
        }
        self.page_cache = PageCache::Running(ReclaimRequest {
            signal: acting.threshold.signal,
            hard,
            before: acting.reading.available,
            expected: acting.shortfall,
            since: now.boot,
        });
        let spare = acting.reading.capacity / SPARE_PART;
        effects.actions.push(ReliefAction::ReclaimPageCache { bytes: acting.shortfall, spare });
        true
    }

    /// Returns true when a request has ended.
    pub(super) fn finish_page_cache(
        &mut self,
        step: &PressureStep,
        seen: &Seen<'_>,
        effects: &mut Effects,
    ) -> bool {
        let memory = |signal: Signal| signal.condition() == Pressure::Memory;
        let is_over = !step.met.iter().any(|met| memory(met.threshold.signal));
        let (request, outcome) = match &self.page_cache {
            PageCache::Ended(request, outcome) => (*request, *outcome),
            PageCache::Tried { .. } => {
                if is_over {
                    self.page_cache = PageCache::Untried;
                }
                return false;
            }
            // It may still add some spare memory, but not go on for ever.
            PageCache::Running(request) if is_over && request.is_late(seen.now.boot) => {
                (*request, ReclaimOutcome::Partial)
            }
            PageCache::Untried | PageCache::Running(_) => return false,
        };
        // Page cache may grow so fast that only this reading shows that the shortage is over.
        self.page_cache = if is_over { PageCache::Untried } else { request.tried() };
        self.state.acted(seen.now.boot);
        let more = match outcome {
            ReclaimOutcome::Complete | ReclaimOutcome::Unsupported => "",
            ReclaimOutcome::Partial => ", but it reclaimed less",
            ReclaimOutcome::Failed => ", but that failed",
        };
        let reading = seen.readings.get(&request.signal);
        effects.actions.push(ReliefAction::ReportStep(ReliefView {
            at: seen.now.wall,
            signal: request.signal,
            what: format!("asked the kernel to reclaim page cache of pods{more}"),
            freed: reading.map(|reading| reading.available.saturating_sub(request.before)),
            expected: Some(request.expected),
        }));
        true
    }
}
