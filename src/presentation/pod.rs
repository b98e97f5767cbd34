//! The columns of a pod, and why it does not run as it should.

use super::text::{age_at, one_line};
use crate::{
    model::{PodUpdate, PodView, k8s},
    status::{display_status, ready_column, restarts},
};
use jiff::Timestamp;

/// `NAMESPACE`, `NAME`, `READY`, `STATUS`, `RESTARTS`, `AGE` and `IP`, as kubectl shows them.
pub(crate) fn columns(view: &PodView, now: Timestamp) -> [String; 7] {
    let lost = k8s::Pod::default();
    let pod = view.pod.as_deref().unwrap_or(&lost);
    let (count, last) = restarts(pod, &view.status);
    let restarts = match last {
        Some(last) if count > 0 => format!("{count} ({} ago)", age_at(last, now)),
        Some(_) | None => count.to_string(),
    };
    [
        view.key.namespace.to_string(),
        view.key.name.to_string(),
        ready_column(pod, &view.status).to_string(),
        display_status(pod, &view.status, view.terminating),
        restarts,
        started(view).map_or_else(|| "<unknown>".to_owned(), |then| age_at(then, now)),
        ip(view),
    ]
}

/// When the pod was accepted.
pub(crate) fn started(view: &PodView) -> Option<Timestamp> {
    let created = || view.pod.as_ref()?.metadata.creation_timestamp.as_ref();
    view.status.start_time.as_ref().or_else(created).map(|time| time.0)
}

pub(crate) fn ip(view: &PodView) -> String {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    match view.status.pod_ip.as_deref() {
        Some(ip) if !ip.is_empty() => ip.to_owned(),
        Some(_) | None if spec.and_then(|spec| spec.host_network) == Some(true) => "<host>".into(),
        Some(_) | None => "<none>".to_owned(),
    }
}

/// Where the pod is written: `/etc/nodelet/static-pods/web.yaml`.
pub(crate) fn manifest(view: &PodView) -> String {
    match &view.origin {
        Some(origin) if origin.line > 1 => format!("{}:{}", origin.location, origin.line),
        Some(origin) => origin.location.to_string(),
        None => "<gone>".to_owned(),
    }
}

/// Why the pod does not run as it should, on one line; empty when there is nothing to say.
/// `last_good`: its manifest is invalid, and it runs from an earlier revision.
pub(crate) fn reason_beside(view: &PodView, last_good: bool) -> String {
    match reason(view) {
        Some(reason) => one_line(&reason),
        None if last_good => "runs its last good revision: the manifest is invalid now".to_owned(),
        None => String::new(),
    }
}

/// Why the pod does not run as it should, in one sentence; `None` when there is nothing to say.
pub(crate) fn reason(view: &PodView) -> Option<String> {
    let status = &view.status;
    if let Some(hung) = &view.hung {
        return Some(format!("hung: {hung}"));
    }
    if let Some(waiting) = view.waiting.as_ref().filter(|_| view.terminating) {
        return Some(waiting.clone());
    }
    if let Some(update) = view.update.as_ref().map(updating) {
        return Some(update);
    }
    if let Some(message) = status.message.as_deref().filter(|message| !message.is_empty()) {
        return Some(message.to_owned());
    }
    let init = status.init_container_statuses.iter().flatten();
    let containers = || init.clone().chain(status.container_statuses.iter().flatten());
    containers()
        .find_map(|container| waits_for(view, container))
        .or_else(|| view.waiting.clone())
        .or_else(|| {
            let failed = status.phase.as_deref() == Some("Failed");
            containers().filter(|_| failed).find_map(ended_badly)
        })
}

/// Why another revision runs than the one in the manifest.
pub(crate) fn updating(update: &PodUpdate) -> String {
    match update {
        PodUpdate::Waits(why) => format!("the new revision waits, the old one runs on: {why}"),
        PodUpdate::RolledBack(why) => {
            format!("the new revision was rolled back, the previous one runs: {why}")
        }
    }
}

/// Why a container waits, when it says more than that it is being made.
fn waits_for(view: &PodView, container: &k8s::ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let message = waiting.message.as_deref().filter(|message| !message.is_empty());
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let said = match message {
        Some(message) => without_pod_name(message, view),
        None if matches!(reason, "" | "ContainerCreating" | "PodInitializing") => return None,
        None => format!("container {}: {reason}", container.name),
    };
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    Some(match last {
        Some(last) if reason == "CrashLoopBackOff" => format!("{said}, {}", exit(last)),
        Some(_) | None => said,
    })
}

/// The kubelet's messages end in ` pod=NAME_NAMESPACE(UID)`, which the row says already.
fn without_pod_name(message: &str, view: &PodView) -> String {
    let name = format!(" pod={}_{}({})", view.key.name, view.key.namespace, view.uid);
    message.replace(&name, "")
}

fn ended_badly(container: &k8s::ContainerStatus) -> Option<String> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    (ended.exit_code != 0).then(|| format!("container {}: {}", container.name, exit(ended)))
}

/// `exit code 137 (OOMKilled)`
pub(crate) fn exit(ended: &k8s::ContainerStateTerminated) -> String {
    match ended.reason.as_deref().unwrap_or_default() {
        "" | "Error" | "Completed" => format!("exit code {}", ended.exit_code),
        reason => format!("exit code {} ({reason})", ended.exit_code),
    }
}
