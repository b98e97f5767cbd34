//! What the runtime has under one pod name: which of it this agent made, which somebody else.
//!
//! The plan, the worker and the set of workers all ask this of the same listing, and must not give
//! different answers.

use super::kill::is_alive;
use crate::model::{ObservedContainer, ObservedPod, ObservedSandbox, PodUid, SandboxState};

/// The sandboxes and containers under one pod name, read as the agent with this owner id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy<'a> {
    observed: &'a ObservedPod,
    owner: &'a str,
}

impl<'a> Occupancy<'a> {
    pub(crate) fn new(observed: &'a ObservedPod, owner: &'a str) -> Self {
        Self { observed, owner }
    }

    fn is_own(&self, sandbox: &ObservedSandbox) -> bool {
        sandbox.owner.as_deref() == Some(self.owner)
    }

    /// The sandboxes that this agent made, of every incarnation.
    pub(crate) fn own_sandboxes(self) -> impl Iterator<Item = &'a ObservedSandbox> {
        self.observed.sandboxes.iter().filter(move |sandbox| self.is_own(sandbox))
    }

    /// The sandboxes that somebody else made, of every incarnation.
    pub(crate) fn foreign_sandboxes(self) -> impl Iterator<Item = &'a ObservedSandbox> {
        self.observed.sandboxes.iter().filter(move |sandbox| !self.is_own(sandbox))
    }

    /// The sandboxes of one incarnation that this agent made.
    pub(crate) fn own_sandboxes_of(
        self,
        uid: &PodUid,
    ) -> impl Iterator<Item = &'a ObservedSandbox> {
        self.own_sandboxes().filter(move |sandbox| sandbox.uid == *uid)
    }

    /// What of one incarnation is this agent's. A container whose sandbox is gone has lost the
    /// owner label with it: it is this agent's if the incarnation has a record.
    pub(crate) fn own(self, uid: &PodUid, recorded: bool) -> Own<'a> {
        let containers = self.observed.containers.iter().filter(|container| {
            let home = self.home(container);
            container.uid == *uid
                && home.map_or(recorded, |home| self.is_own(home) && home.uid == *uid)
        });
        Own { containers: containers.collect(), sandboxes: self.own_sandboxes_of(uid).collect() }
    }

    /// The incarnation that this agent runs, going by the sandboxes alone: of those that are ready
    /// the newest, otherwise the newest of all.
    pub(crate) fn newest_own_uid(self) -> Option<&'a PodUid> {
        let newest = self
            .own_sandboxes()
            .max_by_key(|sandbox| (sandbox.state == SandboxState::Ready, sandbox.created_at));
        newest.map(|sandbox| &sandbox.uid)
    }

    /// The sandbox in which somebody else (or this agent under another owner id, which it has lost)
    /// runs an incarnation: its cgroup and volumes are in use.
    pub(crate) fn foreign_use(self, uid: &PodUid) -> Option<&'a ObservedSandbox> {
        self.foreign_sandboxes().find(|sandbox| {
            let runs = |container: &&ObservedContainer| container.sandbox_id == sandbox.id;
            let mut inside = self.observed.containers.iter().filter(runs);
            sandbox.uid == *uid && (sandbox.state == SandboxState::Ready || inside.any(is_alive))
        })
    }

    /// Whether a sandbox of this agent is ready, or a process may run in a container that is in no
    /// sandbox of somebody else.
    pub(crate) fn is_alive(self) -> bool {
        let is_ours = |container: &ObservedContainer| {
            self.home(container).is_none_or(|home| self.is_own(home))
        };
        self.own_sandboxes().any(|sandbox| sandbox.state == SandboxState::Ready)
            || self.observed.containers.iter().any(|one| is_alive(one) && is_ours(one))
    }

    fn home(&self, container: &ObservedContainer) -> Option<&'a ObservedSandbox> {
        self.observed.sandboxes.iter().find(|sandbox| sandbox.id == container.sandbox_id)
    }
}

/// What of one incarnation is in the runtime and was made by this agent.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    pub(crate) sandboxes: Vec<&'a ObservedSandbox>,
    pub(crate) containers: Vec<&'a ObservedContainer>,
}

impl<'a> Own<'a> {
    /// The newest instance of a container.
    pub(crate) fn newest(&self, name: &str) -> Option<&'a ObservedContainer> {
        let instances = self.containers.iter().filter(|c| &*c.name == name);
        instances.max_by_key(|c| (c.restart_count, c.created_at)).copied()
    }

    /// The newest instance of a container, when it lives in `sandbox`.
    pub(crate) fn newest_in(
        &self,
        name: &str,
        sandbox: &ObservedSandbox,
    ) -> Option<&'a ObservedContainer> {
        self.newest(name).filter(|c| c.sandbox_id == sandbox.id)
    }

    /// Whether the runtime has nothing of it, dead or alive.
    pub(crate) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The sandboxes whose network is still set up.
    pub(crate) fn ready_sandboxes(&self) -> impl Iterator<Item = &'a ObservedSandbox> {
        self.sandboxes.iter().copied().filter(|sandbox| sandbox.state == SandboxState::Ready)
    }

    /// Whether there is something to stop: a ready sandbox, or a container in which a process may
    /// run.
    pub(crate) fn is_alive(&self) -> bool {
        self.ready_sandboxes().next().is_some() || self.containers.iter().any(|one| is_alive(one))
    }
}
