//! Pure computations over a `PodSpec`: what the kubelet derives from a specification before it
//! talks to the runtime.
//!
//! Sums of resources and the QoS class, the values of the pod's cgroup, OOM scores, the container
//! hash by which a changed container is found again, environment variables with `$(VAR)`, names of
//! images, host names and paths. The formulas are the kubelet's: tools and dashboards compare the numbers, and
//! a pod moved between the two agents must not notice.
//!
//! Nothing here validates: `manifest` did that. A quantity that does not parse counts as absent.

mod after;
mod app_armor;
mod cgroup;
mod claims;
mod env;
mod ephemeral;
mod expand;
mod files;
mod grace;
mod hash;
mod huge_pages;
mod identity;
pub mod image_name;
mod image_volumes;
mod nfs;
mod objects;
mod oom;
mod priority;
mod resources;
mod runtime_class;
mod services;
mod swap;
mod sysctl;
mod tokens;
mod unsupported;
mod user_namespace;

pub use after::{after, is_job};
pub use app_armor::{APP_ARMOR_ANNOTATION, names_app_armor_profile};
pub use cgroup::{
    CgroupOptions, HugepageLimit, PodCgroup, burstable_shares, cgroup_amounts, cpu_quota_micros,
    cpu_shares, effective_limits, has_same_class, hugepage_limits, pod_cgroup, pod_cgroup_name,
    weight_of_shares,
};
pub use claims::{
    BoundVolume, ClaimError, ClaimedVolumes, MeasuredClaim, are_claims_known, bound_volume,
    claim_keys, claimed_volumes, is_claimed, measured_claims, volume_groups,
};
pub use env::{
    EnvContext, EnvError, ExpansionError, MAX_ENTRY_BYTES, MAX_EXEC_BYTES, TooLong, build_env,
    check_expansion, expand_command, expand_sub_path, probe_command,
};
pub use ephemeral::{
    all_containers, any_container_of, as_container, ephemeral_containers, image_of,
};
pub use expand::{expand, expanded_len};
pub use files::{
    FilesError, VolumeFile, VolumeFiles, check_volume_objects, clean_path, is_made_from_objects,
    is_made_of_files, is_mounted, metadata_hash, parent_paths, reads_metadata, shows_metadata,
    volume_files,
};
pub use grace::grace_seconds;
pub use hash::{back_off_hash, container_hash};
pub use huge_pages::{HugePagesError, huge_pages, is_on_huge_pages};
pub use identity::{
    HostnameError, container_log_path, container_of, hostname, is_host_network, is_node_critical,
    is_sidecar, is_static, pod_display, pod_log_directory_name, primary_ips, reported_start,
    uid_of,
};
pub use image_volumes::{
    ImageVolume, NeededImage, NoImageVolume, all_images, always_pulls, check_image_volume,
    image_volumes, needed_images, own_image,
};
pub use nfs::{NfsExportError, check_nfs_path, has_nfs_volume, nfs_export, nfs_server};
pub use objects::{
    ObjectRef, are_objects_known, are_services_known, check_env_objects, object_refs, object_scope,
    pull_secret_names, reads_the_same,
};
pub use oom::oom_score_adj;
pub use priority::{priority_of_class, resolve_priority};
pub use resources::{
    Amounts, QosClass, container_amounts, container_limits, container_requests, effective_requests,
    has_same_amounts, is_pod_level, pod_limits, pod_requests, qos_class, with_amounts_of,
};
pub use runtime_class::{
    NoRuntimeClass, NoUserNamespace, check_user_namespace, is_runtime_class_known, runtime_class,
    runtime_handler,
};
pub use services::is_linked;
pub use swap::swap_limit;
pub use sysctl::{
    SysctlNamespace, is_allowed_sysctl, is_safe_sysctl, sysctl_name, sysctl_namespace,
};
pub use tokens::token_keys;
pub use unsupported::{Unsupported, unsupported, unsupported_ephemeral};
pub use user_namespace::{IDS_PER_POD, IdRange, IdSpace, IdSpaceError, has_user_namespace};

#[cfg(test)]
mod tests;
