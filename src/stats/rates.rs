//! CPU time per second, from two readings of a counter.

use crate::model::{CgroupStats, Stats};
use std::{collections::HashMap, time::Duration};

/// Two readings that are closer tell of noise.
const SHORTEST: Duration = Duration::from_millis(500);
/// The time over which a rate is taken while clients ask often.
const WINDOW: Duration = Duration::from_secs(10);
/// No rate is taken over a longer time: it would not tell what happens now.
const LONGEST: Duration = Duration::from_secs(300);

/// Earlier readings of CPU time. They are as many as there were cgroups in the last collection.
#[derive(Default)]
pub(super) struct Rates {
    of: HashMap<Box<str>, Counter>,
}

/// Readings of one counter, with boot times.
#[derive(Clone, Copy)]
struct Counter {
    /// What rates are taken from.
    base: CpuReading,
    /// Becomes the base when that is older than the window.
    next: CpuReading,
}

#[derive(Clone, Copy)]
struct CpuReading {
    at: Duration,
    usage: Duration,
}

impl Rates {
    /// Fills in the rates of everything that was read at `now` (boot time) and before.
    pub(super) fn put(&mut self, stats: &mut Stats, now: Duration) {
        let mut earlier = std::mem::take(&mut self.of);
        let mut put = |key: &str, stats: Option<&mut CgroupStats>| {
            let Some(stats) = stats else { return };
            let Some(usage) = stats.cpu.map(|cpu| cpu.usage) else { return };
            let reading = CpuReading { at: now, usage };
            let counter = earlier.remove(key).map(|counter| counter.with(reading));
            let counter = counter.unwrap_or(Counter { base: reading, next: reading });
            stats.cpu_rate = counter.base.rate_to(reading);
            self.of.insert(key.into(), counter);
        };
        // No uid and no id of a container begins with a slash.
        put("/", Some(&mut stats.node.machine));
        put("/agent", Some(&mut stats.node.agent));
        put("/pods", stats.node.pods.as_mut());
        for pod in &mut stats.pods {
            put(pod.uid.as_str(), pod.stats.as_mut());
            for container in &mut pod.containers {
                put(&container.id, container.stats.as_mut());
            }
        }
    }
}

impl Counter {
    fn with(self, reading: CpuReading) -> Self {
        let age = reading.at.saturating_sub(self.next.at);
        // A counter that went backwards is another one.
        if reading.usage < self.next.usage || age > LONGEST {
            return Self { base: reading, next: reading };
        }
        if age >= WINDOW {
            return Self { base: self.next, next: reading };
        }
        self
    }
}

impl CpuReading {
    /// Nanoseconds per second.
    fn rate_to(self, later: Self) -> Option<u64> {
        let time = later.at.saturating_sub(self.at);
        let used = later.usage.checked_sub(self.usage)?;
        let rate = (time >= SHORTEST).then(|| used.as_nanos() * 1_000_000_000 / time.as_nanos());
        rate.and_then(|rate| u64::try_from(rate).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: u64, usage: u64) -> CpuReading {
        CpuReading { at: Duration::from_secs(at), usage: Duration::from_millis(usage) }
    }

    #[test]
    fn a_rate_is_taken_over_ten_to_twenty_seconds() {
        let mut counter = Counter { base: reading(0, 0), next: reading(0, 0) };
        assert_eq!(counter.base.rate_to(reading(0, 0)), None, "one reading has no rate");
        // A tenth of a CPU, asked for every second.
        for second in 1..=40 {
            counter = counter.with(reading(second, second * 100));
            let age = second - counter.base.at.as_secs();
            assert!((1..=20).contains(&age), "{second}: {age}");
            assert_eq!(counter.base.rate_to(reading(second, second * 100)), Some(100_000_000));
        }
        // Asked for once a minute.
        counter = counter.with(reading(100, 10_000));
        assert_eq!(counter.base.rate_to(reading(100, 10_000)), Some(100_000_000));
        // Asked for after hours.
        counter = counter.with(reading(9000, 900_000));
        assert_eq!(counter.base.rate_to(reading(9000, 900_000)), None);
        assert_eq!(counter.base.rate_to(reading(9001, 900_500)), Some(500_000_000));
    }

    #[test]
    fn a_counter_that_went_backwards_begins_anew() {
        let counter = Counter { base: reading(0, 500), next: reading(5, 900) };
        let counter = counter.with(reading(6, 10));
        assert_eq!(counter.base.rate_to(reading(6, 10)), None);
        assert_eq!(counter.base.rate_to(reading(8, 2010)), Some(1_000_000_000));
    }
}
