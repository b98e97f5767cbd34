//! Images: whether one must be pulled, with which credentials, how many at a time, and what a
//! failure is called; and which pods may use one that is present.
//!
//! `core` (decisions, texts), `keyring` (credentials), `unreachable` and `limit`'s bucket are pure.
//! `provider` asks plugins for credentials. `records` keeps which credentials have pulled what.
//! [`Images::ensure`] does what they say through the runtime client. Back-off between attempts is
//! not kept here: `plan` decides when to try again. `gc` removes images that nothing uses.

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
mod unreachable;

pub use core::{FailureReason, PullPolicy};
pub use credentials::CredentialPaths;
pub use ensure::{ImageEvent, PullConfig, PullConfigError, PullRequest};
pub use provider::CredentialProvider;
pub use records::{AllowedImages, AllowedImagesError, PullRecords, VerificationPolicy};

use crate::{clock, cri::RuntimeClient};
use gc::EndedPull;
use std::time::Duration;
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
    unreachable: unreachable::Unreachable,
    pulled: EndedPulls,
}

/// The pulls that ended well and are not in the [`gc::ImageHistory`] yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct EndedPulls(watch::Sender<Vec<EndedPull>>);

impl EndedPulls {
    /// Changes when there are more of them.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Vec<EndedPull>> {
        self.0.subscribe()
    }

    /// Takes them out, the earliest first.
    #[must_use]
    pub fn take(&self) -> Vec<EndedPull> {
        let mut taken = Vec::new();
        self.0.send_if_modified(|waiting| {
            std::mem::swap(waiting, &mut taken);
            false
        });
        taken
    }
}

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
            unreachable: unreachable::Unreachable::default(),
            pulled: EndedPulls::default(),
        }
    }

    /// The pulls that ended well: what [`gc::ImageHistory::pulled`] is to be told.
    #[must_use]
    pub fn pulled(&self) -> EndedPulls {
        self.pulled.clone()
    }

    /// The records of all pulls.
    #[must_use]
    pub fn records(&self) -> &PullRecords {
        &self.records
    }

    fn note_pull(&self, id: &str, began: Duration) {
        let pull = EndedPull { id: id.to_owned(), began, ended: clock::now() };
        self.pulled.0.send_modify(|pulled| pulled.push(pull));
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
