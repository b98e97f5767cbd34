//! `volumes[]`.

use crate::document::{Field, Type};

const NOT_MOUNTED: &str = "this version mounts only emptyDir and hostPath volumes";

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
    Field::no(
        "configMap",
        Type::Any,
        "static pods may not reference configmaps (via configmap volumes)",
    ),
    Field::no("csi", Type::Any, "static pods may not reference csidrivers (via CSI volumes)"),
    Field::no("downwardAPI", Type::Any, NOT_MOUNTED),
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
    Field::no("image", Type::Any, NOT_MOUNTED),
    Field::no("iscsi", Type::Any, NOT_MOUNTED),
    Field::yes("name", Type::String),
    Field::no(
        "nfs",
        Type::Any,
        "this version mounts no NFS; mount it on the host and use hostPath",
    ),
    Field::no(
        "persistentVolumeClaim",
        Type::Any,
        "static pods may not reference persistentvolumeclaims; use hostPath",
    ),
    Field::no("photonPersistentDisk", Type::Any, NOT_MOUNTED),
    Field::no("portworxVolume", Type::Any, NOT_MOUNTED),
    Field::no("projected", Type::Any, NOT_MOUNTED),
    Field::no("quobyte", Type::Any, NOT_MOUNTED),
    Field::no("rbd", Type::Any, NOT_MOUNTED),
    Field::no("scaleIO", Type::Any, NOT_MOUNTED),
    Field::no("secret", Type::Any, "static pods may not reference secrets (via secret volumes)"),
    Field::no("storageos", Type::Any, NOT_MOUNTED),
    Field::no("vsphereVolume", Type::Any, NOT_MOUNTED),
];

static EMPTY_DIR: &[Field] = &[
    Field::differs(
        "medium",
        Type::String,
        "the disk (`\"\"`) and `Memory`; huge pages are not mounted by this version",
    ),
    Field::differs(
        "sizeLimit",
        Type::Quantity,
        "the size of the tmpfs for `Memory`; on disk, a pod that uses more is evicted within seconds",
    ),
];

static HOST_PATH: &[Field] = &[Field::yes("path", Type::String), Field::yes("type", Type::String)];
