//! Features of a pod that this agent lacks.
//!
//! The decoder of manifests rejects a static pod that uses one. A pod of the API server was
//! accepted there, so it stays Pending and an event names the feature. A test of the field table in
//! `manifest` fails when a field that the decoder rejects is neither found here nor exempted there.

use super::is_mounted;
use crate::model::k8s;

/// Why a pod can't start on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The reason of the event: the kubelet's for a failure at the same point.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// A feature that a part of a pod may use: its name in the API, and whether the part uses it.
type Feature<T> = (&'static str, fn(&T) -> bool);

/// Sources of volumes that the agent does not mount.
const VOLUMES: &[Feature<k8s::Volume>] = &[
    ("awsElasticBlockStore", |volume| volume.aws_elastic_block_store.is_some()),
    ("azureDisk", |volume| volume.azure_disk.is_some()),
    ("azureFile", |volume| volume.azure_file.is_some()),
    ("cephfs", |volume| volume.cephfs.is_some()),
    ("cinder", |volume| volume.cinder.is_some()),
    ("csi", |volume| volume.csi.is_some()),
    ("fc", |volume| volume.fc.is_some()),
    ("flexVolume", |volume| volume.flex_volume.is_some()),
    ("flocker", |volume| volume.flocker.is_some()),
    ("gcePersistentDisk", |volume| volume.gce_persistent_disk.is_some()),
    ("gitRepo", |volume| volume.git_repo.is_some()),
    ("glusterfs", |volume| volume.glusterfs.is_some()),
    ("iscsi", |volume| volume.iscsi.is_some()),
    ("photonPersistentDisk", |volume| volume.photon_persistent_disk.is_some()),
    ("portworxVolume", |volume| volume.portworx_volume.is_some()),
    ("quobyte", |volume| volume.quobyte.is_some()),
    ("rbd", |volume| volume.rbd.is_some()),
    ("scaleIO", |volume| volume.scale_io.is_some()),
    ("storageos", |volume| volume.storageos.is_some()),
    ("vsphereVolume", |volume| volume.vsphere_volume.is_some()),
    // A volume that is written without a source is an emptyDir by now, so this one has a source
    // that this version does not know.
    (UNKNOWN, |volume| {
        *volume == k8s::Volume { name: volume.name.clone(), ..k8s::Volume::default() }
    }),
];

/// Sources of projected volumes.
const PROJECTIONS: &[Feature<k8s::VolumeProjection>] = &[
    ("clusterTrustBundle", |source| source.cluster_trust_bundle.is_some()),
    ("podCertificate", |source| source.pod_certificate.is_some()),
    // The API server rejects a projection without a source.
    (UNKNOWN, is_default),
];

/// The name of a source that this version does not know: the decoder drops its field, so nothing is
/// chosen. Messages about volumes say "of an unknown kind" instead.
const UNKNOWN: &str = "(unknown kind)";

/// Fields of containers, apart from volumes and resource claims.
const CONTAINERS: &[Feature<k8s::Container>] = &[
    ("env[].valueFrom.fileKeyRef", |container| {
        let variables = container.env.iter().flatten();
        let mut sources = variables.filter_map(|variable| variable.value_from.as_ref());
        sources.any(|source| source.file_key_ref.is_some())
    }),
    ("env[].valueFrom (unknown kind)", |container| {
        let mut variables = container.env.iter().flatten();
        variables.any(|variable| variable.value_from.as_ref().is_some_and(is_default))
    }),
    ("lifecycle.postStart (unknown kind)", |container| {
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.post_start.as_ref());
        hook.is_some_and(is_default)
    }),
    ("lifecycle.preStop (unknown kind)", |container| {
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
        hook.is_some_and(is_default)
    }),
    ("lifecycle.postStart.tcpSocket", |container| {
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.post_start.as_ref());
        hook.is_some_and(|hook| hook.tcp_socket.is_some())
    }),
    ("lifecycle.preStop.tcpSocket", |container| {
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
        hook.is_some_and(|hook| hook.tcp_socket.is_some())
    }),
    ("lifecycle.stopSignal", |container| {
        container.lifecycle.as_ref().is_some_and(|hooks| hooks.stop_signal.is_some())
    }),
    ("securityContext.windowsOptions", |container| {
        let context = container.security_context.as_ref();
        context.is_some_and(|context| context.windows_options.is_some())
    }),
];

/// The first feature of the pod that the agent lacks. Fields that are harmless to ignore are no
/// such feature, and neither is a volume that no container mounts.
#[must_use]
pub fn unsupported(pod: &k8s::Pod) -> Option<Unsupported> {
    let spec = pod.spec.as_ref()?;
    let volumes = spec.volumes.iter().flatten();
    let mut mounted = volumes.filter(|volume| is_mounted(spec, &volume.name));
    mounted
        .find_map(of_volume)
        .or_else(|| block_volume(containers(spec)))
        .or_else(|| resource_claims(spec))
        .or_else(|| of_security_context(spec))
        .or_else(|| containers(spec).find_map(of_container))
}

/// The first feature of an ephemeral container that the agent lacks. Its pod runs already, so other
/// features than volumes have the event of a container that can't be created.
#[must_use]
pub fn unsupported_ephemeral(pod: &k8s::Pod, container: &k8s::Container) -> Option<Unsupported> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mounts = |name: &str| container.volume_mounts.iter().flatten().any(|one| one.name == name);
    let mut mounted = volumes.filter(|volume| mounts(&volume.name));
    let feature = || {
        let feature = first_of(CONTAINERS, container)?;
        let message = format!("{feature} is not supported by this node");
        Some(Unsupported { reason: "Failed", message })
    };
    mounted.find_map(of_volume).or_else(|| block_volume([container])).or_else(feature)
}

fn containers(spec: &k8s::PodSpec) -> impl Iterator<Item = &k8s::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// True when a part that must choose something chooses nothing.
fn is_default<T: Default + PartialEq>(part: &T) -> bool {
    *part == T::default()
}

/// The name of the first feature that `part` uses.
fn first_of<T>(features: &[Feature<T>], part: &T) -> Option<&'static str> {
    features.iter().find(|(_, uses)| uses(part)).map(|(name, _)| *name)
}

fn of_volume(volume: &k8s::Volume) -> Option<Unsupported> {
    let kind = first_of(VOLUMES, volume).map(|kind| match kind {
        UNKNOWN => "volumes of an unknown kind".to_owned(),
        kind => format!("{kind} volumes"),
    });
    let projections = volume.projected.iter().flat_map(|source| source.sources.iter().flatten());
    let mut projections = projections.filter_map(|source| first_of(PROJECTIONS, source));
    let projection = || match projections.next()? {
        UNKNOWN => Some("projected sources of an unknown kind".to_owned()),
        kind => Some(format!("projected {kind} sources")),
    };
    let what = kind.or_else(projection)?;
    let name = &volume.name;
    let message = format!(
        "MountVolume.SetUp failed for volume {name:?} : {what} are not supported by this node"
    );
    Some(Unsupported { reason: "FailedMount", message })
}

fn block_volume<'a>(
    containers: impl IntoIterator<Item = &'a k8s::Container>,
) -> Option<Unsupported> {
    let mut devices = containers.into_iter().flat_map(|c| c.volume_devices.iter().flatten());
    let name = &devices.next()?.name;
    let message = format!(
        "MapVolume.SetUpDevice failed for volume {name:?} : block volumes are not supported by this node"
    );
    Some(Unsupported { reason: "FailedMapVolume", message })
}

fn resource_claims(spec: &k8s::PodSpec) -> Option<Unsupported> {
    let of_containers = containers(spec).filter_map(|container| container.resources.as_ref());
    let mut resources = spec.resources.iter().chain(of_containers);
    let mut claims = spec.resource_claims.iter().flatten();
    let used = claims.next().is_some()
        || resources.any(|resources| resources.claims.iter().flatten().next().is_some());
    let message =
        "Failed to prepare dynamic resources: resource claims are not supported by this node";
    used.then(|| Unsupported {
        reason: "FailedPrepareDynamicResources",
        message: message.to_owned(),
    })
}

fn of_security_context(spec: &k8s::PodSpec) -> Option<Unsupported> {
    let context = spec.security_context.as_ref();
    let used = context.is_some_and(|context| context.windows_options.is_some());
    used.then(|| no_sandbox("securityContext.windowsOptions of the pod"))
}

fn of_container(container: &k8s::Container) -> Option<Unsupported> {
    let feature = first_of(CONTAINERS, container)?;
    Some(no_sandbox(&format!("{feature} of container {:?}", container.name)))
}

/// A feature that the kubelet has no event for.
fn no_sandbox(what: &str) -> Unsupported {
    let message = format!("Failed to create pod sandbox: {what} is not supported by this node");
    Unsupported { reason: "FailedCreatePodSandBox", message }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    #![allow(
        clippy::needless_pass_by_value,
        reason = "json! literals read better without an ampersand"
    )]

    use super::*;
    use serde_json::{Value, json};

    /// The event of a pod with this spec, as `reason: message`.
    fn event(spec: &Value) -> Option<String> {
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        unsupported(&pod).map(|found| format!("{}: {}", found.reason, found.message))
    }

    /// A pod whose container mounts volume `v`.
    fn mounting(source: &str, value: Value) -> Value {
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        json!({
            "containers": [{"name": "c", "volumeMounts": mounts}],
            "volumes": [{"name": "v", source: value}],
        })
    }

    fn container(field: &str, value: Value) -> Value {
        json!({"containers": [{"name": "a"}, {"name": "c", field: value}]})
    }

    #[test]
    fn each_feature_has_a_reason_and_a_message() {
        let mount = |what: &str| {
            format!(
                "FailedMount: MountVolume.SetUp failed for volume \"v\" : {what} are not supported by this node"
            )
        };
        let sandbox = |what: &str| {
            format!(
                "FailedCreatePodSandBox: Failed to create pod sandbox: {what} is not supported by this node"
            )
        };
        let claims = "FailedPrepareDynamicResources: Failed to prepare dynamic resources: resource claims are not supported by this node";
        let device = "FailedMapVolume: MapVolume.SetUpDevice failed for volume \"v\" : block volumes are not supported by this node";
        let projected = |source: &str| mounting("projected", json!({"sources": [{source: {}}]}));
        let from_file = json!([{"name": "A", "valueFrom": {"fileKeyRef": {"key": "a"}}}]);
        let windows = || json!({"windowsOptions": {}});
        for (spec, expected) in [
            (mounting("csi", json!({"driver": "d"})), mount("csi volumes")),
            (mounting("new", json!({})), mount("volumes of an unknown kind")),
            (projected("new"), mount("projected sources of an unknown kind")),
            (projected("clusterTrustBundle"), mount("projected clusterTrustBundle sources")),
            (projected("podCertificate"), mount("projected podCertificate sources")),
            (
                container("volumeDevices", json!([{"name": "v", "devicePath": "/d"}])),
                device.to_owned(),
            ),
            (json!({"containers": [], "resourceClaims": [{"name": "gpu"}]}), claims.to_owned()),
            (container("resources", json!({"claims": [{"name": "gpu"}]})), claims.to_owned()),
            (container("env", from_file), sandbox("env[].valueFrom.fileKeyRef of container \"c\"")),
            (
                container("env", json!([{"name": "A", "valueFrom": {"new": {"key": "a"}}}])),
                sandbox("env[].valueFrom (unknown kind) of container \"c\""),
            ),
            (
                container("lifecycle", json!({"postStart": {"new": {}}})),
                sandbox("lifecycle.postStart (unknown kind) of container \"c\""),
            ),
            (
                container("lifecycle", json!({"preStop": {"new": {}}})),
                sandbox("lifecycle.preStop (unknown kind) of container \"c\""),
            ),
            (
                container("lifecycle", json!({"stopSignal": "SIGINT"})),
                sandbox("lifecycle.stopSignal of container \"c\""),
            ),
            (
                container("lifecycle", json!({"preStop": {"tcpSocket": {"port": 80}}})),
                sandbox("lifecycle.preStop.tcpSocket of container \"c\""),
            ),
            (
                container("securityContext", windows()),
                sandbox("securityContext.windowsOptions of container \"c\""),
            ),
            (
                json!({"containers": [], "securityContext": windows()}),
                sandbox("securityContext.windowsOptions of the pod"),
            ),
            (
                json!({"containers": [], "initContainers": [{"name": "i", "securityContext": windows()}]}),
                sandbox("securityContext.windowsOptions of container \"i\""),
            ),
        ] {
            assert_eq!(event(&spec), Some(expected), "{spec}");
        }
    }

    #[test]
    fn an_ephemeral_container_may_use_features_that_its_pod_does_not() {
        let mut spec = mounting("csi", json!({"driver": "d"}));
        spec["containers"][0]["volumeMounts"] = json!([]);
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        assert_eq!(unsupported(&pod), None);
        let event = |fields: Value| {
            let mut container = fields;
            container["name"] = json!("debug");
            let container = serde_json::from_value(container).unwrap();
            let found = unsupported_ephemeral(&pod, &container);
            found.map(|found| format!("{}: {}", found.reason, found.message))
        };
        assert_eq!(event(json!({})), None);
        for (fields, expected) in [
            (
                json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
                "FailedMount: MountVolume.SetUp failed for volume \"v\" : csi volumes are not supported by this node",
            ),
            (
                json!({"volumeDevices": [{"name": "v", "devicePath": "/d"}]}),
                "FailedMapVolume: MapVolume.SetUpDevice failed for volume \"v\" : block volumes are not supported by this node",
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"new": {"key": "a"}}}]}),
                "Failed: env[].valueFrom (unknown kind) is not supported by this node",
            ),
        ] {
            assert_eq!(event(fields).as_deref(), Some(expected));
        }
    }

    #[test]
    fn supported_and_unused_features_are_not_reported() {
        let mut unmounted = mounting("csi", json!({"driver": "d"}));
        unmounted["containers"][0]["volumeMounts"] = json!([]);
        for spec in [
            unmounted,
            mounting("persistentVolumeClaim", json!({"claimName": "data"})),
            mounting("ephemeral", json!({"volumeClaimTemplate": {"spec": {}}})),
            mounting("configMap", json!({"name": "c"})),
            mounting("emptyDir", json!({})),
            mounting("nfs", json!({"server": "s", "path": "/"})),
            mounting("projected", json!({"sources": [{"serviceAccountToken": {"path": "t"}}]})),
            container("volumeDevices", json!([])),
            container("lifecycle", json!({"preStop": {"sleep": {"seconds": 1}}})),
            container("env", json!([{"name": "A", "value": "1"}])),
            json!({"containers": [], "resourceClaims": [], "serviceAccountName": "default"}),
        ] {
            assert_eq!(event(&spec), None, "{spec}");
        }
    }
}
