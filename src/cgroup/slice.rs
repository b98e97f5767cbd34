//! The pure part of slices: which properties systemd is given for which limits, and what its
//! answers mean.
//!
//! systemd writes its own idea of a cgroup whenever it looks at it again (daemon-reload), so what
//! it has a property for must be one. What it has none for (huge pages), and the exact CPU quota,
//! is written to the cgroup's files as with the cgroupfs driver.

use super::{CgroupVersion, Limits};
use crate::podspec::weight_of_shares;

/// systemd keeps a CPU quota as whole hundredths of a CPU: per second, in microseconds.
const QUOTA_STEP: u64 = 10_000;
const SECOND: u64 = 1_000_000;

/// A property of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: &'static str,
    pub(super) value: Value,
}

/// The types that the properties in use have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Bool(bool),
    /// `u64::MAX` is no limit.
    Number(u64),
    Text(String),
}

fn number(name: &'static str, value: u64) -> Property {
    Property { name, value: Value::Number(value) }
}

/// What a slice is made with besides its limits: every controller that systemd knows is switched
/// on, and it is neither ordered before the shutdown nor stopped by it before its pods are.
pub(super) fn made_with(version: CgroupVersion, description: String) -> Vec<Property> {
    let io = match version {
        CgroupVersion::V1 => "BlockIOAccounting",
        CgroupVersion::V2 => "IOAccounting",
    };
    let switches = [
        ("DefaultDependencies", false),
        ("CPUAccounting", true),
        ("MemoryAccounting", true),
        ("TasksAccounting", true),
        (io, true),
    ];
    let description = Property { name: "Description", value: Value::Text(description) };
    let switches = switches.map(|(name, on)| Property { name, value: Value::Bool(on) });
    std::iter::once(description).chain(switches).collect()
}

/// The properties that hold `limits`.
pub(super) fn properties(version: CgroupVersion, limits: &Limits) -> Vec<Property> {
    let mut properties = Vec::new();
    if let Some(shares) = limits.cpu_shares {
        properties.push(match version {
            CgroupVersion::V1 => number("CPUShares", shares),
            CgroupVersion::V2 => number("CPUWeight", weight_of_shares(shares)),
        });
    }
    if let Some((quota, period)) = limits.cpu_quota_micros {
        properties.push(number("CPUQuotaPeriodUSec", period));
        properties.push(number("CPUQuotaPerSecUSec", quota_per_second(quota, period)));
    }
    if let Some(bytes) = limits.memory_bytes {
        properties.push(match version {
            CgroupVersion::V1 => number("MemoryLimit", or_infinity(bytes)),
            CgroupVersion::V2 => number("MemoryMax", or_infinity(bytes)),
        });
    }
    if let Some(tasks) = limits.pids {
        properties.push(number("TasksMax", or_infinity(tasks)));
    }
    properties
}

/// Rounded up to what survives systemd's own files, so that a reload changes nothing.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    let Ok(quota) = u64::try_from(quota) else { return u64::MAX };
    let per_second = quota.saturating_mul(SECOND) / period.max(1);
    per_second.div_ceil(QUOTA_STEP).saturating_mul(QUOTA_STEP)
}

/// systemd takes no limit of 0.
fn or_infinity(amount: i64) -> u64 {
    u64::try_from(amount).map_or(u64::MAX, |amount| amount.max(1))
}

/// A unit as systemd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitState {
    /// `active`, `inactive`, `failed`, `activating`, ...
    pub(super) active: String,
    /// Whether a job of it waits or runs.
    pub(super) job: bool,
}

/// What is to be done next on the way to a running slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It runs.
    Up,
    /// It does not, and nothing is under way.
    Down,
    /// A job is under way.
    Changing,
}

impl UnitState {
    pub(super) fn stage(&self) -> Stage {
        match self.active.as_str() {
            _ if self.job => Stage::Changing,
            "active" => Stage::Up,
            "activating" | "deactivating" | "reloading" => Stage::Changing,
            _ => Stage::Down,
        }
    }

    /// Whether it is kept although it does not run.
    pub(super) fn failed(&self) -> bool {
        self.active == "failed"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(property: &Property) -> String {
        match &property.value {
            Value::Bool(on) => format!("{}={on}", property.name),
            Value::Number(u64::MAX) => format!("{}=infinity", property.name),
            Value::Number(number) => format!("{}={number}", property.name),
            Value::Text(text) => format!("{}={text}", property.name),
        }
    }

    fn lines(properties: &[Property]) -> Vec<String> {
        properties.iter().map(line).collect()
    }

    #[test]
    fn limits_become_properties() {
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota_micros: Some((50_000, 100_000)),
            memory_bytes: Some(64 << 20),
            pids: Some(100),
            // No property: written to the cgroup's files.
            hugepages: vec![("2MB".to_owned(), 4 << 20)],
        };
        assert_eq!(
            lines(&properties(CgroupVersion::V2, &limits)),
            [
                "CPUWeight=39",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=500000",
                "MemoryMax=67108864",
                "TasksMax=100",
            ]
        );
        assert_eq!(
            lines(&properties(CgroupVersion::V1, &limits)),
            [
                "CPUShares=1024",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=500000",
                "MemoryLimit=67108864",
                "TasksMax=100",
            ]
        );
        assert_eq!(lines(&properties(CgroupVersion::V2, &Limits::default())), [""; 0]);
    }

    #[test]
    fn the_edges_of_limits_are_what_systemd_takes() {
        let limits = Limits { memory_bytes: Some(0), pids: Some(-1), ..Limits::default() };
        let found = lines(&properties(CgroupVersion::V2, &limits));
        assert_eq!(found, ["MemoryMax=1", "TasksMax=infinity"]);
        for (quota, period, per_second) in [
            (1_000, 100_000, 10_000),
            (1_500, 100_000, 20_000),
            (1_000, 1_000_000, 10_000),
            (250_000, 100_000, 2_500_000),
            (-1, 100_000, u64::MAX),
            (1_000, 0, 1_000_000_000),
        ] {
            assert_eq!(quota_per_second(quota, period), per_second, "{quota} in {period}");
        }
    }

    #[test]
    fn a_slice_is_made_with_every_controller() {
        assert_eq!(
            lines(&made_with(CgroupVersion::V2, "pods".to_owned())),
            [
                "Description=pods",
                "DefaultDependencies=false",
                "CPUAccounting=true",
                "MemoryAccounting=true",
                "TasksAccounting=true",
                "IOAccounting=true",
            ]
        );
        let v1 = made_with(CgroupVersion::V1, "pods".to_owned());
        assert_eq!(lines(&v1).last().unwrap(), "BlockIOAccounting=true");
    }

    #[test]
    fn a_job_under_way_decides_nothing() {
        let state = |active: &str, job| UnitState { active: active.to_owned(), job };
        assert_eq!(state("active", false).stage(), Stage::Up);
        assert_eq!(state("active", true).stage(), Stage::Changing);
        assert_eq!(state("inactive", true).stage(), Stage::Changing);
        assert_eq!(state("deactivating", false).stage(), Stage::Changing);
        assert_eq!(state("inactive", false).stage(), Stage::Down);
        assert_eq!(state("failed", false).stage(), Stage::Down);
        assert!(state("failed", false).failed() && !state("inactive", false).failed());
    }
}
