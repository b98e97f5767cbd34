//! Node selectors and required node affinity, of pods and of PersistentVolumes.

use crate::model::k8s;
use std::collections::BTreeMap;

/// Whether a node with these labels and this name is one that the pod asks for.
pub(super) fn matches(
    spec: &k8s::PodSpec,
    labels: &BTreeMap<String, String>,
    node_name: &str,
) -> bool {
    let selected =
        spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let name = BTreeMap::from([("metadata.name".to_owned(), node_name.to_owned())]);
    selected && required.is_none_or(|selector| meets_any(selector, labels, &name))
}

/// True when a node with these labels can use a PersistentVolume with this node affinity. As in
/// the kubelet, the name of the node is not compared.
#[must_use]
pub fn volume_is_usable(
    affinity: &k8s::VolumeNodeAffinity,
    labels: &BTreeMap<String, String>,
) -> bool {
    let required = affinity.required.as_ref();
    required.is_none_or(|selector| meets_any(selector, labels, &BTreeMap::new()))
}

/// Whether one of the selector's terms is met.
fn meets_any(
    selector: &k8s::NodeSelector,
    labels: &BTreeMap<String, String>,
    fields: &BTreeMap<String, String>,
) -> bool {
    selector.node_selector_terms.iter().any(|term| meets(term, labels, fields))
}

/// Whether every requirement of a term is met. A term without any is met by nothing.
fn meets(
    term: &k8s::NodeSelectorTerm,
    labels: &BTreeMap<String, String>,
    fields: &BTreeMap<String, String>,
) -> bool {
    let expressions = term.match_expressions.iter().flatten().map(|r| (r, labels));
    let fields = term.match_fields.iter().flatten().map(|r| (r, fields));
    let mut all = expressions.chain(fields).peekable();
    all.peek().is_some() && all.all(|(requirement, values)| holds(requirement, values))
}

fn holds(requirement: &k8s::NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let wanted = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| wanted.contains(value));
    let compared = || {
        let [bound] = wanted else { return None };
        Some(value?.parse::<i64>().ok()?.cmp(&bound.parse::<i64>().ok()?))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::{Value, json};

    fn node_matches(spec: &Value) -> bool {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let labels = [("disk", "ssd"), ("cpus", "8"), ("empty", "")];
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        matches(&serde_json::from_value(spec).unwrap(), &labels, "n1")
    }

    fn terms(terms: &Value) -> Value {
        let required = json!({"nodeSelectorTerms": terms});
        let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        json!({"affinity": {"nodeAffinity": node}})
    }

    #[test]
    fn every_label_of_a_selector_must_be_there() {
        for (selector, matched) in [
            (json!({}), true),
            (json!({"disk": "ssd"}), true),
            (json!({"disk": "ssd", "empty": ""}), true),
            (json!({"disk": "hdd"}), false),
            (json!({"disk": "ssd", "rack": "a"}), false),
        ] {
            assert_eq!(node_matches(&json!({"nodeSelector": selector})), matched, "{selector}");
        }
    }

    #[test]
    fn every_operator_is_understood() {
        for (key, operator, values, matched) in [
            ("disk", "In", json!(["hdd", "ssd"]), true),
            ("disk", "In", json!(["hdd"]), false),
            ("rack", "In", json!(["a"]), false),
            ("disk", "NotIn", json!(["hdd"]), true),
            ("disk", "NotIn", json!(["hdd", "ssd"]), false),
            ("rack", "NotIn", json!(["a"]), true),
            ("disk", "Exists", json!(null), true),
            ("rack", "Exists", json!(null), false),
            ("disk", "DoesNotExist", json!(null), false),
            ("rack", "DoesNotExist", json!(null), true),
            ("cpus", "Gt", json!(["7"]), true),
            ("cpus", "Gt", json!(["8"]), false),
            ("cpus", "Lt", json!(["9"]), true),
            ("cpus", "Lt", json!(["8"]), false),
            ("disk", "Gt", json!(["1"]), false),
            ("disk", "Lt", json!(["1"]), false),
            ("rack", "Lt", json!(["1"]), false),
            ("cpus", "Gt", json!(["1", "2"]), false),
            ("cpus", "Gt", json!(["x"]), false),
            ("disk", "Like", json!(["ssd"]), false),
        ] {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            let spec = terms(&json!([{"matchExpressions": [requirement]}]));
            assert_eq!(node_matches(&spec), matched, "{key} {operator} {values}");
        }
    }

    #[test]
    fn one_term_suffices_and_needs_all_that_it_says() {
        let ssd = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let rack = json!({"key": "rack", "operator": "Exists"});
        let this = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        let other = json!({"key": "metadata.name", "operator": "NotIn", "values": ["n1"]});
        for (of, matched) in [
            (json!([{"matchExpressions": [ssd]}]), true),
            (json!([{"matchExpressions": [ssd, rack]}]), false),
            (json!([{"matchExpressions": [rack]}, {"matchExpressions": [ssd]}]), true),
            (json!([{"matchFields": [this]}]), true),
            (json!([{"matchFields": [other]}]), false),
            (json!([{"matchExpressions": [ssd], "matchFields": [other]}]), false),
            (json!([{}]), false),
            (json!([]), false),
        ] {
            assert_eq!(node_matches(&terms(&of)), matched, "{of}");
        }
        let mut both = terms(&json!([{"matchExpressions": [ssd]}]));
        both["nodeSelector"] = json!({"disk": "hdd"});
        assert!(!node_matches(&both), "the selector counts beside the affinity");
    }

    #[test]
    fn a_volume_is_usable_where_one_of_its_terms_is_met() {
        let labels = [("disk".to_owned(), "ssd".to_owned())].into();
        let usable = |affinity: &Value| {
            volume_is_usable(&serde_json::from_value(affinity.clone()).unwrap(), &labels)
        };
        let has = |key: &str| json!({"key": key, "operator": "Exists"});
        let this = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        for (terms, expected) in [
            (json!([{"matchExpressions": [has("disk")]}]), true),
            (json!([{"matchExpressions": [has("rack")]}]), false),
            (
                json!([{"matchExpressions": [has("rack")]}, {"matchExpressions": [has("disk")]}]),
                true,
            ),
            (json!([{"matchFields": [this]}]), false),
            (json!([]), false),
        ] {
            let affinity = json!({"required": {"nodeSelectorTerms": terms}});
            assert_eq!(usable(&affinity), expected, "{affinity}");
        }
        assert!(usable(&json!({})), "nothing is required");
    }
}
