//! Counts what a worker does, for `/metrics`.

use crate::{
    clock,
    metrics::metrics,
    model::{ObservedPod, PodUid, k8s},
    plan::{Action, ContainerKind, Failure, Outcome, Step},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
}

impl PodStart {
    /// Notes a wished pod of which there is no record.
    pub(super) fn begin(&mut self, wished: &PodUid, observed: &ObservedPod) {
        let noted = self.0.as_ref().is_some_and(|starting| starting.uid == *wished);
        let runs = observed.containers.iter().any(|container| container.uid == *wished);
        if !noted && !runs {
            let (uid, since) = (wished.clone(), clock::now().boot);
            self.0 = Some(Starting { uid, since, images: Duration::ZERO });
        }
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

/// Counts an action that was executed.
pub(super) fn count(started: Option<ContainerKind>, outcome: &Outcome) {
    let failure = if let Outcome::Failed(failure) = outcome { Some(failure) } else { None };
    if let Some(kind) = started {
        let container_type = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Regular => "container",
        };
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
