//! What is configured about pressure and eviction.

use super::threshold::{self, Threshold, TooLarge, Written};
use crate::model::{DiskLayout, Signal};
use std::{collections::BTreeMap, time::Duration};

/// What becomes of static pods under pressure: `staticPodEviction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticPods {
    /// `ranked`: they go by their priority and use like any pod, in a cluster after the pods of the
    /// API server.
    #[default]
    Ranked,
    /// `never`: none is ever evicted, as the kubelet does.
    Never,
}

/// What `memory.available` goes by: `memorySignal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySignal {
    /// `workingSet`: capacity less the working set of everything, as the kubelet computes it.
    #[default]
    WorkingSet,
    /// `memAvailable`: the kernel's estimate.
    MemAvailable,
}

/// Everything that is configured about pressure and eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionSettings {
    /// By signal, hard ones first.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition holds after it was last seen.
    /// Default 5 min.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`: seconds that a soft eviction gives a pod, at most. Default 0.
    pub max_pod_grace: u32,
    /// `staticPodEviction`. Default ranked.
    pub static_pods: StaticPods,
    /// `memorySignal`. Default workingSet.
    pub memory_signal: MemorySignal,
    /// `localStorageCapacityIsolation`: pods that use more local storage than they may are evicted.
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
    /// The settings as they are on a machine: thresholds of containerfs follow the file system that
    /// it lies on, and without a limit on all pods together (`pods_limited`) there is no memory
    /// that pods have left.
    #[must_use]
    pub fn on_machine(&self, layout: DiskLayout, pods_limited: bool) -> Self {
        let mut thresholds = threshold::for_layout(&self.thresholds, layout);
        thresholds.retain(|t| pods_limited || t.signal != Signal::AllocatableMemoryAvailable);
        Self { thresholds, ..self.clone() }
    }

    /// Refuses thresholds that a machine with these capacities would always meet.
    ///
    /// # Errors
    /// Each of them.
    pub fn check_against(&self, capacities: &BTreeMap<Signal, u64>) -> Result<(), Vec<TooLarge>> {
        threshold::check_against(&self.thresholds, capacities)
    }
}
