//! What a plan asks the worker to do. Every action carries what is needed to do it, except the
//! configuration sent to the runtime, which the worker makes from the pod.

use crate::model::{ContainerId, Event, PodUid, SandboxId};
use std::fmt;

/// The runtime is never given less time than this to stop a container, whatever the grace period
/// (seconds).
pub const MIN_STOP_SECONDS: u32 = 2;

/// One step. `uid` says which incarnation it belongs to; everything but `StartContainer`,
/// `CreateSandbox`, `PreparePod` and `Release` may concern one without a known spec.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make what the pod needs on the host: record on disk (before anything else), directories,
    /// cgroup, volumes. Idempotent and repeated before every start: what exists is left alone.
    PreparePod { uid: PodUid },
    /// Run a sandbox. Always the last action of its plan.
    CreateSandbox(CreateSandbox),
    /// Get a container running: image, create, start.
    StartContainer(StartContainer),
    /// Stop one container; it stays in the runtime as a dead instance.
    KillContainer(KillContainer),
    /// Stop containers in order, then sandboxes. Nothing is removed.
    KillPod(KillPod),
    /// Remove a container that does not run.
    RemoveContainer(RemoveContainer),
    /// Stop (again: it releases network and ports) and remove a sandbox.
    RemoveSandbox(RemoveSandbox),
    /// A pod that ended for good keeps its record, logs and dead containers; its volumes and its
    /// cgroup go.
    Release { uid: PodUid },
    /// Nothing of the incarnation is left in the runtime: its volumes, cgroup, directories, logs
    /// and, last, its record go.
    CleanUp { uid: PodUid },
}

/// Run a sandbox for the wished pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSandbox {
    pub uid: PodUid,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// The newest sandbox before it, for the back-off of sandboxes that keep dying.
    pub replaces: Option<SandboxId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartContainer {
    pub uid: PodUid,
    pub name: Box<str>,
    /// Which list of the spec it is in, and in what manner.
    pub kind: ContainerKind,
    /// The ready sandbox to create it in.
    pub sandbox_id: SandboxId,
    /// A created and never started container to start as it is; nothing is pulled or created then.
    pub created: Option<ContainerId>,
    /// `restartCount`, which is also the CRI attempt. `None`: nothing is known of earlier
    /// instances; take the highest number in the container's log directory + 1, or 0.
    pub restart_count: Option<u32>,
    /// `false` while pulling this image is backed off: look whether it is present by now, start if
    /// so, fail with [`super::Step::Image`] if not, and don't pull. Never `false` for policy
    /// `Always`, which waits instead.
    pub pull_allowed: bool,
    /// The dead instance that this start replaces, for the back-off.
    pub restart_of: Option<ContainerId>,
}

/// Which kind of container of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// In `initContainers`, runs to completion.
    Init,
    /// In `initContainers` with `restartPolicy: Always`: keeps running beside the regular ones.
    Sidecar,
    /// In `containers`.
    Regular,
}

impl ContainerKind {
    /// The field path that events about container `name` carry: `spec.containers{web}`.
    #[must_use]
    pub fn field_path(self, name: &str) -> String {
        match self {
            Self::Init | Self::Sidecar => format!("spec.initContainers{{{name}}}"),
            Self::Regular => format!("spec.containers{{{name}}}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillContainer {
    pub uid: PodUid,
    pub id: ContainerId,
    pub name: Box<str>,
    /// Timeout for `StopContainer`, at least [`MIN_STOP_SECONDS`].
    pub grace_seconds: u32,
    /// The `Killing` event, to be recorded before the call.
    pub event: Event,
    /// Killed in order to be started again: its exit is neither a crash nor an end of the pod.
    pub restart: bool,
}

/// Stop containers and sandboxes of one incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillPod {
    pub uid: PodUid,
    /// Why; decides what is written down before.
    pub purpose: KillPurpose,
    /// Containers of a group stop at the same time; a group begins when the one before has ended.
    /// Regular and init containers come first, then sidecars, one group each, in reverse order of
    /// their declaration. The time that earlier groups took is subtracted from a later group's
    /// `grace_seconds`, down to [`MIN_STOP_SECONDS`].
    pub groups: Vec<Vec<KillContainer>>,
    /// To be stopped after the containers, each exactly once, dead ones too (that releases their
    /// network).
    pub sandboxes: Vec<SandboxId>,
}

/// Why a pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillPurpose {
    /// The incarnation leaves. The worker writes the deadline into its record before the first call
    /// (so that a restarted agent goes on with what is left of it) and gives it back as
    /// [`super::Incarnation::kill`].
    Retire {
        /// The deadline to write.
        deadline: super::KillDeadline,
    },
    /// Its sandbox is to be replaced; its containers start again in the new one.
    Restart,
    /// A restart rule of container `source` said `RestartAllContainers`: everything starts again,
    /// in the same sandbox. The dead containers are removed next.
    RestartAll {
        /// Name of the container whose end matched the rule.
        source: Box<str>,
        /// The instance that ended.
        exited: ContainerId,
    },
    /// It has ended for good ([`super::PodPlan::terminal`]); what still runs (sidecars, sandbox)
    /// stops.
    Terminal,
    /// A second sandbox of the same incarnation, left by an interrupted start.
    Surplus,
    /// The machine goes down. Which containers it ends is written down first
    /// ([`super::Incarnation::interrupted`]).
    Shutdown,
}

/// Remove a dead (or never started) container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveContainer {
    pub uid: PodUid,
    pub id: ContainerId,
    /// Its name in the pod; empty when only its id is known (from a reserved name).
    pub name: Box<str>,
    /// `false`: its log files (`<n>.log*`, `n` its restart count) and its `/var/log/containers`
    /// link go too.
    pub keep_logs: bool,
    /// Its restart count, which numbers its log files.
    pub restart_count: u32,
}

/// Stop and remove a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveSandbox {
    pub uid: PodUid,
    pub id: SandboxId,
}

impl Action {
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        match self {
            Self::PreparePod { uid } | Self::Release { uid } | Self::CleanUp { uid } => uid,
            Self::CreateSandbox(a) => &a.uid,
            Self::StartContainer(a) => &a.uid,
            Self::KillContainer(a) => &a.uid,
            Self::KillPod(a) => &a.uid,
            Self::RemoveContainer(a) => &a.uid,
            Self::RemoveSandbox(a) => &a.uid,
        }
    }

    /// Whether the rest of the plan is dropped when this action fails. Only a regular container or
    /// a sidecar that does not start leaves the others their chance, as in the kubelet.
    #[must_use]
    pub fn failure_ends_pass(&self) -> bool {
        match self {
            Self::StartContainer(a) => a.kind == ContainerKind::Init,
            Self::PreparePod { .. }
            | Self::CreateSandbox(_)
            | Self::KillContainer(_)
            | Self::KillPod(_)
            | Self::RemoveContainer(_)
            | Self::RemoveSandbox(_)
            | Self::Release { .. }
            | Self::CleanUp { .. } => true,
        }
    }
}

impl KillPod {
    /// Every container that is stopped, in no particular order.
    pub fn containers(&self) -> impl Iterator<Item = &KillContainer> {
        self.groups.iter().flatten()
    }
}

/// One line for logs and traces: `start web (restart 2)`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreparePod { .. } => f.write_str("prepare"),
            Self::CreateSandbox(a) => write!(f, "create sandbox (attempt {})", a.attempt),
            Self::StartContainer(a) => {
                write!(f, "start {}", a.name)?;
                match (&a.created, a.restart_count) {
                    (Some(id), _) => write!(f, " (created {id})"),
                    (None, Some(count)) => write!(f, " (restart {count})"),
                    (None, None) => Ok(()),
                }?;
                f.write_str(if a.pull_allowed { "" } else { " (no pull)" })
            }
            Self::KillContainer(a) => write!(f, "kill {} (grace {} s)", a.name, a.grace_seconds),
            Self::KillPod(a) => {
                let purpose = match &a.purpose {
                    KillPurpose::Retire { .. } => "retire",
                    KillPurpose::Restart => "restart",
                    KillPurpose::RestartAll { .. } => "restart all",
                    KillPurpose::Terminal => "end",
                    KillPurpose::Surplus => "surplus",
                    KillPurpose::Shutdown => "shutdown",
                };
                write!(f, "kill pod ({purpose})")?;
                for group in &a.groups {
                    let names: Vec<String> =
                        group.iter().map(|k| format!("{} {} s", k.name, k.grace_seconds)).collect();
                    write!(f, " [{}]", names.join(", "))?;
                }
                for id in &a.sandboxes {
                    write!(f, " {id}")?;
                }
                Ok(())
            }
            Self::RemoveContainer(a) => write!(
                f,
                "remove {} {}{}",
                if a.name.is_empty() { "container" } else { &a.name },
                a.id,
                if a.keep_logs { " (logs stay)" } else { "" }
            ),
            Self::RemoveSandbox(a) => write!(f, "remove sandbox {}", a.id),
            Self::Release { .. } => f.write_str("release"),
            Self::CleanUp { .. } => f.write_str("clean up"),
        }
    }
}
