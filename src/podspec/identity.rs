//! Names that are made from a pod: host name, log paths, the form used in messages; and the few
//! yes/no questions that several modules ask of a specification.

use crate::model::{PodKey, PodUid, SYSTEM_CRITICAL_PRIORITY, k8s};
use jiff::Timestamp;
use std::net::IpAddr;
use thiserror::Error;

/// What Linux takes as host name.
const MAX_HOSTNAME: usize = 63;
const MAX_FQDN: usize = 64;

/// Host name and DNS domain of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hostname {
    /// What the sandbox gets as host name; empty on the host's network, where it keeps the node's.
    pub hostname: String,
    /// The same without the domain: what the hosts file has beside the full name.
    pub short: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`; empty without a subdomain.
    pub domain: String,
}

/// Why a pod has no usable host name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostnameError {
    /// `setHostnameAsFQDN` with a name that does not fit.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({MAX_FQDN} characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong {
        /// The name in full.
        fqdn: String,
    },
}

/// The uid in a pod's metadata (empty when it has none, which `manifest` rules out).
#[must_use]
pub fn uid_of(pod: &k8s::Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The form that messages use: `<name>_<namespace>(<uid>)`.
#[must_use]
pub fn pod_display(key: &PodKey, uid: &PodUid) -> String {
    format!("{}_{}({uid})", key.name, key.namespace)
}

/// Name of a pod's directory under the pod log root: `<namespace>_<name>_<uid>`.
#[must_use]
pub fn pod_log_directory_name(key: &PodKey, uid: &PodUid) -> String {
    format!("{}_{}_{uid}", key.namespace, key.name)
}

/// Path of a container's log within the pod's log directory: `<container>/<restart count>.log`.
#[must_use]
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// The addresses of a pod in the order of its status: at most one of each family, the family of the
/// node's primary address first (IPv4 while the node has none). The kubelet gives the downward API
/// this order too.
#[must_use]
pub fn primary_ips(ips: &[IpAddr], host_ips: &[IpAddr]) -> Vec<IpAddr> {
    let is_v6 = host_ips.first().is_some_and(IpAddr::is_ipv6);
    let first = ips.iter().find(|ip| ip.is_ipv6() == is_v6);
    let second = ips.iter().find(|ip| ip.is_ipv6() != is_v6);
    first.into_iter().chain(second).copied().collect()
}

/// Whether an init container is one that keeps running (`restartPolicy: Always`).
#[must_use]
pub fn is_sidecar(container: &k8s::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether the pod shares the host's network.
#[must_use]
pub fn is_host_network(pod: &k8s::Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true))
}

/// Whether the pod came from a manifest of this node rather than from an API server.
#[must_use]
pub fn is_static(pod: &k8s::Pod) -> bool {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get("kubernetes.io/config.source"))
        .is_some_and(|source| source != "api")
}

/// The start time in the status that a pod of the API server has there.
#[must_use]
pub fn reported_start(pod: &k8s::Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref().filter(|_| !is_static(pod))?;
    Some(status.start_time.as_ref()?.0)
}

/// The kubelet's critical pods: static ones, and those of the system's priorities.
#[must_use]
pub fn is_critical(pod: &k8s::Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    is_static(pod) || priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

/// Critical, and said to be so for this node by its priority class.
#[must_use]
pub fn is_node_critical(pod: &k8s::Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    is_critical(pod) && class == Some("system-node-critical")
}

/// Host name and domain of a pod.
///
/// # Errors
/// When the fully qualified name is asked for and too long.
pub fn hostname(pod: &k8s::Pod, cluster_domain: &str) -> Result<Hostname, HostnameError> {
    let Some(spec) = pod.spec.as_ref().filter(|_| !is_host_network(pod)) else {
        return Ok(Hostname::default());
    };
    let given = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    if let Some(name) = given(&spec.hostname_override) {
        let name = shortened(&name);
        return Ok(Hostname { short: name.clone(), hostname: name, domain: String::new() });
    }
    let name = given(&spec.hostname).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    let name = shortened(&name);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain = given(&spec.subdomain)
        .map(|subdomain| format!("{subdomain}.{namespace}.svc.{cluster_domain}"))
        .unwrap_or_default();
    if spec.set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(Hostname { short: name.clone(), hostname: name, domain });
    }
    let fqdn = format!("{name}.{domain}");
    if fqdn.len() > MAX_FQDN {
        return Err(HostnameError::FqdnTooLong { fqdn });
    }
    Ok(Hostname { hostname: fqdn, short: name, domain })
}

/// The first 63 bytes, without the `-` and `.` that a cut may leave at the end.
fn shortened(name: &str) -> String {
    let end = name.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|e| *e <= MAX_HOSTNAME);
    let cut = &name[..end.last().unwrap_or(0)];
    if cut.len() == name.len() {
        name.to_owned()
    } else {
        cut.trim_end_matches(['-', '.']).to_owned()
    }
}

/// A regular or init container by its name. [`super::any_container_of`] also finds ephemeral ones.
#[must_use]
pub fn container_of<'a>(pod: &'a k8s::Pod, name: &str) -> Option<&'a k8s::Container> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == name)
}
