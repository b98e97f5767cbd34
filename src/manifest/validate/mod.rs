//! Is this a pod that can run? The checks that the API server makes when a pod is created, and
//! those that the kubelet makes when it admits one, all at once, with the API's messages.
//!
//! What a field table can say (types, unknown and unsupported fields) is not repeated here.

mod container;
mod dns;
mod env;
mod files;
mod lifecycle;
mod metadata;
pub(super) mod names;
mod placement;
mod report;
mod resources;
mod scheduling;
mod security;
mod spec;
mod volumes;

use super::Context;
use crate::model::k8s;
pub(super) use {metadata::check_object as check_object_meta, report::Report};

/// Checks a pod after defaulting and before its name gets the node's suffix.
pub(super) fn validate(pod: &k8s::Pod, cx: &Context<'_>) -> Report {
    let mut report = Report::default();
    metadata::check(&mut report, &pod.metadata, cx);
    match &pod.spec {
        Some(pod_spec) => {
            spec::check(&mut report, pod_spec, cx);
            security::check_annotations(&mut report, &pod.metadata, pod_spec);
        }
        None => report.required("spec"),
    }
    report
}

/// A text that is there and not empty.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|t| !t.is_empty())
}
