//! `env` and `envFrom` of a container.

use super::{Report, container::Named, given, names};
use crate::{
    model::{Quantity, k8s},
    podspec::check_expansion,
};

/// Fields that a variable may be filled from.
const FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const CPU_DIVISORS: [&str; 2] = ["1m", "1"];
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn check(
    report: &mut Report,
    path: &str,
    container: &k8s::Container,
    named: &Named<'_>,
) {
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = format!("{path}.env[{index}]");
        report.name(&format!("{path}.name"), &variable.name, names::env_name);
        let Some(source) = &variable.value_from else { continue };
        let path = format!("{path}.valueFrom");
        if given(variable.value.as_ref()).is_some() {
            report.invalid(&path, "", "may not be specified when `value` is not empty");
        }
        value_from(report, &path, source, named);
    }
    if let Err(error) = check_expansion(container) {
        report.too_long_because(&format!("{path}.{}", error.field()), &error.to_string());
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        env_from(report, &format!("{path}.envFrom[{index}]"), source);
    }
}

fn value_from(report: &mut Report, path: &str, source: &k8s::EnvVarSource, named: &Named<'_>) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        field_ref(report, &format!("{path}.fieldRef"), field, &FIELD_PATHS);
    }
    if let Some(resource) = &source.resource_field_ref {
        sources += 1;
        resource_ref(report, &format!("{path}.resourceFieldRef"), resource, named);
    }
    if let Some(from) = &source.config_map_key_ref {
        sources += 1;
        key_ref(report, &format!("{path}.configMapKeyRef"), &from.name, &from.key);
    }
    if let Some(from) = &source.secret_key_ref {
        sources += 1;
        key_ref(report, &format!("{path}.secretKeyRef"), &from.name, &from.key);
    }
    match sources {
        0 => {
            let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or \
                          `secretKeyRef`";
            report.invalid(path, "", detail);
        }
        1 => {}
        _ => report.invalid(path, "", "may not have more than one field specified at a time"),
    }
}

fn key_ref(report: &mut Report, path: &str, name: &str, key: &str) {
    report.name(&format!("{path}.name"), name, names::dns_subdomain);
    report.name(&format!("{path}.key"), key, names::config_key);
}

fn env_from(report: &mut Report, path: &str, source: &k8s::EnvFromSource) {
    if let Some(prefix) = given(source.prefix.as_ref()) {
        report.name(&format!("{path}.prefix"), prefix, names::env_name);
    }
    match (&source.config_map_ref, &source.secret_ref) {
        (Some(_), Some(_)) => {
            report.invalid(path, "", "may not have more than one field specified at a time");
        }
        (Some(from), None) => {
            report.name(&format!("{path}.configMapRef.name"), &from.name, names::dns_subdomain);
        }
        (None, Some(from)) => {
            report.name(&format!("{path}.secretRef.name"), &from.name, names::dns_subdomain);
        }
        (None, None) => {
            report.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`");
        }
    }
}

/// `paths`: the fields that may be named, besides single labels and annotations.
pub(super) fn field_ref(
    report: &mut Report,
    path: &str,
    field: &k8s::ObjectFieldSelector,
    paths: &[&str],
) {
    if let Some(version) = given(field.api_version.as_ref())
        && version != "v1"
    {
        report.unsupported_value(&format!("{path}.apiVersion"), version, &["v1"]);
    }
    let path = format!("{path}.fieldPath");
    let text = field.field_path.as_str();
    if text.is_empty() {
        report.required(&path);
        return;
    }
    let subscript = ["metadata.labels", "metadata.annotations"]
        .into_iter()
        .find_map(|map| text.strip_prefix(map))
        .and_then(|rest| rest.strip_prefix("['")?.strip_suffix("']"));
    match subscript {
        Some(key) => {
            if let Err(detail) = names::qualified_name(&key.to_lowercase()) {
                report.invalid(&path, text, &detail.to_string());
            }
        }
        None => report.one_of(&path, Some(text), paths),
    }
}

pub(super) fn resource_ref(
    report: &mut Report,
    path: &str,
    field: &k8s::ResourceFieldSelector,
    named: &Named<'_>,
) {
    if field.resource.is_empty() {
        report.required(&format!("{path}.resource"));
        return;
    }
    let hugepages = field
        .resource
        .strip_prefix("limits.")
        .or_else(|| field.resource.strip_prefix("requests."))
        .is_some_and(|name| name.starts_with("hugepages-"));
    if !hugepages {
        report.one_of(&format!("{path}.resource"), Some(&field.resource), &RESOURCES);
    }
    if let Some(name) = given(field.container_name.as_ref())
        && !named.containers.contains(name)
    {
        report.not_found(&format!("{path}.containerName"), name);
    }
    let Some(divisor) = &field.divisor else { return };
    let Ok(amount) = Quantity::parse(&divisor.0) else { return };
    let allowed: &[&str] =
        if field.resource.ends_with(".cpu") { &CPU_DIVISORS } else { &BYTE_DIVISORS };
    if !amount.is_zero() && !allowed.iter().any(|text| Quantity::parse(text) == Ok(amount)) {
        let detail = format!("must be one of {}", allowed.join(", "));
        report.invalid(&format!("{path}.divisor"), divisor.0.as_str(), &detail);
    }
}
