//! Eviction thresholds, and how they are read from the maps of KubeletConfiguration: by the
//! kubelet's rules, but with all mistakes at once.

use super::amount::{Amount, AmountError, measured};
use crate::model::{DiskLayout, Order as _, Signal, format_duration, parse_duration};
use std::{collections::BTreeMap, fmt, time::Duration};

/// The kubelet's default of `evictionHard`.
pub const DEFAULT_HARD: [(Signal, &str); 5] = [
    (Signal::MemoryAvailable, "100Mi"),
    (Signal::NodefsAvailable, "10%"),
    (Signal::NodefsInodesFree, "5%"),
    (Signal::ImagefsAvailable, "15%"),
    (Signal::ImagefsInodesFree, "5%"),
];

/// A threshold, which is met while less than `value` is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// How long it must be met before nodelet acts; `None` for a hard threshold, which takes effect
    /// at once.
    pub grace: Option<Duration>,
    /// The amount that must be available.
    pub value: Amount,
    /// How much more than `value` must be available before nodelet stops acting.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// True for a hard threshold.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_none()
    }

    /// The amount, for a capacity, that must be available before nodelet stops acting.
    #[must_use]
    pub fn relieved_at(&self, capacity: u64) -> u64 {
        let more = self.min_reclaim.map_or(0, |reclaim| reclaim.resolve(capacity));
        self.value.resolve(capacity).saturating_add(more)
    }

    /// True when the threshold can be satisfied. Otherwise it would be met for ever, whatever is
    /// evicted.
    #[must_use]
    pub fn fits(&self, capacity: u64) -> bool {
        self.relieved_at(capacity) < capacity
    }
}

/// `memory.available<100Mi`, `nodefs.available<10% for 1m30s`
impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}", self.signal, self.value)?;
        self.grace.map_or(Ok(()), |grace| write!(f, " for {}", format_duration(grace)))
    }
}

/// A field of KubeletConfiguration that thresholds are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// `evictionHard`
    Hard,
    /// `evictionSoft`
    Soft,
    /// `evictionSoftGracePeriod`
    SoftGrace,
    /// `evictionMinimumReclaim`
    MinReclaim,
}

impl Setting {
    #[cfg(test)]
    pub(super) const ALL: [Self; 4] = [Self::Hard, Self::Soft, Self::SoftGrace, Self::MinReclaim];

    /// The field's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hard => "evictionHard",
            Self::Soft => "evictionSoft",
            Self::SoftGrace => "evictionSoftGracePeriod",
            Self::MinReclaim => "evictionMinimumReclaim",
        }
    }
}

/// The maps of the configuration: signal names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written<'a> {
    /// `evictionHard`, by default [`DEFAULT_HARD`].
    pub hard: BTreeMap<&'a str, &'a str>,
    /// `evictionSoft`
    pub soft: BTreeMap<&'a str, &'a str>,
    /// `evictionSoftGracePeriod`
    pub soft_grace: BTreeMap<&'a str, &'a str>,
    /// `evictionMinimumReclaim`
    pub min_reclaim: BTreeMap<&'a str, &'a str>,
    /// `mergeDefaultEvictionSettings`
    pub merge_defaults: bool,
    /// `enforceNodeAllocatable` has `pods`.
    pub enforce_pods: bool,
}

/// An invalid entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The field.
    pub setting: Setting,
    /// Its key, which should be the name of a signal.
    pub key: String,
    /// Its value as written.
    pub value: String,
    /// What is wrong with it.
    pub kind: MistakeKind,
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MistakeKind {
    /// The key is no signal.
    UnknownSignal,
    /// The value is neither a quantity nor a percentage.
    NoAmount,
    /// The value must be more than 0.
    NotPositive,
    /// The percentage is below 0.
    PercentBelow,
    /// The percentage is above 100.
    PercentAbove,
    /// The minimum reclaim is below 0.
    ReclaimNegative,
    /// The minimum reclaim is no part of the capacity.
    ReclaimPercent,
    /// A soft threshold has no grace period.
    NoGrace,
    /// The grace period is no duration, or is negative.
    BadGrace,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (&self.key, &self.value);
        match self.kind {
            MistakeKind::UnknownSignal => write!(f, "unsupported eviction signal {key}"),
            MistakeKind::NoAmount => write!(
                f,
                "eviction threshold {key} must be a quantity like 100Mi, or a percentage like 10%: {value}"
            ),
            MistakeKind::NotPositive => {
                write!(f, "eviction threshold {key} must be positive: {value}")
            }
            MistakeKind::PercentBelow => {
                write!(f, "eviction percentage threshold {key} must be >= 0%: {value}")
            }
            MistakeKind::PercentAbove => {
                write!(f, "eviction percentage threshold {key} must be <= 100%: {value}")
            }
            MistakeKind::ReclaimNegative => {
                write!(f, "minimum reclaim of {key} must not be negative: {value}")
            }
            MistakeKind::ReclaimPercent => {
                write!(f, "minimum reclaim of {key} must be more than 0% and at most 100%: {value}")
            }
            MistakeKind::NoGrace => {
                write!(f, "grace period must be specified for the soft eviction threshold {key}")
            }
            MistakeKind::BadGrace => write!(
                f,
                "grace period of the soft eviction threshold {key} must be a duration like 1m30s that is not negative: {value}"
            ),
        }
    }
}

/// An entry without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The field.
    pub setting: Setting,
    /// The signal.
    pub signal: Signal,
    /// Why.
    pub why: &'static str,
}

/// The thresholds of the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedThresholds {
    /// Sorted by signal, hard thresholds first. Thresholds of containerfs are not included: they
    /// depend on the layout of the disks (`EvictionSettings::on_machine`).
    pub thresholds: Vec<Threshold>,
    /// Entries without effect.
    pub notices: Vec<Notice>,
}

/// Reads the maps.
///
/// # Errors
/// All mistakes in the maps.
pub fn parse(written: &Written<'_>) -> Result<ParsedThresholds, Vec<Mistake>> {
    let mut reading = SettingsReader::default();
    let mut hard = written.hard.clone();
    for (signal, value) in DEFAULT_HARD.iter().filter(|_| written.merge_defaults) {
        hard.entry(signal.name()).or_insert(value);
    }
    let reclaim: BTreeMap<Signal, Option<Amount>> =
        reading.all(Setting::MinReclaim, &written.min_reclaim, reclaim);
    let grace = reading.all(Setting::SoftGrace, &written.soft_grace, |text| {
        parse_duration(text).ok_or(MistakeKind::BadGrace)
    });
    let hard = reading.all(Setting::Hard, &hard, threshold);
    let soft = reading.all(Setting::Soft, &written.soft, threshold);
    for (key, value) in &written.soft {
        let on = Signal::from_name(key).is_some() && threshold(value.trim()) != Ok(None);
        if on && !written.soft_grace.contains_key(key) {
            reading.mistake(Setting::Soft, key, value, MistakeKind::NoGrace);
        }
    }
    if !reading.mistakes.is_empty() {
        reading.mistakes.order_by(|a, b| (a.setting, &a.key).cmp(&(b.setting, &b.key)));
        return Err(reading.mistakes);
    }
    let mut notices = Vec::new();
    let mut thresholds = Vec::new();
    let mut add = |setting: Setting, signal: Signal, value: Amount, grace: Option<Duration>| {
        if containerfs(signal) {
            let why = "containerfs uses the thresholds of its file system";
            notices.push(Notice { setting, signal, why });
            return;
        }
        // A soft threshold with a grace period of 0 is a hard one.
        let grace = grace.filter(|grace| !grace.is_zero());
        let min_reclaim = reclaim.get(&signal).copied().flatten();
        thresholds.push(Threshold { signal, grace, value, min_reclaim });
    };
    for (signal, value) in &hard {
        if let Some(value) = value {
            add(Setting::Hard, *signal, *value, None);
        }
    }
    for (signal, value) in &soft {
        if let Some(value) = value {
            add(Setting::Soft, *signal, *value, grace.get(signal).copied());
        }
    }
    for signal in grace.keys().filter(|signal| !soft.contains_key(signal)) {
        let why = "evictionSoft has no threshold for it";
        notices.push(Notice { setting: Setting::SoftGrace, signal: *signal, why });
    }
    for signal in reclaim.keys() {
        if !thresholds.iter().any(|threshold| threshold.signal == *signal) {
            let why = "there is no threshold for it";
            notices.push(Notice { setting: Setting::MinReclaim, signal: *signal, why });
        }
    }
    if written.enforce_pods {
        let of_pods: Vec<Threshold> = thresholds
            .iter()
            .filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard())
            .map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t })
            .collect();
        thresholds.extend(of_pods);
    }
    thresholds.order();
    thresholds.dedup();
    Ok(ParsedThresholds { thresholds, notices })
}

/// The thresholds of a machine: those of containerfs are copies of the thresholds of its file
/// system.
#[must_use]
pub(super) fn for_layout(thresholds: &[Threshold], layout: DiskLayout) -> Vec<Threshold> {
    let copied = |signal: Signal| match (layout, signal) {
        (DiskLayout::Single | DiskLayout::Split, Signal::NodefsAvailable)
        | (DiskLayout::DedicatedImages, Signal::ImagefsAvailable) => {
            Some(Signal::ContainerfsAvailable)
        }
        (DiskLayout::Single | DiskLayout::Split, Signal::NodefsInodesFree)
        | (DiskLayout::DedicatedImages, Signal::ImagefsInodesFree) => {
            Some(Signal::ContainerfsInodesFree)
        }
        (
            DiskLayout::Single
            | DiskLayout::DedicatedImages
            | DiskLayout::Split
            | DiskLayout::LayersElsewhere { .. },
            _,
        ) => None,
    };
    let mut all: Vec<Threshold> =
        thresholds.iter().filter(|threshold| !containerfs(threshold.signal)).copied().collect();
    let copies: Vec<Threshold> =
        all.iter().filter_map(|t| Some(Threshold { signal: copied(t.signal)?, ..*t })).collect();
    all.extend(copies);
    all.order();
    all
}

/// A threshold that can't be satisfied: on this machine it would always be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Which.
    pub threshold: Threshold,
    /// The capacity.
    pub capacity: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threshold, capacity } = self;
        write!(f, "eviction threshold {threshold} must be below the capacity")?;
        if let Some(reclaim) = threshold.min_reclaim {
            write!(f, ", together with its minimum reclaim of {reclaim}")?;
        }
        write!(f, ": {}", measured(threshold.signal, *capacity))
    }
}

/// Finds thresholds that a machine with these capacities can't satisfy. Signals without a capacity
/// are not checked.
///
/// # Errors
/// Each of them.
pub(super) fn check_against(
    thresholds: &[Threshold],
    capacities: &BTreeMap<Signal, u64>,
) -> Result<(), Vec<TooLarge>> {
    let wrong: Vec<TooLarge> = thresholds
        .iter()
        .filter_map(|threshold| {
            let capacity = *capacities.get(&threshold.signal).filter(|capacity| **capacity > 0)?;
            (!threshold.fits(capacity)).then_some(TooLarge { threshold: *threshold, capacity })
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

fn containerfs(signal: Signal) -> bool {
    matches!(signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree)
}

/// Collects mistakes while the maps are read.
#[derive(Default)]
struct SettingsReader {
    mistakes: Vec<Mistake>,
}

impl SettingsReader {
    fn mistake(&mut self, setting: Setting, key: &str, value: &str, kind: MistakeKind) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.mistakes.push(Mistake { setting, key, value, kind });
    }

    fn all<T>(
        &mut self,
        setting: Setting,
        written: &BTreeMap<&str, &str>,
        read: impl Fn(&str) -> Result<T, MistakeKind>,
    ) -> BTreeMap<Signal, T> {
        let mut all = BTreeMap::new();
        for (key, text) in written {
            match (Signal::from_name(key), read(text.trim())) {
                (Some(signal), Ok(value)) => {
                    all.insert(signal, value);
                }
                (None, _) => self.mistake(setting, key, text, MistakeKind::UnknownSignal),
                (Some(_), Err(kind)) => self.mistake(setting, key, text, kind),
            }
        }
        all
    }
}

/// A threshold's value; `None` when it is switched off.
fn threshold(text: &str) -> Result<Option<Amount>, MistakeKind> {
    match Amount::read(text) {
        Ok(Amount::Number(0)) => Err(MistakeKind::NotPositive),
        Ok(amount) => Ok(Some(amount).filter(|amount| !amount.is_off())),
        Err(AmountError::Syntax) => Err(MistakeKind::NoAmount),
        Err(AmountError::Negative) if text.ends_with('%') => Err(MistakeKind::PercentBelow),
        Err(AmountError::Negative) => Err(MistakeKind::NotPositive),
        Err(AmountError::AboveWhole) => Err(MistakeKind::PercentAbove),
    }
}

/// A minimum reclaim; `None` for none.
fn reclaim(text: &str) -> Result<Option<Amount>, MistakeKind> {
    match Amount::read(text) {
        Ok(Amount::Number(0)) => Ok(None),
        Ok(Amount::Percent(0)) | Err(AmountError::AboveWhole) => Err(MistakeKind::ReclaimPercent),
        Ok(amount) => Ok(Some(amount)),
        Err(AmountError::Syntax) => Err(MistakeKind::NoAmount),
        Err(AmountError::Negative) => Err(MistakeKind::ReclaimNegative),
    }
}
