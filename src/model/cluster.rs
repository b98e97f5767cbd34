//! The cluster's part of the node's view, and where the cloud's part of the Node comes from.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `--cloud-provider`: where the cloud's part of the Node comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloudProvider {
    /// There is none: the agent reports the addresses of the machine.
    #[default]
    None,
    /// A cloud controller manager in the cluster: it initializes the Node and sets its addresses.
    External,
}

/// How the node is part of a cluster, as people see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterView {
    /// The kubeconfig in use.
    pub kubeconfig: String,
    /// The API server's URL; `None` until a kubeconfig could be read.
    pub server: Option<String>,
    /// When the client certificate expires, where there is one.
    #[serde(default)]
    pub certificate_until: Option<Timestamp>,
    /// uid of the Node object; `None`: not registered (yet).
    pub node_uid: Option<String>,
    /// Whether the API server's changes arrive.
    pub watching: bool,
    /// Wall time of the last status of the node that was written.
    pub status_posted: Option<Timestamp>,
    /// Wall time of the last renewal of the lease.
    pub lease_renewed: Option<Timestamp>,
    /// Static pods whose mirror and status the API server has as they should be.
    pub mirrors: usize,
    /// Mirror pods that the API server has.
    #[serde(default)]
    pub mirror_pods: usize,
    /// Pods that the API server has bound to the node; `None` when the agent does not run them.
    #[serde(default)]
    pub api_pods: Option<usize>,
    /// Pods whose state there is not yet what it is here.
    pub pods_waiting: usize,
    /// Events that were not written yet.
    pub events_waiting: usize,
    /// What does not work.
    pub troubles: Vec<ClusterTrouble>,
    /// What a person should do or know, one sentence each.
    pub notes: Vec<String>,
}

/// [`ClusterTrouble::what`] of a client certificate that the agent waits for.
pub const CLIENT_CERTIFICATE: &str = "client certificate";

/// Something between the agent and its API server that does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTrouble {
    /// `node status`, `lease`, `watch`, `pods`, `credentials`, `client certificate`,
    /// `serving certificate`.
    pub what: String,
    /// The last error.
    pub error: String,
    /// Wall time of the first failure since the last success.
    pub since: Option<Timestamp>,
}
