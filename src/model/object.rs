//! ConfigMaps and Secrets: data that pods refer to by name.

use super::{ApiObjects, ObjectAnswer, Origin, order::CollectOrdered as _};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The kinds of objects that hold data for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    /// Text and bytes that anybody may read.
    ConfigMap,
    /// Text and bytes that are shown nowhere.
    Secret,
}

/// Names one object; it is displayed as `ConfigMap default/web`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// A ConfigMap and a Secret may have the same name.
    pub kind: ObjectKind,
    /// The namespace of the pods that may read it.
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
}

/// A ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataObject {
    /// Its name.
    pub key: ObjectKey,
    /// The values by their keys.
    pub data: BTreeMap<Box<str>, Datum>,
    /// `metadata.uid` of a Secret from the API server; empty otherwise.
    pub uid: Box<str>,
    /// The data may not change while the object exists.
    pub immutable: bool,
    /// `type` of a Secret: `Opaque`, `kubernetes.io/dockerconfigjson`, ...; empty for a ConfigMap.
    pub secret_type: Box<str>,
    /// Where it is written.
    pub origin: Origin,
}

/// The value of one key, or the content of a file. Clones share it. `Debug` shows its size only,
/// because it may be secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Datum {
    /// `data` of a ConfigMap, or data of a Secret that is UTF-8.
    Text(Arc<str>),
    /// `binaryData` of a ConfigMap, or data of a Secret that is not UTF-8.
    Binary(Arc<[u8]>),
}

/// The objects to which pods of this node can refer. Static pods use objects from files only, and
/// pods of the API server use objects from there only. Otherwise a user of the API could read a
/// Secret that an administrator has put into a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObjects {
    /// Every place that may have objects was read. Before that, an object that is not found may be
    /// there.
    pub known: bool,
    /// The objects of static pods by name.
    pub found: BTreeMap<ObjectKey, Arc<DataObject>>,
    /// The objects of pods of the API server.
    pub api: Arc<ApiObjects>,
}

/// The objects to which a pod can refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectScope {
    /// Objects from manifest files, for a static pod.
    Files,
    /// Objects of the API server, for a pod from there.
    Api,
}

/// What the agent knows about an object.
#[derive(Clone, Copy, Debug)]
pub enum ObjectSight<'a> {
    /// It exists.
    Found(&'a Arc<DataObject>),
    /// It does not exist.
    Missing,
    /// The API server refuses to let this node read it, with this message.
    Refused(&'a str),
    /// The API server has not answered yet.
    Unknown,
}

impl NodeObjects {
    /// The objects of several places. Of two with the same name, the one of the earlier place
    /// counts. At most one place has objects of the API server.
    #[must_use]
    pub fn merge(places: &[Arc<Self>]) -> Self {
        let known = places.iter().all(|place| place.known);
        let all = places.iter().rev().flat_map(|place| &place.found);
        let found = all.map(|(key, object)| (key.clone(), Arc::clone(object))).collect_ordered();
        let mut of_api = places.iter().map(|place| &place.api);
        let api = of_api.find(|api| ***api != ApiObjects::default()).cloned().unwrap_or_default();
        Self { known, found, api }
    }

    /// What the agent knows about an object.
    #[must_use]
    pub fn sight(&self, scope: ObjectScope, key: &ObjectKey) -> ObjectSight<'_> {
        match scope {
            // For files, `known` tells whether a missing object may still appear.
            ObjectScope::Files => {
                self.found.get(key).map_or(ObjectSight::Missing, ObjectSight::Found)
            }
            ObjectScope::Api => match self.api.objects.get(key) {
                Some(ObjectAnswer::Found(object)) => ObjectSight::Found(object),
                Some(ObjectAnswer::Missing) => ObjectSight::Missing,
                Some(ObjectAnswer::Refused(why)) => ObjectSight::Refused(why),
                None => ObjectSight::Unknown,
            },
        }
    }
}

impl ObjectKind {
    /// `kind` in a manifest.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// `configmap`, `secret`: as messages of the kubelet name it.
    #[must_use]
    pub fn lower(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

impl ObjectKey {
    /// The name of an object of this kind.
    #[must_use]
    pub fn new(kind: ObjectKind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

impl DataObject {
    /// About how much memory it takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let entries = self.data.iter().map(|(key, datum)| {
            size_of::<(Box<str>, Datum)>() + key.len() + datum.as_bytes().len()
        });
        size_of::<Self>() + entries.sum::<usize>()
    }

    /// Whether both hold the same, wherever they are written.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.data == other.data
            && self.immutable == other.immutable
            && self.secret_type == other.secret_type
    }
}

impl Datum {
    /// The value of a key of a Secret.
    #[must_use]
    pub fn of_secret(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text.into()),
            Err(error) => Self::Binary(error.into_bytes().into()),
        }
    }

    /// The content of a file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// The value of an environment variable; `None` for bytes.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Binary(_) => None,
        }
    }
}

impl fmt::Debug for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_bytes().len())
    }
}

#[cfg(test)]
impl DataObject {
    /// An object of namespace `default` with these texts, for tests.
    pub(crate) fn sample(kind: ObjectKind, name: &str, data: &[(&str, &str)]) -> Self {
        let (source, location) = (super::SourceKind::File, "/m/o.yaml".into());
        let data = data.iter().map(|(key, text)| ((*key).into(), Datum::Text((*text).into())));
        Self {
            key: ObjectKey::new(kind, "default", name),
            data: data.collect(),
            uid: "".into(),
            immutable: false,
            secret_type: "".into(),
            origin: Origin { source, location, document: 0, line: 1 },
        }
    }
}

#[cfg(test)]
impl FromIterator<DataObject> for NodeObjects {
    fn from_iter<I: IntoIterator<Item = DataObject>>(objects: I) -> Self {
        let found = objects.into_iter().map(|object| (object.key.clone(), Arc::new(object)));
        Self { known: true, found: found.collect(), api: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(known: bool, text: &str) -> Arc<NodeObjects> {
        let all = text.split_whitespace().filter_map(|one| one.split_once('='));
        let all =
            all.map(|(name, value)| DataObject::sample(ObjectKind::Secret, name, &[("k", value)]));
        Arc::new(NodeObjects { known, ..all.collect() })
    }

    #[test]
    fn of_two_places_the_earlier_one_counts() {
        let merged = NodeObjects::merge(&[place(true, "a=1"), place(true, "a=2 b=2")]);
        let values: Vec<&str> =
            merged.found.values().filter_map(|object| object.data["k"].as_text()).collect();
        assert_eq!(values, ["1", "2"]);
        assert!(merged.known);
        assert!(NodeObjects::merge(&[]).known, "there is no place to wait for");
        assert!(!NodeObjects::merge(&[place(true, ""), place(false, "a=1")]).known);
    }

    #[test]
    fn objects_of_files_and_of_the_api_server_do_not_mix() {
        let api = |name: &str| {
            let object = DataObject::sample(ObjectKind::Secret, name, &[("k", "api")]);
            let answer = ObjectAnswer::Found(Arc::new(object.clone()));
            let api =
                ApiObjects { objects: [(object.key, answer)].into(), ..ApiObjects::default() };
            Arc::new(NodeObjects { known: true, api: Arc::new(api), ..NodeObjects::default() })
        };
        let merged = NodeObjects::merge(&[place(true, "a=file b=file"), api("a")]);
        let seen = |scope, name| {
            let key = ObjectKey::new(ObjectKind::Secret, "default", name);
            match merged.sight(scope, &key) {
                ObjectSight::Found(object) => object.data["k"].as_text().unwrap_or_default(),
                ObjectSight::Missing => "missing",
                ObjectSight::Refused(why) => why,
                ObjectSight::Unknown => "unknown",
            }
        };
        use ObjectScope::{Api, Files};
        assert_eq!(
            [seen(Files, "a"), seen(Files, "b"), seen(Files, "c")],
            ["file", "file", "missing"]
        );
        assert_eq!([seen(Api, "a"), seen(Api, "b")], ["api", "unknown"]);
    }

    #[test]
    fn debug_shows_no_data() {
        let shown = format!("{:?}", place(true, "a=hunter2"));
        assert!(!shown.contains("hunter2") && shown.contains("7 bytes"), "{shown}");
    }
}
