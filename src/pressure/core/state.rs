//! Decides which thresholds are met, which conditions hold, and for which thresholds to act.
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
//! The rules are the kubelet's, with two additions. A reading that is missing, too old or makes no
//! sense is reported and decides nothing. nodelet acts on a threshold only after every signal of
//! the same condition was read once, and only by a reading that is newer than its last action.

use super::{settings::EvictionSettings, threshold::Threshold};
use crate::model::{
    CollectOrdered as _, Order as _, Pressure, Reading, Readings, Signal, rough_seconds,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

/// The longest time between two readings.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// An older reading is not used.
const TOO_OLD: Duration = Duration::from_secs(30);
/// How long, after a start, signals that can't be read delay actions for other signals of the same
/// condition.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two readings of a signal whose threshold is met: the time since then, divided
/// by this. So readings become less frequent.
const MET_PART: u32 = 8;

/// Why a signal is not used for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingProblem {
    /// It could not be read.
    Missing,
    /// Its capacity is 0: nothing is mounted there, or the cgroup is gone.
    NoCapacity,
    /// More is available than the capacity.
    MoreThanAll(Reading),
    /// One of its thresholds is not below this capacity: a disk is small, or memory was removed
    /// since the start. Its other thresholds still apply.
    TooSmall(Reading),
    /// It was taken in the future or before the last reading, so by another clock.
    OtherClock,
    /// It is this old.
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
            Self::TooSmall(reading) => {
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

/// A threshold for which to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// Which.
    pub threshold: Threshold,
    /// The reading that shows it.
    pub reading: Reading,
    /// The amount to free, including the minimum reclaim; at least 1.
    pub shortfall: u64,
}

/// A condition that began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub condition: Pressure,
    /// True when it holds now.
    pub holds: bool,
}

/// The result of one evaluation of the readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureStep {
    /// Every signal was read since the start, or could not be read for 30 s.
    pub known: bool,
    /// The conditions that hold.
    pub conditions: BTreeSet<Pressure>,
    /// The conditions that changed.
    pub changes: Vec<Change>,
    /// Every threshold that is met, by signal.
    pub met: Vec<Met>,
    /// The thresholds for which to act, in this order: memory first, hard before soft. One action
    /// is taken, and then the readings are evaluated again.
    pub acting: Vec<Acting>,
    /// Signals with a threshold that are not used for decisions, with the reason.
    pub problems: BTreeMap<Signal, ReadingProblem>,
    /// The time until the next reading of each signal.
    pub looks: BTreeMap<Signal, Duration>,
    /// The time until the next evaluation: the earliest reading of memory or process ids, or the
    /// end of a condition. Disks are read by a task of their own, and each of its readings is
    /// evaluated when it comes.
    pub next_look: Duration,
}

/// State between two evaluations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PressureState {
    /// Thresholds that are met, with the time of the reading that showed it first.
    met: BTreeMap<Threshold, Duration>,
    /// The thresholds of the last evaluation for which to act. They are met until their minimum
    /// reclaim is available, too.
    acted_on: BTreeSet<Threshold>,
    /// When a threshold of each condition was last met.
    seen: BTreeMap<Pressure, Duration>,
    /// The conditions that held at the last evaluation.
    held: BTreeSet<Pressure>,
    /// Time of the last reading of each signal.
    last: BTreeMap<Signal, Duration>,
    /// Readings of a signal up to this time begin no step.
    used: BTreeMap<Signal, Duration>,
    /// Readings up to this time do not show the effect of the last action.
    done_at: Option<Duration>,
    /// The time of the first evaluation.
    started: Option<Duration>,
}

impl PressureState {
    /// The state after a restart. The conditions in `held` continue as if they had just been seen,
    /// because it is unknown whether they have ended.
    #[must_use]
    pub fn restored(held: impl IntoIterator<Item = Pressure>, now: Duration) -> Self {
        let held: BTreeSet<Pressure> = held.into_iter().collect_ordered();
        let seen = held.iter().map(|condition| (*condition, now)).collect_ordered();
        Self { held, seen, ..Self::default() }
    }

    /// Notes that an action (freeing a resource, or the end of a pod) was finished at `at` (boot
    /// time). Earlier readings do not show its effect and are not used.
    pub fn acted(&mut self, at: Duration) {
        self.done_at = self.done_at.max(Some(at));
    }

    /// Notes that a step was begun or was in vain for a signal. Readings up to `at` begin no other.
    pub fn use_readings(&mut self, signal: Signal, at: Duration) {
        let used = self.used.entry(signal).or_default();
        *used = at.max(*used);
    }

    /// True when a reading of this time does not show the effect of the last action.
    #[must_use]
    pub fn is_outdated(&self, at: Duration) -> bool {
        self.done_at.is_some_and(|done| at <= done)
    }

    /// True for 30 s after the first evaluation, while what is not known yet is awaited.
    #[must_use]
    pub fn is_patient(&self, now: Duration) -> bool {
        self.started.is_some_and(|started| now.saturating_sub(started) < PATIENCE)
    }

    /// Evaluates the readings at boot time `now`.
    pub fn step(
        &mut self,
        settings: &EvictionSettings,
        readings: &Readings,
        now: Duration,
    ) -> PressureStep {
        self.started.get_or_insert(now);
        let (usable, problems) = self.judge(&settings.thresholds, readings, now);
        self.last.extend(usable.iter().map(|(signal, reading)| (*signal, reading.at)));

        let met = self.meet(&settings.thresholds, &usable);
        let changes = self.hold(&met, settings.transition, now);
        let patient = self.is_patient(now);
        let unread = |signal: Signal| {
            patient && problems.contains_key(&signal) && !self.last.contains_key(&signal)
        };
        let waiting: BTreeSet<Pressure> = settings
            .thresholds
            .iter()
            .filter(|threshold| unread(threshold.signal))
            .map(|threshold| threshold.signal.condition())
            .collect_ordered();
        let due: Vec<Met> = met.iter().filter(|met| is_due(met)).copied().collect();
        self.acted_on = due.iter().map(|met| met.threshold).collect_ordered();
        let acting = self.act(&due, &waiting);
        let looks = self.looks(&settings.thresholds, &usable, &problems, now);
        let read_here = looks.iter().filter(|(signal, _)| signal.condition() != Pressure::Disk);
        let read_here = read_here.map(|(_, look)| *look);
        let next_look = read_here.chain(self.release(settings.transition, now)).min();
        PressureStep {
            known: waiting.is_empty(),
            conditions: self.held.clone(),
            changes,
            met,
            acting,
            problems,
            looks,
            next_look: next_look.unwrap_or(LONGEST_LOOK),
        }
    }

    /// Splits the readings into usable ones and problems.
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
                // A file system that creates inodes on demand (btrfs) reports a capacity of 0.
                None if counts_inodes(signal) && reading.capacity == 0 => {}
                None => {
                    usable.insert(signal, *reading);
                    if !threshold.fits(reading.capacity) {
                        problems.insert(signal, ReadingProblem::TooSmall(*reading));
                    }
                }
            }
        }
        (usable, problems)
    }

    /// The problem of a reading, if any.
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

    /// Returns the thresholds that are met. A threshold that was acted on is met until its minimum
    /// reclaim is available as well.
    fn meet(&mut self, thresholds: &[Threshold], usable: &Readings) -> Vec<Met> {
        let mut met = Vec::new();
        for threshold in thresholds {
            let reading = usable.get(&threshold.signal).filter(|r| threshold.fits(r.capacity));
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
        self.met = met.iter().map(|met| (met.threshold, met.since)).collect_ordered();
        met
    }

    /// Updates the conditions: those whose thresholds were met within the transition period hold.
    fn hold(&mut self, met: &[Met], transition: Duration, now: Duration) -> Vec<Change> {
        for met in met {
            self.seen.insert(met.threshold.signal.condition(), now);
        }
        let shown: BTreeSet<Pressure> =
            met.iter().map(|met| met.threshold.signal.condition()).collect_ordered();
        self.seen.retain(|condition, seen| {
            shown.contains(condition) || now.saturating_sub(*seen) < transition
        });
        let held: BTreeSet<Pressure> = self.seen.keys().copied().collect_ordered();
        let changes = held
            .symmetric_difference(&self.held)
            .map(|condition| Change { condition: *condition, holds: held.contains(condition) });
        let changes = changes.collect();
        self.held = held;
        changes
    }

    /// The thresholds for which to act. Only readings that are newer than the last action and were
    /// not used for a step count.
    fn act(&self, due: &[Met], waiting: &BTreeSet<Pressure>) -> Vec<Acting> {
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
        acting.order_by_key(|acting| {
            let signal = acting.threshold.signal;
            (signal.condition() != Pressure::Memory, !acting.threshold.is_hard(), acting.threshold)
        });
        acting
    }

    /// The time until each signal can reach a threshold.
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
            let reading = usable.get(&threshold.signal).filter(|r| threshold.fits(r.capacity));
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

    /// The time until the end of each condition that no threshold raises any more.
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

/// True when a threshold was met for its grace period, judged by the times of its readings.
fn is_due(met: &Met) -> bool {
    met.reading.at.saturating_sub(met.since) >= met.threshold.grace.unwrap_or_default()
}

fn counts_inodes(signal: Signal) -> bool {
    signal.resource() == "inodes"
}

/// How fast a signal may decrease, and how often it is read.
struct Pace {
    /// Units per second.
    per_second: u64,
    shortest: Duration,
    /// The period while it can't be read, and the longest period while a threshold is met.
    watchful: Duration,
}

impl Pace {
    /// The speeds are what one machine can reach: allocating memory on several cores, writing to
    /// the fastest disks, creating files, forking.
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

    /// The earliest time at which `available` can have decreased to `bound`.
    fn reaches(&self, bound: u64, available: u64) -> Duration {
        let micros =
            u128::from(available.saturating_sub(bound)) * 1_000_000 / u128::from(self.per_second);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}
