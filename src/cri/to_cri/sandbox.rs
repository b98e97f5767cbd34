//! `PodSandboxConfig`.

use super::{SandboxInputs, resources, security};
use crate::cri::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, v1};
use crate::model::{CollectOrdered as _, OWNER_LABEL, Order as _, k8s};
use crate::podspec::sysctl_name;
use std::collections::{BTreeMap, BTreeSet};

/// The configuration of a pod's sandbox.
#[must_use]
pub fn sandbox_config(inputs: &SandboxInputs<'_>) -> v1::PodSandboxConfig {
    let meta = &inputs.pod.metadata;
    let default_spec = k8s::PodSpec::default();
    let spec = inputs.pod.spec.as_ref().unwrap_or(&default_spec);
    let (name, namespace, uid) = (
        meta.name.clone().unwrap_or_default(),
        meta.namespace.clone().unwrap_or_default(),
        meta.uid.clone().unwrap_or_default(),
    );
    let mut labels = listable(meta.labels.as_ref());
    // These win over labels of the same names in the manifest: pods are found again by them.
    labels.insert(POD_NAME_LABEL.to_owned(), name.clone());
    labels.insert(POD_NAMESPACE_LABEL.to_owned(), namespace.clone());
    labels.insert(POD_UID_LABEL.to_owned(), uid.clone());
    labels.insert(OWNER_LABEL.to_owned(), inputs.owner.to_owned());
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata { name, uid, namespace, attempt: inputs.attempt }),
        hostname: inputs.hostname.to_owned(),
        log_directory: inputs.log_directory.to_owned(),
        dns_config: Some(v1::DnsConfig {
            servers: inputs.dns.servers.clone(),
            searches: inputs.dns.searches.clone(),
            options: inputs.dns.options.clone(),
        }),
        port_mappings: spec.containers.iter().flat_map(port_mappings).collect(),
        labels,
        annotations: listable(meta.annotations.as_ref()),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_parent.to_owned(),
            security_context: Some(security::sandbox(spec, inputs)),
            sysctls: sysctls(spec),
            overhead: Some(resources::overhead(spec, inputs.node)),
            resources: Some(resources::sandbox(spec, inputs.node)),
        }),
    }
}

/// Bytes of a pod's own labels that its sandbox gets, and of its annotations.
const LISTABLE: usize = 16 << 10;
/// Annotations that containerd and CRI-O pass on to CNI plugins.
const READ_BY_RUNTIMES: [&str; 2] =
    ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"];

/// What of a pod's labels or annotations its sandbox gets: all of them, or the smallest if they are
/// larger than [`LISTABLE`] together. The runtime lists them with all other sandboxes, in one
/// answer of at most 16 MiB. So one author of pods can't make the answer too large for everybody.
fn listable(own: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut entries: Vec<(&String, &String)> = own.into_iter().flatten().collect();
    let size = |(key, value): &(&String, &String)| key.len() + value.len();
    entries.order_by_key(|entry| (!READ_BY_RUNTIMES.contains(&entry.0.as_str()), size(entry)));
    let mut left = LISTABLE;
    let fitting = entries.into_iter().take_while(|entry| {
        let rest = left.checked_sub(size(entry));
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect_ordered()
}

/// Kernel parameters, their names with dots between the parts, as admission has judged them.
fn sysctls(spec: &k8s::PodSpec) -> BTreeMap<String, String> {
    let list = spec.security_context.as_ref().and_then(|sc| sc.sysctls.as_ref());
    list.into_iter().flatten().map(|s| (sysctl_name(&s.name), s.value.clone())).collect_ordered()
}

/// Ports of a regular container; a name (or an unnamed port) that occurs twice counts once.
fn port_mappings(container: &k8s::Container) -> Vec<v1::PortMapping> {
    let mut seen = BTreeSet::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => v1::Protocol::Udp,
            Some("SCTP") => v1::Protocol::Sctp,
            _ => v1::Protocol::Tcp,
        };
        let host_ip = port.host_ip.clone().unwrap_or_default();
        let host_port = port.host_port.unwrap_or(0);
        let name = port.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| {
            format!("{protocol:?} {host_ip} {} {host_port}", port.container_port)
        });
        if seen.insert(name) {
            mappings.push(v1::PortMapping {
                protocol: protocol.into(),
                container_port: port.container_port,
                host_port,
                host_ip,
            });
        }
    }
    mappings
}
