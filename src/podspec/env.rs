//! Environment of a container: literals, fields of the pod, amounts of resources, addresses of
//! Services, and the `$(VAR)` references in values, commands and sub-paths.

use super::{
    Amounts, container_limits, container_requests, expand, expanded_len, is_host_network,
    objects::{Finder, KeyRef},
    services::service_variables,
};
use crate::model::{NodeObjects, Quantity, k8s};
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};
use thiserror::Error;

/// Longest argument, or `NAME=value` of the environment, in bytes with its end: the kernel's
/// `MAX_ARG_STRLEN`. A longer one makes every start fail with `E2BIG`.
pub const MAX_ENTRY_BYTES: usize = 128 << 10;
/// Most bytes that the command, the arguments and the environment of a container take together, as
/// the kernel counts them. The kernel allows 2 MiB with the usual stack limit, and the variables of
/// the image need a place too. The kubelet has no limit: there, references double without end.
pub const MAX_EXEC_BYTES: usize = 1 << 20;
/// Longest path below a volume, in bytes: the kernel's `PATH_MAX`.
const MAX_SUB_PATH_BYTES: usize = 4096;
/// What the kernel counts for each argument and variable besides its text: a pointer.
const POINTER_BYTES: usize = 8;

/// What an environment is made from besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct EnvContext<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// The node's addresses, primary first; empty while they are unknown.
    pub host_ips: &'a [IpAddr],
    /// The pod's addresses, primary first (on the host's network: the node's).
    pub pod_ips: &'a [IpAddr],
    /// Allocatable resources of the node: the limit that `resourceFieldRef` returns for a container
    /// without a limit.
    pub allocatable: &'a Amounts,
    /// ConfigMaps and Secrets.
    pub objects: &'a NodeObjects,
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
    /// An object that is not there.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An object that this node may not read.
    #[error("{why}")]
    Refused {
        /// The message of the API server.
        why: String,
    },
    /// An object for which there is no answer of the API server yet.
    #[error("{kind} {name:?} has not been read yet")]
    NotKnown {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An object without this key.
    #[error("couldn't find key {key} in {object}")]
    NoKey {
        /// The key.
        key: String,
        /// `ConfigMap default/web`
        object: String,
    },
    /// A value that can't be that of an environment variable.
    #[error("key {key} in {object} is not text: mount it as a volume")]
    NotText {
        /// The key.
        key: String,
        /// `Secret default/web`
        object: String,
    },
    /// The node has no address yet. The container waits for it, as with a kubelet in a cluster. (A
    /// standalone kubelet gives it an empty value.)
    #[error(
        "{path} is not known, because the node has no address: it needs a default route or --node-ip"
    )]
    NoAddress {
        /// As written.
        path: String,
    },
    /// A source that this agent can't read.
    #[error("environment variable {name}: {source_kind} is not supported")]
    Source {
        /// Name of the variable.
        name: String,
        /// `fileKeyRef`
        source_kind: &'static str,
    },
    /// `subPathExpr` names variables that are not set, or empty.
    #[error("missing value for {}", .names.join(", "))]
    Missing {
        /// Their names.
        names: Vec<String>,
    },
    /// The references make it too long.
    #[error("{}: {_0}", _0.field())]
    Expansion(ExpansionError),
}

impl From<ExpansionError> for EnvError {
    fn from(error: ExpansionError) -> Self {
        Self::Expansion(error)
    }
}

/// What a container's references would make too long. Nothing of that length is ever made. The text
/// does not name the field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExpansionError {
    /// One value.
    #[error(
        "must be no more than {limit} bytes after $(VAR) expansion: shorten it, or put it into a file"
    )]
    Field {
        /// Field of the container: `env[3].value`.
        field: String,
        /// What it may be, in bytes.
        limit: usize,
    },
    /// The command, the arguments and the environment together.
    #[error(
        "command, args and env must take no more than {MAX_EXEC_BYTES} bytes together after $(VAR) \
         expansion, and exceed that here: shorten them, or put them into a file"
    )]
    Together {
        /// The first field that has no room.
        field: String,
    },
}

impl ExpansionError {
    /// Field of the container: `env[3].value`.
    #[must_use]
    pub fn field(&self) -> &str {
        match self {
            Self::Field { field, .. } | Self::Together { field } => field,
        }
    }
}

/// Command and arguments with their references replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expanded {
    /// `command`, the image's entry point when empty.
    pub command: Vec<String>,
    /// `args`
    pub args: Vec<String>,
}

/// The environment of `container`, each name once, in the order written. The variables of Services
/// follow, sorted by name. A reference is replaced by the variables before it, and otherwise by
/// those of Services. A later definition of a name wins and takes the earlier one's place. A
/// variable of a Service never replaces a variable of the container.
///
/// # Errors
/// When a source names what does not exist or can't be read, or when anything of the container is
/// too long after expansion: [`expand_command`] and [`expand_sub_path`] rely on this check.
pub fn build_env(
    pod: &k8s::Pod,
    container: &k8s::Container,
    cx: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let finder = Finder::new(pod, cx.objects);
    let mut imported = Vec::new();
    for source in container.env_from.iter().flatten() {
        imported.extend(finder.variables(source)?);
    }
    let services = service_variables(pod, cx.objects);
    measure(container, &imported, &services, |name, source| {
        let value = sourced(pod, container, name, source, cx)?;
        Ok::<_, EnvError>(value.map(|value| value.len()))
    })?;
    let mut env = Environment::default();
    for (name, value) in &imported {
        env.set(name, (*value).to_owned());
    }
    for var in container.env.iter().flatten() {
        let value = match (written(var), &var.value_from) {
            (Some(text), _) => Some(expand(text, |name| {
                env.get(name).or_else(|| services.get(name).map(String::as_str))
            })),
            (None, Some(source)) => sourced(pod, container, &var.name, source, cx)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            env.set(&var.name, value);
        }
    }
    for (name, value) in &services {
        if env.get(name).is_none() {
            env.set(name, value.clone());
        }
    }
    Ok(env.made)
}

/// Variables in the order of their first definition.
#[derive(Default)]
struct Environment<'a> {
    made: Vec<(String, String)>,
    places: HashMap<&'a str, usize>,
}

impl<'a> Environment<'a> {
    fn get(&self, name: &str) -> Option<&str> {
        Some(self.made[*self.places.get(name)?].1.as_str())
    }

    fn set(&mut self, name: &'a str, value: String) {
        match self.places.get(name) {
            Some(place) => self.made[*place].1 = value,
            None => {
                self.places.insert(name, self.made.len());
                self.made.push((name.to_owned(), value));
            }
        }
    }
}

/// Checks the length of everything that has references, with values that are known only on the
/// node counted as empty: what fails here fails on every node.
///
/// # Errors
/// The first field that is too long.
pub fn check_expansion(container: &k8s::Container) -> Result<(), ExpansionError> {
    measure(container, &[], &BTreeMap::new(), |_, _| Ok(Some(0)))
}

/// The text of a variable, unless its value comes from elsewhere.
fn written(var: &k8s::EnvVar) -> Option<&str> {
    var.value.as_deref().filter(|value| !value.is_empty())
}

/// Adds up what the kernel is given to execute, without making it.
///
/// Every definition of a variable counts, also one that a later definition replaces: the sum is
/// also the bound of the work. `imported` are the variables of `envFrom`, `services` those of
/// Services. `sourced` returns `None` for a variable that is not set.
fn measure<E: From<ExpansionError>>(
    container: &k8s::Container,
    imported: &[(String, &str)],
    services: &BTreeMap<String, String>,
    mut sourced: impl FnMut(&str, &k8s::EnvVarSource) -> Result<Option<usize>, E>,
) -> Result<(), E> {
    let mut lengths: HashMap<&str, usize> = HashMap::new();
    let mut total = 0_usize;
    let mut add = |length: usize, field: &dyn Fn() -> String| {
        let length = length.saturating_add(1);
        total = total.saturating_add(length).saturating_add(POINTER_BYTES);
        if length > MAX_ENTRY_BYTES {
            Err(ExpansionError::Field { field: field(), limit: MAX_ENTRY_BYTES })
        } else if total > MAX_EXEC_BYTES {
            Err(ExpansionError::Together { field: field() })
        } else {
            Ok(())
        }
    };
    for (name, value) in imported {
        add(value.len().saturating_add(name.len() + 1), &|| format!("envFrom ({name})"))?;
        lengths.insert(name, value.len());
    }
    for (index, var) in container.env.iter().flatten().enumerate() {
        let length = match (written(var), &var.value_from) {
            (Some(text), _) => expanded_len(text, |name| {
                lengths.get(name).copied().or_else(|| services.get(name).map(String::len))
            }),
            (None, Some(source)) => match sourced(&var.name, source)? {
                Some(length) => length,
                None => continue,
            },
            (None, None) => 0,
        };
        let entry = length.saturating_add(var.name.len() + 1);
        add(entry, &|| format!("env[{index}].value"))?;
        lengths.insert(&var.name, length);
    }
    for (name, value) in services {
        if !lengths.contains_key(name.as_str()) {
            add(name.len() + 1 + value.len(), &|| format!("variables of Services ({name})"))?;
            lengths.insert(name, value.len());
        }
    }
    let length = |text: &str| expanded_len(text, |name| lengths.get(name).copied());
    for (list, words) in [("command", &container.command), ("args", &container.args)] {
        for (index, word) in words.iter().flatten().enumerate() {
            add(length(word), &|| format!("{list}[{index}]"))?;
        }
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
        if length(expression) > MAX_SUB_PATH_BYTES {
            let field = format!("volumeMounts[{index}].subPathExpr");
            return Err(ExpansionError::Field { field, limit: MAX_SUB_PATH_BYTES }.into());
        }
    }
    Ok(())
}

/// Command and arguments of `container` against its finished environment, whose making has checked
/// their length.
#[must_use]
pub fn expand_command(container: &k8s::Container, env: &[(String, String)]) -> Expanded {
    let values: HashMap<&str, &str> =
        env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expanded = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| expand(text, |name| values.get(name).copied())).collect()
    };
    Expanded { command: expanded(&container.command), args: expanded(&container.args) }
}

/// The command of a probe. As in the kubelet, a reference is replaced by the value that the
/// container's specification gives the variable, as it is written; a variable with a source counts
/// as empty.
///
/// # Errors
/// When the command is too long with its references replaced.
pub fn probe_command(
    container: &k8s::Container,
    command: &[String],
) -> Result<Vec<String>, TooLong> {
    let variables = container.env.iter().flatten();
    let values: HashMap<&str, &str> = variables
        .map(|variable| (&*variable.name, variable.value.as_deref().unwrap_or_default()))
        .collect();
    let len_of = |text: &String| expanded_len(text, |name| values.get(name).map(|v| v.len()));
    let len = command.iter().map(len_of).fold(0, usize::saturating_add);
    if len > MAX_EXEC_BYTES {
        return Err(TooLong);
    }
    Ok(command.iter().map(|text| expand(text, |name| values.get(name).copied())).collect())
}

/// A command that the kernel would not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the command is longer than {MAX_EXEC_BYTES} bytes with its variables replaced")]
pub struct TooLong;

/// A `subPathExpr` against the environment, whose making has checked its length; here a reference
/// must have a value.
///
/// # Errors
/// When a variable is not set or empty.
pub fn expand_sub_path(text: &str, env: &[(String, String)]) -> Result<String, EnvError> {
    /// The author of a pod may name thousands.
    const MAX_NAMED: usize = 20;
    let set = env.iter().filter(|(_, value)| !value.is_empty());
    let values: HashMap<&str, &str> =
        set.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut missing: Vec<String> = Vec::new();
    let path = expand(text, |name| {
        let found = values.get(name).copied();
        if found.is_none()
            && missing.len() < MAX_NAMED
            && !missing.iter().any(|known| known == name)
        {
            missing.push(name.to_owned());
        }
        found
    });
    if missing.is_empty() { Ok(path) } else { Err(EnvError::Missing { names: missing }) }
}

/// The value of a variable; `None` when it comes from an optional object or key that is not there.
fn sourced(
    pod: &k8s::Pod,
    container: &k8s::Container,
    name: &str,
    source: &k8s::EnvVarSource,
    cx: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, cx).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(pod, container, resource, cx).map(Some);
    }
    if let Some(from) = KeyRef::of(source) {
        return Ok(Finder::new(pod, cx.objects).text(&from)?.map(str::to_owned));
    }
    if source.file_key_ref.is_some() {
        let name = name.to_owned();
        return Err(EnvError::Source { name, source_kind: "fileKeyRef" });
    }
    Ok(Some(String::new()))
}

pub(super) fn field_value(
    pod: &k8s::Pod,
    path: &str,
    cx: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let meta = &pod.metadata;
    let service_account = || pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let no_address = || EnvError::NoAddress { path: path.to_owned() };
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "spec.nodeName" => cx.node_name.to_owned(),
        "spec.serviceAccountName" => service_account().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" if cx.host_ips.is_empty() => return Err(no_address()),
        "status.podIP" | "status.podIPs" if cx.pod_ips.is_empty() && is_host_network(pod) => {
            return Err(no_address());
        }
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
pub(super) fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

fn joined(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

pub(super) fn resource_value(
    pod: &k8s::Pod,
    container: &k8s::Container,
    wanted: &k8s::ResourceFieldSelector,
    cx: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let of = match wanted.container_name.as_deref().filter(|n| !n.is_empty()) {
        None => container,
        Some(name) => super::container_of(pod, name)
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
