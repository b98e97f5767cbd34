//! Who was evicted, and when it may come back.
//!
//! ```text
//!  evict ─► away ── it has stopped, the pressure is gone, a whole sample was taken, its own pause is over ─► back ── an hour ─► forgotten
//!             ▲                                                                                │
//!             └───────────────────────────── evicted again: twice the pause ───────────────────┘
//! ```
//!
//! The kubelet never evicts a static pod, so it has no rule for this. Records outlive restarts and
//! reboots: they hold wall times, which count from now where they lie in the future. Meanwhile
//! delays go by boot time.

use super::{limits::LocalLimit, rank::Candidate};
use crate::model::{Evicted, Hold, HoldStop, Now, PodKey, PodUid, Pressure, Signal};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The pause after the first eviction; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);
/// How long a pod has to be back before its evictions are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// How long a pod may take to go, besides the time that it is given, before the next one is looked
/// for.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a pod that is stopped like this may take to go before the next one is looked for.
#[must_use]
pub fn patience(stop: HoldStop) -> Duration {
    match stop {
        HoldStop::AtOnce => PATIENCE,
        HoldStop::Within(seconds) => PATIENCE.saturating_add(Duration::from_secs(seconds.into())),
    }
}

/// What a pod was evicted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The node was short of something.
    Signal(Signal),
    /// It was above a limit of its own.
    Limit(LocalLimit),
}

impl Cause {
    /// The condition that has to end before the pod may come back.
    #[must_use]
    pub fn condition(self) -> Option<Pressure> {
        match self {
            Self::Signal(signal) => Some(signal.condition()),
            Self::Limit(_) => None,
        }
    }

    /// Whether there is more of what a condition is about when the pod has gone. An emptyDir may be
    /// one of memory.
    fn relieves(self, condition: Pressure) -> bool {
        match self {
            Self::Signal(signal) => signal.condition() == condition,
            Self::Limit(LocalLimit::EmptyDir) => condition != Pressure::Pid,
            Self::Limit(LocalLimit::Pod | LocalLimit::Container) => condition == Pressure::Disk,
        }
    }
}

/// An eviction, as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRecord {
    /// The pod's full name.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// What for.
    pub cause: Cause,
    /// What was told about it.
    pub hold: Arc<Hold>,
    /// Wall time of the eviction.
    pub at: Timestamp,
    /// How many evictions in a row this is, from 1.
    pub count: u32,
    /// How long the pod stays away at least.
    pub pause_seconds: u64,
    /// Wall time at which it was let back; `None`: it is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back: Option<Timestamp>,
}

/// What an evicted pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Something of it still runs.
    pub stopping: bool,
    /// The condition that has to end, if it still holds.
    pub condition: Option<Pressure>,
    /// The signals were not all read since the start.
    pub unknown: bool,
    /// What is left of its own pause.
    pub pause: Duration,
}

/// What became of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pods that may come back from now on.
    pub back: Vec<PodKey>,
    /// Records changed or went: they have to be saved.
    pub changed: bool,
    /// In what time another pause is over, at the latest.
    pub next_look: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    record: EvictionRecord,
    /// Boot time at which it was told to go.
    told: Duration,
    /// Boot time up to which it stays away, or from which it is forgotten.
    until: Duration,
    /// Something of it still runs: it can't begin anew, nor be evicted once more.
    stopping: bool,
}

/// Every eviction that is not forgotten, by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions(BTreeMap<PodKey, Entry>);

impl Evictions {
    /// Takes up what was kept.
    #[must_use]
    pub fn restored(records: impl IntoIterator<Item = EvictionRecord>, now: Now) -> Self {
        let entry = |mut record: EvictionRecord| {
            record.at = record.at.min(now.wall);
            record.back = record.back.map(|back| back.min(now.wall));
            let (since, time) = match record.back {
                Some(back) => (back, FORGOTTEN_AFTER),
                None => (record.at, Duration::from_secs(record.pause_seconds).min(LONGEST_PAUSE)),
            };
            let until = now.boot.saturating_add(time.saturating_sub(now.age_of(since)));
            let told = now.boot.saturating_sub(now.age_of(record.at));
            (record.key.clone(), Entry { record, told, until, stopping: false })
        };
        Self(records.into_iter().map(entry).collect())
    }

    /// Notes an eviction, and gives the record that has to be saved before the pod is stopped. A
    /// pod that is away already stays so as it was.
    pub fn evict(
        &mut self,
        candidate: &Candidate<'_>,
        cause: Cause,
        hold: Hold,
        now: Now,
    ) -> &EvictionRecord {
        // Another incarnation under this name is another pod, that may use less.
        let before = self.0.remove(candidate.key).filter(|e| e.record.uid == *candidate.uid);
        let entry = match before {
            Some(entry) if entry.record.back.is_none() => entry,
            before => {
                let count = before
                    .filter(|entry| now.boot < entry.until)
                    .map_or(1, |entry| entry.record.count.saturating_add(1));
                let pause = pause(count);
                let record = EvictionRecord {
                    key: candidate.key.clone(),
                    uid: candidate.uid.clone(),
                    cause,
                    hold: Arc::new(hold),
                    at: now.wall,
                    count,
                    pause_seconds: pause.as_secs(),
                    back: None,
                };
                let until = now.boot.saturating_add(pause);
                Entry { record, told: now.boot, until, stopping: false }
            }
        };
        &self.0.entry(candidate.key.clone()).or_insert(entry).record
    }

    /// Leaves a pod that is away, and was given time to stop, none of it. Whether that is new: what
    /// is given then has to be saved as well.
    pub fn hurry(&mut self, key: &PodKey, uid: &PodUid) -> bool {
        let entry = self.0.get_mut(key).filter(|entry| entry.record.uid == *uid);
        entry.is_some_and(Entry::hurry)
    }

    /// Leaves those that still go, and whose end relieves the condition, no more time than a second
    /// since they were told to: a hard threshold is crossed. For whom that is new.
    pub fn hurry_all(&mut self, condition: Pressure, now: Now) -> Vec<PodKey> {
        let due = |entry: &Entry| {
            entry.stopping
                && entry.record.cause.relieves(condition)
                && now.boot >= entry.told.saturating_add(Duration::from_secs(1))
        };
        let hurried = |(key, entry): (&PodKey, &mut Entry)| {
            (due(entry) && entry.hurry()).then(|| key.clone())
        };
        self.0.iter_mut().filter_map(hurried).collect()
    }

    /// Takes in of which pods something still runs; whether one of them has come to its end.
    pub fn observe(&mut self, runs: impl Fn(&PodKey, &PodUid) -> bool) -> bool {
        let mut ended = false;
        for (key, entry) in &mut self.0 {
            let stopping = runs(key, &entry.record.uid);
            ended |= entry.stopping && !stopping && entry.record.back.is_none();
            entry.stopping = stopping;
        }
        ended
    }

    /// Whether a pod that relieves the condition by its end is still on its way, and not late: also
    /// one that an earlier life of the agent told to go.
    #[must_use]
    pub fn relief_is_coming(&self, condition: Pressure, now: Now) -> bool {
        let coming = |entry: &Entry| {
            let record = &entry.record;
            let away = record.back.is_none() && entry.stopping;
            let late = now.boot.saturating_sub(entry.told) >= patience(record.hold.stop);
            away && record.cause.relieves(condition) && !late
        };
        self.0.values().any(coming)
    }

    /// Drops the records of pods that are not wished any more under this name and uid; whether
    /// there were any.
    pub fn retain(&mut self, wished: impl Fn(&PodKey, &PodUid) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|key, entry| wished(key, &entry.record.uid));
        self.0.len() != before
    }

    /// Lets back who may come back, and forgets what is long past. `known`: a whole sample was
    /// taken since the start.
    pub fn look(&mut self, conditions: &BTreeSet<Pressure>, known: bool, now: Now) -> Looked {
        let mut looked = Looked::default();
        let before = self.0.len();
        self.0.retain(|_, entry| entry.record.back.is_none() || now.boot < entry.until);
        looked.changed = self.0.len() != before;
        for (key, entry) in &mut self.0 {
            if let Some(waiting) = entry.waiting(conditions, known, now) {
                if !waiting.pause.is_zero() {
                    let next = looked.next_look.map_or(waiting.pause, |n| n.min(waiting.pause));
                    looked.next_look = Some(next);
                }
            } else if entry.record.back.is_none() {
                entry.record.back = Some(now.wall);
                entry.until = now.boot.saturating_add(FORGOTTEN_AFTER);
                looked.back.push(key.clone());
                looked.changed = true;
            }
        }
        looked
    }

    /// What an evicted pod waits for; `None` when it is not away.
    #[must_use]
    pub fn waiting(
        &self,
        key: &PodKey,
        conditions: &BTreeSet<Pressure>,
        known: bool,
        now: Now,
    ) -> Option<Waiting> {
        self.0.get(key)?.waiting(conditions, known, now)
    }

    /// What is to be saved, by pod.
    pub fn records(&self) -> impl Iterator<Item = &EvictionRecord> {
        self.0.values().map(|entry| &entry.record)
    }

    /// How an evicted pod is stopped; `None` for a pod that is not away.
    pub(super) fn stop_of(&self, key: &PodKey, uid: &PodUid) -> Option<HoldStop> {
        let record = self.0.get(key).map(|entry| &entry.record);
        let away = record.filter(|record| record.uid == *uid && record.back.is_none());
        away.map(|record| record.hold.stop)
    }

    /// The pods that are away, for their workers.
    #[must_use]
    pub fn away(&self) -> BTreeMap<PodKey, Evicted> {
        let away = self.0.iter().filter(|(_, entry)| entry.record.back.is_none());
        let evicted = |record: &EvictionRecord| Evicted {
            uid: record.uid.clone(),
            hold: Arc::clone(&record.hold),
        };
        away.map(|(key, entry)| (key.clone(), evicted(&entry.record))).collect()
    }
}

impl Entry {
    /// Leaves it no time to stop, where it is away and was given some; whether it was.
    fn hurry(&mut self) -> bool {
        let hold = &mut self.record.hold;
        let had_time = self.record.back.is_none() && hold.stop != HoldStop::AtOnce;
        if had_time {
            *hold = Arc::new(Hold { stop: HoldStop::AtOnce, ..Hold::clone(hold) });
        }
        had_time
    }

    fn waiting(&self, conditions: &BTreeSet<Pressure>, known: bool, now: Now) -> Option<Waiting> {
        if self.record.back.is_some() {
            return None;
        }
        let condition = self.record.cause.condition().filter(|cause| conditions.contains(cause));
        let pause = self.until.saturating_sub(now.boot);
        let stopping = self.stopping;
        (stopping || condition.is_some() || !known || !pause.is_zero()).then_some(Waiting {
            stopping,
            condition,
            unknown: !known,
            pause,
        })
    }
}

/// How long a pod stays away after this many evictions in a row.
fn pause(count: u32) -> Duration {
    let factor = 2_u32.saturating_pow(count.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}
