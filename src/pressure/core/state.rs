//! Which thresholds are met, which conditions hold because of it, and what is to be acted on.
//!
//! ```text
//!            available < value                          since its grace period, on a new reading
//!  cleared ────────────────────► met, condition raised ─────────────────────────────────────────► acting
//!     ▲                                │ available >= value                                          │
//!     └────────────────────────────────┴─────────────────── available >= value + minimum reclaim ────┘
//!
//!  a condition holds until nothing raised it for the transition period
//! ```
//!
//! The rules are the kubelet's. On top of them: a reading that is missing, old or makes no sense is
//! told and decides nothing; nothing is acted on before every signal of its kind was read once, nor
//! on a reading from before the last thing that was done.

use super::{settings::EvictionSettings, threshold::Threshold};
use crate::model::{Pressure, Reading, Readings, Signal, rough_seconds};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

/// The longest time between two looks.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// A reading that is older says nothing about now.
const TOO_OLD: Duration = Duration::from_secs(30);
/// How long signals that can't be read keep the others of their kind from being acted on, after a
/// start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that is met, its time so far divided by this: first often, then
/// less.
const MET_PART: u32 = 8;

/// Why a signal decides nothing for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingProblem {
    /// It could not be read.
    Missing,
    /// Its capacity is 0: nothing is mounted there, or the cgroup is gone.
    NoCapacity,
    /// More is available than there is altogether.
    MoreThanAll(Reading),
    /// One of its thresholds is a number that leaves nothing of this capacity: there was more at
    /// the start. The others are kept.
    Shrunk(Reading),
    /// It was taken after now, or before the last one: the clock that it was taken by is another
    /// one.
    OtherClock,
    /// It was taken this long ago.
    TooOld(Duration),
}

impl fmt::Display for ReadingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("could not be read"),
            Self::NoCapacity => f.write_str("has no capacity"),
            Self::MoreThanAll(reading) => {
                write!(f, "makes no sense: more than all {} are available", reading.capacity)
            }
            Self::Shrunk(reading) => {
                write!(f, "has a threshold that is not below its capacity of {}", reading.capacity)
            }
            Self::OtherClock => f.write_str("was read at a time that makes no sense"),
            Self::TooOld(age) => write!(f, "was not read for {} s or more", rough_seconds(*age)),
        }
    }
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Which.
    pub threshold: Threshold,
    /// The reading that shows it.
    pub reading: Reading,
    /// Boot time of the first reading that showed it.
    pub since: Duration,
}

/// A threshold to be acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// Which.
    pub threshold: Threshold,
    /// The reading that shows it.
    pub reading: Reading,
    /// How much has to be freed, the minimum reclaim included; at least 1.
    pub shortfall: u64,
}

/// A condition that began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub condition: Pressure,
    /// Whether it holds now.
    pub holds: bool,
}

/// What follows from a look at the readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureStep {
    /// A whole sample was taken since the start: every signal was read, or could not be for long.
    pub known: bool,
    /// Conditions that hold.
    pub conditions: BTreeSet<Pressure>,
    /// What changed about them.
    pub changes: Vec<Change>,
    /// Every threshold that is met, by signal.
    pub met: Vec<Met>,
    /// What to act on, in this order: memory first, hard before soft. One thing is done, and the
    /// next step decides anew.
    pub acting: Vec<Acting>,
    /// Signals with a threshold that decide nothing for now.
    pub problems: BTreeMap<Signal, ReadingProblem>,
    /// In what time each signal is to be read again.
    pub looks: BTreeMap<Signal, Duration>,
    /// In what time to look again: the first of them, or the end of a condition.
    pub next_look: Duration,
}

/// What has to be remembered between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PressureState {
    /// Thresholds that are met, with the time of the reading that showed it first.
    met: BTreeMap<Threshold, Duration>,
    /// Those of the last step that had to be acted on: they are met until their minimum reclaim is
    /// there too.
    acted_on: BTreeSet<Threshold>,
    /// When each condition was last seen.
    seen: BTreeMap<Pressure, Duration>,
    /// What held at the last step.
    held: BTreeSet<Pressure>,
    /// Time of the last reading of each signal.
    last: BTreeMap<Signal, Duration>,
    /// Time of the last reading of each signal that was acted on.
    used: BTreeMap<Signal, Duration>,
    /// Readings up to here know nothing of what was done last.
    done_at: Option<Duration>,
    /// When the first step was.
    started: Option<Duration>,
}

impl PressureState {
    /// A start after which `held` conditions go on, as if they had been seen now: whether they
    /// ended meanwhile is not known.
    #[must_use]
    pub fn restored(held: impl IntoIterator<Item = Pressure>, now: Duration) -> Self {
        let held: BTreeSet<Pressure> = held.into_iter().collect();
        let seen = held.iter().map(|condition| (*condition, now)).collect();
        Self { held, seen, ..Self::default() }
    }

    /// Something was freed or a pod was killed, which was finished at `at` (boot time): readings
    /// from before don't show it and are not acted on.
    pub fn acted(&mut self, at: Duration) {
        self.done_at = self.done_at.max(Some(at));
    }

    /// Whether a reading from then knows nothing of what was done last.
    #[must_use]
    pub fn is_outdated(&self, at: Duration) -> bool {
        self.done_at.is_some_and(|done| at <= done)
    }

    /// Takes in readings at boot time `now`.
    pub fn step(
        &mut self,
        settings: &EvictionSettings,
        readings: &Readings,
        now: Duration,
    ) -> PressureStep {
        let started = *self.started.get_or_insert(now);
        let (usable, problems) = self.judge(&settings.thresholds, readings, now);
        self.last.extend(usable.iter().map(|(signal, reading)| (*signal, reading.at)));

        let met = self.meet(&settings.thresholds, &usable);
        let changes = self.hold(&met, settings.transition, now);
        let patient = now.saturating_sub(started) < PATIENCE;
        let unread = |signal: Signal| {
            patient && problems.contains_key(&signal) && !self.last.contains_key(&signal)
        };
        let waiting: BTreeSet<Pressure> = settings
            .thresholds
            .iter()
            .filter(|threshold| unread(threshold.signal))
            .map(|threshold| threshold.signal.condition())
            .collect();
        let due: Vec<Met> = met.iter().filter(|met| is_due(met)).copied().collect();
        self.acted_on = due.iter().map(|met| met.threshold).collect();
        let acting = self.act(&due, &waiting);
        let looks = self.looks(&settings.thresholds, &usable, &problems, now);
        let next_look = looks.values().copied().chain(self.release(settings.transition, now));
        let next_look = next_look.min().unwrap_or(LONGEST_LOOK);
        PressureStep {
            known: waiting.is_empty(),
            conditions: self.held.clone(),
            changes,
            met,
            acting,
            problems,
            looks,
            next_look,
        }
    }

    /// Readings that may decide something, and what is wrong with the others.
    fn judge(
        &self,
        thresholds: &[Threshold],
        readings: &Readings,
        now: Duration,
    ) -> (Readings, BTreeMap<Signal, ReadingProblem>) {
        let (mut usable, mut problems) = (Readings::new(), BTreeMap::new());
        for threshold in thresholds {
            let signal = threshold.signal;
            let Some(reading) = readings.get(&signal) else {
                problems.insert(signal, ReadingProblem::Missing);
                continue;
            };
            match self.problem(signal, reading, now) {
                Some(problem) => {
                    problems.insert(signal, problem);
                }
                // A file system that makes inodes as it needs them (btrfs) tells of none.
                None if counts_inodes(signal) && reading.capacity == 0 => {}
                None => {
                    usable.insert(signal, *reading);
                    if !fits(threshold, reading) {
                        problems.insert(signal, ReadingProblem::Shrunk(*reading));
                    }
                }
            }
        }
        (usable, problems)
    }

    /// What is wrong with a reading.
    fn problem(&self, signal: Signal, reading: &Reading, now: Duration) -> Option<ReadingProblem> {
        let age = now.saturating_sub(reading.at);
        if reading.at > now || self.last.get(&signal).is_some_and(|last| reading.at < *last) {
            return Some(ReadingProblem::OtherClock);
        }
        if age > TOO_OLD {
            return Some(ReadingProblem::TooOld(age));
        }
        if reading.available > reading.capacity {
            return Some(ReadingProblem::MoreThanAll(*reading));
        }
        (reading.capacity == 0 && !counts_inodes(signal)).then_some(ReadingProblem::NoCapacity)
    }

    /// Which thresholds are met. One that was acted on is met until its minimum reclaim is there as
    /// well.
    fn meet(&mut self, thresholds: &[Threshold], usable: &Readings) -> Vec<Met> {
        let mut met = Vec::new();
        for threshold in thresholds {
            let reading = usable.get(&threshold.signal).filter(|r| fits(threshold, r));
            let Some(reading) = reading else { continue };
            let bound = match self.acted_on.contains(threshold) {
                true => threshold.relieved_at(reading.capacity),
                false => threshold.value.resolve(reading.capacity),
            };
            if reading.available < bound {
                let since = self.met.get(threshold).copied().unwrap_or(reading.at);
                met.push(Met { threshold: *threshold, reading: *reading, since });
            }
        }
        self.met = met.iter().map(|met| (met.threshold, met.since)).collect();
        met
    }

    /// Which conditions hold: those that were seen within the transition period.
    fn hold(&mut self, met: &[Met], transition: Duration, now: Duration) -> Vec<Change> {
        for met in met {
            self.seen.insert(met.threshold.signal.condition(), now);
        }
        let shown: BTreeSet<Pressure> =
            met.iter().map(|met| met.threshold.signal.condition()).collect();
        self.seen.retain(|condition, seen| {
            shown.contains(condition) || now.saturating_sub(*seen) < transition
        });
        let held: BTreeSet<Pressure> = self.seen.keys().copied().collect();
        let changes = held
            .symmetric_difference(&self.held)
            .map(|condition| Change { condition: *condition, holds: held.contains(condition) });
        let changes = changes.collect();
        self.held = held;
        changes
    }

    /// What to act on: only by readings that are newer than what was done before.
    fn act(&mut self, due: &[Met], waiting: &BTreeSet<Pressure>) -> Vec<Acting> {
        let new = |met: &&Met| {
            let signal = met.threshold.signal;
            Some(met.reading.at) > self.used.get(&signal).copied()
                && !self.is_outdated(met.reading.at)
                && !waiting.contains(&signal.condition())
        };
        let mut acting: Vec<Acting> = due
            .iter()
            .filter(new)
            .map(|met| Acting {
                threshold: met.threshold,
                reading: met.reading,
                shortfall: met
                    .threshold
                    .relieved_at(met.reading.capacity)
                    .saturating_sub(met.reading.available)
                    .max(1),
            })
            .collect();
        acting.sort_by_key(|acting| {
            let signal = acting.threshold.signal;
            (signal.condition() != Pressure::Memory, !acting.threshold.is_hard(), acting.threshold)
        });
        self.used.extend(acting.iter().map(|acting| (acting.threshold.signal, acting.reading.at)));
        acting
    }

    /// In what time each signal can have changed in a way that matters.
    fn looks(
        &self,
        thresholds: &[Threshold],
        usable: &Readings,
        problems: &BTreeMap<Signal, ReadingProblem>,
        now: Duration,
    ) -> BTreeMap<Signal, Duration> {
        let mut looks = BTreeMap::new();
        for threshold in thresholds {
            let pace = Pace::of(threshold.signal);
            let reading = usable.get(&threshold.signal).filter(|r| fits(threshold, r));
            let wanted = match (reading, self.met.get(threshold)) {
                (None, _) if problems.contains_key(&threshold.signal) => pace.watchful,
                (None, _) => LONGEST_LOOK,
                (Some(reading), None) => {
                    pace.reaches(threshold.value.resolve(reading.capacity), reading.available)
                }
                (Some(_), Some(since)) => {
                    let due = since.saturating_add(threshold.grace.unwrap_or_default());
                    match due.checked_sub(now) {
                        Some(left) if !left.is_zero() => left,
                        Some(_) | None => (now.saturating_sub(due) / MET_PART).min(pace.watchful),
                    }
                }
            };
            let look = looks.entry(threshold.signal).or_insert(LONGEST_LOOK);
            *look = wanted.max(pace.shortest).min(*look);
        }
        looks
    }

    /// In what time each condition ends that nothing raises any more.
    fn release(&self, transition: Duration, now: Duration) -> impl Iterator<Item = Duration> {
        let raised = |condition: Pressure| {
            self.met.keys().any(|threshold| threshold.signal.condition() == condition)
        };
        self.seen.iter().filter(move |(condition, _)| !raised(**condition)).map(move |(_, seen)| {
            let left = seen.saturating_add(transition).saturating_sub(now);
            left.max(Duration::from_millis(50))
        })
    }
}

/// Whether a threshold was met for its grace period, by its readings.
fn is_due(met: &Met) -> bool {
    met.reading.at.saturating_sub(met.since) >= met.threshold.grace.unwrap_or_default()
}

/// Whether a threshold can be kept at all; otherwise it would be met for ever, whoever goes.
fn fits(threshold: &Threshold, reading: &Reading) -> bool {
    threshold.relieved_at(reading.capacity) < reading.capacity
}

fn counts_inodes(signal: Signal) -> bool {
    signal.resource() == "inodes"
}

/// How fast a signal may fall, and how often it is worth a look.
struct Pace {
    /// Units per second.
    per_second: u64,
    shortest: Duration,
    /// While it can't be read, and at most while it is met.
    watchful: Duration,
}

impl Pace {
    /// The speeds are about what one machine can do: touching memory on several cores, writing to
    /// the fastest disks, making files, forking.
    fn of(signal: Signal) -> Self {
        let quick = Duration::from_millis(50);
        let slow = Duration::from_millis(500);
        let (per_second, shortest) = match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => (4 << 30, quick),
            Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => {
                (2 << 30, slow)
            }
            Signal::NodefsInodesFree
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsInodesFree => (200_000, slow),
            Signal::PidAvailable => (50_000, quick),
        };
        Self { per_second, shortest, watchful: shortest * 20 }
    }

    /// The soonest time at which `available` may be down to `bound`.
    fn reaches(&self, bound: u64, available: u64) -> Duration {
        let micros =
            u128::from(available.saturating_sub(bound)) * 1_000_000 / u128::from(self.per_second);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}
