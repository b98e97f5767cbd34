//! The pure part: what a policy asks for, and what a failure is called.

use super::ImageFailure;
use crate::podspec::always_pulls;

/// `imagePullPolicy`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Ask the registry at every start.
    Always,
    /// Only when it is missing.
    IfNotPresent,
    /// Only what is present.
    Never,
}

impl PullPolicy {
    /// The policy of an image; without one it is what the API defaults: `Always` for the tag
    /// `latest`, given or implied, else `IfNotPresent`.
    #[must_use]
    pub fn of(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Never") => Self::Never,
            policy if always_pulls(policy, image) => Self::Always,
            Some(_) | None => Self::IfNotPresent,
        }
    }
}

/// The waiting reason of a container without an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The pull failed.
    ErrImagePull,
    /// The pull failed and is backed off; pulling was not allowed.
    ImagePullBackOff,
    /// The runtime says that the registry is down.
    RegistryUnavailable,
    /// The runtime refuses the image's signature.
    SignatureValidationFailed,
    /// Policy `Never`, and it is not there.
    ErrImageNeverPull,
    /// No image name.
    InvalidImageName,
    /// The runtime can't say whether it is there.
    ImageInspectError,
}

impl FailureReason {
    /// The word in the container's status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ErrImagePull => "ErrImagePull",
            Self::ImagePullBackOff => "ImagePullBackOff",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::SignatureValidationFailed => "SignatureValidationFailed",
            Self::ErrImageNeverPull => "ErrImageNeverPull",
            Self::InvalidImageName => "InvalidImageName",
            Self::ImageInspectError => "ImageInspectError",
        }
    }
}

/// What to do, before a pull is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullStep {
    /// Look whether it is present.
    Inspect,
    /// Start from what is present.
    Use,
    /// Ask the registry.
    Pull,
    /// Fail: it is missing and may not be pulled.
    Missing,
}

/// The next step. `present` is `None` before the look, `pull_allowed` is false during back-off.
pub(super) fn next_step(policy: PullPolicy, pull_allowed: bool, present: Option<bool>) -> PullStep {
    match (policy, present) {
        (PullPolicy::Always, _) if pull_allowed => PullStep::Pull,
        (PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Never, None) => {
            PullStep::Inspect
        }
        (PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Never, Some(true)) => {
            PullStep::Use
        }
        (PullPolicy::IfNotPresent, Some(false)) if pull_allowed => PullStep::Pull,
        (PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Never, Some(false)) => {
            PullStep::Missing
        }
    }
}

/// The failure of an image that is missing and may not be pulled.
pub(super) fn missing(image: &str, policy: PullPolicy) -> ImageFailure {
    let (reason, message) = match policy {
        PullPolicy::Never => (
            FailureReason::ErrImageNeverPull,
            format!("Container image \"{image}\" is not present with pull policy of Never"),
        ),
        PullPolicy::Always | PullPolicy::IfNotPresent => {
            (FailureReason::ImagePullBackOff, format!("Back-off pulling image \"{image}\""))
        }
    };
    ImageFailure { reason, message, pull_tried: false }
}

/// The failure of a pull that ended with `error`.
pub(super) fn pull_failed(image: &str, error: &str) -> ImageFailure {
    let special = [
        (FailureReason::RegistryUnavailable, "the registry is unavailable"),
        (FailureReason::SignatureValidationFailed, "the signature validation failed"),
    ];
    let classified = special.into_iter().find_map(|(reason, because)| {
        let rest = error.strip_prefix(reason.as_str())?;
        Some((reason, format!("image pull failed for {image} because {because}{rest}")))
    });
    let (reason, message) =
        classified.unwrap_or_else(|| (FailureReason::ErrImagePull, error.to_owned()));
    ImageFailure { reason, message, pull_tried: true }
}

/// Whether a pull failed because no registry answered: the machine is offline, or the registry or
/// its name server is down or overwhelmed. "No such image" and "no access" are answers.
///
/// The runtime has one gRPC code for all of it, so its words (Go's network errors, the same in
/// every runtime) are all there is.
pub(super) fn is_unreachable(error: &str) -> bool {
    const OVERWHELMED: [&str; 12] = [
        "RegistryUnavailable",
        "connection reset by peer",
        "server misbehaving",
        "Client.Timeout exceeded",
        "context deadline exceeded",
        // The runtime has given up a pull that made no progress.
        "context canceled",
        "429 Too Many Requests",
        "toomanyrequests",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Time",
    ];
    is_not_connected(error)
        || (!has_answer(error) && (has_one(error, &OVERWHELMED) || error.ends_with(": EOF")))
}

/// Whether a pull failed before it could ask a registry for anything, so that any other pull from
/// the same registry fails as well.
pub(super) fn is_not_connected(error: &str) -> bool {
    const NOT_CONNECTED: [&str; 7] = [
        "connection refused",
        "no such host",
        "temporary failure in name resolution",
        "network is unreachable",
        "no route to host",
        "i/o timeout",
        "TLS handshake timeout",
    ];
    !has_answer(error) && has_one(error, &NOT_CONNECTED)
}

fn has_answer(error: &str) -> bool {
    const ANSWERED: [&str; 6] = [
        "401 Unauthorized",
        "403 Forbidden",
        "insufficient_scope",
        "authorization failed",
        "pull access denied",
        "manifest unknown",
    ];
    has_one(error, &ANSWERED)
}

fn has_one(error: &str, needles: &[&str]) -> bool {
    let text = error.to_lowercase();
    needles.iter().any(|needle| text.contains(&needle.to_lowercase()))
}
