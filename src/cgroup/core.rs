//! The pure part: which hierarchies are mounted, which value goes into which file, which directory
//! is a pod's, and how much of the node the pods may use.

use super::{Limits, Reserved};
use crate::{
    model::{NodeCapacity, parse_mountinfo},
    podspec::{PodCgroup, cpu_shares, weight_of_shares},
};
use std::path::PathBuf;

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// v1: its controllers (`memory`, `cpu`, `name=systemd`, ...). Empty for v2.
    pub controllers: Vec<String>,
    /// Whether it is a cgroup2 mount.
    pub unified: bool,
}

/// Finds the cgroup hierarchies in what is in `/proc/<pid>/mountinfo`. A hierarchy mounted more
/// than once counts once, at its first place.
#[must_use]
pub fn hierarchies(mountinfo: &[u8]) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in parse_mountinfo(mountinfo) {
        let unified = match mount.fs_type.as_str() {
            "cgroup" => false,
            "cgroup2" => true,
            _ => continue,
        };
        let options = if unified { "" } else { &mount.super_options };
        let controllers: Vec<String> =
            options.split(',').filter(|option| is_controller(option)).map(str::to_owned).collect();
        if !found.iter().any(|h| h.unified == unified && h.controllers == controllers) {
            found.push(Hierarchy { mount_point: mount.mount_point, controllers, unified });
        }
    }
    found
}

/// Super block options of a v1 mount that are no controllers.
fn is_controller(option: &str) -> bool {
    !matches!(option, "rw" | "ro" | "xattr" | "clone_children" | "noprefix" | "none" | "all" | "")
        && !option.starts_with("release_agent=")
        && !option.starts_with("cpuset_v2_mode")
}

/// One value for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// The controller that the file belongs to.
    pub(super) controller: &'static str,
    /// File name in the cgroup's directory.
    pub(super) file: String,
    /// What is written.
    pub(super) value: String,
    /// Whether a kernel without this file is fine.
    pub(super) optional: bool,
}

impl Setting {
    fn new(controller: &'static str, file: &str, value: String) -> Self {
        Self { controller, file: file.to_owned(), value, optional: false }
    }

    /// A limit. A kernel without its file has none to lift.
    fn limit(controller: &'static str, file: &str, limit: i64, value: String) -> Self {
        Self { optional: limit < 0, ..Self::new(controller, file, value) }
    }
}

/// The files of cgroup v1 that hold `limits`, in the order of writing.
#[must_use]
pub(super) fn settings_v1(limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(shares) = limits.cpu_shares {
        settings.push(Setting::new("cpu", "cpu.shares", shares.to_string()));
    }
    if let Some((quota, period)) = limits.cpu_quota_micros {
        // The period first: a quota is checked against the period that is in force.
        settings.push(Setting::limit("cpu", "cpu.cfs_period_us", quota, period.to_string()));
        settings.push(Setting::limit("cpu", "cpu.cfs_quota_us", quota, quota.to_string()));
    }
    if let Some(bytes) = limits.memory_bytes {
        let value = bytes.to_string();
        settings.push(Setting::limit("memory", "memory.limit_in_bytes", bytes, value));
    }
    if let Some(pids) = limits.pids {
        settings.push(Setting::limit("pids", "pids.max", pids, or_max(pids)));
    }
    for (size, bytes) in &limits.hugepages {
        let file = format!("hugetlb.{size}.limit_in_bytes");
        settings.push(Setting::new("hugetlb", &file, bytes.to_string()));
        let file = format!("hugetlb.{size}.rsvd.limit_in_bytes");
        let reserved = Setting::new("hugetlb", &file, bytes.to_string());
        settings.push(Setting { optional: true, ..reserved });
    }
    settings
}

/// The files of cgroup v2 that hold `limits`, in the order of writing.
#[must_use]
pub(super) fn settings_v2(limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(shares) = limits.cpu_shares {
        settings.push(Setting::new("cpu", "cpu.weight", weight_of_shares(shares).to_string()));
    }
    if let Some((quota, period)) = limits.cpu_quota_micros {
        let value = format!("{} {period}", or_max(quota));
        settings.push(Setting::limit("cpu", "cpu.max", quota, value));
    }
    if let Some(bytes) = limits.memory_bytes {
        settings.push(Setting::limit("memory", "memory.max", bytes, or_max(bytes)));
    }
    if let Some(pids) = limits.pids {
        settings.push(Setting::limit("pids", "pids.max", pids, or_max(pids)));
    }
    for (size, bytes) in &limits.hugepages {
        settings.push(Setting::new("hugetlb", &format!("hugetlb.{size}.max"), bytes.to_string()));
        let file = format!("hugetlb.{size}.rsvd.max");
        let reserved = Setting::new("hugetlb", &file, bytes.to_string());
        settings.push(Setting { optional: true, ..reserved });
    }
    settings
}

fn or_max(amount: i64) -> String {
    if amount < 0 { "max".to_owned() } else { amount.to_string() }
}

/// What `kubepods` gets: the machine without the reserved part, or the whole machine when `pods` is
/// not among `enforceNodeAllocatable`. The eviction threshold is not taken off here, and hugepages
/// stay unlimited, as with the kubelet.
#[must_use]
pub fn node_limits(capacity: &NodeCapacity, reserved: &Reserved, enforce_pods: bool) -> Limits {
    let reserved = if enforce_pods { *reserved } else { Reserved::default() };
    let left = capacity.minus(&reserved);
    Limits {
        cpu_shares: Some(cpu_shares(left.cpu_milli)),
        cpu_quota_micros: None,
        memory_bytes: Some(left.memory_bytes),
        pids: Some(left.pids),
        hugepages: Vec::new(),
    }
}

impl Limits {
    /// The values that `podspec` computed for a pod, with -1 for what is not limited: its cgroup
    /// may be from an earlier attempt, by a revision with more limits.
    #[must_use]
    pub fn of_pod(values: &PodCgroup) -> Self {
        let hugepages = values.hugepage_limits.iter().map(|limit| {
            let bytes = i64::try_from(limit.limit_bytes).unwrap_or(i64::MAX);
            (page_size_name(limit.page_size_bytes / 1024), bytes)
        });
        Self {
            cpu_shares: Some(values.cpu_shares),
            cpu_quota_micros: Some((
                values.cpu_quota_micros.unwrap_or(-1),
                values.cpu_period_micros,
            )),
            memory_bytes: Some(values.memory_limit_bytes.unwrap_or(-1)),
            pids: Some(values.pids_max.unwrap_or(-1)),
            hugepages: hugepages.collect(),
        }
    }
}

impl NodeCapacity {
    /// What is left for pods; never negative.
    #[must_use]
    pub fn minus(&self, reserved: &Reserved) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(reserved.cpu_milli).max(0),
            memory_bytes: self.memory_bytes.saturating_sub(reserved.memory_bytes).max(0),
            pids: self.pids.saturating_sub(reserved.pids).max(0),
            hugepages: self.hugepages.clone(),
        }
    }
}

/// Process ids in the text of `cgroup.procs`. 0 stands for a process of another pid namespace: it
/// can't be signalled, and `kill(0)` would hit our own process group.
#[must_use]
pub(super) fn parse_procs(text: &str) -> Vec<i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 1).collect()
}

/// The page size in the name of a file that limits huge pages: `2MB` in `hugetlb.2MB.max` and in
/// `hugetlb.2MB.limit_in_bytes`.
#[must_use]
pub(super) fn page_size_of_file(name: &str) -> Option<&str> {
    let (size, file) = name.strip_prefix("hugetlb.")?.split_once('.')?;
    matches!(file, "max" | "limit_in_bytes").then_some(size)
}

/// The kernel's name of a page size in cgroup files: `64KB`, `2MB`, `1GB`.
#[must_use]
pub(super) fn page_size_name(kibibytes: u64) -> String {
    match kibibytes {
        size if size >= 1 << 20 => format!("{}GB", size >> 20),
        size if size >= 1 << 10 => format!("{}MB", size >> 10),
        size => format!("{size}KB"),
    }
}
