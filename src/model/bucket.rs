//! A token bucket: how often something may be done.

use std::time::Duration;

/// A token bucket, full at first. Time is an argument, since any fixed point; amounts are in
/// billionths of a token.
#[derive(Clone, Debug)]
pub struct Bucket {
    per_second: u128,
    capacity: u128,
    level: u128,
    at: Duration,
}

const TOKEN: u128 = 1_000_000_000;

impl Bucket {
    /// So many tokens a second, and so many at once.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let capacity = u128::from(burst) * TOKEN;
        Self { per_second: u128::from(per_second), capacity, level: capacity, at: Duration::ZERO }
    }

    /// Takes a token if there is one at `now`.
    pub fn take(&mut self, now: Duration) -> bool {
        self.wait(now).is_none()
    }

    /// Takes a token, or says how long it is until there is one; [`Duration::MAX`] when there never
    /// will be.
    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        let passed = now.saturating_sub(self.at).as_nanos();
        self.level = (self.level + passed * self.per_second).min(self.capacity);
        self.at = self.at.max(now);
        if self.level >= TOKEN {
            self.level -= TOKEN;
            return None;
        }
        if self.per_second == 0 || self.capacity < TOKEN {
            return Some(Duration::MAX);
        }
        let nanos = (TOKEN - self.level).div_ceil(self.per_second);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_at_its_rate() {
        let mut bucket = Bucket::new(2, 3);
        let at = |millis: u64| Duration::from_millis(millis);
        assert!(bucket.take(at(0)) && bucket.take(at(0)) && bucket.take(at(0)));
        assert!(!bucket.take(at(499)));
        assert_eq!(bucket.wait(at(499)), Some(Duration::from_millis(1)));
        assert!(bucket.take(at(500)));
        assert!(!bucket.take(at(400)), "time going back gives nothing");
        assert!(!bucket.take(at(900)));
        assert!(bucket.take(at(1000)));
        assert!(bucket.take(at(60_000)) && bucket.take(at(60_000)) && bucket.take(at(60_000)));
        assert!(!bucket.take(at(60_000)), "no more than the burst");
        assert_eq!(Bucket::new(0, 0).wait(at(0)), Some(Duration::MAX));
    }
}
