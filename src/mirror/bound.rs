//! Pods that the API server has bound to this node, as a source of pods.

use super::SeenPod;
use crate::{
    desired::{Knowledge, SourceSnapshot},
    model::{
        CollectOrdered as _, DesiredPod, Origin, PodEnd, PodKey, RUN_FROM_CHECKPOINT, SourceKind,
        SourceView, TerminalPhase, k8s, short_digest,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Annotation that tells static pods from those of the API server.
const SOURCE: &str = "kubernetes.io/config.source";

/// What is to run of an object. The API server has set all defaults; fields that this version does
/// not know are left out. `None` when the object has no name.
pub(super) fn desired_pod(
    metadata: &ObjectMeta,
    spec: k8s::PodSpec,
    status: &k8s::PodStatus,
) -> Option<DesiredPod> {
    let key = PodKey::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?);
    let uid = metadata.uid.as_deref()?.into();
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.insert(SOURCE.to_owned(), SourceKind::Api.as_str().to_owned());
    let conditions = gate_conditions(&spec, status);
    let mut pod = k8s::Pod {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            labels: metadata.labels.clone(),
            annotations: Some(annotations),
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp.clone(),
            owner_references: metadata.owner_references.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: conditions.map(|conditions| k8s::PodStatus {
            conditions: Some(conditions),
            ..k8s::PodStatus::default()
        }),
    };
    let revision = revision(&pod);
    // When the pod was scheduled, and when it was accepted: `activeDeadlineSeconds` counts from
    // there, and so does a new record if the old one was lost. Both are written once, and no part
    // of the revision.
    let scheduled = |condition: &&k8s::PodCondition| condition.type_ == "PodScheduled";
    if let Some(scheduled) = status.conditions.iter().flatten().find(scheduled) {
        let status = pod.status.get_or_insert_default();
        status.conditions.get_or_insert_default().push(scheduled.clone());
    }
    if let Some(start_time) = &status.start_time {
        pod.status.get_or_insert_default().start_time = Some(start_time.clone());
    }
    let origin =
        Origin { source: SourceKind::Api, location: LOCATION.into(), document: 0, line: 1 };
    Some(DesiredPod { key, uid, revision, pod: Arc::new(pod), origin })
}

/// Where people are told that the pod is written.
const LOCATION: &str = "the API server";

/// The conditions that the pod's readiness gates wait for; others write them.
fn gate_conditions(spec: &k8s::PodSpec, status: &k8s::PodStatus) -> Option<Vec<k8s::PodCondition>> {
    let gates = spec.readiness_gates.as_ref().filter(|gates| !gates.is_empty())?;
    let is_gate = |condition: &&k8s::PodCondition| {
        gates.iter().any(|gate| gate.condition_type == condition.type_)
    };
    Some(status.conditions.iter().flatten().filter(is_gate).cloned().collect())
}

/// Changes with everything that the pod's worker acts on.
fn revision(pod: &k8s::Pod) -> Box<str> {
    // A pod that was decoded from JSON has nothing that JSON has no words for.
    let text = serde_json::to_vec(pod).unwrap_or_default();
    short_digest(&text).into()
}

/// Pods that have ended here and whose objects are left out later: those that were created last
/// stay, with their logs.
const MOST_ENDED_UNREAD: usize = 200;

/// What the API server wants, once it was seen as a whole. A pod of `before` whose object is left
/// out stays as it is there, or ends as `left_out` says, which has its uid. One that has ended goes
/// when [`MOST_ENDED_UNREAD`] that were created later have ended.
pub fn bound_pods<'a>(
    seen: impl Iterator<Item = &'a Arc<SeenPod>>,
    before: &SourceSnapshot,
    left_out: &BTreeMap<&str, PodEnd>,
) -> SourceSnapshot {
    let (mut pods, mut ends) = (Vec::new(), BTreeMap::new());
    let mut unconfirmed = BTreeSet::new();
    for seen in seen {
        let Some(desired) = &seen.desired else { continue };
        let phase = TerminalPhase::of(&seen.status);
        let deleted = seen.deletion.map(|deletion| deletion.seconds);
        if deleted.is_some() || phase.is_some() {
            let end = PodEnd { deleted, phase };
            ends.insert(desired.key.clone(), end);
        }
        pods.push(Arc::clone(desired));
    }
    let oldest_ended = oldest_ended_to_keep(&before.pods, left_out);
    for pod in &before.pods {
        let Some(told) = left_out.get(pod.uid.as_str()) else { continue };
        if has_ended(told) && created(pod) < oldest_ended {
            continue;
        }
        let key = &pod.key;
        let known = before.ends.get(key).copied().unwrap_or_default();
        let end =
            PodEnd { deleted: told.deleted.or(known.deleted), phase: told.phase.or(known.phase) };
        if end != PodEnd::default() {
            ends.insert(key.clone(), end);
        }
        unconfirmed.extend(before.unconfirmed.get(key).cloned());
        pods.push(Arc::clone(pod));
    }
    snapshot(Knowledge::Complete, pods, unconfirmed, ends)
}

/// When the oldest of the ended pods whose objects are left out was made, if it may stay.
fn oldest_ended_to_keep(
    pods: &[Arc<DesiredPod>],
    left_out: &BTreeMap<&str, PodEnd>,
) -> Option<Timestamp> {
    let is_ended = |pod: &&Arc<DesiredPod>| left_out.get(pod.uid.as_str()).is_some_and(has_ended);
    let mut times: Vec<_> = pods.iter().filter(is_ended).map(|pod| created(pod)).collect();
    times.sort_unstable();
    *times.iter().rev().nth(MOST_ENDED_UNREAD - 1)?
}

fn has_ended(end: &PodEnd) -> bool {
    end.phase.is_some() && end.deleted.is_none()
}

fn created(pod: &DesiredPod) -> Option<Timestamp> {
    pod.pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// What an earlier run of the agent has admitted, until the API server was seen as a whole. What
/// runs of it keeps running. Pods with the annotation [`RUN_FROM_CHECKPOINT`] start as well.
#[must_use]
pub fn recorded_pods(pods: Vec<Arc<DesiredPod>>) -> SourceSnapshot {
    let unconfirmed = pods.iter().filter(|pod| !runs_from_checkpoint(&pod.pod));
    let unconfirmed = unconfirmed.map(|pod| pod.key.clone()).collect_ordered();
    snapshot(Knowledge::Checkpoint, pods, unconfirmed, BTreeMap::new())
}

fn runs_from_checkpoint(pod: &k8s::Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(RUN_FROM_CHECKPOINT)).is_some_and(|text| text == "true")
}

fn snapshot(
    knowledge: Knowledge,
    pods: Vec<Arc<DesiredPod>>,
    unconfirmed: BTreeSet<PodKey>,
    ends: BTreeMap<PodKey, PodEnd>,
) -> SourceSnapshot {
    let view = Arc::new(SourceView::empty(SourceKind::Api, LOCATION));
    SourceSnapshot { kind: SourceKind::Api, knowledge, pods, unconfirmed, ends, view }
}

/// True when both want the same. Pods are compared by their addresses, because an object that was
/// sent again keeps its copy ([`SeenPod::share`]).
#[must_use]
pub fn wants_the_same(a: &SourceSnapshot, b: &SourceSnapshot) -> bool {
    a.knowledge == b.knowledge
        && a.ends == b.ends
        && a.unconfirmed == b.unconfirmed
        && a.pods.len() == b.pods.len()
        && a.pods.iter().zip(&b.pods).all(|(a, b)| Arc::ptr_eq(a, b))
}
