//! The columns of `kubectl get pods`, worded as kubectl does.

use crate::{model::k8s, podspec::is_sidecar};
use jiff::Timestamp;
use std::fmt;

/// The READY column: `1/2`. Sidecars count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Ready containers.
    pub ready: usize,
    /// All of them, plain init containers aside.
    pub total: usize,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ready, self.total)
    }
}

fn init_of(pod: &k8s::Pod) -> &[k8s::Container] {
    pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default()
}

/// The statuses of all containers: init containers, regular containers, ephemeral containers.
pub fn container_statuses(status: &k8s::PodStatus) -> impl Iterator<Item = &k8s::ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

fn is_sidecar_status(pod: &k8s::Pod, status: &k8s::ContainerStatus) -> bool {
    init_of(pod).iter().any(|container| container.name == status.name && is_sidecar(container))
}

#[must_use]
pub fn ready_column(pod: &k8s::Pod, status: &k8s::PodStatus) -> Ready {
    let regular = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let sidecars = init_of(pod).iter().filter(|container| is_sidecar(container)).count();
    let is_running = |status: &&k8s::ContainerStatus| {
        status.ready && status.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let ready = status.container_statuses.iter().flatten().filter(is_running).count();
    let init = status.init_container_statuses.iter().flatten();
    let ready_sidecars =
        init.filter(|status| is_sidecar_status(pod, status)).filter(is_running).count();
    Ready { ready: ready + ready_sidecars, total: regular + sidecars }
}

/// The RESTARTS column: how often containers were restarted, and when last. While the pod
/// initialises its init containers are counted, afterwards the sidecars and the regular ones.
#[must_use]
pub fn restarts(pod: &k8s::Pod, status: &k8s::PodStatus) -> (i32, Option<Timestamp>) {
    let initializing = init_reason(pod, status).is_some() && !is_initialized(status);
    let init = status.init_container_statuses.iter().flatten();
    let counted: Vec<&k8s::ContainerStatus> = if initializing {
        init.collect()
    } else {
        let sidecars = init.filter(|status| is_sidecar_status(pod, status));
        sidecars.chain(status.container_statuses.iter().flatten()).collect()
    };
    let last = counted.iter().filter_map(|status| {
        let ended = status.last_state.as_ref()?.terminated.as_ref()?;
        ended.finished_at.as_ref().map(|time| time.0)
    });
    (counted.iter().map(|status| status.restart_count).sum(), last.max())
}

/// The STATUS column: `Running`, `Init:0/1`, `CrashLoopBackOff`, `Completed`, `Terminating`, ...
#[must_use]
pub fn display_status(pod: &k8s::Pod, status: &k8s::PodStatus, terminating: bool) -> String {
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    if terminating && phase != "Succeeded" && phase != "Failed" {
        return "Terminating".to_owned();
    }
    let own = status.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or(phase);
    match init_reason(pod, status) {
        Some(reason) if !is_initialized(status) => reason,
        Some(_) | None => regular_reason(status, own),
    }
}

/// Why the pod is still initialising; `None` when no init container holds it up.
fn init_reason(pod: &k8s::Pod, status: &k8s::PodStatus) -> Option<String> {
    let total = init_of(pod).len();
    for (index, status) in status.init_container_statuses.iter().flatten().enumerate() {
        let state = status.state.as_ref();
        if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
            if ended.exit_code == 0 {
                continue;
            }
            return Some(format!("Init:{}", end_reason(ended)));
        }
        if is_sidecar_status(pod, status) && status.started == Some(true) {
            continue;
        }
        let waiting = state.and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
        return Some(match reason {
            "" | "PodInitializing" => format!("Init:{index}/{total}"),
            reason => format!("Init:{reason}"),
        });
    }
    None
}

fn end_reason(ended: &k8s::ContainerStateTerminated) -> String {
    match (ended.reason.as_deref().unwrap_or_default(), ended.signal.unwrap_or_default()) {
        ("", 0) => format!("ExitCode:{}", ended.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn regular_reason(status: &k8s::PodStatus, own: &str) -> String {
    let mut reason = own.to_owned();
    let mut any_running = false;
    for container in status.container_statuses.iter().flatten().rev() {
        let Some(state) = &container.state else { continue };
        let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
        if let Some(waiting) = waiting.filter(|waiting| !waiting.is_empty()) {
            waiting.clone_into(&mut reason);
        } else if let Some(ended) = &state.terminated {
            reason = end_reason(ended);
        } else if container.ready && state.running.is_some() {
            any_running = true;
        }
    }
    if reason == "Completed" && any_running {
        let ready = is_true(status, "Ready");
        return if ready { "Running" } else { "NotReady" }.to_owned();
    }
    reason
}

fn is_initialized(status: &k8s::PodStatus) -> bool {
    is_true(status, "Initialized")
}

fn is_true(status: &k8s::PodStatus, type_: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The restart count of the present run of a container: of the instance that runs or has ended for
/// good, or else of the one that starts next. The run before it is the previous one.
#[must_use]
pub fn present_run(status: &k8s::ContainerStatus) -> u32 {
    let newest = u32::try_from(status.restart_count).unwrap_or_default();
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    // While it waits to be restarted, its newest instance has ended. When the next one is made, that
    // one waits until it is started.
    let has_ended = waits && ended.is_some_and(|ended| ended.container_id == status.container_id);
    newest.saturating_add(u32::from(has_ended))
}
