//! The node's conditions, without the wording of their reasons and messages.

use super::{Now, Pressure};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The conditions of a node. `nodelet status` and the status of the Node object are made from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConditions {
    /// `MemoryPressure`, `DiskPressure`, `PIDPressure`; empty before the first look.
    pub pressure: BTreeMap<Pressure, ConditionState>,
    /// `Ready`; `None` before the first look.
    pub ready: Option<ConditionState>,
    /// Every reason why the runtime can't run pods, in the kubelet's order.
    pub runtime: Vec<String>,
    /// The machine is going down.
    pub shutdown: bool,
}

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionState {
    /// Its status.
    pub holds: bool,
    /// Wall time of its last transition.
    pub since: Timestamp,
}

impl ConditionState {
    fn updated(before: Option<&Self>, holds: bool, now: Now) -> Self {
        match before {
            Some(before) if before.holds == holds => *before,
            Some(_) | None => Self { holds, since: now.wall },
        }
    }
}

impl NodeConditions {
    /// Gives the conditions that are as an earlier run of the agent has saved them their times from
    /// there.
    pub fn resume(&mut self, saved: &Self) {
        let resume = |state: &mut ConditionState, saved: Option<&ConditionState>| {
            if let Some(saved) = saved.filter(|saved| saved.holds == state.holds) {
                state.since = saved.since;
            }
        };
        for (pressure, state) in &mut self.pressure {
            resume(state, saved.pressure.get(pressure));
        }
        if let Some(ready) = &mut self.ready {
            resume(ready, saved.ready.as_ref());
        }
    }

    /// Takes in what holds now. A condition that stays as it is keeps its time.
    pub fn update(
        &mut self,
        pressure: &BTreeSet<Pressure>,
        runtime: Vec<String>,
        shutdown: bool,
        now: Now,
    ) {
        for condition in Pressure::ALL {
            let before = self.pressure.get(&condition);
            let state = ConditionState::updated(before, pressure.contains(&condition), now);
            self.pressure.insert(condition, state);
        }
        let ready = runtime.is_empty() && !shutdown;
        self.ready = Some(ConditionState::updated(self.ready.as_ref(), ready, now));
        (self.runtime, self.shutdown) = (runtime, shutdown);
    }

    /// The pressures that hold.
    pub fn held(&self) -> impl Iterator<Item = Pressure> {
        self.pressure.iter().filter(|(_, state)| state.holds).map(|(pressure, _)| *pressure)
    }

    /// Every reason why the node is not ready, in the kubelet's words; empty when it is.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let shutdown = self.shutdown.then(|| "node is shutting down".to_owned());
        self.runtime.iter().cloned().chain(shutdown).collect()
    }

    /// Whether statuses and times are the same: what has to be saved.
    #[must_use]
    pub fn same_transitions(&self, other: &Self) -> bool {
        self.pressure == other.pressure && self.ready == other.ready
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::time::Duration;

    fn at(second: i64) -> Now {
        let boot = Duration::from_secs(second.unsigned_abs());
        Now { boot, wall: Timestamp::from_second(second).unwrap() }
    }

    #[test]
    fn a_condition_keeps_its_time_over_a_restart() {
        let (nothing, memory) = (BTreeSet::new(), BTreeSet::from([Pressure::Memory]));
        let mut conditions = NodeConditions::default();
        conditions.update(&nothing, Vec::new(), false, at(10));
        conditions.update(&memory, Vec::new(), false, at(20));
        conditions.update(&memory, Vec::new(), false, at(30));
        assert_eq!(conditions.held().collect::<Vec<_>>(), [Pressure::Memory]);
        let text = serde_json::to_string(&conditions).unwrap();
        let saved: NodeConditions = serde_json::from_str(&text).unwrap();
        let mut conditions = NodeConditions::default();
        // Nothing was read yet, and the runtime was not asked.
        conditions.update(&nothing, vec!["not asked".to_owned()], false, at(39));
        conditions.resume(&saved);
        conditions.update(&memory, Vec::new(), false, at(40));
        conditions.resume(&saved);
        let since = |conditions: &NodeConditions, pressure| conditions.pressure[&pressure].since;
        assert_eq!(since(&conditions, Pressure::Memory), at(20).wall);
        assert_eq!(since(&conditions, Pressure::Disk), at(10).wall);
        assert_eq!(conditions.ready, Some(ConditionState { holds: true, since: at(10).wall }));
        conditions.update(&nothing, vec!["runtime is down".to_owned()], true, at(50));
        assert_eq!(since(&conditions, Pressure::Memory), at(50).wall);
        assert_eq!(conditions.ready, Some(ConditionState { holds: false, since: at(50).wall }));
        assert_eq!(conditions.not_ready(), ["runtime is down", "node is shutting down"]);
    }
}
