//! `nodelet exec`, `attach` and `port-forward`: sessions with a pod over the local socket.
//!
//! ```text
//!  this command ── SPDY/3.1 over the local socket ──► agent ──► the runtime's streaming server
//! ```

mod forward;
mod spdy;
mod terminal;

pub(super) use forward::port_forward;

use super::{
    EXIT_FAILURE, EXIT_NO_AGENT,
    args::{AgentArgs, AttachArgs, ExecArgs, NamespaceArgs},
    status::{SelectError, Wanted, reach},
};
use crate::{
    model::{PodKey, PodView, from_json, k8s},
    serve::{Client, ClientError, Upgraded},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use spdy::{Frame, Frames, Sender, StreamId, data};
use std::{
    fmt::Write as _,
    future::pending,
    io::{self, Read as _},
    process::ExitCode,
    thread,
};
use terminal::RawMode;
use thiserror::Error;
use tokio::{
    io::{AsyncWriteExt as _, split},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// What the streams of a session are, in Kubernetes' words.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Frames that wait to be sent.
const QUEUE: usize = 4;
/// Bytes of standard input that are sent at a time.
const INPUT: usize = 16 << 10;

/// Why there is no session, or how it has failed.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("container {container:?} not found in pod {pod}; it has {known}")]
    NoContainer { container: String, pod: PodKey, known: String },
    #[error("no container of pod {0} runs")]
    NothingRuns(PodKey),
    #[error("the session with the container runtime broke")]
    Broke(#[source] io::Error),
    #[error("can't use the terminal, standard input or standard output")]
    Terminal(#[from] io::Error),
    #[error("{0}")]
    Failed(String),
    #[error("the container runtime ended the session before it told how the command ended")]
    Unfinished,
    #[error("{0:?} is no port: expected PORT, LOCAL:PORT or :PORT")]
    NoPort(String),
    #[error("can't listen on {address}")]
    Listen { address: String, source: io::Error },
}

/// The pod that is meant, and the agent.
struct Found {
    client: Client,
    view: PodView,
}

/// `None` when no agent answers, which was told.
async fn find(
    agent: &AgentArgs,
    pod: &str,
    namespace: &NamespaceArgs,
) -> Result<Option<Found>, SessionError> {
    let wanted = Wanted::new(pod, namespace.namespace.as_deref())?;
    let Some((client, mut document)) = reach(agent).await? else { return Ok(None) };
    let keys = document.pods.iter().map(|view| &view.key);
    let key = wanted.select(&document.node.name, keys)?.clone();
    let at = document.pods.iter().position(|view| view.key == key);
    Ok(at.map(|at| Found { client, view: document.pods.swap_remove(at) }))
}

pub(super) async fn exec(args: ExecArgs) -> Result<ExitCode, SessionError> {
    let Some(found) = find(&args.agent, &args.pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let container = container(&found.view, args.container.as_deref())?;
    let wants = Wants { stdin: args.stdin, tty: args.tty };
    let mut path = found.path("exec", &container);
    wants.put(&mut path);
    for word in &args.command {
        // Writing to a String can't fail.
        write!(path, "&command={}", encoded(word)).ok();
    }
    let stream = found.client.upgrade("/exec", &path, PROTOCOL).await?;
    wants.run(stream).await
}

pub(super) async fn attach(args: AttachArgs) -> Result<ExitCode, SessionError> {
    let Some(found) = find(&args.agent, &args.pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let container = container(&found.view, args.container.as_deref())?;
    // As its specification says: the runtime has made the terminal, or has not.
    let own = containers(&found.view).find(|one| one.name == container);
    let tty = own.and_then(|one| one.tty) == Some(true);
    let wants = Wants { stdin: args.stdin, tty };
    let mut path = found.path("attach", &container);
    wants.put(&mut path);
    let stream = found.client.upgrade("/attach", &path, PROTOCOL).await?;
    wants.run(stream).await
}

impl Found {
    fn path(&self, what: &str, container: &str) -> String {
        let key = &self.view.key;
        format!("/{what}/{}/{}/{container}?output=1", key.namespace, key.name)
    }
}

fn containers(view: &PodView) -> impl Iterator<Item = &k8s::Container> {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    spec.into_iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// The container that is meant: the named one, or the pod's first.
fn container(view: &PodView, named: Option<&str>) -> Result<String, SessionError> {
    let names: Vec<&str> = containers(view).map(|container| &*container.name).collect();
    match named {
        None => {
            let first = names.first().map(|name| (*name).to_owned());
            first.ok_or_else(|| SessionError::NothingRuns(view.key.clone()))
        }
        Some(name) if names.contains(&name) => Ok(name.to_owned()),
        Some(name) => Err(SessionError::NoContainer {
            container: name.to_owned(),
            pod: view.key.clone(),
            known: names.join(", "),
        }),
    }
}

/// A value in a query, percent-encoded.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").ok();
        }
        encoded
    })
}

/// Which streams a session has besides standard output.
#[derive(Clone, Copy, Debug)]
struct Wants {
    stdin: bool,
    tty: bool,
}

/// The streams of a session.
struct Streams {
    error: StreamId,
    stdin: Option<StreamId>,
    stdout: StreamId,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

impl Wants {
    fn put(self, path: &mut String) {
        if self.stdin {
            path.push_str("&input=1");
        }
        path.push_str(if self.tty { "&tty=1" } else { "&error=1" });
    }

    /// Carries standard input and output until the session ends.
    async fn run(self, stream: Upgraded) -> Result<ExitCode, SessionError> {
        let mut frames = Vec::new();
        let mut sender = Sender::default();
        let mut begin = |kind: &str| {
            let (id, frame) = sender.begin(&[("streamtype", kind)]);
            frames.extend(frame);
            id
        };
        let streams = Streams {
            error: begin("error"),
            stdin: self.stdin.then(|| begin("stdin")),
            stdout: begin("stdout"),
            stderr: (!self.tty).then(|| begin("stderr")),
            resize: self.tty.then(|| begin("resize")),
        };
        let raw = if self.tty && self.stdin { RawMode::enter()? } else { None };
        let (from, mut to) = split(stream);
        let (queue, mut queued) = mpsc::channel::<Vec<u8>>(QUEUE);
        let sending = async {
            to.write_all(&frames).await?;
            while let Some(frame) = queued.recv().await {
                to.write_all(&frame).await?;
            }
            pending::<io::Result<ExitCode>>().await
        };
        let input = carry_input(streams.stdin, queue.clone());
        let sizes = carry_sizes(streams.resize, queue.clone());
        let output = carry_output(Frames::new(from), &streams, queue);
        // Cancel-safe: the session is over when one of them ends.
        let ended = tokio::select! {
            ended = output => ended,
            broke = sending => broke.map_err(SessionError::Broke),
            failed = input => Err(failed.into()),
            failed = sizes => Err(failed.into()),
        };
        drop(raw);
        ended
    }
}

/// Sends standard input until its end. It returns only with an error.
async fn carry_input(to: Option<StreamId>, queue: mpsc::Sender<Vec<u8>>) -> io::Error {
    let Some(to) = to else { return pending().await };
    let (read, mut input) = mpsc::channel::<io::Result<Vec<u8>>>(1);
    // Reading blocks, also when the session is over. The thread ends with this process.
    thread::spawn(move || {
        let mut buffer = vec![0; INPUT];
        loop {
            let part = io::stdin().read(&mut buffer).map(|length| buffer[..length].to_vec());
            let ended = part.as_ref().map_or(true, Vec::is_empty);
            if read.blocking_send(part).is_err() || ended {
                return;
            }
        }
    });
    while let Some(part) = input.recv().await {
        match part {
            Ok(part) => {
                let last = part.is_empty();
                if queue.send(data(to, &part, last)).await.is_err() || last {
                    break;
                }
            }
            Err(error) => return error,
        }
    }
    pending().await
}

/// Sends the size of the terminal whenever it changes. It returns only with an error.
async fn carry_sizes(to: Option<StreamId>, queue: mpsc::Sender<Vec<u8>>) -> io::Error {
    let Some(to) = to else { return pending().await };
    let mut changes = match signal(SignalKind::window_change()) {
        Ok(changes) => changes,
        Err(error) => return error,
    };
    loop {
        if let Some(size) = terminal::size()
            && queue.send(data(to, &size, false)).await.is_err()
        {
            return pending().await;
        }
        if changes.recv().await.is_none() {
            return pending().await;
        }
    }
}

/// Prints what comes until the session ends, and says how it has ended.
async fn carry_output(
    mut frames: Frames<impl tokio::io::AsyncRead + Unpin>,
    streams: &Streams,
    queue: mpsc::Sender<Vec<u8>>,
) -> Result<ExitCode, SessionError> {
    let mut told = Vec::new();
    let mut open: Vec<StreamId> =
        [Some(streams.error), Some(streams.stdout), streams.stderr].into_iter().flatten().collect();
    while !open.is_empty() {
        match frames.next().await.map_err(SessionError::Broke)? {
            Some(Frame::Data { id, bytes, last }) => {
                if id == streams.error {
                    told.extend_from_slice(&bytes);
                } else if id == streams.stdout {
                    write_to(io::stdout(), &bytes)?;
                } else if Some(id) == streams.stderr {
                    write_to(io::stderr(), &bytes)?;
                }
                if last {
                    open.retain(|one| *one != id);
                }
            }
            Some(Frame::Reset(id)) => open.retain(|one| *one != id),
            // Whoever is busy with other frames answers a later one.
            Some(Frame::Ping(frame)) => drop(queue.try_send(frame)),
            Some(Frame::GoAway | Frame::Other) => {}
            None => break,
        }
    }
    outcome(&told)
}

fn write_to(mut to: impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// How a command has ended, by what came on the error stream: a `Status`.
fn outcome(told: &[u8]) -> Result<ExitCode, SessionError> {
    if told.is_empty() {
        return Err(SessionError::Unfinished);
    }
    let Ok(status) = from_json::<Status>(told) else {
        return Err(SessionError::Failed(String::from_utf8_lossy(told).into_owned()));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    if status.reason.as_deref() == Some("NonZeroExitCode") {
        let mut causes = status.details.iter().flat_map(|d| d.causes.iter().flatten());
        let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message.as_deref()?.parse::<u8>().ok());
        return Ok(ExitCode::from(code.unwrap_or(EXIT_FAILURE)));
    }
    Err(SessionError::Failed(status.message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn words_are_percent_encoded() {
        assert_eq!(encoded("ls-l_~."), "ls-l_~.");
        assert_eq!(encoded("a b&c=ü\n"), "a%20b%26c%3D%C3%BC%0A");
    }

    #[test]
    fn a_status_is_an_exit_code() {
        let code = |text: &str| outcome(text.as_bytes()).map(|code| format!("{code:?}"));
        let exit = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(r#"{"status":"Success"}"#).unwrap(), exit(0));
        let seven = r#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit 7",
            "details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(code(seven).unwrap(), exit(7));
        let failed = code(r#"{"status":"Failure","reason":"InternalError","message":"no shell"}"#);
        assert_eq!(failed.unwrap_err().to_string(), "no shell");
        assert_eq!(code("plain words").unwrap_err().to_string(), "plain words");
        assert!(matches!(outcome(b""), Err(SessionError::Unfinished)));
    }
}
