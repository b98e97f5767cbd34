//! What the machine is like, gathered by the shell.

use crate::{
    admission::{Allocatable, Capacity},
    model::{CloudProvider, CollectOrdered as _, NodeConditions, k8s},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use std::{collections::BTreeMap, net::IpAddr};

pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Amounts by resource name.
pub type Resources = BTreeMap<String, Amount>;

/// What is known of the machine at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeReport {
    pub name: String,
    /// `InternalIP` and `Hostname`, as in a Node; empty when there is no address (yet).
    pub addresses: Vec<k8s::NodeAddress>,
    /// With an external one, addresses that the Node has are its own.
    pub cloud_provider: CloudProvider,
    /// The port of the HTTPS API; `None`: not served.
    pub port: Option<u16>,
    pub capacity: Resources,
    /// What of it pods may request.
    pub allocatable: Resources,
    /// `localStorageCapacityIsolation`: `ephemeral-storage` is a resource of the node.
    pub local_storage: bool,
    /// Kernel, runtime, versions, ids.
    pub info: k8s::NodeSystemInfo,
    /// The largest first, at most `nodeStatusMaxImages`.
    pub images: Vec<k8s::ContainerImage>,
    /// By name; empty where the runtime tells of none.
    pub runtime_handlers: Vec<k8s::NodeRuntimeHandler>,
    /// What the runtime can do; `None` where it doesn't tell.
    pub features: Option<k8s::NodeFeatures>,
    /// The node's conditions.
    pub conditions: NodeConditions,
}

impl NodeReport {
    /// Every reason why the node is not ready, in the kubelet's words and order; empty when it is.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let resources = ["cpu", "memory", "pods", EPHEMERAL_STORAGE];
        let missing: Vec<&str> = resources
            .into_iter()
            .filter(|name| self.local_storage || *name != EPHEMERAL_STORAGE)
            .filter(|name| !self.capacity.contains_key(*name))
            .collect();
        let missing = (!missing.is_empty())
            .then(|| format!("missing node capacity for resources: {}", missing.join(", ")));
        let mut all = self.conditions.not_ready();
        all.extend(missing);
        all.dedup();
        all
    }
}

/// The Node object that stands for this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRef {
    pub name: String,
    /// The API server's uid for it: another one after it was deleted and registered again.
    pub uid: String,
    /// Its deletion was asked for, and a finalizer keeps it.
    pub deleting: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    /// `registerNode`
    pub enabled: bool,
    /// `enableControllerAttachDetach`
    pub attach_detach: bool,
    /// Labels of every node, and configured ones.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`, and our own.
    pub taints: Vec<k8s::Taint>,
    /// `providerID`
    pub provider_id: Option<String>,
    /// `--cloud-provider`
    pub cloud_provider: CloudProvider,
    /// `--node-ip`
    pub node_ips: Vec<IpAddr>,
}

/// Capacity and allocatable as a Node has them.
#[must_use]
pub fn resources(capacity: &Capacity, allocatable: &Allocatable) -> (Resources, Resources) {
    let table =
        |cpu: i64, memory: i64, storage: Option<i64>, pages: &BTreeMap<String, i64>, pods: i64| {
            let storage =
                storage.map(|bytes| (EPHEMERAL_STORAGE.to_owned(), binary_quantity(bytes)));
            let pages = pages.iter().map(|(name, bytes)| (name.clone(), binary_quantity(*bytes)));
            let others = [
                ("cpu".to_owned(), cpu_quantity(cpu)),
                ("memory".to_owned(), binary_quantity(memory)),
                ("pods".to_owned(), Amount(pods.to_string())),
            ];
            others.into_iter().chain(storage).chain(pages).collect_ordered()
        };
    (
        table(
            capacity.cpu_milli,
            capacity.memory_bytes,
            capacity.ephemeral_storage_bytes,
            &capacity.hugepages,
            capacity.pods,
        ),
        table(
            allocatable.cpu_milli,
            allocatable.memory_bytes,
            allocatable.ephemeral_storage_bytes,
            &allocatable.hugepages,
            allocatable.pods,
        ),
    )
}

/// Thousandths of a CPU as Kubernetes writes them: `2`, `1900m`.
fn cpu_quantity(milli: i64) -> Amount {
    Amount(if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") })
}

/// Bytes as Kubernetes writes them in powers of 1024: the largest unit that leaves a whole number.
#[must_use]
pub fn binary_quantity(bytes: i64) -> Amount {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut left = bytes;
    let mut unit = 0;
    while left != 0 && left % 1024 == 0 && unit + 1 < UNITS.len() {
        left /= 1024;
        unit += 1;
    }
    Amount(format!("{left}{}", UNITS[unit]))
}
