//! What of the machine pods may request: capacity less what is set apart. To the byte as the
//! kubelet computes it, because tools compare the numbers.

use crate::{model::Quantity, podspec::Amounts};
use std::{collections::BTreeMap, fmt};
use thiserror::Error;

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    /// Size in bytes of the file system that holds the root directory; `None`: it could not be
    /// read, or `localStorageCapacityIsolation` is off, and no pod is refused for it.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Pools of huge pages: resource name (`hugepages-2Mi`) and bytes, also where there are no
    /// pages.
    pub hugepages: BTreeMap<String, i64>,
    /// Pods: [`pod_capacity`].
    pub pods: i64,
}

/// An amount of the machine that pods do not get: `systemReserved`, `kubeReserved`, or what the
/// hard eviction thresholds of `memory.available` and `nodefs.available` keep free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub ephemeral_storage_bytes: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    /// Bytes; `None`: not known, no bound.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Bytes, by resource name. A size that is not named has none.
    pub hugepages: BTreeMap<String, i64>,
    pub pods: i64,
}

impl Allocatable {
    /// The amounts that a container without a limit can use, by resource.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        let storage = self.ephemeral_storage_bytes.map(Quantity::from_units);
        [
            ("cpu".to_owned(), Quantity::from_milli(self.cpu_milli)),
            ("memory".to_owned(), Quantity::from_units(self.memory_bytes)),
        ]
        .into_iter()
        .chain(storage.map(|bytes| ("ephemeral-storage".to_owned(), bytes)))
        .collect()
    }
}

/// More is set apart than there is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid Node Allocatable configuration. {}", joined(.0))]
pub struct OverReserved(Vec<OverReservation>);

/// Amounts in thousandths of a CPU, or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OverReservation {
    resource: &'static str,
    reserved: i64,
    capacity: i64,
}

impl fmt::Display for OverReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: i64| match self.resource {
            "cpu" => Quantity::from_milli(amount),
            _ => Quantity::from_units(amount),
        };
        write!(
            f,
            "Resource {:?} has a reservation of {} but capacity of {}. Expected capacity >= reservation.",
            self.resource,
            amount(self.reserved),
            amount(self.capacity)
        )
    }
}

fn joined(mistakes: &[OverReservation]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// How many pods a machine takes: `maxPods`, and no more than `podsPerCore` (0: no matter) for each
/// of its CPUs.
#[must_use]
pub fn pod_capacity(max_pods: u32, pods_per_core: u32, cpus: i64) -> i64 {
    let most = i64::from(max_pods);
    match pods_per_core {
        0 => most,
        per_core => cpus.max(0).saturating_mul(i64::from(per_core)).min(most),
    }
}

/// A percentage of `capacity`, given in millionths of a percent, in whole units: in single
/// precision first, as the kubelet does it. 10 % of 100 GiB are 10737418400 bytes.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the kubelet's arithmetic; no capacity comes near 2^63"
)]
pub fn percent_of(capacity: i64, millionths: u32) -> i64 {
    let percent = (f64::from(millionths) / 1e6) as f32;
    (capacity as f64 * f64::from(percent / 100.0)) as i64
}

/// Capacity less what is set apart, and less the memory that the pools of huge pages hold.
///
/// # Errors
/// When more is set apart than there is.
pub fn allocatable(
    capacity: &Capacity,
    set_apart: &[Reserved],
) -> Result<Allocatable, OverReserved> {
    let sum = |of: fn(&Reserved) -> i64| set_apart.iter().map(of).fold(0, i64::saturating_add);
    let cpu = sum(|reserved| reserved.cpu_milli);
    let memory = sum(|reserved| reserved.memory_bytes);
    let storage = sum(|reserved| reserved.ephemeral_storage_bytes);
    let mistakes: Vec<OverReservation> = [
        ("cpu", cpu, Some(capacity.cpu_milli)),
        ("memory", memory, Some(capacity.memory_bytes)),
        ("ephemeral-storage", storage, capacity.ephemeral_storage_bytes),
    ]
    .into_iter()
    .filter_map(|(resource, reserved, capacity)| {
        let capacity = capacity.filter(|capacity| reserved > *capacity)?;
        Some(OverReservation { resource, reserved, capacity })
    })
    .collect();
    if !mistakes.is_empty() {
        return Err(OverReserved(mistakes));
    }
    let pages = capacity.hugepages.values().copied().fold(0, i64::saturating_add);
    Ok(Allocatable {
        cpu_milli: capacity.cpu_milli - cpu,
        memory_bytes: (capacity.memory_bytes - memory).saturating_sub(pages).max(0),
        ephemeral_storage_bytes: capacity.ephemeral_storage_bytes.map(|all| all - storage),
        hugepages: capacity.hugepages.clone(),
        pods: capacity.pods,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const GI: i64 = 1 << 30;
    const MI: i64 = 1 << 20;

    #[test]
    fn percentages_are_the_kubelets_to_the_byte() {
        for (capacity, percent, amount) in [
            (100 * GI, 10_000_000, 10_737_418_400),
            (100 * GI, 15_000_000, 16_106_128_000),
            (100 * GI, 7_000_000, 7_516_192_800),
            (1000, 5_000_000, 50),
            (1000, 12_500_000, 125),
            (0, 10_000_000, 0),
            (7, 50_000_000, 3),
        ] {
            assert_eq!(percent_of(capacity, percent), amount, "{percent} of {capacity}");
        }
    }

    #[test]
    fn pods_are_bounded_by_the_smaller_of_both_settings() {
        for (max, per_core, cpus, pods) in
            [(110, 0, 2, 110), (110, 10, 2, 20), (110, 100, 2, 110), (0, 10, 2, 0), (5, 3, 0, 0)]
        {
            assert_eq!(pod_capacity(max, per_core, cpus), pods);
        }
    }

    fn machine() -> Capacity {
        Capacity {
            cpu_milli: 4000,
            memory_bytes: 8 * GI,
            ephemeral_storage_bytes: Some(100 * GI),
            hugepages: [("hugepages-1Gi", GI), ("hugepages-2Mi", 64 * MI)]
                .map(|(name, bytes)| (name.to_owned(), bytes))
                .into(),
            pods: 110,
        }
    }

    #[test]
    fn what_is_set_apart_and_the_huge_pages_are_taken_off() {
        let system = Reserved { cpu_milli: 500, memory_bytes: GI, ephemeral_storage_bytes: 5 * GI };
        let kube = Reserved { cpu_milli: 250, memory_bytes: 256 * MI, ..Reserved::default() };
        let eviction = Reserved {
            memory_bytes: 100 * MI,
            ephemeral_storage_bytes: percent_of(100 * GI, 10_000_000),
            ..Reserved::default()
        };
        let found = allocatable(&machine(), &[system, kube, eviction]).unwrap();
        let expected = Allocatable {
            cpu_milli: 3250,
            memory_bytes: 8 * GI - GI - 256 * MI - 100 * MI - GI - 64 * MI,
            ephemeral_storage_bytes: Some(95 * GI - 10_737_418_400),
            hugepages: machine().hugepages,
            pods: 110,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn huge_pages_leave_no_less_than_nothing() {
        let capacity = Capacity { memory_bytes: GI, ..machine() };
        assert_eq!(allocatable(&capacity, &[]).unwrap().memory_bytes, 0);
    }

    #[test]
    fn a_disk_that_could_not_be_read_has_no_bound() {
        let capacity = Capacity { ephemeral_storage_bytes: None, ..machine() };
        let reserved = Reserved { ephemeral_storage_bytes: GI, ..Reserved::default() };
        assert_eq!(allocatable(&capacity, &[reserved]).unwrap().ephemeral_storage_bytes, None);
    }

    #[test]
    fn more_than_there_is_cannot_be_set_apart() {
        let all =
            Reserved { cpu_milli: 4000, memory_bytes: 8 * GI, ephemeral_storage_bytes: 100 * GI };
        let nothing = allocatable(&machine(), &[all]).unwrap();
        assert_eq!((nothing.cpu_milli, nothing.memory_bytes), (0, 0));
        let one = Reserved { cpu_milli: 1, ephemeral_storage_bytes: 1, ..Reserved::default() };
        let error = allocatable(&machine(), &[all, one]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of 4.001 but \
             capacity of 4. Expected capacity >= reservation. Resource \"ephemeral-storage\" has a \
             reservation of 107374182401 but capacity of 107374182400. Expected capacity >= reservation."
        );
    }
}
