//! One probe of one container instance.

use super::{ProbeId, ProbeSettings, ProbedInstance, cut};
use crate::model::{ContainerId, Finding, Now, PodKey, ProbeKind, ProbeView};
use jiff::Timestamp;
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

/// Where a probe stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The container has yet to start.
    Waiting,
    /// The next attempt is due at this boot time.
    Due(Duration),
    /// An attempt is under way, which was due at this boot time.
    Trying { due: Duration },
    /// No attempt is made any more on this instance.
    Done,
}

#[derive(Debug)]
pub(super) struct Probe {
    pub(super) key: PodKey,
    pub(super) instance: ContainerId,
    pub(super) container: Box<str>,
    pub(super) kind: ProbeKind,
    pub(super) settings: ProbeSettings,
    pub(super) stage: Stage,
    started_at: Timestamp,
    /// The published result.
    pub(super) result: Option<bool>,
    /// What the last attempt that counted has found, and how many in a row have found the same.
    row: Option<(bool, u32)>,
    last: Option<(bool, Timestamp)>,
    last_failure: Option<(Box<str>, Timestamp)>,
}

impl Probe {
    pub(super) fn new(
        key: &PodKey,
        instance: &ProbedInstance,
        kind: ProbeKind,
        settings: ProbeSettings,
    ) -> Self {
        Self {
            key: key.clone(),
            instance: instance.id.clone(),
            container: instance.name.clone(),
            kind,
            settings,
            stage: Stage::Waiting,
            started_at: instance.started_at,
            result: None,
            row: None,
            last: None,
            last_failure: None,
        }
    }

    pub(super) fn due(&self) -> Option<Duration> {
        match self.stage {
            Stage::Due(due) => Some(due),
            Stage::Waiting | Stage::Trying { .. } | Stage::Done => None,
        }
    }

    /// The boot time of the first attempt: after the initial delay. When the agent has just
    /// started, attempts on containers that ran before are spread over the period, so that a full
    /// node is not probed all at once. The spread depends on the ids alone.
    pub(super) fn first(&self, id: ProbeId, since: Now, now: Now) -> Duration {
        let age = now.age_of(self.started_at);
        let due = now.boot + self.settings.initial_delay.saturating_sub(age);
        let just_started = now.boot.saturating_sub(since.boot) < self.settings.period;
        if self.started_at >= since.wall || !just_started {
            return due;
        }
        let mut hasher = DefaultHasher::new();
        (self.instance.as_str(), id).hash(&mut hasher);
        let part = u32::try_from(hasher.finish() & 0xffff).unwrap_or_default();
        due.max(now.boot + self.settings.period * part / 0x1_0000)
    }

    /// What comes after an attempt: the next one, a period after this one was due. An attempt that
    /// took longer is followed by the next one at once.
    pub(super) fn next(&self, now: Now) -> Stage {
        let Stage::Trying { due } = self.stage else { return self.stage };
        let done = match (self.kind, self.result) {
            // The startup is decided once for each instance, and a dead instance is killed.
            (ProbeKind::Startup, Some(_)) | (ProbeKind::Liveness, Some(false)) => true,
            (ProbeKind::Startup, None) | (ProbeKind::Liveness | ProbeKind::Readiness, _) => false,
        };
        if done { Stage::Done } else { Stage::Due((due + self.settings.period).max(now.boot)) }
    }

    /// Counts a finding. Returns true when the result has changed.
    pub(super) fn take(&mut self, finding: &Finding, now: Now) -> bool {
        let passed = match finding {
            Finding::Success => true,
            Finding::Warning(output) => {
                self.last_failure = Some((cut(output).into(), now.wall));
                true
            }
            Finding::Failure(output) => {
                self.last_failure = Some((cut(output).into(), now.wall));
                false
            }
            Finding::Error(error) => {
                self.last_failure = Some((cut(error).into(), now.wall));
                return false;
            }
        };
        self.last = Some((passed, now.wall));
        let run = match self.row {
            Some((before, run)) if before == passed => run.saturating_add(1),
            Some(_) | None => 1,
        };
        self.row = Some((passed, run));
        let threshold = match passed {
            true => self.settings.success_threshold,
            false => self.settings.failure_threshold,
        };
        run >= threshold && self.result.replace(passed) != Some(passed)
    }

    pub(super) fn view(&self) -> ProbeView {
        ProbeView {
            container: self.container.clone(),
            kind: self.kind,
            result: self.result,
            last: self.last,
            last_failure: self.last_failure.clone(),
        }
    }
}
