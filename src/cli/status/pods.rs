//! The table of pods, and why a pod does not run.

use super::text;
use crate::{
    model::{NodeView, PodUpdate, PodView, k8s},
    status::{display_status, ready_column, restarts},
};
use jiff::Timestamp;

/// Characters of a reason in the table; `-o wide` has all.
const REASON_WIDTH: usize = 110;

/// The table; a sentence when there are no pods.
pub(super) fn table(pods: &[PodView], node: &NodeView, now: Timestamp, wide: bool) -> String {
    if pods.is_empty() {
        return "No pods.\n".to_owned();
    }
    let last_good = node.last_good();
    let reasons: Vec<String> =
        pods.iter().map(|view| reason_beside(view, last_good.contains(&view.key))).collect();
    let with_reason = reasons.iter().any(|reason| !reason.is_empty());
    let mut rows = vec![header(wide, with_reason)];
    for (view, reason) in pods.iter().zip(reasons) {
        rows.push(row(view, with_reason.then_some(reason), now, wide));
    }
    text::table(&rows)
}

/// The index of the column with the status.
pub(super) const STATUS: usize = 3;

/// The names of the columns.
pub(super) fn header(wide: bool, with_reason: bool) -> Vec<String> {
    let mut header = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"];
    if wide {
        header.extend(["UID", "IMAGES", "MANIFEST"]);
    }
    header.extend(with_reason.then_some("REASON"));
    header.into_iter().map(str::to_owned).collect()
}

/// The row of a pod; `reason` is `None` when the table has no column for it.
pub(super) fn row(
    view: &PodView,
    reason: Option<String>,
    now: Timestamp,
    wide: bool,
) -> Vec<String> {
    let mut row = columns(view, now);
    if wide {
        row.extend([view.uid.to_string(), images(view), manifest(view)]);
    }
    row.extend(reason.map(|reason| if wide { reason } else { text::cut(&reason, REASON_WIDTH) }));
    row
}

fn columns(view: &PodView, now: Timestamp) -> Vec<String> {
    let lost = k8s::Pod::default();
    let pod = view.pod.as_deref().unwrap_or(&lost);
    let (count, last) = restarts(pod, &view.status);
    let restarts = match last {
        Some(last) if count > 0 => format!("{count} ({} ago)", text::age_at(last, now)),
        Some(_) | None => count.to_string(),
    };
    vec![
        view.key.namespace.to_string(),
        view.key.name.to_string(),
        ready_column(pod, &view.status).to_string(),
        display_status(pod, &view.status, view.terminating),
        restarts,
        started(view).map_or_else(|| "<unknown>".to_owned(), |then| text::age_at(then, now)),
        ip(view),
    ]
}

/// When the pod was accepted.
pub(super) fn started(view: &PodView) -> Option<Timestamp> {
    let created = || view.pod.as_ref()?.metadata.creation_timestamp.as_ref();
    view.status.start_time.as_ref().or_else(created).map(|time| time.0)
}

pub(super) fn ip(view: &PodView) -> String {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    match view.status.pod_ip.as_deref() {
        Some(ip) if !ip.is_empty() => ip.to_owned(),
        Some(_) | None if spec.and_then(|spec| spec.host_network) == Some(true) => "<host>".into(),
        Some(_) | None => "<none>".to_owned(),
    }
}

fn images(view: &PodView) -> String {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let images = spec.iter().flat_map(|spec| &spec.containers).filter_map(|c| c.image.as_deref());
    let images: Vec<&str> = images.collect();
    if images.is_empty() { "<none>".to_owned() } else { images.join(",") }
}

/// Where the pod is written: `/etc/nodelet/static-pods/web.yaml`.
pub(super) fn manifest(view: &PodView) -> String {
    match &view.origin {
        Some(origin) if origin.line > 1 => format!("{}:{}", origin.location, origin.line),
        Some(origin) => origin.location.to_string(),
        None => "<gone>".to_owned(),
    }
}

/// Why the pod does not run as it should, on one line; empty when there is nothing to say.
/// `last_good`: its manifest is invalid, and it runs from an earlier revision.
pub(super) fn reason_beside(view: &PodView, last_good: bool) -> String {
    match reason(view) {
        Some(reason) => text::one_line(&reason),
        None if last_good => "runs its last good revision: the manifest is invalid now".to_owned(),
        None => String::new(),
    }
}

/// Why the pod does not run as it should, in one sentence; `None` when there is nothing to say.
pub(super) fn reason(view: &PodView) -> Option<String> {
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
pub(super) fn updating(update: &PodUpdate) -> String {
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
pub(super) fn exit(ended: &k8s::ContainerStateTerminated) -> String {
    match ended.reason.as_deref().unwrap_or_default() {
        "" | "Error" | "Completed" => format!("exit code {}", ended.exit_code),
        reason => format!("exit code {} ({reason})", ended.exit_code),
    }
}
