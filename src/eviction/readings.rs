//! Reads memory and process ids, cheaply where an exact reading is not needed.

use crate::{
    clock,
    model::{CollectOrdered as _, Reading, Readings, Signal},
    pressure::core::{EvictionSettings, MemorySignal, Threshold},
    signals::{self, MachineReader, Sample, SampleRequest},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

/// A cheap reading is enough while it is further than this from every threshold; bytes.
const FAR: u64 = 32 << 20;
/// The time between two exact readings for the status page.
const EXACT_PERIOD: Duration = Duration::from_secs(10);

/// The latest readings of all signals.
pub(super) struct SignalReadings {
    machine: MachineReader,
    /// The latest readings, cheap ones included.
    pub sample: Sample,
    /// The latest exact readings.
    exact: Readings,
    /// Boot time of the next exact readings.
    exact_due: Duration,
}

impl SignalReadings {
    pub(super) fn new(settings: &EvictionSettings) -> Self {
        Self {
            machine: machine(settings),
            sample: Sample::default(),
            exact: Readings::new(),
            exact_due: Duration::ZERO,
        }
    }

    /// Reads memory and process ids. `pods` is the memory cgroup of all pods.
    pub(super) fn read(&mut self, settings: &EvictionSettings, pods: Option<&Path>) {
        let now = clock::now().boot;
        let exactly = now >= self.exact_due;
        if exactly {
            self.exact_due = now.saturating_add(EXACT_PERIOD);
        }
        let thresholds = &settings.thresholds;
        let signals = thresholds.iter().map(|threshold| threshold.signal).collect_ordered();
        let is_far = |available: u64, capacity: u64| {
            let of_pods =
                |threshold: &&Threshold| threshold.signal == Signal::AllocatableMemoryAvailable;
            let of_signal = thresholds.iter().filter(of_pods);
            let nearest = of_signal.map(|threshold| threshold.relieved_at(capacity)).max();
            let far = nearest.unwrap_or_default().saturating_add(FAR.max(capacity / 16));
            !exactly && available > far
        };
        let sample =
            self.machine.sample(SampleRequest { signals: &signals, pods, is_far: &is_far });
        let exact = sample.readings.iter().filter(|(signal, _)| !sample.at_least.contains(signal));
        self.exact.extend(exact.map(|(signal, reading)| (*signal, *reading)));
        self.sample.update(sample);
    }

    /// The reading to show: the exact one where the latest is only a lower bound.
    pub(super) fn shown(&self, signal: Signal) -> Option<&Reading> {
        match self.sample.at_least.contains(&signal) {
            true => self.exact.get(&signal),
            false => self.sample.readings.get(&signal),
        }
    }
}

/// The capacities of memory and process ids, for [`EvictionSettings::check_against`].
#[must_use]
pub fn capacities(settings: &EvictionSettings) -> BTreeMap<Signal, u64> {
    let signals = BTreeSet::from([Signal::MemoryAvailable, Signal::PidAvailable]);
    let exactly = SampleRequest { signals: &signals, pods: None, is_far: &|_, _| false };
    let sample = machine(settings).sample(exactly);
    sample
        .readings
        .into_iter()
        .map(|(signal, reading)| (signal, reading.capacity))
        .collect_ordered()
}

fn machine(settings: &EvictionSettings) -> MachineReader {
    let signal = match settings.memory_signal {
        MemorySignal::WorkingSet => signals::MemorySignal::WorkingSet,
        MemorySignal::MemAvailable => signals::MemorySignal::MemAvailable,
    };
    MachineReader::new(Path::new("/proc"), signal)
}
