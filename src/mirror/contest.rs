//! Somebody else who writes what is ours: another agent of the same name, a controller gone astray.

use std::time::Duration;

/// So often within a [`ROUND`] what somebody else wrote is put right at once.
const ANSWERS: u32 = 3;
/// After that, not before it is over: two who do not agree must not keep the API server busy.
const ROUND: Duration = Duration::from_secs(10);

/// How often somebody else was answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    /// Since when, by boot time, and how often.
    round: Option<(Duration, u32)>,
}

impl Contest {
    /// What somebody else wrote was put right.
    pub(super) fn answered(&mut self, now: Duration) {
        match &mut self.round {
            Some((_, answers)) => *answers += 1,
            None => self.round = Some((now, 1)),
        }
    }

    /// Whether he is to wait for the next answer.
    pub(super) fn must_wait(&mut self, now: Duration) -> bool {
        !self.is_over(now) && self.round.is_some_and(|(_, answers)| answers >= ANSWERS)
    }

    /// Whether nothing has to be remembered.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        self.round = self.round.take_if(|(begun, _)| now < *begun + ROUND);
        self.round.is_none()
    }
}
