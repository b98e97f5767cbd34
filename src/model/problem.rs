//! A mistake found in something a person wrote, with its place.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A place in a text; both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Line, from 1; 0 when unknown.
    pub line: usize,
    /// Column in characters, from 1; 0 when unknown.
    pub column: usize,
}

/// One mistake or notice: where, which field, what is wrong and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// Where in the text.
    pub position: Position,
    /// Field path in the API's style (`spec.containers[1].image`); empty for the document itself.
    pub path: String,
    /// In the API's error style: `Required value`, `Invalid value: "x": must be ...`,
    /// `Unsupported value: ...`, `unknown field, did you mean "image"?`.
    pub message: String,
}

/// `line 4, column 7: spec.containers[0].image: Required value`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.position.line > 0 {
            write!(f, "line {}, column {}: ", self.position.line, self.position.column)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}
