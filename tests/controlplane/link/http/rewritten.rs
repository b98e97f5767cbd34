//! An answer of the API server whose objects are changed on their way.

use super::Rewrite;
use hyper::body::Bytes;
use serde_json::Value;

/// Changes the objects of one answer. The API server ends an answer, and each event of a watch, with
/// a newline, so that a line is a whole JSON value.
pub(super) struct Rewriter {
    change: Rewrite,
    /// The line that has not ended.
    rest: Vec<u8>,
}

impl Rewriter {
    pub(super) fn new(change: Rewrite) -> Self {
        Self { change, rest: Vec::new() }
    }

    /// Takes the next part of the body; gives the lines that end in it.
    pub(super) fn rewrite(&mut self, data: &[u8]) -> Bytes {
        self.rest.extend_from_slice(data);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Bytes::new();
        };
        let after = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, after);
        let mut rewritten = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(value) => rewritten.extend_from_slice(self.line(value).as_bytes()),
                Err(_) => rewritten.extend_from_slice(line),
            }
        }
        rewritten.into()
    }

    fn line(&self, mut value: Value) -> String {
        if let Some(object) = value.get_mut("object").filter(|object| object.is_object()) {
            (self.change)(object);
        } else if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
            items.iter_mut().for_each(|item| (self.change)(item));
        } else {
            (self.change)(&mut value);
        }
        format!("{value}\n")
    }
}
