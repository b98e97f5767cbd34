//! `ContainerConfig`.

use super::{
    Access, ConfigError, ContainerInputs, MountInput, MountSource, Propagation, resources, security,
};
use crate::cri::{
    CONTAINER_NAME_LABEL, POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, annotation, v1,
};
use crate::model::{CollectOrdered as _, k8s};
use crate::podspec::{container_amounts, container_hash, container_log_path, expand_command};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The configuration of a container.
///
/// # Errors
/// When the pod's own rules forbid the container, see [`ConfigError`].
pub fn container_config(inputs: &ContainerInputs<'_>) -> Result<v1::ContainerConfig, ConfigError> {
    let container = inputs.container;
    let expanded = expand_command(container, inputs.env);
    let image = v1::ImageSpec {
        image: inputs.image.reference.to_owned(),
        user_specified_image: container.image.clone().unwrap_or_default(),
        ..Default::default()
    };
    let envs = inputs
        .env
        .iter()
        .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone().into_bytes() });
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: inputs.restart_count,
        }),
        image: Some(image),
        command: expanded.command,
        args: expanded.args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs.collect(),
        mounts: inputs.mounts.iter().map(|input| mount(input, inputs)).collect(),
        labels: labels(inputs),
        annotations: annotations(inputs),
        log_path: container_log_path(&container.name, inputs.restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::container(inputs.pod, container, inputs.node)),
            security_context: Some(security::container(inputs)?),
        }),
        ..Default::default()
    })
}

fn labels(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let meta = &inputs.pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    BTreeMap::from([
        (POD_NAME_LABEL.to_owned(), text(&meta.name)),
        (POD_NAMESPACE_LABEL.to_owned(), text(&meta.namespace)),
        (POD_UID_LABEL.to_owned(), text(&meta.uid)),
        (CONTAINER_NAME_LABEL.to_owned(), inputs.container.name.clone()),
    ])
}

/// What is read back when the container is found again, see `from_cri`.
fn annotations(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let container = inputs.container;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut annotations = BTreeMap::from([
        (annotation::HASH.to_owned(), container_hash(container)),
        (annotation::RESTART_COUNT.to_owned(), inputs.restart_count.to_string()),
        (annotation::TERMINATION_PATH.to_owned(), text(&container.termination_message_path)),
        (annotation::TERMINATION_POLICY.to_owned(), text(&container.termination_message_policy)),
    ]);
    let mut seconds = |name: &str, value: Option<i64>| {
        if let Some(value) = value {
            annotations.insert(name.to_owned(), value.to_string());
        }
    };
    let spec = inputs.pod.spec.as_ref();
    seconds(annotation::TERMINATION_GRACE, spec.and_then(|s| s.termination_grace_period_seconds));
    seconds(annotation::DELETION_GRACE, inputs.pod.metadata.deletion_grace_period_seconds);
    // Plain data with text keys always has a JSON form.
    let amounts =
        serde_json::to_string(&container_amounts(inputs.pod, container)).unwrap_or_default();
    annotations.insert(annotation::RESOURCES.to_owned(), amounts);
    let images: BTreeSet<&str> = inputs
        .mounts
        .iter()
        .filter_map(|mount| match &mount.source {
            MountSource::Image { id, .. } => Some(id.as_str()),
            MountSource::Path(_) => None,
        })
        .collect_ordered();
    if !images.is_empty() {
        let ids = images.into_iter().collect::<Vec<_>>().join(",");
        annotations.insert(annotation::IMAGE_VOLUMES.to_owned(), ids);
    }
    let lifecycle = container.lifecycle.as_ref();
    let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let ports: Vec<PortJson<'_>> = container.ports.iter().flatten().map(PortJson::of).collect();
    for (name, json) in [
        (annotation::PRE_STOP, hook.map(serde_json::to_string)),
        (annotation::PORTS, (!ports.is_empty()).then(|| serde_json::to_string(&ports))),
    ] {
        let json = json.and_then(Result::ok).filter(|json| json.len() <= LISTABLE);
        annotations.extend(json.map(|json| (name.to_owned(), json)));
    }
    annotations
}

/// Bytes of an annotation that only other tools read. A larger one is left out: the runtime lists
/// the annotations of all containers in one answer of at most 16 MiB.
const LISTABLE: usize = 2 << 10;

/// A port as the kubelet writes it, field order included.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_port: Option<i32>,
    container_port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'a str>,
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    host_ip: Option<&'a str>,
}

impl<'a> PortJson<'a> {
    fn of(port: &'a k8s::ContainerPort) -> Self {
        let text = |field: &'a Option<String>| field.as_deref().filter(|text| !text.is_empty());
        Self {
            name: text(&port.name),
            host_port: port.host_port.filter(|port| *port != 0),
            container_port: port.container_port,
            protocol: text(&port.protocol),
            host_ip: text(&port.host_ip),
        }
    }
}

fn mount(input: &MountInput, inputs: &ContainerInputs<'_>) -> v1::Mount {
    let propagation = match input.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    let container_path = match input.container_path.starts_with('/') {
        true => input.container_path.clone(),
        false => format!("/{}", input.container_path),
    };
    let (host_path, image, image_sub_path) = match &input.source {
        MountSource::Path(path) => (path.clone(), None, String::new()),
        MountSource::Image { id, reference, sub_path } => {
            let image = v1::ImageSpec {
                image: id.clone(),
                user_specified_image: reference.clone(),
                annotations: inputs.pod.metadata.annotations.clone().unwrap_or_default(),
                ..Default::default()
            };
            (String::new(), Some(image), sub_path.clone())
        }
    };
    // Files of the host then have the same owners inside and outside of the user namespace. The
    // kubelet maps images too, but runc can't map the overlay that containerd makes of them.
    let mappings = match &input.source {
        MountSource::Path(_) => security::id_mappings(inputs.ids),
        MountSource::Image { .. } => Vec::new(),
    };
    v1::Mount {
        container_path,
        host_path,
        image,
        image_sub_path,
        readonly: input.access != Access::ReadWrite,
        selinux_relabel: input.selinux_relabel && inputs.node.selinux,
        propagation: propagation.into(),
        recursive_read_only: input.access == Access::RecursivelyReadOnly,
        uid_mappings: mappings.clone(),
        gid_mappings: mappings,
    }
}
