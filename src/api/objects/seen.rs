//! The parts of ConfigMaps, Secrets, Services and RuntimeClasses that the agent keeps. The API
//! server has validated them, so a value that can't be decoded is left out instead of being
//! reported.

use super::super::{Watched, answer::MAX_OBJECT_BYTES, secret::decode_base64};
use crate::model::{
    ClusterService, ClusterServicePort, CollectOrdered as _, DataObject, Datum, ObjectKey,
    ObjectKind, Origin, SourceKind,
};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

/// A ConfigMap or a Secret. Only a Secret has a `type`, and it always has one.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "SentObject")]
pub(super) struct SeenObject(pub(super) Arc<DataObject>);

/// A Service, with or without an address of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "SentService")]
pub(super) struct SeenService(pub(super) Arc<ClusterService>);

impl SeenService {
    /// True when it has an address of its own. A headless Service has none.
    pub(super) fn has_address(&self) -> bool {
        !matches!(&*self.0.cluster_ip, "" | "None")
    }
}

impl Watched for SeenObject {
    /// One object.
    const MAX_WEIGHT: usize = 2 * MAX_OBJECT_BYTES;

    fn key(&self) -> String {
        format!("{}/{}", self.0.key.namespace, self.0.key.name)
    }

    fn weight(&self) -> usize {
        self.0.memory_bytes()
    }
}

impl Watched for SeenService {
    /// 16,000 Services with two ports.
    const MAX_WEIGHT: usize = 8 << 20;
    /// A Service that can't be read, most likely because it has thousands of ports, takes its
    /// variables from pods, not those of all others.
    const LEAVES_OUT: bool = true;

    fn key(&self) -> String {
        format!("{}/{}", self.0.namespace, self.0.name)
    }

    fn weight(&self) -> usize {
        let ports =
            self.0.ports.iter().map(|port| size_of::<ClusterServicePort>() + port.name.len());
        let texts = [&self.0.namespace, &self.0.name, &self.0.cluster_ip];
        let texts = texts.into_iter().map(|text| text.len()).sum::<usize>();
        size_of::<ClusterService>() + texts + ports.sum::<usize>()
    }
}

/// A RuntimeClass.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "SentRuntimeClass")]
pub(super) struct SeenRuntimeClass {
    pub(super) name: String,
    pub(super) handler: String,
}

impl Watched for SeenRuntimeClass {
    const MAX_WEIGHT: usize = 1 << 20;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn weight(&self) -> usize {
        self.name.len() + self.handler.len()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentRuntimeClass {
    metadata: SentMetadata,
    handler: String,
}

impl From<SentRuntimeClass> for SeenRuntimeClass {
    fn from(sent: SentRuntimeClass) -> Self {
        Self { name: sent.metadata.name, handler: sent.handler }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentMetadata {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SentObject {
    metadata: SentMetadata,
    immutable: Option<bool>,
    #[serde(rename = "type")]
    secret_type: Option<String>,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, String>>,
}

impl From<SentObject> for SeenObject {
    fn from(sent: SentObject) -> Self {
        let kind = match sent.secret_type {
            Some(_) => ObjectKind::Secret,
            None => ObjectKind::ConfigMap,
        };
        let value = |text: String| match kind {
            ObjectKind::Secret => decode_base64(&text).ok().map(Datum::of_secret),
            ObjectKind::ConfigMap => Some(Datum::Text(text.into())),
        };
        let binary =
            |text: String| decode_base64(&text).ok().map(|bytes| Datum::Binary(bytes.into()));
        let data = sent.data.into_iter().flatten().map(|(key, text)| (key, value(text)));
        let binary_data =
            sent.binary_data.into_iter().flatten().map(|(key, text)| (key, binary(text)));
        let data = data.chain(binary_data).filter_map(|(key, datum)| Some((key.into(), datum?)));
        let SentMetadata { name, namespace, uid } = sent.metadata;
        let uid = match kind {
            ObjectKind::Secret => uid,
            ObjectKind::ConfigMap => String::new(),
        };
        let location = format!("{} {namespace}/{name}", kind.as_str()).into();
        Self(Arc::new(DataObject {
            key: ObjectKey::new(kind, &namespace, &name),
            data: data.collect_ordered(),
            uid: uid.into(),
            immutable: sent.immutable.unwrap_or_default(),
            secret_type: sent.secret_type.unwrap_or_default().into(),
            origin: Origin { source: SourceKind::Api, location, document: 0, line: 1 },
        }))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentService {
    metadata: SentMetadata,
    spec: SentServiceSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SentServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    ports: Option<Vec<SentServicePort>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentServicePort {
    name: Option<String>,
    port: u16,
    protocol: Option<String>,
}

impl From<SentService> for SeenService {
    fn from(sent: SentService) -> Self {
        let port = |sent: SentServicePort| ClusterServicePort {
            name: sent.name.unwrap_or_default().into(),
            port: sent.port,
            protocol: sent.protocol.as_deref().unwrap_or("TCP").into(),
        };
        Self(Arc::new(ClusterService {
            namespace: sent.metadata.namespace.into(),
            name: sent.metadata.name.into(),
            cluster_ip: sent.spec.cluster_ip.unwrap_or_default().into(),
            ports: sent.spec.ports.into_iter().flatten().map(port).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::{Value, json};

    fn object(sent: Value) -> Arc<DataObject> {
        serde_json::from_value::<SeenObject>(sent).unwrap().0
    }

    #[test]
    fn values_of_a_config_map_are_text_and_those_of_a_secret_base64() {
        let metadata = json!({"name": "a", "namespace": "ns", "managedFields": [{"x": 1}]});
        let map = object(json!({
            "metadata": metadata,
            "immutable": true,
            "data": {"text": "YQ=="},
            "binaryData": {"bytes": "/wA="},
        }));
        assert_eq!(map.key, ObjectKey::new(ObjectKind::ConfigMap, "ns", "a"));
        assert!(map.immutable);
        assert_eq!(map.data["text"], Datum::Text("YQ==".into()));
        assert_eq!(map.data["bytes"], Datum::Binary([255, 0].into()));
        let secret = object(json!({
            "metadata": metadata,
            "type": "Opaque",
            "data": {"text": "YQ==", "bytes": "/wA=", "broken": "!"},
        }));
        assert_eq!(secret.key.kind, ObjectKind::Secret);
        assert_eq!(secret.data["text"], Datum::Text("a".into()));
        assert_eq!(secret.data["bytes"], Datum::Binary([255, 0].into()));
        assert!(!secret.data.contains_key("broken") && !secret.immutable);
        let empty = object(json!({"metadata": {"name": "a", "namespace": "ns"}, "data": null}));
        assert!(empty.data.is_empty());
    }

    #[test]
    fn a_service_has_its_address_and_ports() {
        let service = |spec: Value| {
            let sent = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": spec});
            serde_json::from_value::<SeenService>(sent).unwrap()
        };
        let seen = service(json!({
            "clusterIP": "10.0.0.1",
            "ports": [{"port": 80, "targetPort": "http"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
        }));
        let ports: Vec<String> =
            seen.0.ports.iter().map(|p| format!("{}:{}/{}", p.name, p.port, p.protocol)).collect();
        assert_eq!(ports, [":80/TCP", "dns:53/UDP"]);
        assert!(seen.has_address());
        assert!(!service(json!({"clusterIP": "None"})).has_address());
        assert!(!service(json!({"type": "ExternalName", "externalName": "x"})).has_address());
    }
}
