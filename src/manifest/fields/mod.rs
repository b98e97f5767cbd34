//! Every field of a Pod and what this version makes of it.
//!
//! The one table that strict decoding ([`crate::document::walk`]) and `docs/manifests.md` are both
//! made from. A test compares it with k8s-openapi's types, field by field and type by type. Below a
//! field that is not supported nothing is listed: the verdict on it covers all of its parts.

mod container;
mod lifecycle;
mod metadata;
mod object;
mod pod;
mod scheduling;
mod volume;

use crate::document::{Field, Type};

pub(super) use object::{CONFIG_MAP, SECRET};

/// A Pod document.
pub static POD: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("kind", Type::String),
    Field::yes("metadata", Type::Object(metadata::OBJECT_META)),
    Field::yes("spec", Type::Object(pod::POD_SPEC)),
    Field::ignored("status", Type::Any, "the agent reports the status and does not read it"),
];

const STRINGS: Type = Type::List(&Type::String);
const STRING_MAP: Type = Type::Map(&Type::String);
const QUANTITIES: Type = Type::Map(&Type::Quantity);

/// Of the API server's bookkeeping nothing matters for a manifest.
const BOOKKEEPING: &str = "set by an API server; has no meaning in a manifest";
const NOT_SCHEDULED: &str =
    "static pods are not scheduled: a pod runs on the node that has its manifest";

#[cfg(test)]
mod tests;
