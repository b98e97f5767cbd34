//! The identity of a pod: two hashes of its manifest.
//!
//! - The **uid** says when a pod must be replaced. It is made of the parsed document and the node's
//!   name: comments, white space, the order of keys, quotes, the file's path and our defaults are
//!   not in it, nor are amounts of cpu and memory, which are changed in place, only the QoS class
//!   that follows from them, nor the annotations that say how the pod is updated and which pods it
//!   starts after.
//! - The **revision** is made of everything written, and changes with every edit that means
//!   something.
//!
//! Invariant: these hashes must not change between releases, or an upgrade would replace every pod.
//! The golden vectors in the tests hold them.

use crate::{
    model::{
        AFTER, MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, PodUid, ROLLBACK, k8s, short_digest,
    },
    podspec::qos_class,
};
use serde_json::{Map, Value, json};

/// Annotations whose change replaces no pod.
const POLICY: [&str; 4] = [ROLLBACK, MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, AFTER];

/// The uid of a pod that does not bring its own. `pod` is the same pod decoded and defaulted.
pub(super) fn uid(as_written: &Value, pod: &k8s::Pod, node_name: &str) -> PodUid {
    let mut document = as_written.clone();
    without_policy(&mut document);
    if let Some(spec) = document.get_mut("spec") {
        without_amounts(spec);
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(without_amounts);
        }
    }
    let class = pod.spec.as_ref().map_or("BestEffort", |spec| qos_class(spec).as_str());
    let identity = json!({ "document": document, "node": node_name, "qosClass": class });
    PodUid::from(hash(&identity))
}

/// The revision of a document.
pub(super) fn revision(as_written: &Value) -> Box<str> {
    hash(as_written).into_boxed_str()
}

/// Removes the annotations that only say how the pod is updated and which pods it starts after.
/// Without them, an object of annotations that is empty has no meaning.
fn without_policy(document: &mut Value) {
    let metadata = document.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return };
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    let Some(annotations) = annotations else { return };
    let before = annotations.len();
    annotations.retain(|name, _| !POLICY.contains(&name.as_str()));
    if annotations.is_empty() && before > 0 {
        metadata.remove("annotations");
    }
}

/// Removes cpu and memory from the `resources` of a container or of the pod, and then empty
/// objects. The QoS class, which `resources: {}` of a pod decides, is in the identity by itself.
fn without_amounts(owner: &mut Value) {
    let Some(owner) = owner.as_object_mut() else { return };
    let Some(resources) = owner.get_mut("resources").and_then(Value::as_object_mut) else {
        owner.retain(|key, value| key != "resources" || !value.is_null());
        return;
    };
    for list in ["limits", "requests"] {
        if let Some(amounts) = resources.get_mut(list).and_then(Value::as_object_mut) {
            amounts.retain(|name, _| name != "cpu" && name != "memory");
        }
    }
    resources
        .retain(|_, value| !value.is_null() && value.as_object().is_none_or(|m| !m.is_empty()));
    if resources.is_empty() {
        owner.remove("resources");
    }
}

/// The first 128 bits of the SHA-256 of the canonical form, as 32 lowercase hex digits.
fn hash(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    short_digest(text.as_bytes())
}

/// JSON without white space, keys sorted by their bytes, keys that are null left out (null means
/// "not set"). Written here and not by `serde_json`, whose order of keys depends on its features.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string());
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => canonical_map(map, out),
    }
}

fn canonical_map(map: &Map<String, Value>, out: &mut String) {
    let mut entries: Vec<(&String, &Value)> = map.iter().filter(|(_, v)| !v.is_null()).collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&Value::from(key.as_str()).to_string());
        out.push(':');
        canonical(value, out);
    }
    out.push('}');
}
