//! A session that runs: frames are carried between the agent and the ends on this side. `exec` and
//! `attach` use the input and output of this process; `cp` uses channels to a thread that reads or
//! writes an archive.

use super::{
    SessionError, interrupted,
    spdy::{Frame, Frames, Sender, StreamId, data},
    terminal::{self, RawMode},
};
use crate::{
    cli::{EXIT_FAILURE, complain},
    model::from_json,
    serve::Upgraded,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use std::{
    future::pending,
    io::{self, Read as _},
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, split},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

/// Frames that wait to be sent.
const QUEUE: usize = 4;
/// Bytes of standard input that are sent at a time.
pub(super) const INPUT: usize = 16 << 10;
/// How long frames are still received when none can be sent any more.
const LAST_FRAMES: Duration = Duration::from_secs(10);
/// The longest line of standard error that is shown as one, in bytes.
const LINE: usize = 4 << 10;

/// Where the standard input of a session comes from.
pub(super) enum InputEnd {
    None,
    /// This process' own.
    Own,
    /// From a thread. An empty part is the end. A channel that closes before it ends the session
    /// with [`SessionError::Closed`].
    Parts(mpsc::Receiver<io::Result<Vec<u8>>>),
}

/// Where the output of a session goes.
pub(super) enum OutputEnd {
    /// As it is to this process' own standard output and standard error.
    Own,
    /// Standard output goes to a thread, if one wants it; a channel that it has closed ends the
    /// session with [`SessionError::Closed`].
    Parts { stdout: Option<mpsc::Sender<Vec<u8>>>, stderr: Messages },
}

/// The standard error of a command whose text nobody asked for.
pub(super) enum Messages {
    Dropped,
    /// Shown line by line, with control characters escaped. Holds the beginning of a line.
    Shown(Vec<u8>),
}

/// The ends of a session on this side.
pub(super) struct Ends {
    pub(super) input: InputEnd,
    pub(super) output: OutputEnd,
    /// The command has a terminal. Its standard error is then its standard output.
    pub(super) tty: bool,
}

/// The streams of a session.
struct SessionStreams {
    error: StreamId,
    stdin: Option<StreamId>,
    stdout: StreamId,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

impl Ends {
    /// Asks for the streams in the query of a request.
    pub(super) fn put(&self, path: &mut String) {
        if self.has_input() {
            path.push_str("&input=1");
        }
        path.push_str(if self.tty { "&tty=1" } else { "&error=1" });
    }

    fn has_input(&self) -> bool {
        match self.input {
            InputEnd::None => false,
            InputEnd::Own | InputEnd::Parts(_) => true,
        }
    }

    /// Carries standard input and output until the session ends, and gives the command's exit code.
    pub(super) async fn run(self, stream: Upgraded) -> Result<u8, SessionError> {
        let mut frames = Vec::new();
        let mut sender = Sender::default();
        let mut begin = |kind: &str| {
            let (id, frame) = sender.begin(&[("streamtype", kind)]);
            frames.extend(frame);
            id
        };
        let streams = SessionStreams {
            error: begin("error"),
            stdin: self.has_input().then(|| begin("stdin")),
            stdout: begin("stdout"),
            stderr: (!self.tty).then(|| begin("stderr")),
            resize: self.tty.then(|| begin("resize")),
        };
        let raw = if self.tty && self.has_input() { RawMode::enter()? } else { None };
        let told_to_end = async {
            // A session without a terminal has nothing to put right.
            if raw.is_none() {
                pending::<()>().await;
            }
            interrupted().await.map_or_else(SessionError::from, |()| SessionError::Interrupted)
        };
        let (from, mut to) = split(stream);
        let (queue, mut queued) = mpsc::channel::<Vec<u8>>(QUEUE);
        let sending = async {
            let error = send(&mut to, &frames, &mut queued).await;
            // The runtime no longer reads. It may have sent why.
            sleep(LAST_FRAMES).await;
            SessionError::Broke(error)
        };
        let input = carry_input(self.input, streams.stdin, queue.clone());
        let sizes = carry_sizes(streams.resize, queue.clone());
        let output = carry_output(Frames::new(from), &streams, queue, self.output);
        // Cancel-safe: the session is over when one of them ends.
        let ended = tokio::select! {
            ended = output => ended,
            broke = sending => Err(broke),
            failed = input => Err(failed),
            failed = sizes => Err(failed.into()),
            told = told_to_end => Err(told),
        };
        drop(raw);
        ended
    }
}

/// Sends the first frames and those in the queue. It returns only with an error.
async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    first: &[u8],
    queued: &mut mpsc::Receiver<Vec<u8>>,
) -> io::Error {
    if let Err(error) = to.write_all(first).await {
        return error;
    }
    while let Some(frame) = queued.recv().await {
        if let Err(error) = to.write_all(&frame).await {
            return error;
        }
    }
    pending().await
}

/// Sends standard input until its end. It returns only with an error.
async fn carry_input(
    from: InputEnd,
    to: Option<StreamId>,
    queue: mpsc::Sender<Vec<u8>>,
) -> SessionError {
    let mut parts = match from {
        InputEnd::None => return pending().await,
        InputEnd::Own => read_own_input(),
        InputEnd::Parts(parts) => parts,
    };
    let Some(to) = to else { return pending().await };
    loop {
        match parts.recv().await {
            Some(Ok(part)) => {
                let last = part.is_empty();
                if queue.send(data(to, &part, last)).await.is_err() || last {
                    return pending().await;
                }
            }
            Some(Err(error)) => return error.into(),
            None => return SessionError::Closed,
        }
    }
}

/// Reads standard input on a thread: reading blocks, also when the session is over. The thread ends
/// with this process.
fn read_own_input() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (read, parts) = mpsc::channel(1);
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
    parts
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

/// Passes on what comes until the session ends, and gives the command's exit code.
async fn carry_output(
    mut frames: Frames<impl AsyncRead + Unpin>,
    streams: &SessionStreams,
    queue: mpsc::Sender<Vec<u8>>,
    mut output: OutputEnd,
) -> Result<u8, SessionError> {
    let mut told = Vec::new();
    let mut open: Vec<StreamId> =
        [Some(streams.error), Some(streams.stdout), streams.stderr].into_iter().flatten().collect();
    while !open.is_empty() {
        let frame = match frames.next().await {
            // The runtime has ended the session without reading all that was sent.
            Err(_) if !told.is_empty() => None,
            frame => frame.map_err(SessionError::Broke)?,
        };
        match frame {
            Some(Frame::Data { id, bytes, last }) => {
                if id == streams.error {
                    told.extend_from_slice(&bytes);
                } else if id == streams.stdout {
                    output.put_stdout(bytes).await?;
                } else if Some(id) == streams.stderr {
                    output.put_stderr(&bytes)?;
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
    output.end();
    outcome(&told)
}

impl OutputEnd {
    async fn put_stdout(&mut self, bytes: Vec<u8>) -> Result<(), SessionError> {
        match self {
            Self::Own => Ok(write_to(io::stdout(), &bytes)?),
            Self::Parts { stdout: Some(to), .. } => {
                to.send(bytes).await.map_err(|_| SessionError::Closed)
            }
            Self::Parts { stdout: None, .. } => Ok(()),
        }
    }

    fn put_stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Own => write_to(io::stderr(), bytes),
            Self::Parts { stderr, .. } => {
                stderr.put(bytes);
                Ok(())
            }
        }
    }

    /// Shows the last line of standard error when it has no end.
    fn end(&mut self) {
        match self {
            Self::Own => {}
            Self::Parts { stderr, .. } => stderr.put(b"\n"),
        }
    }
}

impl Messages {
    fn put(&mut self, bytes: &[u8]) {
        let Self::Shown(line) = self else { return };
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if line.ends_with(b"\n") || line.len() >= LINE {
                let text = String::from_utf8_lossy(line.trim_ascii());
                if !text.is_empty() {
                    complain(&text);
                }
                line.clear();
            }
        }
    }
}

fn write_to(mut to: impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// How a command has ended, by what came on the error stream: a `Status`.
fn outcome(told: &[u8]) -> Result<u8, SessionError> {
    if told.is_empty() {
        return Err(SessionError::Unfinished);
    }
    let Ok(status) = from_json::<Status>(told) else {
        return Err(SessionError::Failed(String::from_utf8_lossy(told).into_owned()));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    if status.reason.as_deref() == Some("NonZeroExitCode") {
        let mut causes = status.details.iter().flat_map(|d| d.causes.iter().flatten());
        let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message.as_deref()?.parse::<u8>().ok());
        return Ok(code.unwrap_or(EXIT_FAILURE));
    }
    Err(SessionError::Failed(status.message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_status_is_an_exit_code() {
        let code = |text: &str| outcome(text.as_bytes());
        assert_eq!(code(r#"{"status":"Success"}"#).unwrap(), 0);
        let seven = r#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit 7",
            "details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(code(seven).unwrap(), 7);
        let failed = code(r#"{"status":"Failure","reason":"InternalError","message":"no shell"}"#);
        assert_eq!(failed.unwrap_err().to_string(), "no shell");
        assert_eq!(code("plain words").unwrap_err().to_string(), "plain words");
        assert!(matches!(outcome(b""), Err(SessionError::Unfinished)));
    }
}
