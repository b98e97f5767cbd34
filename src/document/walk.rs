//! A tree against a table of fields: everything that is wrong with it, each with its place.

use super::{
    node::{Entry, Node, Value},
    schema::{Field, Support, Type},
};
use crate::model::{Position, Problem, Quantity, parse_duration};
use jiff::Timestamp;
use serde_json::Value as Json;
use std::collections::{HashMap, hash_map};

/// The walk stops after this number of findings, because a hostile text could produce millions.
const MAX_FINDINGS: usize = 100;
/// How much of a wrong value is repeated in a message, in characters.
const MAX_SHOWN: usize = 60;
/// How much of a key is repeated in a path; the longest that Kubernetes allows has 317.
const MAX_KEY: usize = 320;

/// Something to say about a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, which field, and what.
    pub problem: Problem,
    pub kind: FindingKind,
    /// The path of the field that an unknown one is probably a misspelling of.
    pub meant: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// No such field in the table.
    Unknown,
    /// The field exists and holds something else.
    WrongType,
    /// [`Support::No`], and it is set.
    Unsupported,
    /// [`Support::Ignored`], and it is set.
    Ignored,
    /// The key was written before in the same mapping.
    Duplicate,
}

/// Everything that is wrong with `root` by a table of fields, in the order written; at most 100
/// findings. `path` is put before every field's path (empty for a whole document). A field that is
/// null, or a list or free mapping that is empty, counts as not set.
#[must_use]
pub fn walk(root: &Node, fields: &'static [Field], path: &str) -> Vec<Finding> {
    let mut walker = Walker { findings: Vec::new(), mute_ignored: false };
    walker.object(root, fields, path);
    walker.findings
}

/// The candidate that `name` is most likely a misspelling of, if any is near enough.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name: Vec<char> = name.chars().take(MAX_SHOWN).flat_map(char::to_lowercase).collect();
    let limit = (name.len() / 3).max(1);
    candidates
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance ignoring case, two swapped neighbours counting as one edit.
fn distance(a: &[char], candidate: &str) -> usize {
    let b: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut best = (last[j] + 1).min(row[j - 1] + 1);
            best = best.min(last[j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

struct Walker {
    findings: Vec<Finding>,
    /// Set below a field that is ignored as a whole: its parts need no mention of their own.
    mute_ignored: bool,
}

impl Walker {
    fn full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS
    }

    fn find(&mut self, kind: FindingKind, position: Position, path: &str, message: String) {
        if !self.full() {
            let problem = Problem { position, path: path.to_owned(), message };
            self.findings.push(Finding { problem, kind, meant: None });
        }
    }

    fn object(&mut self, node: &Node, fields: &'static [Field], outer: &str) {
        let Value::Map(entries) = &node.value else {
            self.wrong(node, outer, "must be an object");
            return;
        };
        self.each_once(entries, &|key| join(outer, key), |walker, entry, path| {
            match fields.iter().find(|f| f.name == entry.key) {
                Some(field) => walker.field(entry, field, path),
                None => {
                    let meant = nearest(&entry.key, fields.iter().map(|f| f.name));
                    let message = match meant {
                        Some(name) => format!("unknown field, did you mean {name:?}?"),
                        None => "unknown field".to_owned(),
                    };
                    let (position, path) = (entry.key_position, path.to_owned());
                    let problem = Problem { position, path, message };
                    let meant = meant.map(|name| join(outer, name));
                    walker.findings.push(Finding { problem, kind: FindingKind::Unknown, meant });
                }
            }
        });
    }

    fn field(&mut self, entry: &Entry, field: &'static Field, path: &str) {
        if !is_set(&entry.value, field) {
            return;
        }
        match field.support {
            Support::Yes | Support::Differs => self.value(&entry.value, &field.ty, path),
            Support::No => {
                let message = format!("Unsupported: {}", field.note);
                self.find(FindingKind::Unsupported, entry.key_position, path, message);
            }
            Support::Ignored => {
                if !self.mute_ignored {
                    let message = format!("ignored: {}", field.note);
                    self.find(FindingKind::Ignored, entry.key_position, path, message);
                }
                let muted = std::mem::replace(&mut self.mute_ignored, true);
                self.value(&entry.value, &field.ty, path);
                self.mute_ignored = muted;
            }
        }
    }

    /// Runs `visit` for the first entry of each key, with its path, and reports the others.
    fn each_once(
        &mut self,
        entries: &[Entry],
        path_of: &dyn Fn(&str) -> String,
        mut visit: impl FnMut(&mut Self, &Entry, &str),
    ) {
        let mut seen: HashMap<&str, Position> = HashMap::with_capacity(entries.len());
        for entry in entries {
            if self.full() {
                return;
            }
            let path = path_of(&entry.key);
            match seen.entry(&entry.key) {
                hash_map::Entry::Occupied(first) => {
                    let hint = match &*path {
                        // Two documents that are read as one.
                        "kind" => ": a line \"---\" goes between two documents",
                        _ => "",
                    };
                    let message = format!(
                        "Duplicate value: {}: this key was written before, at line {}{hint}",
                        show(&Json::from(entry.key.clone())),
                        first.get().line
                    );
                    self.find(FindingKind::Duplicate, entry.key_position, &path, message);
                }
                hash_map::Entry::Vacant(slot) => {
                    slot.insert(entry.key_position);
                    visit(self, entry, &path);
                }
            }
        }
    }

    fn value(&mut self, node: &Node, ty: &'static Type, path: &str) {
        match ty {
            Type::Object(fields) => self.object(node, fields, path),
            Type::List(item) => match &node.value {
                Value::List(items) => {
                    for (index, value) in items.iter().enumerate() {
                        if self.full() {
                            return;
                        }
                        self.value(value, item, &format!("{path}[{index}]"));
                    }
                }
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Map(_) => self.wrong(node, path, "must be a list"),
            },
            Type::Map(item) => match &node.value {
                Value::Map(entries) => {
                    self.each_once(entries, &|key| subscript(path, key), |walker, entry, path| {
                        if !entry.value.is_null() {
                            walker.value(&entry.value, item, path);
                        }
                    });
                }
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::List(_) => self.wrong(node, path, "must be a mapping"),
            },
            Type::Any => self.any(node, path),
            Type::Bool
            | Type::String
            | Type::Int32
            | Type::Int64
            | Type::Float
            | Type::IntOrString
            | Type::Quantity
            | Type::Duration
            | Type::Time => {
                if let Err(expected) = scalar(node, ty) {
                    self.wrong(node, path, expected);
                }
            }
        }
    }

    /// Of free content only duplicate keys can be wrong.
    fn any(&mut self, node: &Node, path: &str) {
        match &node.value {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.any(item, &format!("{path}[{index}]"));
                }
            }
            Value::Map(entries) => {
                self.each_once(entries, &|key| join(path, key), |walker, entry, path| {
                    walker.any(&entry.value, path);
                });
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn wrong(&mut self, node: &Node, path: &str, expected: &str) {
        let hint = match &node.value {
            Value::Number(_) if expected == IS_TEXT => {
                "; YAML reads this as a number, put it in quotes"
            }
            Value::Bool(_) if expected == IS_TEXT => {
                "; YAML reads this as a bool, put it in quotes"
            }
            Value::String(text) if expected == IS_BOOL && matches!(&**text, "true" | "false") => {
                "; remove the quotes"
            }
            Value::String(text)
                if (expected == IS_WHOLE || expected == IS_NUMBER)
                    && text.parse::<i64>().is_ok() =>
            {
                "; remove the quotes"
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::List(_)
            | Value::Map(_) => "",
        };
        let shown = match &node.value {
            Value::Null => "null".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => show(&node.to_json()),
        };
        let message = format!("Invalid value: {shown}: {expected}{hint}");
        self.find(FindingKind::WrongType, node.position, path, message);
    }
}

const IS_TEXT: &str = "must be text";
const IS_BOOL: &str = "must be true or false";
const IS_WHOLE: &str = "must be a whole number";
const IS_NUMBER: &str = "must be a number";
const IS_QUANTITY: &str =
    "must be a quantity: a number, with a suffix like m, k, Mi or Gi where needed";
const IS_DURATION: &str = "must be a duration with units, like 90s, 1m30s or 100ms";
const IS_TIME: &str = "must be a time like 2026-01-31T12:00:00Z";

/// Whether a field is set at all: null, an empty list and an empty free mapping mean that it isn't.
/// So does an empty text where no text is supported.
fn is_set(node: &Node, Field { ty, support, .. }: &Field) -> bool {
    match (&node.value, ty) {
        (Value::Null, _) => false,
        (Value::List(items), Type::List(_)) => !items.is_empty(),
        (Value::Map(entries), Type::Map(_)) => !entries.is_empty(),
        (Value::String(text), Type::String) if *support == Support::No => !text.is_empty(),
        (_, _) => true,
    }
}

/// Checks a scalar; `Err` says what was expected.
pub(super) fn scalar(node: &Node, ty: &Type) -> Result<(), &'static str> {
    let (fits, expected) = match (&node.value, ty) {
        (Value::Bool(_), Type::Bool)
        | (Value::String(_), Type::String | Type::IntOrString)
        | (Value::Number(_), Type::Float) => (true, ""),
        (Value::Number(n), Type::Int32 | Type::IntOrString) if n.is_i64() || n.is_u64() => {
            let fits = n.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
            (fits, "must be a whole number between -2147483648 and 2147483647")
        }
        (Value::Number(n), Type::Int64) => (n.is_i64(), IS_WHOLE),
        (Value::Number(n), Type::Quantity) => {
            (Quantity::parse(&n.to_string()).is_ok(), IS_QUANTITY)
        }
        (Value::String(s), Type::Quantity) => (Quantity::parse(s).is_ok(), IS_QUANTITY),
        (Value::String(s), Type::Duration) => (parse_duration(s).is_some(), IS_DURATION),
        (Value::String(s), Type::Time) => (s.parse::<Timestamp>().is_ok(), IS_TIME),
        (_, Type::Bool) => (false, IS_BOOL),
        (_, Type::String) => (false, IS_TEXT),
        (_, Type::Int32 | Type::Int64) => (false, IS_WHOLE),
        (_, Type::Float) => (false, IS_NUMBER),
        (_, Type::IntOrString) => (false, "must be a whole number or text"),
        (_, Type::Quantity) => (false, IS_QUANTITY),
        (_, Type::Duration) => (false, IS_DURATION),
        (_, Type::Time) => (false, IS_TIME),
        (_, Type::List(_) | Type::Map(_) | Type::Object(_) | Type::Any) => (true, ""),
    };
    if fits { Ok(()) } else { Err(expected) }
}

/// A value as it is repeated in a message: JSON, cut where it is long.
pub(crate) fn show(json: &Json) -> String {
    let text = json.to_string();
    if text.chars().count() <= MAX_SHOWN {
        return text;
    }
    text.chars().take(MAX_SHOWN).collect::<String>() + "..."
}

fn join(path: &str, name: &str) -> String {
    let name = cut(name, MAX_SHOWN);
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The path of an entry of a free mapping.
fn subscript(path: &str, key: &str) -> String {
    format!("{path}[{}]", cut(key, MAX_KEY))
}

/// A very long unknown key is shortened in the message.
pub(crate) fn cut(name: &str, limit: usize) -> &str {
    name.char_indices().nth(limit).map_or(name, |(end, _)| &name[..end])
}
