//! A recorded request as a flat table: path of a field, its value as text.
//!
//! The bytes are read by the protocol's own definition and not through the product's types: a field
//! that a peer sends and `proto/` does not know shows up as `unknown field N` instead of getting
//! lost.

use crate::support::proxy::Call;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use std::{collections::BTreeMap, sync::LazyLock};

/// Field paths and values, `config.labels[app]` = `web`.
pub type Fields = BTreeMap<String, String>;

/// Texts that differ between two runs although they mean the same, and what stands for them. Longer
/// ones first.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<(String, String)>);

impl Names {
    /// `text` is written as `<name>`.
    pub fn call(&mut self, text: &str, name: &str) {
        if !text.is_empty() && !self.0.iter().any(|(known, _)| known == text) {
            self.0.push((text.to_owned(), format!("<{name}>")));
            self.0.sort_by_key(|(known, _)| std::cmp::Reverse(known.len()));
        }
    }

    fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (known, name) in &self.0 {
            text = text.replace(known, name);
        }
        without_random_file_name(&text)
    }
}

/// The kubelet gives termination log files a random name in the container's directory.
fn without_random_file_name(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((dir, file))
            if dir.contains("/containers/")
                && file.len() == 8
                && file.bytes().all(|b| b.is_ascii_hexdigit()) =>
        {
            format!("{dir}/<random>")
        }
        _ => path.to_owned(),
    }
}

/// The fields of a recorded request.
pub fn fields(call: &Call, names: &Names) -> Fields {
    let message = decode(call);
    let mut fields = Fields::new();
    flatten(&message, "", &mut fields);
    fields.into_iter().map(|(path, value)| (names.apply(&path), names.apply(&value))).collect()
}

fn decode(call: &Call) -> DynamicMessage {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let set = protox::compile(["cri_runtime_v1.proto"], [dir]).unwrap();
        DescriptorPool::from_file_descriptor_set(set).unwrap()
    });
    let name = format!("runtime.v1.{}Request", call.method);
    let kind = POOL.get_message_by_name(&name).unwrap_or_else(|| panic!("no message {name}"));
    DynamicMessage::decode(kind, call.request.as_slice()).unwrap()
}

fn flatten(message: &DynamicMessage, path: &str, fields: &mut Fields) {
    for (field, value) in message.fields() {
        let path = match path {
            "" => field.name().to_owned(),
            path => format!("{path}.{}", field.name()),
        };
        flatten_value(value, &path, fields);
    }
    for unknown in message.unknown_fields() {
        let path = format!("{path}.unknown field {}", unknown.number());
        fields.insert(path, "set".to_owned());
    }
}

fn flatten_value(value: &Value, path: &str, fields: &mut Fields) {
    let text = match value {
        Value::Message(message) => return flatten(message, path, fields),
        Value::List(items) => return flatten_list(items, path, fields),
        Value::Map(entries) => {
            for (key, value) in entries {
                let text = key.as_str().map(str::to_owned);
                let key = text.unwrap_or_else(|| format!("{key:?}"));
                flatten_value(value, &format!("{path}[{key}]"), fields);
            }
            return;
        }
        Value::String(text) => text.clone(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Bool(value) => value.to_string(),
        Value::I32(value) | Value::EnumNumber(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
    };
    fields.insert(path.to_owned(), text);
}

/// Items that have a key of their own are told by it, and their order by a line of its own: one
/// mount more then is one difference and not many. The resolver's options are a set: the kubelet's
/// come out of a map, in another order every time.
fn flatten_list(items: &[Value], path: &str, fields: &mut Fields) {
    if path.ends_with("dns_config.options") {
        let options = items.iter().filter_map(Value::as_str);
        fields.extend(options.map(|option| (format!("{path}[{option}]"), "set".to_owned())));
        return;
    }
    let mut order = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let key = key_of(item);
        let place = key.clone().unwrap_or_else(|| index.to_string());
        flatten_value(item, &format!("{path}[{place}]"), fields);
        order.extend(key);
    }
    if !order.is_empty() {
        fields.insert(format!("{path} in order"), order.join(" "));
    }
}

fn key_of(item: &Value) -> Option<String> {
    let message = item.as_message()?;
    let by = |name: &str| Some(message.get_field_by_name(name)?.as_str()?.to_owned());
    by("container_path").or_else(|| by("key"))
}
