//! Answers that count for a while. The number of entries is bounded, so that requests with ever new
//! credentials take no memory.

use std::{collections::BTreeMap, time::Duration};

/// Answers by the SHA-256 of the question.
#[derive(Debug)]
pub(super) struct Cache<T> {
    most: usize,
    entries: BTreeMap<[u8; 32], Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    answer: T,
    /// Boot time.
    until: Duration,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, entries: BTreeMap::new() }
    }

    pub(super) fn get(&self, key: &[u8; 32], now: Duration) -> Option<T> {
        let entry = self.entries.get(key).filter(|entry| entry.until > now)?;
        Some(entry.answer.clone())
    }

    /// Keeps an answer. When the cache is full, the entry that would expire next makes room.
    pub(super) fn put(&mut self, key: [u8; 32], answer: T, until: Duration, now: Duration) {
        if until <= now {
            return;
        }
        if self.entries.len() >= self.most && !self.entries.contains_key(&key) {
            self.entries.retain(|_, entry| entry.until > now);
            let next = self.entries.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(next) =
                next.map(|(key, _)| *key).filter(|_| self.entries.len() >= self.most)
            {
                self.entries.remove(&next);
            }
        }
        self.entries.insert(key, Entry { answer, until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_expire_and_the_cache_stays_small() {
        let at = Duration::from_secs;
        let mut cache = Cache::new(2);
        cache.put([1; 32], "one", at(10), at(0));
        cache.put([2; 32], "two", at(20), at(0));
        cache.put([9; 32], "none", at(0), at(0));
        assert_eq!(cache.get(&[1; 32], at(9)), Some("one"));
        assert_eq!(cache.get(&[1; 32], at(10)), None);
        assert_eq!(cache.get(&[9; 32], at(0)), None);
        cache.put([3; 32], "three", at(30), at(5));
        assert_eq!(cache.get(&[1; 32], at(5)), None, "it would have expired next");
        assert_eq!(cache.get(&[2; 32], at(5)), Some("two"));
        cache.put([3; 32], "other", at(40), at(5));
        assert_eq!((cache.get(&[3; 32], at(5)), cache.entries.len()), (Some("other"), 2));
    }
}
