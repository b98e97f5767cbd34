//! Registries that could not be reached a moment ago. On an offline machine, a container that would
//! wait for its turn to pull need not find that out by a pull of its own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a registry counts as unreachable after a pull that did not reach it.
const LATELY: Duration = Duration::from_secs(30);

/// The registries by host, with what the last pull from each said. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unreachable(Arc<Mutex<BTreeMap<String, Failure>>>);

#[derive(Debug)]
struct Failure {
    /// Boot time.
    at: Duration,
    text: String,
}

impl Unreachable {
    /// A pull from this repository did not reach its registry at boot time `at`.
    pub(super) fn note(&self, repository: &str, text: &str, at: Duration) {
        let mut failures = self.failures();
        failures.retain(|_, failure| failure.is_recent(at));
        failures.insert(host(repository).to_owned(), Failure { at, text: text.to_owned() });
    }

    /// A pull from this repository has reached its registry.
    pub(super) fn reached(&self, repository: &str) {
        self.failures().remove(host(repository));
    }

    /// What the last pull from the registry of this repository said, if that one could not be
    /// reached shortly before boot time `now`.
    pub(super) fn lately(&self, repository: &str, now: Duration) -> Option<String> {
        let failures = self.failures();
        let failure = failures.get(host(repository)).filter(|failure| failure.is_recent(now));
        failure.map(|failure| failure.text.clone())
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<String, Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
    fn is_recent(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < LATELY
    }
}

fn host(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_unreachable_until_it_is_reached_or_for_a_while() {
        let unreachable = Unreachable::default();
        let at = Duration::from_secs(1000);
        unreachable.note("r.io/team/app", "no route to host", at);
        let later = |seconds| at + Duration::from_secs(seconds);
        assert_eq!(unreachable.lately("r.io/other", later(29)).unwrap(), "no route to host");
        assert_eq!(unreachable.lately("s.io/team/app", at), None);
        assert_eq!(unreachable.lately("r.io/other", later(30)), None);
        unreachable.reached("r.io/third");
        assert_eq!(unreachable.lately("r.io/team/app", at), None);
    }

    #[test]
    fn registries_of_long_ago_are_forgotten() {
        let unreachable = Unreachable::default();
        for number in 0..100 {
            let at = Duration::from_secs(number * 20);
            unreachable.note(&format!("r{number}.io/app"), "EOF", at);
        }
        assert_eq!(unreachable.failures().len(), 2);
    }
}
