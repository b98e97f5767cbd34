//! The start order: which pods a pod waits for before it begins.

use crate::model::{AFTER, k8s};

/// The names of the pods that a pod waits for, as its manifest has them: without the node's name.
pub fn after(pod: &k8s::Pod) -> impl Iterator<Item = &str> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(AFTER)).map(String::as_str);
    text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

/// True when a pod is made to end: other pods wait until it has succeeded, not until it is ready.
#[must_use]
pub fn is_job(pod: &k8s::Pod) -> bool {
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    matches!(policy, Some("Never" | "OnFailure"))
}
