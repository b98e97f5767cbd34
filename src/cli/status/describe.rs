//! One pod in detail, in the order of `kubectl describe pod`.

use super::{
    probes,
    text::{self, Page},
};
use crate::{
    model::{PodView, ProbeKind, REVISION_ANNOTATION, k8s},
    podspec::{as_container, ephemeral_containers, grace_seconds, is_made_of_files, is_sidecar},
    presentation,
    serve::StatusDocument,
    status::display_status,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Annotations that the head of the page tells in other words.
const TOLD_ELSEWHERE: [&str; 5] = [
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.seen",
    "kubernetes.io/config.source",
    REVISION_ANNOTATION,
];

pub(super) fn render(document: &StatusDocument, view: &PodView, now: Timestamp) -> String {
    let lost = k8s::Pod::default();
    let pod = view.pod.as_deref().unwrap_or(&lost);
    let mut page = Page::default();
    head(&mut page, document, view, pod, now);
    let spec = pod.spec.clone().unwrap_or_default();
    let status = &view.status;
    let init = spec.init_containers.unwrap_or_default();
    let of_init = status.init_container_statuses.as_deref();
    containers(&mut page, view, ("Init containers", &init, of_init), now);
    let of_regular = status.container_statuses.as_deref();
    containers(&mut page, view, ("Containers", &spec.containers, of_regular), now);
    let ephemeral: Vec<_> = ephemeral_containers(pod).iter().map(as_container).collect();
    let of_ephemeral = status.ephemeral_container_statuses.as_deref();
    containers(&mut page, view, ("Ephemeral containers", &ephemeral, of_ephemeral), now);
    conditions(&mut page, status, now);
    volumes(&mut page, spec.volumes.as_deref().unwrap_or_default());
    events(&mut page, document, view, now);
    page.into_text()
}

fn head(
    page: &mut Page,
    document: &StatusDocument,
    view: &PodView,
    pod: &k8s::Pod,
    now: Timestamp,
) {
    let (spec, status) = (pod.spec.as_ref(), &view.status);
    page.field(0, "Name", &view.key.name);
    page.field(0, "Namespace", &view.key.namespace);
    page.field(0, "UID", view.uid.as_str());
    page.field(0, "Node", &document.node.name);
    if view.pod.is_none() {
        page.field(0, "Note", "its specification is lost; the rest of the pod is being removed");
    }
    page.field(0, "Manifest", &presentation::manifest(view));
    if document.node.last_good().contains(&view.key) {
        page.field(0, "", "invalid now (see nodelet status): this is its last good revision");
    }
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    page.optional(0, "Revision", annotations.get(REVISION_ANNOTATION).map(String::as_str));
    let started = presentation::started(view).map(|then| text::time_and_age(then, now));
    page.optional(0, "Start time", started.as_deref());
    let shown = |(key, _): &(&String, &String)| !TOLD_ELSEWHERE.contains(&key.as_str());
    page.field(0, "Labels", &pairs(pod.metadata.labels.iter().flatten()));
    page.field(0, "Annotations", &pairs(annotations.iter().filter(shown)));
    page.field(0, "Status", &display_status(pod, status, view.terminating));
    page.optional(0, "Phase", status.phase.as_deref());
    page.optional(0, "Reason", status.reason.as_deref());
    page.optional(0, "Message", status.message.as_deref());
    page.optional(0, "Hung", view.hung.as_deref());
    page.optional(0, "Waiting", view.waiting.as_deref());
    page.optional(0, "Update", view.update.as_ref().map(presentation::updating).as_deref());
    let ips: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let ips = if ips.is_empty() { presentation::ip(view) } else { ips.join(", ") };
    page.field(0, "IPs", &ips);
    page.optional(0, "QoS class", status.qos_class.as_deref());
    page.optional(0, "Restart policy", spec.and_then(|spec| spec.restart_policy.as_deref()));
    let grace = spec.map(|_| format!("{}s", grace_seconds(view.pod.as_deref())));
    page.optional(0, "Grace period", grace.as_deref());
}

fn pairs<'a>(map: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let lines: Vec<String> =
        map.map(|(key, value)| format!("{key}={}", text::one_line(value))).collect();
    if lines.is_empty() { "<none>".to_owned() } else { lines.join("\n") }
}

/// One list of containers: its heading, specifications and statuses.
type ContainerList<'a> = (&'a str, &'a [k8s::Container], Option<&'a [k8s::ContainerStatus]>);

fn containers(
    page: &mut Page,
    view: &PodView,
    (heading, specs, statuses): ContainerList<'_>,
    now: Timestamp,
) {
    if specs.is_empty() {
        return;
    }
    page.line(&format!("{heading}:"));
    for spec in specs {
        let status = statuses.unwrap_or_default().iter().find(|status| status.name == spec.name);
        let sidecar = if is_sidecar(spec) { " (sidecar)" } else { "" };
        page.block(2, &format!("{}:{sidecar}", spec.name));
        container(page, spec, status, view, now);
    }
}

fn container(
    page: &mut Page,
    spec: &k8s::Container,
    status: Option<&k8s::ContainerStatus>,
    view: &PodView,
    now: Timestamp,
) {
    let id = status.and_then(|status| status.container_id.as_deref());
    page.optional(4, "Container ID", id);
    page.optional(4, "Image", spec.image.as_deref());
    page.optional(4, "Image ID", status.map(|status| status.image_id.as_str()));
    page.optional(4, "Ports", Some(&ports(spec)));
    page.optional(4, "Command", Some(&words(spec.command.as_deref())));
    page.optional(4, "Args", Some(&words(spec.args.as_deref())));
    match status {
        None => page.field(4, "State", "not created yet"),
        Some(status) => {
            page.field(4, "State", &state(status.state.as_ref(), now));
            let last = status.last_state.as_ref().filter(|last| **last != Default::default());
            page.optional(4, "Last state", last.map(|last| state(Some(last), now)).as_deref());
            page.field(4, "Ready", if status.ready { "yes" } else { "no" });
            page.field(4, "Restarts", &status.restart_count.to_string());
        }
    }
    let wanted = spec.resources.clone().unwrap_or_default();
    let actual = status.and_then(|status| status.resources.clone());
    let actual = actual.unwrap_or_else(|| wanted.clone());
    let requests = resized(actual.requests.as_ref(), wanted.requests.as_ref());
    page.optional(4, "Requests", Some(&requests));
    let limits = resized(actual.limits.as_ref(), wanted.limits.as_ref());
    page.optional(4, "Limits", Some(&limits));
    for kind in ProbeKind::ALL {
        let text = probes::describe(spec, kind, &view.probes, now);
        page.optional(4, kind.title(), text.as_deref());
    }
    let pod = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let volumes = pod.and_then(|pod| pod.volumes.as_deref()).unwrap_or_default();
    let mounts = spec.volume_mounts.iter().flatten().map(|mount| mounted(mount, volumes));
    let mounts: Vec<String> = mounts.collect();
    page.optional(4, "Mounts", Some(&mounts.join("\n")));
}

fn ports(spec: &k8s::Container) -> String {
    let ports = spec.ports.iter().flatten().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let host = match (port.host_ip.as_deref(), port.host_port) {
            (_, None | Some(0)) => String::new(),
            (None | Some(""), Some(number)) => format!(", on the host {number}"),
            (Some(ip), Some(number)) => format!(", on the host {ip}:{number}"),
        };
        format!("{}/{protocol}{host}", port.container_port)
    });
    ports.collect::<Vec<_>>().join("\n")
}

fn words(words: Option<&[String]>) -> String {
    words.unwrap_or_default().join("\n")
}

fn mounted(mount: &k8s::VolumeMount, volumes: &[k8s::Volume]) -> String {
    let volume = volumes.iter().find(|volume| volume.name == mount.name);
    let read_only = mount.read_only == Some(true) || volume.is_some_and(is_read_only);
    let access = if read_only { "ro" } else { "rw" };
    let path = mount.sub_path.as_deref().or(mount.sub_path_expr.as_deref());
    let path = path.map(|path| format!(", path {path}")).unwrap_or_default();
    format!("{} from {} ({access}{path})", mount.mount_path, mount.name)
}

/// Whether a volume is read-only in every container that mounts it.
fn is_read_only(volume: &k8s::Volume) -> bool {
    let nfs = volume.nfs.as_ref().and_then(|nfs| nfs.read_only);
    let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only);
    is_made_of_files(volume) || volume.image.is_some() || [nfs, claim].contains(&Some(true))
}

/// The amounts that a container has; while a resize is under way also those that it is to have.
fn resized(
    actual: Option<&BTreeMap<String, Quantity>>,
    wanted: Option<&BTreeMap<String, Quantity>>,
) -> String {
    let (actual, wanted) = (amounts(actual), amounts(wanted));
    if actual == wanted {
        return actual;
    }
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    format!("{} (to be: {})", or_none(&actual), or_none(&wanted))
}

fn amounts(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amounts = amounts.into_iter().flatten();
    amounts.map(|(name, amount)| format!("{name} {}", amount.0)).collect::<Vec<_>>().join(", ")
}

/// A state in one line, its message below.
fn state(state: Option<&k8s::ContainerState>, now: Timestamp) -> String {
    let state = state.cloned().unwrap_or_default();
    let (line, message) = if let Some(running) = state.running {
        let since = running.started_at.map(|time| text::time_and_age(time.0, now));
        (format!("Running since {}", since.unwrap_or_else(|| "?".to_owned())), None)
    } else if let Some(ended) = state.terminated {
        let mut line = format!("Terminated: {}", presentation::exit(&ended));
        // One that could not be started has 1970 there.
        let started = ended.started_at.as_ref().filter(|from| from.0 > Timestamp::UNIX_EPOCH);
        if let (Some(from), Some(to)) = (started, &ended.finished_at) {
            line.push_str(&format!(", ran {}", text::age_at(from.0, to.0)));
        }
        if let Some(to) = &ended.finished_at {
            line.push_str(&format!(", ended {}", text::time_and_age(to.0, now)));
        }
        (line, ended.message)
    } else {
        let waiting = state.waiting.unwrap_or_default();
        let reason = waiting.reason.filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        (format!("Waiting{reason}"), waiting.message)
    };
    match message.filter(|message| !message.trim().is_empty()) {
        Some(message) => format!("{line}\n{}", message.trim_end()),
        None => line,
    }
}

fn conditions(page: &mut Page, status: &k8s::PodStatus, now: Timestamp) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.is_empty() {
        return;
    }
    page.line("Conditions:");
    let header = ["TYPE", "STATUS", "SINCE", "REASON"].map(str::to_owned).to_vec();
    let rows = conditions.iter().map(|condition| {
        let since = condition.last_transition_time.as_ref();
        let since = since.map_or_else(|| "-".to_owned(), |time| text::age_at(time.0, now));
        let why = [condition.reason.as_deref(), condition.message.as_deref()];
        let why: Vec<&str> = why.into_iter().flatten().filter(|why| !why.is_empty()).collect();
        let why = text::one_line(&why.join(": "));
        vec![condition.type_.clone(), condition.status.clone(), since, why]
    });
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    page.block(2, &text::table(&rows));
}

fn volumes(page: &mut Page, volumes: &[k8s::Volume]) {
    if volumes.is_empty() {
        return;
    }
    page.line("Volumes:");
    let rows: Vec<Vec<String>> =
        volumes.iter().map(|volume| vec![volume.name.clone(), volume_source(volume)]).collect();
    page.block(2, &text::table(&rows));
}

fn volume_source(volume: &k8s::Volume) -> String {
    if let Some(host) = &volume.host_path {
        let kind = host.type_.as_deref().filter(|kind| !kind.is_empty());
        let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        return format!("hostPath {}{kind}", host.path);
    }
    if let Some(source) = &volume.config_map {
        return object("ConfigMap", &source.name, source.optional);
    }
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        return object("Secret", name, source.optional);
    }
    if volume.downward_api.is_some() {
        return "downwardAPI".to_owned();
    }
    if let Some(source) = &volume.projected {
        let sources = source.sources.iter().flatten().flat_map(projected);
        return format!("projected from {}", sources.collect::<Vec<_>>().join(", "));
    }
    if let Some(source) = &volume.image {
        return format!("image {}", source.reference.as_deref().unwrap_or_default());
    }
    if let Some(source) = &volume.nfs {
        return format!("NFS {}:{}{}", source.server, source.path, read_only(source.read_only));
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let read_only = read_only(source.read_only);
        return format!("PersistentVolumeClaim {}{read_only}", source.claim_name);
    }
    if volume.ephemeral.is_some() {
        return "PersistentVolumeClaim of the pod's own".to_owned();
    }
    let Some(empty) = &volume.empty_dir else { return "?".to_owned() };
    let medium = match empty.medium.as_deref() {
        None | Some("") => "disk",
        Some(medium) => medium,
    };
    let limit = empty.size_limit.as_ref().map(|limit| format!(", at most {}", limit.0));
    format!("emptyDir on {medium}{}", limit.unwrap_or_default())
}

fn read_only(field: Option<bool>) -> &'static str {
    if field == Some(true) { " (read-only)" } else { "" }
}

fn object(kind: &str, name: &str, optional: Option<bool>) -> String {
    let optional = if optional == Some(true) { " (optional)" } else { "" };
    format!("{kind} {name}{optional}")
}

fn projected(source: &k8s::VolumeProjection) -> Vec<String> {
    let config_map =
        source.config_map.iter().map(|map| object("ConfigMap", &map.name, map.optional));
    let secret = source.secret.iter().map(|secret| object("Secret", &secret.name, secret.optional));
    let downward = source.downward_api.iter().map(|_| "downwardAPI".to_owned());
    let token = source.service_account_token.iter().map(|_| "serviceAccountToken".to_owned());
    config_map.chain(secret).chain(downward).chain(token).collect()
}

fn events(page: &mut Page, document: &StatusDocument, view: &PodView, now: Timestamp) {
    let about = |event: &&k8s::Event| {
        let object = &event.involved_object;
        object.name.as_deref() == Some(&view.key.name)
            && object.namespace.as_deref() == Some(&view.key.namespace)
    };
    let events: Vec<&k8s::Event> = document.events.iter().filter(about).collect();
    if events.is_empty() {
        page.line("Events:         none in memory");
        return;
    }
    page.line("Events:");
    let header = ["TYPE", "REASON", "AGE", "OBJECT", "MESSAGE"].map(str::to_owned).to_vec();
    let rows = events.into_iter().map(|event| {
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
        let object = event.involved_object.field_path.as_deref().unwrap_or("pod").to_owned();
        let message = text::one_line(event.message.as_deref().unwrap_or_default());
        vec![text(&event.type_), text(&event.reason), event_age(event, now), object, message]
    });
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    page.block(2, &text::table(&rows));
}

/// `12s`, or `12s (x5 over 10m)`.
pub(super) fn event_age(event: &k8s::Event, now: Timestamp) -> String {
    let age = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map_or_else(|| "?".to_owned(), |time| text::age_at(time.0, now))
    };
    let last = age(&event.last_timestamp);
    match event.count {
        Some(count) if count > 1 => {
            format!("{last} (x{count} over {})", age(&event.first_timestamp))
        }
        Some(_) | None => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_could_not_be_started_did_not_run() {
        let ended = |started: &str| {
            let value = serde_json::json!({"terminated": {
                "exitCode": 128, "reason": "StartError", "startedAt": started, "finishedAt": "2026-11-20T10:00:05Z",
            }});
            let ended: k8s::ContainerState = serde_json::from_value(value).unwrap();
            state(Some(&ended), "2026-11-20T10:00:10Z".parse().unwrap())
        };
        assert!(ended("2026-11-20T10:00:00Z").contains(", ran 5s, ended "));
        assert!(!ended("1970-01-01T00:00:00Z").contains(", ran "));
    }
}
