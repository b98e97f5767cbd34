//! What is kept of a pod that the API server has.

use super::bound::desired_pod;
use crate::{
    echo::Versioned,
    model::{DesiredPod, PodKey, PodUid, REVISION_ANNOTATION, k8s},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

/// Annotation that makes a pod a mirror; its value is the uid of the static pod.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod that is bound to this node, as far as it is of interest here. The spec of a mirror and the
/// record of an object's writers are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenPod {
    pub key: Option<PodKey>,
    /// `metadata.uid`, which the API server gave it.
    pub uid: String,
    /// `metadata.resourceVersion`: grows with every write to the API server.
    pub version: u64,
    /// Which static pod it mirrors; `None` for a pod of its own.
    pub mirrors: Option<PodUid>,
    /// The revision of the manifest that it was made from.
    pub revision: Option<String>,
    /// Uid of the Node that it belongs to.
    pub owner: Option<String>,
    /// Somebody deleted it; it is there until this node agrees.
    pub deletion: Option<Deletion>,
    /// What is to run; `None` for a mirror.
    pub desired: Option<Arc<DesiredPod>>,
    /// What the API server has for a status.
    pub status: k8s::PodStatus,
    /// Its object is too large: besides its name, uid and deletion nothing of it was read.
    pub unread: bool,
}

/// How a pod was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionGracePeriodSeconds`
    pub seconds: u32,
    /// It is deleted as far as the node is concerned, and there until others remove their
    /// finalizers.
    pub held: bool,
}

impl Deletion {
    /// From `metadata`: whether there is a `deletionTimestamp`, `deletionGracePeriodSeconds`, and
    /// whether there are `finalizers`.
    #[must_use]
    pub fn new(deleted: bool, seconds: Option<i64>, finalizers: bool) -> Option<Self> {
        let held = finalizers && seconds == Some(0);
        let seconds = u32::try_from(seconds.unwrap_or_default().max(0)).unwrap_or(u32::MAX);
        deleted.then_some(Self { seconds, held })
    }
}

impl SeenPod {
    /// A pod that was deleted and of which no more is read.
    #[must_use]
    pub fn unread(key: PodKey, uid: String, version: u64, deletion: Deletion) -> Self {
        let (key, deletion) = (Some(key), Some(deletion));
        Self { key, uid, version, deletion, unread: true, ..Self::default() }
    }

    /// Whether others keep the object of a deleted pod.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.deletion.is_some_and(|deletion| deletion.held)
    }

    /// Shares the pod when both objects have the same revision, so that an object that is sent
    /// again with another status does not take twice the memory. A pod with a deadline is taken as
    /// it is when its start time comes, which the deadline counts from.
    pub fn share(&mut self, previous: &Self) {
        if let (Some(new), Some(old)) = (&mut self.desired, &previous.desired)
            && (&new.uid, &new.revision) == (&old.uid, &old.revision)
            && deadline_begins(&new.pod).is_none_or(|at| deadline_begins(&old.pod) == Some(at))
        {
            *new = Arc::clone(old);
        }
    }
}

/// The start time of a pod that has an `activeDeadlineSeconds`.
fn deadline_begins(pod: &k8s::Pod) -> Option<&Time> {
    pod.spec.as_ref()?.active_deadline_seconds?;
    pod.status.as_ref()?.start_time.as_ref()
}

impl Versioned for SeenPod {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }
}

impl<'de> Deserialize<'de> for SeenPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            metadata: ObjectMeta,
            #[serde(default)]
            spec: Option<k8s::PodSpec>,
            #[serde(default)]
            status: Option<k8s::PodStatus>,
        }
        let Object { metadata, spec, status } = Object::deserialize(deserializer)?;
        let annotation = |name: &str| metadata.annotations.as_ref()?.get(name).cloned();
        let owners = metadata.owner_references.iter().flatten();
        let mut nodes = owners.filter(|owner| owner.kind == "Node").map(|owner| owner.uid.clone());
        let deletion = Deletion::new(
            metadata.deletion_timestamp.is_some(),
            metadata.deletion_grace_period_seconds,
            metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()),
        );
        let mirrors = annotation(MIRROR).map(PodUid::from);
        let mut status = status.unwrap_or_default();
        leave_out_empty(&mut status);
        let desired = spec
            .filter(|_| mirrors.is_none())
            .and_then(|spec| desired_pod(&metadata, spec, &status))
            .map(Arc::new);
        Ok(Self {
            mirrors,
            desired,
            revision: annotation(REVISION_ANNOTATION),
            owner: nodes.next(),
            deletion,
            version: metadata.resource_version.and_then(|v| v.parse().ok()).unwrap_or_default(),
            key: metadata.namespace.zip(metadata.name).map(|(ns, name)| PodKey::new(&ns, &name)),
            uid: metadata.uid.unwrap_or_default(),
            status,
            unread: false,
        })
    }
}

/// An API server writes `lastState: {}` for a container that has none. Without it a status compares
/// equal to ours.
fn leave_out_empty(status: &mut k8s::PodStatus) {
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        let empty = k8s::ContainerState::default();
        container.last_state = container.last_state.take().filter(|state| *state != empty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keeps_what_matters_of_an_object() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-n1", "namespace": "shop", "uid": "u1", "resourceVersion": "42", "generation": 1,
                "annotations": {"kubernetes.io/config.mirror": "abc", "nodelet.dev/revision": "r1", "a": "b"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true}],
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "finalizers": ["x/y"],
                "managedFields": [{"manager": "nodelet", "operation": "Update"}],
            },
            "spec": {"containers": [{"name": "web", "image": "web:1"}], "unheardOf": 1},
            "status": {"phase": "Running", "qosClass": "BestEffort"},
        });
        let expected = SeenPod {
            key: Some(PodKey::new("shop", "web-n1")),
            uid: "u1".to_owned(),
            version: 42,
            mirrors: Some("abc".into()),
            revision: Some("r1".to_owned()),
            owner: Some("node-1".to_owned()),
            deletion: Some(Deletion { seconds: 0, held: true }),
            desired: None,
            unread: false,
            status: k8s::PodStatus {
                phase: Some("Running".to_owned()),
                qos_class: Some("BestEffort".to_owned()),
                ..k8s::PodStatus::default()
            },
        };
        assert_eq!(serde_json::from_value::<SeenPod>(object).unwrap(), expected);
    }

    #[test]
    fn an_empty_last_state_is_none() {
        let container = |state: serde_json::Value| json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "lastState": state});
        let ended = json!({"terminated": {"exitCode": 1}});
        let object = json!({"metadata": {"name": "a", "namespace": "b"}, "status": {
            "containerStatuses": [container(json!({})), container(ended)]}});
        let pod: SeenPod = serde_json::from_value(object).unwrap();
        let states = pod.status.container_statuses.unwrap();
        let states: Vec<bool> = states.iter().map(|one| one.last_state.is_some()).collect();
        assert_eq!(states, [false, true]);
    }

    #[test]
    fn a_pod_of_its_own_mirrors_nothing() {
        let object =
            json!({"metadata": {"name": "a", "namespace": "b", "finalizers": ["x/y"]}, "spec": {}});
        let pod: SeenPod = serde_json::from_value(object).unwrap();
        assert_eq!((pod.mirrors, pod.owner, pod.deletion), (None, None, None));
    }
}
