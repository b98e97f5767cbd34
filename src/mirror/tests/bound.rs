//! Objects of the API server as a source of pods.

use super::*;
use crate::{
    desired::Knowledge,
    model::{PodEnd, RUN_FROM_CHECKPOINT, SourceKind, TerminalPhase},
};
use std::collections::BTreeMap;

/// An object with everything that the agent reads of it.
fn object() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "42",
            "generation": 3, "labels": {"app": "web"}, "annotations": {"a": "b"},
        },
        "spec": {
            "nodeName": "n1", "restartPolicy": "Always",
            "containers": [{"name": "web", "image": "web:1"}],
            "readinessGates": [{"conditionType": "example.com/gate"}],
        },
        "status": {"phase": "Pending"},
    })
}

fn read(object: &Value) -> SeenPod {
    serde_json::from_value(object.clone()).unwrap()
}

fn revision(object: &Value) -> Box<str> {
    read(object).desired.unwrap().revision.clone()
}

fn snapshot_of(pods: &[SeenPod]) -> crate::desired::SourceSnapshot {
    let pods: Vec<Arc<SeenPod>> = pods.iter().cloned().map(Arc::new).collect();
    bound_pods(pods.iter(), &recorded_pods(Vec::new()), &BTreeMap::new())
}

#[test]
fn an_object_is_a_pod_from_the_api_server() {
    let desired = read(&object()).desired.unwrap();
    assert_eq!((desired.key.to_string(), desired.uid.as_str()), ("shop/web".to_owned(), "u1"));
    assert_eq!(desired.origin.source, SourceKind::Api);
    let metadata = &desired.pod.metadata;
    let annotations = metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubernetes.io/config.source"], "api");
    assert_eq!(annotations["a"], "b");
    assert_eq!((metadata.generation, &metadata.resource_version), (Some(3), &None));
    for (field, value) in [("uid", json!(null)), ("name", json!(null)), ("namespace", json!(null))]
    {
        let mut object = object();
        object["metadata"][field] = value;
        assert_eq!(read(&object).desired, None, "without {field}");
    }
}

#[test]
fn what_a_newer_api_server_has_is_no_error() {
    let mut object = object();
    object["metadata"]["newField"] = json!({"x": 1});
    object["spec"]["newField"] = json!([1]);
    object["spec"]["restartPolicy"] = json!("Sometimes");
    object["spec"]["containers"][0]["imagePullPolicy"] = json!("WhenCheap");
    object["spec"]["containers"][0]["newField"] = json!(true);
    object["spec"]["volumes"] = json!([{"name": "v", "newVolume": {"x": 1}}]);
    object["status"]["phase"] = json!("Paused");
    object["status"]["newField"] = json!("x");
    let pod = read(&object);
    let spec = pod.desired.as_ref().unwrap().pod.spec.as_ref().unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Sometimes"));
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("WhenCheap"));
    assert!(snapshot_of(&[pod]).ends.is_empty(), "an unknown phase is not final");
}

#[test]
fn a_revision_is_of_what_the_worker_acts_on() {
    type Change = fn(&mut Value);
    let status: [(&str, Change); 4] = [
        ("version", |o| o["metadata"]["resourceVersion"] = json!("43")),
        ("phase", |o| o["status"]["phase"] = json!("Running")),
        ("start time", |o| o["status"]["startTime"] = json!("2026-01-01T00:00:00Z")),
        ("condition", |o| {
            o["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        }),
    ];
    for (name, change) in status {
        let mut changed = object();
        change(&mut changed);
        assert_eq!(revision(&changed), revision(&object()), "{name}");
    }
    let wanted: [(&str, Change); 5] = [
        ("label", |o| o["metadata"]["labels"]["app"] = json!("api")),
        ("annotation", |o| o["metadata"]["annotations"]["a"] = json!("c")),
        ("image", |o| o["spec"]["containers"][0]["image"] = json!("web:2")),
        ("deadline", |o| o["spec"]["activeDeadlineSeconds"] = json!(5)),
        ("gate", |o| {
            o["status"]["conditions"] = json!([{"type": "example.com/gate", "status": "True"}]);
        }),
    ];
    for (name, change) in wanted {
        let mut changed = object();
        change(&mut changed);
        assert_ne!(revision(&changed), revision(&object()), "{name}");
    }
}

#[test]
fn the_status_has_the_times_of_its_start_and_schedule_and_gates() {
    let mut object = object();
    object["status"]["startTime"] = json!("2026-01-01T00:00:00Z");
    object["status"]["conditions"] = json!([
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2025-12-31T00:00:00Z"},
        {"type": "Ready", "status": "False"},
        {"type": "example.com/gate", "status": "True"},
    ]);
    let status = read(&object).desired.unwrap().pod.status.clone().unwrap();
    let expected = json!({
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {"type": "example.com/gate", "status": "True"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2025-12-31T00:00:00Z"},
        ],
    });
    assert_eq!(serde_json::to_value(status).unwrap(), expected);
}

#[test]
fn an_object_that_is_sent_again_shares_its_pod() {
    let before = read(&object());
    let mut changed = object();
    changed["status"]["phase"] = json!("Running");
    let mut same = read(&changed);
    same.share(&before);
    let address = |pod: &SeenPod| Arc::as_ptr(pod.desired.as_ref().unwrap());
    assert_eq!(address(&same), address(&before));
    assert!(wants_the_same(&snapshot_of(std::slice::from_ref(&before)), &snapshot_of(&[same])));

    changed["metadata"]["labels"]["app"] = json!("api");
    let mut another = read(&changed);
    another.share(&before);
    assert_ne!(address(&another), address(&before));
    assert!(!wants_the_same(&snapshot_of(std::slice::from_ref(&before)), &snapshot_of(&[another])));

    let mut limited = object();
    limited["spec"]["activeDeadlineSeconds"] = json!(60);
    let before_start = read(&limited);
    limited["status"]["startTime"] = json!("2026-01-01T00:00:05Z");
    let mut started = read(&limited);
    started.share(&before_start);
    assert_ne!(address(&started), address(&before_start), "the deadline counts from there");
    let mut again = read(&limited);
    again.share(&started);
    assert_eq!(address(&again), address(&started));

    let mut recreated = object();
    recreated["metadata"]["uid"] = json!("u2");
    let mut recreated = read(&recreated);
    recreated.share(&before);
    assert_eq!(recreated.desired.as_ref().unwrap().uid.as_str(), "u2");
}

#[test]
fn deletions_and_final_phases_are_ends() {
    let end = |metadata: Value, phase: &str| {
        let mut object = object();
        for (field, value) in metadata.as_object().unwrap() {
            object["metadata"][field] = value.clone();
        }
        object["status"]["phase"] = json!(phase);
        let snapshot = snapshot_of(&[read(&object)]);
        assert_eq!(snapshot.pods.len(), 1, "it is wished until its object is gone");
        snapshot.ends.get(&PodKey::new("shop", "web")).copied()
    };
    let at = "2026-01-01T00:00:00Z";
    let deleted =
        |seconds: i64| json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": seconds});
    let of = |deleted, phase| Some(PodEnd { deleted, phase });
    for (metadata, phase, expected) in [
        (json!({}), "Running", None),
        (json!({}), "Failed", of(None, Some(TerminalPhase::Failed))),
        (deleted(30), "Running", of(Some(30), None)),
        (deleted(0), "Succeeded", of(Some(0), Some(TerminalPhase::Succeeded))),
        (deleted(-5), "Running", of(Some(0), None)),
        (json!({"deletionTimestamp": at}), "Running", of(Some(0), None)),
    ] {
        assert_eq!(end(metadata.clone(), phase), expected, "{metadata} {phase}");
    }
}

#[test]
fn mirrors_are_not_wished() {
    let mut mirror = object();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"});
    let snapshot = snapshot_of(&[read(&mirror)]);
    assert!(snapshot.pods.is_empty() && snapshot.ends.is_empty());
    assert_eq!(snapshot.knowledge, Knowledge::Complete);
}

#[test]
fn a_pod_whose_object_is_left_out_stays_as_it_was() {
    let named = |name: &str, metadata: Value| {
        let mut object = object();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(name);
        for (field, value) in metadata.as_object().unwrap() {
            object["metadata"][field] = value.clone();
        }
        read(&object)
    };
    let at = "2026-01-01T00:00:00Z";
    let before = snapshot_of(&[
        named("deleted", json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 7})),
        named("gone", json!({})),
        named("web", json!({})),
    ]);
    let as_it_was = PodEnd::default();
    let left_out = BTreeMap::from([("deleted", as_it_was), ("web", as_it_was)]);
    let after = bound_pods(std::iter::empty(), &before, &left_out);
    let names: Vec<&str> = after.pods.iter().map(|pod| &*pod.key.name).collect();
    assert_eq!((names, &after.ends), (vec!["deleted", "web"], &before.ends));
    assert!(
        after.unconfirmed.is_empty()
            && wants_the_same(&after, &bound_pods(std::iter::empty(), &after, &left_out))
    );
    // Of a pod that only the records have, what runs is kept.
    let recorded = recorded_pods(before.pods.clone());
    let after = bound_pods(std::iter::empty(), &recorded, &left_out);
    assert_eq!((after.pods.len(), after.unconfirmed.len()), (2, 2));
    // It ends when it is deleted, or when somebody has ended it.
    let deleted = PodEnd { deleted: Some(5), phase: None };
    let failed = PodEnd { deleted: None, phase: Some(TerminalPhase::Failed) };
    for told in [deleted, failed] {
        let left_out = BTreeMap::from([("web", told)]);
        let after = bound_pods(std::iter::empty(), &recorded, &left_out);
        assert_eq!(after.ends.into_values().collect::<Vec<_>>(), [told]);
    }
}

#[test]
fn of_ended_pods_that_are_left_out_the_newest_stay() {
    let pods: Vec<SeenPod> = (0..210)
        .map(|n| {
            let mut object = object();
            object["metadata"]["name"] = json!(format!("job-{n}"));
            object["metadata"]["uid"] = json!(format!("u{n}"));
            let (minute, second) = (n / 60, n % 60);
            let created = format!("2026-01-01T00:{minute:02}:{second:02}Z");
            object["metadata"]["creationTimestamp"] = json!(created);
            read(&object)
        })
        .collect();
    let before = snapshot_of(&pods);
    let left_as = |end: PodEnd| {
        let uids: Vec<_> = (0..210).map(|n| format!("u{n}")).collect();
        let left_out = uids.iter().map(|uid| (uid.as_str(), end)).collect();
        let after = bound_pods(std::iter::empty(), &before, &left_out);
        after.pods.iter().map(|pod| pod.key.name.to_string()).collect::<Vec<_>>()
    };
    let ended = PodEnd { deleted: None, phase: Some(TerminalPhase::Succeeded) };
    let kept = left_as(ended);
    assert_eq!(kept.len(), 200);
    let oldest = (0..10).map(|n| format!("job-{n}"));
    assert!(oldest.clone().all(|name| !kept.contains(&name)), "{kept:?}");
    // Whatever else may be left out stays.
    assert_eq!(left_as(PodEnd::default()).len(), 210);
    assert_eq!(left_as(PodEnd { deleted: Some(5), ..ended }).len(), 210);
}

#[test]
fn pods_of_records_are_kept_and_annotated_ones_run() {
    let pod = |name: &str, annotation: Option<&str>| {
        let mut object = object();
        object["metadata"]["name"] = json!(name);
        if let Some(text) = annotation {
            object["metadata"]["annotations"][RUN_FROM_CHECKPOINT] = json!(text);
        }
        read(&object).desired.unwrap()
    };
    let pods = vec![pod("plain", None), pod("runs", Some("true")), pod("no", Some("false"))];
    let snapshot = recorded_pods(pods);
    assert_eq!((snapshot.pods.len(), snapshot.knowledge), (3, Knowledge::Checkpoint));
    let kept: Vec<&str> = snapshot.unconfirmed.iter().map(|key| &*key.name).collect();
    assert_eq!(kept, ["no", "plain"]);
}
