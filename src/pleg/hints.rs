//! What the loop does with events: it has pods looked at, some at once, some after a while, and
//! some after the runtime's own view has caught up with the event.

use super::{
    events::Hint,
    inspect,
    run::{Done, Loop},
};
use crate::cri::RuntimeEvent;
use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Duration,
};
use tokio::time::Instant;
use tracing::debug;

/// Hints that are not urgent wait this long: what they tell of is usually seen by then, because a
/// worker that acts asks for a look itself.
const NOT_URGENT: Duration = Duration::from_millis(500);
/// containerd notes the reason of a kill for lack of memory after the end itself.
const OOM_LAG: Duration = Duration::from_millis(200);
/// Between two questions whether an end shows, when it is the only one that is waited for.
const ASK_AGAIN: Duration = Duration::from_millis(3);
/// Waits for ends to show, at a time. Beyond that a plain look has to do.
const MOST_WAITS: usize = 32;
/// Ends of containers that were never seen are remembered this long, and this many.
const EARLY_FOR: Duration = Duration::from_secs(30);
const MOST_EARLY: usize = 256;

/// Hints that are not done with.
#[derive(Default)]
pub(super) struct Hints {
    /// Those that are not urgent, by id.
    pub(super) later: BTreeMap<String, (Instant, Expect)>,
    /// Ends of what was never seen.
    early: VecDeque<EarlyEnd>,
    /// Waits for ends to show, under way.
    pub(super) waits: usize,
}

/// An end of something that was never seen.
struct EarlyEnd {
    id: String,
    exit_code: Option<i32>,
    told: Instant,
}

/// What a hint that is not urgent says, by the id that it names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Running,
    Gone,
    OutOfMemory,
}

impl Loop {
    pub(super) fn hint(&mut self, hint: Hint) {
        let now = Instant::now();
        match hint {
            Hint::Connected => {
                debug!("runtime events arrive");
                self.health.events_connected = true;
                // A listing finds the changes of the time without a connection.
                self.listing.due = now;
                self.status.about = true;
                self.status.due = self.status.due.map(|_| now);
                self.publish();
            }
            Hint::Lost => {
                self.health.events_connected = false;
                self.listing.due = now;
                self.publish();
            }
            Hint::Event(RuntimeEvent::Exited { id, exit_code }) => {
                self.ended(id, exit_code, now);
            }
            Hint::Event(RuntimeEvent::Started { id }) => {
                self.remember(id, NOT_URGENT, Expect::Running);
            }
            Hint::Event(RuntimeEvent::Removed { id }) => {
                self.remember(id, NOT_URGENT, Expect::Gone);
            }
            Hint::Event(RuntimeEvent::OutOfMemory { id }) => {
                self.remember(id, OOM_LAG, Expect::OutOfMemory);
            }
        }
    }

    /// Something ended: gives out a container with its exit code, waits until the runtime's view
    /// shows the end, gives out the container as that shows it, and has the pod looked at for the
    /// rest.
    fn ended(&mut self, id: String, exit_code: Option<i32>, now: Instant) {
        // That it ran out of memory is written down after its end, by and by.
        if self.hints.later.get(&id).is_some_and(|(_, expect)| *expect == Expect::Running) {
            self.hints.later.remove(&id);
        }
        let Some((key, known)) = self.picture.find(&id) else {
            // It ended before it was ever seen. A list that shows it running is behind the times.
            if self.hints.early.len() >= MOST_EARLY {
                self.hints.early.pop_front();
            }
            self.hints.early.push_back(EarlyEnd { id, exit_code, told: now });
            return;
        };
        if !known.alive {
            return;
        }
        let key = key.clone();
        if let Some(exit_code) = exit_code {
            self.picture.told_end(&key, &id, exit_code);
        }
        if self.hints.waits >= MOST_WAITS {
            self.listing.wanted.insert(key);
            return;
        }
        self.hints.waits += 1;
        // The more ends are waited for at once, the rarer each is asked for.
        let pause = ASK_AGAIN.saturating_mul(u32::try_from(self.hints.waits).unwrap_or(1));
        let client = self.client.clone();
        self.tasks.spawn(async move {
            let container = inspect::until_ended(&client, &known.subject, pause).await;
            Done::EndSeen { key, container }
        });
    }

    /// Looks whether something was seen by now whose end was told of before.
    pub(super) fn early_ends(&mut self) {
        if self.hints.early.is_empty() {
            return;
        }
        let now = Instant::now();
        for end in mem::take(&mut self.hints.early) {
            if self.picture.find(&end.id).is_some() {
                self.ended(end.id, end.exit_code, now);
            } else if now.duration_since(end.told) < EARLY_FOR {
                self.hints.early.push_back(end);
            }
        }
    }

    fn remember(&mut self, id: String, delay: Duration, expect: Expect) {
        // Bounded: what does not fit is seen by the next listing.
        if self.hints.later.len() < MOST_EARLY {
            self.hints.later.insert(id, (Instant::now() + delay, expect));
        }
    }

    /// Acts on hints that have waited long enough and tell of what is still unseen.
    pub(super) fn later_hints(&mut self, now: Instant) {
        let due: Vec<(String, Expect)> = self
            .hints
            .later
            .iter()
            .filter(|(_, (due, _))| *due <= now)
            .map(|(id, (_, expect))| (id.clone(), *expect))
            .collect();
        for (id, expect) in due {
            self.hints.later.remove(&id);
            let known = self.picture.find(&id).map(|(key, known)| (key.clone(), known.alive));
            match (expect, known) {
                (Expect::Running, None) => self.listing.due = self.listing.due.min(now),
                (Expect::Running, Some((_, true))) | (Expect::Gone | Expect::OutOfMemory, None) => {
                }
                (Expect::Running, Some((key, false))) | (Expect::Gone, Some((key, _))) => {
                    self.listing.wanted.insert(key);
                }
                (Expect::OutOfMemory, Some((key, _))) => {
                    self.picture.suspect(&key, &id);
                    self.listing.wanted.insert(key);
                }
            }
        }
    }
}
