//! What a worker believes to run: the latest listing, together with the outcomes of its own later
//! actions.

use super::{Failure, Outcome, Step};
use crate::model::{
    ContainerId, ContainerState, Now, ObservedContainer, ObservedPod, ObservedSandbox, Order as _,
    SandboxId, SandboxState,
};
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};

/// The exit code shown for a container that was killed, until the next listing.
const KILLED: i32 = 137;

/// A listing, and the outcomes since it began.
///
/// An outcome is dropped when a listing arrives that began after the outcome was recorded. Until
/// then it is applied to every listing. A listing may or may not contain its effect already, so
/// states only move forward (created, running, ended; ready, not ready), and removed objects stay
/// removed.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    listing: Option<Arc<ObservedPod>>,
    outcomes: Vec<(Now, Outcome)>,
    current: Option<Arc<ObservedPod>>,
}

impl Picture {
    /// Takes a listing in. A listing that began before the current one is ignored.
    pub fn observe(&mut self, listing: Arc<ObservedPod>) {
        if self.listing.as_ref().is_some_and(|held| held.listed_at > listing.listed_at) {
            return;
        }
        self.outcomes.retain(|(at, _)| at.boot >= listing.listed_at);
        // Most pods have none most of the time.
        self.outcomes.shrink_to_fit();
        self.listing = Some(listing);
        self.refresh();
    }

    /// Takes the outcome of an action in. Failures count as well, because they may leave a
    /// container. Of the outcomes that change nothing only the last is kept: while the runtime is
    /// away, there is no end of them and no listing.
    pub fn record(&mut self, outcome: Outcome, now: Now) {
        if changes_nothing(&outcome) {
            self.outcomes.retain(|(_, earlier)| !changes_nothing(earlier));
        }
        self.outcomes.push((now, outcome));
        self.refresh();
    }

    /// [`Self::shared`], borrowed.
    #[cfg(test)]
    pub(super) fn current(&self) -> Option<&ObservedPod> {
        self.current.as_deref()
    }

    /// The state to plan from; `None` before the first listing.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<ObservedPod>> {
        self.current.clone()
    }

    /// The boot time of the last outcome that no listing has confirmed; the worker asks for a
    /// listing that begins later. `None` when the picture is a plain listing.
    #[must_use]
    pub fn unconfirmed_since(&self) -> Option<Duration> {
        self.outcomes.iter().map(|(now, _)| now.boot).max()
    }

    /// True when an action has failed since the listing began. The call may have succeeded all the
    /// same, for example when the runtime was killed before it answered. So nothing more is done
    /// before the next listing. The same holds when the exit codes of killed containers matter.
    #[must_use]
    pub fn awaits_listing(&self) -> bool {
        self.outcomes.iter().any(|(_, outcome)| {
            let open = matches!(
                outcome,
                Outcome::ContainerKilled { exit_matters: true, .. }
                    | Outcome::PodKilled { exit_matters: true, .. }
            );
            open || !outcome.is_success()
        })
    }

    fn refresh(&mut self) {
        self.current = self.listing.as_ref().map(|listing| {
            if self.outcomes.is_empty() {
                return Arc::clone(listing);
            }
            let mut pod = ObservedPod::clone(listing);
            for (at, outcome) in &self.outcomes {
                fold(&mut pod, outcome, at.wall);
            }
            Arc::new(pod)
        });
    }
}

/// True when the outcome changes nothing in the picture. A listing is needed all the same.
fn changes_nothing(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Prepared { .. }
        | Outcome::Resized { .. }
        | Outcome::Released { .. }
        | Outcome::CleanedUp { .. } => true,
        Outcome::Failed(Failure { left, step, .. }) => {
            left.is_none() && !matches!(step, Step::Start { .. })
        }
        Outcome::SandboxCreated(_)
        | Outcome::ContainerStarted(_)
        | Outcome::ContainerKilled { .. }
        | Outcome::PodKilled { .. }
        | Outcome::ContainerRemoved { .. }
        | Outcome::SandboxRemoved { .. } => false,
    }
}

/// Applies one outcome, recorded at wall time `at`, to an observation that may contain its effect
/// already.
pub fn fold(pod: &mut ObservedPod, outcome: &Outcome, at: Timestamp) {
    match outcome {
        Outcome::Prepared { .. }
        | Outcome::Resized { .. }
        | Outcome::Released { .. }
        | Outcome::CleanedUp { .. } => {}
        Outcome::SandboxCreated(sandbox) => put_sandbox(pod, sandbox),
        Outcome::ContainerStarted(container) => put_container(pod, container),
        Outcome::ContainerKilled { exit_matters: true, .. } => {}
        Outcome::ContainerKilled { id, .. } => end_container(pod, id, at),
        Outcome::PodKilled { containers, sandboxes, exit_matters, .. } => {
            for id in containers.iter().filter(|_| !exit_matters) {
                end_container(pod, id, at);
            }
            for id in sandboxes {
                end_sandbox(pod, id);
            }
        }
        Outcome::ContainerRemoved { id, .. } => pod.containers.retain(|c| c.id != *id),
        Outcome::SandboxRemoved { id, .. } => {
            pod.sandboxes.retain(|s| s.id != *id);
            pod.containers.retain(|c| c.sandbox_id != *id);
        }
        Outcome::Failed(failure) => fold_failure(pod, failure, at),
    }
}

fn fold_failure(pod: &mut ObservedPod, failure: &Failure, at: Timestamp) {
    if let Some(container) = &failure.left {
        put_container(pod, container);
    }
    // The runtime ends a container whose start has failed. It must not look like one that can still
    // be started.
    if let Step::Start { id, .. } = &failure.step
        && let Some(container) = pod.containers.iter_mut().find(|c| c.id == *id)
        && container.state == ContainerState::Created
    {
        container.state = ContainerState::Exited {
            started_at: None,
            finished_at: at,
            exit_code: 128,
            reason: "StartError".into(),
            message: failure.message.as_str().into(),
        };
    }
}

fn put_sandbox(pod: &mut ObservedPod, sandbox: &ObservedSandbox) {
    match pod.sandboxes.iter_mut().find(|s| s.id == sandbox.id) {
        Some(known) if known.state == SandboxState::NotReady => {}
        Some(known) => *known = sandbox.clone(),
        None => pod.sandboxes.push(sandbox.clone()),
    }
    pod.sandboxes.order_by(|a, b| a.uid.cmp(&b.uid).then(b.attempt.cmp(&a.attempt)));
}

fn put_container(pod: &mut ObservedPod, container: &ObservedContainer) {
    match pod.containers.iter_mut().find(|c| c.id == container.id) {
        Some(known) if progress(&known.state) > progress(&container.state) => {}
        Some(known) => *known = container.clone(),
        None => pod.containers.push(container.clone()),
    }
    pod.containers.order_by(|a, b| {
        (&a.uid, &a.name).cmp(&(&b.uid, &b.name)).then(b.restart_count.cmp(&a.restart_count))
    });
}

fn progress(state: &ContainerState) -> u8 {
    match state {
        ContainerState::Unknown => 0,
        ContainerState::Created => 1,
        ContainerState::Running { .. } => 2,
        ContainerState::Exited { .. } => 3,
    }
}

fn end_container(pod: &mut ObservedPod, id: &ContainerId, at: Timestamp) {
    let Some(container) = pod.containers.iter_mut().find(|c| c.id == *id) else { return };
    let started_at = match &container.state {
        ContainerState::Exited { .. } => return,
        ContainerState::Running { started_at } => Some(*started_at),
        ContainerState::Created | ContainerState::Unknown => None,
    };
    container.state = ContainerState::Exited {
        started_at,
        finished_at: at,
        exit_code: container.ended_with.unwrap_or(KILLED),
        reason: "Error".into(),
        message: "".into(),
    };
}

fn end_sandbox(pod: &mut ObservedPod, id: &SandboxId) {
    if let Some(sandbox) = pod.sandboxes.iter_mut().find(|s| s.id == *id) {
        sandbox.state = SandboxState::NotReady;
    }
}
