//! What pods are admitted by, read once: the machine's capacity less what is set apart, labels, the
//! kernel.

use crate::{
    admission::{self, Allocatable, Capacity, NodeFacts, Reserved},
    config::Config,
    machine,
    model::{CollectOrdered as _, NodeCapacity, Signal},
    pressure::core::{Amount, StaticPods},
};
use nix::sys::statvfs::statvfs;
use std::path::Path;

/// # Errors
/// When more is set apart than the machine has.
pub(super) fn node_facts(
    config: &Config,
    node_name: &str,
    machine: &NodeCapacity,
) -> anyhow::Result<NodeFacts> {
    let capacity = capacity(config, machine);
    let allocatable = allocatable(config, &capacity)?;
    Ok(NodeFacts {
        name: node_name.into(),
        labels: admission::node_labels(node_name, machine::ARCHITECTURE, &config.node.labels),
        allocatable,
        allowed_unsafe_sysctls: config.pods.allowed_unsafe_sysctls.clone(),
        kernel: admission::kernel_version(&machine::kernel_release()),
        app_armor: machine::has_app_armor(Path::new("/")),
        spares_static_pods: config.eviction.static_pods == StaticPods::Never,
    })
}

/// The resource name of a huge page size: `hugepages-2Mi`.
fn huge_page_resource(page_bytes: u64) -> String {
    match page_bytes >> 10 {
        size if size >= 1 << 20 => format!("hugepages-{}Gi", size >> 20),
        size if size >= 1 << 10 => format!("hugepages-{}Mi", size >> 10),
        size => format!("hugepages-{size}Ki"),
    }
}

/// What the machine has.
pub(super) fn capacity(config: &Config, machine: &NodeCapacity) -> Capacity {
    Capacity {
        cpu_milli: machine.cpu_milli,
        memory_bytes: machine.memory_bytes,
        ephemeral_storage_bytes: disk_capacity(&config.paths.root_dir)
            .filter(|_| config.eviction.local_storage_limits),
        hugepages: machine
            .hugepages
            .iter()
            .map(|(size, bytes)| (huge_page_resource(*size), *bytes))
            .collect_ordered(),
        pods: admission::pod_capacity(
            config.pods.max_pods,
            config.pods.pods_per_core,
            machine.cpu_milli / 1000,
        ),
    }
}

fn allocatable(config: &Config, capacity: &Capacity) -> anyhow::Result<Allocatable> {
    let storage = capacity.ephemeral_storage_bytes;
    let of = |reserved: &crate::config::Reserved| Reserved {
        cpu_milli: reserved.cpu_milli,
        memory_bytes: reserved.memory_bytes,
        ephemeral_storage_bytes: reserved.ephemeral_storage_bytes,
    };
    let kept_free = Reserved {
        cpu_milli: 0,
        memory_bytes: hard(config, Signal::MemoryAvailable, capacity.memory_bytes),
        ephemeral_storage_bytes: storage
            .map_or(0, |storage| hard(config, Signal::NodefsAvailable, storage)),
    };
    let set_apart =
        [of(&config.cgroup.system_reserved), of(&config.cgroup.kube_reserved), kept_free];
    Ok(admission::allocatable(capacity, &set_apart)?)
}

/// What the hard eviction threshold of a signal keeps free: nothing where the capacity is too small
/// for it. Such a threshold of a disk has no effect, and one of memory is refused at the start.
fn hard(config: &Config, signal: Signal, capacity: i64) -> i64 {
    let mut thresholds = config.eviction.thresholds.iter();
    let whole = u64::try_from(capacity).unwrap_or_default();
    let found = thresholds.find(|t| t.signal == signal && t.is_hard()).filter(|t| t.fits(whole));
    match found.map(|threshold| threshold.value) {
        None => 0,
        Some(Amount::Percent(part)) => admission::percent_of(capacity, part),
        Some(Amount::Number(number)) => i64::try_from(number).unwrap_or(i64::MAX),
    }
}

/// Size of the file system of the root directory, in bytes.
fn disk_capacity(root: &Path) -> Option<i64> {
    let found = statvfs(root)
        .inspect_err(
            |err| tracing::warn!(%err, "the size of the root directory's disk is not known"),
        )
        .ok()?;
    let bytes = found.blocks().saturating_mul(found.fragment_size());
    i64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_and_validate;

    #[test]
    fn static_pods_are_spared_as_configured() {
        let machine = NodeCapacity { memory_bytes: 1 << 40, ..NodeCapacity::default() };
        let spares = |line: &str| {
            let text =
                format!("apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n{line}\n");
            let config = parse_and_validate(text.as_bytes()).unwrap().config;
            node_facts(&config, "node", &machine).unwrap().spares_static_pods
        };
        assert!(spares("staticPodEviction: never"));
        assert!(!spares("staticPodEviction: ranked") && !spares(""));
    }

    #[test]
    fn ephemeral_storage_is_told_where_it_is_limited() {
        let has = |isolation: bool| {
            let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
            let text = format!("{head}localStorageCapacityIsolation: {isolation}\n");
            let mut config = parse_and_validate(text.as_bytes()).unwrap().config;
            config.paths.root_dir = "/".into();
            let found = capacity(&config, &NodeCapacity::default());
            found.ephemeral_storage_bytes.is_some()
        };
        assert!(has(true) && !has(false));
    }

    #[test]
    fn huge_pages_are_named_as_pods_ask_for_them() {
        assert_eq!(
            [2 << 20, 1 << 30, 64 << 10].map(huge_page_resource),
            ["hugepages-2Mi", "hugepages-1Gi", "hugepages-64Ki"]
        );
    }
}
