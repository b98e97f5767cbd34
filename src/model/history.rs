//! What the node and its pods have used in the last minutes, for graphs.

use super::{CgroupStats, PodUid, Stats, order::Order as _};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// What was used at one moment. `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Nanoseconds of CPU time per second.
    pub cpu: Option<u64>,
    /// Working set in bytes.
    pub memory: Option<u64>,
}

impl Used {
    /// Of a cgroup.
    #[must_use]
    pub fn of(stats: &CgroupStats) -> Self {
        Self { cpu: stats.cpu_rate, memory: stats.memory.map(|memory| memory.working_set) }
    }
}

/// The use of the node and of all pods at one moment.
#[derive(Debug, Default)]
pub struct UseSample {
    /// Boot time.
    at: Duration,
    node: Used,
    /// Sorted by uid.
    pods: Box<[(PodUid, Used)]>,
}

impl UseSample {
    /// The part of statistics that graphs show. `at` is boot time.
    #[must_use]
    pub fn of(stats: &Stats, at: Duration) -> Self {
        let used = |pod: &super::PodStats| pod.stats.as_ref().map(Used::of).unwrap_or_default();
        let mut pods: Box<[_]> =
            stats.pods.iter().map(|pod| (pod.uid.clone(), used(pod))).collect();
        pods.order_by(|a, b| a.0.cmp(&b.0));
        Self { at, node: Used::of(&stats.node.machine), pods }
    }

    fn of_pod(&self, uid: &PodUid) -> Option<Used> {
        let at = self.pods.binary_search_by(|(known, _)| known.cmp(uid)).ok()?;
        self.pods.get(at).map(|(_, used)| *used)
    }
}

/// The last samples, oldest first.
#[derive(Clone, Debug, Default)]
pub struct UseHistory(VecDeque<Arc<UseSample>>);

impl UseHistory {
    /// The most samples that are kept.
    pub const MOST: usize = 60;

    /// Adds a sample. The oldest one goes when there are too many.
    pub fn push(&mut self, sample: UseSample) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(sample));
    }

    /// What the node has used: times before the newest sample, and what was used then.
    pub fn of_node(&self) -> impl Iterator<Item = (Duration, Used)> {
        self.aged(|sample| Some(sample.node))
    }

    /// What a pod has used.
    pub fn of_pod(&self, uid: &PodUid) -> impl Iterator<Item = (Duration, Used)> {
        self.aged(|sample| sample.of_pod(uid))
    }

    fn aged(
        &self,
        used: impl Fn(&UseSample) -> Option<Used>,
    ) -> impl Iterator<Item = (Duration, Used)> {
        let newest = self.0.back().map(|sample| sample.at).unwrap_or_default();
        self.0.iter().filter_map(move |sample| {
            used(sample).map(|used| (newest.saturating_sub(sample.at), used))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, pods: &[(&str, u64)]) -> UseSample {
        let used = |memory| Used { cpu: None, memory: Some(memory) };
        let mut pods: Box<[_]> =
            pods.iter().map(|(uid, memory)| (PodUid::from(*uid), used(*memory))).collect();
        pods.sort_by(|a, b| a.0.cmp(&b.0));
        UseSample { at: Duration::from_secs(at), node: used(1), pods }
    }

    #[test]
    fn a_pod_has_the_samples_in_which_it_ran() {
        let mut history = UseHistory::default();
        assert_eq!(history.of_node().count(), 0);
        history.push(sample(10, &[("b", 5)]));
        history.push(sample(15, &[("b", 6), ("a", 7)]));
        let of = |uid: &str| -> Vec<(u64, u64)> {
            let uid = PodUid::from(uid);
            let samples = history.of_pod(&uid);
            samples.map(|(ago, used)| (ago.as_secs(), used.memory.unwrap_or_default())).collect()
        };
        assert_eq!(of("b"), [(5, 5), (0, 6)]);
        assert_eq!(of("a"), [(0, 7)]);
        assert_eq!(of("c"), []);
    }

    #[test]
    fn the_oldest_sample_goes() {
        let mut history = UseHistory::default();
        for at in 0..UseHistory::MOST as u64 + 3 {
            history.push(sample(at, &[]));
        }
        let ages: Vec<u64> = history.of_node().map(|(ago, _)| ago.as_secs()).collect();
        assert_eq!((ages.len(), ages[0], ages[59]), (60, 59, 0));
    }
}
