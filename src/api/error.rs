//! What can go wrong between the agent and its API server, as people should read it.

use serde::Deserialize;
use std::time::Duration;
use thiserror::Error;
use tower::BoxError;

/// What an API server says of a failure: as much of `meta/v1.Status` as is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Error)]
#[serde(default)]
#[error("{message}: {reason}")]
pub struct Status {
    /// HTTP status; 0 where the text is another object.
    pub code: u16,
    /// `NotFound`, `Conflict`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// A request that failed.
#[derive(Debug, PartialEq, Error)]
pub enum ApiError {
    /// The API server answered, and refused.
    #[error("{0}")]
    Refused(Box<Status>),
    /// It did not answer, or not in a way that can be understood.
    #[error("{0}")]
    Failed(String),
    /// It sent more than is read, in bytes.
    #[error("the JSON is larger than {0} bytes")]
    TooLarge(usize),
    /// It sent an object of more values than are decoded.
    #[error("the object has more than {0} values")]
    TooMany(usize),
    /// The watch shows more than is kept.
    #[error("the watch shows more than the agent keeps")]
    TooMuch,
    /// It did not answer in time.
    #[error("no answer within {}s", .0.as_secs())]
    Late(Duration),
}

impl ApiError {
    /// HTTP status, where there was an answer.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            Self::Failed(_)
            | Self::TooLarge(_)
            | Self::TooMany(_)
            | Self::TooMuch
            | Self::Late(_) => None,
        }
    }

    /// Whether a webhook is at fault, which may be asked about this object and no other: it can't
    /// be reached, or refuses. By kube-apiserver's texts.
    #[must_use]
    pub fn is_of_webhook(&self) -> bool {
        let texts = ["failed calling webhook", "admission webhook"];
        match self {
            Self::Refused(status) => texts.iter().any(|text| status.message.contains(text)),
            Self::Failed(_)
            | Self::TooLarge(_)
            | Self::TooMany(_)
            | Self::TooMuch
            | Self::Late(_) => false,
        }
    }

    /// Whether the same request may succeed soon: there was no answer, or the server has trouble.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.code().is_none_or(|code| code == 429 || code >= 500)
    }

    /// True when the API server is there and refuses this request, or answers it with more than the
    /// agent reads. Rejected credentials are no refusal, because they concern all requests.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(status) => {
                (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 410 | 429)
            }
            Self::TooLarge(_) | Self::TooMany(_) | Self::TooMuch => true,
            Self::Failed(_) | Self::Late(_) => false,
        }
    }

    /// True when the answer has more than the agent reads or keeps.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        match self {
            Self::TooLarge(_) | Self::TooMany(_) | Self::TooMuch => true,
            Self::Refused(_) | Self::Failed(_) | Self::Late(_) => false,
        }
    }

    /// Whether the object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }
}

impl From<BoxError> for ApiError {
    /// A request that failed on its way, or an answer that broke off: the two innermost causes,
    /// since the outer ones say no more than "client error".
    fn from(error: BoxError) -> Self {
        let mut parts: Vec<String> = Vec::new();
        let mut next: Option<&dyn std::error::Error> = Some(&*error);
        while let Some(error) = next {
            let text = error.to_string();
            if !parts.iter().any(|part| part.contains(&text)) {
                parts.push(text);
            }
            next = error.source();
        }
        Self::Failed(parts.split_off(parts.len().saturating_sub(2)).join(": "))
    }
}
