//! The pods of the model world.

use crate::{
    model::{ApiObjects, DesiredPod, NodeObjects, Origin, PodKey, SourceKind, k8s},
    plan::Incarnation,
};
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;

/// A pod from a spec, restart policy and the like included.
pub(in crate::plan::tests) fn desired(uid: &str, spec: &serde_json::Value) -> DesiredPod {
    let pod: k8s::Pod = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-n1", "namespace": "default", "uid": uid,
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": spec,
    }))
    .unwrap();
    DesiredPod {
        key: PodKey::new("default", "web-n1"),
        uid: uid.into(),
        revision: uid.into(),
        pod: Arc::new(pod),
        origin: Origin {
            source: SourceKind::File,
            location: "/m/web.yaml".into(),
            document: 0,
            line: 1,
        },
    }
}

/// No objects, all of them known.
pub(super) fn known_objects() -> NodeObjects {
    let services = Some(Arc::default());
    let api = Arc::new(ApiObjects { services, ..ApiObjects::default() });
    NodeObjects { known: true, api, ..NodeObjects::default() }
}

/// The same pod from an API server.
pub(in crate::plan::tests) fn from_api(mut pod: DesiredPod) -> DesiredPod {
    let source = ("kubernetes.io/config.source".to_owned(), "api".to_owned());
    Arc::make_mut(&mut pod.pod).metadata.annotations = Some([source].into());
    pod.origin.source = SourceKind::Api;
    pod
}

pub(in crate::plan::tests) fn container(name: &str) -> serde_json::Value {
    json!({"name": name, "image": format!("registry/{name}:1")})
}

/// The record of a pod that is admitted at this time.
pub(super) fn admitted(pod: &DesiredPod, at: Timestamp) -> Incarnation {
    Incarnation {
        uid: pod.uid.clone(),
        pod: Some(Arc::clone(&pod.pod)),
        started_at: Some(at),
        kill: None,
        terminal: None,
        deleted: false,
        interrupted: Vec::new(),
    }
}

/// A time in the past of every world.
pub(in crate::plan::tests) fn long_ago() -> Timestamp {
    "2026-11-19T10:00:00Z".parse().unwrap()
}
