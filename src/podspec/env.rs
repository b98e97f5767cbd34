//! Environment of a container: literals, fields of the pod, amounts of resources, and the
//! `$(VAR)` references in values, commands and sub-paths.

use super::{Amounts, container_limits, container_requests, expand};
use crate::model::{Quantity, k8s};
use std::{collections::BTreeMap, net::IpAddr};
use thiserror::Error;

/// What an environment is made from besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct EnvContext<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// The node's addresses, primary first; empty while they are unknown.
    pub host_ips: &'a [IpAddr],
    /// The pod's addresses, primary first (on the host's network: the node's).
    pub pod_ips: &'a [IpAddr],
    /// Allocatable resources of the node: what a container without a limit is told as its limit.
    pub allocatable: &'a Amounts,
}

/// Why an environment can't be built (waiting reason `CreateContainerConfigError`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvError {
    /// A field that environments can't refer to.
    #[error("unsupported fieldPath: {path}")]
    Field {
        /// As written.
        path: String,
    },
    /// A resource that environments can't refer to.
    #[error("unsupported container resource : {resource}")]
    Resource {
        /// As written.
        resource: String,
    },
    /// The container that a resource is asked of does not exist.
    #[error("container {container} not found")]
    Container {
        /// As written.
        container: String,
    },
    /// A source that this agent can't read.
    #[error("environment variable {name}: {source_kind} is not supported")]
    Source {
        /// Name of the variable.
        name: String,
        /// `configMapKeyRef`, ...
        source_kind: &'static str,
    },
    /// `subPathExpr` names variables that are not set, or empty.
    #[error("missing value for {}", .names.join(", "))]
    Missing {
        /// Their names.
        names: Vec<String>,
    },
}

/// Command and arguments with their references replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expanded {
    /// `command`, the image's entry point when empty.
    pub command: Vec<String>,
    /// `args`
    pub args: Vec<String>,
}

/// The environment of `container`, each name once, in the order written. A reference sees the
/// variables before it; a later definition of a name wins and takes the earlier one's place.
///
/// # Errors
/// When a source names what does not exist or can't be read.
pub fn build_env(
    pod: &k8s::Pod,
    container: &k8s::Container,
    cx: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    if container.env_from.iter().flatten().next().is_some() {
        return Err(EnvError::Source { name: "envFrom".to_owned(), source_kind: "envFrom" });
    }
    let mut made: Vec<(String, String)> = Vec::new();
    for var in container.env.iter().flatten() {
        let value = match (var.value.as_deref().filter(|v| !v.is_empty()), &var.value_from) {
            (Some(text), _) => expand(text, |name| value_of(&made, name)),
            (None, Some(source)) => sourced(pod, container, &var.name, source, cx)?,
            (None, None) => String::new(),
        };
        match made.iter_mut().find(|(name, _)| *name == var.name) {
            Some(earlier) => earlier.1 = value,
            None => made.push((var.name.clone(), value)),
        }
    }
    Ok(made)
}

/// Command and arguments of `container` against its finished environment.
#[must_use]
pub fn expand_command(container: &k8s::Container, env: &[(String, String)]) -> Expanded {
    let expanded = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| expand(text, |name| value_of(env, name))).collect()
    };
    Expanded { command: expanded(&container.command), args: expanded(&container.args) }
}

/// A `subPathExpr` against the environment; here a reference must have a value.
///
/// # Errors
/// When a variable is not set or empty.
pub fn expand_sub_path(text: &str, env: &[(String, String)]) -> Result<String, EnvError> {
    let mut missing = Vec::new();
    let path = expand(text, |name| {
        let value = value_of(env, name).filter(|v| !v.is_empty());
        if value.is_none() {
            missing.push(name.to_owned());
        }
        value
    });
    if missing.is_empty() { Ok(path) } else { Err(EnvError::Missing { names: missing }) }
}

fn value_of(env: &[(String, String)], name: &str) -> Option<String> {
    env.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
}

fn sourced(
    pod: &k8s::Pod,
    container: &k8s::Container,
    name: &str,
    source: &k8s::EnvVarSource,
    cx: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let refused = |source_kind| Err(EnvError::Source { name: name.to_owned(), source_kind });
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, cx);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(pod, container, resource, cx);
    }
    if source.config_map_key_ref.is_some() {
        return refused("configMapKeyRef");
    }
    if source.secret_key_ref.is_some() {
        return refused("secretKeyRef");
    }
    if source.file_key_ref.is_some() {
        return refused("fileKeyRef");
    }
    Ok(String::new())
}

fn field_value(pod: &k8s::Pod, path: &str, cx: &EnvContext<'_>) -> Result<String, EnvError> {
    let meta = &pod.metadata;
    let service_account = || pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "spec.nodeName" => cx.node_name.to_owned(),
        "spec.serviceAccountName" => service_account().unwrap_or_default(),
        "status.hostIP" => joined(cx.host_ips.get(..1).unwrap_or_default()),
        "status.hostIPs" => joined(cx.host_ips),
        "status.podIP" => joined(cx.pod_ips.get(..1).unwrap_or_default()),
        "status.podIPs" => joined(cx.pod_ips),
        _ => {
            let (list, key) = subscript(path)
                .and_then(|(field, key)| match field {
                    "metadata.labels" => Some((meta.labels.as_ref(), key)),
                    "metadata.annotations" => Some((meta.annotations.as_ref(), key)),
                    _ => None,
                })
                .ok_or_else(|| EnvError::Field { path: path.to_owned() })?;
            list.and_then(|l: &BTreeMap<String, String>| l.get(key)).cloned().unwrap_or_default()
        }
    })
}

/// `metadata.labels['app']` as `metadata.labels` and `app`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

fn joined(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn resource_value(
    pod: &k8s::Pod,
    container: &k8s::Container,
    wanted: &k8s::ResourceFieldSelector,
    cx: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let of = match wanted.container_name.as_deref().filter(|n| !n.is_empty()) {
        None => container,
        Some(name) => named_container(pod, name)
            .ok_or_else(|| EnvError::Container { container: name.to_owned() })?,
    };
    let unknown = || EnvError::Resource { resource: wanted.resource.clone() };
    let (kind, resource) = wanted.resource.split_once('.').ok_or_else(unknown)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    let amount = match kind {
        "limits" if known => container_limits(of)
            .non_zero(resource)
            .or_else(|| pod_level_limit(pod, resource))
            .or_else(|| cx.allocatable.get(resource).filter(|_| is_defaulted(resource))),
        "requests" if known => container_requests(of).get(resource),
        _ => return Err(unknown()),
    };
    let divisor = wanted.divisor.as_ref().and_then(|d| Quantity::parse(&d.0).ok());
    let divisor = divisor.filter(|d| !d.is_zero()).unwrap_or(Quantity::from_units(1));
    let value = match resource {
        // Thousandths on both sides, as upstream: finer amounts are rounded up first.
        "cpu" => Quantity::from_milli(amount.unwrap_or_default().milli_value())
            .ceil_div(Quantity::from_milli(divisor.milli_value())),
        _ => Quantity::from_units(amount.unwrap_or_default().value())
            .ceil_div(Quantity::from_units(divisor.value())),
    };
    Ok(value.unwrap_or(0).to_string())
}

/// Resources for which a missing limit reads as the node's allocatable amount.
fn is_defaulted(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage")
}

fn pod_level_limit(pod: &k8s::Pod, resource: &str) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    super::resources::pod_level(spec, |r| r.limits.as_ref()).non_zero(resource)
}

fn named_container<'a>(pod: &'a k8s::Pod, name: &str) -> Option<&'a k8s::Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}
