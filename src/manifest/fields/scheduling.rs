//! What is said about nodes. Which nodes a pod is for is looked at when it is admitted; what
//! chooses among several is read, so that mistakes are found, and ignored.

use super::{NOT_SCHEDULED, STRING_MAP, STRINGS};
use crate::document::{Field, Type};

pub(super) static AFFINITY: &[Field] = &[
    Field::yes("nodeAffinity", Type::Object(NODE_AFFINITY)),
    Field::ignored("podAffinity", Type::Object(POD_AFFINITY), NOT_SCHEDULED),
    Field::ignored("podAntiAffinity", Type::Object(POD_AFFINITY), NOT_SCHEDULED),
];

static NODE_AFFINITY: &[Field] = &[
    Field::ignored(
        "preferredDuringSchedulingIgnoredDuringExecution",
        Type::List(&Type::Object(PREFERRED_TERM)),
        NOT_SCHEDULED,
    ),
    Field::yes("requiredDuringSchedulingIgnoredDuringExecution", Type::Object(NODE_SELECTOR)),
];

static PREFERRED_TERM: &[Field] = &[
    Field::yes("preference", Type::Object(NODE_SELECTOR_TERM)),
    Field::yes("weight", Type::Int32),
];

static NODE_SELECTOR: &[Field] =
    &[Field::yes("nodeSelectorTerms", Type::List(&Type::Object(NODE_SELECTOR_TERM)))];

static NODE_SELECTOR_TERM: &[Field] = &[
    Field::yes("matchExpressions", Type::List(&Type::Object(REQUIREMENT))),
    Field::yes("matchFields", Type::List(&Type::Object(REQUIREMENT))),
];

static REQUIREMENT: &[Field] = &[
    Field::yes("key", Type::String),
    Field::yes("operator", Type::String),
    Field::yes("values", STRINGS),
];

static POD_AFFINITY: &[Field] = &[
    Field::yes(
        "preferredDuringSchedulingIgnoredDuringExecution",
        Type::List(&Type::Object(WEIGHTED_TERM)),
    ),
    Field::yes(
        "requiredDuringSchedulingIgnoredDuringExecution",
        Type::List(&Type::Object(POD_AFFINITY_TERM)),
    ),
];

static WEIGHTED_TERM: &[Field] = &[
    Field::yes("podAffinityTerm", Type::Object(POD_AFFINITY_TERM)),
    Field::yes("weight", Type::Int32),
];

static POD_AFFINITY_TERM: &[Field] = &[
    Field::yes("labelSelector", Type::Object(LABEL_SELECTOR)),
    Field::yes("matchLabelKeys", STRINGS),
    Field::yes("mismatchLabelKeys", STRINGS),
    Field::yes("namespaceSelector", Type::Object(LABEL_SELECTOR)),
    Field::yes("namespaces", STRINGS),
    Field::yes("topologyKey", Type::String),
];

static LABEL_SELECTOR: &[Field] = &[
    Field::yes("matchExpressions", Type::List(&Type::Object(REQUIREMENT))),
    Field::yes("matchLabels", STRING_MAP),
];

pub(super) static TOLERATION: &[Field] = &[
    Field::yes("effect", Type::String),
    Field::yes("key", Type::String),
    Field::yes("operator", Type::String),
    Field::yes("tolerationSeconds", Type::Int64),
    Field::yes("value", Type::String),
];

pub(super) static TOPOLOGY_SPREAD: &[Field] = &[
    Field::yes("labelSelector", Type::Object(LABEL_SELECTOR)),
    Field::yes("matchLabelKeys", STRINGS),
    Field::yes("maxSkew", Type::Int32),
    Field::yes("minDomains", Type::Int32),
    Field::yes("nodeAffinityPolicy", Type::String),
    Field::yes("nodeTaintsPolicy", Type::String),
    Field::yes("topologyKey", Type::String),
    Field::yes("whenUnsatisfiable", Type::String),
];
