//! What is not written means this: the API's defaults, so that the rest of the program never asks.
//!
//! Applied to what runs, never to what is hashed: the identity of a pod is made of what was
//! written, and a later version with another default must not replace everything that runs.

use super::Settings;
use crate::{
    model::k8s,
    podspec::{always_pulls, is_pod_level, pod_requests, resolve_priority},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

/// Applies the defaults to a decoded pod.
pub(super) fn apply(pod: &mut k8s::Pod, settings: &Settings) {
    let Some(spec) = &mut pod.spec else { return };
    or(&mut spec.restart_policy, "Always");
    or(&mut spec.dns_policy, "ClusterFirst");
    or(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    resolve_priority(spec, &settings.priority_classes);
    let host_network = spec.host_network == Some(true);
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        default_container(container, host_network);
    }
    spec.volumes.iter_mut().flatten().for_each(default_volume);
    default_pod_requests(spec);
}

fn default_volume(volume: &mut k8s::Volume) {
    /// `defaultMode` of volumes that hold files.
    const MODE: i32 = 0o644;
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    } else if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(MODE);
    } else if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(MODE);
    } else if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(MODE);
        default_downward(source.items.as_mut());
    } else if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(MODE);
        for projection in source.sources.iter_mut().flatten() {
            let downward = projection.downward_api.as_mut();
            default_downward(downward.and_then(|source| source.items.as_mut()));
        }
    } else if let Some(source) = &mut volume.image {
        default_pull_policy(&mut source.pull_policy, source.reference.as_deref());
    } else if volume.nfs.is_none() {
        volume.empty_dir.get_or_insert_default();
    }
}

fn default_pull_policy(policy: &mut Option<String>, image: Option<&str>) {
    let always = always_pulls(None, image.unwrap_or_default());
    or(policy, if always { "Always" } else { "IfNotPresent" });
}

fn default_downward(items: Option<&mut Vec<k8s::DownwardAPIVolumeFile>>) {
    for item in items.into_iter().flatten() {
        default_source(&mut item.field_ref, &mut item.resource_field_ref);
    }
}

fn default_source(
    field: &mut Option<k8s::ObjectFieldSelector>,
    resource: &mut Option<k8s::ResourceFieldSelector>,
) {
    if let Some(field) = field {
        or(&mut field.api_version, "v1");
    }
    if let Some(resource) = resource {
        resource.divisor.get_or_insert_with(|| Written("0".to_owned()));
    }
}

fn default_container(container: &mut k8s::Container, host_network: bool) {
    default_pull_policy(&mut container.image_pull_policy, container.image.as_deref());
    or(&mut container.termination_message_path, "/dev/termination-log");
    or(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        or(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    let probes = [
        &mut container.startup_probe,
        &mut container.liveness_probe,
        &mut container.readiness_probe,
    ];
    for probe in probes.into_iter().flatten() {
        default_probe(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            default_http_get(&mut hook.http_get);
        }
    }
    for source in container.env.iter_mut().flatten().filter_map(|e| e.value_from.as_mut()) {
        default_source(&mut source.field_ref, &mut source.resource_field_ref);
    }
    let resources = container.resources.get_or_insert_default();
    for (name, limit) in resources.limits.iter().flatten() {
        let requests = resources.requests.get_or_insert_default();
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// A number that is zero counts as left out.
fn default_probe(probe: &mut k8s::Probe) {
    let or = |field: &mut Option<i32>, default: i32| {
        if field.unwrap_or_default() == 0 {
            *field = Some(default);
        }
    };
    or(&mut probe.timeout_seconds, 1);
    or(&mut probe.period_seconds, 10);
    or(&mut probe.success_threshold, 1);
    or(&mut probe.failure_threshold, 3);
    default_http_get(&mut probe.http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_http_get(action: &mut Option<k8s::HTTPGetAction>) {
    if let Some(get) = action {
        or(&mut get.path, "/");
        or(&mut get.scheme, "HTTP");
    }
}

/// Requests of the pod as a whole that are left out beside limits of any resource: the containers'
/// requests together, with those of sidecars and init containers, or the limit if there are none.
/// The request for huge pages always equals the limit, because huge pages can't be overcommitted.
fn default_pod_requests(spec: &mut k8s::PodSpec) {
    let Some(mut resources) = spec.resources.take() else { return };
    // Without `spec.resources`, this counts the containers only.
    let of_containers = pod_requests(spec);
    if let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) {
        let requests = resources.requests.get_or_insert_default();
        for name in ["cpu", "memory"] {
            if let Some(sum) = of_containers.get(name) {
                requests.entry(name.to_owned()).or_insert_with(|| Written(sum.to_string()));
            }
        }
        for (name, limit) in limits.iter().filter(|(name, _)| is_pod_level(name)) {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    spec.resources = Some(resources);
}

fn or(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}
