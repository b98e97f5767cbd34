//! A GET request over HTTP/1.1, with the redirects that lead to the same host.

use super::{
    HttpGet,
    connect::{LookupWaits, connect},
    error::{NetworkError, host_and_port},
    target::escaped,
};
use crate::model::Finding;
use http::{Request, StatusCode, Uri, header, uri::Authority};
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// Requests that are made for one answer, redirects included.
const MAX_REQUESTS: usize = 10;
/// The part of a body that is read.
const MAX_BODY_BYTES: usize = 10 << 10;

/// The headers of an answer. The kubelet's client limits their size alone.
const MAX_HEADERS: usize = 1000;

/// Tells what a request that ran out of time has waited for.
#[derive(Default)]
pub(super) struct Waits {
    pub(super) lookup: LookupWaits,
    /// The headers of the last answer have arrived.
    body: AtomicBool,
}

impl Waits {
    /// True once the body of the last answer is read. The body of a redirect that is followed does
    /// not count.
    pub(super) fn for_body(&self) -> bool {
        self.body.load(Ordering::Relaxed)
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    body: Vec<u8>,
    /// The request to which a redirect leads.
    next: Option<HttpGet>,
}

impl Answer {
    /// What it means for a probe. A redirect that was not followed is a success with a warning.
    pub(super) fn finding(&self) -> Finding {
        match self.status.as_u16() {
            200..300 => Finding::Success,
            300..400 => {
                let body = String::from_utf8_lossy(&self.body);
                Finding::Warning(format!("Probe terminated redirects, Response body: {body}"))
            }
            status => Finding::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }
}

/// Asks, and follows redirects to the same host.
pub(super) async fn get(
    tls: &Arc<ClientConfig>,
    first: &HttpGet,
    waits: &Waits,
) -> Result<Answer, NetworkError> {
    let mut redirect = None;
    for _ in 0..MAX_REQUESTS {
        let get = redirect.as_ref().unwrap_or(first);
        let of = |error| NetworkError::Of { url: get.url(), error: Box::new(error) };
        let mut answer = ask(tls, get, waits).await.map_err(of)?;
        let Some(next) = answer.next.take() else { return Ok(answer) };
        redirect = Some(next);
    }
    Err(NetworkError::Of { url: first.url(), error: Box::new(NetworkError::Redirects) })
}

/// The request to which a redirect leads; `None` when it leads to another host.
fn redirected(get: &HttpGet, location: &str) -> Result<Option<HttpGet>, NetworkError> {
    let location = escaped(location);
    if has_scheme(&location) {
        return redirected_to(get, &location);
    }
    if location.starts_with("//") {
        let scheme = if get.https { "https" } else { "http" };
        return redirected_to(get, &format!("{scheme}:{location}"));
    }
    let (path, _) = get.path.split_once('?').unwrap_or((&get.path, ""));
    let joined = if location.starts_with('/') {
        location
    } else if location.starts_with('?') {
        format!("{path}{location}")
    } else {
        let (directory, _) = path.rsplit_once('/').unwrap_or_default();
        format!("{directory}/{location}")
    };
    Ok(Some(HttpGet { path: without_dots(&joined), ..get.clone() }))
}

/// True for a URL with a scheme. A URL in the query of a path does not count.
fn has_scheme(location: &str) -> bool {
    let before = location.split(['/', '?']).next().unwrap_or_default();
    before.ends_with(':')
}

/// [`redirected`] for a URL with scheme and host.
fn redirected_to(get: &HttpGet, url: &str) -> Result<Option<HttpGet>, NetworkError> {
    let unusable = || NetworkError::Location(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| unusable())?;
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        Some(_) | None => return Err(unusable()),
    };
    let authority: &Authority = uri.authority().ok_or_else(unusable)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if !host.eq_ignore_ascii_case(&get.host) {
        return Ok(None);
    }
    let mut next = get.clone();
    next.https = https;
    next.port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
    next.path = uri.path_and_query().map_or("/".to_owned(), ToString::to_string);
    let host = host_and_port(&next.host, next.port).parse().map_err(|_| unusable())?;
    next.headers.insert(header::HOST, host);
    Ok(Some(next))
}

/// A path and its query without the parts `.` and `..` (RFC 3986, section 5.2.4).
fn without_dots(path: &str) -> String {
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        parts.push("");
    }
    format!("/{}{query}", parts.join("/"))
}

async fn ask(
    tls: &Arc<ClientConfig>,
    get: &HttpGet,
    waits: &Waits,
) -> Result<Answer, NetworkError> {
    let stream = connect(&get.host, get.port, &waits.lookup).await?;
    if !get.https {
        return exchange(stream, get, waits).await;
    }
    // The request follows the end of the handshake at once. An error here only makes it slower.
    stream.set_nodelay(true).ok();
    // On the heap: a connection over TLS is larger than all the rest.
    Box::pin(async {
        let name = ServerName::try_from(get.host.clone());
        let name = name.map_err(|_| NetworkError::Name(get.host.clone()))?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
        exchange(stream.map_err(NetworkError::Tls)?, get, waits).await
    })
    .await
}

/// One request on a connection of its own.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    get: &HttpGet,
    waits: &Waits,
) -> Result<Answer, NetworkError> {
    let mut builder = http1::Builder::new();
    builder.title_case_headers(true).max_headers(MAX_HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = get.path.parse().map_err(|_| NetworkError::Location(get.path.clone()))?;
    *request.headers_mut() = get.headers.clone();
    let answered = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let location = response.headers().get(header::LOCATION);
        let next = match location {
            Some(location) if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) => {
                redirected(get, &String::from_utf8_lossy(location.as_bytes()))?
            }
            Some(_) | None => None,
        };
        let body = if next.is_some() {
            // Nobody sees this body. The kubelet follows a redirect whose body fails, too.
            beginning(response.into_body()).await.unwrap_or_default()
        } else {
            waits.body.store(true, Ordering::Relaxed);
            beginning(response.into_body()).await.map_err(NetworkError::Body)?
        };
        Ok::<_, NetworkError>(Answer { status, body, next })
    };
    let (mut answered, mut connection) = (std::pin::pin!(answered), std::pin::pin!(connection));
    let mut open = true;
    // Both are polled again after the other one was ready.
    loop {
        tokio::select! {
            answer = &mut answered => return answer,
            // Its error reaches the request as well.
            _ = &mut connection, if open => open = false,
        }
    }
}

/// The beginning of a body. The rest is not waited for.
async fn beginning(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let room = MAX_BODY_BYTES - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
            if read.len() == MAX_BODY_BYTES {
                break;
            }
        }
    }
    Ok(read)
}
