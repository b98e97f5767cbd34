//! The steps that a plan asks the worker to take. An action carries everything that the step needs,
//! except the configuration that is sent to the runtime: the worker makes that from the pod.

use crate::model::{ContainerAmounts, ContainerId, Event, PodUid, SandboxId};
use std::fmt;

/// The shortest timeout, in seconds, with which the runtime is asked to stop a container, whatever
/// the grace period is.
pub const MIN_STOP_SECONDS: u32 = 2;

/// One step. `uid` names the incarnation that it belongs to. `StartContainer`, `CreateSandbox`,
/// `PreparePod` and `Release` need the pod's spec; the other actions also work on an incarnation
/// whose spec is not known.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Prepares what the pod needs on the host: first its record on disk, then directories, cgroup
    /// and volumes. It is repeated before every start and leaves alone what exists already.
    PreparePod { uid: PodUid },
    /// Runs a sandbox. It is always the last action of its plan.
    CreateSandbox(CreateSandbox),
    /// Gets a container running: its image, its creation, its start.
    StartContainer(StartContainer),
    /// Changes the cpu and memory of containers that run, and of the pod's cgroup.
    Resize(Resize),
    /// Stops one container. The container stays in the runtime as a dead instance.
    KillContainer(KillContainer),
    /// Stops containers in order, and then sandboxes. It removes nothing.
    KillPod(KillPod),
    /// Removes a container that does not run.
    RemoveContainer(RemoveContainer),
    /// Stops and removes a sandbox. Stopping it again releases its network and ports.
    RemoveSandbox(RemoveSandbox),
    /// Removes the volumes and the cgroup of a pod that has ended for good. Its record, logs and
    /// dead containers stay.
    Release { uid: PodUid },
    /// Removes volumes, cgroup, directories, logs and, last, the record of an incarnation of which
    /// nothing is left in the runtime.
    CleanUp { uid: PodUid },
}

/// Runs a sandbox for the wished pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSandbox {
    pub uid: PodUid,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// The newest sandbox before this one. It counts for the back-off of sandboxes that die again
    /// and again.
    pub replaces: Option<SandboxId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartContainer {
    pub uid: PodUid,
    pub name: Box<str>,
    /// The list of the spec that the container is in, and how it runs.
    pub kind: ContainerKind,
    /// The ready sandbox in which the container is created.
    pub sandbox_id: SandboxId,
    /// A container that was created and never started. It is started as it is; nothing is pulled or
    /// created.
    pub created: Option<ContainerId>,
    /// `restartCount`, which is also the CRI attempt. `None`: no earlier instance is known, and the
    /// worker takes the highest number in the container's log directory plus 1, or 0.
    pub restart_count: Option<u32>,
    pub pull: Pull,
    /// The running container whose process id namespace an ephemeral container shares. `None`: the
    /// settings of the pod apply.
    pub target: Option<ContainerId>,
    /// The dead instance that this start replaces.
    pub restart_of: Option<Crashed>,
}

/// A dead instance whose end counts for the back-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crashed {
    pub id: ContainerId,
    /// A hash of the image and resources that the next instance has
    /// ([`crate::podspec::back_off_hash`]). The back-off begins anew with each other one.
    pub definition: u32,
}

/// Which images of its container a start may pull: its own and those of its image volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// As the pull policies say.
    ByPolicy,
    /// The images were fetched before the old revision of the pod was stopped. They are pulled only
    /// if they are absent now, also with the policy `Always`.
    Fetched,
    /// Pulls of these images are backed off: the container is started if they are present by now;
    /// otherwise the action fails with [`super::Step::Image`] and pulls nothing. It is not used
    /// when an image has the policy `Always`, which waits for the end of the back-off instead.
    NotNow(Vec<Box<str>>),
}

/// How a container of the pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// In `initContainers`; it runs to completion.
    Init,
    /// In `initContainers` with `restartPolicy: Always`; it keeps running beside the regular
    /// containers.
    Sidecar,
    /// In `containers`.
    Regular,
    /// In `ephemeralContainers`; it is started once.
    Ephemeral,
}

impl ContainerKind {
    /// The field path in events about container `name`: `spec.containers{web}`.
    #[must_use]
    pub fn field_path(self, name: &str) -> String {
        match self {
            Self::Init | Self::Sidecar => format!("spec.initContainers{{{name}}}"),
            Self::Regular => format!("spec.containers{{{name}}}"),
            Self::Ephemeral => format!("spec.ephemeralContainers{{{name}}}"),
        }
    }
}

/// Changes the cpu and memory of a pod that has a sandbox, up to what its specification has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    pub uid: PodUid,
    /// The containers that are changed in place. The limits of the pod's cgroup are raised before.
    pub containers: Vec<ResizeContainer>,
    /// The pod's cgroup then gets exactly the limits of the specification. False while a container
    /// that is restarted for its new amounts still runs with the old ones.
    pub finish: bool,
}

/// A container that is changed in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeContainer {
    pub id: ContainerId,
    pub name: Box<str>,
    pub kind: ContainerKind,
    /// The amounts that it runs with.
    pub from: ContainerAmounts,
    /// The amounts of the specification.
    pub to: ContainerAmounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillContainer {
    pub uid: PodUid,
    pub id: ContainerId,
    pub name: Box<str>,
    /// The timeout for `StopContainer` in seconds, at least [`MIN_STOP_SECONDS`].
    pub grace_seconds: u32,
    /// The `Killing` event. It is recorded before the call.
    pub event: Event,
    pub restart: Restart,
    /// The preStop hook is called first, because there is time for it.
    pub pre_stop: bool,
}

/// Whether a container starts again because it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Its restart policy alone decides.
    ByPolicy,
    /// It starts again at once. Its exit counts neither as a crash nor as an end of the pod.
    AtOnce,
    /// It starts again after its back-off, whatever its exit code is: a probe has failed.
    AfterBackOff,
}

/// Stops containers and sandboxes of one incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillPod {
    pub uid: PodUid,
    /// Why the pod is stopped. It decides what is saved before the first call.
    pub purpose: KillPurpose,
    /// Containers of a group stop at the same time, and a group begins when the one before it has
    /// ended. The first group holds the regular, init and ephemeral containers. Each sidecar is a
    /// group of its own, in reverse order of declaration. The time that earlier groups took is
    /// subtracted from the `grace_seconds` of later groups, down to [`MIN_STOP_SECONDS`].
    pub groups: Vec<Vec<KillContainer>>,
    /// The sandboxes to stop after the containers, each exactly once. Dead sandboxes are stopped as
    /// well, which releases their network.
    pub sandboxes: Vec<SandboxId>,
}

/// Why a pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillPurpose {
    /// The incarnation is removed. The worker saves the deadline in its record before the first
    /// call, and gives it back as [`super::Incarnation::kill`]. So a restarted agent grants only
    /// the time that is left.
    Retire {
        /// The deadline to save.
        deadline: super::KillDeadline,
    },
    /// The sandbox is replaced; the containers start again in the new one.
    Restart,
    /// A restart rule of container `source` said `RestartAllContainers`: all containers start again
    /// in the same sandbox. The dead containers are removed next.
    RestartAll {
        /// The name of the container whose end matched the rule.
        source: Box<str>,
        /// The instance that ended.
        exited: Crashed,
    },
    /// The pod has ended for good ([`super::PodPlan::terminal`]). Whatever still runs, sidecars and
    /// sandbox, is stopped.
    Terminal,
    /// It is a second sandbox of the same incarnation, left by an interrupted start.
    Surplus,
    /// A person has asked for it: the containers start again at once, in the same sandbox.
    Asked,
    /// The machine is shutting down. The worker first saves which containers are ended by it
    /// ([`super::Incarnation::interrupted`]).
    Shutdown,
}

/// Removes a container that is dead or was never started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveContainer {
    pub uid: PodUid,
    pub id: ContainerId,
    /// Its name in the pod. Empty when only the id is known, from a name that the runtime has
    /// refused.
    pub name: Box<str>,
    /// False: its log files (`<n>.log*`, where `n` is its restart count) and its link in
    /// `/var/log/containers` are removed as well.
    pub keep_logs: bool,
    /// Its restart count, which is the number of its log files.
    pub restart_count: u32,
}

/// Stops and removes a sandbox.
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
            Self::Resize(a) => &a.uid,
            Self::KillContainer(a) => &a.uid,
            Self::KillPod(a) => &a.uid,
            Self::RemoveContainer(a) => &a.uid,
            Self::RemoveSandbox(a) => &a.uid,
        }
    }

    /// True when the pod ends with this action, at least for now. The pod goes on after any other
    /// stop of its containers.
    #[must_use]
    pub fn ends_pod(&self) -> bool {
        let Self::KillPod(kill) = self else { return false };
        match kill.purpose {
            KillPurpose::Retire { .. } | KillPurpose::Terminal | KillPurpose::Shutdown => true,
            KillPurpose::Restart
            | KillPurpose::RestartAll { .. }
            | KillPurpose::Surplus
            | KillPurpose::Asked => false,
        }
    }

    /// True when the rest of the plan is dropped if this action fails. When a container other than
    /// an init container does not start or can't be resized, the others are still started, as in
    /// the kubelet.
    #[must_use]
    pub fn failure_ends_pass(&self) -> bool {
        match self {
            Self::StartContainer(a) => a.kind == ContainerKind::Init,
            // The containers run on as they are.
            Self::Resize(_) => false,
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
    /// All containers that are stopped, in no particular order.
    pub fn containers(&self) -> impl Iterator<Item = &KillContainer> {
        self.groups.iter().flatten()
    }

    /// True when the exit codes of its containers are the phase of the pod.
    #[must_use]
    pub fn exit_matters(&self) -> bool {
        self.purpose == KillPurpose::Terminal && !self.groups.is_empty()
    }
}

/// One line for logs and traces, for example `start web (restart 2)`.
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
                f.write_str(if matches!(a.pull, Pull::NotNow(_)) { " (no pull)" } else { "" })
            }
            Self::Resize(a) => {
                let names = a.containers.iter().map(|c| &*c.name);
                let pod = a.finish.then_some("the pod");
                let names: Vec<&str> = names.chain(pod).collect();
                write!(f, "resize {}", names.join(", "))
            }
            Self::KillContainer(a) => write!(f, "kill {} (grace {} s)", a.name, a.grace_seconds),
            Self::KillPod(a) => {
                let purpose = match &a.purpose {
                    KillPurpose::Retire { .. } => "retire",
                    KillPurpose::Restart => "restart",
                    KillPurpose::RestartAll { .. } => "restart all",
                    KillPurpose::Terminal => "end",
                    KillPurpose::Surplus => "surplus",
                    KillPurpose::Asked => "asked",
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
