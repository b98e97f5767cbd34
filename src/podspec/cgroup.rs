//! The values of a pod's cgroup, its place in the tree, and the conversions between cpu amounts,
//! shares, weights and quotas.

use super::resources::{pod_level, with_overhead};
use super::{
    Amounts, QosClass, container_limits, effective_requests, pod_limits, qos_class, uid_of,
};
use crate::model::{CpuMemory, Order as _, Quantity, k8s};

const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
const MIN_QUOTA_MICROS: i64 = 1_000;
const MAX_WEIGHT: u64 = 10_000;

/// What a pod's cgroup is given when it is made, and when its cpu or memory are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// cgroup v1 `cpu.shares`, 2 to 262144; on v2 see [`weight_of_shares`].
    pub cpu_shares: u64,
    /// CFS quota in microseconds per period; `None` is unlimited.
    pub cpu_quota_micros: Option<i64>,
    /// CFS period in microseconds.
    pub cpu_period_micros: u64,
    /// Memory limit in bytes; `None` is unlimited.
    pub memory_limit_bytes: Option<i64>,
    /// `pids.max`; `None` is unlimited.
    pub pids_max: Option<i64>,
    /// The huge pages that the pod may use, one entry for each size it names. Every other size
    /// that the host has is to be limited to 0.
    pub hugepage_limits: Vec<HugepageLimit>,
}

/// A limit on huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugepageLimit {
    /// Size of one page in bytes.
    pub page_size_bytes: u64,
    /// Limit in bytes.
    pub limit_bytes: u64,
}

/// Node settings that the pod's cgroup depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupOptions {
    /// `cpuCFSQuota`: whether cpu limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds.
    pub cpu_period_micros: u64,
    /// `podPidsLimit`; `None` is unlimited.
    pub pids_limit: Option<i64>,
}

/// What limits the pod as a whole: [`pod_limits`] and its overhead.
///
/// A limit of cpu or memory on the whole pod exists only where every container has one (or the pod
/// itself has): otherwise the containers without a limit would share what the others reserved.
#[must_use]
pub fn effective_limits(spec: &k8s::PodSpec) -> Amounts {
    let is_shared = |name: &str| matches!(name, "cpu" | "memory");
    let limits = with_overhead(pod_limits(spec), spec, true);
    let holds = |name: &str| !is_shared(name) || everything_limited(spec, name);
    let held = limits.iter().filter(|(name, _)| holds(name));
    held.map(|(name, amount)| (name.to_owned(), amount)).collect()
}

/// The values for a pod's cgroup.
#[must_use]
pub fn pod_cgroup(spec: &k8s::PodSpec, options: &CgroupOptions) -> PodCgroup {
    let amounts = cgroup_amounts(spec);
    let quota = amounts.cpu_limit.filter(|_| options.cpu_cfs_quota);
    PodCgroup {
        cpu_shares: cpu_shares(amounts.cpu_request.unwrap_or_default()),
        cpu_quota_micros: quota.map(|milli| cpu_quota_micros(milli, options.cpu_period_micros)),
        cpu_period_micros: options.cpu_period_micros,
        memory_limit_bytes: amounts.memory_limit,
        pids_max: options.pids_limit,
        hugepage_limits: hugepage_limits(&effective_limits(spec)),
    }
}

/// The cpu and memory of a pod's cgroup: what a resize of the pod changes there. The cgroup has no
/// memory request.
#[must_use]
pub fn cgroup_amounts(spec: &k8s::PodSpec) -> CpuMemory {
    match qos_class(spec) {
        QosClass::BestEffort => CpuMemory::default(),
        QosClass::Guaranteed | QosClass::Burstable => {
            let limits = effective_limits(spec);
            CpuMemory {
                cpu_request: effective_requests(spec).non_zero("cpu").map(Quantity::milli_value),
                cpu_limit: limits.non_zero("cpu").map(Quantity::milli_value),
                memory_request: None,
                memory_limit: limits.non_zero("memory").map(Quantity::value),
            }
        }
    }
}

/// Whether every container, or the pod as a whole, has a limit on `resource`.
fn everything_limited(spec: &k8s::PodSpec, resource: &str) -> bool {
    let whole = pod_level(spec, |r| r.limits.as_ref()).non_zero(resource).is_some();
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    whole || containers.all(|c| container_limits(c).non_zero(resource).is_some())
}

/// The huge page limits in a list, by page size.
#[must_use]
pub fn hugepage_limits(limits: &Amounts) -> Vec<HugepageLimit> {
    let mut found: Vec<HugepageLimit> = limits
        .iter()
        .filter_map(|(name, amount)| {
            let size = Quantity::parse(name.strip_prefix("hugepages-")?).ok()?.value();
            Some(HugepageLimit {
                page_size_bytes: u64::try_from(size).ok()?,
                limit_bytes: u64::try_from(amount.value()).ok()?,
            })
        })
        .collect();
    found.order_by_key(|limit| limit.page_size_bytes);
    found
}

/// `cpu.shares` of the tier of burstable pods: what its active pods request together.
#[must_use]
pub fn burstable_shares<'a>(specs: impl IntoIterator<Item = &'a k8s::PodSpec>) -> u64 {
    let requested: i64 = specs
        .into_iter()
        .filter(|spec| qos_class(spec) == QosClass::Burstable)
        .filter_map(|spec| effective_requests(spec).get("cpu"))
        .map(Quantity::milli_value)
        .fold(0, i64::saturating_add);
    cpu_shares(requested)
}

/// Name of a pod's cgroup as components, below the agent's cgroup root: `kubepods`, the tier
/// (none for guaranteed pods) and `pod<uid>`.
#[must_use]
pub fn pod_cgroup_name(pod: &k8s::Pod) -> Vec<String> {
    let tier = match class_of(pod) {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable".to_owned()),
        QosClass::BestEffort => Some("besteffort".to_owned()),
    };
    let mut name = vec!["kubepods".to_owned()];
    name.extend(tier);
    name.push(format!("pod{}", uid_of(pod)));
    name
}

fn class_of(pod: &k8s::Pod) -> QosClass {
    pod.spec.as_ref().map_or(QosClass::BestEffort, qos_class)
}

/// Whether two pods have the same QoS class.
#[must_use]
pub fn has_same_class(one: &k8s::Pod, other: &k8s::Pod) -> bool {
    std::ptr::eq(one, other) || class_of(one) == class_of(other)
}

/// Shares of an amount in thousandths of a cpu; none is the minimum.
#[must_use]
pub fn cpu_shares(milli: i64) -> u64 {
    let milli = u64::try_from(milli).unwrap_or(0);
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds of a limit in thousandths of a cpu. Below 10m (of a 100 ms period)
/// it is what 10m gets: the kernel takes no less than a millisecond.
#[must_use]
pub fn cpu_quota_micros(milli: i64, period_micros: u64) -> i64 {
    let period = i64::try_from(period_micros).unwrap_or(i64::MAX);
    (milli.saturating_mul(period) / 1000).max(MIN_QUOTA_MICROS)
}

/// cgroup v2 `cpu.weight` of cgroup v1 shares: the kubelet's linear scale for its own cgroups.
/// Runtimes use another curve for containers; the two are not to be compared.
#[must_use]
pub fn weight_of_shares(shares: u64) -> u64 {
    let above = shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES;
    (1 + above * (MAX_WEIGHT - 1) / (MAX_SHARES - MIN_SHARES)).min(MAX_WEIGHT)
}
