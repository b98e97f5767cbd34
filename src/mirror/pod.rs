//! The mirror of a static pod: its metadata and spec, with the marks of a mirror, without what the
//! API server refuses.

use super::{
    refusal::{Part, Refusals},
    seen::MIRROR,
};
use crate::{
    model::{PodUid, k8s},
    node::NodeRef,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Annotation on a mirror pod: which fields of the static pod it lacks.
pub const LEFT_OUT_ANNOTATION: &str = "nodelet.dev/left-out";

/// The mirror of a static pod. The API server computes the rest: uid, generation, status.
#[must_use]
pub fn mirror_pod(pod: &k8s::Pod, uid: &PodUid, node: &NodeRef, refusals: &Refusals) -> k8s::Pod {
    let mut spec = pod.spec.clone().unwrap_or_default();
    spec.node_name = Some(node.name.clone());
    let mut gone = Vec::new();
    for part in &refusals.parts {
        leave_out(*part, &mut spec, &mut gone);
    }
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(MIRROR.to_owned(), uid.to_string());
    if !gone.is_empty() {
        annotations.insert(LEFT_OUT_ANNOTATION.to_owned(), gone.join(", "));
    }
    k8s::Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.name.clone(),
                uid: node.uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Takes a part out of the spec, and notes the paths of what there was of it.
fn leave_out(part: Part, spec: &mut k8s::PodSpec, gone: &mut Vec<String>) {
    match part {
        Part::Overhead => take(&mut spec.overhead, "spec.overhead", gone),
        Part::PreemptionPolicy => take(&mut spec.preemption_policy, "spec.preemptionPolicy", gone),
        Part::Priority => take(&mut spec.priority, "spec.priority", gone),
        Part::PriorityClass => take(&mut spec.priority_class_name, "spec.priorityClassName", gone),
        Part::RuntimeClass => take(&mut spec.runtime_class_name, "spec.runtimeClassName", gone),
        Part::References => without_references(spec, gone),
    }
}

fn take<T>(field: &mut Option<T>, path: &str, gone: &mut Vec<String>) {
    if field.take().is_some() {
        gone.push(path.to_owned());
    }
}

fn without_references(spec: &mut k8s::PodSpec, gone: &mut Vec<String>) {
    take(&mut spec.service_account_name, "spec.serviceAccountName", gone);
    take(&mut spec.service_account, "spec.serviceAccount", gone);
    take(&mut spec.image_pull_secrets, "spec.imagePullSecrets", gone);
    take(&mut spec.resource_claims, "spec.resourceClaims", gone);
    for volume in spec.volumes.iter_mut().flatten() {
        if refers(volume) {
            gone.push(format!("spec.volumes[{}]", volume.name));
            *volume = k8s::Volume {
                name: std::mem::take(&mut volume.name),
                empty_dir: Some(k8s::EmptyDirVolumeSource::default()),
                ..k8s::Volume::default()
            };
        }
    }
    let init = spec.init_containers.iter_mut().flatten().map(|c| ("initContainers", c));
    for (list, container) in init.chain(spec.containers.iter_mut().map(|c| ("containers", c))) {
        let path = format!("spec.{list}[{}]", container.name);
        let from_objects = |source: &k8s::EnvFromSource| {
            source.config_map_ref.is_some() || source.secret_ref.is_some()
        };
        if container.env_from.iter().flatten().any(from_objects) {
            gone.push(format!("{path}.envFrom"));
            container.env_from = None;
        }
        if let Some(variables) = &mut container.env {
            variables.retain(|variable| {
                let source = variable.value_from.as_ref();
                let refers = source
                    .is_some_and(|s| s.config_map_key_ref.is_some() || s.secret_key_ref.is_some());
                if refers {
                    gone.push(format!("{path}.env[{}]", variable.name));
                }
                !refers
            });
        }
        if let Some(resources) = &mut container.resources {
            take(&mut resources.claims, &format!("{path}.resources.claims"), gone);
        }
    }
}

/// Whether a volume has to do with an object of the API.
fn refers(volume: &k8s::Volume) -> bool {
    let of_object = |source: &k8s::VolumeProjection| source.downward_api.is_none();
    let projected = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.csi.is_some()
        || volume.glusterfs.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.azure_file.is_some()
        || projected.is_some_and(|sources| sources.iter().any(of_object))
}
