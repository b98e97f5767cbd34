#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::model::{ApiObjects, ClusterServices, ObjectKind, Origin};
use serde_json::json;

/// A pod that needs ConfigMap `a`, and reads `b` if it is there.
fn pod() -> k8s::Pod {
    let source =
        |name: &str, optional: bool| json!({"configMapRef": {"name": name, "optional": optional}});
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default",
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"containers": [{"name": "main", "envFrom": [source("a", false), source("b", true)]}]},
    }))
    .unwrap()
}

/// What the pod reads of `a=1 b=2`, which are written at this line.
fn read(text: &str, line: usize) -> ObjectsRead {
    let object = |(name, value): (&str, &str)| {
        let object = DataObject::sample(ObjectKind::ConfigMap, name, &[("k", value)]);
        DataObject { origin: Origin { line, ..object.origin }, ..object }
    };
    let objects = text.split_whitespace().map(|one| object(one.split_once('=').unwrap()));
    ObjectsRead::of(&pod(), &objects.collect())
}

#[test]
fn only_other_data_are_a_change() {
    for (before, now, outdated) in [
        ("a=1 b=1", "a=1 b=1", false),
        ("a=1 b=1", "a=2 b=1", true),
        ("a=1 b=1", "a=1 b=2", true),
        ("a=1 b=1", "a=1", false),
        ("a=1 b=1", "", false),
        ("a=1", "a=1 b=1", true),
        ("b=1", "a=1 b=1", false),
        ("a=1 b=1", "a=1 b=1 other=1", false),
    ] {
        let (mut before_, now_) = (read(before, 1), read(now, 7));
        assert_eq!(before_.is_outdated_by(&now_), outdated, "{before} -> {now}");
    }
}

#[test]
fn what_was_not_known_is_taken_as_it_is_found() {
    let mut before = read("b=1", 1);
    assert!(!before.is_outdated_by(&read("a=1 b=1", 1)));
    assert!(!before.is_outdated_by(&read("b=1", 1)));
    assert!(before.is_outdated_by(&read("a=2 b=1", 1)));
}

#[test]
fn volumes_follow_the_data_and_not_their_place() {
    assert!(read("a=1", 1).has_same_data(&read("a=1", 9)));
    assert!(!read("a=1", 1).has_same_data(&read("a=2", 1)));
    assert!(!read("a=1", 1).has_same_data(&read("", 1)));
}

#[test]
fn a_new_token_changes_volumes_and_outdates_no_container() {
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": "t", "mountPath": "/t"}]}],
            "volumes": [{"name": "t", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}},
            ]}}],
        },
    }))
    .unwrap();
    let with = |answer: TokenAnswer, services: Option<Arc<ClusterServices>>| {
        let tokens = token_keys(&pod).into_iter().map(|key| (key, answer.clone())).collect();
        let api = ApiObjects { tokens, services, ..ApiObjects::default() };
        let objects = NodeObjects { api: Arc::new(api), ..NodeObjects::default() };
        ObjectsRead::of(&pod, &objects)
    };
    let issued = |text: &str| TokenAnswer::Issued(ServiceAccountToken::new(text));
    let (mut one, two) = (with(issued("one"), None), with(issued("two"), None));
    assert!(!one.is_empty(), "the volume is written again by the worker");
    assert!(!one.has_same_data(&two));
    assert!(!one.is_outdated_by(&two));
    assert!(
        one.has_same_data(&with(issued("one"), Some(Arc::default()))),
        "Services are in no volume"
    );
    let refused = |why: &str| with(TokenAnswer::Refused(why.into()), None);
    assert!(refused("a").has_same_data(&refused("b")), "there is no token either way");
}

#[test]
fn a_new_label_changes_volumes_and_outdates_no_container() {
    let item = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let with = |label: &str| {
        let pod: k8s::Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "labels": {"a": label}},
            "spec": {
                "containers": [{"name": "main"}],
                "volumes": [{"name": "v", "downwardAPI": {"items": [item]}}],
            },
        }))
        .unwrap();
        ObjectsRead::of(&pod, &NodeObjects::default())
    };
    let (mut one, two) = (with("one"), with("two"));
    assert!(!one.is_empty(), "the volume is also written during the start of a container");
    assert!(one.has_same_data(&with("one")));
    assert!(!one.has_same_data(&two));
    assert!(!one.is_outdated_by(&two));
}
