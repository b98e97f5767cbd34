//! Images: whether one must be pulled, with which credentials, how many at a time, and what a
//! failure is called; and which pods may use one that is present.
//!
//! `core` (decisions, texts), `keyring` (credentials) and `limit`'s bucket are
//! pure. `provider` asks plugins for credentials. `records` keeps which credentials have pulled what. [`Images::ensure`] does what they say through the runtime client. Back-off between
//! attempts is not kept here: `plan` decides when to try again. `gc` removes images that are not
//! uses.

mod core;
mod credentials;
mod ensure;
pub mod gc;
mod keyring;
mod limit;
mod provider;
mod records;
#[cfg(test)]
mod tests;

pub use core::{FailureReason, PullPolicy};
pub use credentials::CredentialPaths;
pub use ensure::{ImageEvent, PullRequest};
pub use provider::CredentialProvider;
pub use records::{AllowedImages, AllowedImagesError, PullRecords, VerificationPolicy};

use crate::{clock, cri::RuntimeClient, model::Now};
use std::{collections::BTreeMap, sync::Arc};
use thiserror::Error;
use tokio::sync::watch;

/// How pulls are bounded, and where credentials are.
#[derive(Clone, Debug)]
pub struct ImageSettings {
    /// How many pulls run at a time, first come, first served; `None` for no bound.
    pub parallel: Option<u32>,
    /// `registryPullQPS`: pulls per second on average; 0 for no bound.
    pub qps: u32,
    /// `registryBurst`: pulls that may begin at once.
    pub burst: u32,
    /// Where docker config files are looked for.
    pub credentials: CredentialPaths,
    /// Plugins that are asked for credentials.
    pub providers: Vec<CredentialProvider>,
    /// Which credentials have pulled what is present.
    pub records: PullRecords,
}

/// Makes images present. Cheap to clone; clones share the limits.
#[derive(Clone, Debug)]
pub struct Images {
    client: RuntimeClient,
    limits: limit::PullLimits,
    credentials: CredentialPaths,
    providers: provider::Providers,
    records: PullRecords,
    pulled: watch::Sender<Pulled>,
}

/// The images that this process has pulled, by the runtime's id, with the time of the last pull.
pub type Pulled = Arc<BTreeMap<String, Now>>;

impl Images {
    /// Pulls through `client` within the limits of `settings`.
    #[must_use]
    pub fn new(client: RuntimeClient, settings: ImageSettings) -> Self {
        let limits = limit::PullLimits::new(settings.parallel, settings.qps, settings.burst);
        Self {
            client,
            limits,
            credentials: settings.credentials,
            providers: provider::Providers::new(settings.providers),
            records: settings.records,
            pulled: watch::Sender::default(),
        }
    }

    /// What was pulled so far, the latest: what [`gc::ImageHistory::pulled`] is to be told.
    #[must_use]
    pub fn pulled(&self) -> watch::Receiver<Pulled> {
        self.pulled.subscribe()
    }

    /// The records of all pulls.
    #[must_use]
    pub fn records(&self) -> &PullRecords {
        &self.records
    }

    fn note_pull(&self, id: &str) {
        let now = clock::now();
        self.pulled.send_modify(|pulled| {
            Arc::make_mut(pulled).insert(id.to_owned(), now);
        });
    }
}

/// Why there is no image to start from; `Display` is the message of the container's status.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ImageFailure {
    /// The waiting reason.
    pub reason: FailureReason,
    /// The message that goes with it, as the kubelet words it.
    pub message: String,
    /// Whether a pull was tried and failed, so that the next is to be delayed.
    pub pull_tried: bool,
}
