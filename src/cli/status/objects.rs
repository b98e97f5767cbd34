//! The same as Kubernetes objects, for programs.

use super::StatusError;
use crate::{
    model::{CollectOrdered as _, NodeView, PodView, to_json_value},
    serve::{StatusDocument, pod_object},
};
use serde_json::{Map, Value, json};
use serde_saphyr::SerializerOptions;

/// `v1` `PodList`. What has no place in Kubernetes' own types stands beside the items, under
/// `nodelet`: a `NodeStatus` of nodelet.dev/v1alpha1 with the node, manifests and events.
pub(super) fn list(
    document: &StatusDocument,
    pods: &[&PodView],
) -> Result<Value, serde_json::Error> {
    let items = pods.iter().copied().map(pod).collect::<Result<Vec<Value>, _>>()?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PodList",
        "metadata": {},
        "items": items,
        "nodelet": node_status(&document.node, document)?,
    }))
}

/// `v1` `Pod`.
pub(super) fn pod(view: &PodView) -> Result<Value, serde_json::Error> {
    to_json_value(&pod_object(view))
}

/// YAML with one line per value: folded text can't be searched with grep.
pub(super) fn yaml(object: &Value) -> Result<String, StatusError> {
    let mut options = SerializerOptions::default();
    options.folded_wrap_chars = usize::MAX;
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, object, options)?;
    Ok(text)
}

fn node_status(node: &NodeView, document: &StatusDocument) -> Result<Value, serde_json::Error> {
    let mut status: Map<String, Value> = serde_json::from_value(camel_case(to_json_value(node)?))?;
    status.remove("name");
    status.insert("apiVersion".to_owned(), "nodelet.dev/v1alpha1".into());
    status.insert("kind".to_owned(), "NodeStatus".into());
    status.insert("metadata".to_owned(), json!({ "name": node.name }));
    status.insert("events".to_owned(), to_json_value(&document.events)?);
    status.insert("eventsDropped".to_owned(), document.events_dropped.into());
    Ok(Value::Object(status))
}

/// Field names in Kubernetes' style. Only for documents whose keys are all field names.
fn camel_case(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| (camel_name(&key), camel_case(value)))
                .collect_ordered(),
        ),
        Value::Array(items) => items.into_iter().map(camel_case).collect(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

fn camel_name(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}
