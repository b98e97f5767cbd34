//! The time that pods have to end when the machine shuts down, by their priority.

use super::{PodKey, k8s, order::Order as _};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Priority from which on a pod is critical to the system.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The time of one group of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShutdownPeriod {
    /// Pods with this priority or a higher one belong to the group, up to the priority of the next.
    pub priority: i32,
    /// How long the group has, at most.
    pub seconds: u32,
}

/// The time of every group, the lowest priority first: the order in which pods end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownPeriods(Arc<[ShutdownPeriod]>);

impl ShutdownPeriods {
    /// Sorts the groups.
    #[must_use]
    pub fn new(mut groups: Vec<ShutdownPeriod>) -> Self {
        groups.order();
        Self(groups.into())
    }

    /// Two groups: critical pods have `critical`, the others have what is left of `total` and end
    /// first. In whole seconds.
    #[must_use]
    pub fn of_total(total: Duration, critical: Duration) -> Self {
        let group = |priority, time: Duration| ShutdownPeriod {
            priority,
            seconds: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
        };
        Self::new(vec![
            group(0, total.saturating_sub(critical)),
            group(SYSTEM_CRITICAL_PRIORITY, critical),
        ])
    }

    /// The groups, in the order in which they end.
    #[must_use]
    pub fn groups(&self) -> &[ShutdownPeriod] {
        &self.0
    }

    /// How long a shutdown is held up, at most. Zero: not at all.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_secs(self.0.iter().map(|group| u64::from(group.seconds)).sum())
    }

    /// The group that a priority belongs to: the highest one that is not above it. A priority below
    /// all groups belongs to the lowest.
    #[must_use]
    pub fn group_of(&self, priority: i32) -> usize {
        self.0.partition_point(|group| group.priority <= priority).saturating_sub(1)
    }
}

/// A pod's priority; 0 when none is written.
#[must_use]
pub fn priority_of(pod: &k8s::Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

/// The machine is going down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The time of each group.
    pub periods: ShutdownPeriods,
    /// The group whose turn it is to end. Those before it had theirs.
    pub turn: usize,
}

/// The known state of a shutdown of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MachineState {
    /// logind has not answered yet: nothing is started.
    #[default]
    Unknown,
    /// It stays up.
    Up,
    /// The machine is shutting down.
    GoingDown(Shutdown),
}

impl MachineState {
    /// The shutdown that is going on.
    #[must_use]
    pub fn shutdown(&self) -> Option<&Shutdown> {
        match self {
            Self::GoingDown(shutdown) => Some(shutdown),
            Self::Unknown | Self::Up => None,
        }
    }
}

impl Shutdown {
    /// How many seconds a pod of this priority has to end, now that its turn has come; `None`
    /// before.
    #[must_use]
    pub fn seconds_for(&self, priority: i32) -> Option<u32> {
        let group = self.periods.group_of(priority);
        (group <= self.turn).then(|| self.periods.groups().get(group).map_or(0, |g| g.seconds))
    }
}

/// How far a shutdown of the machine is, as the workers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The last that the workers were told.
    pub shutdown: Option<Shutdown>,
    /// Pods whose turn to end has come and that have not ended yet.
    pub left: BTreeSet<PodKey>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn periods(groups: &[(i32, u32)]) -> ShutdownPeriods {
        let group = |&(priority, seconds): &(i32, u32)| ShutdownPeriod { priority, seconds };
        ShutdownPeriods::new(groups.iter().map(group).collect())
    }

    #[test]
    fn the_two_keys_make_two_groups() {
        let seconds = Duration::from_secs;
        let two = ShutdownPeriods::of_total(seconds(30), seconds(10));
        assert_eq!(two, periods(&[(SYSTEM_CRITICAL_PRIORITY, 10), (0, 20)]));
        assert_eq!(two.total(), seconds(30));
        let odd = ShutdownPeriods::of_total(Duration::from_millis(5_900), Duration::from_secs(2));
        assert_eq!(odd, periods(&[(0, 3), (SYSTEM_CRITICAL_PRIORITY, 2)]));
        assert_eq!(ShutdownPeriods::default().total(), Duration::ZERO);
    }

    #[test]
    fn a_pod_belongs_to_the_highest_group_that_is_not_above_it() {
        let table = periods(&[(1000, 30), (-5, 60), (100_000, 10)]);
        let priorities: Vec<i32> = table.groups().iter().map(|group| group.priority).collect();
        assert_eq!(priorities, [-5, 1000, 100_000]);
        for (priority, group) in [
            (i32::MIN, 0),
            (-6, 0),
            (-5, 0),
            (999, 0),
            (1000, 1),
            (99_999, 1),
            (100_000, 2),
            (i32::MAX, 2),
        ] {
            assert_eq!(table.group_of(priority), group, "{priority}");
        }
        assert_eq!(ShutdownPeriods::default().group_of(7), 0);
    }

    #[test]
    fn a_pods_time_begins_with_the_turn_of_its_group() {
        let mut shutdown = Shutdown { periods: periods(&[(0, 20), (1000, 5)]), turn: 0 };
        assert_eq!(shutdown.seconds_for(0), Some(20));
        assert_eq!(shutdown.seconds_for(1000), None);
        shutdown.turn = 1;
        assert_eq!(shutdown.seconds_for(-3), Some(20), "it had its turn and is not to run again");
        assert_eq!(shutdown.seconds_for(1000), Some(5));
    }

    #[test]
    fn a_pod_without_a_priority_has_zero() {
        let pod = |spec| serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap();
        assert_eq!(priority_of(&k8s::Pod::default()), 0);
        assert_eq!(priority_of(&pod(serde_json::json!({ "containers": [], "priority": 7 }))), 7);
    }
}
