//! Fields about scheduling and about readiness gates. This version reads them and does not act on
//! them. Their values are checked all the same, with the messages of the
//! API server, so that a mistake is found here and not in a cluster later.

use super::{Report, metadata, names, placement};
use crate::model::k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::{HashMap, HashSet};

const WEIGHT: &str = "must be in the range 1-100";
const NOT_POSITIVE: &str = "must be greater than zero";
const EMPTY: &str = "can not be empty";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec) {
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = format!("spec.readinessGates[{index}].conditionType");
        check_key(report, &path, &gate.condition_type);
    }
    if let Some(affinity) = &spec.affinity {
        check_affinity(report, affinity);
    }
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    // How many constraints of a key and an action are still to come. Two are a mistake.
    let mut later: HashMap<_, usize> = HashMap::new();
    for constraint in constraints {
        *later.entry(key_and_action(constraint)).or_default() += 1;
    }
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("spec.topologySpreadConstraints[{index}]");
        check_spread(report, &path, constraint);
        let (key, action) = key_and_action(constraint);
        let left = later.entry((key, action)).or_default();
        *left -= 1;
        if *left > 0 {
            let pair = format!("{{{key}, {action}}}");
            report.duplicate(&format!("{path}.{{topologyKey, whenUnsatisfiable}}"), pair);
        }
    }
}

fn check_affinity(report: &mut Report, affinity: &k8s::Affinity) {
    let node = affinity.node_affinity.as_ref();
    let preferred = node
        .and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default();
    for (index, term) in preferred.iter().enumerate() {
        let path = format!("spec.affinity.nodeAffinity.{PREFERRED}[{index}]");
        check_weight(report, &path, term.weight);
        placement::check_term(report, &format!("{path}.preference"), &term.preference);
    }
    let near = affinity.pod_affinity.as_ref().map(|pods| {
        let preferred = &pods.preferred_during_scheduling_ignored_during_execution;
        ("podAffinity", preferred, &pods.required_during_scheduling_ignored_during_execution)
    });
    let apart = affinity.pod_anti_affinity.as_ref().map(|pods| {
        let preferred = &pods.preferred_during_scheduling_ignored_during_execution;
        ("podAntiAffinity", preferred, &pods.required_during_scheduling_ignored_during_execution)
    });
    for (name, preferred, required) in near.into_iter().chain(apart) {
        for (index, term) in required.iter().flatten().enumerate() {
            check_pods(report, &format!("spec.affinity.{name}.{REQUIRED}[{index}]"), term);
        }
        for (index, term) in preferred.iter().flatten().enumerate() {
            let path = format!("spec.affinity.{name}.{PREFERRED}[{index}]");
            check_weight(report, &path, term.weight);
            check_pods(report, &format!("{path}.podAffinityTerm"), &term.pod_affinity_term);
        }
    }
}

fn check_weight(report: &mut Report, path: &str, weight: i32) {
    if !(1..=100).contains(&weight) {
        report.invalid(&format!("{path}.weight"), weight, WEIGHT);
    }
}

/// A term that says which pods are to be near or apart.
fn check_pods(report: &mut Report, path: &str, term: &k8s::PodAffinityTerm) {
    let selector = term.label_selector.as_ref();
    check_selector(report, &format!("{path}.labelSelector"), selector);
    check_selector(report, &format!("{path}.namespaceSelector"), term.namespace_selector.as_ref());
    for (index, name) in term.namespaces.iter().flatten().enumerate() {
        if let Err(detail) = names::dns_label(name) {
            let path = format!("{path}.namespaces[{index}]");
            report.invalid(&path, name.as_str(), &detail.to_string());
        }
    }
    let matched = term.match_label_keys.as_deref().unwrap_or_default();
    let mismatched = term.mismatch_label_keys.as_deref().unwrap_or_default();
    check_keys(report, &format!("{path}.matchLabelKeys"), matched, selector);
    check_keys(report, &format!("{path}.mismatchLabelKeys"), mismatched, selector);
    let mismatched: HashSet<&String> = mismatched.iter().collect();
    for (index, key) in matched.iter().enumerate().filter(|(_, key)| mismatched.contains(key)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        report.invalid(&format!("{path}.matchLabelKeys[{index}]"), key.as_str(), detail);
    }
    check_topology(report, path, &term.topology_key);
}

fn check_topology(report: &mut Report, path: &str, key: &str) {
    let path = format!("{path}.topologyKey");
    if key.is_empty() {
        report.required_because(&path, EMPTY);
    } else {
        check_key(report, &path, key);
    }
}

/// Keys of labels whose values are those of the pod itself.
fn check_keys(report: &mut Report, path: &str, keys: &[String], selector: Option<&LabelSelector>) {
    if selector.is_none() && !keys.is_empty() {
        report.forbidden(path, "must not be specified when labelSelector is not set");
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        check_key(report, &format!("{path}[{index}]"), key);
    }
}

fn check_key(report: &mut Report, path: &str, key: &str) {
    if let Err(detail) = names::qualified_name(key) {
        report.invalid(path, key, &detail.to_string());
    }
}

fn check_selector(report: &mut Report, path: &str, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    metadata::labels(report, &format!("{path}.matchLabels"), selector.match_labels.as_ref());
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        check_requirement(report, &format!("{path}.matchExpressions[{index}]"), requirement);
    }
}

fn check_requirement(report: &mut Report, path: &str, requirement: &LabelSelectorRequirement) {
    let values = requirement.values.as_deref().unwrap_or_default();
    placement::check_values(report, path, &requirement.operator, values);
    if !["In", "NotIn", "Exists", "DoesNotExist"].contains(&requirement.operator.as_str()) {
        let operator = requirement.operator.as_str();
        report.invalid(&format!("{path}.operator"), operator, placement::NO_OPERATOR);
    }
    check_key(report, &format!("{path}.key"), &requirement.key);
    for (index, value) in values.iter().enumerate() {
        if let Err(detail) = names::label_value(value) {
            let path = format!("{path}.values[{index}]");
            report.invalid(&path, value.as_str(), &detail.to_string());
        }
    }
}

fn key_and_action(constraint: &k8s::TopologySpreadConstraint) -> (&str, &str) {
    (&constraint.topology_key, &constraint.when_unsatisfiable)
}

fn check_spread(report: &mut Report, path: &str, constraint: &k8s::TopologySpreadConstraint) {
    if constraint.max_skew <= 0 {
        report.invalid(&format!("{path}.maxSkew"), constraint.max_skew, NOT_POSITIVE);
    }
    check_topology(report, path, &constraint.topology_key);
    let action = constraint.when_unsatisfiable.as_str();
    let actions = ["DoNotSchedule", "ScheduleAnyway"];
    report.one_of(&format!("{path}.whenUnsatisfiable"), Some(action), &actions);
    if let Some(domains) = constraint.min_domains {
        let path = format!("{path}.minDomains");
        if domains <= 0 {
            report.invalid(&path, domains, NOT_POSITIVE);
        }
        // Any other value is reported above.
        if action == "ScheduleAnyway" {
            let detail =
                "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway";
            report.invalid(&path, domains, detail);
        }
    }
    for (name, policy) in [
        ("nodeAffinityPolicy", &constraint.node_affinity_policy),
        ("nodeTaintsPolicy", &constraint.node_taints_policy),
    ] {
        report.one_of(&format!("{path}.{name}"), policy.as_deref(), &["Honor", "Ignore"]);
    }
    let selector = constraint.label_selector.as_ref();
    let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
    check_keys(report, &format!("{path}.matchLabelKeys"), keys, selector);
    check_selector(report, &format!("{path}.labelSelector"), selector);
}
