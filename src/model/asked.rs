//! What a person asks the agent to do with one pod, over the local socket.

use super::{ContainerId, PodUid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A request about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Restart the container, or all containers of the pod.
    Restart {
        /// Its name; `None`: all of them.
        container: Option<Box<str>>,
    },
    /// Try again at once what is backed off.
    Retry,
}

/// What came of a request; the texts are sentences for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum AskAnswer {
    /// It is saved, and is being done.
    Taken {
        /// What is being done.
        message: String,
    },
    /// It can't be done, and nothing was changed.
    Refused {
        /// Why.
        message: String,
    },
}

/// Requests of people that a worker is to take over. It takes each number once: after that its own
/// memory says what is left to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Grows with every request, over all pods.
    pub number: u64,
    /// The incarnation that has the containers.
    pub uid: PodUid,
    /// The instances to restart. An instance that came later is not meant.
    pub restart: BTreeSet<ContainerId>,
    /// All back-offs of the name end.
    pub retry: bool,
}
