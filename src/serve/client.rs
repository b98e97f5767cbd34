//! Asks a running agent over its local socket.

use super::{AskRequest, FollowLine, ForgetAnswer, ForgetRequest, StatusDocument};
use crate::model::{Ask, AskAnswer, PodKey, from_json};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};
use thiserror::Error;
use tokio::{net::UnixStream, task::JoinSet, time::timeout};

/// How long an answer may take. The agent answers commands within 10 s itself.
const DEADLINE: Duration = Duration::from_secs(15);

/// How long a session may take to begin. The agent gives the runtime 30 s to prepare it and 30 s to
/// answer on its streams, and then says what did not answer. Before a port-forward it also asks for
/// the sandbox, which may take longer.
pub(super) const SESSION_DEADLINE: Duration = Duration::from_secs(75);

#[derive(Debug, Error)]
pub enum ClientError {
    /// There is no socket, or no process listens on it.
    #[error("the agent isn't running: no answer on {}", socket.display())]
    NotRunning { socket: PathBuf, source: io::Error },
    /// The socket is for root.
    #[error("no permission to use {}: run this as root (sudo nodelet ...)", socket.display())]
    Denied { socket: PathBuf, source: io::Error },
    /// The socket can't be used for another reason.
    #[error("can't connect to {}", socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    /// The connection broke, or what came is no HTTP.
    #[error("the agent at {} closed the connection", socket.display())]
    Http { socket: PathBuf, source: hyper::Error },
    /// An answer that goes on has ended.
    #[error(
        "the agent at {} ended the connection: it has stopped, or this command did not read fast enough",
        socket.display()
    )]
    Ended { socket: PathBuf },
    #[error("the agent at {} did not answer within {} s", socket.display(), deadline.as_secs())]
    TimedOut { socket: PathBuf, deadline: Duration },
    /// The URL of a session is too long, because of its command.
    #[error(
        "the command is too long: it may be up to {} KiB long, and most characters other than letters and digits count as three bytes. Pass a longer script as standard input",
        MAX_TARGET >> 10
    )]
    TooLong,
    /// It answered with an error.
    #[error("the agent refused {path}: {status} {message}")]
    Refused { path: &'static str, status: StatusCode, message: String },
    /// The answer can't be read: an agent of another version.
    #[error(
        "the agent's answer to {path} can't be read; is it of another version than this command?"
    )]
    Unreadable { path: &'static str, source: serde_json::Error },
}

/// The longest path of a request with its query, in bytes. No URL may be longer than 65,534.
pub(super) const MAX_TARGET: usize = 64_000;

/// The connection of a session.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// An agent's local socket, seen from outside.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The agent behind this socket. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Everything that the agent publishes.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or not a readable one.
    pub async fn status(&self) -> Result<StatusDocument, ClientError> {
        let (status, body) = self.ask(Method::GET, "/status", Bytes::new()).await?;
        if status != StatusCode::OK {
            let message = String::from_utf8_lossy(&body).into_owned();
            return Err(ClientError::Refused { path: "/status", status, message });
        }
        read("/status", &body)
    }

    /// What the node and its pods use: a `Summary`, of which `T` is the part that is wanted.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or not a readable one.
    pub async fn used<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let path = "/stats/summary?only_cpu_and_memory=true&graphs=true";
        let (status, body) = self.ask(Method::GET, path, Bytes::new()).await?;
        if status != StatusCode::OK {
            let message = String::from_utf8_lossy(&body).into_owned();
            return Err(ClientError::Refused { path, status, message });
        }
        read(path, &body)
    }

    /// The status page, which does not refresh itself.
    ///
    /// # Errors
    /// No agent, no permission, or no answer in time.
    pub async fn page(&self) -> Result<String, ClientError> {
        let (status, body) = self.ask(Method::GET, "/ui", Bytes::new()).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        match status {
            StatusCode::OK => Ok(text),
            _ => Err(ClientError::Refused { path: "/ui", status, message: text }),
        }
    }

    /// Drops a last good revision.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or not a readable one. That it could not be done
    /// is an answer.
    pub async fn forget(&self, key: &PodKey) -> Result<ForgetAnswer, ClientError> {
        let request = ForgetRequest { key: key.clone() };
        let request = serde_json::to_vec(&request)
            .map_err(|source| ClientError::Unreadable { path: "/forget", source })?;
        let (_, body) = self.ask(Method::POST, "/forget", request.into()).await?;
        read("/forget", &body)
    }

    /// Has something done with a pod.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or not a readable one. A refusal is an answer.
    pub async fn tell(&self, key: &PodKey, ask: Ask) -> Result<AskAnswer, ClientError> {
        let (path, container) = match ask {
            Ask::Restart { container } => ("/restart", container),
            Ask::Retry => ("/retry", None),
        };
        let request = AskRequest { key: key.clone(), container };
        let request = serde_json::to_vec(&request)
            .map_err(|source| ClientError::Unreadable { path, source })?;
        let (_, body) = self.ask(Method::POST, path, request.into()).await?;
        read(path, &body)
    }

    /// Asks for a session (`/exec/...`), which speaks SPDY/3.1 with this subprotocol. `what` names
    /// it in errors.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or the agent or the runtime refuses.
    pub async fn upgrade(
        &self,
        what: &'static str,
        path: &str,
        protocol: &'static str,
    ) -> Result<Upgraded, ClientError> {
        timeout(SESSION_DEADLINE, self.begin_session(what, path, protocol))
            .await
            .map_err(|_| self.too_late(SESSION_DEADLINE))?
    }

    fn too_late(&self, deadline: Duration) -> ClientError {
        ClientError::TimedOut { socket: self.socket.clone(), deadline }
    }

    async fn begin_session(
        &self,
        what: &'static str,
        path: &str,
        protocol: &'static str,
    ) -> Result<Upgraded, ClientError> {
        if path.len() > MAX_TARGET {
            return Err(ClientError::TooLong);
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.no_connection(e))?;
        let broke = |source| ClientError::Http { socket: self.socket.clone(), source };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection.with_upgrades());
        let mut request = request(Method::POST, path, Bytes::new());
        for (name, value) in [
            (header::CONNECTION, "Upgrade"),
            (header::UPGRADE, "SPDY/3.1"),
            (header::HeaderName::from_static("x-stream-protocol-version"), protocol),
        ] {
            request.headers_mut().insert(name, header::HeaderValue::from_static(value));
        }
        let response = sender.send_request(request).await.map_err(broke)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = response.into_body().collect().await.map_err(broke)?.to_bytes();
            let message = String::from_utf8_lossy(&body).trim_end().to_owned();
            return Err(ClientError::Refused { path: what, status, message });
        }
        Ok(TokioIo::new(hyper::upgrade::on(response).await.map_err(broke)?))
    }

    /// Asks for an answer that goes on.
    ///
    /// # Errors
    /// No agent, no permission, no answer in time, or the agent refuses.
    pub async fn follow(&self, path: &'static str) -> Result<FollowLines, ClientError> {
        timeout(DEADLINE, self.begin_to_follow(path)).await.map_err(|_| self.too_late(DEADLINE))?
    }

    async fn begin_to_follow(&self, path: &'static str) -> Result<FollowLines, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.no_connection(e))?;
        let broke = |source| ClientError::Http { socket: self.socket.clone(), source };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let request = request(Method::GET, path, Bytes::new());
        let response = sender.send_request(request).await.map_err(broke)?;
        let status = response.status();
        let body = response.into_body();
        if status != StatusCode::OK {
            let body = body.collect().await.map_err(broke)?.to_bytes();
            let message = String::from_utf8_lossy(&body).into_owned();
            return Err(ClientError::Refused { path, status, message });
        }
        let socket = self.socket.clone();
        Ok(FollowLines { body, read: Vec::new(), socket, path, _connection: tasks })
    }

    async fn ask(
        &self,
        method: Method,
        path: &'static str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        timeout(DEADLINE, self.exchange(method, path, body))
            .await
            .map_err(|_| self.too_late(DEADLINE))?
    }

    async fn exchange(
        &self,
        method: Method,
        path: &'static str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.no_connection(e))?;
        let broke = |source| ClientError::Http { socket: self.socket.clone(), source };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
        let request = request(method, path, body);
        let mut exchange = pin!(async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        });
        // Cancel-safe: the exchange stays pinned outside; a connection that is done is not polled
        // again.
        let answer = tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = connection => match ended {
                Ok(()) => exchange.await,
                Err(error) => Err(error),
            },
        };
        answer.map_err(broke)
    }

    fn no_connection(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        let kind = source.kind();
        if matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
            ClientError::NotRunning { socket, source }
        } else if kind == io::ErrorKind::PermissionDenied {
            ClientError::Denied { socket, source }
        } else {
            ClientError::Connect { socket, source }
        }
    }
}

fn request(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "nodelet")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(body));
    // The parts are constants, names and encoded text of a length that was checked, so the request
    // can always be built.
    request.unwrap_or_default()
}

/// The lines of an answer that goes on.
#[derive(Debug)]
pub struct FollowLines {
    body: Incoming,
    /// What was read of the next lines.
    read: Vec<u8>,
    socket: PathBuf,
    path: &'static str,
    /// The task that moves the bytes. It ends with this value.
    _connection: JoinSet<hyper::Result<()>>,
}

impl FollowLines {
    /// Waits for the next line.
    ///
    /// # Errors
    /// The agent has ended the answer, or the line can't be read.
    ///
    /// # Cancel safety
    /// Nothing that was read is lost.
    pub async fn next(&mut self) -> Result<FollowLine, ClientError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return read(self.path, &line);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.read.extend(frame.into_data().unwrap_or_default()),
                // A connection that breaks and an answer that ends mean the same here.
                Some(Err(_)) | None => {
                    return Err(ClientError::Ended { socket: self.socket.clone() });
                }
            }
        }
    }
}

fn read<T: DeserializeOwned>(path: &'static str, body: &[u8]) -> Result<T, ClientError> {
    from_json(body).map_err(|source| ClientError::Unreadable { path, source })
}
