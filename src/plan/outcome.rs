//! What the worker hands back after an action.

use crate::model::{ContainerId, ObservedContainer, ObservedSandbox, PodUid, SandboxId};

/// The result of one [`super::Action`]. The worker gives it to [`super::PodMemory::record`] and to
/// [`super::Picture::record`], then goes on or plans again.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// `PreparePod` done.
    Prepared {
        uid: PodUid,
    },
    /// `CreateSandbox` done: the sandbox as the runtime shows it now, IPs included
    /// (`PodSandboxStatus`).
    SandboxCreated(ObservedSandbox),
    /// `StartContainer` done: the container as the worker made it. The state is `Running` with the
    /// time of the start unless the worker knows better; no `ContainerStatus` call is needed for
    /// it.
    ContainerStarted(ObservedContainer),
    /// `KillContainer` done.
    ContainerKilled {
        uid: PodUid,
        id: ContainerId,
        /// The container as inspected afterwards, when the worker did; otherwise it counts as
        /// ended with code 137 until the next listing.
        inspected: Option<Box<ObservedContainer>>,
    },
    /// `KillPod` done: all of its containers and sandboxes are stopped.
    PodKilled {
        uid: PodUid,
        containers: Vec<ContainerId>,
        sandboxes: Vec<SandboxId>,
    },
    /// `RemoveContainer` done (or it was gone already).
    ContainerRemoved {
        uid: PodUid,
        id: ContainerId,
    },
    /// `RemoveSandbox` done (or it was gone already), its containers with it.
    SandboxRemoved {
        uid: PodUid,
        id: SandboxId,
    },
    /// `Release` done.
    Released {
        uid: PodUid,
    },
    /// `CleanUp` done: the worker forgets the incarnation.
    CleanedUp {
        uid: PodUid,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub uid: PodUid,
    pub step: Step,
    /// For steps of a container the waiting reason of its status (`ErrImagePull`,
    /// `CreateContainerConfigError`, `RunContainerError`, ...); for others the reason of the event
    /// that the worker recorded (`FailedCreatePodSandBox`, `FailedMount`, ...).
    pub reason: String,
    /// The message that goes with it, as the kubelet words it.
    pub message: String,
    /// The runtime said that the name is reserved: the next plan takes the next attempt's.
    pub taken: Option<Taken>,
    /// A container that the failed step left in the runtime.
    pub left: Option<Box<ObservedContainer>>,
}

/// Who holds a name in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This id: what an interrupted call of ours left. The next plan removes it.
    ByUs(String),
    /// Another agent's object, which stays.
    ByOthers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Prepare,
    /// `CreateSandbox` with this attempt.
    Sandbox {
        attempt: u32,
    },
    /// `StartContainer`: no image to start it from.
    Image {
        container: Box<str>,
        /// Image name as in the spec.
        image: Box<str>,
        /// Whether a pull was tried and failed, so that pulling it is backed off. `false` for
        /// `ErrImageNeverPull`, `InvalidImageName`, `ImageInspectError`, and where pulling was not
        /// allowed.
        pull_tried: bool,
    },
    /// `StartContainer`: its configuration could not be made (`CreateContainerConfigError`).
    Config {
        container: Box<str>,
    },
    /// `StartContainer`: the runtime did not create it (`CreateContainerError`).
    Create {
        container: Box<str>,
        /// The restart count that was tried.
        restart_count: u32,
    },
    /// `StartContainer`: created, not started (`RunContainerError`).
    Start {
        container: Box<str>,
        /// The created container.
        id: ContainerId,
    },
    KillContainer {
        container: Box<str>,
        id: ContainerId,
    },
    KillPod,
    RemoveContainer {
        id: ContainerId,
    },
    RemoveSandbox {
        id: SandboxId,
    },
    Release,
    CleanUp,
}

impl Outcome {
    /// Whether the action did what it should.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}
