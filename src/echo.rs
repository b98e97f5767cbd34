//! Writes to the API server that its watch has not shown yet.
//!
//! The answer to a write is newer than what the watch shows until the watch has caught up. Without
//! it an object would be written twice, and one that was just deleted would be deleted again.

use std::{sync::Arc, time::Duration};

/// How long a watch that goes on may take to show what was written. After that, what it shows
/// counts: the object may have been deleted before the watch showed it, or the API server was
/// restored from an older state.
const PATIENCE: Duration = Duration::from_secs(10);

/// What tells one state of an object of the API server from another.
pub(crate) trait Versioned {
    /// `metadata.uid`
    fn uid(&self) -> &str;

    /// `metadata.resourceVersion`: within one kind of objects, it grows with every write to the API
    /// server (Kubernetes, "API concepts", resource versions; KEP-5504). 0 when it is missing.
    fn version(&self) -> u64;
}

/// The API server's answer to the last write of one object, until the watch shows it.
#[derive(Clone, Debug)]
pub(crate) struct Unechoed<T> {
    /// And boot time at which it came.
    answer: Option<(Answer<T>, Duration)>,
}

#[derive(Clone, Debug)]
enum Answer<T> {
    Object(Arc<T>),
    /// The object with this uid is gone.
    Gone(String),
}

impl<T> Default for Unechoed<T> {
    fn default() -> Self {
        Self { answer: None }
    }
}

impl<T: Versioned> Unechoed<T> {
    /// The object is like this now.
    pub(crate) fn wrote(&mut self, object: Arc<T>, now: Duration) {
        self.answer = Some((Answer::Object(object), now));
    }

    /// The object with this uid is gone now.
    pub(crate) fn deleted(&mut self, uid: String, now: Duration) {
        self.answer = Some((Answer::Gone(uid), now));
    }

    /// The answer is not believed any more.
    pub(crate) fn forget(&mut self) {
        self.answer = None;
    }

    /// Whether the watch has shown everything that was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.answer.is_none()
    }

    /// The object as the API server has it: as the watch shows it, or as the last write left it.
    /// `live` tells whether the watch goes on: one that is broken has all the time to show it.
    pub(crate) fn latest(
        &mut self,
        shown: Option<&Arc<T>>,
        live: bool,
        now: Duration,
    ) -> Option<Arc<T>> {
        self.answer.take_if(|(answer, at)| {
            if !live {
                *at = now;
            }
            answer.is_shown_by(shown.map(|shown| &**shown)) || now.saturating_sub(*at) > PATIENCE
        });
        match &self.answer {
            None => shown.cloned(),
            Some((Answer::Object(object), _)) => Some(Arc::clone(object)),
            Some((Answer::Gone(_), _)) => None,
        }
    }
}

impl<T: Versioned> Answer<T> {
    fn is_shown_by(&self, shown: Option<&T>) -> bool {
        match (self, shown) {
            (Self::Object(object), Some(shown)) => shown.version() >= object.version(),
            (Self::Object(_), None) => false,
            (Self::Gone(uid), Some(shown)) => shown.uid() != uid,
            (Self::Gone(_), None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Object(&'static str, u64);

    impl Versioned for Object {
        fn uid(&self) -> &str {
            self.0
        }

        fn version(&self) -> u64 {
            self.1
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_write_counts_until_the_watch_shows_it_or_something_newer() {
        for (version, expected) in [(4, 5), (5, 5), (6, 6)] {
            let mut unechoed = Unechoed::default();
            unechoed.wrote(Arc::new(Object("a", 5)), at(0));
            let shown = Arc::new(Object("a", version));
            assert_eq!(unechoed.latest(Some(&shown), true, at(1)).unwrap().1, expected);
            assert_eq!(unechoed.is_empty(), version >= 5, "shown version {version}");
        }
        // Deleted and made again: the old object has another uid, and is older.
        let mut unechoed = Unechoed::default();
        unechoed.wrote(Arc::new(Object("new", 5)), at(0));
        assert_eq!(
            unechoed.latest(Some(&Arc::new(Object("old", 3))), true, at(1)).unwrap().0,
            "new"
        );
    }

    #[test]
    fn a_deleted_object_stays_away_while_the_watch_shows_it() {
        let mut unechoed = Unechoed::default();
        unechoed.deleted("a".to_owned(), at(0));
        assert_eq!(unechoed.latest(Some(&Arc::new(Object("a", 1))), true, at(1)), None);
        assert!(!unechoed.is_empty());
        let made_again = Arc::new(Object("b", 2));
        assert_eq!(unechoed.latest(Some(&made_again), true, at(2)), Some(made_again));
        assert!(unechoed.is_empty());
    }

    #[test]
    fn only_a_watch_that_goes_on_uses_up_the_patience() {
        let mut unechoed = Unechoed::default();
        unechoed.wrote(Arc::new(Object("a", 5)), at(0));
        assert!(unechoed.latest(None, false, at(1000)).is_some(), "the watch is broken");
        assert!(unechoed.latest(None, true, at(1010)).is_some());
        assert!(unechoed.latest(None, true, at(1011)).is_none());
        assert!(unechoed.is_empty());
    }
}
