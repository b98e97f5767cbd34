//! `staticPodURL`: one body, asked for again and again.

use super::{
    SHORTEST_CHECK, SourceHandle, SourceOptions,
    core::{Identity, Listed, Listing, Look, Place},
    output::Output,
    reader::Reader,
};
use crate::{blocking::SOURCES, clock, manifest::MAX_TEXT_BYTES, model::SourceKind};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{
    Request, StatusCode, Uri,
    body::Bytes,
    header::{HeaderName, HeaderValue, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sha2::{Digest, Sha256};
use std::{error::Error, time::Duration};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// For the whole of a request, the body included; the kubelet's.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body, in bytes; the kubelet's limit is 10 MiB.
const MAX_BODY_BYTES: usize = MAX_TEXT_BYTES;

/// The URL of `staticPodURL`.
#[derive(Debug)]
pub struct UrlSource {
    /// What people see of the URL, as the location of its pods.
    shown: String,
    /// What to ask, or why that can't be asked for.
    request: Result<Request<Empty<Bytes>>, String>,
    output: Output,
    reader: Reader,
    check_every: Duration,
}

/// Why a URL gives nothing.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    /// Said again each time, in the same words.
    #[error("{0}")]
    Unusable(String),
    #[error("is not a URL: {0}")]
    Invalid(String),
    #[error("holds a user name: send an Authorization header instead")]
    UserName,
    #[error("header {0:?} can't be sent")]
    Header(String),
    #[error("the system's certificates can't be read: {0}")]
    Certificates(std::io::Error),
    #[error("{}", chain(.0))]
    Request(hyper_util::client::legacy::Error),
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Status(StatusCode),
    #[error("the answer broke off: {0}")]
    Body(String),
    #[error("the answer is larger than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLarge,
    #[error("the answer is empty")]
    Empty,
}

#[derive(Debug)]
enum Requester {
    Plain(Client<HttpConnector, Empty<Bytes>>),
    Tls(Client<HttpsConnector<HttpConnector>, Empty<Bytes>>),
}

/// The body that was read last.
struct Body {
    digest: [u8; 32],
    look: Look,
}

impl UrlSource {
    /// A source that asks `url` with these headers (name and value; several of one name allowed).
    #[must_use]
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        options: SourceOptions,
    ) -> (Self, SourceHandle) {
        let check_every = options.check_every.max(SHORTEST_CHECK);
        let shown = without_secrets(url);
        let (output, reader, handle) = Output::new(SourceKind::Http, &shown, options);
        let request = request(url, headers).map_err(|error| error.to_string());
        (Self { shown, request, output, reader, check_every }, handle)
    }

    /// Asks until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let beats = self.output.beats();
        // Cancel safety: nothing that `work` does must be finished.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.work() => {}
            never = beats => match never {},
        }
    }

    async fn work(mut self) {
        let mut requester = None;
        let mut last = None;
        loop {
            let (listing, asked) = self.look(&mut requester, &mut last).await;
            let wake_at = self.output.take_in(listing);
            if asked {
                continue;
            }
            let now = Instant::now();
            let wake = wake_at.map(|at| now + at.saturating_sub(clock::now().boot));
            let due = wake.into_iter().fold(now + self.check_every, Instant::min);
            loop {
                // Cancel safety: a command is taken whole or stays queued; the deadline is absolute.
                tokio::select! {
                    () = sleep_until(due) => break,
                    Some(command) = self.output.command() => {
                        if self.output.answer(command) {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Asks once; requests are answered meanwhile. With whether one of them wants another look.
    async fn look(
        &mut self,
        requester: &mut Option<Requester>,
        last: &mut Option<Body>,
    ) -> (Listing, bool) {
        let mut asked = false;
        let asking = ask(&self.request, requester);
        tokio::pin!(asking);
        let answer = loop {
            // Cancel safety: the request is pinned outside, a command is taken whole or stays queued.
            tokio::select! {
                answer = &mut asking => break answer,
                Some(command) = self.output.command() => asked |= self.output.answer(command),
            }
        };
        let text = match answer {
            Ok(text) => text,
            Err(error) => {
                let place = Place::Away(format!("{}: {error}", self.shown));
                return (Listing { place, files: Vec::new() }, asked);
            }
        };
        let digest: [u8; 32] = Sha256::digest(&text).into();
        let look = match last.take() {
            Some(body) if body.digest == digest => body.look,
            Some(_) | None => self.read(text).await,
        };
        *last = Some(Body { digest, look: look.clone() });
        let file = Listed { name: "".into(), location: self.shown.as_str().into(), look };
        // There is only one place that this can be.
        let here = Identity { device: 0, inode: 0, born: None, single_file: true };
        (Listing { place: Place::Here(here), files: vec![file] }, asked)
    }

    /// Decodes, away from the event loop: it may be large.
    async fn read(&self, text: Bytes) -> Look {
        let (reader, location) = (self.reader.clone(), self.shown.clone());
        let seen = clock::now().wall;
        let accepted = self.output.state().pods();
        let job = SOURCES.run(move || reader.read(&text, &location, &accepted, seen));
        match job.await {
            Ok(Ok(reading)) => Look::Read(reading.into()),
            Ok(Err(problem)) => Look::Unread(problem),
            Err(crashed) => panic!("{crashed}"),
        }
    }
}

/// A URL without its query, fragment and user name: each may carry a token.
fn without_secrets(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = url.get(..end).unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

fn request(url: &str, headers: &[(String, String)]) -> Result<Request<Empty<Bytes>>, UrlError> {
    let uri: Uri = url.parse().map_err(|error| UrlError::Invalid(format!("{error}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err(UrlError::Invalid(
            "http://HOST/... or https://HOST/... is expected".to_owned(),
        ));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(UrlError::UserName);
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    let agent = HeaderValue::from_static(concat!("nodelet/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        let Some((header, value)) = header.zip(HeaderValue::from_str(value).ok()) else {
            return Err(UrlError::Header(name.clone()));
        };
        if header == USER_AGENT {
            request.headers_mut().remove(USER_AGENT);
        }
        request.headers_mut().append(header, value);
    }
    Ok(request)
}

/// The body.
async fn ask(
    request: &Result<Request<Empty<Bytes>>, String>,
    requester: &mut Option<Requester>,
) -> Result<Bytes, UrlError> {
    let request = request.clone().map_err(UrlError::Unusable)?;
    let requester = match requester {
        Some(requester) => requester,
        None => requester.insert(Requester::new(request.uri())?),
    };
    timeout(TIMEOUT, requester.get(request)).await.unwrap_or(Err(UrlError::Timeout))
}

impl Requester {
    /// The system's certificates are read for https only: they cost a megabyte.
    fn new(uri: &Uri) -> Result<Self, UrlError> {
        // A connection is not kept: the next request is far away.
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(0);
        if uri.scheme_str() != Some("https") {
            return Ok(Self::Plain(builder.build_http()));
        }
        let connector = HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(UrlError::Certificates)?
            .https_only()
            .enable_http1()
            .build();
        Ok(Self::Tls(builder.build(connector)))
    }

    async fn get(&self, request: Request<Empty<Bytes>>) -> Result<Bytes, UrlError> {
        let response = match self {
            Self::Plain(client) => client.request(request).await,
            Self::Tls(client) => client.request(request).await,
        }
        .map_err(UrlError::Request)?;
        if response.status() != StatusCode::OK {
            return Err(UrlError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                UrlError::TooLarge
            } else {
                UrlError::Body(chain(&*error))
            }
        })?;
        let text = body.to_bytes();
        if text.is_empty() { Err(UrlError::Empty) } else { Ok(text) }
    }
}

/// An error with everything behind it: hyper's own says little.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
