//! Which pods were evicted, and when each may come back.
//!
//! ```text
//!  evict ─► away ── it has stopped, the pressure is gone, a whole sample was taken, its own pause is over ─► back ── an hour ─► forgotten
//!             ▲                                                                                │
//!             └───────────────────────────── evicted again: twice the pause ───────────────────┘
//! ```
//!
//! The kubelet never evicts a static pod, so it has no rule for this. A pod of the API server is
//! evicted for good, and its record is dropped with its object. Records outlive restarts and
//! reboots, so they hold wall times. A wall time in the future counts as now. While the agent runs,
//! delays are measured in boot time.

use super::{limits::LocalLimit, rank::Candidate};
use crate::{
    model::{CollectOrdered as _, Evicted, Hold, HoldStop, Now, PodKey, PodUid, Pressure, Signal},
    podspec::is_static,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The pause after the first eviction; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause, after any number of evictions.
const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);
/// How long a pod has to be back before its evictions are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// How long a pod may take to stop, besides its grace period, before the next one is evicted.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a pod that is stopped in this way may take before the next one is evicted.
#[must_use]
pub fn patience(stop: HoldStop) -> Duration {
    match stop {
        HoldStop::AtOnce => PATIENCE,
        HoldStop::Within(seconds) => PATIENCE.saturating_add(Duration::from_secs(seconds.into())),
    }
}

/// The cause of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// A resource of the node was short.
    Signal(Signal),
    /// It exceeded one of its own limits.
    Limit(LocalLimit),
}

impl Cause {
    /// What the kubelet's metrics call it.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Signal(signal) => signal.to_string(),
            Self::Limit(limit) => limit.as_str().to_owned(),
        }
    }

    /// The condition that has to end before the pod may come back.
    #[must_use]
    pub fn condition(self) -> Option<Pressure> {
        match self {
            Self::Signal(signal) => Some(signal.condition()),
            Self::Limit(_) => None,
        }
    }

    /// True when the end of the pod makes room for a condition. An emptyDir may lie in memory.
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
    /// What the pod's status and events say about it, and how the pod is stopped.
    pub hold: Arc<Hold>,
    /// Wall time of the eviction.
    pub at: Timestamp,
    /// How many evictions in a row this is, from 1.
    pub count: u32,
    /// The shortest time for which the pod stays away.
    pub pause_seconds: u64,
    /// It is a pod of the API server, which never comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_good: bool,
    /// Wall time from which on it may start again; `None` while it is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back: Option<Timestamp>,
}

/// What an evicted pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Parts of the pod still run.
    pub stopping: bool,
    /// The condition that has to end, if it still holds.
    pub condition: Option<Pressure>,
    /// Some signals were not read since the start of the agent.
    pub unknown: bool,
    /// The rest of its back-off.
    pub pause: Duration,
}

/// What [`Evictions::look`] changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pods that may come back from now on.
    pub back: Vec<PodKey>,
    /// Records were changed or dropped, and have to be saved.
    pub changed: bool,
    /// The time until the next pause is over.
    pub next_look: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    record: EvictionRecord,
    /// Boot time at which it was last ordered to stop.
    told: Duration,
    /// Boot time up to which it stays away, or from which it is forgotten.
    until: Duration,
    /// Parts of it still run: it can neither start again nor be evicted again.
    stopping: bool,
}

/// Every eviction that is not forgotten, by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions(BTreeMap<PodKey, Entry>);

impl Evictions {
    /// Continues with the records of an earlier run of the agent.
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
        Self(records.into_iter().map(entry).collect_ordered())
    }

    /// Notes an eviction, and returns the record that has to be saved before the pod is stopped.
    /// The record of a pod that is away already stays as it was.
    pub fn evict(
        &mut self,
        candidate: &Candidate<'_>,
        cause: Cause,
        hold: Hold,
        now: Now,
    ) -> &EvictionRecord {
        // Another incarnation under this name is another pod, which may use less.
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
                    for_good: !is_static(candidate.pod),
                    back: None,
                };
                let until = now.boot.saturating_add(pause);
                Entry { record, told: now.boot, until, stopping: false }
            }
        };
        &self.0.entry(candidate.key.clone()).or_insert(entry).record
    }

    /// Cuts short the grace period of an evicted pod. Returns true when it had one: then the record
    /// has to be saved.
    pub fn hurry(&mut self, key: &PodKey, uid: &PodUid, now: Now) -> bool {
        let entry = self.0.get_mut(key).filter(|entry| entry.record.uid == *uid);
        entry.is_some_and(|entry| entry.hurry(now))
    }

    /// Cuts short the grace periods of evicted pods whose end relieves the condition, one second
    /// after they were told to stop: a hard threshold is crossed. Returns the pods that had one.
    pub fn hurry_all(&mut self, condition: Pressure, now: Now) -> Vec<PodKey> {
        let due = |entry: &Entry| {
            entry.stopping
                && entry.record.cause.relieves(condition)
                && now.boot >= entry.told.saturating_add(Duration::from_secs(1))
        };
        let hurried = |(key, entry): (&PodKey, &mut Entry)| {
            (due(entry) && entry.hurry(now)).then(|| key.clone())
        };
        self.0.iter_mut().filter_map(hurried).collect()
    }

    /// Notes which evicted pods still run. Returns true when one of them has ended since the last
    /// call.
    pub fn observe(&mut self, runs: impl Fn(&PodKey, &PodUid) -> bool) -> bool {
        let mut ended = false;
        for (key, entry) in &mut self.0 {
            let stopping = runs(key, &entry.record.uid);
            ended |= entry.stopping && !stopping && entry.record.back.is_none();
            entry.stopping = stopping;
        }
        ended
    }

    /// True while an evicted pod whose end relieves the condition is stopping and is not late. That
    /// may be a pod that an earlier run of the agent evicted.
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

    /// Drops the records of pods that are no longer wished. Returns true when there were any.
    pub fn retain(&mut self, is_wished: impl Fn(&EvictionRecord) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|_, entry| is_wished(&entry.record));
        self.0.len() != before
    }

    /// Lets pods come back that wait for nothing, and forgets records after [`FORGOTTEN_AFTER`].
    /// `known`: every signal was read since the start, or could not be for long.
    pub fn look(&mut self, conditions: &BTreeSet<Pressure>, known: bool, now: Now) -> Looked {
        let mut looked = Looked::default();
        let before = self.0.len();
        self.0.retain(|_, entry| entry.record.back.is_none() || now.boot < entry.until);
        looked.changed = self.0.len() != before;
        let may_come_back = |(_, entry): &(&PodKey, &mut Entry)| !entry.record.for_good;
        for (key, entry) in self.0.iter_mut().filter(may_come_back) {
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

    /// The records of pods that are away and were evicted less than `within` ago by the wall clock.
    /// For the start of the agent: the times of an earlier run are wall times.
    pub(super) fn recent(
        &self,
        within: Duration,
        now: Now,
    ) -> impl Iterator<Item = &EvictionRecord> {
        let away = self.records().filter(|record| record.back.is_none());
        away.filter(move |record| now.age_of(record.at) < within)
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

    /// The records to save, by pod.
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
        away.map(|(key, entry)| (key.clone(), evicted(&entry.record))).collect_ordered()
    }
}

impl Entry {
    /// Cuts short its grace period. Returns true when it is away and had one.
    fn hurry(&mut self, now: Now) -> bool {
        let hold = &mut self.record.hold;
        let had_time = self.record.back.is_none() && hold.stop != HoldStop::AtOnce;
        if had_time {
            *hold = Arc::new(Hold { stop: HoldStop::AtOnce, ..Hold::clone(hold) });
            self.told = now.boot;
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
