//! What is to be asked, as a specification says it.

use super::error::host_and_port;
use crate::model::k8s;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use thiserror::Error;

/// A request has at most this many headers of its specification. The table of headers panics when
/// it would pass 32768 places, and chosen names make it grow to that with 6,603 headers.
const MAX_HEADERS: usize = 1000;

/// Why a request can't be made from its specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// The container has no port with this name.
    #[error("couldn't find port: {0:?}")]
    UnknownPort(String),
    /// The number of the port is out of range.
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    /// The host can't be sent as a `Host` header.
    #[error("{0:?} is not the name of a host")]
    Host(String),
    /// The name or the value of this header is invalid.
    #[error("the header {0:?} can't be sent")]
    Header(String),
    /// The number of headers exceeds the limit.
    #[error("{0} headers can't be sent, at most {MAX_HEADERS}")]
    TooManyHeaders(usize),
}

/// A GET request.
#[derive(Clone, Debug)]
pub struct HttpGet {
    pub(super) https: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, beginning with a slash.
    pub(super) path: String,
    /// `Host` included.
    pub(super) headers: HeaderMap,
}

impl HttpGet {
    /// The request of an action to `host`, see [`named_host`].
    ///
    /// # Errors
    /// When the port, the host or a header can't be used.
    pub fn of(
        action: &k8s::HTTPGetAction,
        container: &k8s::Container,
        host: &str,
        user_agent: &'static str,
    ) -> Result<Self, TargetError> {
        let port = resolve_port(&action.port, container)?;
        let https = action.scheme.as_deref().is_some_and(|it| it.eq_ignore_ascii_case("https"));
        let mut headers = headers_of(action)?;
        if !headers.contains_key(header::USER_AGENT) {
            headers.insert(header::USER_AGENT, HeaderValue::from_static(user_agent));
        }
        match headers.get(header::ACCEPT) {
            // This is how a specification asks for no such header.
            Some(value) if value.is_empty() => drop(headers.remove(header::ACCEPT)),
            Some(_) => {}
            None => drop(headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"))),
        }
        let own_host = headers.get(header::HOST).filter(|host| !host.is_empty()).cloned();
        let address = || HeaderValue::from_str(&host_and_port(host, port));
        let host_header = own_host.map_or_else(address, Ok);
        let host_header = host_header.map_err(|_| TargetError::Host(host.to_owned()))?;
        headers.insert(header::HOST, host_header);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let path = escaped(action.path.as_deref().unwrap_or_default());
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        Ok(Self { https, host: host.to_owned(), port, path, headers })
    }

    /// The URL, for messages.
    pub(super) fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.address(), self.path)
    }

    /// Host and port, for messages.
    #[must_use]
    pub fn address(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    pub(super) fn without_tls(&self) -> Self {
        let mut plain = Self { https: false, ..self.clone() };
        // It was meant for a server that is known by its certificate.
        plain.headers.remove(header::AUTHORIZATION);
        plain
    }
}

/// The host that an action names. Without one, the pod is asked, at its own address.
#[must_use]
pub fn named_host(host: Option<&String>) -> Option<&str> {
    host.map(String::as_str).filter(|host| !host.is_empty())
}

/// The headers that a specification gives.
fn headers_of(action: &k8s::HTTPGetAction) -> Result<HeaderMap, TargetError> {
    let all = action.http_headers.as_deref().unwrap_or_default();
    if all.len() > MAX_HEADERS {
        return Err(TargetError::TooManyHeaders(all.len()));
    }
    let mut headers = HeaderMap::new();
    for given in all {
        let unusable = || TargetError::Header(given.name.clone());
        let name = HeaderName::from_bytes(given.name.as_bytes()).map_err(|_| unusable())?;
        let value = HeaderValue::from_str(&given.value).map_err(|_| unusable())?;
        headers.try_append(name, value).map_err(|_| unusable())?;
    }
    Ok(headers)
}

/// What URLs do not allow.
const FORBIDDEN: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A part of a URL that can be sent: it ends before a fragment, and what URLs do not allow is
/// escaped.
pub(super) fn escaped(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    utf8_percent_encode(text, FORBIDDEN).to_string()
}

/// The number of a port that is given as a number, as the name of a port of the container, or as a
/// number in quotes.
///
/// # Errors
/// When there is no such port.
pub fn resolve_port(port: &IntOrString, container: &k8s::Container) -> Result<u16, TargetError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            match ports.find(|port| port.name.as_deref() == Some(name)) {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| TargetError::UnknownPort(name.clone()))?,
            }
        }
    };
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or(TargetError::InvalidPort(number))
}
