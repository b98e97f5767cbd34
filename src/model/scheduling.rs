//! The part of the Node object that decides which pods may run on the node.

use super::k8s;
use std::collections::BTreeMap;

/// The labels and taints of the Node object, as the API server has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeScheduling {
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`
    pub taints: Vec<k8s::Taint>,
}

impl From<&k8s::Node> for NodeScheduling {
    fn from(node: &k8s::Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints.unwrap_or_default(),
        }
    }
}
