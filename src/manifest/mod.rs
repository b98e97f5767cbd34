//! From the bytes of a manifest to pods that can run, or to a verdict that says everything that is
//! wrong and where.
//!
//! ```text
//! bytes ─ document::parse ─► tree ─ walk(fields) ─► findings
//!                              └─ typed ─► Pod ─ defaults ─ validate ─ identity ─ dress ─► DesiredPod
//! ```
//!
//! Owns the table of Pod fields, from which `docs/manifests.md` is made. Knows nothing of files,
//! of earlier revisions or of what runs: those are the business of `source` and `desired`.

mod decode;
mod defaults;
mod docs;
mod fields;
mod identity;
mod limits;
mod object;
mod validate;

pub use crate::document::MAX_TEXT_BYTES;
pub use decode::{decode, decode_document, name_of_document};
pub use docs::markdown;
pub use fields::POD;
pub use limits::{MAX_DOCUMENTS, MAX_MEMORY_BYTES, memory_bytes};

use crate::model::{
    DataObject, DesiredPod, ObjectKey, Origin, PodKey, Position, Problem, SourceKind,
};
use jiff::Timestamp;
use std::{collections::BTreeMap, sync::Arc};

/// What decoding depends on beside the text.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// This node's name; it becomes part of every pod's name and identity.
    pub node_name: &'a str,
    /// The kind of source.
    pub source: SourceKind,
    /// Full path of the file, or the URL.
    pub location: &'a str,
    /// When this was first seen: `kubernetes.io/config.seen`.
    pub seen: Timestamp,
    /// What the node's configuration allows.
    pub settings: &'a Settings,
}

/// The configuration that verdicts depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `allowedUnsafeSysctls`: names, or prefixes with `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `priorityClasses`: the system's own are not among them.
    pub priority_classes: BTreeMap<String, i32>,
    /// `runtimeClasses`: the handler of each.
    pub runtime_classes: BTreeMap<String, String>,
}

/// What a file says. A file without any document (empty, or only comments) has none here, which is
/// not an error.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedFile {
    /// Its pods, and all that is neither a pod nor an object, in the order written. Items of lists
    /// count as documents.
    pub documents: Vec<DecodedDocument>,
    /// Its ConfigMaps and Secrets, in the order written.
    pub objects: Vec<DecodedObject>,
    /// It has lists, and nothing in them.
    pub empty_list: bool,
}

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedDocument {
    /// Where it is.
    pub origin: Origin,
    /// Where it begins.
    pub position: Position,
    /// The pod's full name, also of a document that is rejected, where it can be made out.
    pub key: Option<PodKey>,
    /// The parsed document in JSON, to be kept: [`decode_document`] makes the same pod of it again.
    /// Text, because a tree of small objects takes several times the memory; empty for a document
    /// that is rejected.
    pub as_written: Arc<str>,
    /// The pod, or everything that is wrong, in the order written.
    pub result: Result<DesiredPod, Vec<Problem>>,
    /// What is known and harmlessly not acted on.
    pub warnings: Vec<Problem>,
}

/// A document of `kind: ConfigMap` or `kind: Secret`.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedObject {
    /// Where it begins.
    pub position: Position,
    /// Its name, also of one that is rejected, where it can be made out.
    pub key: Option<ObjectKey>,
    /// The object, or everything that is wrong, in the order written. The problems do not repeat
    /// data of a Secret.
    pub result: Result<DataObject, Vec<Problem>>,
    /// What is known and harmlessly not acted on.
    pub warnings: Vec<Problem>,
    /// By their keys, the names of the credentials that the reader has to add.
    pub credentials: CredentialNames,
}

/// The name of a credential by the key of the Secret that it becomes the value of.
pub type CredentialNames = BTreeMap<Box<str>, Box<str>>;

#[cfg(test)]
mod tests;
