//! `spec`: what concerns the pod as a whole.

use super::{Report, container, dns, given, metadata, names, resources, security, volumes};
use crate::{manifest::Context, model::k8s};

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec, cx: &Context<'_>) {
    report.one_of(
        "spec.restartPolicy",
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    seconds(report, spec);
    volumes::check(report, spec);
    container::check(report, spec);
    resources::check_pod(report, spec);
    security::check(report, spec, &cx.settings.allowed_unsafe_sysctls);
    dns::check(report, spec);
    namespaces(report, spec);
    metadata::labels(report, "spec.nodeSelector", spec.node_selector.as_ref());
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(report, &format!("spec.tolerations[{index}]"), toleration);
    }
    if spec.readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        let message =
            "without an API server nobody sets these conditions: the pod runs and is never Ready";
        report.warn("spec.readinessGates", message);
    }
    if let Some(class) = given(spec.priority_class_name.as_ref()) {
        report.name("spec.priorityClassName", class, names::dns_subdomain);
    }
    report.one_of(
        "spec.preemptionPolicy",
        spec.preemption_policy.as_deref(),
        &["PreemptLowerPriority", "Never"],
    );
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None | Some("linux") => {}
        Some("") => report.required("spec.os.name"),
        Some("windows") => report.not_honoured("spec.os.name", "this node runs Linux"),
        Some(name) => report.unsupported_value("spec.os.name", name, &["linux", "windows"]),
    }
}

fn seconds(report: &mut Report, spec: &k8s::PodSpec) {
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        report.invalid("spec.activeDeadlineSeconds", seconds, detail);
    }
    if let Some(seconds) = spec.termination_grace_period_seconds
        && seconds < 0
    {
        let path = "spec.terminationGracePeriodSeconds";
        report.invalid(path, seconds, "must be greater than or equal to 0");
    }
}

fn namespaces(report: &mut Report, spec: &k8s::PodSpec) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        report.invalid(
            "spec.shareProcessNamespace",
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if spec.host_users == Some(false) {
        report.not_honoured(
            "spec.hostUsers",
            "user namespaces are not made by this version; remove the field",
        );
    }
}

fn check_toleration(report: &mut Report, path: &str, toleration: &k8s::Toleration) {
    let key = given(toleration.key.as_ref());
    let operator = given(toleration.operator.as_ref());
    if let Some(key) = key
        && let Err(detail) = names::qualified_name(key)
    {
        report.invalid(&format!("{path}.key"), key, &detail);
    }
    report.one_of(&format!("{path}.operator"), operator, &["Equal", "Exists"]);
    if key.is_none() && operator != Some("Exists") {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        report.invalid(&format!("{path}.operator"), operator.unwrap_or_default(), detail);
    }
    if operator == Some("Exists")
        && let Some(value) = given(toleration.value.as_ref())
    {
        let detail = "value must be empty when `operator` is 'Exists'";
        report.invalid(&format!("{path}.operator"), value, detail);
    }
    let effect = given(toleration.effect.as_ref());
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    report.one_of(&format!("{path}.effect"), effect, &effects);
    if toleration.toleration_seconds.is_some() && effect != Some("NoExecute") {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        report.invalid(&format!("{path}.effect"), effect.unwrap_or_default(), detail);
    }
}
