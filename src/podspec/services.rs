//! The environment variables with the addresses of Services, named as in the kubelet.

use super::objects::namespace;
use crate::model::{ClusterService, ClusterServices, NodeObjects, ObjectScope, k8s};
use std::{collections::BTreeMap, net::IpAddr};

/// The Service of the API server. Every pod of the API server gets its variables.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// True when pods of this namespace can get the variables of the Service.
#[must_use]
pub fn is_linked(service: &ClusterService, namespace: &str) -> bool {
    &*service.namespace == namespace || is_api_server(service)
}

/// The variables of the Services to which the pod is linked, by name. A static pod gets none. The
/// kubelet gives it those that it knows at the time, which makes its environment depend on chance.
pub(super) fn service_variables(pod: &k8s::Pod, objects: &NodeObjects) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    if super::object_scope(pod) == ObjectScope::Files {
        return variables;
    }
    let Some(services) = &objects.api.services else { return variables };
    for service in linked(pod, services) {
        add_variables(service, &mut variables);
    }
    variables
}

/// A Service `kubernetes` in the pod's own namespace replaces that of the API server, as in the
/// kubelet.
fn linked<'a>(
    pod: &'a k8s::Pod,
    services: &'a ClusterServices,
) -> impl Iterator<Item = &'a ClusterService> {
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let own = links.then(|| services.of_namespace(namespace(pod))).into_iter().flatten();
    let (of, name) = API_SERVER;
    let replaced = links && services.get(namespace(pod), name).is_some();
    services.get(of, name).filter(|_| !replaced).into_iter().chain(own)
}

fn is_api_server(service: &ClusterService) -> bool {
    (&*service.namespace, &*service.name) == API_SERVER
}

fn add_variables(service: &ClusterService, variables: &mut BTreeMap<String, String>) {
    let prefix = variable_name(&service.name);
    let ip = &service.cluster_ip;
    let mut set = |name: String, value: String| {
        variables.insert(name, value);
    };
    set(format!("{prefix}_SERVICE_HOST"), ip.to_string());
    if let Some(first) = service.ports.first() {
        set(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    }
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        let name = variable_name(&port.name);
        set(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
    }
    let is_v6 = ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    let host = if is_v6 { format!("[{ip}]") } else { ip.to_string() };
    for (index, port) in service.ports.iter().enumerate() {
        let (number, protocol) = (port.port, port.protocol.to_lowercase());
        let url = format!("{protocol}://{host}:{number}");
        if index == 0 {
            set(format!("{prefix}_PORT"), url.clone());
        }
        let of_port = format!("{prefix}_PORT_{number}_{}", port.protocol.to_uppercase());
        set(format!("{of_port}_PROTO"), protocol);
        set(format!("{of_port}_PORT"), number.to_string());
        set(format!("{of_port}_ADDR"), ip.to_string());
        set(of_port, url);
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests;
