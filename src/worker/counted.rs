//! Counts what a worker does, for `/metrics`.

use crate::{
    clock,
    metrics::metrics,
    model::{ContainerId, ContainerState, Event, ObservedContainer, ObservedPod, PodUid, k8s},
    plan::{Action, ContainerKind, Failure, NODE_SHUTDOWN, Outcome, PodOrders, Step, kind_of},
    podspec::is_static,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The start of the wished pod, from its first sight until all its containers run. A pod that an
/// earlier run of the agent has begun with is not counted.
#[derive(Default)]
pub(super) struct PodStart(Option<Starting>);

struct Starting {
    uid: PodUid,
    /// Boot time.
    since: Duration,
    /// How much of it images took.
    images: Duration,
    /// Work on it has begun.
    begun: bool,
}

impl PodStart {
    /// Notes a wished pod of which there is no record.
    pub(super) fn begin(&mut self, wished: &PodUid, observed: &ObservedPod) {
        let noted = self.0.as_ref().is_some_and(|starting| starting.uid == *wished);
        let runs = observed.containers.iter().any(|container| container.uid == *wished);
        if !noted && !runs {
            let (uid, since) = (wished.clone(), clock::now().boot);
            self.0 = Some(Starting { uid, since, images: Duration::ZERO, begun: false });
        }
    }

    /// Counts how long the pod waited for its first action, which begins now.
    pub(super) fn act(&mut self, uid: &PodUid) {
        let starting = self.0.as_mut().filter(|starting| starting.uid == *uid && !starting.begun);
        let Some(starting) = starting else { return };
        starting.begun = true;
        let waited = clock::now().boot.saturating_sub(starting.since);
        metrics().pods.worker_start_seconds.observe(waited.as_secs_f64());
    }

    /// Notes how long the images of a container took.
    pub(super) fn images_took(&mut self, uid: &PodUid, took: Duration) {
        if let Some(starting) = self.0.as_mut().filter(|starting| starting.uid == *uid) {
            starting.images += took;
        }
    }

    /// Counts the start when all containers of the pod run, by the statuses of this name.
    pub(super) fn look(&mut self, statuses: &BTreeMap<PodUid, Arc<k8s::PodStatus>>) {
        let Some(starting) = &self.0 else { return };
        let status = statuses.get(&starting.uid);
        let containers = status.and_then(|status| status.container_statuses.as_deref());
        let runs = |one: &k8s::ContainerStatus| {
            one.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        if !containers.is_some_and(|all| !all.is_empty() && all.iter().all(runs)) {
            return;
        }
        let took = clock::now().boot.saturating_sub(starting.since);
        metrics().pod_start_seconds.observe(took.as_secs_f64());
        let without_images = took.saturating_sub(starting.images);
        metrics().pod_start_sli_seconds.observe(without_images.as_secs_f64());
        self.0 = None;
    }
}

/// The containers of one pod name whose ends are to be counted.
///
/// An end is counted when a listing shows it, because an outcome has no exit code. A container that
/// the agent stops together with its pod is mostly removed before any listing, so it is not counted
/// at all; otherwise chance would decide.
#[derive(Default)]
pub(super) struct Ends(BTreeSet<ContainerId>);

/// The end of a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End<'a> {
    container: &'a ObservedContainer,
    exit_code: i32,
    reason: &'a str,
}

impl End<'_> {
    /// The incarnation of the container.
    pub(super) fn uid(&self) -> &PodUid {
        &self.container.uid
    }
}

impl Ends {
    /// Returns the containers that were alive in an earlier picture and that `listing` shows dead.
    /// `picture` is the listing with the outcomes since it began.
    pub(super) fn look<'a>(
        &mut self,
        picture: &ObservedPod,
        listing: &'a ObservedPod,
    ) -> Vec<End<'a>> {
        let mut ends = Vec::new();
        for container in &listing.containers {
            if let ContainerState::Exited { exit_code, reason, .. } = &container.state
                && self.0.remove(&container.id)
            {
                ends.push(End { container, exit_code: *exit_code, reason });
            }
        }
        self.0.retain(|id| picture.containers.iter().any(|container| container.id == *id));
        let alive = picture.containers.iter().filter(|container| is_alive(&container.state));
        for container in alive {
            if !self.0.contains(&container.id) {
                self.0.insert(container.id.clone());
            }
        }
        ends
    }

    /// Leaves out the containers that were stopped with their whole pod.
    pub(super) fn take(&mut self, outcome: &Outcome) {
        if let Outcome::PodKilled { containers, .. } = outcome {
            self.0.retain(|id| !containers.contains(id));
        }
    }
}

fn is_alive(state: &ContainerState) -> bool {
    match state {
        ContainerState::Created | ContainerState::Running { .. } => true,
        ContainerState::Exited { .. } | ContainerState::Unknown => false,
    }
}

/// Counts the end of a container of `pod`.
pub(super) fn count_end(end: &End<'_>, pod: &k8s::Pod) {
    let container_type = container_type(kind_of(Some(pod), &end.container.name));
    metrics().pods.container_ended(container_type, end.exit_code, end.reason);
}

/// Counts a pod that is refused because the machine goes down. Its plan decides that; admission
/// decides all other refusals.
pub(super) fn count_notice(event: &Event) {
    if event.reason == NODE_SHUTDOWN {
        metrics().pods.rejected(event.reason);
    }
}

/// Counts an incarnation that begins anew: it was removed and is wished again.
pub(super) fn count_restart(outcome: &Outcome, orders: &PodOrders) {
    let Outcome::CleanedUp { uid } = outcome else { return };
    let wished = orders.wish.pod().filter(|pod| pod.uid == *uid);
    // A pod that comes back after it was held is another matter.
    if let Some(pod) = wished.filter(|_| orders.hold_on(uid).is_none()) {
        metrics().pods.restarted(is_static(&pod.pod));
    }
}

/// What the actions of a plan do together, in the kubelet's words.
pub(super) fn operation_type(actions: &[Action]) -> &'static str {
    let any = |is: fn(&Action) -> bool| actions.iter().any(is);
    if any(|action| matches!(action, Action::CreateSandbox(_))) {
        "create"
    } else if any(|action| {
        matches!(action, Action::KillPod(_) | Action::RemoveSandbox(_) | Action::CleanUp { .. })
    }) {
        "kill"
    } else {
        "sync"
    }
}

/// The kind of a container in the labels of the kubelet's metrics.
fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

/// Counts an action that was executed.
pub(super) fn count(started: Option<ContainerKind>, outcome: &Outcome) {
    let failure = if let Outcome::Failed(failure) = outcome { Some(failure) } else { None };
    if failure.is_some_and(|failure| failure.step == Step::Cancelled) {
        return;
    }
    if let Some(kind) = started {
        let container_type = container_type(kind);
        metrics().started_containers.with_label_values(&[container_type]).inc();
        if let Some(Failure { reason, .. }) = failure {
            let labels = [reason.as_str(), container_type];
            metrics().started_container_errors.with_label_values(&labels).inc();
        }
    }
    let sandbox_failed =
        failure.is_some_and(|failure| matches!(failure.step, Step::Sandbox { .. }));
    if sandbox_failed || matches!(outcome, Outcome::SandboxCreated(_)) {
        metrics().started_pods.inc();
    }
    if sandbox_failed {
        metrics().started_pod_errors.inc();
    }
}

/// The kind of the container that an action starts.
pub(super) fn started(action: &Action) -> Option<ContainerKind> {
    if let Action::StartContainer(start) = action { Some(start.kind) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn running() -> ContainerState {
        ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }
    }

    fn exited(exit_code: i32) -> ContainerState {
        ContainerState::Exited {
            started_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
            exit_code,
            reason: "Error".into(),
            message: "".into(),
        }
    }

    #[track_caller]
    fn counts(ends: &[End<'_>], codes: &[i32]) {
        assert_eq!(ends.iter().map(|end| end.exit_code).collect::<Vec<_>>(), codes);
    }

    #[test]
    fn an_end_is_counted_once_with_the_exit_code_of_the_listing() {
        let mut ends = Ends::default();
        let (nothing, runs) =
            (ObservedPod::example(&[]), ObservedPod::example(&[("a", running())]));
        // The start is known from its outcome before any listing shows it.
        counts(&ends.look(&runs, &nothing), &[]);
        // A killed container has no true exit code before it is listed.
        counts(&ends.look(&ObservedPod::example(&[("a", exited(137))]), &runs), &[]);
        let ended = ObservedPod::example(&[("a", exited(3))]);
        counts(&ends.look(&ended, &ended), &[3]);
        counts(&ends.look(&ended, &ended), &[]);
    }

    #[test]
    fn ends_before_the_agent_and_with_the_whole_pod_are_not_counted() {
        let mut ends = Ends::default();
        let first = ObservedPod::example(&[("old", exited(1)), ("a", running())]);
        counts(&ends.look(&first, &first), &[]);
        ends.take(&Outcome::PodKilled {
            uid: "u".into(),
            containers: vec!["a".into()],
            sandboxes: Vec::new(),
            exit_matters: false,
        });
        let ended = ObservedPod::example(&[("old", exited(1)), ("a", exited(0))]);
        counts(&ends.look(&ended, &ended), &[]);
        let gone = ObservedPod::example(&[]);
        counts(&ends.look(&gone, &gone), &[]);
        assert!(ends.0.is_empty());
    }
}
