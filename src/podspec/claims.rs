//! The PersistentVolumeClaims that a pod mounts, and the volumes to which they are bound.

use super::{files::is_mounted, objects::namespace, uid_of};
use crate::model::{
    ClaimAnswer, ClaimKey, CollectOrdered as _, NodeObjects, PersistentSource, PersistentVolume,
    k8s,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};
use thiserror::Error;

/// A PersistentVolume as a pod uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundVolume {
    /// The volume to which the claim is bound.
    pub volume: Arc<PersistentVolume>,
    /// The pod mounts it read-only. As in the kubelet, the pod alone decides that: access modes
    /// tell which nodes may mount a volume, and protect nothing against writes.
    pub read_only: bool,
}

/// Why a pod can't use a claim.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// The API server has not answered yet.
    #[error("PersistentVolumeClaim {0:?} has not been read from the API server yet")]
    NotKnown(Box<str>),
    /// The claim or its volume is not ready or not there, in the kubelet's words.
    #[error("error processing PVC {namespace}/{name}: {why}")]
    Failed {
        /// The namespace of the claim.
        namespace: Box<str>,
        /// The claim.
        name: Box<str>,
        /// The reason.
        why: Box<str>,
    },
    /// The node affinity of the volume excludes this node. The whole sentence is the kubelet's.
    #[error(
        "MountVolume.NodeAffinity check failed for volume {0:?} : no matching NodeSelectorTerms"
    )]
    Elsewhere(Box<str>),
    /// The volume has mount options, and its kind can't have any. The whole sentence is the
    /// kubelet's.
    #[error(
        "MountVolume.MountOptionSupport check failed for volume {0:?} : mount options are not supported for this volume type"
    )]
    MountOptions(Box<str>),
    /// The volume is a block device, and a container wants a file system. In the kubelet's words.
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    Block(String),
    /// This agent does not mount volumes of this kind.
    #[error("PersistentVolumes of kind {0} are not supported by this node")]
    Unsupported(Box<str>),
}

/// The claims of the volumes that containers mount, in the order of the fields.
#[must_use]
pub fn claim_keys(pod: &k8s::Pod) -> Vec<ClaimKey> {
    mounted_claims(pod).filter_map(|volume| claim_key(pod, volume)).collect()
}

/// True when the agent knows whether the pod can use its claims.
#[must_use]
pub fn are_claims_known(pod: &k8s::Pod, objects: &NodeObjects) -> bool {
    claim_keys(pod).iter().all(|claim| objects.api.claims.contains_key(claim))
}

/// True for a volume that a claim provides.
#[must_use]
pub fn is_claimed(volume: &k8s::Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

/// The PersistentVolumes of a pod by the names of its volumes, or why the pod can't use them.
/// Volumes of other kinds are not here.
pub type ClaimedVolumes = BTreeMap<String, Result<BoundVolume, ClaimError>>;

/// The PersistentVolumes that containers of the pod mount.
#[must_use]
pub fn claimed_volumes(pod: &k8s::Pod, objects: &NodeObjects) -> ClaimedVolumes {
    let bound = |volume: &k8s::Volume| {
        let found = bound_volume(pod, volume, objects).transpose()?;
        Some((volume.name.clone(), found))
    };
    mounted_claims(pod).filter_map(bound).collect_ordered()
}

/// The groups that may write to PersistentVolumes which containers of the pod mount.
#[must_use]
pub fn volume_groups(pod: &k8s::Pod, objects: &NodeObjects) -> BTreeSet<i64> {
    let claimed = claimed_volumes(pod, objects);
    claimed.values().flatten().filter_map(|bound| bound.volume.gid).collect_ordered()
}

/// A PersistentVolume whose use is measured: one of kind `local` or `nfs`, as with a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredClaim {
    /// Name of the volume in the pod.
    pub volume: Box<str>,
    /// `metadata.name` of the claim.
    pub claim: Box<str>,
    /// The path on the node.
    pub path: PathBuf,
}

/// The PersistentVolumes that containers of the pod mount and whose use is measured.
/// `nfs_directory` tells where the NFS volume of this name is mounted.
#[must_use]
pub fn measured_claims(
    pod: &k8s::Pod,
    objects: &NodeObjects,
    nfs_directory: impl Fn(&str) -> Option<PathBuf>,
) -> Vec<MeasuredClaim> {
    let measured = |volume: &k8s::Volume| {
        let found = bound_volume(pod, volume, objects).ok()??;
        let path = match &found.volume.source {
            PersistentSource::Local { path } => PathBuf::from(&**path),
            PersistentSource::Nfs { .. } => nfs_directory(&volume.name)?,
            PersistentSource::HostPath { .. } | PersistentSource::Other(_) => return None,
        };
        let claim = claim_key(pod, volume)?.name;
        Some(MeasuredClaim { volume: volume.name.as_str().into(), claim, path })
    };
    mounted_claims(pod).filter_map(measured).collect()
}

/// The PersistentVolume of a volume; `None` for a volume of another kind.
///
/// # Errors
/// When the pod can't use its claim, or the agent can't mount the PersistentVolume.
pub fn bound_volume(
    pod: &k8s::Pod,
    volume: &k8s::Volume,
    objects: &NodeObjects,
) -> Result<Option<BoundVolume>, ClaimError> {
    let Some(key) = claim_key(pod, volume) else { return Ok(None) };
    let found = match objects.api.claims.get(&key) {
        Some(ClaimAnswer::Bound(found)) => found,
        Some(ClaimAnswer::Elsewhere(volume)) => return Err(ClaimError::Elsewhere(volume.clone())),
        Some(ClaimAnswer::MountOptions(volume)) => {
            return Err(ClaimError::MountOptions(volume.clone()));
        }
        Some(ClaimAnswer::Failed(why)) => {
            let ClaimKey { namespace, name, .. } = key;
            return Err(ClaimError::Failed { namespace, name, why: why.clone() });
        }
        None => return Err(ClaimError::NotKnown(key.name)),
    };
    if found.is_block {
        return Err(ClaimError::Block(volume.name.clone()));
    }
    if let PersistentSource::Other(kind) = &found.source {
        return Err(ClaimError::Unsupported(kind.clone()));
    }
    let claim = volume.persistent_volume_claim.as_ref();
    let read_only = claim.and_then(|claim| claim.read_only).unwrap_or_default();
    Ok(Some(BoundVolume { volume: Arc::clone(found), read_only }))
}

fn mounted_claims(pod: &k8s::Pod) -> impl Iterator<Item = &k8s::Volume> {
    let spec = pod.spec.as_ref();
    let volumes = spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(move |volume| {
        is_claimed(volume) && spec.is_some_and(|spec| is_mounted(spec, &volume.name))
    })
}

/// The claim of a volume. The claim of a generic ephemeral volume has the names of the pod and of
/// the volume.
fn claim_key(pod: &k8s::Pod, volume: &k8s::Volume) -> Option<ClaimKey> {
    let key = |name: Box<str>, owned| ClaimKey {
        pod: uid_of(pod),
        namespace: namespace(pod).into(),
        name,
        owned,
    };
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(key(claim.claim_name.as_str().into(), false));
    }
    volume.ephemeral.as_ref()?;
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(key(format!("{pod_name}-{}", volume.name).into(), true))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{model::ApiObjects, podspec::has_nfs_volume};
    use serde_json::{Value, json};

    /// A pod that mounts volume `v` with this source.
    fn pod(source: &str, value: &Value) -> k8s::Pod {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
            "spec": {
                "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", source: value}, {"name": "unused", "persistentVolumeClaim": {"claimName": "other"}}],
            },
        });
        serde_json::from_value(pod).unwrap()
    }

    /// Everything that is known when the pod's claim has this answer.
    fn answered(pod: &k8s::Pod, answer: ClaimAnswer) -> NodeObjects {
        let claims = [(claim_keys(pod).remove(0), answer)].into();
        let api = ApiObjects { claims, ..ApiObjects::default() };
        NodeObjects { api: Arc::new(api), ..NodeObjects::default() }
    }

    fn bound(source: PersistentSource, is_block: bool) -> ClaimAnswer {
        let (name, mount_options) = ("pv".into(), Vec::new());
        let gid = Some(7);
        let volume = PersistentVolume { name, is_block, source, mount_options, gid };
        ClaimAnswer::Bound(Arc::new(volume))
    }

    fn local() -> PersistentSource {
        PersistentSource::Local { path: "/disk".into() }
    }

    fn nfs() -> PersistentSource {
        PersistentSource::Nfs { server: "nas".into(), path: "/srv".into(), read_only: false }
    }

    #[test]
    fn the_claim_of_an_ephemeral_volume_has_the_name_of_pod_and_volume() {
        let claimed = claim_keys(&pod("persistentVolumeClaim", &json!({"claimName": "data"})));
        let key = ClaimKey {
            pod: "u1".into(),
            namespace: "ns".into(),
            name: "data".into(),
            owned: false,
        };
        assert_eq!(
            claimed,
            std::slice::from_ref(&key),
            "a volume that nothing mounts needs no claim"
        );
        let ephemeral =
            claim_keys(&pod("ephemeral", &json!({"volumeClaimTemplate": {"spec": {}}})));
        assert_eq!(ephemeral, [ClaimKey { name: "web-v".into(), owned: true, ..key }]);
        assert!(claim_keys(&pod("emptyDir", &json!({}))).is_empty());
    }

    #[test]
    fn a_bound_claim_gives_its_volume() {
        for (source, read_only) in [
            (json!({"claimName": "data"}), false),
            (json!({"claimName": "data", "readOnly": true}), true),
        ] {
            let pod = pod("persistentVolumeClaim", &source);
            let volumes = claimed_volumes(&pod, &answered(&pod, bound(local(), false)));
            let volume = volumes["v"].as_ref().unwrap();
            assert_eq!((&volume.volume.source, volume.read_only), (&local(), read_only));
            assert_eq!(volumes.len(), 1);
        }
    }

    #[test]
    fn measured_volumes_are_found_by_their_paths() {
        let host_path = PersistentSource::HostPath { path: "/disk".into(), kind: "".into() };
        let claimed = pod("persistentVolumeClaim", &json!({"claimName": "data"}));
        let ephemeral = pod("ephemeral", &json!({"volumeClaimTemplate": {"spec": {}}}));
        let found = |pod: &k8s::Pod, answer| {
            let nfs_directory = |volume: &str| Some(PathBuf::from("/nfs").join(volume));
            measured_claims(pod, &answered(pod, answer), nfs_directory)
        };
        for (pod, claim) in [(&claimed, "data"), (&ephemeral, "web-v")] {
            for (source, path) in [(local(), "/disk"), (nfs(), "/nfs/v")] {
                let (volume, path) = ("v".into(), path.into());
                let expected = MeasuredClaim { volume, claim: claim.into(), path };
                assert_eq!(found(pod, bound(source, false)), [expected]);
            }
        }
        assert_eq!(found(&claimed, bound(local(), true)), [], "a block device");
        assert_eq!(found(&claimed, bound(host_path, false)), []);
        assert_eq!(found(&claimed, ClaimAnswer::Failed("PVC is not bound".into())), []);
    }

    #[test]
    fn a_claim_that_cannot_be_used_says_why() {
        let pod = pod("persistentVolumeClaim", &json!({"claimName": "data"}));
        let error = |objects: &NodeObjects| {
            claimed_volumes(&pod, objects)["v"].as_ref().unwrap_err().to_string()
        };
        assert_eq!(
            error(&NodeObjects::default()),
            "PersistentVolumeClaim \"data\" has not been read from the API server yet"
        );
        for (answer, expected) in [
            (
                ClaimAnswer::Failed("PVC is not bound".into()),
                "error processing PVC ns/data: PVC is not bound",
            ),
            (
                ClaimAnswer::Elsewhere("pv".into()),
                "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms",
            ),
            (
                ClaimAnswer::MountOptions("pv".into()),
                "MountVolume.MountOptionSupport check failed for volume \"pv\" : mount options are not supported for this volume type",
            ),
            (
                bound(local(), true),
                "volume v has volumeMode Block, but is specified in volumeMounts",
            ),
            (
                bound(PersistentSource::Other("csi".into()), false),
                "PersistentVolumes of kind csi are not supported by this node",
            ),
        ] {
            assert_eq!(error(&answered(&pod, answer)), expected);
        }
    }

    #[test]
    fn groups_are_those_of_the_volumes_that_can_be_used() {
        let pod = pod("persistentVolumeClaim", &json!({"claimName": "data"}));
        let groups = |answer| volume_groups(&pod, &answered(&pod, answer));
        assert_eq!(groups(bound(nfs(), false)), [7].into());
        assert_eq!(groups(bound(nfs(), true)), [].into());
        assert_eq!(groups(ClaimAnswer::Failed("PVC is not bound".into())), [].into());
    }

    #[test]
    fn nfs_volumes_are_found_in_pods_and_claims() {
        let claimed = pod("persistentVolumeClaim", &json!({"claimName": "data"}));
        let has_nfs = |answer| {
            has_nfs_volume(&claimed, &claimed_volumes(&claimed, &answered(&claimed, answer)))
        };
        assert!(has_nfs(bound(nfs(), false)));
        assert!(!has_nfs(bound(local(), false)));
        assert!(!has_nfs(ClaimAnswer::Failed("PVC is not bound".into())));
        let own = pod("nfs", &json!({"server": "nas", "path": "/srv"}));
        assert!(has_nfs_volume(&own, &ClaimedVolumes::new()));
    }
}
