//! PersistentVolumeClaims of pods: which PersistentVolume each of them is bound to.
//!
//! The node authorizer allows `get` of the claims and volumes of the node's pods, and no watch. So
//! a claim is read when its pod comes, and again after pauses until it is bound to a volume that
//! this node can use. Nobody can change a binding or the source of a volume, so that answer is final
//! for the pod. Node affinity is compared before that, as the kubelet does before it mounts a volume.

use super::{
    super::{ApiClient, ApiError, Verb, call},
    is_object_name,
    requests::{RequestKey, RequestOutcome, Requests},
};
use crate::{
    admission::volume_is_usable,
    model::{
        ClaimAnswer, ClaimKey, NodeScheduling, PersistentSource, PersistentVolume, PodUid, k8s,
    },
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The claims of the node's pods.
pub(super) type Claims = Requests<ClaimKey, (), ClaimAnswer>;

/// A claim is read again after this time while its volume can't be used as it is: its node affinity
/// excludes the node, or it has mount options that are not supported.
const UNUSABLE_AGAIN: Duration = Duration::from_secs(10);

/// The finalizer that keeps a claim while a pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The older form of `spec.mountOptions`, which takes precedence: the options with commas between.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// The group that may write to a volume.
const GID: &str = "pv.beta.kubernetes.io/gid";

/// The names that the API has for sources of PersistentVolumes which this agent does not mount.
const OTHER_SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "iscsi",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

impl RequestKey for ClaimKey {
    fn pod(&self) -> &PodUid {
        &self.pod
    }
}

/// The answer that is published.
pub(super) fn answer(found: Result<&ClaimAnswer, &str>) -> ClaimAnswer {
    found.map_or_else(|why| ClaimAnswer::Failed(why.into()), Clone::clone)
}

/// Reads a claim and the volume to which it is bound.
///
/// # Cancel safety
/// It only reads, so it may be dropped.
pub(super) async fn read(
    client: &ApiClient,
    key: &ClaimKey,
    node: &NodeScheduling,
) -> RequestOutcome<ClaimAnswer> {
    match try_read(client, key, &node.labels).await {
        Ok(value) => {
            let again_after = match &value {
                ClaimAnswer::Elsewhere(_) | ClaimAnswer::MountOptions(_) => Some(UNUSABLE_AGAIN),
                ClaimAnswer::Bound(_) | ClaimAnswer::Failed(_) => None,
            };
            RequestOutcome::Answered { value, again_after }
        }
        Err(outcome) => outcome,
    }
}

async fn try_read<T>(
    client: &ApiClient,
    key: &ClaimKey,
    labels: &BTreeMap<String, String>,
) -> Result<ClaimAnswer, RequestOutcome<T>> {
    let ClaimKey { namespace, name, .. } = key;
    let missing = || refused(format!("persistentvolumeclaim {name:?} not found"));
    if !is_object_name(namespace) || !is_object_name(name) {
        return Err(missing());
    }
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let claim: SentClaim = get(client, &path, missing).await?;
    let volume_name = bound_to(&claim, key)?;
    let missing = || refused(format!("persistentvolume {volume_name:?} not found"));
    if !is_object_name(volume_name) {
        return Err(missing());
    }
    let path = format!("/api/v1/persistentvolumes/{volume_name}");
    let volume: SentVolume = get(client, &path, missing).await?;
    Ok(volume_of(volume, &claim.metadata.uid, labels)?)
}

async fn get<O: DeserializeOwned, T>(
    client: &ApiClient,
    path: &str,
    missing: impl FnOnce() -> RequestOutcome<T>,
) -> Result<O, RequestOutcome<T>> {
    call(client, Verb::Get, path, None::<&()>)
        .await
        .map_err(|error: ApiError| if error.is_not_found() { missing() } else { error.into() })
}

fn refused<T>(why: String) -> RequestOutcome<T> {
    RequestOutcome::Refused { why, is_forbidden: false }
}

/// Why a pod can't use a claim or its volume, in the kubelet's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UnusableClaim {
    #[error("PVC is being deleted")]
    Deleted,
    #[error("PVC was not created for this pod (pod is not owner)")]
    OfAnotherPod,
    #[error("PVC is not bound")]
    NotBound,
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    #[error(
        "found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    VolumeNotBound(String),
    #[error(
        "found PV object {volume} but its pv.Spec.ClaimRef.UID {of} does not point to claim.UID {claim}"
    )]
    VolumeOfAnotherClaim { volume: String, of: String, claim: String },
}

impl<T> From<UnusableClaim> for RequestOutcome<T> {
    fn from(why: UnusableClaim) -> Self {
        refused(why.to_string())
    }
}

/// The name of the volume to which the claim is bound.
fn bound_to<'a>(claim: &'a SentClaim, key: &ClaimKey) -> Result<&'a str, UnusableClaim> {
    let SentMetadata { deletion_timestamp, finalizers, owner_references, .. } = &claim.metadata;
    let is_protected = finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if deletion_timestamp.is_some() && !is_protected {
        return Err(UnusableClaim::Deleted);
    }
    let mut owners = owner_references.iter().flatten();
    let is_pods =
        |owner: &SentOwner| owner.controller == Some(true) && owner.uid == *key.pod.as_str();
    if key.owned && !owners.any(is_pods) {
        return Err(UnusableClaim::OfAnotherPod);
    }
    if claim.status.phase.as_deref() != Some("Bound") {
        return Err(UnusableClaim::NotBound);
    }
    let name = claim.spec.volume_name.as_deref().filter(|name| !name.is_empty());
    name.ok_or(UnusableClaim::NoVolumeName)
}

/// The parts of a volume that a pod needs. `labels` are those of the Node.
fn volume_of(
    sent: SentVolume,
    claim_uid: &str,
    labels: &BTreeMap<String, String>,
) -> Result<ClaimAnswer, UnusableClaim> {
    let name = sent.metadata.name;
    let Some(of) = sent.spec.claim_ref else {
        return Err(UnusableClaim::VolumeNotBound(name));
    };
    if of.uid != *claim_uid {
        let claim = claim_uid.to_owned();
        return Err(UnusableClaim::VolumeOfAnotherClaim { volume: name, of: of.uid, claim });
    }
    let affinity = sent.spec.node_affinity;
    if affinity.is_some_and(|affinity| !volume_is_usable(&affinity, labels)) {
        return Ok(ClaimAnswer::Elsewhere(name.into()));
    }
    let gid = sent.metadata.annotations.as_ref().and_then(|all| all.get(GID)?.parse().ok());
    let mount_options = mount_options(sent.metadata.annotations, sent.spec.mount_options);
    let source = if let Some(source) = sent.spec.host_path {
        if !mount_options.is_empty() {
            return Ok(ClaimAnswer::MountOptions(name.into()));
        }
        let kind = source.kind.unwrap_or_default().into();
        PersistentSource::HostPath { path: source.path.into(), kind }
    } else if let Some(source) = sent.spec.local {
        PersistentSource::Local { path: source.path.into() }
    } else if let Some(source) = sent.spec.nfs {
        PersistentSource::Nfs {
            server: source.server.into(),
            path: source.path.into(),
            read_only: source.read_only.unwrap_or_default(),
        }
    } else {
        let mut known = OTHER_SOURCES.iter();
        let other = known.find(|source| sent.spec.others.contains_key(**source));
        PersistentSource::Other(other.copied().unwrap_or("unknown").into())
    };
    let is_block = sent.spec.volume_mode.as_deref() == Some("Block");
    let volume = PersistentVolume { name: name.into(), is_block, source, mount_options, gid };
    Ok(ClaimAnswer::Bound(Arc::new(volume)))
}

/// The options with which a volume is mounted, as the kubelet reads them.
fn mount_options(
    annotations: Option<BTreeMap<String, String>>,
    options: Option<Vec<String>>,
) -> Vec<Box<str>> {
    let older = annotations.and_then(|mut all| all.remove(MOUNT_OPTIONS));
    let options = match older {
        Some(text) => text.split(',').map(Box::from).collect(),
        None => options.into_iter().flatten().map(Box::from).collect::<Vec<Box<str>>>(),
    };
    options.into_iter().filter(|option| !option.is_empty()).collect()
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SentMetadata {
    name: String,
    uid: String,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<SentOwner>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentOwner {
    uid: String,
    controller: Option<bool>,
}

#[derive(Deserialize)]
struct SentClaim {
    metadata: SentMetadata,
    #[serde(default)]
    spec: SentClaimSpec,
    #[serde(default)]
    status: SentClaimStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SentClaimSpec {
    volume_name: Option<String>,
}

#[derive(Default, Deserialize)]
struct SentClaimStatus {
    phase: Option<String>,
}

#[derive(Deserialize)]
struct SentVolume {
    metadata: SentMetadata,
    spec: SentVolumeSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentVolumeSpec {
    claim_ref: Option<SentClaimRef>,
    volume_mode: Option<String>,
    node_affinity: Option<k8s::VolumeNodeAffinity>,
    host_path: Option<SentHostPath>,
    local: Option<SentLocal>,
    nfs: Option<SentNfs>,
    mount_options: Option<Vec<String>>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct SentClaimRef {
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
struct SentHostPath {
    path: String,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct SentLocal {
    path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentNfs {
    server: String,
    path: String,
    read_only: Option<bool>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::{Value, json};

    fn key(owned: bool) -> ClaimKey {
        ClaimKey { pod: "u1".into(), namespace: "ns".into(), name: "data".into(), owned }
    }

    /// A bound claim with this change.
    fn claim(change: impl FnOnce(&mut Value)) -> SentClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "uid": "c1"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        });
        change(&mut claim);
        serde_json::from_value(claim).unwrap()
    }

    /// The answer for a volume with this spec, on a node with label `disk=ssd`.
    fn volume(spec: &Value) -> Result<ClaimAnswer, UnusableClaim> {
        let sent = json!({"metadata": {"name": "pv"}, "spec": spec});
        let labels = [("disk".to_owned(), "ssd".to_owned())].into();
        volume_of(serde_json::from_value(sent).unwrap(), "c1", &labels)
    }

    fn bound_volume(spec: &Value) -> Arc<PersistentVolume> {
        let answer = volume(spec).unwrap();
        let ClaimAnswer::Bound(volume) = answer else { panic!("{answer:?}") };
        volume
    }

    #[test]
    fn a_claim_is_used_when_it_is_bound_and_stays() {
        let bound = |owned, change: fn(&mut Value)| {
            let bound = bound_to(&claim(change), &key(owned)).map(ToOwned::to_owned);
            bound.map_err(|why| why.to_string())
        };
        let fails = |why: &str| Err(why.to_owned());
        assert_eq!(bound(false, |_| {}), Ok("pv".to_owned()));
        let pending = |claim: &mut Value| claim["status"]["phase"] = json!("Pending");
        assert_eq!(bound(false, pending), fails("PVC is not bound"));
        let unnamed = |claim: &mut Value| claim["spec"] = json!({});
        assert_eq!(bound(false, unnamed), fails("PVC has empty pvc.Spec.VolumeName"));
        let deleted = |claim: &mut Value| {
            claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        };
        assert_eq!(bound(false, deleted), fails("PVC is being deleted"));
        let protected = |claim: &mut Value| {
            claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            claim["metadata"]["finalizers"] = json!([PROTECTION]);
        };
        assert_eq!(bound(false, protected), Ok("pv".to_owned()));
    }

    #[test]
    fn the_claim_of_an_ephemeral_volume_belongs_to_its_pod() {
        let owned_by = |uid: &str| {
            let owners = json!([{"uid": uid, "controller": true, "kind": "Pod", "name": "web"}]);
            let claim = claim(|claim| claim["metadata"]["ownerReferences"] = owners);
            bound_to(&claim, &key(true)).map(ToOwned::to_owned).map_err(|why| why.to_string())
        };
        assert_eq!(owned_by("u1"), Ok("pv".to_owned()));
        let foreign = Err("PVC was not created for this pod (pod is not owner)".to_owned());
        assert_eq!(owned_by("u2"), foreign);
    }

    #[test]
    fn a_volume_has_its_source() {
        let claim_ref = json!({"uid": "c1", "name": "data"});
        let source = |name: &str, value: Value| {
            let spec = json!({"claimRef": claim_ref, "capacity": {"storage": "1Gi"}, name: value});
            let volume = bound_volume(&spec);
            assert!(!volume.is_block && &*volume.name == "pv");
            volume.source.clone()
        };
        assert_eq!(
            source("hostPath", json!({"path": "/a", "type": "Directory"})),
            PersistentSource::HostPath { path: "/a".into(), kind: "Directory".into() }
        );
        assert_eq!(
            source("local", json!({"path": "/b"})),
            PersistentSource::Local { path: "/b".into() }
        );
        let nfs = |read_only| PersistentSource::Nfs {
            server: "nas".into(),
            path: "/c".into(),
            read_only,
        };
        assert_eq!(source("nfs", json!({"server": "nas", "path": "/c"})), nfs(false));
        assert_eq!(
            source("nfs", json!({"server": "nas", "path": "/c", "readOnly": true})),
            nfs(true)
        );
        assert_eq!(source("csi", json!({"driver": "d"})), PersistentSource::Other("csi".into()));
        assert_eq!(source("new", json!({})), PersistentSource::Other("unknown".into()));
        let block = json!({"claimRef": claim_ref, "volumeMode": "Block", "local": {"path": "/b"}});
        assert!(bound_volume(&block).is_block);
    }

    #[test]
    fn a_volume_may_have_a_group() {
        let gid = |annotations: Value| {
            let spec = json!({"claimRef": {"uid": "c1"}, "nfs": {"server": "nas", "path": "/c"}});
            let metadata = json!({"name": "pv", "annotations": annotations});
            let sent = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            let answer = volume_of(sent, "c1", &BTreeMap::new()).unwrap();
            let ClaimAnswer::Bound(volume) = answer else { panic!("{answer:?}") };
            volume.gid
        };
        assert_eq!(gid(json!({GID: "1234", MOUNT_OPTIONS: "ro"})), Some(1234));
        assert_eq!(gid(json!({GID: "staff"})), None);
        assert_eq!(gid(Value::Null), None);
    }

    #[test]
    fn mount_options_are_those_of_the_annotation_or_the_specification() {
        let options = |metadata: Value, options: Value| {
            let nfs = json!({"server": "nas", "path": "/c"});
            let spec = json!({"claimRef": {"uid": "c1"}, "nfs": nfs, "mountOptions": options});
            let sent = json!({"metadata": metadata, "spec": spec});
            let answer =
                volume_of(serde_json::from_value(sent).unwrap(), "c1", &BTreeMap::new()).unwrap();
            let ClaimAnswer::Bound(volume) = answer else { panic!("{answer:?}") };
            volume.mount_options.join(" ")
        };
        let plain = json!({"name": "pv"});
        assert_eq!(options(plain.clone(), Value::Null), "");
        assert_eq!(options(plain, json!(["soft", "", "nfsvers=4.1"])), "soft nfsvers=4.1");
        let annotated = json!({"name": "pv", "annotations": {MOUNT_OPTIONS: "hard,,ro"}});
        assert_eq!(options(annotated, json!(["soft"])), "hard ro");
    }

    #[test]
    fn a_host_path_has_no_mount_options() {
        let answer = |options: Value| {
            let host_path = json!({"path": "/a"});
            volume(
                &json!({"claimRef": {"uid": "c1"}, "hostPath": host_path, "mountOptions": options}),
            )
        };
        assert_eq!(answer(json!(["noexec"])), Ok(ClaimAnswer::MountOptions("pv".into())));
        assert!(matches!(answer(json!([])), Ok(ClaimAnswer::Bound(_))));
    }

    #[test]
    fn a_volume_of_other_nodes_is_not_used() {
        let answer = |value: &str| {
            let label = json!({"key": "disk", "operator": "In", "values": [value]});
            let terms = json!([{"matchExpressions": [label]}]);
            let affinity = json!({"required": {"nodeSelectorTerms": terms}});
            let local = json!({"path": "/b"});
            volume(&json!({"claimRef": {"uid": "c1"}, "local": local, "nodeAffinity": affinity}))
        };
        assert!(matches!(answer("ssd"), Ok(ClaimAnswer::Bound(_))));
        assert_eq!(answer("hdd"), Ok(ClaimAnswer::Elsewhere("pv".into())));
    }

    #[test]
    fn a_volume_of_another_claim_is_not_used() {
        let error = |spec: Value| volume(&spec).unwrap_err().to_string();
        assert!(error(json!({"local": {"path": "/b"}})).contains("nil pv.Spec.ClaimRef"));
        let other = error(json!({"claimRef": {"uid": "c2"}, "local": {"path": "/b"}}));
        assert_eq!(
            other,
            "found PV object pv but its pv.Spec.ClaimRef.UID c2 does not point to claim.UID c1"
        );
    }
}
