//! `LinuxContainerResources`.

use super::{NodeFacts, Swap};
use crate::cri::v1;
use crate::model::{Quantity, k8s};
use crate::podspec::{
    Amounts, container_limits, container_requests, cpu_quota_micros, cpu_shares, oom_score_adj,
    pod_limits, pod_requests, swap_limit,
};
use std::collections::BTreeMap;

/// Resources of a container.
pub(super) fn container(
    pod: &k8s::Pod,
    container: &k8s::Container,
    node: &NodeFacts,
) -> v1::LinuxContainerResources {
    let limits = container_limits(container);
    let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let whole = Amounts::of(whole.and_then(|r| r.limits.as_ref()));
    // A container without a limit of its own is bounded by the pod's.
    let limit = |resource: &str| limits.non_zero(resource).or_else(|| whole.non_zero(resource));
    let request = container_requests(container).get("cpu");
    let mut resources = amounts(request, limit("cpu"), limit("memory"), node);
    resources.oom_score_adj = oom_score_adj(pod, container, node.memory_bytes);
    resources.hugepage_limits = hugepage_limits(&limits, &whole, node);
    let swap_bytes = match node.swap {
        None => return resources,
        Some(Swap::No) => 0,
        Some(Swap::Limited { node_bytes }) => {
            swap_limit(pod, container, node.memory_bytes, node_bytes)
        }
    };
    if node.cgroup_v2 {
        resources.unified.insert("memory.swap.max".to_owned(), swap_bytes.to_string());
    } else {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
    resources
}

/// What a container that runs is changed to. A limit that is gone is -1: 0 would leave it as it is.
/// Huge pages cannot be changed.
#[must_use]
pub fn resized(
    pod: &k8s::Pod,
    of: &k8s::Container,
    node: &NodeFacts,
) -> v1::LinuxContainerResources {
    let mut resources = container(pod, of, node);
    resources.hugepage_limits.clear();
    let or_unlimited = |amount: i64| if amount == 0 { -1 } else { amount };
    resources.memory_limit_in_bytes = or_unlimited(resources.memory_limit_in_bytes);
    if node.swap.is_some() && !node.cgroup_v2 {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
    if node.cpu_cfs_quota {
        resources.cpu_quota = or_unlimited(resources.cpu_quota);
    }
    resources
}

/// Resources of the pod as a whole, which the sandbox gets for information.
pub(super) fn sandbox(spec: &k8s::PodSpec, node: &NodeFacts) -> v1::LinuxContainerResources {
    let (requests, limits) = (pod_requests(spec), pod_limits(spec));
    amounts(requests.get("cpu"), limits.get("cpu"), limits.get("memory"), node)
}

/// What the sandbox itself is charged with; an empty message without overhead.
pub(super) fn overhead(spec: &k8s::PodSpec, node: &NodeFacts) -> v1::LinuxContainerResources {
    if spec.overhead.is_none() {
        return v1::LinuxContainerResources::default();
    }
    let overhead = Amounts::of(spec.overhead.as_ref());
    amounts(overhead.get("cpu"), overhead.get("cpu"), overhead.get("memory"), node)
}

fn amounts(
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_limit: Option<Quantity>,
    node: &NodeFacts,
) -> v1::LinuxContainerResources {
    let cpu_limit = cpu_limit.unwrap_or_default();
    let asked = cpu_request.unwrap_or(cpu_limit).milli_value();
    let mut resources = v1::LinuxContainerResources {
        cpu_shares: i64::try_from(cpu_shares(asked)).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory_limit.map_or(0, Quantity::value),
        ..Default::default()
    };
    if node.cpu_cfs_quota {
        resources.cpu_period = i64::try_from(node.cpu_period_micros).unwrap_or(i64::MAX);
        if !cpu_limit.is_zero() {
            resources.cpu_quota = cpu_quota_micros(cpu_limit.milli_value(), node.cpu_period_micros);
        }
    }
    // With it the kernel kills all processes of a container or none: a container without some of
    // its processes may not work.
    if node.cgroup_v2 && node.single_process_oom_kill != Some(true) {
        resources.unified = BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
    }
    resources
}

/// One entry for each size that can be limited: the limit of the container, or else of its pod. A
/// size that neither of them has is limited to 0.
fn hugepage_limits(own: &Amounts, whole: &Amounts, node: &NodeFacts) -> Vec<v1::HugepageLimit> {
    let asked = [own, whole].map(crate::podspec::hugepage_limits).concat();
    let sizes = node.hugepage_sizes_bytes.iter();
    sizes
        .map(|size| v1::HugepageLimit {
            page_size: page_size_name(*size),
            limit: asked.iter().find(|l| l.page_size_bytes == *size).map_or(0, |l| l.limit_bytes),
        })
        .collect()
}

/// A page size as cgroup files and the CRI name it: `64KB`, `2MB`, `1GB`.
#[must_use]
pub fn page_size_name(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1024 && size.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", UNITS[unit])
}
