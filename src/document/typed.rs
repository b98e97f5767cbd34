//! What of a tree fits a table of fields, as JSON for serde.

use super::{
    node::{Node, Value},
    schema::{Field, Support, Type},
    walk::scalar,
};
use serde_json::Value as Json;

/// The parts of `root` that fit the table, as JSON that serde reads into the Kubernetes types:
/// nulls and what is unknown, unsupported or ill-typed left out, quantities always text.
#[must_use]
pub fn typed(root: &Node, fields: &'static [Field]) -> Json {
    let mut map = serde_json::Map::new();
    for field in fields.iter().filter(|f| f.support != Support::No) {
        if let Some(value) = root.get(field.name).and_then(|node| typed_value(node, &field.ty)) {
            map.insert(field.name.to_owned(), value);
        }
    }
    map.into()
}

fn typed_value(node: &Node, ty: &'static Type) -> Option<Json> {
    match (ty, &node.value) {
        (_, Value::Null) => None,
        (Type::Object(fields), Value::Map(_)) => Some(typed(node, fields)),
        (Type::List(item), Value::List(items)) => Some(
            // An item that does not fit leaves a gap, so that the others keep their index.
            items
                .iter()
                .map(|node| typed_value(node, item).unwrap_or_else(|| empty(item)))
                .collect(),
        ),
        (Type::Map(item), Value::Map(entries)) => {
            let mut map = serde_json::Map::new();
            for entry in entries {
                if !map.contains_key(&entry.key) {
                    let value = typed_value(&entry.value, item).unwrap_or_else(|| empty(item));
                    map.insert(entry.key.clone(), value);
                }
            }
            Some(map.into())
        }
        (Type::Any, _) => Some(node.to_json()),
        (Type::Object(_) | Type::List(_) | Type::Map(_), _) => None,
        (Type::Quantity, Value::Number(n)) if scalar(node, ty).is_ok() => {
            Some(n.to_string().into())
        }
        (_, _) => scalar(node, ty).is_ok().then(|| node.to_json()),
    }
}

/// What stands for nothing in a list or mapping of this type, as in Go.
fn empty(ty: &Type) -> Json {
    match ty {
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::Float | Type::IntOrString => 0.into(),
        Type::Quantity => "0".into(),
        Type::Duration => "0s".into(),
        Type::String => "".into(),
        Type::Time => "1970-01-01T00:00:00Z".into(),
        Type::List(_) => Json::Array(Vec::new()),
        Type::Map(_) | Type::Object(_) => Json::Object(serde_json::Map::new()),
        Type::Any => Json::Null,
    }
}
