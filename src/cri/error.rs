//! What can go wrong with a call, as far as callers tell it apart.

use std::error::Error as _;
use thiserror::Error;
use tonic::{Code, Status};

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CriError {
    /// The object does not exist (any more). For removing and stopping that is success.
    #[error("rpc error: code = NotFound desc = {message}")]
    NotFound {
        /// The runtime's words.
        message: String,
    },
    /// The runtime can't be reached: there is no socket, no process listens on it, or the
    /// connection was lost during the call.
    #[error("the container runtime at {endpoint} can't be reached: {message}")]
    Unavailable {
        /// Its socket.
        endpoint: String,
        /// What the connection said.
        message: String,
    },
    /// No answer in time. What the call does in the runtime is unknown.
    #[error("{call} has not been answered for {seconds} s")]
    DeadlineExceeded {
        /// Name of the call.
        call: &'static str,
        /// The deadline that passed.
        seconds: u64,
    },
    /// The runtime has killed a command in a container, because it took too long.
    #[error("command timed out: {command:?} timed out after {seconds}s")]
    ExecTimedOut {
        /// The command and its arguments.
        command: String,
        /// How long it was allowed to take.
        seconds: u64,
    },
    /// The name of a sandbox or container to make belongs to a half-made one. It is to be stopped
    /// and removed before the next attempt.
    #[error("rpc error: code = Unknown desc = {message}")]
    NameReserved {
        /// Id of the one that has the name.
        id: String,
        /// The runtime's words.
        message: String,
    },
    /// The runtime does not have this call.
    #[error("{call} is not implemented by the container runtime")]
    Unimplemented {
        /// Name of the call.
        call: &'static str,
    },
    /// Anything else that the runtime answers.
    #[error("rpc error: code = {code} desc = {message}")]
    Other {
        /// gRPC code as Go names it (`Unknown`, `InvalidArgument`, ...).
        code: String,
        /// The runtime's words.
        message: String,
    },
    /// The endpoint is no Unix socket address.
    #[error("{endpoint:?} is no Unix socket address: an absolute path or unix:///path is expected")]
    Endpoint {
        /// As configured.
        endpoint: String,
    },
}

impl CriError {
    /// Sorts what a call returned.
    pub(super) fn from_status(status: &Status, call: &'static str, endpoint: &str) -> Self {
        let message = status.message().to_owned();
        // Only errors of this side of the connection have a source: there was no response.
        if status.source().is_some() || status.code() == Code::Unavailable {
            let message = innermost(status).unwrap_or(message);
            return Self::Unavailable { endpoint: endpoint.to_owned(), message };
        }
        if let Some(id) = reserved_for(&message) {
            return Self::NameReserved { id, message };
        }
        if status.code() == Code::NotFound {
            return Self::NotFound { message };
        }
        if status.code() == Code::Unimplemented {
            return Self::Unimplemented { call };
        }
        // The Debug form of a code is the name that Go prints.
        Self::Other { code: format!("{:?}", status.code()), message }
    }

    /// Whether the runtime refuses because of the state that an object is in (gRPC's
    /// `FAILED_PRECONDITION`).
    #[must_use]
    pub fn is_failed_precondition(&self) -> bool {
        matches!(self, Self::Other { code, .. } if code == "FailedPrecondition")
    }

    /// The message alone, which is what container statuses show.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::NotFound { message }
            | Self::NameReserved { message, .. }
            | Self::Other { message, .. } => message.clone(),
            Self::Unavailable { .. }
            | Self::DeadlineExceeded { .. }
            | Self::ExecTimedOut { .. }
            | Self::Unimplemented { .. }
            | Self::Endpoint { .. } => self.to_string(),
        }
    }
}

/// The words at the bottom of a chain of connection errors; the ones above say "transport error".
fn innermost(status: &Status) -> Option<String> {
    let mut error = status.source()?;
    while let Some(deeper) = error.source() {
        error = deeper;
    }
    Some(error.to_string())
}

/// Reads `name "x" is reserved for "<id>"`, as containerd words it.
fn reserved_for(message: &str) -> Option<String> {
    let (_, after) = message.split_once("is reserved for \"")?;
    let (id, _) = after.split_once('"')?;
    let plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(code: Code, message: &str) -> CriError {
        CriError::from_status(&Status::new(code, message), "StopContainer", "/run/x.sock")
    }

    #[test]
    fn sorts_answers_of_the_runtime() {
        let gone = sorted(Code::NotFound, "an error occurred when try to find container");
        assert!(matches!(gone, CriError::NotFound { .. }));
        let reserved = sorted(
            Code::Unknown,
            r#"failed to reserve sandbox name "web-n_default_1a_0": name "web-n_default_1a_0" is reserved for "5f0c9a""#,
        );
        assert!(matches!(&reserved, CriError::NameReserved { id, .. } if id == "5f0c9a"));
        let other = sorted(Code::InvalidArgument, "no");
        assert_eq!(other.to_string(), "rpc error: code = InvalidArgument desc = no");
        assert_eq!(other.message(), "no");
        let missing = sorted(Code::Unimplemented, "unknown method");
        assert_eq!(
            missing.to_string(),
            "StopContainer is not implemented by the container runtime"
        );
        assert!(matches!(sorted(Code::Unavailable, "x"), CriError::Unavailable { .. }));
    }

    #[test]
    fn takes_no_strange_text_for_an_id() {
        for message in ["is reserved for \"", "is reserved for \"\"", r#"is reserved for "a b""#] {
            assert_eq!(reserved_for(message), None, "{message}");
        }
    }
}
