//! The Node as it is made, and what is put right about one that was there before.

use super::{NodeReport, Registration, status};
use crate::model::{CloudProvider, CollectOrdered as _, Now, k8s};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Tells the attach-detach controller that it manages the volumes of this node
/// (`enableControllerAttachDetach`). Without it the annotation is absent, never "false".
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Keeps the scheduler from binding pods here that this agent would not run.
const STATIC_ONLY: &str = "nodelet.dev/static-only";
/// Keeps pods away until a cloud controller manager has initialized the Node and taken this off.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Tells a cloud controller manager the addresses of `--node-ip`, joined by commas. Present only
/// with an external cloud provider.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Labels that are corrected on an existing Node. The agent does not change other labels.
const LABELS_KEPT: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The taint of a node that runs static pods only.
#[must_use]
pub fn static_only_taint() -> k8s::Taint {
    no_schedule(STATIC_ONLY, None)
}

fn no_schedule(key: &str, value: Option<&str>) -> k8s::Taint {
    k8s::Taint {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

/// The object to register with, status included.
#[must_use]
pub fn new_node(registration: &Registration, report: &NodeReport, now: Now) -> k8s::Node {
    let external = registration.cloud_provider == CloudProvider::External;
    let uninitialized = external.then(|| no_schedule(UNINITIALIZED, Some("true")));
    let mut taints: Vec<k8s::Taint> = Vec::new();
    // The API server refuses a taint that is there twice.
    for taint in registration.taints.iter().cloned().chain(uninitialized) {
        if !taints.iter().any(|known| known.key == taint.key && known.effect == taint.effect) {
            taints.push(taint);
        }
    }
    let annotations = annotations(registration).into_iter();
    let annotations: BTreeMap<String, String> =
        annotations.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect_ordered();
    k8s::Node {
        metadata: ObjectMeta {
            name: Some(report.name.clone()),
            labels: Some(registration.labels.clone()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(k8s::NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: registration.provider_id.clone(),
            ..k8s::NodeSpec::default()
        }),
        status: Some(status::status(report, None, now).status),
    }
}

/// The annotations that are ours to set, and to remove where there is no value.
fn annotations(registration: &Registration) -> [(&'static str, Option<String>); 2] {
    let given = registration.node_ips.iter().filter(|ip| !ip.is_unspecified());
    let given: Vec<String> = given.map(ToString::to_string).collect();
    let told = registration.cloud_provider == CloudProvider::External && !given.is_empty();
    [
        (ATTACH_DETACH, registration.attach_detach.then(|| "true".to_owned())),
        (PROVIDED_NODE_IP, told.then(|| given.join(","))),
    ]
}

/// What a person should know, and can run, where the Node has the taint for static pods only and
/// should not, or the other way round: a node may not change its own taints.
#[must_use]
pub fn taint_note(registration: &Registration, node: &k8s::Node) -> Option<String> {
    let has_it = |taints: &[k8s::Taint]| taints.iter().any(|taint| taint.key == STATIC_ONLY);
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    match (has_it(&registration.taints), has_it(taints.unwrap_or_default())) {
        (true, false) => Some(format!(
            "the node takes pods that it will not run: kubectl taint nodes {name} {STATIC_ONLY}=:NoSchedule"
        )),
        (false, true) => Some(format!(
            "the node could run pods of the API server, and a taint keeps them away: kubectl taint nodes {name} {STATIC_ONLY}-"
        )),
        (true, true) | (false, false) => None,
    }
}

/// What to write into the metadata of a Node that exists already: a strategic merge patch, `None`
/// when all is right.
#[must_use]
pub fn reconciled(registration: &Registration, node: &k8s::Node) -> Option<Value> {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let wrong: BTreeMap<&str, &String> = LABELS_KEPT
        .into_iter()
        .filter_map(|name| Some((name, registration.labels.get(name)?)))
        .filter(|(name, value)| labels.get(*name) != Some(value))
        .collect_ordered();
    let seen = node.metadata.annotations.as_ref().unwrap_or(&none);
    // Null removes one.
    let notes: BTreeMap<&str, Option<String>> = annotations(registration)
        .into_iter()
        .filter(|(name, value)| seen.get(*name) != value.as_ref())
        .collect_ordered();
    if wrong.is_empty() && notes.is_empty() {
        return None;
    }
    let mut metadata = json!({});
    if !wrong.is_empty() {
        metadata["labels"] = json!(wrong);
    }
    if !notes.is_empty() {
        metadata["annotations"] = json!(notes);
    }
    Some(json!({ "metadata": metadata }))
}
