//! What becomes of an event: a new entry, one more count of an entry that exists, a part of a
//! combined entry, or nothing.
//!
//! ```text
//!  event ─► many similar ones lately? ──yes─► the combined entry: count + 1, newest message
//!             │ no
//!             ├─► an identical entry? ─yes─► count + 1
//!             └─► the object's allowance ─used up─► dropped, counted
//!                    └─ left ─► new entry
//! ```
//!
//! The rules are the kubelet's, with one departure: there the allowance (25, then one per five
//! minutes, per object and type) is used by repeats too, because each one is a write to the API
//! server. Here a repeat costs nothing, so it is always counted and uses nothing up.
//! The number of entries is bounded; the one that was not seen for the longest time goes first.

use crate::model::{Event, EventKind, EventTarget, Now, PodUid};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

/// How many entries are kept.
pub const MAX_ENTRIES: usize = 300;
/// From how many different messages on events of one object, type and reason are combined.
const SIMILAR: usize = 10;
/// How far back similar events are looked for.
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// What stands before the message of a combined entry.
const COMBINED_PREFIX: &str = "(combined from similar events): ";
/// How many new entries an object may make at once, per type.
const BURST: f64 = 25.0;
/// In how many seconds an object's allowance grows by one entry.
const REFILL_SECONDS: f64 = 300.0;
/// How many used allowances are remembered.
const MAX_ALLOWANCES: usize = 300;

/// What programs read of an event: `metadata.annotations`.
pub type Annotations = BTreeMap<&'static str, String>;

/// An event as kept: what happened, how often, and when first and last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Entries are numbered in the order in which they are made, from 1. It stays when the entry is
    /// counted up.
    pub number: u64,
    /// What happened. The message of a combined entry is that of the newest event in it.
    pub event: Event,
    /// Those of the last occurrence.
    pub annotations: Annotations,
    /// Whether it stands for several similar events.
    pub combined: bool,
    /// How often it happened, at least 1.
    pub count: u32,
    /// Wall time of the first occurrence.
    pub first: Timestamp,
    /// Wall time of the last occurrence.
    pub last: Timestamp,
}

/// Everything that is remembered, as published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    /// Least recently seen first, at most [`MAX_ENTRIES`].
    pub entries: Vec<Arc<Entry>>,
    /// How many events were dropped: over their object's allowance, or over the queue's length.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It made an entry.
    New,
    /// It was counted in an entry that says the same, or in a combined one; the count is the new
    /// one.
    Counted(u32),
    /// The object made too many entries lately.
    Dropped,
}

/// Aggregates events. Bounded: [`MAX_ENTRIES`] entries and as many allowances.
#[derive(Clone, Debug, Default)]
pub struct Correlator {
    entries: Vec<Seen>,
    allowances: HashMap<(Subject, EventKind), Allowance>,
    /// Entries made.
    made: u64,
    dropped: u64,
}

/// An entry with the boot time of its last occurrence, which is what windows go by.
#[derive(Clone, Debug)]
struct Seen {
    entry: Arc<Entry>,
    last: Duration,
}

/// The object of an event; containers count as their pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Node,
    Pod(PodUid),
}

#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    at: Duration,
}

impl Allowance {
    fn at(self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        (self.left + passed / REFILL_SECONDS).min(BURST)
    }
}

fn subject(target: &EventTarget) -> Subject {
    match target {
        EventTarget::Node => Subject::Node,
        EventTarget::Pod { uid, .. } => Subject::Pod(uid.clone()),
    }
}

impl Correlator {
    /// [`Self::observe_annotated`] without annotations.
    #[cfg(test)]
    fn observe(&mut self, event: Event, now: Now) -> Verdict {
        self.observe_annotated(event, Annotations::new(), now)
    }

    /// Takes in an event that happened at `now`. Annotations tell no event from another.
    pub fn observe_annotated(
        &mut self,
        event: Event,
        annotations: Annotations,
        now: Now,
    ) -> Verdict {
        let verdict = self.take_in(event, now);
        // What was counted or made stands last.
        if verdict != Verdict::Dropped
            && let Some(seen) = self.entries.last_mut()
            && seen.entry.annotations != annotations
        {
            Arc::make_mut(&mut seen.entry).annotations = annotations;
        }
        verdict
    }

    fn take_in(&mut self, event: Event, now: Now) -> Verdict {
        if self.is_one_of_many(&event, now.boot) {
            let known = self
                .entries
                .iter()
                .position(|seen| seen.entry.combined && similar(&seen.entry.event, &event));
            return match known {
                Some(index) => self.count(index, Some(event), now),
                None => self.insert(event, true, now),
            };
        }
        match self.entries.iter().position(|s| !s.entry.combined && s.entry.event == event) {
            Some(index) => self.count(index, None, now),
            None => self.insert(event, false, now),
        }
    }

    /// Counts events that were lost before they came here.
    pub fn lost(&mut self, count: u64) {
        self.dropped = self.dropped.saturating_add(count);
    }

    #[must_use]
    pub fn log(&self) -> EventLog {
        let entries = self.entries.iter().map(|seen| Arc::clone(&seen.entry)).collect();
        EventLog { entries, dropped: self.dropped }
    }

    fn is_one_of_many(&self, event: &Event, now: Duration) -> bool {
        let mut messages: Vec<&str> = vec![&event.message];
        for seen in &self.entries {
            let recent = now.saturating_sub(seen.last) <= SIMILAR_WINDOW;
            if !recent || !similar(&seen.entry.event, event) {
                continue;
            }
            if seen.entry.combined {
                return true;
            }
            if !messages.contains(&seen.entry.event.message.as_str()) {
                messages.push(&seen.entry.event.message);
            }
        }
        messages.len() >= SIMILAR
    }

    /// One more of entry `index`, which moves to the end; `newest` replaces what it says.
    fn count(&mut self, index: usize, newest: Option<Event>, now: Now) -> Verdict {
        let mut seen = self.entries.remove(index);
        let entry = Arc::make_mut(&mut seen.entry);
        entry.count = entry.count.saturating_add(1);
        entry.last = now.wall;
        if let Some(event) = newest {
            entry.event = combined(event);
        }
        let count = entry.count;
        seen.last = now.boot;
        self.entries.push(seen);
        Verdict::Counted(count)
    }

    fn insert(&mut self, event: Event, is_combined: bool, now: Now) -> Verdict {
        if !self.take_allowance(&event, now.boot) {
            self.lost(1);
            return Verdict::Dropped;
        }
        let event = if is_combined { combined(event) } else { event };
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.remove(0);
        }
        self.made += 1;
        let entry = Entry {
            number: self.made,
            event,
            annotations: Annotations::new(),
            combined: is_combined,
            count: 1,
            first: now.wall,
            last: now.wall,
        };
        self.entries.push(Seen { entry: Arc::new(entry), last: now.boot });
        Verdict::New
    }

    fn take_allowance(&mut self, event: &Event, now: Duration) -> bool {
        let key = (subject(&event.target), event.kind);
        let left = self.allowances.get(&key).map_or(BURST, |a| a.at(now));
        if left < 1.0 {
            return false;
        }
        if self.allowances.len() >= MAX_ALLOWANCES && !self.allowances.contains_key(&key) {
            self.forget_fullest_allowance(now);
        }
        self.allowances.insert(key, Allowance { left: left - 1.0, at: now });
        true
    }

    /// A full allowance and one that is not remembered are the same, so the fullest says least.
    fn forget_fullest_allowance(&mut self, now: Duration) {
        let fullest = self.allowances.iter().max_by(|a, b| a.1.at(now).total_cmp(&b.1.at(now)));
        if let Some(key) = fullest.map(|(key, _)| key.clone()) {
            self.allowances.remove(&key);
        }
    }
}

/// Whether two events differ in their message and container at most.
fn similar(a: &Event, b: &Event) -> bool {
    a.kind == b.kind && a.reason == b.reason && subject(&a.target) == subject(&b.target)
}

fn combined(event: Event) -> Event {
    Event { message: format!("{COMBINED_PREFIX}{}", event.message), ..event }
}

#[cfg(test)]
mod tests;
