//! The part of the Node object that decides which pods may run on the node.

use super::{CollectOrdered as _, Quantity, k8s};
use std::{collections::BTreeMap, time::Duration};

/// What the Node object says about pods, as the API server has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeScheduling {
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`
    pub taints: Vec<k8s::Taint>,
    /// The extended resources in `status.allocatable`.
    pub extended: BTreeMap<String, i64>,
    /// The boot time at which the Node was last read without its watch, because a pod asked for
    /// that: what is here is not older. Zero: not yet.
    pub read_at: Duration,
}

/// True for a resource that is not Kubernetes' own, such as `example.com/dongle`.
#[must_use]
pub fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

impl From<&k8s::Node> for NodeScheduling {
    fn from(node: &k8s::Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let extended = allocatable.into_iter().flatten();
        let extended = extended.filter(|(name, _)| is_extended_resource(name));
        let amount = |amount: &str| Quantity::parse(amount).unwrap_or_default().value();
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints.unwrap_or_default(),
            read_at: Duration::ZERO,
            extended: extended
                .map(|(name, text)| (name.clone(), amount(&text.0)))
                .collect_ordered(),
        }
    }
}
