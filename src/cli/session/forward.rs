//! `nodelet port-forward`: connections to ports of this machine are carried to ports of a pod. Each
//! connection is a session of its own.

use super::{
    EXIT_NO_AGENT, Found, SessionError, find,
    spdy::{Frame, Frames, Sender, data},
};
use crate::{
    cli::{
        args::{PortForwardArgs, UsageError},
        complain, print,
    },
    model::error_chain,
    serve::Upgraded,
};
use std::{future::pending, io, process::ExitCode, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, split},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::sleep,
};

const PROTOCOL: &str = "portforward.k8s.io";
const BUFFER: usize = 16 << 10;
/// Before the next connection is taken when one could not be.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Frames that wait to be sent.
const QUEUE: usize = 4;

/// A port of this machine (0: any that is free) and one of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forward {
    local: u16,
    remote: u16,
}

impl Forward {
    /// `8080:80`, `80` or `:80`
    fn parse(text: &str) -> Result<Self, UsageError> {
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
        let forward = match text.split_once(':') {
            None => port(text).map(|port| Self { local: port, remote: port }),
            Some(("", remote)) => port(remote).map(|remote| Self { local: 0, remote }),
            Some((local, remote)) => {
                port(local).zip(port(remote)).map(|(local, remote)| Self { local, remote })
            }
        };
        forward.ok_or_else(|| UsageError::NotAPort(text.to_owned()))
    }
}

pub(in crate::cli) async fn port_forward(args: PortForwardArgs) -> Result<ExitCode, SessionError> {
    let forwards =
        args.ports.iter().map(|text| Forward::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let Some(found) = find(&args.agent, &args.pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let mut listening = JoinSet::new();
    let found = std::sync::Arc::new(found);
    for forward in forwards {
        let address = format!("{}:{}", args.address, forward.local);
        let listened = |source| SessionError::Listen { address: address.clone(), source };
        let listener = TcpListener::bind((args.address, forward.local)).await.map_err(listened)?;
        let local = listener.local_addr().map_err(listened)?;
        print(&format!("Forwarding from {local} -> {}\n", forward.remote))?;
        listening.spawn(listen(listener, std::sync::Arc::clone(&found), forward.remote));
    }
    // Until the first one fails, or somebody ends the command.
    match listening.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(_)) | None => Ok(ExitCode::SUCCESS),
    }
}

async fn listen(
    listener: TcpListener,
    found: std::sync::Arc<Found>,
    port: u16,
) -> Result<ExitCode, SessionError> {
    let mut connections = JoinSet::new();
    loop {
        // Cancel-safe: accept and join_next lose nothing.
        let (connection, _) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Too many files are open, most often. Those that are open go on.
                Err(error) => {
                    complain(&format!("nodelet: can't take another connection to port {port}: {error}"));
                    sleep(AFTER_FAILURE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let found = std::sync::Arc::clone(&found);
        connections.spawn(async move {
            if let Err(error) = forward(connection, &found, port).await {
                let error = error_chain(&error);
                complain(&format!("nodelet: a connection to port {port} failed: {error}"));
            }
        });
    }
}

async fn forward(connection: TcpStream, found: &Found, port: u16) -> Result<(), SessionError> {
    let key = &found.view.key;
    let path = format!("/portForward/{}/{}?port={port}", key.namespace, key.name);
    let stream = found.client.upgrade("/portForward", &path, PROTOCOL).await?;
    carry(connection, stream, port).await
}

/// Carries bytes both ways until the pod's side is done.
async fn carry(connection: TcpStream, stream: Upgraded, port: u16) -> Result<(), SessionError> {
    let port = port.to_string();
    let mut sender = Sender::default();
    let headers = |kind| [("streamtype", kind), ("port", &*port), ("requestid", "0")];
    let (errors, begin_errors) = sender.begin(&headers("error"));
    let (pod, begin_data) = sender.begin(&headers("data"));
    let ((from, mut to), (mut local_in, mut local_out)) = (split(stream), split(connection));
    let (queue, mut queued) = mpsc::channel::<Vec<u8>>(QUEUE);
    let sending = async {
        to.write_all(&begin_errors).await?;
        // Nothing is told on it.
        to.write_all(&data(errors, b"", true)).await?;
        to.write_all(&begin_data).await?;
        while let Some(frame) = queued.recv().await {
            to.write_all(&frame).await?;
        }
        pending::<io::Result<()>>().await
    };
    let of_local = queue.clone();
    let upwards = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = local_in.read(&mut buffer).await.map_err(SessionError::Local)?;
            let frame = data(pod, &buffer[..length], length == 0);
            if of_local.send(frame).await.is_err() || length == 0 {
                return pending().await;
            }
        }
    };
    let mut frames = Frames::new(from);
    let downwards = async {
        let mut told = Vec::new();
        let mut open = vec![errors, pod];
        while !open.is_empty() {
            match frames.next().await.map_err(SessionError::Broke)? {
                Some(Frame::Data { id, bytes, last }) => {
                    if id == pod {
                        local_out.write_all(&bytes).await.map_err(SessionError::Local)?;
                    } else if id == errors {
                        told.extend_from_slice(&bytes);
                    }
                    if last {
                        open.retain(|one| *one != id);
                    }
                }
                Some(Frame::Reset(id)) => open.retain(|one| *one != id),
                Some(Frame::Ping(frame)) => drop(queue.try_send(frame)),
                Some(Frame::GoAway | Frame::Other) => {}
                None => break,
            }
        }
        if told.is_empty() {
            return local_out.shutdown().await.map_err(SessionError::Local);
        }
        Err(SessionError::Failed(String::from_utf8_lossy(&told).into_owned()))
    };
    // Cancel-safe: the connection is over when one of them ends.
    let ended = tokio::select! {
        ended = downwards => ended,
        broke = sending => broke.map_err(SessionError::Broke),
        failed = upwards => failed,
    };
    match ended {
        Err(SessionError::Local(error)) if is_closed(&error) => Ok(()),
        ended => ended,
    }
}

/// Whether a client has closed its connection before it had read everything: no failure.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    [BrokenPipe, ConnectionReset, NotConnected].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn ports_are_written_as_for_kubectl() {
        let of = |text| Forward::parse(text).map(|forward| (forward.local, forward.remote)).ok();
        assert_eq!(of("80"), Some((80, 80)));
        assert_eq!(of("8080:80"), Some((8080, 80)));
        assert_eq!(of(":80"), Some((0, 80)));
        for wrong in ["", "http", "0", "80:", "70000", "1:2:3", "8080:0"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
