//! The answers of the API server that its pods on this node need: ConfigMaps, Secrets, service
//! account tokens, PersistentVolumeClaims, RuntimeClasses and Services.
//!
//! There is one answer for each object. An object without an answer is not known yet: the API
//! server may be away, or the agent may not have asked for the object of a new pod.

use super::{ClaimAnswer, ClaimKey, DataObject, Datum, ObjectKey, PersistentVolume, PodUid};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// The answers of the API server for its pods on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiObjects {
    /// ConfigMaps and Secrets by name. An object without an entry is not known yet.
    pub objects: BTreeMap<ObjectKey, ObjectAnswer>,
    /// Service account tokens. A token without an entry is not known yet.
    pub tokens: BTreeMap<TokenKey, TokenAnswer>,
    /// The claims of volumes. A claim without an entry is not known yet.
    pub claims: BTreeMap<ClaimKey, ClaimAnswer>,
    /// The Services for the environment of containers; `None` until they were read.
    pub services: Option<Arc<ClusterServices>>,
    /// The pods for which the Services count, while they are those that an earlier run of the agent
    /// has read. `None`: they count for all.
    pub services_for: Option<Arc<BTreeSet<PodUid>>>,
    /// The handler of each RuntimeClass; `None` until they were read. They are read only while a
    /// pod names one.
    pub runtime_classes: Option<Arc<RuntimeClasses>>,
    /// The pods for which the RuntimeClasses count, as `services_for`.
    pub runtime_classes_for: Option<Arc<BTreeSet<PodUid>>>,
}

/// The answers that the agent saves, so that containers of its pods start again while the API
/// server is away. Data of objects and tokens are never saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SavedAnswers {
    /// [`ApiObjects::services`]
    pub services: Option<Arc<ClusterServices>>,
    /// The claims that are bound.
    pub claims: Vec<(ClaimKey, Arc<PersistentVolume>)>,
    /// [`ApiObjects::runtime_classes`]
    pub runtime_classes: Option<Arc<RuntimeClasses>>,
}

impl ApiObjects {
    /// The answers to save; `None` while too little is known.
    #[must_use]
    pub fn to_save(&self) -> Option<SavedAnswers> {
        let bound = |(key, answer): (&ClaimKey, &ClaimAnswer)| match answer {
            ClaimAnswer::Bound(volume) => Some((key.clone(), Arc::clone(volume))),
            ClaimAnswer::Elsewhere(_) | ClaimAnswer::MountOptions(_) | ClaimAnswer::Failed(_) => {
                None
            }
        };
        self.services.is_some().then(|| SavedAnswers {
            services: self.services.clone(),
            claims: self.claims.iter().filter_map(bound).collect(),
            runtime_classes: self.runtime_classes.clone(),
        })
    }
}

/// The handler of the container runtime for each RuntimeClass.
pub type RuntimeClasses = BTreeMap<String, String>;

/// The answer of the API server for a ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectAnswer {
    /// The object exists. This is its last known state.
    Found(Arc<DataObject>),
    /// The object does not exist.
    Missing,
    /// The API server refuses to let this node read the object, with this message.
    Refused(Box<str>),
}

/// Identifies a token, which is bound to a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey {
    /// The pod to which the token is bound.
    pub pod: PodUid,
    /// The service account in the pod's namespace.
    pub service_account: Box<str>,
    /// The intended recipient of the token; empty for the API server.
    pub audience: Box<str>,
    /// The lifetime that the pod requests, in seconds.
    pub expiration_seconds: i64,
}

impl fmt::Display for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token of service account {:?}", self.service_account)
    }
}

/// The answer of the API server for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenAnswer {
    /// The newest token. It may have expired while the API server was away.
    Issued(ServiceAccountToken),
    /// The API server refuses to issue a token, with this message.
    Refused(Box<str>),
}

/// The token of a service account. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceAccountToken(Arc<str>);

impl ServiceAccountToken {
    /// A token as the API server issued it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The content of the file.
    #[must_use]
    pub fn content(&self) -> Datum {
        Datum::Text(Arc::clone(&self.0))
    }
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A Service with an address of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterService {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
    /// `spec.clusterIP`
    pub cluster_ip: Box<str>,
    /// In the order of `spec.ports`.
    pub ports: Box<[ClusterServicePort]>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterServicePort {
    /// Empty for one without a name.
    pub name: Box<str>,
    /// The port number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Box<str>,
}

/// Services by their namespace, and by their name there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterServices(BTreeMap<Box<str>, BTreeMap<Box<str>, Arc<ClusterService>>>);

impl ClusterServices {
    /// The Services of a namespace by name.
    pub fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &ClusterService> {
        self.0.get(namespace).into_iter().flat_map(|all| all.values().map(|one| &**one))
    }

    /// The Service of this name.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&ClusterService> {
        self.0.get(namespace)?.get(name).map(|service| &**service)
    }
}

impl FromIterator<Arc<ClusterService>> for ClusterServices {
    fn from_iter<I: IntoIterator<Item = Arc<ClusterService>>>(services: I) -> Self {
        let mut all = Self::default();
        for service in services {
            let of_namespace = all.0.entry(service.namespace.clone()).or_default();
            of_namespace.insert(service.name.clone(), service);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_token() {
        let token = TokenAnswer::Issued(ServiceAccountToken::new("hunter2"));
        let shown = format!("{token:?}");
        assert!(!shown.contains("hunter2") && shown.contains("7 bytes"), "{shown}");
    }
}
