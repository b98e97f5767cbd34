//! The settings about pressure and eviction.

use super::threshold::{self, Threshold, TooLarge, Written};
use crate::model::{DiskLayout, Signal};
use std::{collections::BTreeMap, time::Duration};

/// `staticPodEviction`: whether static pods are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticPods {
    /// `ranked`: they are ranked by priority and usage like any other pod, but after the pods of an
    /// API server.
    #[default]
    Ranked,
    /// `never`: static pods are never evicted, as in the kubelet.
    Never,
}

/// `memorySignal`: how `memory.available` is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySignal {
    /// `workingSet`: the capacity minus the working set of all processes, as in the kubelet.
    #[default]
    WorkingSet,
    /// `memAvailable`: the kernel's estimate.
    MemAvailable,
}

/// All settings about pressure and eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionSettings {
    /// Sorted by signal, hard thresholds first.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition holds after its threshold was last
    /// met. Default 5 min.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`: the maximum grace period of a soft eviction, in seconds.
    /// Default 0.
    pub max_pod_grace: u32,
    /// `staticPodEviction`. Default ranked.
    pub static_pods: StaticPods,
    /// `memorySignal`. Default workingSet.
    pub memory_signal: MemorySignal,
    /// `localStorageCapacityIsolation`: pods that exceed their limits on local storage are evicted.
    /// Default true.
    pub local_storage_limits: bool,
}

impl Default for EvictionSettings {
    fn default() -> Self {
        let written = Written { merge_defaults: true, enforce_pods: true, ..Written::default() };
        Self {
            thresholds: threshold::parse(&written).unwrap_or_default().thresholds,
            transition: Duration::from_secs(300),
            max_pod_grace: 0,
            static_pods: StaticPods::default(),
            memory_signal: MemorySignal::default(),
            local_storage_limits: true,
        }
    }
}

impl EvictionSettings {
    /// The settings as they apply to a machine: containerfs uses the thresholds of its file system.
    /// Without a limit on all pods together (`pods_limited`), the signal
    /// `allocatableMemory.available` does not exist.
    #[must_use]
    pub fn on_machine(&self, layout: DiskLayout, pods_limited: bool) -> Self {
        let mut thresholds = threshold::for_layout(&self.thresholds, layout);
        thresholds.retain(|t| pods_limited || t.signal != Signal::AllocatableMemoryAvailable);
        Self { thresholds, ..self.clone() }
    }

    /// Refuses thresholds that a machine with these capacities would always meet.
    ///
    /// # Errors
    /// All such thresholds.
    pub fn check_against(&self, capacities: &BTreeMap<Signal, u64>) -> Result<(), Vec<TooLarge>> {
        threshold::check_against(&self.thresholds, capacities)
    }
}
