//! `containers[]` and `initContainers[]`.

use super::{QUANTITIES, STRINGS, lifecycle};
use crate::document::{Field, Type};

pub(super) const ALWAYS: &str = "`Always`: if the registry is unreachable and the image is present and for this pod, the container runs with a warning";

pub(super) static CONTAINER: &[Field] = &[
    Field::yes("args", STRINGS),
    Field::yes("command", STRINGS),
    Field::yes("env", Type::List(&Type::Object(ENV_VAR))),
    Field::yes("envFrom", Type::List(&Type::Object(ENV_FROM))),
    Field::yes("image", Type::String),
    Field::differs("imagePullPolicy", Type::String, ALWAYS),
    Field::yes("lifecycle", Type::Object(lifecycle::LIFECYCLE)),
    Field::yes("livenessProbe", Type::Object(lifecycle::PROBE)),
    Field::yes("name", Type::String),
    Field::yes("ports", Type::List(&Type::Object(PORT))),
    Field::yes("readinessProbe", Type::Object(lifecycle::PROBE)),
    Field::yes("resizePolicy", Type::List(&Type::Object(RESIZE_POLICY))),
    Field::yes("resources", Type::Object(RESOURCES)),
    Field::yes("restartPolicy", Type::String),
    Field::yes("restartPolicyRules", Type::List(&Type::Object(RESTART_RULE))),
    Field::yes("securityContext", Type::Object(SECURITY_CONTEXT)),
    Field::yes("startupProbe", Type::Object(lifecycle::PROBE)),
    Field::yes("stdin", Type::Bool),
    Field::yes("stdinOnce", Type::Bool),
    Field::yes("terminationMessagePath", Type::String),
    Field::yes("terminationMessagePolicy", Type::String),
    Field::yes("tty", Type::Bool),
    Field::no(
        "volumeDevices",
        Type::List(&Type::Any),
        "block volumes need PersistentVolumeClaims, which a static pod may not reference",
    ),
    Field::yes("volumeMounts", Type::List(&Type::Object(VOLUME_MOUNT))),
    Field::yes("workingDir", Type::String),
];

static ENV_VAR: &[Field] = &[
    Field::yes("name", Type::String),
    Field::yes("value", Type::String),
    Field::yes("valueFrom", Type::Object(ENV_SOURCE)),
];

static ENV_SOURCE: &[Field] = &[
    Field::differs(
        "configMapKeyRef",
        Type::Object(super::object::KEY_REF),
        super::object::FROM_FILES,
    ),
    Field::yes("fieldRef", Type::Object(FIELD_REF)),
    Field::no("fileKeyRef", Type::Any, "this version does not read environment files"),
    Field::yes("resourceFieldRef", Type::Object(RESOURCE_FIELD_REF)),
    Field::differs("secretKeyRef", Type::Object(super::object::KEY_REF), super::object::FROM_FILES),
];

pub(super) static FIELD_REF: &[Field] =
    &[Field::yes("apiVersion", Type::String), Field::yes("fieldPath", Type::String)];

pub(super) static RESOURCE_FIELD_REF: &[Field] = &[
    Field::yes("containerName", Type::String),
    Field::yes("divisor", Type::Quantity),
    Field::yes("resource", Type::String),
];

static ENV_FROM: &[Field] = &[
    Field::differs("configMapRef", Type::Object(super::object::REF), super::object::FROM_FILES),
    Field::yes("prefix", Type::String),
    Field::differs("secretRef", Type::Object(super::object::REF), super::object::FROM_FILES),
];

static PORT: &[Field] = &[
    Field::yes("containerPort", Type::Int32),
    Field::yes("hostIP", Type::String),
    Field::yes("hostPort", Type::Int32),
    Field::yes("name", Type::String),
    Field::yes("protocol", Type::String),
];

static RESIZE_POLICY: &[Field] =
    &[Field::yes("resourceName", Type::String), Field::yes("restartPolicy", Type::String)];

static RESOURCES: &[Field] = &[
    Field::no("claims", Type::List(&Type::Any), "static pods may not reference resourceclaims"),
    Field::differs(
        "limits",
        QUANTITIES,
        "`cpu`, `memory` and `hugepages-*`; a pod that uses more `ephemeral-storage` is evicted within seconds; \
         extended resources are rejected, because this version has no device plugins",
    ),
    Field::differs(
        "requests",
        QUANTITIES,
        "the same as limits; a request that is left out equals the limit",
    ),
];

static RESTART_RULE: &[Field] = &[
    Field::yes("action", Type::String),
    Field::yes("exitCodes", Type::Object(RESTART_EXIT_CODES)),
];

static RESTART_EXIT_CODES: &[Field] =
    &[Field::yes("operator", Type::String), Field::yes("values", Type::List(&Type::Int32))];

static SECURITY_CONTEXT: &[Field] = &[
    Field::yes("allowPrivilegeEscalation", Type::Bool),
    Field::yes("appArmorProfile", Type::Object(PROFILE)),
    Field::yes("capabilities", Type::Object(CAPABILITIES)),
    Field::yes("privileged", Type::Bool),
    Field::yes("procMount", Type::String),
    Field::yes("readOnlyRootFilesystem", Type::Bool),
    Field::yes("runAsGroup", Type::Int64),
    Field::yes("runAsNonRoot", Type::Bool),
    Field::yes("runAsUser", Type::Int64),
    Field::yes("seLinuxOptions", Type::Object(SELINUX)),
    Field::yes("seccompProfile", Type::Object(PROFILE)),
    Field::no("windowsOptions", Type::Any, super::pod::NO_WINDOWS),
];

/// AppArmor and seccomp profiles look alike.
pub(super) static PROFILE: &[Field] =
    &[Field::yes("localhostProfile", Type::String), Field::yes("type", Type::String)];

static CAPABILITIES: &[Field] = &[Field::yes("add", STRINGS), Field::yes("drop", STRINGS)];

pub(super) static SELINUX: &[Field] = &[
    Field::yes("level", Type::String),
    Field::yes("role", Type::String),
    Field::yes("type", Type::String),
    Field::yes("user", Type::String),
];

static VOLUME_MOUNT: &[Field] = &[
    Field::yes("mountPath", Type::String),
    Field::yes("mountPropagation", Type::String),
    Field::yes("name", Type::String),
    Field::yes("readOnly", Type::Bool),
    Field::yes("recursiveReadOnly", Type::String),
    Field::yes("subPath", Type::String),
    Field::yes("subPathExpr", Type::String),
];
