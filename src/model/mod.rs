//! The vocabulary that all modules share: ids, the two clocks, what is desired, what was observed,
//! events and published views. Plain data, no I/O, no clock.
//!
//! The specification's own vocabulary is `k8s_openapi::api::core::v1`, re-exported here as [`k8s`];
//! there is no second Pod model.

mod amounts;
mod api_objects;
mod asked;
mod bucket;
mod capacity;
mod cgroup;
mod claim;
mod cluster;
mod conditions;
mod desired;
mod digest;
mod duration;
mod error_chain;
mod event;
mod history;
mod ids;
mod json;
mod known;
mod log_name;
mod mountinfo;
mod object;
mod observed;
mod order;
mod pressure;
mod printable;
mod probe;
mod problem;
mod quantity;
mod scheduling;
mod shutdown;
mod stats;
mod system_logs;
mod time;
mod url;
mod usage;
mod view;

pub use amounts::{ContainerAmounts, CpuMemory, ResizeWait};
pub use api_objects::{
    ApiObjects, ClusterService, ClusterServicePort, ClusterServices, ObjectAnswer, RuntimeClasses,
    SavedAnswers, ServiceAccountToken, TokenAnswer, TokenKey,
};
pub use asked::{Ask, AskAnswer, Asked};
pub use bucket::Bucket;
pub use capacity::NodeCapacity;
pub use cgroup::{CgroupDriver, ToldDriver};
pub use claim::{ClaimAnswer, ClaimKey, PersistentSource, PersistentVolume};
pub use cluster::{CLIENT_CERTIFICATE, CloudProvider, ClusterTrouble, ClusterView};
pub use conditions::{ConditionState, NodeConditions};
pub use desired::{DesiredPod, Origin, PodEnd, SourceKind, TerminalPhase};
pub use digest::{hex, short_digest};
pub use duration::{format_duration, parse_duration, rough_seconds};
pub use error_chain::error_chain;
pub use event::{Event, EventKind, EventTarget};
pub use history::{UseHistory, UseSample, Used};
pub use ids::{ContainerId, PodKey, PodUid, SandboxId};
pub use json::{from_json, to_json_value};
pub use k8s_openapi::api::core::v1 as k8s;
pub use known::{Completeness, Known};
pub use log_name::{LogKind, LogName, MOST_LOG_NAMES};
pub use mountinfo::{MountEntry, parse_mountinfo};
pub use object::{DataObject, Datum, NodeObjects, ObjectKey, ObjectKind, ObjectScope, ObjectSight};
pub use observed::{
    ContainerState, NetworkMode, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState,
};
pub use order::{CollectOrdered, Order};
pub use pressure::{
    ConditionWords, Evicted, Hold, HoldStop, Pressure, PressureOrders, REFUSAL_PREFIX, Reading,
    Readings, Signal,
};
pub use printable::{printable, printable_lines};
pub use probe::{Finding, NodeProbes, PodProbes, ProbeKind, ProbeResults, ProbeView, ProbeViews};
pub use problem::{Position, Problem};
pub use quantity::{Quantity, QuantityError};
pub use scheduling::{NodeScheduling, is_extended_resource};
pub use shutdown::{
    Ending, MachineState, SYSTEM_CRITICAL_PRIORITY, Shutdown, ShutdownPeriod, ShutdownPeriods,
    priority_of,
};
pub use stats::{
    CgroupStats, ClaimStats, ContainerStats, CpuStats, DeviceIo, FsStats, ImagesUse,
    InterfaceStats, LogSize, MeasuredSpace, MemoryStats, NodeStats, PodStats, Psi, Stall, Stats,
    StatsDepth, SwapStats, Throttling, Traffic, VolumeStats,
};
pub use system_logs::SystemLogs;
pub use time::Now;
pub use url::without_secrets;
pub use usage::{
    CgroupDirs, ContainerUse, DiskLayout, PartlyMeasured, PodUse, Space, VolumePlace, VolumeUse,
};
pub use view::{
    ContainerInstance, EvictedView, FileReport, FileVerdict, ForeignPod, HungPod, NodeView,
    PlegView, PodConfig, PodUpdate, PodView, PodViews, PressureView, ReliefView, RuntimeView,
    SignalView, SourceView,
};

/// The version that the agent tells where Kubernetes expects the kubelet's: the release whose node
/// agent it stands for.
pub const KUBELET_VERSION: &str = concat!("v1.36.0+nodelet.", env!("CARGO_PKG_VERSION"));
/// Label on every sandbox that this agent makes: the owner id kept in the root directory.
/// Sandboxes without it, or with another value, are listed and never touched.
pub const OWNER_LABEL: &str = "nodelet.dev/owner";
/// Annotation on a pod: the hash of everything that was written in its manifest.
pub const REVISION_ANNOTATION: &str = "nodelet.dev/revision";
/// Annotation of a pod, `"true"` or `"false"`: its containers are restarted when a ConfigMap or
/// Secret that it reads has changed.
pub const RESTART_ON_CONFIG_CHANGE: &str = "nodelet.dev/restart-on-config-change";
/// Annotation of a pod, `"true"` or `"false"`: a new revision that does not become Ready is replaced
/// by the last one that was.
pub const ROLLBACK: &str = "nodelet.dev/rollback";
/// Annotation of a pod: for how many seconds a new revision must be Ready without a break.
pub const MIN_READY_SECONDS: &str = "nodelet.dev/min-ready-seconds";
/// Its default, in seconds.
pub const MIN_READY: u32 = 10;
/// Annotation of a pod: after how many seconds a new revision that is not Ready is rolled back.
pub const PROGRESS_DEADLINE_SECONDS: &str = "nodelet.dev/progress-deadline-seconds";
/// Its default, in seconds: half of what a Deployment has.
pub const PROGRESS_DEADLINE: u32 = 300;
/// Annotation of a pod: the names of pods of its namespace, separated by commas, that must be ready
/// (jobs: have succeeded) before it begins. It is not part of the pod's identity.
pub const AFTER: &str = "nodelet.dev/after";
/// Annotation of a pod of the API server, `"true"`: after a restart of the agent or the machine it
/// also starts while the API server is away, as its record has it.
pub const RUN_FROM_CHECKPOINT: &str = "nodelet.dev/run-from-checkpoint";
/// Annotation of a Secret in a file: keys whose values are credentials that systemd has given the
/// agent, `KEY=CREDENTIAL`, separated by commas.
pub const CREDENTIALS: &str = "nodelet.dev/credentials";
