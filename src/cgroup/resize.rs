//! The limits of a pod's cgroup while the pod runs.
//!
//! A container can never have more than its pod. So a resize first raises the limits of the pod,
//! then changes the containers, and lowers the limits of the pod last.

use super::{
    CgroupDriver, CgroupError, CgroupVersion, Cgroups, Limits,
    core::Hierarchy,
    tree::{CgroupPlace, blocking, check_name, timed},
};
use crate::podspec::PodCgroup;
use std::{fs, path::PathBuf};

impl Cgroups {
    /// Raises the limits of a pod's cgroup to `values` where those are higher. `name` is the path
    /// below `cgroupRoot`. Nothing is done where there is no such cgroup.
    ///
    /// # Errors
    /// When a value is refused.
    pub async fn raise_pod(
        &self,
        name: &[impl AsRef<str>],
        values: &PodCgroup,
    ) -> Result<(), CgroupError> {
        let Some(place) = self.pod_place(name).await? else { return Ok(()) };
        let (this, at, target) = (self.clone(), place.clone(), exactly(values));
        let raised = blocking(move || Ok(this.raised(&at, &target))).await?;
        timed("update", self.apply(name, place, raised)).await
    }

    /// Gives a pod's cgroup exactly the cpu and memory limits of `values`.
    ///
    /// # Errors
    /// [`CgroupError::BelowUse`] when the pod uses more memory than it would have, and when a value
    /// is refused.
    pub async fn set_pod(
        &self,
        name: &[impl AsRef<str>],
        values: &PodCgroup,
    ) -> Result<(), CgroupError> {
        let Some(place) = self.pod_place(name).await? else { return Ok(()) };
        if let Some(limit) = values.memory_limit_bytes {
            let (this, at) = (self.clone(), place.clone());
            let used = blocking(move || Ok(this.working_set(&at))).await?;
            if let Some(used) = used.filter(|used| *used > limit) {
                return Err(CgroupError::BelowUse { limit, used });
            }
        }
        timed("update", self.apply(name, place, exactly(values))).await
    }

    async fn pod_place(
        &self,
        name: &[impl AsRef<str>],
    ) -> Result<Option<CgroupPlace>, CgroupError> {
        if !self.is_managed() {
            return Ok(None);
        }
        check_name(name)?;
        let (this, places) = (self.clone(), self.places(name));
        blocking(move || this.inhabited(places)).await
    }

    async fn apply(
        &self,
        name: &[impl AsRef<str>],
        place: CgroupPlace,
        limits: Limits,
    ) -> Result<(), CgroupError> {
        if place.driver == CgroupDriver::Systemd {
            self.ensure_slices(&[self.slice(name, &limits)]).await?;
        }
        let this = self.clone();
        blocking(move || this.write(&place, &limits)).await
    }

    /// The limits of `target` that are higher than those in force.
    fn raised(&self, place: &CgroupPlace, target: &Limits) -> Limits {
        let is_higher = |limit: &i64, in_force: Option<i64>| {
            in_force.is_none_or(|in_force| comparable(*limit) > comparable(in_force))
        };
        let (quota, memory) = match self.version() {
            CgroupVersion::V1 => {
                (self.number(place, "cpu", "cpu.cfs_quota_us"), "memory.limit_in_bytes")
            }
            CgroupVersion::V2 => (self.number(place, "cpu", "cpu.max"), "memory.max"),
        };
        let memory = self.number(place, "memory", memory);
        Limits {
            cpu_quota_micros: target.cpu_quota_micros.filter(|(new, _)| is_higher(new, quota)),
            memory_bytes: target.memory_bytes.filter(|new| is_higher(new, memory)),
            ..Limits::default()
        }
    }

    /// The first number in a file of a cgroup, -1 for `max`; `None` when it can't be read.
    fn number(&self, place: &CgroupPlace, controller: &str, file: &str) -> Option<i64> {
        let directory = self.controller_dir(controller, |h| place.in_hierarchy(h))?;
        let text = fs::read_to_string(directory.join(file)).ok()?;
        match text.split_whitespace().next()? {
            "max" => Some(-1),
            number => number.parse().ok(),
        }
    }

    /// The memory of a pod without files that can be dropped, in bytes; `None` when it can't be
    /// read.
    fn working_set(&self, place: &CgroupPlace) -> Option<i64> {
        let (usage, inactive) = match self.version() {
            CgroupVersion::V1 => ("memory.usage_in_bytes", "total_inactive_file "),
            CgroupVersion::V2 => ("memory.current", "inactive_file "),
        };
        let usage = self.number(place, "memory", usage)?;
        let directory = self.controller_dir("memory", |h| place.in_hierarchy(h))?;
        let stat = fs::read_to_string(directory.join("memory.stat")).ok()?;
        let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.parse().ok());
        Some(usage.saturating_sub(inactive.unwrap_or(0)))
    }

    /// The directory of a cgroup in the hierarchy of a controller.
    pub(super) fn controller_dir(
        &self,
        controller: &str,
        directory: impl Fn(&Hierarchy) -> PathBuf,
    ) -> Option<PathBuf> {
        let has = |h: &&Hierarchy| match self.version() {
            CgroupVersion::V1 => h.controllers.iter().any(|c| c == controller),
            CgroupVersion::V2 => true,
        };
        self.inner.own.iter().find(has).map(directory)
    }
}

/// The cpu and memory of `values`, with -1 for what is not limited.
fn exactly(values: &PodCgroup) -> Limits {
    Limits { pids: None, hugepages: Vec::new(), ..Limits::of_pod(values) }
}

/// A limit, with no limit (a negative number) as the highest one.
fn comparable(limit: i64) -> i64 {
    if limit < 0 { i64::MAX } else { limit }
}
