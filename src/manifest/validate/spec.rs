//! `spec`: what concerns the pod as a whole.

use super::{
    Report,
    container::{self, Named},
    dns, given, names, placement, resources, scheduling, security, volumes,
};
use crate::{
    manifest::Context,
    model::k8s,
    podspec::{has_user_namespace, priority_of_class},
};
use std::collections::BTreeMap;

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec, cx: &Context<'_>) {
    report.one_of(
        "spec.restartPolicy",
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    seconds(report, spec);
    let named = Named::of(spec);
    volumes::check(report, spec, &named);
    container::check(report, spec, &named);
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let path = format!("spec.imagePullSecrets[{index}].name");
        if secret.name.is_empty() {
            // The API server accepts this, and Helm charts make it.
            report.warn(&path, "ignored: it names no Secret");
        } else {
            report.name(&path, &secret.name, names::dns_subdomain);
        }
    }
    resources::check_pod(report, spec);
    security::check(report, spec, &cx.settings.allowed_unsafe_sysctls);
    dns::check(report, spec);
    namespaces(report, spec);
    placement::check(report, spec);
    scheduling::check(report, spec);
    if spec.readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        let message =
            "without an API server nothing sets these conditions: the pod runs and is never Ready";
        report.warn("spec.readinessGates", message);
    }
    priority(report, spec, &cx.settings.priority_classes);
    runtime_class(report, spec, &cx.settings.runtime_classes);
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

/// A class stands for a number; what is written beside it counts. (Priorities were resolved with
/// the defaults.)
fn priority(report: &mut Report, spec: &k8s::PodSpec, classes: &BTreeMap<String, i32>) {
    let path = "spec.priorityClassName";
    let Some(class) = given(spec.priority_class_name.as_ref()) else { return };
    report.name(path, class, names::dns_subdomain);
    match (priority_of_class(class, classes), spec.priority) {
        (Some(meant), Some(written)) if meant != written => {
            let message = format!("the class has priority {meant}, but `priority: {written}` applies");
            report.warn(path, &message);
        }
        (None, None) => report.warn(
            path,
            "unknown class, the pod has priority 0: add the class to priorityClasses of NodeletConfiguration, or set `priority`",
        ),
        (Some(_) | None, Some(_)) | (Some(_), None) => {}
    }
}

fn runtime_class(report: &mut Report, spec: &k8s::PodSpec, classes: &BTreeMap<String, String>) {
    let path = "spec.runtimeClassName";
    let Some(class) = given(spec.runtime_class_name.as_ref()) else { return };
    if let Err(detail) = names::dns_subdomain(class) {
        report.invalid(path, class, &detail.to_string());
    } else if !classes.contains_key(class) {
        let detail = "unknown class: add it to runtimeClasses of NodeletConfiguration";
        report.invalid(path, class, detail);
    }
}

fn seconds(report: &mut Report, spec: &k8s::PodSpec) {
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        report.invalid("spec.activeDeadlineSeconds", seconds, detail);
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
    user_namespace(report, spec);
}

/// A pod has either namespaces of the host or a user namespace of its own; only in the latter it may
/// see all of `/proc`.
fn user_namespace(report: &mut Report, spec: &k8s::PodSpec) {
    if has_user_namespace(spec) {
        for (name, of_host) in [
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ] {
            if of_host == Some(true) {
                report.forbidden(&format!("spec.{name}"), "when `hostUsers` is false");
            }
        }
        return;
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        for (index, container) in containers.iter().enumerate() {
            let context = container.security_context.as_ref();
            if context.and_then(|sc| sc.proc_mount.as_deref()) == Some("Unmasked") {
                let path = format!("spec.{list}[{index}].securityContext.procMount");
                let detail = "`hostUsers` must be false to use `Unmasked`";
                report.invalid(&path, "Unmasked", detail);
            }
        }
    }
}
