//! What the worker returns after an action.

use super::ResizeContainer;
use crate::model::{ContainerId, CpuMemory, ObservedContainer, ObservedSandbox, PodUid, SandboxId};

/// The result of one [`super::Action`]. The worker passes it to [`super::PodMemory::record`] and to
/// [`super::Picture::record`], and then goes on or plans again.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// `PreparePod` has succeeded.
    Prepared {
        uid: PodUid,
        /// What the pod's cgroup was given now. `None`: it was left as it is.
        cgroup: Option<CpuMemory>,
    },
    /// `CreateSandbox` has succeeded. The sandbox as the runtime shows it now, with its IPs
    /// (`PodSandboxStatus`).
    SandboxCreated(ObservedSandbox),
    /// `StartContainer` has succeeded. The container as the worker made it. Its state is `Running`,
    /// with the time of the start. No `ContainerStatus` call is needed for it.
    ContainerStarted(ObservedContainer),
    /// `Resize` has succeeded.
    Resized {
        uid: PodUid,
        /// The containers that have their new amounts.
        containers: Vec<ResizeContainer>,
        /// What the pod's cgroup has now: nothing is left to be done. `None`: something is left.
        cgroup: Option<CpuMemory>,
    },
    /// `KillContainer` has succeeded.
    ContainerKilled {
        uid: PodUid,
        id: ContainerId,
        /// What follows depends on the exit code. So the container counts as running, and nothing
        /// more is done, until a listing shows the code. Otherwise it counts as ended with 137.
        exit_matters: bool,
    },
    /// `KillPod` has succeeded: all its containers and sandboxes are stopped.
    PodKilled {
        uid: PodUid,
        containers: Vec<ContainerId>,
        sandboxes: Vec<SandboxId>,
        /// As in [`Self::ContainerKilled`]: the exit codes are the phase of the pod.
        exit_matters: bool,
    },
    /// `RemoveContainer` has succeeded, or the container did not exist.
    ContainerRemoved {
        uid: PodUid,
        id: ContainerId,
    },
    /// `RemoveSandbox` has succeeded, or the sandbox did not exist. Its containers are gone, too.
    SandboxRemoved {
        uid: PodUid,
        id: SandboxId,
    },
    /// `Release` has succeeded.
    Released {
        uid: PodUid,
    },
    /// `CleanUp` has succeeded: the worker forgets the incarnation.
    CleanedUp {
        uid: PodUid,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub uid: PodUid,
    pub step: Step,
    /// For steps of a container the reason in `state.waiting` (`ErrImagePull`,
    /// `CreateContainerConfigError`, `RunContainerError`, ...). For other steps the reason of the
    /// event that the worker recorded (`FailedCreatePodSandBox`, `FailedMount`, ...).
    pub reason: String,
    /// The message in the kubelet's words.
    pub message: String,
    /// The runtime refused the name because another object has it. The next plan uses the name of
    /// the next attempt.
    pub taken: Option<Taken>,
    /// A container that the failed step left in the runtime.
    pub left: Option<Box<ObservedContainer>>,
}

/// The holder of a name in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// An interrupted call of this agent left this id. The next plan removes it.
    ByUs(String),
    /// Another agent's object. It stays.
    ByOthers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Prepare,
    /// `CreateSandbox` with this attempt.
    Sandbox {
        attempt: u32,
    },
    /// `StartContainer`: the image is not available.
    Image {
        container: Box<str>,
        /// The name of the image in the spec.
        image: Box<str>,
        /// True when a pull was tried and has failed, so that further pulls are backed off. False
        /// for `ErrImageNeverPull`, `InvalidImageName` and `ImageInspectError`, and where pulling
        /// was not allowed.
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
    /// `StartContainer`: it was created but not started (`RunContainerError`).
    Start {
        container: Box<str>,
        /// The created container.
        id: ContainerId,
    },
    /// `Resize`. The containers in `done` have their new amounts all the same.
    Resize {
        done: Vec<ResizeContainer>,
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
    /// The agent gave the action up, because it stops or the action is not wanted any more. Nothing
    /// has gone wrong, so the next plan need not wait and shows no error.
    Cancelled,
}

impl Outcome {
    /// True when the action has succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}
