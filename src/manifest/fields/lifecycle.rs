//! Probes and lifecycle hooks of containers.

use super::STRINGS;
use crate::document::{Field, Type};

/// `livenessProbe`, `readinessProbe` and `startupProbe`
pub(super) static PROBE: &[Field] = &[
    Field::yes("exec", Type::Object(EXEC)),
    Field::yes("failureThreshold", Type::Int32),
    Field::yes("grpc", Type::Object(GRPC)),
    Field::differs("httpGet", Type::Object(HTTP_GET), NO_OLD_TLS),
    Field::yes("initialDelaySeconds", Type::Int32),
    Field::yes("periodSeconds", Type::Int32),
    Field::yes("successThreshold", Type::Int32),
    Field::yes("tcpSocket", Type::Object(TCP_SOCKET)),
    Field::yes("terminationGracePeriodSeconds", Type::Int64),
    Field::yes("timeoutSeconds", Type::Int32),
];

pub(super) static LIFECYCLE: &[Field] = &[
    Field::yes("postStart", Type::Object(HOOK)),
    Field::yes("preStop", Type::Object(HOOK)),
    Field::no(
        "stopSignal",
        Type::Any,
        "this version does not set the stop signal; set STOPSIGNAL in the image",
    ),
];

static HOOK: &[Field] = &[
    Field::yes("exec", Type::Object(EXEC)),
    Field::differs("httpGet", Type::Object(HTTP_GET), NO_OLD_TLS),
    Field::yes("sleep", Type::Object(&[Field::yes("seconds", Type::Int64)])),
    Field::no("tcpSocket", Type::Any, "hooks by TCP do not exist in Kubernetes either"),
];

const NO_OLD_TLS: &str = "`scheme: HTTPS` needs a server with TLS 1.2 or 1.3; as with the kubelet, the certificate is not checked";

static EXEC: &[Field] = &[Field::yes("command", STRINGS)];

static GRPC: &[Field] = &[Field::yes("port", Type::Int32), Field::yes("service", Type::String)];

static HTTP_GET: &[Field] = &[
    Field::yes("host", Type::String),
    Field::yes("httpHeaders", Type::List(&Type::Object(HTTP_HEADER))),
    Field::yes("path", Type::String),
    Field::yes("port", Type::IntOrString),
    Field::yes("scheme", Type::String),
];

static HTTP_HEADER: &[Field] =
    &[Field::yes("name", Type::String), Field::yes("value", Type::String)];

static TCP_SOCKET: &[Field] =
    &[Field::yes("host", Type::String), Field::yes("port", Type::IntOrString)];
