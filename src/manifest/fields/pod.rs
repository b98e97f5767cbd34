//! `spec`.

use super::{
    NOT_SCHEDULED, QUANTITIES, STRING_MAP, STRINGS,
    container::{CONTAINER, PROFILE, SELINUX},
    scheduling::{AFFINITY, TOLERATION, TOPOLOGY_SPREAD},
    volume::VOLUME,
};
use crate::document::{Field, Type};

pub(super) const NO_WINDOWS: &str = "this node runs Linux";
const NO_SERVICE_ACCOUNT: &str = "static pods may not reference serviceaccounts";

pub(super) static POD_SPEC: &[Field] = &[
    Field::yes("activeDeadlineSeconds", Type::Int64),
    Field::yes("affinity", Type::Object(AFFINITY)),
    Field::ignored(
        "automountServiceAccountToken",
        Type::Bool,
        "a static pod has no service account, so no token is mounted",
    ),
    Field::yes("containers", Type::List(&Type::Object(CONTAINER))),
    Field::yes("dnsConfig", Type::Object(DNS_CONFIG)),
    Field::yes("dnsPolicy", Type::String),
    Field::ignored("enableServiceLinks", Type::Bool, "without an API server there are no services"),
    Field::no(
        "ephemeralContainers",
        Type::List(&Type::Any),
        "cannot be set on create: they are added to a running pod through an API server",
    ),
    Field::yes("hostAliases", Type::List(&Type::Object(HOST_ALIAS))),
    Field::yes("hostIPC", Type::Bool),
    Field::yes("hostNetwork", Type::Bool),
    Field::yes("hostPID", Type::Bool),
    Field::differs(
        "hostUsers",
        Type::Bool,
        "`false` needs containerd 2 with runc 1.2 or newer; with an older runtime the pod waits, and an event says so",
    ),
    Field::yes("hostname", Type::String),
    Field::yes("hostnameOverride", Type::String),
    Field::differs(
        "imagePullSecrets",
        Type::List(&Type::Object(NAME_REF)),
        super::object::FROM_FILES,
    ),
    Field::yes("initContainers", Type::List(&Type::Object(CONTAINER))),
    Field::differs("nodeName", Type::String, "always set to this node's name"),
    Field::yes("nodeSelector", STRING_MAP),
    Field::differs("os", Type::Object(OS), "`linux` only"),
    Field::yes("overhead", QUANTITIES),
    Field::ignored("preemptionPolicy", Type::String, NOT_SCHEDULED),
    Field::yes("priority", Type::Int32),
    Field::differs(
        "priorityClassName",
        Type::String,
        "sets the priority of a pod that has no `priority`: one of the two system classes, or one of `priorityClasses` in NodeletConfiguration",
    ),
    Field::differs(
        "readinessGates",
        Type::List(&Type::Object(READINESS_GATE)),
        "without an API server nothing sets the conditions: the pod runs and is never Ready",
    ),
    Field::no(
        "resourceClaims",
        Type::List(&Type::Any),
        "static pods may not reference resourceclaims",
    ),
    Field::yes("resources", Type::Object(POD_RESOURCES)),
    Field::yes("restartPolicy", Type::String),
    Field::differs(
        "runtimeClassName",
        Type::String,
        "one of `runtimeClasses` in NodeletConfiguration, which has the runtime's handler for it; `overhead` and `nodeSelector` of the pod are not set from the class",
    ),
    Field::ignored("schedulerName", Type::String, NOT_SCHEDULED),
    Field::no(
        "schedulingGates",
        Type::List(&Type::Any),
        "a static pod is never scheduled, so nothing would remove the gate",
    ),
    Field::ignored("schedulingGroup", Type::Object(SCHEDULING_GROUP), NOT_SCHEDULED),
    Field::yes("securityContext", Type::Object(POD_SECURITY_CONTEXT)),
    Field::no("serviceAccount", Type::String, NO_SERVICE_ACCOUNT),
    Field::no("serviceAccountName", Type::String, NO_SERVICE_ACCOUNT),
    Field::yes("setHostnameAsFQDN", Type::Bool),
    Field::yes("shareProcessNamespace", Type::Bool),
    Field::yes("subdomain", Type::String),
    Field::yes("terminationGracePeriodSeconds", Type::Int64),
    Field::differs(
        "tolerations",
        Type::List(&Type::Object(TOLERATION)),
        "the node's taints do not keep a static pod away; a toleration of `node.kubernetes.io/memory-pressure` lets a BestEffort pod start under memory pressure",
    ),
    Field::ignored(
        "topologySpreadConstraints",
        Type::List(&Type::Object(TOPOLOGY_SPREAD)),
        NOT_SCHEDULED,
    ),
    Field::yes("volumes", Type::List(&Type::Object(VOLUME))),
];

static DNS_CONFIG: &[Field] = &[
    Field::yes("nameservers", STRINGS),
    Field::yes("options", Type::List(&Type::Object(DNS_OPTION))),
    Field::yes("searches", STRINGS),
];

static DNS_OPTION: &[Field] =
    &[Field::yes("name", Type::String), Field::yes("value", Type::String)];

static HOST_ALIAS: &[Field] = &[Field::yes("hostnames", STRINGS), Field::yes("ip", Type::String)];

static OS: &[Field] = &[Field::yes("name", Type::String)];

static READINESS_GATE: &[Field] = &[Field::yes("conditionType", Type::String)];

static SCHEDULING_GROUP: &[Field] = &[Field::yes("podGroupName", Type::String)];

static POD_SECURITY_CONTEXT: &[Field] = &[
    Field::yes("appArmorProfile", Type::Object(PROFILE)),
    Field::yes("fsGroup", Type::Int64),
    Field::ignored(
        "fsGroupChangePolicy",
        Type::String,
        "it speeds up large persistent volumes, and static pods have none",
    ),
    Field::yes("runAsGroup", Type::Int64),
    Field::yes("runAsNonRoot", Type::Bool),
    Field::yes("runAsUser", Type::Int64),
    Field::ignored(
        "seLinuxChangePolicy",
        Type::String,
        "it applies to persistent volumes, and static pods have none",
    ),
    Field::yes("seLinuxOptions", Type::Object(SELINUX)),
    Field::yes("seccompProfile", Type::Object(PROFILE)),
    Field::yes("supplementalGroups", Type::List(&Type::Int64)),
    Field::yes("supplementalGroupsPolicy", Type::String),
    Field::differs(
        "sysctls",
        Type::List(&Type::Object(SYSCTL)),
        "safe sysctls, and those that `allowedUnsafeSysctls` allows",
    ),
    Field::no("windowsOptions", Type::Any, NO_WINDOWS),
];

static POD_RESOURCES: &[Field] = &[
    Field::no("claims", Type::List(&Type::Any), "static pods may not reference resourceclaims"),
    Field::differs(
        "limits",
        QUANTITIES,
        "`cpu`, `memory` and `hugepages-*`; other resources are rejected",
    ),
    Field::differs(
        "requests",
        QUANTITIES,
        "the same as limits; where there is a limit of any resource, a request for cpu or memory that is left out equals what the containers request together, or its limit if they request nothing; for `hugepages-*` it equals the limit",
    ),
];

static SYSCTL: &[Field] = &[Field::yes("name", Type::String), Field::yes("value", Type::String)];

static NAME_REF: &[Field] = &[Field::yes("name", Type::String)];
