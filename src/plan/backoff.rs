//! Delays before restarts, image pulls and failed steps. All of them are measured in boot time.
//!
//! Crash loops: the first restart is immediate. Later restarts come 10, 20, 40, ... s after the end
//! of the newest instance, up to the cap. One that was killed because its probe failed restarts at
//! once when it has lived longer than that, as with the kubelet. A run of more than ten minutes
//! resets the delay, and so does a change of the container's image or resources.

use crate::model::Now;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The first delay of a crash loop and of an image pull.
const BASE: Duration = Duration::from_secs(10);
/// A container that ran for longer than this restarts without delay, whatever the cap is.
const CRASH_RESET: Duration = Duration::from_secs(600);
/// The longest delay of an image pull.
const IMAGE_CAP: Duration = Duration::from_secs(300);
/// An image pull whose last failure is older than this starts with the first delay again.
const IMAGE_FORGET: Duration = Duration::from_secs(600);
/// Images of earlier edits of a container whose back-offs are kept.
const EARLIER_IMAGES: usize = 4;
/// The time between two checks whether an image whose pull failed is present by now, because
/// somebody imported it.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The first delay after any other failed step (sandbox, volumes, kill, configuration of a
/// container). It is doubled after each failure, up to `RETRY_CAP`. The kubelet waits 10 to 15 s
/// after each failure.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_secs(10);

/// A point in time that may lie before the boot. It is fixed when it is first seen, so that a later
/// change of the wall clock does not move it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    age: Duration,
    seen: Duration,
}

impl Moment {
    /// The moment of the wall time `then`. A time in the future counts as now.
    pub(crate) fn of_wall(then: Timestamp, now: Now) -> Self {
        Self { age: now.age_of(then), seen: now.boot }
    }

    pub(crate) fn just(now: Now) -> Self {
        Self { age: Duration::ZERO, seen: now.boot }
    }

    /// The boot time of `self + delay`, or zero when that lies before the boot.
    pub(crate) fn after(self, delay: Duration) -> Duration {
        (self.seen + delay).saturating_sub(self.age)
    }

    /// True when it happened at least `limit` ago.
    pub(crate) fn is_older_than(self, limit: Duration, now: Now) -> bool {
        self.elapsed(now) >= limit
    }

    pub(crate) fn elapsed(self, now: Now) -> Duration {
        self.age + now.boot.saturating_sub(self.seen)
    }

    /// The time from boot time `earlier` to this moment; zero when the moment lies before.
    fn since(self, earlier: Duration) -> Duration {
        self.seen.saturating_sub(self.age).saturating_sub(earlier)
    }
}

/// The end of an instance of a container or sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exit {
    id: Box<str>,
    finished: Moment,
}

/// What is known about the ends of the instances of a container, or of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ends {
    /// The last restart that began.
    pub(crate) crash: Option<Crash>,
    /// The newest instance that has ended.
    exit: Option<Exit>,
}

impl Ends {
    pub(crate) const NONE: Self = Self { crash: None, exit: None };

    /// Saves when the newest instance ended. Later calls for the same instance change nothing.
    pub(crate) fn note(&mut self, id: &str, finished: Moment) {
        if self.exit.as_ref().is_none_or(|exit| *exit.id != *id) {
            self.exit = Some(Exit { id: id.into(), finished });
        }
    }

    /// An instance runs on that seemed to have ended.
    pub(crate) fn runs_on(&mut self, id: &str) {
        self.exit.take_if(|exit| *exit.id == *id);
    }

    /// The end of `id`: the saved one, or now.
    pub(crate) fn finished(&self, id: &str, now: Now) -> Moment {
        let noted = self.exit.as_ref().filter(|exit| *exit.id == *id);
        noted.map_or(Moment::just(now), |exit| exit.finished)
    }

    /// How long the instance that has ended waits for its successor.
    pub(crate) fn delay(&self, exited: &Exited<'_>, now: Now) -> Duration {
        Crash::delay(self.crash.as_ref(), exited, self.finished(exited.id, now))
    }

    /// True when the instance has lived longer than the delay that follows its end.
    pub(crate) fn outlived_delay(&self, exited: &Exited<'_>, now: Now) -> bool {
        let lived = self.crash.as_ref().map(|crash| self.finished(exited.id, now).since(crash.at));
        lived.is_some_and(|lived| lived >= self.delay(exited, now))
    }

    /// Counts the restart that follows the end of an instance. Later calls for the same instance
    /// and definition change nothing.
    pub(crate) fn count_restart(&mut self, exited: &Exited<'_>, cap: Duration, now: Now) {
        let counted = |crash: &Crash| *crash.after == *exited.id && crash.is_of(exited);
        if self.crash.as_ref().is_some_and(counted) {
            return;
        }
        let finished = self.finished(exited.id, now);
        self.crash = Some(Crash::next(self.crash.as_ref(), exited, finished, cap, now));
    }
}

/// An instance of a container or sandbox that has ended, and what its successor is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exited<'a> {
    pub(crate) id: &'a str,
    /// See [`Crash::definition`].
    pub(crate) definition: Option<u32>,
}

/// The state of a crash loop: the last restart that began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crash {
    /// The instance whose end the restart followed.
    after: Box<str>,
    /// The boot time at which the restart began.
    at: Duration,
    /// The delay of the next restart after the end of its predecessor.
    delay: Duration,
    /// A hash of the image and resources of the new instance
    /// ([`crate::podspec::back_off_hash`]). The crash does not count for another definition. `None`
    /// counts for each: a sandbox has no definition, and earlier releases did not save it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    definition: Option<u32>,
}

impl Crash {
    /// The delay after the end of the instance that ended at `finished`.
    fn delay(last: Option<&Self>, exited: &Exited<'_>, finished: Moment) -> Duration {
        match last.filter(|crash| crash.is_of(exited)) {
            None => Duration::ZERO,
            // Its restart has begun already, so it was due then.
            Some(crash) if *crash.after == *exited.id => Duration::ZERO,
            Some(crash) if finished.since(crash.at) > CRASH_RESET => Duration::ZERO,
            Some(crash) => crash.delay,
        }
    }

    /// The state after the restart that follows the end of `exited` has begun.
    fn next(
        last: Option<&Self>,
        exited: &Exited<'_>,
        finished: Moment,
        cap: Duration,
        now: Now,
    ) -> Self {
        let waited = Self::delay(last, exited, finished);
        let delay = if waited.is_zero() { BASE } else { waited * 2 };
        let (after, definition) = (exited.id.into(), exited.definition);
        Self { after, at: now.boot, delay: delay.min(cap), definition }
    }

    /// True when the restart had the definition that the next one has.
    fn is_of(&self, exited: &Exited<'_>) -> bool {
        match (self.definition, exited.definition) {
            (Some(before), Some(now)) => before == now,
            (Some(_), None) | (None, Some(_) | None) => true,
        }
    }
}

/// The back-off of pulling one image for one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageBackOff {
    /// The boot time of the last failed pull.
    failed_at: Duration,
    delay: Duration,
    /// The boot time of the last check whether the image is present.
    looked_at: Option<Duration>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// What may be done about an image whose pull has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageTurn {
    Pull,
    /// Only check whether the image is present.
    Look,
    /// Nothing before this boot time.
    Wait(Duration),
}

impl ImageBackOff {
    pub(crate) fn failed(&mut self, reason: &str, message: &str, now: Now) {
        let fresh = self.delay.is_zero() || self.is_forgotten(now);
        self.delay = if fresh { BASE } else { (self.delay * 2).min(IMAGE_CAP) };
        self.failed_at = now.boot;
        self.looked_at = None;
        reason.clone_into(&mut self.reason);
        message.clone_into(&mut self.message);
    }

    /// True when the next failure is treated as the first one.
    pub(crate) fn is_forgotten(&self, now: Now) -> bool {
        now.boot.saturating_sub(self.failed_at) > IMAGE_FORGET
    }

    pub(crate) fn looked(&mut self, now: Now) {
        self.looked_at = Some(now.boot);
    }

    /// `present_will_do`: the image may be used without asking the registry when it is present. The
    /// policy `Always` needs a pull, because the registry may deny the image, and so it waits for
    /// the end of the back-off.
    pub(crate) fn turn(&self, present_will_do: bool, now: Now) -> ImageTurn {
        let pull_at = self.failed_at + self.delay;
        let look_at = self.looked_at.unwrap_or(self.failed_at) + LOOK_AGAIN;
        if now.boot >= pull_at {
            ImageTurn::Pull
        } else if now.boot < look_at {
            ImageTurn::Wait(pull_at.min(look_at))
        } else if present_will_do {
            ImageTurn::Look
        } else {
            ImageTurn::Wait(pull_at)
        }
    }

    /// True when the failure is shown as a back-off and no longer as the error itself. After the
    /// first, short delay the next pull comes before that.
    pub(crate) fn is_backing_off(&self, now: Now) -> bool {
        self.delay > LOOK_AGAIN && now.boot >= self.failed_at + LOOK_AGAIN
    }

    /// A text that tells one failed pull from the next.
    pub(crate) fn occasion(&self) -> String {
        format!("{:?}", self.failed_at)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartFailure {
    pub(crate) retry: Retry,
    /// The reason in `state.waiting`.
    pub(crate) reason: String,
    /// The image, if pulling it has failed.
    pub(crate) image: Option<Box<str>>,
    /// Other images whose pulls failed before, since the last success; the newest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier_images: Vec<Box<str>>,
}

impl StartFailure {
    /// A failure after `last`. `image`: the image, if pulling it has failed. Of the images before it,
    /// only a few with a back-off that still counts are kept: an edit may name any number.
    pub(crate) fn after(
        last: Option<Self>,
        reason: &str,
        image: Option<&str>,
        counts: impl Fn(&str) -> bool,
    ) -> Self {
        let (mut retry, mut earlier_images) = (Retry::default(), Vec::new());
        if let Some(mut last) = last {
            earlier_images = last.take_images();
            retry = last.retry;
        }
        earlier_images.retain(|earlier| image != Some(&**earlier) && counts(earlier));
        earlier_images.drain(..earlier_images.len().saturating_sub(EARLIER_IMAGES));
        Self { retry, reason: reason.to_owned(), image: image.map(Into::into), earlier_images }
    }

    /// True when the pull of this image is among those that have failed.
    pub(crate) fn is_of(&self, image: &str) -> bool {
        self.image.iter().chain(&self.earlier_images).any(|failed| **failed == *image)
    }

    /// Takes all images whose pulls have failed since the last success.
    pub(crate) fn take_images(&mut self) -> Vec<Box<str>> {
        let mut images = std::mem::take(&mut self.earlier_images);
        images.extend(self.image.take());
        images
    }
}

/// A step that failed one or more times in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Retry {
    failures: u32,
    at: Duration,
    pub(crate) message: String,
}

impl Retry {
    pub(crate) fn failed(&mut self, message: &str, now: Now) {
        self.failures = self.failures.saturating_add(1);
        self.at = now.boot;
        message.clone_into(&mut self.message);
    }

    /// The boot time of the next try.
    pub(crate) fn due(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(8);
        self.at + (RETRY_BASE * 2_u32.pow(doublings)).min(RETRY_CAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { boot: Duration::from_secs(864_000), wall: Timestamp::UNIX_EPOCH };

    /// How long the second restart waits, when the first one had the definition `before`.
    fn delay_of_second(before: Option<u32>, now: Option<u32>) -> Duration {
        let (time, cap) = (NOW, Duration::from_secs(300));
        let mut ends = Ends::default();
        ends.note("c1", Moment::just(time));
        ends.count_restart(&Exited { id: "c1", definition: before }, cap, time);
        // As from the file.
        let text = serde_json::to_string(&ends).unwrap_or_default();
        assert_eq!(text.contains("definition"), before.is_some(), "{text}");
        let ends: Ends = serde_json::from_str(&text).unwrap_or_default();
        ends.delay(&Exited { id: "c2", definition: now }, time)
    }

    #[test]
    fn a_crash_of_another_definition_does_not_count() {
        assert_eq!(delay_of_second(Some(1), Some(1)), BASE);
        assert_eq!(delay_of_second(Some(1), Some(2)), Duration::ZERO);
        assert_eq!(delay_of_second(None, Some(1)), BASE, "saved by an earlier release");
        assert_eq!(delay_of_second(None, None), BASE, "a sandbox");
    }

    #[test]
    fn a_start_with_another_definition_is_counted_anew() {
        let (now, cap) = (NOW, Duration::from_secs(300));
        let later = |seconds| Now { boot: now.boot + Duration::from_secs(seconds), ..now };
        let mut ends = Ends::default();
        let mut restart = |id: &str, definition: u32, at: Now| {
            ends.note(id, Moment::just(at));
            ends.count_restart(&Exited { id, definition: Some(definition) }, cap, at);
            ends.delay(&Exited { id: "next", definition: Some(definition) }, at)
        };
        assert_eq!(restart("c1", 1, now), BASE);
        assert_eq!(restart("c2", 1, later(20)), BASE * 2);
        assert_eq!(restart("c2", 1, later(30)), BASE * 2, "the start is tried again");
        assert_eq!(restart("c2", 2, later(40)), BASE);
        assert_eq!(restart("c3", 2, later(60)), BASE * 2);
    }

    #[test]
    fn delays_count_from_the_failure() {
        assert_eq!(Moment::just(NOW).after(BASE), NOW.boot + BASE);
        let mut retry = Retry::default();
        for delay in [1, 2, 4, 8, 10, 10] {
            retry.failed("no", NOW);
            assert_eq!(retry.due(), NOW.boot + Duration::from_secs(delay));
        }
    }
}
