//! `metadata`.

use super::{Report, given, names};
use crate::{
    manifest::Context,
    model::{
        AFTER, MIN_READY, MIN_READY_SECONDS, PROGRESS_DEADLINE, PROGRESS_DEADLINE_SECONDS,
        RESTART_ON_CONFIG_CHANGE, ROLLBACK,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Most bytes that all annotations of an object may have together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
const MAX_NAME: usize = 253;
/// Longest file name on Linux file systems, in bytes.
const MAX_FILE_NAME: usize = 255;
/// Longest deadline of an update, in seconds: a day.
const MOST_SECONDS: u32 = 86_400;
/// Length of the uid of a pod that does not bring its own.
const UID_LEN: usize = 32;

pub(super) fn check(report: &mut Report, meta: &ObjectMeta, cx: &Context<'_>) {
    let name = meta.name.as_deref().unwrap_or_default();
    report.name("metadata.name", name, names::dns_subdomain);
    let suffixed = name.len() + 1 + cx.node_name.len();
    if name.len() <= MAX_NAME && suffixed > MAX_NAME {
        let detail = format!(
            "must be no more than {} bytes, because the node's name is appended to it",
            MAX_NAME.saturating_sub(cx.node_name.len() + 1)
        );
        report.invalid("metadata.name", name, &detail);
    }
    if let Some(namespace) = given(meta.namespace.as_ref()) {
        report.name("metadata.namespace", namespace, names::dns_label);
    }
    if let Some(uid) = given(meta.uid.as_ref()) {
        report.name("metadata.uid", uid, names::uid);
    }
    if report.mistakes.is_empty() {
        log_directory(report, meta, suffixed);
    }
    labels(report, "metadata.labels", meta.labels.as_ref());
    annotations(report, meta.annotations.as_ref());
    updates(report, meta);
    start_order(report, meta);
}

/// The annotations that say how a pod is updated.
fn updates(report: &mut Report, meta: &ObjectMeta) {
    let value = |name| meta.annotations.as_ref()?.get(name).map(String::as_str);
    let path = |name: &str| format!("metadata.annotations[{name}]");
    for name in [RESTART_ON_CONFIG_CHANGE, ROLLBACK] {
        report.one_of(&path(name), value(name), &["true", "false"]);
    }
    for (name, least) in [(MIN_READY_SECONDS, 0), (PROGRESS_DEADLINE_SECONDS, 1)] {
        if let Some(text) = value(name) {
            let seconds = text.parse::<u32>().ok().filter(|n| (least..=MOST_SECONDS).contains(n));
            if seconds.is_none() {
                let detail = format!("must be a number of seconds from {least} to {MOST_SECONDS}");
                report.invalid(&path(name), text, &detail);
            }
        }
    }
    let seconds = |name, default| value(name).map_or(Some(default), |text| text.parse().ok());
    if let (Some(ready), Some(deadline)) = (
        seconds(MIN_READY_SECONDS, MIN_READY),
        seconds(PROGRESS_DEADLINE_SECONDS, PROGRESS_DEADLINE),
    ) && ready >= deadline
    {
        // At least one of them is set.
        let (name, detail) = match value(MIN_READY_SECONDS) {
            Some(_) => (MIN_READY_SECONDS, format!("must be less than the deadline, {deadline}")),
            None => (PROGRESS_DEADLINE_SECONDS, format!("must be more than {ready}")),
        };
        report.invalid(&path(name), value(name).unwrap_or_default(), &detail);
    }
    if value(ROLLBACK) == Some("true") && given(meta.uid.as_ref()).is_some() {
        let detail =
            "is not possible with `metadata.uid`: under one uid, containers are changed in place";
        report.invalid(&path(ROLLBACK), "true", detail);
    }
}

/// Names of pods, separated by commas.
fn start_order(report: &mut Report, meta: &ObjectMeta) {
    let Some(text) = meta.annotations.as_ref().and_then(|all| all.get(AFTER)) else { return };
    let path = format!("metadata.annotations[{AFTER}]");
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            report.invalid(&path, text.as_str(), "must be names of pods, separated by commas");
        } else if Some(name) == meta.name.as_deref() {
            report.invalid(&path, name, "must be another pod: a pod can't wait for itself");
        } else {
            report.name(&path, name, names::dns_subdomain);
        }
    }
}

/// The metadata of a ConfigMap or a Secret.
pub(in crate::manifest) fn check_object(report: &mut Report, meta: &ObjectMeta) {
    let name = meta.name.as_deref().unwrap_or_default();
    report.name("metadata.name", name, names::dns_subdomain);
    if let Some(namespace) = given(meta.namespace.as_ref()) {
        report.name("metadata.namespace", namespace, names::dns_label);
    }
    labels(report, "metadata.labels", meta.labels.as_ref());
    annotations(report, meta.annotations.as_ref());
}

/// The pod's log directory is `<namespace>_<name>-<node>_<uid>`, and a pod without one can't start.
/// The kubelet accepts such a pod and never runs it.
fn log_directory(report: &mut Report, meta: &ObjectMeta, full_name_len: usize) {
    let namespace = given(meta.namespace.as_ref()).unwrap_or("default").len();
    let uid = given(meta.uid.as_ref()).map_or(UID_LEN, str::len);
    let length = namespace + 1 + full_name_len + 1 + uid;
    if length > MAX_FILE_NAME {
        let name = meta.name.as_deref().unwrap_or_default();
        let detail = format!(
            "the pod's log directory NAMESPACE_NAME-NODE_UID would have a name of {length} bytes, and \
             {MAX_FILE_NAME} are possible: shorten the name by {} bytes",
            length - MAX_FILE_NAME
        );
        report.invalid("metadata.name", name, &detail);
    }
}

/// Labels, and the node selector, which is made of them.
pub(super) fn labels(report: &mut Report, path: &str, labels: Option<&BTreeMap<String, String>>) {
    for (key, value) in labels.into_iter().flatten() {
        let path = format!("{path}[{key}]");
        if let Err(detail) = names::qualified_name(key) {
            report.invalid(&path, key.as_str(), &detail.to_string());
        }
        if let Err(detail) = names::label_value(value) {
            report.invalid(&path, value.as_str(), &detail.to_string());
        }
    }
}

fn annotations(report: &mut Report, annotations: Option<&BTreeMap<String, String>>) {
    let mut total = 0;
    for (key, value) in annotations.into_iter().flatten() {
        total += key.len() + value.len();
        // As the API does: case does not matter in the key of an annotation.
        if let Err(detail) = names::qualified_name(&key.to_lowercase()) {
            let path = format!("metadata.annotations[{key}]");
            report.invalid(&path, key.as_str(), &detail.to_string());
        }
    }
    if total > MAX_ANNOTATION_BYTES {
        report.too_long("metadata.annotations", MAX_ANNOTATION_BYTES);
    }
}
