//! A logind of the test's own behind a bus of its own. A lock is one end of a pipe, so that the
//! test sees when it is released. Shared with the unit tests of `shutdown`; everything must
//! run on one thread.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a test fails"
)]

use nix::fcntl::OFlag;
use std::{
    fs,
    io::Read as _,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};
use tokio_stream::StreamExt as _;
use zbus::{Connection, Guid, Message, MessageStream, Variant, connection::Builder, message::Type};

pub const LOGIND: &str = "org.freedesktop.login1";
/// What the bus calls logind's connection.
pub const OWNER: &str = ":1.3";

/// What a test may set.
pub struct State {
    /// What is answered in its place.
    pub away: Option<&'static str>,
    /// How long logind, not the bus, takes for each answer.
    pub answers_after: Duration,
    /// `PreparingForShutdown`
    pub preparing: bool,
    /// `InhibitDelayMaxUSec`
    pub delay: Duration,
    /// There is no systemd that could make it read its configuration again.
    pub without_systemd: bool,
    /// The file that can change it.
    pub drop_in: Option<PathBuf>,
    calls: Vec<String>,
    /// The other end of every lock that was given.
    locks: Vec<fs::File>,
    connections: Vec<Connection>,
    accepted: usize,
}

/// The fake, on one thread with everything that it serves.
pub struct FakeLogind {
    state: Arc<Mutex<State>>,
    bus: PathBuf,
    served: JoinSet<()>,
}

impl FakeLogind {
    /// Listens on `bus`; goes by the drop-in when it is told to read its configuration.
    pub fn start(bus: &Path, drop_in: &Path) -> Self {
        let state = State {
            away: None,
            answers_after: Duration::ZERO,
            preparing: false,
            delay: Duration::from_secs(5),
            without_systemd: false,
            drop_in: Some(drop_in.to_owned()),
            calls: Vec::new(),
            locks: Vec::new(),
            connections: Vec::new(),
            accepted: 0,
        };
        let mut fake = Self {
            state: Arc::new(Mutex::new(state)),
            bus: bus.to_owned(),
            served: JoinSet::new(),
        };
        fake.listen();
        fake
    }

    fn listen(&mut self) {
        let listener = UnixListener::bind(&self.bus).unwrap();
        let state = Arc::clone(&self.state);
        self.served.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&state)));
            }
        });
    }

    /// The bus dies with everything that is connected to it, and comes back.
    pub async fn restart_bus(&mut self) {
        self.served.shutdown().await;
        self.state.lock().unwrap().connections.clear();
        fs::remove_file(&self.bus).unwrap();
        self.listen();
    }

    /// Where it listens.
    pub fn bus(&self) -> &Path {
        &self.bus
    }

    /// What it was asked to do, one line each.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    /// How many connections were ever made.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().accepted
    }

    /// Changes what it is.
    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// How many locks were given, and how many of them are held.
    pub fn locks(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        let held = state.locks.iter().filter(|lock| {
            // Nothing to read, and somebody who could write.
            let mut lock: &fs::File = lock;
            matches!(lock.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
        let held = held.count();
        (state.locks.len(), held)
    }

    /// Sends a signal to everybody.
    pub async fn signal<B>(&self, sender: &str, interface: &str, member: &str, body: &B)
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let connections = self.state.lock().unwrap().connections.clone();
        for connection in connections {
            let message = Message::signal("/org/freedesktop/login1", interface, member);
            let message = message.sender(sender).build(body).unwrap();
            // Whoever has gone hears nothing.
            let _gone = connection.send(&message).await;
        }
    }

    /// Says that a shutdown is about to begin, or is called off.
    pub async fn prepare_for_shutdown(&self, down: bool) {
        self.set(|state| state.preparing = down);
        self.signal(OWNER, "org.freedesktop.login1.Manager", "PrepareForShutdown", &down).await;
    }
}

async fn serve(stream: UnixStream, state: Arc<Mutex<State>>) {
    let builder = Builder::unix_stream(stream.into_std().unwrap());
    let connection = builder.server(Guid::generate()).p2p().build().await.unwrap();
    // On one thread nothing is read before the stream is there.
    let mut messages = MessageStream::from(&connection);
    {
        let mut state = state.lock().unwrap();
        state.accepted += 1;
        state.connections.push(connection.clone());
    }
    while let Some(Ok(message)) = messages.next().await {
        if message.message_type() == Type::MethodCall {
            let to = message.header().destination().map(ToString::to_string);
            let delay = state.lock().unwrap().answers_after;
            if to.as_deref() == Some(LOGIND) && !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let answer = answer(&message, &state);
            connection.send(&answer).await.unwrap();
        }
    }
}

fn answer(message: &Message, state: &Mutex<State>) -> Message {
    let header = message.header();
    let reply = || Message::method_return(&header).sender(OWNER);
    let body = message.body();
    let mut state = state.lock().unwrap();
    let method = header.member().unwrap().as_str();
    let to_logind = header.destination().is_some_and(|to| to.as_str() == LOGIND);
    let away = state.away.filter(|_| to_logind || method == "GetNameOwner");
    let no_systemd = state.without_systemd && method == "KillUnit";
    let unknown = no_systemd.then_some("org.freedesktop.DBus.Error.ServiceUnknown");
    if let Some(error) = away.or(unknown) {
        let refusal = Message::error(&header, error).sender("org.freedesktop.DBus");
        return refusal.build(&"nobody").unwrap();
    }
    match method {
        "Hello" => reply().build(&":1.7"),
        "AddMatch" => reply().build(&()),
        "GetNameOwner" => reply().build(&OWNER),
        "Get" => {
            let (_, name): (String, String) = body.deserialize().unwrap();
            let micros = u64::try_from(state.delay.as_micros()).unwrap();
            match name.as_str() {
                "InhibitDelayMaxUSec" => reply().build(&Variant::from(micros)),
                "PreparingForShutdown" => reply().build(&Variant::from(state.preparing)),
                other => panic!("logind has no {other}"),
            }
        }
        "KillUnit" => {
            let (unit, who, signal): (String, String, i32) = body.deserialize().unwrap();
            state.calls.push(format!("KillUnit {unit} {who} {signal}"));
            let text = state.drop_in.as_ref().and_then(|path| fs::read_to_string(path).ok());
            let text = text.unwrap_or_default();
            let seconds = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
            if let Some(seconds) = seconds {
                state.delay = Duration::from_secs(seconds.parse().unwrap());
            }
            reply().build(&())
        }
        "Inhibit" => {
            let (what, who, _, mode): (String, String, String, String) =
                body.deserialize().unwrap();
            state.calls.push(format!("Inhibit {what} {who} {mode}"));
            let (read, write) = nix::unistd::pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).unwrap();
            state.locks.push(fs::File::from(read));
            let write: OwnedFd = write;
            reply().build(&zbus::OwnedFd::from(write))
        }
        other => panic!("nobody has {other}"),
    }
    .unwrap()
}
