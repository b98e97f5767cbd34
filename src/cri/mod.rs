//! The container runtime: the client of its CRI v1 services, and the only place that converts to
//! and from its messages.
//!
//! Reads carry a deadline and are dropped when it passes. Calls that change something carry none:
//! dropping such a call cancels it half-way inside the runtime, so the caller awaits it, however
//! long that takes. Nothing is retried here: the caller looks again and decides anew.
//!
//! ```text
//! k8s::Pod ── to_cri ──► v1::PodSandboxConfig, v1::ContainerConfig ──► RuntimeClient ──► runtime
//! ObservedSandbox, ObservedContainer ◄── from_cri ── v1 lists and statuses ◄──┘
//! ```

mod client;
mod error;
mod events;
mod exec;
pub mod from_cri;
mod images;
mod layers;
mod stats;
mod streaming;
mod tasks;
pub mod to_cri;

pub use client::{ListFilter, Readiness, RuntimeClient, RuntimeVersion};
pub use error::CriError;
pub use events::{EventStream, RuntimeEvent, TimedEvent};
pub use exec::ExecOutput;
pub use images::{ImageFilesystems, ImageFound};
pub use layers::WritePlaces;
pub use streaming::Streams;
pub use to_cri::{
    Access, ConfigError, ContainerInputs, DnsInputs, ImageInputs, MountInput, MountSource,
    NodeFacts, Propagation, SandboxInputs,
};

/// CRI v1 as generated from `proto/cri_runtime_v1.proto`: messages, client and server.
#[allow(missing_docs, reason = "generated; the comments are in proto/")]
#[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// containerd's own services, as generated from `proto/containerd_*.proto`.
#[allow(missing_docs, reason = "generated; the comments are in proto/")]
#[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "generated")]
pub mod containerd {
    /// The event service.
    pub mod services {
        tonic::include_proto!("containerd.services.events.v1");
    }
    /// The container service.
    pub mod containers {
        tonic::include_proto!("containerd.services.containers.v1");
    }
    /// The snapshot service.
    pub mod snapshots {
        tonic::include_proto!("containerd.services.snapshots.v1");
    }
    /// The task service.
    pub mod tasks {
        tonic::include_proto!("containerd.services.tasks.v1");
    }
    /// What its envelopes carry.
    pub mod events {
        tonic::include_proto!("containerd.events");
    }
}

/// Label on sandboxes and containers: the pod's name.
pub const POD_NAME_LABEL: &str = "io.kubernetes.pod.name";
/// Label on sandboxes and containers: the pod's namespace.
pub const POD_NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
/// Label on sandboxes and containers: the pod's uid.
pub const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Label on containers: the name within the pod.
pub const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";

/// Annotations on containers, from which a container is understood again after a restart.
pub mod annotation {
    /// See `podspec::container_hash`.
    pub const HASH: &str = "io.kubernetes.container.hash";
    /// How often it was restarted.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// `terminationMessagePath`
    pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// `terminationMessagePolicy`
    pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// The cpu and memory that the container was made with, as JSON of
    /// [`crate::model::ContainerAmounts`]. Our own.
    pub const RESOURCES: &str = "nodelet.dev/resources";
    /// The runtime's ids of the images of the container's volumes, with a comma between them: lists
    /// of containers do not show mounts. Our own.
    pub const IMAGE_VOLUMES: &str = "nodelet.dev/image-volumes";
    /// `lifecycle.preStop` as JSON. Other tools read it.
    pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    /// `ports` as JSON.
    pub const PORTS: &str = "io.kubernetes.container.ports";
    /// `terminationGracePeriodSeconds` of the pod.
    pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// `metadata.deletionGracePeriodSeconds` of the pod.
    pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
}
