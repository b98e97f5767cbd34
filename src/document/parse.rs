//! Bytes to trees.
//!
//! Built on the events of granit-parser (the parser under serde-saphyr), because what a scalar
//! means depends on how it was written, and serde's view of a document has lost that. Everything
//! that a hostile text can make large is bounded: its size, its depth, the number of nodes, and
//! what aliases and merge keys multiply.

use super::{
    node::{Document, Entry, Node, Value},
    scalar,
};
use crate::model::{Position, Problem};
use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Tag, options};
use std::collections::HashMap;

/// Largest text that is read, in bytes. The kubelet takes 10 MiB; a tree of that size would take
/// several times the memory that the whole agent may use.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// Deepest nesting; a pod needs 12.
const MAX_DEPTH: usize = 64;
/// Most nodes in one text, aliases expanded. A large pod has a thousand, a usual one a hundred.
/// Each node takes up to a kilobyte while a manifest is decoded.
const MAX_NODES: usize = 50_000;
/// Longest message, in characters.
const MAX_MESSAGE: usize = 300;
/// Most bytes of text that aliases may add.
const MAX_ALIAS_BYTES: usize = MAX_TEXT_BYTES;

/// Names how texts are read here. A new name is due with each change after which a text that is
/// accepted means something else: what was read before is not taken for what it says now.
pub const READING: &str = "1";

/// Reads every document of a text; empty ones are left out.
///
/// # Errors
/// When the text as a whole can't be read: not UTF-8, too large, too deep, bad syntax, an alias
/// without an anchor. A key that is written twice is not among them: [`super::walk`] reports it.
pub fn parse(text: &[u8]) -> Result<Vec<Document>, Problem> {
    let text = readable(text)?;
    let options = options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        emit_comments: false,
    };
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|e| syntax_error(&e))?;
        builder.take(event, position(&span.start))?;
    }
    Ok(builder.documents)
}

/// The parser's own words, except where a person could make nothing of them.
fn syntax_error(error: &ScanError) -> Problem {
    let at = position(error.marker());
    if *error.kind() == ErrorKind::RecursionLimitExceeded {
        return too_deep(at);
    }
    let reason = if *error.kind() == ErrorKind::ExpectedDocumentStart {
        "this does not belong to what is above; check the indentation".to_owned()
    } else {
        error.info()
    };
    problem(at, format!("does not parse: {reason}"))
}

fn too_deep(at: Position) -> Problem {
    problem(at, format!("is nested more than {MAX_DEPTH} deep"))
}

/// The text of the bytes, checked for what no YAML or JSON text contains.
fn readable(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MAX_TEXT_BYTES {
        let message = format!("is larger than {} MiB", MAX_TEXT_BYTES >> 20);
        return Err(problem(Position::default(), message));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let good = std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default();
        let message = format!("is not UTF-8 text (byte 0x{:02x})", bytes[e.valid_up_to()]);
        problem(end_of(good), message)
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A NUL ends the text for many parsers: what follows would be dropped silently. Files that were
    // being written when the power failed are full of them.
    let unprintable = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    if let Some((at, c)) = text.char_indices().find(|(_, c)| unprintable(*c)) {
        let message = format!("control character U+{:04X} is not allowed", u32::from(c));
        return Err(problem(end_of(&text[..at]), message));
    }
    Ok(text)
}

/// The place right after `text`.
fn end_of(text: &str) -> Position {
    let last_line = text.rsplit('\n').next().unwrap_or_default();
    Position {
        line: text.bytes().filter(|b| *b == b'\n').count() + 1,
        column: last_line.chars().count() + 1,
    }
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

/// A problem with the text itself; what the message repeats of the text is cut.
fn problem(position: Position, message: impl Into<String>) -> Problem {
    let mut message: String = message.into();
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push_str("...");
    }
    Problem { position, path: String::new(), message }
}

/// A collection that is not finished yet.
struct Frame {
    position: Position,
    anchor: usize,
    kind: FrameKind,
}

enum FrameKind {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, merges: Vec<Node>, key: Option<Key> },
}

/// A key that waits for its value.
enum Key {
    Name(String, Position),
    Merge,
}

#[derive(Default)]
struct Builder {
    documents: Vec<Document>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    alias_bytes: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Position) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_merge = text == "<<" && style == ScalarStyle::Plain && tag.is_none();
                if is_merge && self.begin_merge() {
                    return Ok(());
                }
                let value = scalar_value(&text, style, tag.as_deref(), at)?;
                self.finish(Node { position: at, value }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                collection_tag(tag.as_deref(), "seq", at)?;
                self.begin(at, anchor, FrameKind::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                collection_tag(tag.as_deref(), "map", at)?;
                let kind = FrameKind::Map { entries: Vec::new(), merges: Vec::new(), key: None };
                self.begin(at, anchor, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(frame) = self.stack.pop() else { return Ok(()) };
                let value = match frame.kind {
                    FrameKind::List(items) => Value::List(items),
                    FrameKind::Map { entries, merges, .. } => {
                        Value::Map(self.merged(entries, merges)?)
                    }
                };
                self.finish(Node { position: frame.position, value }, frame.anchor)
            }
            Event::Alias(id) => {
                let Some(target) = self.anchors.get(&id) else {
                    return Err(problem(at, "alias of something that contains it"));
                };
                let mut copy = target.clone();
                copy.position = at;
                self.charge(&copy, self.stack.len())?;
                self.place(copy)
            }
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            Event::UnresolvedAlias(_) => Err(problem(at, "unknown anchor")),
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Anchor(..) => {
                Ok(())
            }
            // The enum may grow; what is not known here must not be dropped silently.
            _ => Err(problem(at, "is not understood")),
        }
    }

    /// Whether a `<<` at this place is a merge key, which it now waits to be the value of.
    fn begin_merge(&mut self) -> bool {
        match self.stack.last_mut().map(|frame| &mut frame.kind) {
            Some(FrameKind::Map { key: key @ None, .. }) => {
                *key = Some(Key::Merge);
                true
            }
            Some(FrameKind::Map { .. } | FrameKind::List(_)) | None => false,
        }
    }

    fn begin(&mut self, position: Position, anchor: usize, kind: FrameKind) -> Result<(), Problem> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(too_deep(position));
        }
        self.stack.push(Frame { position, anchor, kind });
        Ok(())
    }

    /// A node is complete: remember it when it is an anchor, put it where it belongs.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.count(node.position)?;
        if anchor != 0 {
            self.charge(&node, 0)?;
            self.anchors.insert(anchor, node.clone());
        }
        self.place(node)
    }

    fn place(&mut self, node: Node) -> Result<(), Problem> {
        match self.stack.last_mut().map(|frame| &mut frame.kind) {
            None if node.is_null() => {}
            None => {
                let (index, line) = (self.documents.len(), node.position.line);
                self.documents.push(Document { index, line, root: node });
            }
            Some(FrameKind::List(items)) => items.push(node),
            Some(FrameKind::Map { entries, merges, key }) => match key.take() {
                None => *key = Some(Key::Name(key_text(&node)?, node.position)),
                Some(Key::Merge) => merges.push(node),
                Some(Key::Name(key, key_position)) => {
                    entries.push(Entry { key, key_position, value: node });
                }
            },
        }
        Ok(())
    }

    /// Adds what `<<` brings in: what is written in the mapping itself wins, then the earlier
    /// merge.
    fn merged(&mut self, entries: Vec<Entry>, merges: Vec<Node>) -> Result<Vec<Entry>, Problem> {
        if merges.is_empty() {
            return Ok(entries);
        }
        let mut all = entries;
        let mut known: std::collections::HashSet<String> =
            all.iter().map(|e| e.key.clone()).collect();
        for merge in merges {
            let at = merge.position;
            let sources = match merge.value {
                Value::List(items) => items,
                value @ (Value::Map(_)
                | Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)) => vec![Node { position: at, value }],
            };
            for source in sources {
                let Value::Map(more) = source.value else {
                    return Err(problem(
                        at,
                        "merge key '<<' needs a mapping or a list of mappings",
                    ));
                };
                all.extend(more.into_iter().filter(|e| known.insert(e.key.clone())));
            }
        }
        Ok(all)
    }

    fn count(&mut self, at: Position) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(problem(at, format!("has more than {MAX_NODES} values")));
        }
        Ok(())
    }

    /// Accounts for a copy of `node` placed at `depth`.
    fn charge(&mut self, node: &Node, depth: usize) -> Result<(), Problem> {
        if depth > MAX_DEPTH {
            return Err(too_deep(node.position));
        }
        self.count(node.position)?;
        let text = match &node.value {
            Value::String(text) => text.len(),
            Value::List(items) => {
                for item in items {
                    self.charge(item, depth + 1)?;
                }
                0
            }
            Value::Map(entries) => {
                for entry in entries {
                    self.charge(&entry.value, depth + 1)?;
                }
                entries.iter().map(|e| e.key.len()).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        };
        self.alias_bytes += text;
        if self.alias_bytes > MAX_ALIAS_BYTES {
            return Err(problem(node.position, "aliases make the text too large"));
        }
        Ok(())
    }
}

/// A key as text, as `sigs.k8s.io/yaml` makes one of it.
fn key_text(node: &Node) -> Result<String, Problem> {
    match &node.value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        Value::Null => Err(problem(node.position, "a key must not be empty")),
        Value::List(_) | Value::Map(_) => {
            Err(problem(node.position, "a key must be text, not a list or a mapping"))
        }
    }
}

const UNKNOWN_TAG: &str = "a tag (text that begins with '!') is not supported";

fn scalar_value(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Position,
) -> Result<Value, Problem> {
    let Some(tag) = tag else {
        return match style {
            ScalarStyle::Plain => {
                scalar::resolve(text).map_err(|reason| problem(at, format!("{text} {reason}")))
            }
            ScalarStyle::SingleQuoted
            | ScalarStyle::DoubleQuoted
            | ScalarStyle::Literal
            | ScalarStyle::Folded => Ok(Value::String(text.to_owned())),
        };
    };
    // "!" alone says "not plain".
    if tag.original() == "!" {
        return Ok(Value::String(text.to_owned()));
    }
    match (tag.core_suffix(), scalar::resolve(text)) {
        (Some("int"), Ok(Value::Number(n))) if !n.is_f64() => Ok(Value::Number(n)),
        (Some("str"), _) => Ok(Value::String(text.to_owned())),
        (Some("bool"), Ok(value @ Value::Bool(_)))
        | (Some("float"), Ok(value @ Value::Number(_)))
        | (Some("null"), Ok(value @ Value::Null)) => Ok(value),
        // Neither the text nor the tag is repeated. They may be a password without quotes.
        (Some(_), _) => Err(problem(at, "is not a value of the tag before it")),
        (None, _) => {
            let message = format!("{UNKNOWN_TAG}; if it is a value, put it in quotes");
            Err(problem(at, message))
        }
    }
}

fn collection_tag(tag: Option<&Tag>, expected: &str, at: Position) -> Result<(), Problem> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(expected) => {
            Err(problem(at, format!("{UNKNOWN_TAG} here")))
        }
        Some(_) | None => Ok(()),
    }
}
