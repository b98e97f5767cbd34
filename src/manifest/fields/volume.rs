//! `volumes[]`.

use super::{
    container::{FIELD_REF, RESOURCE_FIELD_REF},
    object::FROM_FILES,
};
use crate::document::{Field, Type};

const NOT_MOUNTED: &str = "this version does not mount volumes of this kind";
const NO_API_OBJECTS: &str = "static pods have no service account and no certificates of a cluster";

pub(super) static VOLUME: &[Field] = &[
    Field::no("awsElasticBlockStore", Type::Any, NOT_MOUNTED),
    Field::no("azureDisk", Type::Any, NOT_MOUNTED),
    Field::no(
        "azureFile",
        Type::Any,
        "static pods may not reference secrets (via azureFile volumes)",
    ),
    Field::no("cephfs", Type::Any, NOT_MOUNTED),
    Field::no("cinder", Type::Any, NOT_MOUNTED),
    Field::differs("configMap", Type::Object(CONFIG_MAP), FROM_FILES),
    Field::no("csi", Type::Any, "static pods may not reference csidrivers (via CSI volumes)"),
    Field::yes("downwardAPI", Type::Object(DOWNWARD_API)),
    Field::yes("emptyDir", Type::Object(EMPTY_DIR)),
    Field::no(
        "ephemeral",
        Type::Any,
        "static pods may not reference persistentvolumeclaims (via ephemeral volumes)",
    ),
    Field::no("fc", Type::Any, NOT_MOUNTED),
    Field::no("flexVolume", Type::Any, NOT_MOUNTED),
    Field::no("flocker", Type::Any, NOT_MOUNTED),
    Field::no("gcePersistentDisk", Type::Any, NOT_MOUNTED),
    Field::no("gitRepo", Type::Any, NOT_MOUNTED),
    Field::no(
        "glusterfs",
        Type::Any,
        "static pods may not reference endpoints (via glusterFS volumes)",
    ),
    Field::yes("hostPath", Type::Object(HOST_PATH)),
    Field::differs(
        "image",
        Type::Object(IMAGE),
        "needs containerd 2.1, and containerd 2.2 for a `subPath`; with an older runtime the container waits and names it",
    ),
    Field::no("iscsi", Type::Any, NOT_MOUNTED),
    Field::yes("name", Type::String),
    Field::differs(
        "nfs",
        Type::Object(NFS),
        "needs `mount.nfs` on the node (on Debian, the package nfs-common); the pod waits while the server does not answer",
    ),
    Field::no(
        "persistentVolumeClaim",
        Type::Any,
        "static pods may not reference persistentvolumeclaims; use hostPath",
    ),
    Field::no("photonPersistentDisk", Type::Any, NOT_MOUNTED),
    Field::no("portworxVolume", Type::Any, NOT_MOUNTED),
    Field::yes("projected", Type::Object(PROJECTED)),
    Field::no("quobyte", Type::Any, NOT_MOUNTED),
    Field::no("rbd", Type::Any, NOT_MOUNTED),
    Field::no("scaleIO", Type::Any, NOT_MOUNTED),
    Field::differs("secret", Type::Object(SECRET), FROM_FILES),
    Field::no("storageos", Type::Any, NOT_MOUNTED),
    Field::no("vsphereVolume", Type::Any, NOT_MOUNTED),
];

static EMPTY_DIR: &[Field] = &[
    Field::yes("medium", Type::String),
    Field::differs(
        "sizeLimit",
        Type::Quantity,
        "the size of the file system for `Memory` and huge pages; on disk, a pod that uses more is evicted within seconds",
    ),
];

static HOST_PATH: &[Field] = &[Field::yes("path", Type::String), Field::yes("type", Type::String)];

static NFS: &[Field] = &[
    Field::yes("path", Type::String),
    Field::yes("readOnly", Type::Bool),
    Field::yes("server", Type::String),
];

static IMAGE: &[Field] = &[
    Field::differs("pullPolicy", Type::String, super::container::ALWAYS),
    Field::yes("reference", Type::String),
];

static CONFIG_MAP: &[Field] = &[
    Field::yes("defaultMode", Type::Int32),
    Field::yes("items", Type::List(&Type::Object(KEY_TO_PATH))),
    Field::yes("name", Type::String),
    Field::yes("optional", Type::Bool),
];

static SECRET: &[Field] = &[
    Field::yes("defaultMode", Type::Int32),
    Field::yes("items", Type::List(&Type::Object(KEY_TO_PATH))),
    Field::yes("optional", Type::Bool),
    Field::yes("secretName", Type::String),
];

static KEY_TO_PATH: &[Field] = &[
    Field::yes("key", Type::String),
    Field::yes("mode", Type::Int32),
    Field::yes("path", Type::String),
];

static DOWNWARD_API: &[Field] = &[
    Field::yes("defaultMode", Type::Int32),
    Field::yes("items", Type::List(&Type::Object(DOWNWARD_API_FILE))),
];

static DOWNWARD_API_FILE: &[Field] = &[
    Field::yes("fieldRef", Type::Object(FIELD_REF)),
    Field::yes("mode", Type::Int32),
    Field::yes("path", Type::String),
    Field::yes("resourceFieldRef", Type::Object(RESOURCE_FIELD_REF)),
];

static PROJECTED: &[Field] = &[
    Field::yes("defaultMode", Type::Int32),
    Field::yes("sources", Type::List(&Type::Object(PROJECTION))),
];

static PROJECTION: &[Field] = &[
    Field::no("clusterTrustBundle", Type::Any, NO_API_OBJECTS),
    Field::differs("configMap", Type::Object(PROJECTED_OBJECT), FROM_FILES),
    Field::yes("downwardAPI", Type::Object(PROJECTED_DOWNWARD_API)),
    Field::no("podCertificate", Type::Any, NO_API_OBJECTS),
    Field::differs("secret", Type::Object(PROJECTED_OBJECT), FROM_FILES),
    Field::no("serviceAccountToken", Type::Any, NO_API_OBJECTS),
];

static PROJECTED_OBJECT: &[Field] = &[
    Field::yes("items", Type::List(&Type::Object(KEY_TO_PATH))),
    Field::yes("name", Type::String),
    Field::yes("optional", Type::Bool),
];

static PROJECTED_DOWNWARD_API: &[Field] =
    &[Field::yes("items", Type::List(&Type::Object(DOWNWARD_API_FILE)))];
