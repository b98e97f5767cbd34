//! From a pod to the messages that make it run: the sandbox's and the containers' configuration,
//! exactly as the kubelet sends them, plus this agent's owner label on the sandbox.
//!
//! Everything that needs the host (paths, mounts, addresses, the environment) comes in as plain
//! input; nothing here reads anything.

mod container;
mod resources;
mod sandbox;
mod security;

pub use container::container_config;
pub use resources::resized;
pub use sandbox::sandbox_config;
pub use security::thermal_throttle_paths;

use crate::model::{ContainerId, k8s};
use crate::podspec::IdRange;
use std::collections::BTreeSet;
use thiserror::Error;

/// Facts and settings of the node that requests depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent settings, each a yes or no as configured"
)]
pub struct NodeFacts {
    /// Memory of the machine in bytes.
    pub memory_bytes: i64,
    /// Whether the host uses the unified hierarchy.
    pub cgroup_v2: bool,
    /// Sizes in bytes of the huge pages that a cgroup can limit; none without a hugetlb controller.
    pub hugepage_sizes_bytes: Vec<u64>,
    /// What of swap containers may use; `None` where memory cgroups do not account for it.
    pub swap: Option<Swap>,
    /// `cpuCFSQuota`
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds.
    pub cpu_period_micros: u64,
    /// `singleProcessOOMKill`; `None` is the default, which is false on cgroup v2.
    pub single_process_oom_kill: Option<bool>,
    /// `seccompDefault`
    pub seccomp_default: bool,
    /// Whether SELinux is on: without it nothing is relabelled.
    pub selinux: bool,
    /// Directory of local seccomp profiles, `<root>/seccomp`.
    pub seccomp_root: String,
    /// Paths to mask that exist on this machine only, see [`thermal_throttle_paths`].
    pub masked_paths: Vec<String>,
}

/// `memorySwap.swapBehavior`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// None.
    No,
    /// A part of the node's, see [`crate::podspec::swap_limit`]. Only on cgroup v2.
    Limited {
        /// Swap of the machine in bytes.
        node_bytes: i64,
    },
}

/// Input of [`sandbox_config`].
#[derive(Clone, Copy, Debug)]
pub struct SandboxInputs<'a> {
    /// The pod; name, namespace and uid are taken from its metadata.
    pub pod: &'a k8s::Pod,
    /// One more than the highest attempt seen for this uid; 0 at first.
    pub attempt: u32,
    /// This agent's owner id.
    pub owner: &'a str,
    /// See `podspec::hostname`; empty on the host's network.
    pub hostname: &'a str,
    /// Name resolution.
    pub dns: &'a DnsInputs,
    /// Absolute path of the pod's log directory.
    pub log_directory: &'a str,
    /// The pod's cgroup as the runtime wants it; empty without cgroups per QoS class.
    pub cgroup_parent: &'a str,
    /// The groups of its PersistentVolumes, see `podspec::volume_groups`.
    pub volume_groups: &'a BTreeSet<i64>,
    /// The ids of the pod's user namespace; `None`: those of the host.
    pub ids: Option<IdRange>,
    /// The node.
    pub node: &'a NodeFacts,
}

/// Contents of the pod's resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsInputs {
    /// Name servers, first asked first.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options (`ndots:5`).
    pub options: Vec<String>,
}

/// Input of [`container_config`].
#[derive(Clone, Copy, Debug)]
pub struct ContainerInputs<'a> {
    /// The pod.
    pub pod: &'a k8s::Pod,
    /// One of its containers of any kind, an ephemeral one in the form of a container.
    pub container: &'a k8s::Container,
    /// Restart count of the instance to make; 0 at first.
    pub restart_count: u32,
    /// The image as found.
    pub image: ImageInputs<'a>,
    /// The finished environment, see `podspec::build_env`.
    pub env: &'a [(String, String)],
    /// All mounts in order: volumes, then `/etc/hosts` and the termination log.
    pub mounts: &'a [MountInput],
    /// The running container whose process id namespace an ephemeral container shares, if the
    /// containers of the pod do not share one anyway.
    pub target: Option<&'a ContainerId>,
    /// The groups of the PersistentVolumes of the pod, see `podspec::volume_groups`.
    pub volume_groups: &'a BTreeSet<i64>,
    /// The ids of the pod's user namespace; `None`: those of the host.
    pub ids: Option<IdRange>,
    /// The node.
    pub node: &'a NodeFacts,
}

/// What the runtime says about the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInputs<'a> {
    /// The id or reference that the container is made from.
    pub reference: &'a str,
    /// The image's numeric user.
    pub uid: Option<i64>,
    /// The image's user name, when it is no number.
    pub username: &'a str,
}

/// A directory or file of the host, or an image, in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInput {
    /// What is mounted.
    pub source: MountSource,
    /// Path in the container; made absolute.
    pub container_path: String,
    /// Who may write.
    pub access: Access,
    /// Whether the runtime is to relabel it for SELinux.
    pub selinux_relabel: bool,
    /// How mounts spread.
    pub propagation: Propagation,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// An absolute path on the host.
    Path(String),
    /// An image, which the runtime mounts.
    Image {
        /// The runtime's id of it.
        id: String,
        /// As written in the pod.
        reference: String,
        /// A path in it; empty for the whole image.
        sub_path: String,
    },
}

/// What a container may do to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Write.
    #[default]
    ReadWrite,
    /// Read; a mount below it may be writable.
    ReadOnly,
    /// Read, with everything below it.
    RecursivelyReadOnly,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// `None`
    #[default]
    Private,
    /// `HostToContainer`
    HostToContainer,
    /// `Bidirectional`
    Bidirectional,
}

/// Why a container's configuration can't be made (`CreateContainerConfigError`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The specification itself asks for root.
    #[error(
        "container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})"
    )]
    RunsAsRoot {
        /// As messages show pods.
        pod: String,
        /// Container name.
        container: String,
    },
    /// The image does.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})"
    )]
    ImageRunsAsRoot {
        /// As messages show pods.
        pod: String,
        /// Container name.
        container: String,
    },
    /// The image names a user whose number only the container knows.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    UserUnknown {
        /// The image's user.
        user: String,
        /// As messages show pods.
        pod: String,
        /// Container name.
        container: String,
    },
    /// A local profile without a name.
    #[error("localhostProfile must be set if {kind} profile type is Localhost")]
    ProfileMissing {
        /// `seccomp` or `AppArmor`.
        kind: &'static str,
    },
}

#[cfg(test)]
mod tests;
