//! Taints and tolerations, by the rules of Kubernetes.

use crate::model::k8s;

/// True when one of the pod's tolerations matches the taint.
pub(super) fn is_tolerated(pod: &k8s::Pod, taint: &k8s::Taint) -> bool {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(|toleration| tolerates(toleration, taint))
}

/// An empty effect matches every effect. An empty key matches every key, with `Exists` only. An
/// operator that Kubernetes does not know by default (`Gt`, `Lt`) matches nothing.
fn tolerates(toleration: &k8s::Toleration, taint: &k8s::Taint) -> bool {
    let effect = text(toleration.effect.as_ref());
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = text(toleration.key.as_ref());
    match text(toleration.operator.as_ref()) {
        "Exists" => key.is_empty() || key == taint.key,
        "" | "Equal" => {
            key == taint.key && text(toleration.value.as_ref()) == text(taint.value.as_ref())
        }
        _ => false,
    }
}

fn text(field: Option<&String>) -> &str {
    field.map(String::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations_match_by_key_operator_value_and_effect() {
        let taint = json!({"key": "gpu", "value": "a100", "effect": "NoExecute"});
        let taint: k8s::Taint = serde_json::from_value(taint).unwrap();
        for (toleration, tolerated) in [
            (json!({"key": "gpu", "value": "a100", "effect": "NoExecute"}), true),
            (json!({"key": "gpu", "operator": "Equal", "value": "a100"}), true),
            (json!({"key": "gpu", "operator": "", "value": "a100", "effect": ""}), true),
            (json!({"key": "gpu", "value": "h100"}), false),
            (json!({"key": "gpu"}), false),
            (json!({"key": "cpu", "value": "a100"}), false),
            (json!({"key": "gpu", "value": "a100", "effect": "NoSchedule"}), false),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "cpu", "operator": "Exists"}), false),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "", "operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"value": "a100"}), false),
            (json!({"key": "gpu", "operator": "Gt", "value": "1"}), false),
            (json!({"key": "gpu", "value": "a100", "tolerationSeconds": 0}), true),
        ] {
            let shown = toleration.to_string();
            let toleration = serde_json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &taint), tolerated, "{shown}");
        }
    }

    #[test]
    fn a_taint_without_a_value_equals_an_empty_value() {
        let taint = json!({"key": "gpu", "effect": "NoExecute"});
        let taint: k8s::Taint = serde_json::from_value(taint).unwrap();
        for (value, tolerated) in [(json!(null), true), (json!(""), true), (json!("x"), false)] {
            let toleration = json!({"key": "gpu", "operator": "Equal", "value": value});
            let toleration = serde_json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &taint), tolerated, "{value}");
        }
    }
}
