//! Carries a session (exec, attach, port-forward) between a client and the streaming server of the
//! container runtime.
//!
//! The client's upgrade request goes to the URL that the runtime has given, with its method and
//! headers. After `101 Switching Protocols` bytes go both ways as they are, so every protocol that
//! client and runtime agree on works: SPDY/3.1 and WebSocket, with all subprotocols. The client's
//! credentials stay here.

use super::{counted::InFlight, user};
use crate::serve::{health::plain, last_moved::LastMoved};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
    upgrade,
};
use hyper_util::rt::TokioIo;
use std::{
    future::ready,
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// The most sessions at a time.
const MOST: usize = 512;
/// How long the runtime may take to answer the upgrade request.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the runtime may go on sending to a client that has sent its last byte.
const LAST_BYTES: Duration = Duration::from_secs(10);
/// The most that is read of the runtime's answer when it refuses.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Bytes that are carried at a time, each way.
const BUFFER: usize = 16 << 10;

type SessionTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Begins sessions.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Relays {
    places: Arc<Semaphore>,
    begun: mpsc::Sender<SessionTask>,
    idle: Duration,
}

/// Runs the sessions that have begun.
#[derive(Debug)]
pub(in crate::serve) struct Sessions(mpsc::Receiver<SessionTask>);

/// Sessions, of which there are at most [`MOST`] at a time. One on which nothing is sent for `idle` ends.
pub(in crate::serve) fn sessions(idle: Duration) -> (Relays, Sessions) {
    let (begun, sessions) = mpsc::channel(MOST);
    (Relays { places: Arc::new(Semaphore::new(MOST)), begun, idle }, Sessions(sessions))
}

impl Sessions {
    /// Runs until `shutdown`, which ends all sessions.
    pub(in crate::serve) async fn run(mut self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        loop {
            // Cancel-safe: every arm only waits. What is dropped closes its connections.
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(session) = self.0.recv() => drop(tasks.spawn(session)),
                Some(_) = tasks.join_next() => {}
            }
        }
        tasks.shutdown().await;
    }
}

impl Relays {
    /// A place for one more session, or the answer that there is none.
    pub(super) fn place(&self) -> Result<OwnedSemaphorePermit, Refused> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let text = "too many sessions go on: try again later";
            Refused::new(StatusCode::TOO_MANY_REQUESTS, text)
        })
    }

    /// Connects a client that asks for an upgrade with the runtime's streaming server at `url`.
    pub(super) async fn relay(
        &self,
        mut request: Request,
        url: &str,
        place: OwnedSemaphorePermit,
    ) -> Response {
        let asked = ask(request.method(), request.headers(), url);
        let Answered { mut response, connection } = match timeout(ANSWER, asked).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => {
                return failed(error.to_string());
            }
            Err(_) => {
                let text = "the container runtime's streaming server does not answer";
                return failed(text);
            }
        };
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let text = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect();
            let (text, ()) = tokio::join!(text, connection);
            let text = text.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return (status, text).into_response();
        }
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let text = format!("invalid upgrade response: status code {}", status.as_u16());
            return failed(text);
        }
        let headers = std::mem::take(response.headers_mut());
        let (client, runtime) = (upgrade::on(&mut request), upgrade::on(response));
        let idle = self.idle;
        let in_flight = request.extensions_mut().remove::<InFlight>();
        let session = async move {
            let _held = (place, in_flight);
            let (sides, ()) = tokio::join!(async { tokio::try_join!(client, runtime) }, connection);
            let carried = match sides {
                Ok((client, runtime)) => {
                    let (client, runtime) = (TokioIo::new(client), TokioIo::new(runtime));
                    carry(client, runtime, (idle, LAST_BYTES)).await
                }
                Err(error) => Err(io::Error::other(error)),
            };
            if let Err(err) = carried {
                tracing::debug!(%err, "a session ended with an error");
            }
        };
        if self.begun.send(Box::pin(session)).await.is_err() {
            let stops = "the agent is about to stop";
            return Refused::new(StatusCode::SERVICE_UNAVAILABLE, stops).into_response();
        }
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = headers;
        answer
    }
}

/// Whether a request asks for another protocol.
pub(super) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let mut tokens = values.filter_map(|value| value.to_str().ok()).flat_map(|t| t.split(','));
    headers.contains_key(header::UPGRADE)
        && tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

fn failed(text: impl Into<String>) -> Response {
    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

/// An answer that is an error: status and text.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, String);

impl Refused {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self(status, text.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let later = self.0 == StatusCode::TOO_MANY_REQUESTS;
        let mut response = plain((self.0, self.1));
        if later {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(60));
        }
        response
    }
}

/// The runtime's answer.
struct Answered {
    response: http::Response<Incoming>,
    /// Carries the answer's body, or ends with the upgrade.
    connection: SessionTask,
}

/// Passes the upgrade request on.
async fn ask(method: &Method, headers: &HeaderMap, url: &str) -> io::Result<Answered> {
    let url: Uri = url.parse().map_err(|_| io::Error::other("the runtime's URL can't be read"))?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err(io::Error::other("the runtime's streaming server is not reached over HTTP"));
    };
    let port = authority.port_u16().unwrap_or(80);
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let handshake = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let mut connection: SessionTask = Box::pin(async move {
        if let Err(err) = connection.with_upgrades().await {
            tracing::debug!(%err, "the connection to the runtime's streaming server failed");
        }
    });
    let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut passed = http::Request::new(Empty::new());
    *passed.method_mut() = method.clone();
    *passed.uri_mut() = path.parse().map_err(io::Error::other)?;
    *passed.headers_mut() = passed_on(headers);
    let host = HeaderValue::from_str(authority.as_str()).map_err(io::Error::other)?;
    passed.headers_mut().insert(header::HOST, host);
    let mut answer = pin!(sender.send_request(passed));
    // Cancel-safe: both are pinned outside.
    let response = tokio::select! {
        biased;
        response = &mut answer => response,
        () = &mut connection => {
            // It may have ended with the answer.
            connection = Box::pin(ready(()));
            answer.await
        }
    };
    Ok(Answered { response: response.map_err(io::Error::other)?, connection })
}

/// The headers of the client without its credentials. There is no body.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    for name in [header::AUTHORIZATION, header::COOKIE, header::CONTENT_LENGTH] {
        passed.remove(name);
    }
    passed.remove(header::TRANSFER_ENCODING);
    if headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
        passed.remove(header::SEC_WEBSOCKET_PROTOCOL);
        let public = user::public_protocols(headers);
        if let Ok(value) = HeaderValue::from_str(&public)
            && !public.is_empty()
        {
            passed.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
    passed
}

/// Carries bytes both ways until the runtime has sent its last one, or for a moment longer than the
/// client sends and the runtime reads.
async fn carry(
    client: impl AsyncRead + AsyncWrite,
    runtime: impl AsyncRead + AsyncWrite,
    (idle, last_bytes): (Duration, Duration),
) -> io::Result<()> {
    let moved = LastMoved::default();
    let ((from_client, to_client), (from_runtime, to_runtime)) = (split(client), split(runtime));
    let there = async {
        match copy(from_client, to_runtime, &moved).await {
            Err(Broken::Reading(error)) => Err(error),
            // A runtime that no longer reads may have sent why.
            Err(Broken::Writing(_)) | Ok(()) => {
                sleep(last_bytes).await;
                Ok(())
            }
        }
    };
    let silent = async {
        loop {
            let since = moved.at().elapsed();
            let Some(left) = idle.checked_sub(since) else { return Ok(()) };
            // At least a tick of the timer.
            sleep(left.max(Duration::from_millis(1))).await;
        }
    };
    // Cancel-safe: the session is over when one of them ends.
    tokio::select! {
        ended = copy(from_runtime, to_client, &moved) => ended.map_err(Broken::into_inner),
        ended = there => ended,
        ended = silent => ended,
    }
}

/// Copies until there is nothing more, and closes the other side.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &LastMoved,
) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await.map_err(Broken::Reading)?;
        if length == 0 {
            return to.shutdown().await.map_err(Broken::Writing);
        }
        moved.mark();
        to.write_all(&buffer[..length]).await.map_err(Broken::Writing)?;
        to.flush().await.map_err(Broken::Writing)?;
    }
}

/// Which side of a copy has failed.
enum Broken {
    Reading(io::Error),
    Writing(io::Error),
}

impl Broken {
    fn into_inner(self) -> io::Error {
        match self {
            Self::Reading(error) | Self::Writing(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use tokio::io::duplex;

    #[test]
    fn an_upgrade_needs_both_headers() {
        let asks = |connection: Option<&'static str>, upgrade: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            let pairs = [(header::CONNECTION, connection), (header::UPGRADE, upgrade)];
            for (name, value) in pairs.into_iter().filter_map(|(n, v)| Some((n, v?))) {
                headers.insert(name, HeaderValue::from_static(value));
            }
            asks_for_upgrade(&headers)
        };
        assert!(asks(Some("Upgrade"), Some("SPDY/3.1")));
        assert!(asks(Some("keep-alive, upgrade"), Some("websocket")));
        assert!(!asks(Some("keep-alive"), Some("websocket")));
        assert!(!asks(Some("Upgrade"), None));
        assert!(!asks(None, Some("SPDY/3.1")));
    }

    #[test]
    fn credentials_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (header::AUTHORIZATION, "Bearer abc"),
            (header::COOKIE, "session=1"),
            (header::UPGRADE, "websocket"),
            (
                header::SEC_WEBSOCKET_PROTOCOL,
                "base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let passed = passed_on(&headers);
        assert_eq!(passed.len(), 2, "{passed:?}");
        assert_eq!(passed[header::UPGRADE], "websocket");
        assert_eq!(passed[header::SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
    }

    #[tokio::test]
    async fn a_session_ends_with_the_runtime_or_soon_after_the_client() {
        const LONG: Duration = Duration::from_secs(600);
        const SHORT: Duration = Duration::from_millis(50);
        const IDLE: Duration = Duration::from_secs(2);
        let mut sessions = JoinSet::new();
        let mut start = |idle, last_bytes| {
            let ((near, client), (runtime, far)) = (duplex(64), duplex(64));
            sessions.spawn(carry(client, runtime, (idle, last_bytes)));
            (near, far)
        };
        // The last words of the runtime arrive.
        let (mut near, mut far) = start(LONG, LONG);
        far.write_all(b"bye").await.unwrap();
        drop(far);
        let mut text = String::new();
        near.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "bye");
        // Also when the runtime has not read all that the client sent.
        let (mut near, mut far) = start(LONG, LONG);
        near.write_all(b"in").await.unwrap();
        far.write_all(b"why").await.unwrap();
        drop(far);
        let mut text = String::new();
        near.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "why");
        // The runtime sees that the client is done, and may answer.
        let (mut near, mut far) = start(LONG, SHORT);
        near.write_all(b"in").await.unwrap();
        near.shutdown().await.unwrap();
        let mut seen = String::new();
        far.read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "in");
        // Silence, which begins with the last bytes.
        let (mut near, mut far) = start(IDLE, LONG);
        sleep(IDLE / 20).await;
        near.write_all(b"in").await.unwrap();
        let mut seen = String::new();
        timeout(IDLE * 19 / 10, far.read_to_string(&mut seen)).await.unwrap().unwrap();
        assert_eq!(seen, "in");
        let silent = start(SHORT, LONG);
        while let Some(ended) = sessions.join_next().await {
            ended.unwrap().unwrap();
        }
        drop(silent);
    }
}
