//! Page cache, before anybody has to go for it: the kernel takes it back beside the loop, which
//! goes on reading.

use super::PressureTask;
use crate::{
    clock,
    model::{Now, Pressure, ReliefView, Signal},
    pressure::core::{Acting, Step},
    signals::{self, Reclaimed, Reclaiming},
};
use std::time::Duration;

/// How long the kernel may take before a pod has to go.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two tries while memory is short all the time.
const PERIOD: Duration = Duration::from_secs(60);
/// When this much less is available than at its begin, memory is taken faster than it is given
/// back.
const WORSE: u64 = 4 << 20;
/// More than is missing, so that it is not missing again at once: one part in so many of the
/// capacity.
const SPARE_PART: u64 = 32;

/// What the kernel was asked for.
#[derive(Default)]
pub(super) struct PageCache {
    running: Option<Running>,
    /// It was asked since memory is short; that helped or did not.
    tried: Option<Tried>,
}

#[derive(Clone, Copy)]
struct Tried {
    at: Duration,
    /// For a hard threshold.
    hard: bool,
}

struct Running {
    signal: Signal,
    before: u64,
    expected: u64,
    since: Duration,
    kernel: Reclaiming,
}

impl PageCache {
    /// Whether it is waited for.
    pub(super) fn is_coming(&self, now: Duration) -> bool {
        self.running.as_ref().is_some_and(|running| !running.is_late(now))
    }

    /// Whether it may be asked for: once for a hard threshold, also when a soft one has had it
    /// tried, and now and then.
    fn may_try(&self, hard: bool, now: Duration) -> bool {
        self.running.is_none()
            && self
                .tried
                .is_none_or(|tried| (hard && !tried.hard) || now.saturating_sub(tried.at) >= PERIOD)
    }
}

impl Running {
    /// The kernel may take for ever: to write to a disk that hangs.
    fn is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= PATIENCE
    }
}

impl PressureTask {
    /// Asks the kernel for page cache of pods. Whether it is worth waiting for.
    pub(super) fn reclaim_memory(&mut self, acting: &Acting) -> bool {
        let now = clock::now().boot;
        if let Some(running) = &self.page_cache.running {
            let of_same = acting.threshold.signal == running.signal;
            let worse = of_same && acting.reading.available.saturating_add(WORSE) < running.before;
            return !running.is_late(now) && !worse;
        }
        let hard = acting.threshold.is_hard();
        if !self.page_cache.may_try(hard, now) {
            return false;
        }
        self.page_cache.tried = Some(Tried { at: now, hard });
        let Some(dirs) = self.inputs.host.cgroups.kubepods_dirs() else { return false };
        let spare = acting.reading.capacity / SPARE_PART;
        let begun = signals::reclaim(&dirs.memory, acting.shortfall, spare);
        let kernel =
            begun.inspect_err(|err| tracing::debug!(%err, "page cache can't be reclaimed"));
        let Ok(Some(kernel)) = kernel else { return false };
        self.page_cache.running = Some(Running {
            signal: acting.threshold.signal,
            before: acting.reading.available,
            expected: acting.shortfall,
            since: now,
            kernel,
        });
        true
    }

    /// Notes what came of it.
    pub(super) fn page_cache_came(&mut self, step: &Step, now: Now) -> bool {
        let memory = |signal: Signal| signal.condition() == Pressure::Memory;
        let short = step.met.iter().any(|met| memory(met.threshold.signal));
        if !short && self.page_cache.running.is_none() {
            self.page_cache.tried = None;
        }
        let Some(running) = &mut self.page_cache.running else { return false };
        let Some(ended) = running.kernel.finished() else { return false };
        let (signal, expected) = (running.signal, running.expected);
        let readings = self.sample.readings.get(&signal);
        let freed = readings.map(|reading| reading.available.saturating_sub(running.before));
        self.page_cache.running = None;
        self.state.acted(now.boot);
        let more = match ended {
            Ok(Reclaimed::All) => "",
            Ok(Reclaimed::Part) => ", which had not so much",
            Err(err) => {
                tracing::debug!(%err, "page cache can't be reclaimed");
                ", which failed"
            }
        };
        tracing::info!(%signal, freed, expected, "page cache was reclaimed{more}");
        self.history.step(ReliefView {
            at: now.wall,
            signal,
            what: format!("asked the kernel for page cache of pods{more}"),
            freed,
            expected: Some(expected),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_for_a_hard_threshold_after_a_soft_one_and_now_and_then() {
        let begun = Duration::from_secs(100);
        let may = |tried: Option<bool>, hard: bool, after: Duration| {
            let tried = tried.map(|hard| Tried { at: begun, hard });
            PageCache { running: None, tried }.may_try(hard, begun + after)
        };
        let (at_once, soon) = (Duration::ZERO, PERIOD - Duration::from_millis(1));
        assert!(may(None, false, at_once) && may(None, true, at_once));
        assert!(may(Some(false), true, at_once), "a soft one does not use it up");
        assert!(!may(Some(false), false, soon) && !may(Some(true), true, soon));
        assert!(!may(Some(true), false, soon));
        assert!(may(Some(true), true, PERIOD) && may(Some(false), false, PERIOD));
    }
}
