//! Tables of single decisions here; whole lives against a model of an API server in `scenarios`.

mod api_pods;
mod bound;
mod scenarios;

use super::{
    pod::LEFT_OUT_ANNOTATION,
    refusal::{Part, refused},
    *,
};
use crate::{
    model::{PodKey, PodUid, PodView, k8s},
    node::NodeRef,
};
use serde_json::{Value, json};
use std::sync::Arc;

fn key() -> PodKey {
    PodKey::new("default", "web-n1")
}

fn node(uid: &str) -> NodeRef {
    NodeRef { name: "n1".to_owned(), uid: uid.to_owned(), deleting: false }
}

fn static_pod(uid: &str, revision: &str) -> k8s::Pod {
    let pod = json!({
        "metadata": {
            "name": "web-n1", "namespace": "default", "uid": uid, "labels": {"app": "web"},
            "annotations": {"kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file",
                "nodelet.dev/revision": revision},
        },
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "web", "image": "web:1"}]},
        "status": {"phase": "Pending"},
    });
    serde_json::from_value(pod).unwrap()
}

fn status(value: Value) -> k8s::PodStatus {
    serde_json::from_value(value).unwrap()
}

/// A static pod as it runs: its uid, the revision of its manifest, its phase.
fn view(uid: &str, revision: &str, phase: &str) -> PodView {
    let ready = if phase == "Running" { "True" } else { "False" };
    PodView {
        key: key(),
        uid: uid.into(),
        pod: Some(Arc::new(static_pod(uid, revision))),
        status: Arc::new(status(json!({
            "phase": phase, "qosClass": "BestEffort",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }))),
        containers: Vec::new(),
        origin: None,
        config: crate::model::PodConfig::Desired,
        terminating: false,
        stopped: false,
        hung: None,
        waiting: None,
        update: None,
        previous: None,
        probes: Vec::new(),
    }
}

const DELETION: Deletion = Deletion { seconds: 30, held: false };
const HELD: Deletion = Deletion { seconds: 0, held: true };

/// The mirror of `view("a", "r1", phase)` as an API server has it.
fn mirror(phase: &str) -> SeenPod {
    let view = view("a", "r1", phase);
    SeenPod {
        key: Some(key()),
        uid: "m1".to_owned(),
        version: 7,
        mirrors: Some("a".into()),
        revision: Some("r1".to_owned()),
        owner: Some("node-1".to_owned()),
        deletion: None,
        unread: false,
        desired: None,
        status: (*view.status).clone(),
    }
}

/// The decision in a few words.
fn decide(
    view: Option<&PodView>,
    seen: Option<&SeenPod>,
    node_uid: Option<&str>,
    gone: bool,
) -> String {
    decide_for(view, seen, node_uid.map(node).as_ref(), gone)
}

fn decide_for(
    view: Option<&PodView>,
    seen: Option<&SeenPod>,
    node: Option<&NodeRef>,
    gone: bool,
) -> String {
    let refusals = Refusals::default();
    let key = &key();
    in_words(plan(&Case { key, view, seen, node, gone, refusals: &refusals, runs_api_pods: false }))
}

fn in_words(step: MirrorStep) -> String {
    match step {
        MirrorStep::Nothing => "nothing".to_owned(),
        MirrorStep::Wait(why) => format!("wait: {why}"),
        MirrorStep::Create(pod) => {
            format!("create {}", pod.metadata.annotations.unwrap()["kubernetes.io/config.mirror"])
        }
        MirrorStep::Delete { uid, why } => format!("delete {uid}: {why}"),
        MirrorStep::Delay(at) => format!("delay: {at:?}"),
        MirrorStep::PatchStatus { uid, version, status, .. } => {
            format!("patch {uid}@{version} {}", Value::Object(status))
        }
        MirrorStep::Decline { uid } => format!("decline {uid}"),
    }
}

#[test]
fn a_static_pod_has_a_mirror_once_the_node_is_registered() {
    let run = view("a", "r1", "Running");
    assert_eq!(decide(Some(&run), None, None, false), "wait: the node is not registered");
    assert_eq!(decide(Some(&run), None, Some("node-1"), false), "create a");
    assert_eq!(decide(Some(&run), Some(&mirror("Running")), Some("node-1"), false), "nothing");
    assert_eq!(decide(Some(&run), Some(&mirror("Running")), None, false), "nothing");
    let deleted = NodeRef { deleting: true, ..node("node-1") };
    let none = decide_for(Some(&run), None, Some(&deleted), false);
    assert_eq!(none, "wait: the node is being deleted");
    let ended = view("a", "r1", "Succeeded");
    assert_eq!(decide(Some(&ended), None, Some("node-1"), false), "create a");
}

#[test]
fn a_mirror_that_cannot_become_what_it_should_be_is_replaced() {
    type Change = fn(&mut SeenPod);
    let run = view("a", "r1", "Running");
    let cases: [(&str, Change); 6] = [
        ("delete m1: its manifest has changed", |pod| pod.mirrors = Some("b".into())),
        ("delete m1: its manifest has changed", |pod| pod.revision = None),
        ("delete m1: it belongs to an earlier registration of the node", |pod| {
            pod.owner = Some("node-0".to_owned());
        }),
        ("delete m1: another client deleted it", |pod| {
            pod.deletion = Some(DELETION);
        }),
        ("delete m1: the pod runs again", |pod| pod.status.phase = Some("Failed".to_owned())),
        ("wait: the mirror pod is deleted and waits for its finalizers", |pod| {
            pod.deletion = Some(HELD);
        }),
    ];
    for (expected, change) in cases {
        let mut seen = mirror("Running");
        change(&mut seen);
        assert_eq!(decide(Some(&run), Some(&seen), Some("node-1"), false), expected);
    }
    let mut lost = run.clone();
    lost.pod = None;
    assert_eq!(decide(Some(&lost), Some(&mirror("Pending")), Some("node-1"), false), "nothing");
    assert_eq!(decide(Some(&lost), None, Some("node-1"), false), "nothing");
}

#[test]
fn a_mirror_goes_when_the_pod_is_known_to_be_gone() {
    let seen = mirror("Running");
    assert_eq!(decide(None, Some(&seen), Some("node-1"), false), "nothing");
    assert_eq!(
        decide(None, Some(&seen), Some("node-1"), true),
        "delete m1: no manifest has its name"
    );
    assert_eq!(decide(None, None, Some("node-1"), true), "nothing");
    let mut leaving = view("a", "r1", "Running");
    leaving.terminating = true;
    assert_eq!(decide(Some(&leaving), Some(&seen), Some("node-1"), false), "nothing");
    assert_eq!(decide(Some(&leaving), None, Some("node-1"), false), "nothing");
    // It is of a later manifest, which waits for this pod to end.
    let mut later = seen.clone();
    later.mirrors = Some("b".into());
    assert_eq!(decide(Some(&leaving), Some(&later), Some("node-1"), false), "nothing");
    let deleted = SeenPod { deletion: Some(DELETION), ..seen };
    let expected = "delete m1: another client deleted it";
    assert_eq!(decide(Some(&leaving), Some(&deleted), Some("node-1"), false), expected);
}

#[test]
fn a_pod_of_the_api_is_declined_and_its_deletion_completed() {
    let own = SeenPod { mirrors: None, owner: None, ..mirror("Pending") };
    let ended = SeenPod { status: status(json!({"phase": "Succeeded"})), ..own.clone() };
    let deleted = SeenPod { deletion: Some(DELETION), ..own.clone() };
    let held = SeenPod { deletion: Some(HELD), ..deleted.clone() };
    let run = view("a", "r1", "Running");
    // Pods of the API server were switched off while it ran here.
    let stops = PodView { uid: "m1".into(), terminating: true, ..view("a", "r1", "Running") };
    let stopped = PodView { stopped: true, ..stops.clone() };
    for (view, seen, expected) in [
        (None, &own, "decline m1"),
        (None, &ended, "nothing"),
        (None, &deleted, "delete m1: it was deleted and does not run here"),
        (None, &held, "nothing"),
        (Some(&run), &own, "wait: the API has a pod default/web-n1 that is not its mirror"),
        (Some(&stops), &deleted, "wait: pod default/web-n1 is being stopped"),
        (Some(&stopped), &deleted, "delete m1: it was deleted and has ended"),
    ] {
        assert_eq!(decide(view, Some(seen), Some("node-1"), true), expected);
    }
    let mut memory = MirrorMemory::default();
    let seen = Arc::new(own);
    let sight = Sight {
        key: &key(),
        view: None,
        shown: Some(&seen),
        live: false,
        node: None,
        runs_api_pods: false,
    };
    let mut steps = || memory.plan(&sight, |_| true, std::time::Duration::ZERO);
    assert_eq!(steps(), MirrorStep::Decline { uid: "m1".to_owned() });
    assert_eq!(steps(), MirrorStep::Nothing);
}

#[test]
fn a_status_is_written_where_what_is_ours_differs() {
    let run = view("a", "r1", "Running");
    // The node controller has marked the pod while the node was away.
    let mut seen = mirror("Running");
    seen.status.conditions.as_mut().unwrap()[0].status = "False".to_owned();
    seen.status.qos_class = Some("Burstable".to_owned());
    let expected = "patch m1@7 {\"conditions\":[{\"lastTransitionTime\":\"2026-01-01T00:00:00Z\",\"status\":\"True\",\"type\":\"Ready\"}]}";
    assert_eq!(decide(Some(&run), Some(&seen), Some("node-1"), false), expected);
    let body = MirrorStep::PatchStatus {
        uid: "m1".to_owned(),
        version: 7,
        status: serde_json::Map::new(),
        is_minor: false,
        of_mirror: true,
    }
    .body();
    assert_eq!(body, Some(json!({"metadata": {"uid": "m1"}, "status": {}})));
}

#[test]
fn a_pod_has_not_ended_while_a_container_may_run() {
    let disrupted =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"});
    let running = json!([{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"running": {}}}]);
    let mut ours = json!({"phase": "Failed", "reason": "Terminated", "conditions": [disrupted], "containerStatuses": running});
    let mut case = view("a", "r1", "Running");
    let seen = mirror("Running");
    let patch = |case: &PodView, seen: &SeenPod| match decide(
        Some(case),
        Some(seen),
        Some("node-1"),
        false,
    ) {
        text if text.starts_with("patch") => serde_json::from_str::<Value>(
            text.split_once(' ').unwrap().1.split_once(' ').unwrap().1,
        )
        .unwrap(),
        other => json!(other),
    };
    case.status = Arc::new(status(ours.clone()));
    let sent = patch(&case, &seen);
    assert_eq!((&sent["phase"], &sent["reason"]), (&Value::Null, &Value::Null), "{sent}");
    assert_eq!(sent["conditions"], json!([{"$patch": "delete", "type": "Ready"}]), "{sent}");

    ours["ephemeralContainerStatuses"] = ours["containerStatuses"].take();
    case.status = Arc::new(status(ours.clone()));
    assert_eq!(patch(&case, &seen)["phase"], Value::Null);

    ours["ephemeralContainerStatuses"] = Value::Null;
    case.status = Arc::new(status(ours));
    let sent = patch(&case, &seen);
    assert_eq!((&sent["phase"], &sent["reason"]), (&json!("Failed"), &json!("Terminated")));
    assert_eq!(sent["conditions"][0]["type"], "DisruptionTarget");
}

#[test]
fn a_mirror_has_the_marks_that_api_servers_ask_for() {
    let pod =
        mirror_pod(&static_pod("a", "r1"), &"a".into(), &node("node-1"), &Refusals::default());
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-n1", "namespace": "default", "labels": {"app": "web"},
            "annotations": {"kubernetes.io/config.hash": "a", "kubernetes.io/config.mirror": "a",
                "kubernetes.io/config.source": "file", "nodelet.dev/revision": "r1"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true}],
        },
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "web", "image": "web:1"}]},
    });
    assert_eq!(serde_json::to_value(pod).unwrap(), expected);
}

#[test]
fn what_was_refused_is_left_out_and_named() {
    let mut pod = static_pod("a", "r1");
    pod.spec = serde_json::from_value(json!({
        "nodeName": "n1", "priority": 5, "priorityClassName": "high", "preemptionPolicy": "Never",
        "overhead": {"cpu": "1"}, "serviceAccountName": "sa", "imagePullSecrets": [{"name": "s"}],
        "volumes": [{"name": "c", "configMap": {"name": "c"}}, {"name": "h", "hostPath": {"path": "/h"}},
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "d", "projected": {"sources": [{"downwardAPI": {}}]}}],
        "containers": [{"name": "web",
            "envFrom": [{"secretRef": {"name": "s"}}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
    }))
    .ok();
    let all = [
        Part::Overhead,
        Part::PreemptionPolicy,
        Part::Priority,
        Part::PriorityClass,
        Part::References,
    ];
    let refusals = Refusals { parts: all.into(), stuck: None };
    let mirror =
        serde_json::to_value(mirror_pod(&pod, &"a".into(), &node("node-1"), &refusals)).unwrap();
    assert_eq!(
        mirror["spec"],
        json!({
            "nodeName": "n1",
            "volumes": [{"name": "c", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/h"}},
                {"name": "t", "emptyDir": {}}, {"name": "d", "projected": {"sources": [{"downwardAPI": {}}]}}],
            "containers": [{"name": "web", "env": [{"name": "A", "value": "1"}]}],
        })
    );
    assert_eq!(
        mirror["metadata"]["annotations"][LEFT_OUT_ANNOTATION],
        "spec.overhead, spec.preemptionPolicy, spec.priority, spec.priorityClassName, spec.serviceAccountName, \
         spec.imagePullSecrets, spec.volumes[c], spec.volumes[t], spec.containers[web].envFrom, spec.containers[web].env[B]"
    );
    // What the pod has not is not named.
    let none = mirror_pod(&static_pod("a", "r1"), &"a".into(), &node("node-1"), &refusals);
    assert!(!none.metadata.annotations.unwrap().contains_key(LEFT_OUT_ANNOTATION));
}

#[test]
fn refusals_are_read_from_the_words_of_the_admission_plugins() {
    let forbidden = "pods \"web-n1\" is forbidden: ";
    let text = |message: &str| MirrorRefusal::Text(format!("{forbidden}{message}"));
    for (message, expected) in [
        ("no PriorityClass with name high was found", MirrorRefusal::Part(Part::PriorityClass)),
        (
            "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name",
            MirrorRefusal::Part(Part::Priority),
        ),
        (
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
            MirrorRefusal::Part(Part::PreemptionPolicy),
        ),
        (
            "pod rejected: RuntimeClass \"sandboxed\" not found",
            MirrorRefusal::Part(Part::RuntimeClass),
        ),
        (
            "conflict: runtimeClass.scheduling.nodeSelector[zone] = a; pod.spec.nodeSelector[zone] = b",
            MirrorRefusal::Part(Part::RuntimeClass),
        ),
        (
            "node \"n1\" can not create pods that reference secrets (via secret volumes)",
            MirrorRefusal::Part(Part::References),
        ),
        ("a mirror pod may not reference service accounts", MirrorRefusal::Part(Part::References)),
        (
            "a mirror pod may not use ServiceAccountToken volume projections",
            MirrorRefusal::Part(Part::References),
        ),
        (
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            MirrorRefusal::Part(Part::Overhead),
        ),
        (
            "exceeded quota: pods, requested: pods=1, used: pods=0, limited: pods=0",
            text("exceeded quota: pods, requested: pods=1, used: pods=0, limited: pods=0"),
        ),
        (
            "violates PodSecurity \"restricted:latest\": host namespaces",
            text("violates PodSecurity \"restricted:latest\": host namespaces"),
        ),
        ("node n1 UID mismatch: expected b got a", text("node n1 UID mismatch: expected b got a")),
    ] {
        let denial = Denial {
            code: 403,
            reason: "Forbidden".to_owned(),
            message: format!("{forbidden}{message}"),
        };
        assert_eq!(refused(&denial, &Refusals::default()), expected, "{message}");
        if let MirrorRefusal::Part(part) = expected {
            // Left out already, and still minded: there is no more to be done.
            let again = refused(&denial, &Refusals { parts: [part].into(), stuck: None });
            assert_eq!(again, MirrorRefusal::Text(denial.message.clone()));
        }
    }
    let missing = Denial {
        code: 404,
        reason: "NotFound".to_owned(),
        message: "namespaces \"shop\" not found".to_owned(),
    };
    assert_eq!(
        refused(&missing, &Refusals::default()),
        MirrorRefusal::Text(missing.message.clone())
    );
}

#[test]
fn another_revision_is_tried_in_full() {
    let mut memory = MirrorMemory::default();
    let node = node("node-1");
    let class_in_step = |memory: &mut MirrorMemory, revision: &str| {
        let mut view = view("a", revision, "Running");
        let pod = view.pod.as_mut().map(Arc::make_mut).unwrap();
        pod.spec.as_mut().unwrap().priority_class_name = Some("high".to_owned());
        let (key, node) = (key(), Some(&node));
        let sight = Sight {
            key: &key,
            view: Some(&view),
            shown: None,
            live: false,
            node,
            runs_api_pods: false,
        };
        let step = memory.plan(&sight, |_: &SeenPod| false, std::time::Duration::ZERO);
        let MirrorStep::Create(pod) = &step else { panic!("{step:?}") };
        (pod.spec.as_ref().unwrap().priority_class_name.clone(), step)
    };
    let (class, step) = class_in_step(&mut memory, "r1");
    assert_eq!(class.as_deref(), Some("high"));
    let denial = Denial {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "no PriorityClass with name high was found".to_owned(),
    };
    let next = memory.settle(&step, &Answer::Refused(denial), std::time::Duration::ZERO);
    assert_eq!(next, Next::Now);
    assert_eq!(class_in_step(&mut memory, "r1").0, None);
    assert_eq!(class_in_step(&mut memory, "r2").0.as_deref(), Some("high"));
}
