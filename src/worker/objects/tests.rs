#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::model::{ObjectKind, Origin};
use serde_json::json;

/// A pod that needs ConfigMap `a`, and reads `b` if it is there.
fn pod() -> k8s::Pod {
    let source =
        |name: &str, optional: bool| json!({"configMapRef": {"name": name, "optional": optional}});
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
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
