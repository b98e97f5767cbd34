//! What a person wrote, as a tree that remembers where: YAML as Kubernetes' tools read it, or JSON,
//! with the line and column of every key and value.
//!
//! ```text
//! bytes ── parse ──► Document { root: Node } ── walk(table of fields) ──► Findings
//!                                            └─ typed(table of fields) ──► JSON for serde
//! ```
//!
//! Strictness lives here and not in serde: the types of k8s-openapi skip unknown fields, report one
//! error at a time and know no lines. The table that [`walk`] is given is also what the
//! documentation is made from, so the two can't drift apart.

mod node;
mod parse;
mod scalar;
mod schema;
mod typed;
mod walk;

pub use node::{Document, Entry, Node, Value};
pub use parse::{MAX_TEXT_BYTES, READING, parse};
pub use schema::{Field, Setting, Support, Type};
pub use typed::typed;
pub use walk::{Finding, FindingKind, nearest, walk};
pub(crate) use walk::{cut, show};

#[cfg(test)]
mod tests;
