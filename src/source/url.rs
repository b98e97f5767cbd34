//! `staticPodURL`: one body, asked for again and again.

use super::{
    SHORTEST_CHECK, SourceHandle, SourceOptions,
    core::{EntryLook, Identity, Listed, Listing, SourcePlace},
    output::Output,
    reader::Reader,
};
use crate::model::without_secrets;
use crate::{
    blocking::{SOURCES, URL_LOOKUPS},
    clock,
    manifest::MAX_TEXT_BYTES,
    model::{SourceKind, error_chain},
    names::HostNames,
    verifier::{system_authorities, with_authorities},
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header::{HeaderName, HeaderValue, LOCATION, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use std::{io, time::Duration};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// For the whole of a request, the body included; the kubelet's.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For TCP, over all tries of a name: an address that does not answer leaves time for the others.
const TCP: Duration = Duration::from_secs(9);
/// Largest body, in bytes; the kubelet's limit is 10 MiB.
const MAX_BODY_BYTES: usize = MAX_TEXT_BYTES;
/// Redirects that are followed for one look; the default of Go's client.
const MAX_REDIRECTS: usize = 10;

/// The URL of `staticPodURL`.
#[derive(Debug)]
pub struct UrlSource {
    /// What people see of the URL, as the location of its pods.
    shown: String,
    /// What to ask, or why that can't be asked for.
    request: Result<Request<Full<Bytes>>, String>,
    output: Output,
    reader: Reader,
    check_every: Duration,
}

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
    #[error("{}", error_chain(.0))]
    Request(hyper_util::client::legacy::Error),
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Status(StatusCode),
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("redirects from https to http")]
    Downgrade,
    #[error("redirects to another place: {0}")]
    Redirect(Box<UrlError>),
    #[error("the response ended early: {0}")]
    Body(String),
    #[error("the answer is larger than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLarge,
    #[error("the answer is empty")]
    Empty,
}

/// Of the same type as the clients of the API server, so that the binary has its code once.
type HttpClient = Client<TimeoutConnector<HttpsConnector<HttpConnector<HostNames>>>, Full<Bytes>>;

/// The clients, each made when it is first needed.
#[derive(Debug, Default)]
struct Requester {
    plain: Option<HttpClient>,
    /// The system's certificates are read for https only: they cost a megabyte.
    tls: Option<HttpClient>,
}

/// The body that was read last.
struct Body {
    digest: [u8; 32],
    look: EntryLook,
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
        let mut requester = Requester::default();
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
                // Cancel safety: a command is taken whole or stays queued; the deadline is
                // absolute.
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
        requester: &mut Requester,
        last: &mut Option<Body>,
    ) -> (Listing, bool) {
        let mut asked = false;
        let asking = ask(&self.request, requester);
        tokio::pin!(asking);
        let answer = loop {
            // Cancel safety: the request is pinned outside, a command is taken whole or stays
            // queued.
            tokio::select! {
                answer = &mut asking => break answer,
                Some(command) = self.output.command() => asked |= self.output.answer(command),
            }
        };
        let text = match answer {
            Ok(text) => text,
            Err(error) => {
                let place = SourcePlace::Away(format!("{}: {error}", self.shown));
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
        (Listing { place: SourcePlace::Here(here), files: vec![file] }, asked)
    }

    /// Decodes, away from the event loop: it may be large.
    async fn read(&self, text: Bytes) -> EntryLook {
        let (reader, location) = (self.reader.clone(), self.shown.clone());
        let seen = clock::now().wall;
        let accepted = self.output.state().pods();
        let job = SOURCES.run(move || reader.read(&text, &location, &accepted, seen, None));
        match job.await {
            Ok(Ok(reading)) => EntryLook::Read(reading.into()),
            Ok(Err(problem)) => EntryLook::Unread(problem),
            Err(crashed) => panic!("{crashed}"),
        }
    }
}

fn request(url: &str, headers: &[(String, String)]) -> Result<Request<Full<Bytes>>, UrlError> {
    let mut request = bare_request(url)?;
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        let Some((header, value)) = header.zip(HeaderValue::from_str(value).ok()) else {
            return Err(UrlError::Header(name.clone()));
        };
        if header == USER_AGENT {
            request.headers_mut().remove(USER_AGENT);
        }
        let appended = request.headers_mut().try_append(header, value);
        appended.map_err(|_| UrlError::Header(name.clone()))?;
    }
    Ok(request)
}

/// A request without the configured headers.
fn bare_request(url: &str) -> Result<Request<Full<Bytes>>, UrlError> {
    let uri: Uri = url.parse().map_err(|error| UrlError::Invalid(format!("{error}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err(UrlError::Invalid(
            "http://HOST/... or https://HOST/... is expected".to_owned(),
        ));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(UrlError::UserName);
    }
    let mut request = Request::new(Full::default());
    *request.uri_mut() = uri;
    let agent = HeaderValue::from_static(concat!("nodelet/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    Ok(request)
}

/// The request that a redirect asks for.
///
/// Go's client sends every header but Authorization and Cookie to any host. Here the configured
/// headers, which may be tokens under any name, stay with the host and port that they were sent to.
fn redirected(
    request: &Request<Full<Bytes>>,
    location: &str,
) -> Result<Request<Full<Bytes>>, UrlError> {
    let from = request.uri();
    let mut next = bare_request(&resolved(from, location))
        .map_err(|error| UrlError::Redirect(Box::new(error)))?;
    let to = next.uri();
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
        return Err(UrlError::Downgrade);
    }
    let lower = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    // Without a port in both, http to https stays on the host.
    if lower(from) == lower(to) && from.port_u16() == to.port_u16() {
        *next.headers_mut() = request.headers().clone();
    }
    Ok(next)
}

/// A `Location`, which may be relative to the URL that gave it.
fn resolved(base: &Uri, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or_default();
    let authority = base.authority().map_or("", |authority| authority.as_str());
    if location.split(['/', '?']).next().is_some_and(|start| start.contains(':')) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{authority}{directory}/{location}")
    }
}

async fn ask(
    request: &Result<Request<Full<Bytes>>, String>,
    requester: &mut Requester,
) -> Result<Bytes, UrlError> {
    let request = request.clone().map_err(UrlError::Unusable)?;
    timeout(TIMEOUT, requester.get(request)).await.unwrap_or(Err(UrlError::Timeout))
}

impl Requester {
    /// The body, after all redirects.
    async fn get(&mut self, mut request: Request<Full<Bytes>>) -> Result<Bytes, UrlError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(request.clone()).await?;
            let location = response.headers().get(LOCATION).and_then(|text| text.to_str().ok());
            match (response.status(), location) {
                (StatusCode::OK, _) => return body(response.into_body()).await,
                (
                    StatusCode::MOVED_PERMANENTLY
                    | StatusCode::FOUND
                    | StatusCode::SEE_OTHER
                    | StatusCode::TEMPORARY_REDIRECT
                    | StatusCode::PERMANENT_REDIRECT,
                    Some(location),
                ) => request = redirected(&request, location)?,
                (status, _) => return Err(UrlError::Status(status)),
            }
        }
        Err(UrlError::TooManyRedirects)
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, UrlError> {
        let client = match request.uri().scheme_str() {
            Some("https") => self.tls()?,
            _ => self.plain(),
        };
        client.request(request).await.map_err(UrlError::Request)
    }

    fn plain(&mut self) -> &HttpClient {
        self.plain.get_or_insert_with(|| {
            let without_roots = ClientConfig::builder()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
            let connector = HttpsConnectorBuilder::new().with_tls_config(without_roots);
            client(connector.https_or_http().enable_http1().wrap_connector(tcp()))
        })
    }

    fn tls(&mut self) -> Result<&HttpClient, UrlError> {
        if let Some(ref client) = self.tls {
            return Ok(client);
        }
        let authorities = system_authorities().map_err(UrlError::Certificates)?;
        let certified = with_authorities(ClientConfig::builder(), authorities)
            .map_err(|error| UrlError::Certificates(io::Error::other(error)))?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(certified.with_no_client_auth())
            .https_only()
            .enable_http1()
            .wrap_connector(tcp());
        Ok(self.tls.insert(client(connector)))
    }
}

fn tcp() -> HttpConnector<HostNames> {
    let mut tcp = HttpConnector::new_with_resolver(HostNames::new(&URL_LOOKUPS));
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(TCP));
    tcp
}

/// A connection is not kept: the next request is far away.
fn client(connector: HttpsConnector<HttpConnector<HostNames>>) -> HttpClient {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_max_idle_per_host(0).build(TimeoutConnector::new(connector))
}

async fn body(body: Incoming) -> Result<Bytes, UrlError> {
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            UrlError::TooLarge
        } else {
            UrlError::Body(error_chain(&*error))
        }
    })?;
    let text = body.to_bytes();
    if text.is_empty() { Err(UrlError::Empty) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
