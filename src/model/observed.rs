//! What the runtime said it runs, per pod name. Converted from CRI by `cri`, collected by `pleg`,
//! read by `plan` and `status`.

use super::{ContainerAmounts, ContainerId, PodUid, SandboxId};
use jiff::Timestamp;
use std::{net::IpAddr, time::Duration};

/// Everything that the runtime has under one namespace/name, of every uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPod {
    /// Boot time at which the listing began that this was made from. An observation made before a
    /// worker's last action must not be planned from.
    pub listed_at: Duration,
    /// Highest attempt first, within one uid; uids in no particular order.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Highest attempt (restart count) first, within one uid and container name.
    pub containers: Vec<ObservedContainer>,
    /// Why the last inspection of this pod failed or hangs, with the object's id. While it is set,
    /// the rest is the last good inspection.
    pub inspect_error: Option<String>,
}

/// A pod sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSandbox {
    /// The runtime's id.
    pub id: SandboxId,
    /// The pod's uid, from the sandbox metadata.
    pub uid: PodUid,
    /// `metadata.attempt`: the newest sandbox is the one with the highest.
    pub attempt: u32,
    /// Whether its pause container runs.
    pub state: SandboxState,
    /// Wall time of creation.
    pub created_at: Timestamp,
    /// Primary IP first; empty for the host's network.
    pub ips: Vec<IpAddr>,
    /// Network namespace mode.
    pub network: NetworkMode,
    /// Value of [`super::OWNER_LABEL`]; `None` for a pod that no nodelet made.
    pub owner: Option<Box<str>>,
}

impl ObservedSandbox {
    /// True when it has a network of its own and no address in it.
    #[must_use]
    pub fn lacks_address(&self) -> bool {
        self.network == NetworkMode::Pod && self.ips.is_empty()
    }
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    /// `SANDBOX_READY`
    Ready,
    /// `SANDBOX_NOTREADY`
    NotReady,
}

/// Network namespace of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own.
    Pod,
    /// The host's.
    Node,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    /// The runtime's id.
    pub id: ContainerId,
    /// The sandbox it lives in.
    pub sandbox_id: SandboxId,
    /// The pod's uid (label `io.kubernetes.pod.uid`).
    pub uid: PodUid,
    /// Name in the pod (label `io.kubernetes.container.name`).
    pub name: Box<str>,
    /// Annotation `io.kubernetes.container.restartCount`, else `metadata.attempt`.
    pub restart_count: u32,
    /// Annotation `io.kubernetes.container.hash`.
    pub hash: Box<str>,
    /// Annotation `nodelet.dev/resources`: the cpu and memory that it was made with; `None` for a
    /// container that has no such annotation.
    pub made_with: Option<Box<ContainerAmounts>>,
    /// State with its times.
    pub state: ContainerState,
    /// Exit code that an event told while the runtime's own view still shows it running. The rest of
    /// what an end leaves is not known then: its log may lack lines, and its reason may become
    /// `OOMKilled`.
    pub ended_with: Option<i32>,
    /// Wall time of creation.
    pub created_at: Timestamp,
    /// Image name as the runtime shows it.
    pub image: Box<str>,
    /// CRI `image_ref`: digest form where the runtime knows it.
    pub image_ref: Box<str>,
    /// Annotation `io.kubernetes.container.terminationMessagePath`, empty when absent.
    pub termination_message_path: Box<str>,
    /// Annotation `io.kubernetes.container.terminationMessagePolicy`, empty when absent.
    pub termination_message_policy: Box<str>,
    /// Host path that is mounted at the termination message path, when there is one.
    pub termination_log: Option<Box<str>>,
    /// Host path of the log file.
    pub log_path: Box<str>,
    /// uid, gid and supplemental groups of the first process, where the runtime tells.
    pub user: Option<(i64, i64, Vec<i64>)>,
}

#[cfg(test)]
impl ObservedPod {
    /// A pod with these containers, by id: see [`ObservedContainer::example`].
    pub(crate) fn example(containers: &[(&str, ContainerState)]) -> Self {
        let containers = containers.iter();
        let containers =
            containers.map(|(id, state)| ObservedContainer::example(id, state.clone()));
        Self { containers: containers.collect(), ..Self::default() }
    }
}

#[cfg(test)]
impl ObservedContainer {
    /// The container `main` of the pod with uid `u`, made in 1970.
    pub(crate) fn example(id: &str, state: ContainerState) -> Self {
        Self {
            id: id.into(),
            sandbox_id: "s".into(),
            uid: "u".into(),
            name: "main".into(),
            restart_count: 0,
            hash: "".into(),
            made_with: None,
            state,
            ended_with: None,
            created_at: Timestamp::UNIX_EPOCH,
            image: "".into(),
            image_ref: "".into(),
            termination_message_path: "".into(),
            termination_message_policy: "".into(),
            termination_log: None,
            log_path: "".into(),
            user: None,
        }
    }
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Running.
    Running {
        /// Wall time of the start.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// Wall time of the start; `None` when it never started.
        started_at: Option<Timestamp>,
        /// Wall time of the end.
        finished_at: Timestamp,
        /// Exit code; 128 + n for signal n.
        exit_code: i32,
        /// The runtime's word: `Completed`, `Error`, `OOMKilled`, `StartError`, ...
        reason: Box<str>,
        /// The runtime's message, with the termination message folded in.
        message: Box<str>,
    },
    /// The runtime doesn't know.
    Unknown,
}

impl ContainerState {
    /// Whether a process ran and ended.
    #[must_use]
    pub fn is_exited(&self) -> bool {
        matches!(self, Self::Exited { .. })
    }

    /// Whether a process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

impl ObservedPod {
    /// Whether anything is left of it in the runtime, dead or alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The instances of container `name` of pod `uid`, newest (highest restart count) first.
    pub fn instances<'a>(
        &'a self,
        uid: &'a PodUid,
        name: &'a str,
    ) -> impl Iterator<Item = &'a ObservedContainer> + 'a {
        self.containers.iter().filter(move |c| c.uid == *uid && &*c.name == name)
    }

    /// Whether `uid` has neither a running container (or one in an unknown state) nor a ready
    /// sandbox.
    #[cfg(test)]
    pub(crate) fn is_stopped(&self, uid: &PodUid) -> bool {
        let container_alive = self.containers.iter().any(|c| {
            c.uid == *uid
                && matches!(c.state, ContainerState::Running { .. } | ContainerState::Unknown)
        });
        let sandbox_ready =
            self.sandboxes.iter().any(|s| s.uid == *uid && s.state == SandboxState::Ready);
        !container_alive && !sandbox_ready
    }
}
