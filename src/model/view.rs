//! What is published for readers: the local socket, the command line and, later, the API reporter
//! and the eviction ranking. Readers never ask a worker; they take the latest view.

use super::{
    CgroupDriver, ObjectKey, Origin, PodKey, PodUid, Position, ProbeView, Problem, Signal,
    SourceKind, TerminalPhase, k8s, order::CollectOrdered as _,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// A pod as people see it: `kind: Pod` parts plus what Kubernetes has no field for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodView {
    /// Full name.
    pub key: PodKey,
    /// The incarnation that `pod` and `status` describe.
    pub uid: PodUid,
    /// Metadata and spec as running (defaults applied). `None` for what remains of a pod whose spec
    /// is lost.
    pub pod: Option<Arc<k8s::Pod>>,
    /// `PodStatus` as the kubelet would report it.
    pub status: Arc<k8s::PodStatus>,
    /// The newest instance of each container, init containers included, in the order of the spec.
    #[serde(skip)]
    pub containers: Vec<ContainerInstance>,
    /// Where it is written; `None` when its manifest is gone.
    pub origin: Option<Origin>,
    /// What says that there is the pod.
    #[serde(skip)]
    pub config: PodConfig,
    /// Being stopped: its manifest was removed or replaced, or its object was deleted.
    pub terminating: bool,
    /// It has ended for good, nothing of it runs, and its volumes and cgroup are gone.
    #[serde(skip)]
    pub stopped: bool,
    /// Every call on it that is past its deadline, or else its inspection that hangs: which, on
    /// what, and for how long. Calls are separated by `; `.
    pub hung: Option<String>,
    /// What it waits for when its containers' states don't tell (the network, the runtime, an older
    /// incarnation), or which of its containers are being restarted because a person has asked.
    pub waiting: Option<String>,
    /// Why another revision runs than the one that is written in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<PodUpdate>,
    /// The revision that would run again if this one were rolled back. Its images are kept.
    #[serde(skip)]
    pub previous: Option<Arc<k8s::Pod>>,
    /// Its probes. They are filled in when a reader asks; the views that workers publish have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeView>,
}

impl PodView {
    /// True when the pod is known only from the runtime and is being removed: neither a manifest
    /// nor a record tells of it.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.config == PodConfig::RuntimeOnly && self.terminating
    }

    /// True when its phase is final: `Succeeded` or `Failed`. Containers of it may still be
    /// stopping.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        TerminalPhase::of(&self.status).is_some()
    }

    /// True when its phase is final and none of its containers runs.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.has_ended() && self.containers.iter().all(|one| one.running_since.is_none())
    }
}

/// What says that there is a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodConfig {
    /// A manifest, or an earlier run of the agent while the sources are not read completely.
    #[default]
    Desired,
    /// Only the agent's own record: the manifest was removed or replaced.
    Orphan,
    /// Only the runtime.
    RuntimeOnly,
}

/// Why a pod does not run the revision that is written in its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodUpdate {
    /// The new revision cannot take over yet, so the old one runs on: why, the rest of a sentence.
    Waits(String),
    /// The new revision was rolled back, so an earlier one runs: why, one sentence.
    RolledBack(String),
}

/// Every pod's view by full name.
pub type PodViews = BTreeMap<PodKey, Arc<PodView>>;

/// The newest instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerInstance {
    /// Its name in the spec.
    pub name: Box<str>,
    /// Its id in the runtime.
    pub id: super::ContainerId,
    /// How often the container was restarted before it: the number in the name of its log file.
    pub restart_count: u32,
    /// When its process started; `None` when it does not run.
    pub running_since: Option<Timestamp>,
    /// It runs and has started: its postStart hook has ended, and its startup probe has succeeded, if
    /// it has them.
    pub started: bool,
    /// Its postStart hook has not ended. It is not probed until then, as with the kubelet.
    pub in_post_start: bool,
}

/// The node as people see it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeView {
    /// The node's name.
    pub name: String,
    /// The agent's own version.
    pub version: String,
    /// The agent's process id.
    pub pid: u32,
    /// Wall time of the agent's start, RFC 3339.
    pub started_at: String,
    /// The runtime.
    pub runtime: RuntimeView,
    /// The cgroup driver in use; `None` until the runtime was asked for its own.
    #[serde(default)]
    pub cgroup_driver: Option<CgroupDriver>,
    /// The machine is going down, and what it waits for.
    #[serde(default)]
    pub shutdown: Option<String>,
    /// The node's conditions.
    #[serde(default)]
    pub conditions: super::NodeConditions,
    /// What may run short.
    #[serde(default)]
    pub pressure: PressureView,
    /// The cluster that the node is part of; `None` without `--kubeconfig`.
    #[serde(default)]
    pub cluster: Option<Arc<super::ClusterView>>,
    /// The relist loop.
    pub pleg: PlegView,
    /// Each configured source.
    pub sources: Vec<Arc<SourceView>>,
    /// Configuration fields and flags that are set and not acted on.
    pub notices: Vec<String>,
    /// Node-wide trouble a person should know (disk full, cgroup root missing, ...).
    pub warnings: Vec<String>,
    /// Pods of other owners on the same runtime.
    pub foreign: Vec<ForeignPod>,
}

/// The container runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeView {
    /// Socket.
    pub endpoint: String,
    /// `containerd`
    pub name: String,
    /// Its version.
    pub version: String,
    /// `None` when ready; else why not.
    pub not_ready: Option<String>,
    /// `None` when the pod network is ready; else why not.
    pub network_not_ready: Option<String>,
    /// Its handlers by name, with what they can do.
    #[serde(default)]
    pub handlers: Vec<super::k8s::NodeRuntimeHandler>,
    /// What it can do as a whole, where it tells.
    #[serde(default)]
    pub features: Option<super::k8s::NodeFeatures>,
}

impl NodeView {
    /// Pods whose manifest is not acted on, and that run from an earlier revision of it.
    #[must_use]
    pub fn last_good(&self) -> BTreeSet<&PodKey> {
        let verdicts = self.sources.iter().flat_map(|s| &s.files).flat_map(|file| &file.verdicts);
        verdicts
            .filter_map(|verdict| match verdict {
                FileVerdict::Rejected { key: Some(key), last_good: true, .. } => Some(key),
                FileVerdict::Rejected { .. }
                | FileVerdict::Accepted { .. }
                | FileVerdict::Object { .. }
                | FileVerdict::Skipped { .. } => None,
            })
            .collect_ordered()
    }
}

impl RuntimeView {
    /// Whether this handler can make mounts read-only with everything below them. The empty name is
    /// the default handler.
    #[must_use]
    pub fn has_recursive_read_only(&self, handler: &str) -> bool {
        self.features_of(handler).and_then(|has| has.recursive_read_only_mounts) == Some(true)
    }

    /// Whether this handler can give a pod a user namespace. The empty name is the default handler.
    #[must_use]
    pub fn has_user_namespaces(&self, handler: &str) -> bool {
        self.features_of(handler).and_then(|has| has.user_namespaces) == Some(true)
    }

    fn features_of(&self, handler: &str) -> Option<&super::k8s::NodeRuntimeHandlerFeatures> {
        let named = |one: &&super::k8s::NodeRuntimeHandler| {
            one.name.as_deref().unwrap_or_default() == handler
        };
        self.handlers.iter().find(named)?.features.as_ref()
    }
}

/// What may run short, and what was done about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureView {
    /// Each signal that a threshold watches.
    pub signals: Vec<SignalView>,
    /// Pods that were evicted and are not back yet.
    pub evicted: Vec<EvictedView>,
    /// What was done last, oldest first.
    pub steps: Vec<ReliefView>,
    /// What can't be read or done, one sentence each.
    pub trouble: Vec<String>,
}

/// A signal and its thresholds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalView {
    /// Which.
    pub signal: Signal,
    /// What is left when it was read last: bytes, inodes or process ids. `None`: it can't be read.
    pub available: Option<u64>,
    /// What there is altogether.
    pub capacity: Option<u64>,
    /// Its thresholds, as people read them: `100Mi`, `10% (soft, 1m0s)`.
    pub thresholds: Vec<String>,
    /// The amounts of these thresholds, in the signal's unit. Empty while the capacity is unknown.
    #[serde(default)]
    pub marks: Vec<u64>,
    /// A threshold is crossed.
    pub crossed: bool,
    /// Since when it is crossed, or is not.
    pub since: Option<Timestamp>,
}

/// A pod that was evicted and is not back yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictedView {
    /// Which.
    pub key: PodKey,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub message: String,
    /// When it may come back at the earliest, where no pressure keeps it away.
    pub back_at: Option<Timestamp>,
    /// What it waits for.
    pub waits_for: String,
}

/// One step against pressure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReliefView {
    /// When.
    pub at: Timestamp,
    /// What ran short.
    pub signal: Signal,
    /// What was done: `evicted default/hog`, `removed unused images`.
    pub what: String,
    /// How much more was available afterwards, in the signal's unit; `None` when it could not be
    /// measured.
    pub freed: Option<u64>,
    /// How much it was expected to free.
    pub expected: Option<u64>,
}

/// The relist loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlegView {
    /// When the last full listing began; `None` before the first.
    pub last_relist_at: Option<Timestamp>,
    /// `None` when healthy; else the kubelet's message.
    pub unhealthy: Option<String>,
    /// Whether runtime events arrive.
    pub events_connected: bool,
    /// Pods whose inspection hangs.
    pub hung: Vec<HungPod>,
}

/// A pod whose inspection hangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HungPod {
    /// Which.
    pub key: PodKey,
    /// What is hanging.
    pub what: String,
}

/// A source of manifests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceView {
    /// File or URL.
    pub kind: SourceKind,
    /// The path or URL.
    pub location: String,
    /// What is wrong with the source itself (missing, unreadable, ...).
    pub error: Option<String>,
    /// Each file (or the one body of a URL).
    pub files: Vec<FileReport>,
    /// The agent has not looked at it since it started.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unread: bool,
}

impl SourceView {
    /// A source without files.
    #[must_use]
    pub fn empty(kind: SourceKind, location: impl Into<String>) -> Self {
        Self { kind, location: location.into(), error: None, files: Vec::new(), unread: false }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What was made of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileReport {
    /// Full path, or the URL.
    pub location: String,
    /// One per document; exactly one for a file that is skipped or does not parse.
    pub verdicts: Vec<FileVerdict>,
}

/// What was made of one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum FileVerdict {
    /// Desired and running (or getting there).
    Accepted {
        /// Full name.
        key: PodKey,
        /// Fields that are known and harmlessly not acted on.
        warnings: Vec<Problem>,
    },
    /// A ConfigMap or Secret that pods may read.
    Object {
        /// Its name.
        key: ObjectKey,
        /// Fields that are known and harmlessly not acted on.
        warnings: Vec<Problem>,
    },
    /// Not acted on.
    Rejected {
        /// Full name of a pod, where it could be made out.
        key: Option<PodKey>,
        /// The name of a ConfigMap or Secret, where it could be made out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ObjectKey>,
        /// Where the document begins.
        position: Position,
        /// Everything that is wrong.
        problems: Vec<Problem>,
        /// Whether an earlier good revision is used in its place.
        last_good: bool,
    },
    /// Not looked at, with the reason (`not a *.yaml, *.yml or *.json file`, `backup file`, ...).
    Skipped {
        /// Why.
        reason: String,
    },
}

impl FileVerdict {
    /// Not acted on, because something is wrong with it.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        matches!(self, Self::Rejected { .. })
    }
}

/// A pod on the same runtime that this agent did not create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignPod {
    /// Full name.
    pub key: PodKey,
    /// Its uid.
    pub uid: PodUid,
    /// Owner label of another nodelet, if it has one.
    pub owner: Option<String>,
    /// Whether a sandbox of it is ready.
    pub running: bool,
    /// Its IPs.
    pub ips: Vec<IpAddr>,
}
