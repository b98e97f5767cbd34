//! Limits how often the agent corrects what another writer changes in its objects: another agent of
//! the same name, or a faulty controller.

use std::time::Duration;

/// The number of corrections at once within a [`ROUND`].
const ANSWERS: u32 = 3;
/// After [`ANSWERS`] corrections the agent waits for the end of this time: two writers that
/// disagree must not keep the API server busy.
const ROUND: Duration = Duration::from_secs(10);

/// Counts the corrections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    /// Boot time of the first correction of the round, and the number of corrections.
    round: Option<(Duration, u32)>,
}

impl Contest {
    /// Counts a correction.
    pub(super) fn answered(&mut self, now: Duration) {
        match &mut self.round {
            Some((_, answers)) => *answers += 1,
            None => self.round = Some((now, 1)),
        }
    }

    /// True when the next correction must wait.
    pub(super) fn must_wait(&mut self, now: Duration) -> bool {
        !self.is_over(now) && self.round.is_some_and(|(_, answers)| answers >= ANSWERS)
    }

    /// True when the round is over and the value can be dropped.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        self.round = self.round.take_if(|(begun, _)| now < *begun + ROUND);
        self.round.is_none()
    }
}
