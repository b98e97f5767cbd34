//! How much swap a container may use.
//!
//! <https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/2400-node-swap>

use super::{QosClass, container_limits, container_requests, qos_class};
use crate::model::{Quantity, SYSTEM_CRITICAL_PRIORITY, k8s};

/// `memorySwap.swapBehavior` `LimitedSwap`: bytes of swap for a container of a Burstable pod, in the
/// proportion of its memory request to the node's memory. A container without a request, or with a
/// limit that equals it, gets none, and neither does a pod with a priority of the system.
///
/// The kubelet counts every static pod as critical and gives none of them swap. Here static pods are
/// most of what runs, so their priority decides.
#[must_use]
pub fn swap_limit(
    pod: &k8s::Pod,
    container: &k8s::Container,
    node_memory_bytes: i64,
    node_swap_bytes: i64,
) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let is_critical = spec.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY);
    let memory = |amount: Option<Quantity>| amount.map_or(0, Quantity::value);
    let request = memory(container_requests(container).get("memory"));
    let limit = memory(container_limits(container).get("memory"));
    if is_critical || qos_class(spec) != QosClass::Burstable || request == limit {
        return 0;
    }
    let share =
        i128::from(request) * i128::from(node_swap_bytes) / i128::from(node_memory_bytes.max(1));
    i64::try_from(share).unwrap_or(i64::MAX).clamp(0, node_swap_bytes.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GIB: i64 = 1 << 30;

    fn swap(resources: &Value, priority: Option<i32>) -> i64 {
        let containers = json!([{ "name": "c", "resources": resources }, { "name": "other" }]);
        let pod = json!({ "spec": { "priority": priority, "containers": containers } });
        let pod: k8s::Pod = serde_json::from_value(pod).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        swap_limit(&pod, container, 8 * GIB, 4 * GIB)
    }

    #[test]
    fn swap_is_in_proportion_to_the_request() {
        assert_eq!(swap(&json!({"requests": {"memory": "1Gi"}}), None), GIB / 2);
        let limited = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        assert_eq!(swap(&limited, None), GIB / 2);
        assert_eq!(swap(&json!({"requests": {"memory": "3"}}), None), 1);
        assert_eq!(swap(&json!({"requests": {"memory": "1Ti"}}), None), 4 * GIB);
    }

    #[test]
    fn who_gets_no_swap() {
        let one = json!({"requests": {"memory": "1Gi"}});
        assert_eq!(swap(&one, Some(SYSTEM_CRITICAL_PRIORITY)), 0);
        assert_eq!(swap(&one, Some(SYSTEM_CRITICAL_PRIORITY - 1)), GIB / 2);
        assert_eq!(swap(&json!({}), None), 0);
        assert_eq!(swap(&json!({"requests": {"cpu": "1"}}), None), 0);
        assert_eq!(swap(&json!({"limits": {"memory": "1Gi"}}), None), 0);
    }
}
