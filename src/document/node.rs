//! The tree.

use crate::model::Position;

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Which one, from 0; empty documents are not counted.
    pub index: usize,
    /// Line at which its content begins, from 1.
    pub line: usize,
    /// Its content, never null.
    pub root: Node,
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it begins; unknown (0) for a node made from JSON that was read back.
    pub position: Position,
    pub value: Value,
}

/// What a node holds: JSON's types, with the order and the places of keys kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// A plain `true`, `yes`, `on`, ... or its opposite.
    Bool(bool),
    /// A plain number. A whole number is always held as an integer, however it was written.
    Number(serde_json::Number),
    /// Anything else, and everything in quotes.
    String(String),
    List(Vec<Node>),
    /// A mapping, in the order written. A key that is written twice is here twice: [`super::walk`]
    /// reports it, [`Node::get`] gives the first.
    Map(Vec<Entry>),
}

/// One key of a mapping with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    /// Where the key is written.
    pub key_position: Position,
    pub value: Node,
}

impl Node {
    /// The value of `key`; `None` when this is not a mapping or has no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|e| e.key == key).map(|e| &e.value)
    }

    /// The entries of a mapping, nothing for anything else.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::List(_) => {
                &[]
            }
        }
    }

    /// The items of a list, nothing for anything else.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Map(_) => {
                &[]
            }
        }
    }

    /// The text of a string, `None` for anything else.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => {
                None
            }
        }
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// The same content as JSON. Of a key written twice the first counts.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => n.clone().into(),
            Value::String(s) => s.clone().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                let mut map = serde_json::Map::new();
                for entry in entries {
                    if !map.contains_key(&entry.key) {
                        map.insert(entry.key.clone(), entry.value.to_json());
                    }
                }
                map.into()
            }
        }
    }

    /// A tree without places, from JSON that was made by [`Node::to_json`] before.
    #[must_use]
    pub fn from_json(json: &serde_json::Value) -> Self {
        let value = match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(b) => Value::Bool(*b),
            serde_json::Value::Number(n) => Value::Number(n.clone()),
            serde_json::Value::String(s) => Value::String(s.clone()),
            serde_json::Value::Array(items) => {
                Value::List(items.iter().map(Self::from_json).collect())
            }
            serde_json::Value::Object(map) => Value::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: key.clone(),
                        key_position: Position::default(),
                        value: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self { position: Position::default(), value }
    }

    /// The node at a path in the API's style (`spec.containers[1].image`, `limits[cpu]`), or the
    /// deepest one that exists on the way there.
    #[must_use]
    pub fn nearest_to(&self, path: &str) -> &Self {
        let mut node = self;
        for step in steps(path) {
            let next = match step.parse::<usize>() {
                Ok(index) if matches!(node.value, Value::List(_)) => node.items().get(index),
                Ok(_) | Err(_) => node.get(step),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node
    }
}

/// The names and indices of a path; a name in brackets may contain dots.
fn steps(path: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some((step, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            steps.push(step);
            rest = after;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (step, after) = name.split_at(end);
            if step.is_empty() {
                break;
            }
            steps.push(step);
            rest = after;
        }
    }
    steps
}
