//! The next step for one pod name.

use super::{Refusals, SeenPod, mirror_pod, status};
use crate::{
    model::{PodKey, PodView, REVISION_ANNOTATION, SourceKind, k8s, to_json_value},
    node::NodeRef,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// All that a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub key: &'a PodKey,
    pub view: Option<&'a PodView>,
    /// What the API server has under it on this node.
    pub seen: Option<&'a SeenPod>,
    /// This node; `None` while it is not registered.
    pub node: Option<&'a NodeRef>,
    /// True when nothing is left of the static pod that `seen` claims to mirror, or that pod has
    /// another name. Where `seen` is an object that the agent does not read, it is taken for the pod
    /// itself. False may only mean that the agent does not know yet.
    pub gone: bool,
    /// What the API server refused of this revision.
    pub refusals: &'a Refusals,
    /// Pods that the API server has bound to the node are run (`apiPods`).
    pub runs_api_pods: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MirrorStep {
    /// The API server has what it should.
    Nothing,
    /// It has not, and nothing can be done about it for now: why.
    Wait(String),
    /// It has not, but what is missing may wait until this time (as `now` in `MirrorMemory::plan`).
    Delay(Duration),
    /// Make the mirror.
    Create(Box<k8s::Pod>),
    /// Delete it, at once, if it is still this one.
    Delete {
        /// `metadata.uid`
        uid: String,
        /// For the log.
        why: &'static str,
    },
    /// Write the status of a pod, if it is still this one.
    PatchStatus {
        /// `metadata.uid`
        uid: String,
        /// The version that it was compared with.
        version: u64,
        /// Fields of `status`, for a strategic merge.
        status: Map<String, Value>,
        /// True for a patch of minor changes only: more changes usually follow within moments.
        is_minor: bool,
        /// True for the mirror of a static pod.
        of_mirror: bool,
    },
    /// Say that this pod is not run: it was bound to the node through the API.
    Decline {
        /// `metadata.uid`
        uid: String,
    },
}

impl MirrorStep {
    /// The body of its request, if it has one.
    #[must_use]
    pub fn body(&self) -> Option<Value> {
        match self {
            Self::Nothing | Self::Wait(_) | Self::Delay(_) | Self::Decline { .. } => None,
            Self::Create(pod) => to_json_value(pod).ok(),
            Self::Delete { uid, .. } => Some(json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": uid},
            })),
            Self::PatchStatus { uid, version, status, .. } => {
                let mut metadata = json!({"uid": uid});
                // Nothing leaves a final phase, which may be there although the answer was lost: a
                // phase is written on what it was decided by, and on nothing newer.
                if status.contains_key("phase") {
                    metadata["resourceVersion"] = json!(version.to_string());
                }
                Some(json!({"metadata": metadata, "status": status}))
            }
        }
    }
}

/// Decides. Each step brings the API server nearer to what it should have; after the last there is
/// [`MirrorStep::Nothing`].
#[must_use]
pub fn plan(case: &Case<'_>) -> MirrorStep {
    let Some(seen) = case.seen else { return create(case) };
    if seen.unread {
        return of_unread(case, seen);
    }
    if seen.mirrors.is_none() {
        return match case.view {
            Some(view) if case.runs_api_pods && view.uid.as_str() == seen.uid => of_api(seen, view),
            // Its worker has not begun, or removes an earlier pod of this name first.
            Some(view) if case.runs_api_pods && is_from_api(view) => MirrorStep::Nothing,
            None if case.runs_api_pods => MirrorStep::Nothing,
            Some(_) | None => not_ours(case, seen),
        };
    }
    let delete = |why| MirrorStep::Delete { uid: seen.uid.clone(), why };
    if seen.is_held() {
        return MirrorStep::Wait(
            "the mirror pod is deleted and waits for its finalizers".to_owned(),
        );
    }
    let Some(view) = case.view else {
        return match case.gone {
            true => delete("no manifest has its name"),
            false => MirrorStep::Nothing,
        };
    };
    if seen.deletion.is_some() {
        return delete("another client deleted it");
    }
    // Of a pod whose spec is lost only the name is known.
    let Some(pod) = &view.pod else { return MirrorStep::Nothing };
    match outdated(case, seen, view, pod) {
        // It goes with the pod anyway.
        Some(_) if view.terminating => return MirrorStep::Nothing,
        Some(why) => return delete(why),
        None => {}
    }
    patch_status(seen, view, status::patch).unwrap_or(MirrorStep::Nothing)
}

/// What is to be written of the status, by `patch`.
fn patch_status(
    seen: &SeenPod,
    view: &PodView,
    patch: fn(&k8s::PodStatus, &k8s::PodStatus) -> Option<Map<String, Value>>,
) -> Option<MirrorStep> {
    let status = patch(&seen.status, &view.status)?;
    let rest = || status::without_minor_changes(&seen.status, &view.status);
    let is_minor = seen.status.phase == view.status.phase && patch(&seen.status, &rest()).is_none();
    let (uid, version, of_mirror) = (seen.uid.clone(), seen.version, seen.mirrors.is_some());
    Some(MirrorStep::PatchStatus { uid, version, status, is_minor, of_mirror })
}

fn is_from_api(view: &PodView) -> bool {
    view.origin.as_ref().is_none_or(|origin| origin.source == SourceKind::Api)
}

/// A pod that the API server has bound to the node and that runs here.
fn of_api(seen: &SeenPod, view: &PodView) -> MirrorStep {
    // Of a pod that only the runtime knows, before its worker has the specification, there is no
    // status to write, nor of one that ended before the agent knew it.
    let known =
        view.pod.is_some() && (!status::is_final(&seen.status) || !view.containers.is_empty());
    let patch = known.then(|| patch_status(seen, view, status::patch_of_api)).flatten();
    match patch {
        // Minor changes are not written before the last deletion.
        Some(MirrorStep::PatchStatus { is_minor: true, .. }) | None => {
            last_deletion(seen, view).or(patch).unwrap_or(MirrorStep::Nothing)
        }
        Some(patch) => patch,
    }
}

/// The last deletion of a pod of the API server, which lets the object go: nothing of the pod is
/// left that could do harm.
pub(super) fn last_deletion(seen: &SeenPod, view: &PodView) -> Option<MirrorStep> {
    let due = seen.deletion.is_some_and(|deletion| !deletion.held)
        && view.stopped
        && view.uid.as_str() == seen.uid;
    due.then(|| MirrorStep::Delete { uid: seen.uid.clone(), why: "it was deleted and has ended" })
}

fn create(case: &Case<'_>) -> MirrorStep {
    let Some(view) = case.view.filter(|view| !view.terminating) else { return MirrorStep::Nothing };
    // One of the API server whose object is gone.
    if view.origin.as_ref().is_some_and(|origin| origin.source == SourceKind::Api) {
        return MirrorStep::Nothing;
    }
    let Some(pod) = &view.pod else { return MirrorStep::Nothing };
    match case.node {
        None => MirrorStep::Wait("the node is not registered".to_owned()),
        // As the kubelet, so that the Node's deletion can come to an end.
        Some(node) if node.deleting => MirrorStep::Wait("the node is being deleted".to_owned()),
        Some(node) => MirrorStep::Create(Box::new(mirror_pod(pod, &view.uid, node, case.refusals))),
    }
}

/// A pod that somebody bound to this node. Nothing of it runs here, so its deletion is complete as
/// soon as it is asked for.
fn not_ours(case: &Case<'_>, seen: &SeenPod) -> MirrorStep {
    if seen.is_held() {
        MirrorStep::Nothing
    } else if let Some(view) = case.view.filter(|view| view.uid.as_str() == seen.uid) {
        // It ran here until pods of the API server were switched off, and is being stopped.
        let waits = || MirrorStep::Wait(format!("pod {} is being stopped", case.key));
        last_deletion(seen, view).unwrap_or_else(waits)
    } else if seen.deletion.is_some() {
        delete_unknown(seen)
    } else if case.view.is_some() {
        MirrorStep::Wait(format!("the API has a pod {} that is not its mirror", case.key))
    } else if status::is_final(&seen.status) {
        MirrorStep::Nothing
    } else {
        MirrorStep::Decline { uid: seen.uid.clone() }
    }
}

/// A pod whose object is too large. Whatever it is, it goes when it is deleted and nothing of it
/// runs here.
fn of_unread(case: &Case<'_>, seen: &SeenPod) -> MirrorStep {
    match case.view.filter(|view| view.uid.as_str() == seen.uid) {
        Some(view) => last_deletion(seen, view).unwrap_or(MirrorStep::Nothing),
        None if case.gone && seen.deletion.is_some() && !seen.is_held() => delete_unknown(seen),
        None => MirrorStep::Nothing,
    }
}

fn delete_unknown(seen: &SeenPod) -> MirrorStep {
    MirrorStep::Delete { uid: seen.uid.clone(), why: "it was deleted and does not run here" }
}

/// Why a mirror can't become what it should be.
fn outdated(
    case: &Case<'_>,
    seen: &SeenPod,
    view: &PodView,
    pod: &k8s::Pod,
) -> Option<&'static str> {
    let annotations = pod.metadata.annotations.as_ref();
    let revision = annotations.and_then(|all| all.get(REVISION_ANNOTATION));
    if seen.mirrors.as_ref() != Some(&view.uid) || seen.revision.as_ref() != revision {
        return Some("its manifest has changed");
    }
    if case.node.is_some_and(|node| seen.owner.as_ref() != Some(&node.uid)) {
        return Some("it belongs to an earlier registration of the node");
    }
    if status::is_final(&seen.status) && seen.status.phase != view.status.phase {
        return Some("the pod runs again");
    }
    if case.refusals.stuck.as_ref() == Some(&seen.uid) {
        return Some("a container of it runs again");
    }
    None
}
