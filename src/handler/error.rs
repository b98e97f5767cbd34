//! Why a request was not answered, in the words of Go's network library: people know them from the
//! kubelet's events.

use std::{error::Error as _, io, net::IpAddr};
use thiserror::Error;

/// Why a hook over HTTP got no answer.
#[derive(Debug, Error)]
pub enum HookRequestError {
    /// The request failed.
    #[error(transparent)]
    Network(NetworkError),
    /// The time of the hook ran out.
    #[error("Get \"{url}\": context deadline exceeded")]
    TimedOut {
        /// The URL of the first request.
        url: String,
    },
}

/// Why a request failed.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The connection could not be opened.
    #[error("dial tcp {address}: {words}")]
    Dial {
        /// Host and port.
        address: String,
        /// The error of the lookup or of the system.
        words: String,
    },
    /// The name of a host is no name.
    #[error("{0:?} is not the name of a host")]
    Name(String),
    /// The TLS handshake failed.
    #[error("tls: {0}")]
    Tls(io::Error),
    /// The request could not be sent, or the headers of its answer are unusable.
    #[error("{}", innermost(.0))]
    Http(#[from] hyper::Error),
    /// The body of an answer broke off or is damaged.
    #[error("{}", innermost(.0))]
    Body(hyper::Error),
    /// The server redirects without end.
    #[error("stopped after 10 redirects")]
    Redirects,
    /// A path or a redirect is no valid URL.
    #[error("the redirect to {0:?} can't be followed")]
    Location(String),
    /// An error with the URL that was asked for.
    #[error("Get \"{url}\": {error}")]
    Of {
        /// The URL.
        url: String,
        /// The error itself.
        error: Box<NetworkError>,
    },
}

impl NetworkError {
    /// A connection that was not opened.
    pub(super) fn dial(host: &str, port: u16, error: &io::Error) -> Self {
        let system = error.raw_os_error().is_some();
        let words = if system { format!("connect: {}", words(error)) } else { words(error) };
        Self::Dial { address: host_and_port(host, port), words }
    }

    /// The error of a body without the URL; `None` for an error that comes before the body.
    pub(super) fn of_body(&self) -> Option<&Self> {
        match self {
            Self::Of { error, .. } => error.of_body(),
            Self::Body(_) => Some(self),
            Self::Dial { .. }
            | Self::Name(_)
            | Self::Tls(_)
            | Self::Http(_)
            | Self::Redirects
            | Self::Location(_) => None,
        }
    }

    /// True when the server answers something that is no TLS.
    pub(super) fn is_no_tls(&self) -> bool {
        match self {
            Self::Of { error, .. } => error.is_no_tls(),
            Self::Tls(error) => {
                let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                matches!(error, Some(rustls::Error::InvalidMessage(_)))
            }
            Self::Dial { .. }
            | Self::Name(_)
            | Self::Http(_)
            | Self::Body(_)
            | Self::Redirects
            | Self::Location(_) => false,
        }
    }
}

/// An error of the system as C and Go word it: `connection refused`.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// The words at the bottom of an error: hyper's own say little.
fn innermost(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// `10.0.0.1:80`, `[fd00::1]:80`
pub(super) fn host_and_port(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{host}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    }
}
