//! `status.phase`, derived from the container statuses.

use super::{
    StatusInput,
    containers::{Statuses, has_regular, init_of},
};
use crate::{model::k8s, plan::Terminal, podspec::is_sidecar};

/// The phase. A terminal one comes from the plan and is never left; a pod whose containers ended
/// without it being terminal will have them restarted, and counts as running, as does one that is
/// being removed. Only a pod that ended for a shutdown runs again, when that is called off.
pub(super) fn phase(input: &StatusInput<'_>, statuses: &Statuses) -> &'static str {
    if let Some(terminal) = input.terminal {
        return terminal.phase.as_str();
    }
    let by_shutdown =
        |status: &&k8s::PodStatus| status.reason.as_deref() == Some(Terminal::SHUTDOWN);
    let previous = input.previous.filter(|previous| !by_shutdown(previous));
    match previous.and_then(|previous| previous.phase.as_deref()) {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        Some(_) | None => {}
    }
    let mut counts = Counts::default();
    for (container, status) in init_of(input.pod).iter().zip(&statuses.init) {
        counts.init(is_sidecar(container), status);
    }
    for status in &statuses.regular {
        counts.regular(status);
    }
    let sidecars_hold = counts.pending_sidecars > 0 && !has_regular(input);
    if counts.pending_init > 0 || sidecars_hold || counts.waiting > 0 {
        "Pending"
    } else if counts.running > 0 || counts.stopped > 0 {
        "Running"
    } else {
        "Pending"
    }
}

#[derive(Default)]
struct Counts {
    pending_init: usize,
    pending_sidecars: usize,
    waiting: usize,
    running: usize,
    stopped: usize,
}

impl Counts {
    fn init(&mut self, sidecar: bool, status: &k8s::ContainerStatus) {
        if !sidecar {
            self.pending_init += usize::from(!status.ready);
            return;
        }
        if is_running(status) {
            self.running += 1;
            self.pending_sidecars += usize::from(status.started != Some(true));
        } else if is_waiting(status) && !has_ended_before(status) {
            self.waiting += 1;
            self.pending_sidecars += 1;
        }
    }

    fn regular(&mut self, status: &k8s::ContainerStatus) {
        if is_running(status) {
            self.running += 1;
        } else if is_waiting(status) && status.restart_count == 0 && !has_ended_before(status) {
            self.waiting += 1;
        } else {
            self.stopped += 1;
        }
    }
}

fn is_running(status: &k8s::ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn is_waiting(status: &k8s::ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}

pub(super) fn has_ended_before(status: &k8s::ContainerStatus) -> bool {
    status.last_state.as_ref().is_some_and(|state| state.terminated.is_some())
}
