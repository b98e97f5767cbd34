//! What a pod says about the nodes that it is for, and what it tolerates of them.

use super::{Report, given, metadata, names};
use crate::model::k8s;

/// The kubelet's words for an operator that does not exist.
pub(super) const NO_OPERATOR: &str = "not a valid selector operator";

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec) {
    metadata::labels(report, "spec.nodeSelector", spec.node_selector.as_ref());
    let node = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    if let Some(selector) =
        node.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref())
    {
        let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        if selector.node_selector_terms.is_empty() {
            report.required_because(path, "must have at least one node selector term");
        }
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            check_term(report, &format!("{path}[{index}]"), term);
        }
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(report, &format!("spec.tolerations[{index}]"), toleration);
    }
}

pub(super) fn check_term(report: &mut Report, path: &str, term: &k8s::NodeSelectorTerm) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        check_expression(report, &format!("{path}.matchExpressions[{index}]"), requirement);
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        check_field(report, &format!("{path}.matchFields[{index}]"), requirement);
    }
}

fn check_expression(report: &mut Report, path: &str, requirement: &k8s::NodeSelectorRequirement) {
    let values = requirement.values.as_deref().unwrap_or_default();
    if let Err(detail) = names::qualified_name(&requirement.key) {
        report.invalid(&format!("{path}.key"), requirement.key.as_str(), &detail.to_string());
    }
    check_values(report, path, &requirement.operator, values);
    match requirement.operator.as_str() {
        "In" | "NotIn" => {
            for (index, value) in values.iter().enumerate() {
                if let Err(detail) = names::label_value(value) {
                    let path = format!("{path}.values[{index}]");
                    report.invalid(&path, value.as_str(), &detail.to_string());
                }
            }
        }
        "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" => match values {
            [number] if number.parse::<i64>().is_ok() => {}
            [other] => {
                let detail = "must be a whole number when `operator` is 'Lt' or 'Gt'";
                report.invalid(&format!("{path}.values[0]"), other.as_str(), detail);
            }
            _ => {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                report.required_because(&format!("{path}.values"), detail);
            }
        },
        other => report.invalid(&format!("{path}.operator"), other, NO_OPERATOR),
    }
}

/// Whether a requirement has values, as its operator has it: the same for nodes and for labels.
pub(super) fn check_values(report: &mut Report, path: &str, operator: &str, values: &[String]) {
    let path = format!("{path}.values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            report.required_because(&path, detail);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            report.forbidden(&path, detail);
        }
        _ => {}
    }
}

/// The node's name is the only field there is.
fn check_field(report: &mut Report, path: &str, requirement: &k8s::NodeSelectorRequirement) {
    match requirement.operator.as_str() {
        "In" | "NotIn" => {
            if requirement.values.as_ref().is_none_or(|values| values.len() != 1) {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node \
                              field selector";
                report.required_because(&format!("{path}.values"), detail);
            }
        }
        other => report.invalid(&format!("{path}.operator"), other, NO_OPERATOR),
    }
    if requirement.key != "metadata.name" {
        let key = requirement.key.as_str();
        report.invalid(&format!("{path}.key"), key, "not a valid field selector key");
    }
}

fn check_toleration(report: &mut Report, path: &str, toleration: &k8s::Toleration) {
    let key = given(toleration.key.as_ref());
    let operator = given(toleration.operator.as_ref());
    if let Some(key) = key
        && let Err(detail) = names::qualified_name(key)
    {
        report.invalid(&format!("{path}.key"), key, &detail.to_string());
    }
    report.one_of(&format!("{path}.operator"), operator, &["Equal", "Exists"]);
    if key.is_none() && operator != Some("Exists") {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        report.invalid(&format!("{path}.operator"), operator.unwrap_or_default(), detail);
    }
    if let Some(value) = given(toleration.value.as_ref()) {
        match (operator, names::label_value(value)) {
            (Some("Exists"), _) => {
                let detail = "value must be empty when `operator` is 'Exists'";
                report.invalid(&format!("{path}.operator"), value, detail);
            }
            (Some("Equal") | None, Err(detail)) => {
                report.invalid(&format!("{path}.value"), value, &detail.to_string());
            }
            (Some("Equal") | None, Ok(())) | (Some(_), _) => {}
        }
    }
    let effect = given(toleration.effect.as_ref());
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    report.one_of(&format!("{path}.effect"), effect, &effects);
    if toleration.toleration_seconds.is_some() && effect != Some("NoExecute") {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        report.invalid(&format!("{path}.effect"), effect.unwrap_or_default(), detail);
    }
}
