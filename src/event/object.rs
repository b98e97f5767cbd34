//! Entries as Kubernetes v1 `Event` objects, in the shape that the kubelet writes them.

use super::core::Entry;
use crate::model::{CollectOrdered as _, EventKind, EventTarget, k8s, short_digest};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::collections::BTreeMap;

/// `source.component`. Dashboards and filters look for the kubelet's events under this name.
const COMPONENT: &str = "kubelet";

/// The longest name of an object in the API, a DNS subdomain.
const MAX_NAME: usize = 253;

/// One entry. `node_name` becomes `source.host`, and stands for the node where it is the subject.
#[must_use]
pub fn to_object(entry: &Entry, node_name: &str) -> k8s::Event {
    let involved = involved_object(&entry.event.target, node_name);
    let namespace = involved.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let name = event_name(&involved, entry.first);
    let annotations = entry.annotations.iter().map(|(key, value)| (key.to_string(), value.clone()));
    let annotations: BTreeMap<String, String> = annotations.collect_ordered();
    k8s::Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            creation_timestamp: Some(Time(entry.first)),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        involved_object: involved,
        reason: Some(entry.event.reason.to_owned()),
        message: Some(entry.event.message.clone()),
        type_: Some(kind_name(entry.event.kind).to_owned()),
        count: Some(i32::try_from(entry.count).unwrap_or(i32::MAX)),
        first_timestamp: Some(Time(entry.first)),
        last_timestamp: Some(Time(entry.last)),
        source: Some(k8s::EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node_name.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..k8s::Event::default()
    }
}

/// The kubelet's `NAME.TIME`, with the time of the first occurrence: repeats patch the same object.
/// Where that is too long, the name is cut, and a digest tells the events of such objects apart.
fn event_name(involved: &k8s::ObjectReference, first: Timestamp) -> String {
    let object = involved.name.as_deref().unwrap_or_default();
    let time = first.as_nanosecond();
    let name = format!("{object}.{time:x}");
    if name.len() <= MAX_NAME {
        return name;
    }
    let uid = involved.uid.as_deref().unwrap_or_default();
    let digest = short_digest(format!("{object}/{uid}/{time:x}").as_bytes());
    let cut: String = object.chars().take(MAX_NAME - 1 - digest.len()).collect();
    // Each part between dots must end in a letter or a digit.
    format!("{}.{digest}", cut.trim_end_matches(['.', '-']))
}

fn involved_object(target: &EventTarget, node_name: &str) -> k8s::ObjectReference {
    match target {
        EventTarget::Node => k8s::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node_name.to_owned()),
            // `kubectl describe node` looks for it; the kubelet of 1.36 has none, and its events
            // are not shown there.
            uid: Some(node_name.to_owned()),
            ..k8s::ObjectReference::default()
        },
        EventTarget::Pod { key, uid, field_path } => k8s::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: Some(uid.to_string()),
            field_path: field_path.clone(),
            ..k8s::ObjectReference::default()
        },
    }
}

/// `type` of an event as Kubernetes writes it.
fn kind_name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Normal => "Normal",
        EventKind::Warning => "Warning",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Event, PodKey};

    #[test]
    fn has_the_shape_of_the_kubelets_events() {
        let target = EventTarget::Pod {
            key: PodKey::new("shop", "web-n1"),
            uid: "abc".into(),
            field_path: Some("spec.containers{web}".to_owned()),
        };
        let event = Event {
            target,
            kind: EventKind::Warning,
            reason: "BackOff",
            message: "Back-off restarting failed container web".to_owned(),
        };
        let first = "2026-11-20T10:00:00Z".parse().unwrap();
        let last = "2026-11-20T10:05:00Z".parse().unwrap();
        let annotations = BTreeMap::from([("starved_resource", "memory".to_owned())]);
        let entry = Entry { number: 1, event, annotations, combined: false, count: 3, first, last };
        let json = serde_json::to_value(to_object(&entry, "n1")).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "apiVersion": "v1", "kind": "Event",
                "metadata": {"name": "web-n1.18e9b8832bdd4000", "namespace": "shop",
                             "creationTimestamp": "2026-11-20T10:00:00Z",
                             "annotations": {"starved_resource": "memory"}},
                "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-n1",
                                   "uid": "abc", "fieldPath": "spec.containers{web}"},
                "reason": "BackOff", "message": "Back-off restarting failed container web",
                "type": "Warning", "count": 3,
                "firstTimestamp": "2026-11-20T10:00:00Z", "lastTimestamp": "2026-11-20T10:05:00Z",
                "source": {"component": "kubelet", "host": "n1"},
                "reportingComponent": "kubelet", "reportingInstance": "n1",
            })
        );
    }

    #[test]
    fn the_name_of_an_event_is_a_valid_one_for_every_name_of_a_pod() {
        let first: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let name = |pod: &str, uid: &str, first| {
            let target = EventTarget::Pod {
                key: PodKey::new("shop", pod),
                uid: uid.into(),
                field_path: None,
            };
            event_name(&involved_object(&target, "n1"), first)
        };
        let long = |length: usize| "a".repeat(length);
        assert_eq!(name(&long(236), "u", first), format!("{}.18e9b8832bdd4000", long(236)));
        let cut = name(&long(237), "u", first);
        assert_eq!((cut.len(), &cut[..221]), (253, &*format!("{}.", long(220))));
        assert_eq!(cut, name(&long(237), "u", first), "a repeat patches the same object");
        let later = first + jiff::SignedDuration::from_nanos(1);
        let others = [
            name(&long(238), "u", first),
            name(&long(237), "v", first),
            name(&long(237), "u", later),
        ];
        assert!(others.iter().all(|other| *other != cut && other.len() == 253));
        // A cut at the end of a part of the name.
        let dashed = name(&format!("{}-.{}", long(218), long(33)), "u", first);
        assert_eq!(&dashed[..219], format!("{}.", long(218)));
    }

    #[test]
    fn an_event_of_the_node_lives_in_the_default_namespace() {
        let event = Event {
            target: EventTarget::Node,
            kind: EventKind::Normal,
            reason: "Starting",
            message: "Starting.".to_owned(),
        };
        let at = "2026-11-20T10:00:00Z".parse().unwrap();
        let annotations = BTreeMap::new();
        let entry =
            Entry { number: 1, event, annotations, combined: false, count: 1, first: at, last: at };
        let object = to_object(&entry, "n1");
        assert_eq!(object.metadata.annotations, None);
        assert_eq!(object.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(object.involved_object.uid.as_deref(), Some("n1"));
    }
}
