//! The grace period of a pod.

use crate::model::k8s;

/// The grace period, in seconds, of a pod whose spec names none or is not known: the default of the
/// API.
const DEFAULT: u32 = 30;

/// The grace period of a pod, in seconds. What is below one counts as one, as for the kubelet: the
/// API allows a negative number.
#[must_use]
pub fn grace_seconds(pod: Option<&k8s::Pod>) -> u32 {
    let seconds = pod
        .and_then(|pod| pod.spec.as_ref())
        .and_then(|spec| spec.termination_grace_period_seconds);
    seconds.map_or(DEFAULT, |s| u32::try_from(s.max(1)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_grace_period_is_at_least_a_second() {
        for (own, seconds) in [
            (json!(null), 30),
            (json!(-1), 1),
            (json!(0), 1),
            (json!(5), 5),
            (json!(i64::MAX), u32::MAX),
        ] {
            let spec = json!({"containers": [], "terminationGracePeriodSeconds": own});
            let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(grace_seconds(Some(&pod)), seconds, "{own}");
        }
        assert_eq!(grace_seconds(None), 30);
    }
}
