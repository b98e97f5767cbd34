//! ConfigMaps and Secrets, and references to them.

use super::{
    BOOKKEEPING, STRING_MAP, STRINGS,
    metadata::{MANAGED_FIELDS, OWNER_REFERENCE},
};
use crate::document::{Field, Type};

/// What differs about every reference to one.
pub(super) const FROM_FILES: &str =
    "from a document of that kind in `staticPodPath` or `configPath`; not from the API server";

/// `kind: ConfigMap`.
pub static CONFIG_MAP: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("binaryData", STRING_MAP),
    Field::yes("data", STRING_MAP),
    Field::yes("immutable", Type::Bool),
    Field::yes("kind", Type::String),
    Field::yes("metadata", Type::Object(OBJECT_META)),
];

/// `kind: Secret`.
pub static SECRET: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("data", STRING_MAP),
    Field::yes("immutable", Type::Bool),
    Field::yes("kind", Type::String),
    Field::yes("metadata", Type::Object(OBJECT_META)),
    Field::yes("stringData", STRING_MAP),
    Field::yes("type", Type::String),
];

static OBJECT_META: &[Field] = &[
    Field::yes("annotations", STRING_MAP),
    Field::ignored("creationTimestamp", Type::Time, BOOKKEEPING),
    Field::ignored("deletionGracePeriodSeconds", Type::Int64, BOOKKEEPING),
    Field::ignored("deletionTimestamp", Type::Time, BOOKKEEPING),
    Field::ignored("finalizers", STRINGS, BOOKKEEPING),
    Field::ignored("generateName", Type::String, "a manifest must set `name`"),
    Field::ignored("generation", Type::Int64, BOOKKEEPING),
    Field::yes("labels", STRING_MAP),
    Field::ignored("managedFields", Type::List(&Type::Object(MANAGED_FIELDS)), BOOKKEEPING),
    Field::yes("name", Type::String),
    Field::yes("namespace", Type::String),
    Field::ignored("ownerReferences", Type::List(&Type::Object(OWNER_REFERENCE)), BOOKKEEPING),
    Field::ignored("resourceVersion", Type::String, BOOKKEEPING),
    Field::ignored("selfLink", Type::String, BOOKKEEPING),
    Field::ignored("uid", Type::String, BOOKKEEPING),
];

/// Names a key of an object.
pub(super) static KEY_REF: &[Field] = &[
    Field::yes("key", Type::String),
    Field::yes("name", Type::String),
    Field::yes("optional", Type::Bool),
];

/// Names an object.
pub(super) static REF: &[Field] =
    &[Field::yes("name", Type::String), Field::yes("optional", Type::Bool)];
