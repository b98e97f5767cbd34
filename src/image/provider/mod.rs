//! Credentials from credential provider plugins: programs of the node's administrator that print
//! the credentials for an image (`--image-credential-provider-config`).
//!
//! A plugin is asked only for images that its configuration matches, once at a time for each image,
//! and not again while an earlier answer holds. Answers are in memory alone. A plugin that fails is
//! logged, and the pull goes on with what else is known, as in the kubelet.

mod core;
#[cfg(test)]
mod tests;

use self::core::{Cache, Issued, ResponseError, issued, request};
use super::keyring::{Keyring, matches};
use crate::{
    blocking::REGISTRIES,
    clock,
    program::{PLUGIN_DEADLINE, Program, ProgramFailure, StandardError, run},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use thiserror::Error;
use tokio::sync::watch;

/// One plugin and when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProvider {
    /// Its name, as logs have it.
    pub name: String,
    /// The program.
    pub command: Program,
    /// Patterns of the images that it is asked for: a registry, with `*` in the parts of its host
    /// name, and the beginning of a path.
    pub match_images: Vec<String>,
    /// How long an answer holds that does not say so itself.
    pub default_cache: Duration,
    /// Version of request and response.
    pub api_version: String,
}

/// Why a plugin gave no credentials.
#[derive(Debug, Error)]
enum ProviderError {
    #[error("the plugin {0}")]
    Plugin(ProgramFailure),
    #[error(transparent)]
    Response(#[from] ResponseError),
}

/// All plugins of the node.
#[derive(Clone, Debug)]
pub(super) struct Providers(Arc<[Provider]>);

#[derive(Debug)]
struct Provider {
    config: CredentialProvider,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cache: Cache,
    /// The repositories that the plugin is being asked for.
    asked: BTreeMap<String, watch::Receiver<Answer>>,
}

/// `None` until the plugin has ended. Nothing is in the keyring of one that has failed.
type Answer = Option<Arc<Keyring>>;

impl Providers {
    pub(super) fn new(providers: Vec<CredentialProvider>) -> Self {
        let provider = |config| Provider { config, state: Mutex::default() };
        Self(providers.into_iter().map(provider).collect())
    }

    /// The credentials of all plugins that know the repository (`docker.io/library/busybox`).
    ///
    /// # Cancel safety
    /// Dropping it kills the plugin that it runs. Others that wait for the same answer ask again.
    pub(super) async fn keyring(&self, repository: &str) -> Keyring {
        let mut found = Keyring::default();
        for provider in self.0.iter() {
            if provider.config.match_images.iter().any(|pattern| matches(pattern, repository)) {
                found.add(&*provider.keyring(repository).await);
            }
        }
        found
    }
}

impl Provider {
    async fn keyring(&self, repository: &str) -> Arc<Keyring> {
        loop {
            let mut asked = match self.turn(repository) {
                Turn::Known(keyring) => return keyring,
                Turn::Ask(question) => return self.ask(question).await,
                Turn::Wait(asked) => asked,
            };
            // An error: the one that has asked is not wanted any more.
            if let Ok(answer) = asked.wait_for(Option::is_some).await {
                return answer.clone().unwrap_or_default();
            }
        }
    }

    fn turn(&self, repository: &str) -> Turn<'_> {
        let mut state = self.state();
        if let Some(keyring) = state.cache.get(repository, clock::now().boot) {
            return Turn::Known(keyring);
        }
        if let Some(asked) = state.asked.get(repository) {
            return Turn::Wait(asked.clone());
        }
        let (sender, receiver) = watch::channel(None);
        state.asked.insert(repository.to_owned(), receiver);
        let repository = repository.to_owned();
        Turn::Ask(Question { provider: self, repository, answer: None, sender })
    }

    async fn ask(&self, mut question: Question<'_>) -> Arc<Keyring> {
        let image = &question.repository;
        let config = &self.config;
        let result: Result<Issued, ProviderError> = async {
            let request = request(&config.api_version, image);
            let command = config.command.clone();
            let deadline = PLUGIN_DEADLINE;
            let run = run(command, request, StandardError::Shown, deadline, &REGISTRIES);
            let text = run.await.map_err(ProviderError::Plugin)?;
            Ok(issued(&text, &config.api_version, image, config.default_cache)?)
        }
        .await;
        match result {
            Ok(issued) => question.answer.insert(issued).keyring.clone(),
            Err(err) => {
                let provider = &config.name;
                tracing::warn!(provider, image, %err, "the credential provider gave no credentials");
                // Kept for no time, for those that wait.
                let issued =
                    Issued { keyring: Arc::default(), key: String::new(), lasts: Duration::ZERO };
                question.answer.insert(issued).keyring.clone()
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Turn<'a> {
    /// An earlier answer holds.
    Known(Arc<Keyring>),
    /// Somebody asks right now.
    Wait(watch::Receiver<Answer>),
    /// Ask the plugin.
    Ask(Question<'a>),
}

/// The plugin is being asked for a repository. Dropping it hands out the answer, or, without one,
/// leaves the question to the next that needs it.
struct Question<'a> {
    provider: &'a Provider,
    repository: String,
    answer: Option<Issued>,
    sender: watch::Sender<Answer>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut state = self.provider.state();
        state.asked.remove(&self.repository);
        if let Some(issued) = self.answer.take() {
            state.cache.put(&issued, clock::now().boot);
            self.sender.send_replace(Some(issued.keyring));
        }
    }
}
