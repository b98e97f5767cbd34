//! Making one image present: does what `core` decides.

use super::{
    FailureReason, ImageFailure, Images, PullPolicy,
    core::{PullStep, is_not_connected, is_unreachable, missing, next_step, pull_failed},
    keyring::{Credentials, Keyring, Layout},
    records::{Before, ImageAccess, PullSecret, PulledWith},
};
use crate::{
    blocking::REGISTRIES,
    clock,
    cri::{CriError, ImageFound, v1},
    metrics::metrics,
    model::{DataObject, EventKind, format_duration},
    podspec::image_name,
};
use std::{pin::Pin, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::time::Instant;

/// The longest time that reading the registry credentials may delay a pull.
const CREDENTIALS_DEADLINE: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullRequest<'a> {
    /// The image as written in the specification.
    pub image: &'a str,
    /// Its policy.
    pub policy: PullPolicy,
    /// False during back-off: only look.
    pub pull_allowed: bool,
    /// Whether an image that is present may be used when policy `Always` can't reach the registry:
    /// for static pods, whose machine may be offline.
    pub accept_present: bool,
    /// The Secrets of the pod's `imagePullSecrets`. Their credentials are tried before the node's.
    pub pull_secrets: &'a [Arc<DataObject>],
}

/// Something to tell about a container's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageEvent {
    /// Normal or Warning.
    pub kind: EventKind,
    /// `Pulling`, `Pulled`, `Failed`, ...
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// Takes the events as they happen, not only at the end: a pull can last.
pub type Record<'a> = &'a mut (dyn FnMut(ImageEvent) + Send);

/// The configuration of the sandbox for which a pull is made.
pub type PullConfig<'a> =
    Pin<Box<dyn Future<Output = Result<v1::PodSandboxConfig, PullConfigError>> + Send + 'a>>;

/// The configuration of the sandbox can't be made, so nothing can be pulled for it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct PullConfigError {
    /// The error and its causes, for the message of the failed pull.
    pub message: String,
}

/// A pull that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PullError {
    /// What the runtime said.
    pub(super) text: String,
    /// Whether it was the runtime that said it (and not the connection to it).
    pub(super) answered: bool,
}

impl From<PullConfigError> for PullError {
    fn from(error: PullConfigError) -> Self {
        // No pull was sent, so the image can't have come all the same.
        Self { text: error.message, answered: true }
    }
}

impl From<CriError> for PullError {
    fn from(error: CriError) -> Self {
        match error {
            // "Unknown" says nothing, and hides the words by which reasons are told apart.
            CriError::Other { code, message } if code == "Unknown" => {
                Self { text: message, answered: true }
            }
            CriError::NotFound { .. }
            | CriError::NameReserved { .. }
            | CriError::Unimplemented { .. }
            | CriError::Other { .. } => Self { text: error.to_string(), answered: true },
            CriError::Unavailable { .. }
            | CriError::DeadlineExceeded { .. }
            | CriError::ExecTimedOut { .. }
            | CriError::Endpoint { .. } => Self { text: error.to_string(), answered: false },
        }
    }
}

impl Images {
    /// Makes the image present by its policy and returns what the runtime knows about it. Waits for
    /// a turn among other pulls; a pull itself has no deadline. `sandbox` makes the pod's sandbox
    /// configuration, which tells for which pod a pull is made; it is called for pulls alone.
    ///
    /// # Errors
    /// A reason and message for the container's status. The events were recorded by then.
    ///
    /// # Cancel safety
    /// Dropping it cancels the pull, or leaves the queue. Nothing else is lost.
    pub async fn ensure<'a>(
        &self,
        request: &PullRequest<'_>,
        sandbox: &(dyn Fn() -> PullConfig<'a> + Sync),
        record: Record<'_>,
    ) -> Result<ImageFound, ImageFailure> {
        let inspect = |image: String| async move { self.client.image_status(&image).await };
        let pull = |image: String, credentials: Option<Credentials>| async move {
            let auth = credentials.map(|c| v1::AuthConfig {
                username: c.username,
                password: c.password,
                ..v1::AuthConfig::default()
            });
            let config = sandbox().await?;
            self.client.pull_image(&image, auth, Some(config)).await.map_err(PullError::from)
        };
        Ensure { images: self, request, inspect, pull, record }.run().await
    }
}

/// One run; the runtime's two calls are functions, so that tests play the runtime.
pub(super) struct Ensure<'a, I, P> {
    pub(super) images: &'a Images,
    pub(super) request: &'a PullRequest<'a>,
    pub(super) inspect: I,
    pub(super) pull: P,
    pub(super) record: Record<'a>,
}

impl<I, IF, P, PF> Ensure<'_, I, P>
where
    I: Fn(String) -> IF,
    IF: Future<Output = Result<Option<ImageFound>, CriError>>,
    P: Fn(String, Option<Credentials>) -> PF,
    PF: Future<Output = Result<String, PullError>>,
{
    pub(super) async fn run(mut self) -> Result<ImageFound, ImageFailure> {
        let result = self.attempt().await;
        if let Err(failure) = &result
            && failure.reason != FailureReason::ImagePullBackOff
        {
            self.event(EventKind::Warning, "Failed", format!("Error: {}", failure.reason.as_str()));
        }
        result
    }

    async fn attempt(&mut self) -> Result<ImageFound, ImageFailure> {
        let PullRequest { image, policy, pull_allowed, .. } = *self.request;
        let name = self.name()?;
        let mut before = Before::Unknown;
        if next_step(policy, pull_allowed, None) == PullStep::Inspect {
            let found = self.look(&name).await?;
            before = found_before(found.as_ref());
            let usable = self.usable(found).await;
            match next_step(policy, pull_allowed, Some(usable.is_some())) {
                PullStep::Pull | PullStep::Inspect => {}
                PullStep::Use | PullStep::Missing => {
                    return match usable {
                        Some(found) => Ok(self.present(found)),
                        None => Err(self.absent(missing(image, policy))),
                    };
                }
            }
        }
        self.pull(&name, before).await
    }

    /// The image, if the pod may use it. As in the kubelet, one that it may not use is as one that
    /// is not there, and nothing tells the pod that it is.
    async fn usable(&mut self, found: Option<ImageFound>) -> Option<ImageFound> {
        let found = found?;
        let (image, request, records) = (self.request.image, self.request, &self.images.records);
        match records.judge(image, &found, || pull_secrets_for(request)) {
            ImageAccess::Granted => {}
            ImageAccess::GrantedTo(secret) => {
                records.add(image, &found.id, PulledWith::Secret(secret)).await;
            }
            ImageAccess::Unverified => {
                tracing::debug!(image, id = %found.id, "the image is present, and the pod has no credentials that have pulled it");
                return None;
            }
        }
        Some(found)
    }

    fn name(&mut self) -> Result<String, ImageFailure> {
        let image = self.request.image;
        image_name::normalize(image).map_err(|err| {
            let message = format!(
                "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {err}"
            );
            self.event(EventKind::Warning, "InspectFailed", message.clone());
            let reason = FailureReason::InvalidImageName;
            ImageFailure { reason, message, pull_tried: false }
        })
    }

    async fn pull(&mut self, name: &str, mut before: Before) -> Result<ImageFound, ImageFailure> {
        let image = self.request.image;
        self.event(EventKind::Normal, "Pulling", format!("Pulling image \"{image}\""));
        let queued = Instant::now();
        // A plugin may take a minute. Pulls that need none do not wait for it.
        let repository = image_name::repository(name).unwrap_or_default();
        let issued = self.images.providers.keyring(&repository).await;
        let slot = self.images.limits.slot().await;
        if slot.waited && self.request.policy == PullPolicy::IfNotPresent {
            // The pull that was waited for may have been of this image.
            let found = self.look(name).await?;
            before = found_before(found.as_ref());
            if let Some(found) = self.usable(found).await {
                return Ok(self.present(found));
            }
        }
        // The pull that was waited for may have failed to reach the same registry.
        if slot.waited
            && let Some(found) = self.present_instead(name, &repository).await
        {
            return Ok(found);
        }
        let (started, began) = (Instant::now(), clock::now().boot);
        let pulled = if self.images.limits.may_begin() {
            self.recorded_pull(name, before, &repository, &issued).await
        } else if let Some(found) = self.present_instead(name, &repository).await {
            return Ok(found);
        } else {
            Err(PullError { text: "pull QPS exceeded".to_owned(), answered: false }.into())
        };
        drop(slot);
        match pulled {
            Ok((found, ended)) => {
                let (pulling, waiting) = (ended - started, queued.elapsed());
                metrics().pulled(found.size_bytes, pulling);
                let message = format!(
                    "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {} bytes.",
                    format_millis(pulling),
                    format_millis(waiting),
                    found.size_bytes
                );
                self.event(EventKind::Normal, "Pulled", message);
                self.images.note_pull(&found.id, began);
                self.images.unreachable.reached(&repository);
                Ok(found)
            }
            Err(Unpulled::Refused(error)) => self.pull_failed(name, &repository, &error).await,
            Err(Unpulled::NotFound(failure)) => Err(failure),
        }
    }

    /// Pulls, and records with which credentials. Gives what has come and when, without the look at
    /// it.
    async fn recorded_pull(
        &mut self,
        name: &str,
        mut before: Before,
        repository: &str,
        issued: &Keyring,
    ) -> Result<(ImageFound, Instant), Unpulled> {
        if before == Before::Unknown
            && let Ok(found) = (self.inspect)(name.to_owned()).await
        {
            before = found_before(found.as_ref());
        }
        let pulling = self.images.records.begin(self.request.image, before).await;
        let (image_ref, with) = match self.try_credentials(name, repository, issued).await {
            Ok(pulled) => pulled,
            Err(error) => {
                // Without an answer of the runtime, the image may have come.
                if error.answered {
                    pulling.failed().await;
                }
                return Err(error.into());
            }
        };
        let ended = Instant::now();
        // By its reference, else by name: some runtimes know only the one.
        let found = match self.look(&image_ref).await? {
            Some(found) => Some(found),
            None => self.look(name).await?,
        };
        let found = found.ok_or_else(|| self.inspect_failed("the pulled image is gone"))?;
        pulling.succeeded(&found.id, with).await;
        Ok((found, ended))
    }

    async fn pull_failed(
        &mut self,
        name: &str,
        repository: &str,
        error: &PullError,
    ) -> Result<ImageFound, ImageFailure> {
        let image = self.request.image;
        let failure = pull_failed(image, &error.text);
        if error.answered && is_not_connected(&error.text) {
            self.images.unreachable.note(repository, &failure.message, clock::now().boot);
        } else if error.answered {
            self.images.unreachable.reached(repository);
        }
        if error.answered
            && is_unreachable(&error.text)
            && let Some(found) = self.present_offline(name).await
        {
            let message = format!(
                "Failed to pull image \"{image}\": {}; the registry can't be reached, starting from the image already present on the machine",
                failure.message
            );
            self.event(EventKind::Warning, "Failed", message);
            return Ok(found);
        }
        let message = format!("Failed to pull image \"{image}\": {}", failure.message);
        self.event(EventKind::Warning, "Failed", message);
        Err(failure)
    }

    /// The image that is present, in place of a pull that could not begin at once, when another pull
    /// has just failed to reach the registry.
    async fn present_instead(&mut self, name: &str, repository: &str) -> Option<ImageFound> {
        let why = self.images.unreachable.lately(repository, clock::now().boot)?;
        let found = self.present_offline(name).await?;
        let message = format!(
            "Image \"{}\" is not pulled, because its registry could not be reached a moment ago ({why}); starting from the image already present on the machine",
            self.request.image
        );
        self.event(EventKind::Warning, "Failed", message);
        Some(found)
    }

    /// The image that is present, where the pod may start from it while the registry can't be
    /// reached.
    async fn present_offline(&mut self, name: &str) -> Option<ImageFound> {
        if !self.request.accept_present || self.request.policy != PullPolicy::Always {
            return None;
        }
        // A runtime that can't say whether it is there changes nothing: the pull has failed.
        let found = (self.inspect)(name.to_owned()).await.ok()?;
        self.usable(found).await
    }

    /// With each matching credential in turn, or anonymously without any.
    /// Those of the pod come first, then the node's file, then what plugins have `issued`.
    async fn try_credentials(
        &mut self,
        name: &str,
        repository: &str,
        issued: &Keyring,
    ) -> Result<(String, PulledWith), PullError> {
        let paths = self.images.credentials.clone();
        // A home directory may be on a file system that hangs: a public image is pulled all the
        // same.
        let read = tokio::time::timeout(CREDENTIALS_DEADLINE, REGISTRIES.run(move || paths.read()));
        let keyring = match read.await {
            // A panic in there leaves no credentials.
            Ok(read) => read.unwrap_or_default(),
            Err(_) => {
                tracing::warn!(
                    "the file system of the registry credentials does not answer; pulling without them"
                );
                Keyring::default()
            }
        };
        let of_pod = pod_keyrings(self.request.pull_secrets);
        let of_pod = of_pod.iter().map(|(secret, keyring)| (Some(*secret), keyring));
        let of_node = [&keyring, issued].map(|keyring| (None, keyring));
        let credentials: Vec<(Option<&DataObject>, &Credentials)> = of_pod
            .chain(of_node)
            .flat_map(|(secret, ring)| {
                ring.lookup(repository).into_iter().map(move |c| (secret, c))
            })
            .collect();
        if credentials.is_empty() {
            let pulled = (self.pull)(name.to_owned(), None).await;
            return pulled.map(|image_ref| (image_ref, PulledWith::Node));
        }
        let mut errors: Vec<PullError> = Vec::new();
        for (secret, one) in credentials {
            match (self.pull)(name.to_owned(), Some(one.clone())).await {
                Ok(image_ref) => {
                    let with = secret.map_or(PulledWith::Node, |secret| {
                        PulledWith::Secret(pull_secret(secret, one))
                    });
                    return Ok((image_ref, with));
                }
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        let answered = errors.iter().all(|error| error.answered);
        let texts: Vec<&str> = errors.iter().map(|error| error.text.as_str()).collect();
        let text = match texts.as_slice() {
            [only] => (*only).to_owned(),
            several => format!("[{}]", several.join(", ")),
        };
        Err(PullError { text, answered })
    }

    async fn look(&mut self, name: &str) -> Result<Option<ImageFound>, ImageFailure> {
        let found = (self.inspect)(name.to_owned()).await;
        found.map_err(|err| self.inspect_failed(&err.to_string()))
    }

    fn inspect_failed(&mut self, error: &str) -> ImageFailure {
        // The kubelet has no name for the image at this point; its message has the empty one.
        let message = format!("Failed to inspect image \"\": {error}");
        self.event(EventKind::Warning, "InspectFailed", message.clone());
        ImageFailure { reason: FailureReason::ImageInspectError, message, pull_tried: false }
    }

    fn present(&mut self, found: ImageFound) -> ImageFound {
        let message = format!(
            "Container image \"{}\" already present on machine and can be accessed by the pod",
            self.request.image
        );
        self.event(EventKind::Normal, "Pulled", message);
        found
    }

    fn absent(&mut self, failure: ImageFailure) -> ImageFailure {
        if failure.reason == FailureReason::ErrImageNeverPull {
            self.event(EventKind::Warning, "ErrImageNeverPull", failure.message.clone());
        }
        failure
    }

    fn event(&mut self, kind: EventKind, reason: &'static str, message: String) {
        (self.record)(ImageEvent { kind, reason, message });
    }
}

/// A pull that has brought nothing.
enum Unpulled {
    /// The pull has failed.
    Refused(PullError),
    /// It succeeded, and the runtime does not show the image.
    NotFound(ImageFailure),
}

impl From<PullError> for Unpulled {
    fn from(error: PullError) -> Self {
        Self::Refused(error)
    }
}

impl From<ImageFailure> for Unpulled {
    fn from(failure: ImageFailure) -> Self {
        Self::NotFound(failure)
    }
}

fn found_before(found: Option<&ImageFound>) -> Before {
    found.map_or(Before::Absent, |found| Before::Present(found.id.clone()))
}

/// The Secrets of the pod that have credentials for the image.
fn pull_secrets_for(request: &PullRequest<'_>) -> Vec<PullSecret> {
    let repository = image_name::repository(request.image).unwrap_or_default();
    pod_keyrings(request.pull_secrets)
        .iter()
        .flat_map(|(secret, ring)| {
            ring.lookup(&repository).into_iter().map(|one| pull_secret(secret, one))
        })
        .collect()
}

fn pull_secret(secret: &DataObject, credentials: &Credentials) -> PullSecret {
    let DataObject { key, uid, .. } = secret;
    PullSecret::new(uid, &key.namespace, &key.name, credentials.hash())
}

fn pod_keyrings(secrets: &[Arc<DataObject>]) -> Vec<(&DataObject, Keyring)> {
    secrets.iter().filter_map(|secret| Some((&**secret, of_secret(secret)?))).collect()
}

/// The credentials in a Secret; `None` for one of another type, or without valid content.
fn of_secret(secret: &DataObject) -> Option<Keyring> {
    let (key, layout) = match &*secret.secret_type {
        "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", Layout::Config),
        "kubernetes.io/dockercfg" => (".dockercfg", Layout::Legacy),
        other => {
            tracing::warn!(secret = %secret.key, "its type is {other}, not kubernetes.io/dockerconfigjson: it is not used for pulls");
            return None;
        }
    };
    let keyring = Keyring::parse(secret.data.get(key)?.as_bytes(), layout);
    keyring
        // Line and column only: the text holds passwords.
        .inspect_err(|err| tracing::warn!(secret = %secret.key, line = err.line(), column = err.column(), "its registry credentials are damaged"))
        .ok()
}

fn format_millis(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis))
}
