//! What number a priority class stands for.

use crate::model::{SYSTEM_CRITICAL_PRIORITY, k8s};
use std::collections::BTreeMap;

/// Priority of `system-node-critical`, the highest that there is.
const NODE_CRITICAL_PRIORITY: i32 = SYSTEM_CRITICAL_PRIORITY + 1000;

/// The number of a priority class: one of the system's two, or one of `classes`.
#[must_use]
pub fn priority_of_class(name: &str, classes: &BTreeMap<String, i32>) -> Option<i32> {
    match name {
        "system-node-critical" => Some(NODE_CRITICAL_PRIORITY),
        "system-cluster-critical" => Some(SYSTEM_CRITICAL_PRIORITY),
        other => classes.get(other).copied(),
    }
}

/// Gives a pod the priority of its class, unless it has one written or the class is unknown.
pub fn resolve_priority(spec: &mut k8s::PodSpec, classes: &BTreeMap<String, i32>) {
    let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    if let (None, Some(class)) = (spec.priority, class) {
        spec.priority = priority_of_class(class, classes);
    }
}
