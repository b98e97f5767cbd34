//! `metadata`.

use super::{BOOKKEEPING, STRING_MAP, STRINGS};
use crate::document::{Field, Type};

pub(super) static OBJECT_META: &[Field] = &[
    Field::differs(
        "annotations",
        STRING_MAP,
        "the agent sets `kubernetes.io/config.*` and most of `nodelet.dev/*`. A manifest may set `nodelet.dev/after` ([start-order.md](start-order.md)), `nodelet.dev/rollback` with its times ([updates.md](updates.md)) and `nodelet.dev/restart-on-config-change` ([secrets.md](secrets.md))",
    ),
    Field::ignored("creationTimestamp", Type::Time, BOOKKEEPING),
    Field::ignored("deletionGracePeriodSeconds", Type::Int64, BOOKKEEPING),
    Field::ignored("deletionTimestamp", Type::Time, BOOKKEEPING),
    Field::ignored("finalizers", STRINGS, BOOKKEEPING),
    Field::ignored("generateName", Type::String, "a manifest must set `name`"),
    Field::ignored("generation", Type::Int64, BOOKKEEPING),
    Field::yes("labels", STRING_MAP),
    Field::ignored("managedFields", Type::List(&Type::Object(MANAGED_FIELDS)), BOOKKEEPING),
    Field::differs(
        "name",
        Type::String,
        "the agent appends the node's name, as the kubelet does: `web` runs as `web-mynode`",
    ),
    Field::yes("namespace", Type::String),
    Field::ignored("ownerReferences", Type::List(&Type::Object(OWNER_REFERENCE)), BOOKKEEPING),
    Field::ignored("resourceVersion", Type::String, BOOKKEEPING),
    Field::ignored("selfLink", Type::String, BOOKKEEPING),
    Field::differs(
        "uid",
        Type::String,
        "used unchanged if set; otherwise it is a hash of the manifest's content, without amounts of cpu and memory and the annotations about updates and start order, so that an edit of anything else replaces the pod",
    ),
];

pub(super) static MANAGED_FIELDS: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("fieldsType", Type::String),
    Field::yes("fieldsV1", Type::Any),
    Field::yes("manager", Type::String),
    Field::yes("operation", Type::String),
    Field::yes("subresource", Type::String),
    Field::yes("time", Type::Time),
];

pub(super) static OWNER_REFERENCE: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("blockOwnerDeletion", Type::Bool),
    Field::yes("controller", Type::Bool),
    Field::yes("kind", Type::String),
    Field::yes("name", Type::String),
    Field::yes("uid", Type::String),
];
