//! Security contexts of the pod and its containers, sysctls.

use super::{Report, given, names};
use crate::{
    model::k8s,
    podspec::{
        APP_ARMOR_ANNOTATION, SysctlNamespace, all_containers, is_allowed_sysctl, is_safe_sysctl,
        names_app_armor_profile, sysctl_name, sysctl_namespace,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::HashSet;

const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";
const MAX_PROFILE_NAME: usize = 4095;
/// Annotations with the seccomp profiles of a pod and of a container, whose name follows. Like the
/// kubelet, nodelet acts on the fields alone.
const POD_SECCOMP_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec, allowed_unsafe: &[String]) {
    let Some(context) = &spec.security_context else { return };
    let path = "spec.securityContext";
    for (name, id) in [
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
        ("fsGroup", context.fs_group),
    ] {
        check_id(report, &format!("{path}.{name}"), id);
    }
    for (index, id) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(report, &format!("{path}.supplementalGroups[{index}]"), Some(*id));
    }
    report.one_of(
        &format!("{path}.supplementalGroupsPolicy"),
        context.supplemental_groups_policy.as_deref(),
        &["Merge", "Strict"],
    );
    report.one_of(
        &format!("{path}.fsGroupChangePolicy"),
        context.fs_group_change_policy.as_deref(),
        &["Always", "OnRootMismatch"],
    );
    if let Some(profile) = &context.seccomp_profile {
        seccomp(report, &format!("{path}.seccompProfile"), profile);
    }
    if let Some(profile) = &context.app_armor_profile {
        app_armor(report, &format!("{path}.appArmorProfile"), profile);
    }
    sysctls(report, spec, context.sysctls.as_deref().unwrap_or_default(), allowed_unsafe);
}

pub(super) fn check_container(report: &mut Report, path: &str, container: &k8s::Container) {
    let Some(context) = &container.security_context else { return };
    let path = format!("{path}.securityContext");
    check_id(report, &format!("{path}.runAsUser"), context.run_as_user);
    check_id(report, &format!("{path}.runAsGroup"), context.run_as_group);
    if context.allow_privilege_escalation == Some(false) {
        let escalation = format!("{path}.allowPrivilegeEscalation");
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            report.invalid(&escalation, false, detail);
        }
        let adds = |name: &str| {
            let mut added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
            added.any(|added| added == name)
        };
        // As in the API server: the name with the prefix is rejected, the other one is not.
        if adds("CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.add` \
                          CAP_SYS_ADMIN";
            report.invalid(&escalation, false, detail);
        } else if adds("SYS_ADMIN") {
            let message = "protects little, because `capabilities.add` contains SYS_ADMIN";
            report.warn(&escalation, message);
        }
    }
    let proc_mount = context.proc_mount.as_deref();
    report.one_of(&format!("{path}.procMount"), proc_mount, &["Default", "Unmasked"]);
    if let Some(profile) = &context.seccomp_profile {
        seccomp(report, &format!("{path}.seccompProfile"), profile);
    }
    if let Some(profile) = &context.app_armor_profile {
        app_armor(report, &format!("{path}.appArmorProfile"), profile);
    }
}

/// The AppArmor profiles in annotations. An empty text is allowed, as in the API server.
pub(super) fn check_annotations(report: &mut Report, meta: &ObjectMeta, spec: &k8s::PodSpec) {
    for (key, profile) in meta.annotations.iter().flatten() {
        let Some(container) = key.strip_prefix(APP_ARMOR_ANNOTATION) else { continue };
        let path = format!("metadata.annotations[{key}]");
        if !all_containers(spec).any(|one| one.name == container) {
            report.invalid(&path, container, "container not found");
        }
        if !profile.is_empty() && !names_app_armor_profile(profile) {
            let detail = "must be \"runtime/default\", \"unconfined\" or \"localhost/<profile>\"";
            report.invalid(&path, profile.as_str(), detail);
        }
    }
    match_fields(report, meta, spec);
}

/// An annotation and a field that both name a profile must name the same one. As in the API server,
/// the pod's AppArmor field stands for the one that a container lacks. Its seccomp field does not.
fn match_fields(report: &mut Report, meta: &ObjectMeta, spec: &k8s::PodSpec) {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
    let pod = spec.security_context.as_ref();
    let path = "spec.securityContext.seccompProfile";
    let of_pod = pod.and_then(|context| context.seccomp_profile.as_ref());
    if let (Some(text), Some(profile)) = (annotation(POD_SECCOMP_ANNOTATION), of_pod) {
        match_seccomp(report, path, text, profile);
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}].securityContext");
            let own = container.security_context.as_ref();
            let text = annotation(&format!("{SECCOMP_ANNOTATION}{}", container.name));
            let profile = own.and_then(|context| context.seccomp_profile.as_ref());
            if let (Some(text), Some(profile)) = (text, profile) {
                match_seccomp(report, &format!("{path}.seccompProfile"), text, profile);
            }
            let text = annotation(&format!("{APP_ARMOR_ANNOTATION}{}", container.name));
            let profile = own
                .and_then(|context| context.app_armor_profile.as_ref())
                .or_else(|| pod.and_then(|context| context.app_armor_profile.as_ref()));
            if let (Some(text), Some(profile)) = (text, profile) {
                let field = (profile.type_.as_str(), profile.localhost_profile.as_deref());
                match_profile(report, &format!("{path}.appArmorProfile"), "apparmor", text, field);
            }
        }
    }
}

fn match_seccomp(report: &mut Report, path: &str, text: &str, profile: &k8s::SeccompProfile) {
    // An older name of the same profile.
    let text = if text == "docker/default" { "runtime/default" } else { text };
    let field = (profile.type_.as_str(), profile.localhost_profile.as_deref());
    match_profile(report, path, "seccomp", text, field);
}

/// Compares the text of an annotation with the type and the `localhostProfile` of a field.
fn match_profile(
    report: &mut Report,
    path: &str,
    what: &str,
    text: &str,
    (kind, localhost): (&str, Option<&str>),
) {
    let named = text.strip_prefix("localhost/");
    let is_same_type = match kind {
        "Unconfined" => text == "unconfined",
        "RuntimeDefault" => text == "runtime/default",
        "Localhost" => named.is_some(),
        // The type is refused for itself.
        _ => true,
    };
    if !is_same_type {
        let detail = format!("{what} type in annotation and field must match");
        report.forbidden(&format!("{path}.type"), &detail);
    } else if kind == "Localhost" && named != localhost {
        let detail = format!("{what} profile in annotation and field must match");
        report.forbidden(&format!("{path}.localhostProfile"), &detail);
    }
}

fn check_id(report: &mut Report, path: &str, id: Option<i64>) {
    if let Some(id) = id
        && !(0..=i64::from(i32::MAX)).contains(&id)
    {
        report.invalid(path, id, ID_RANGE);
    }
}

fn seccomp(report: &mut Report, path: &str, profile: &k8s::SeccompProfile) {
    profile_kind(report, path, &profile.type_, profile.localhost_profile.as_ref());
    if let Some(name) = given(profile.localhost_profile.as_ref())
        && let Err(detail) = names::inner_path(name)
    {
        report.invalid(&format!("{path}.localhostProfile"), name, &detail.to_string());
    }
}

fn app_armor(report: &mut Report, path: &str, profile: &k8s::AppArmorProfile) {
    profile_kind(report, path, &profile.type_, profile.localhost_profile.as_ref());
    let Some(name) = given(profile.localhost_profile.as_ref()) else { return };
    let path = format!("{path}.localhostProfile");
    if name.trim() != name {
        report.invalid(&path, name, "must not be padded with whitespace");
    }
    if name.len() > MAX_PROFILE_NAME {
        report.too_long(&path, MAX_PROFILE_NAME);
    }
}

fn profile_kind(report: &mut Report, path: &str, kind: &str, localhost: Option<&String>) {
    let localhost_path = format!("{path}.localhostProfile");
    match kind {
        "" => report.required(&format!("{path}.type")),
        "Localhost" if given(localhost).is_none() => {
            report.required_because(&localhost_path, "must be set when type is Localhost");
        }
        "Localhost" => {}
        "RuntimeDefault" | "Unconfined" => {
            if let Some(name) = localhost {
                let detail = "can only be set when type is Localhost";
                report.invalid(&localhost_path, name.as_str(), detail);
            }
        }
        other => report.unsupported_value(
            &format!("{path}.type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
}

fn sysctls(
    report: &mut Report,
    spec: &k8s::PodSpec,
    sysctls: &[k8s::Sysctl],
    allowed_unsafe: &[String],
) {
    let mut seen = HashSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let path = format!("spec.securityContext.sysctls[{index}].name");
        report.name(&path, &sysctl.name, names::sysctl_name);
        if names::sysctl_name(&sysctl.name).is_err() {
            continue;
        }
        let name = sysctl_name(&sysctl.name);
        if !seen.insert(name.clone()) {
            report.duplicate(&path, name.as_str());
        }
        let namespace = sysctl_namespace(&name);
        if namespace == Some(SysctlNamespace::Net) && spec.host_network == Some(true) {
            report.invalid(&path, name.as_str(), "may not be specified when 'hostNetwork' is true");
        }
        if namespace == Some(SysctlNamespace::Ipc) && spec.host_ipc == Some(true) {
            report.invalid(&path, name.as_str(), "may not be specified when 'hostIPC' is true");
        }
        let allowed = allowed_unsafe.iter().any(|pattern| is_allowed_sysctl(pattern, &name));
        if namespace.is_none() {
            let detail = format!("sysctl {name:?} is not namespaced: it would change the node");
            report.forbidden(&path, &detail);
        } else if !is_safe_sysctl(&name, None) && !allowed {
            let detail = format!("sysctl {name:?} not allowlisted; see allowedUnsafeSysctls");
            report.forbidden(&path, &detail);
        }
    }
}
