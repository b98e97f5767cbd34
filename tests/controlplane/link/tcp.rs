//! Bytes between two ends, and what a network does to them.

use super::Place;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// What is done to connections.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Counts changes.
    serial: u64,
    refusing: bool,
    silent: bool,
    latency: Duration,
    /// Counts cuts.
    cuts: u64,
}

/// Bytes carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// To the server.
    pub sent: u64,
    /// From it.
    pub received: u64,
}

#[derive(Default)]
struct Carried {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
}

/// A TCP proxy; dropping it cuts everything.
pub struct Tcp {
    state: Arc<watch::Sender<State>>,
    applied: watch::Receiver<u64>,
    carried: Arc<Carried>,
    task: AbortHandle,
}

impl Tcp {
    /// Listens at `place` for connections to `server`.
    pub fn start(place: Place, server: SocketAddr) -> Self {
        let (state, seen) = watch::channel(State { serial: 1, ..State::default() });
        let (done, mut applied) = watch::channel(0);
        let carried = Arc::new(Carried::default());
        let proxy = Proxy { place, server, carried: Arc::clone(&carried), applied: done };
        let runtime = crate::support::tokio_runtime();
        let task = runtime.spawn(proxy.run(seen)).abort_handle();
        runtime.block_on(applied.wait_for(|serial| *serial > 0)).expect("the proxy listens");
        Self { state: Arc::new(state), applied, carried, task }
    }

    /// The server's process is gone: connections end, new ones are refused. Or it is back.
    pub fn refuse(&self, refuse: bool) {
        self.change(|state| state.refusing = refuse);
    }

    /// Connections are taken, also new ones, and nothing is carried any more. Or it goes on where
    /// it stopped.
    pub fn silence(&self, silent: bool) {
        self.change(|state| state.silent = silent);
    }

    /// Whatever is sent arrives this much later.
    pub fn delay(&self, latency: Duration) {
        self.change(|state| state.latency = latency);
    }

    /// Ends all connections; new ones are taken.
    pub fn cut(&self) {
        self.change(|state| state.cuts += 1);
    }

    /// Ends all of that; connections stay.
    pub fn heal(&self) {
        self.change(|state| {
            *state = State { serial: state.serial, cuts: state.cuts, ..State::default() };
        });
    }

    /// Refuses and takes connections by turns, each this long, beginning with refusing, until what
    /// this gives is dropped.
    #[must_use]
    pub fn flap(&self, every: Duration) -> Flapping {
        let state = Arc::clone(&self.state);
        let task = crate::support::tokio_runtime().spawn(async move {
            loop {
                state.send_modify(|state| {
                    state.refusing = !state.refusing;
                    state.serial += 1;
                });
                tokio::time::sleep(every).await;
            }
        });
        Flapping { task: task.abort_handle(), state: Arc::clone(&self.state) }
    }

    /// Bytes carried so far, TLS and all.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            sent: self.carried.sent.load(Ordering::Relaxed),
            received: self.carried.received.load(Ordering::Relaxed),
        }
    }

    /// Connections taken so far.
    pub fn connections(&self) -> u64 {
        self.carried.connections.load(Ordering::Relaxed)
    }

    /// Done when it is in force.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut serial = 0;
        self.state.send_modify(|state| {
            change(state);
            state.serial += 1;
            serial = state.serial;
        });
        let mut applied = self.applied.clone();
        let waited = crate::support::block_on(applied.wait_for(|done| *done >= serial)).is_ok();
        assert!(waited, "the proxy has ended");
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.task.abort();
        // An abort takes effect when the task would go on; it has the only sender.
        _ = crate::support::block_on(self.applied.wait_for(|_| false));
    }
}

/// A link that comes and goes; it stays when this is dropped.
pub struct Flapping {
    task: AbortHandle,
    state: Arc<watch::Sender<State>>,
}

impl Drop for Flapping {
    fn drop(&mut self) {
        self.task.abort();
        self.state.send_modify(|state| {
            state.refusing = false;
            state.serial += 1;
        });
    }
}

struct Proxy {
    place: Place,
    server: SocketAddr,
    carried: Arc<Carried>,
    /// Dropped last: whoever waits for the end finds the place, too, as it was before.
    applied: watch::Sender<u64>,
}

impl Proxy {
    async fn run(self, mut state: watch::Receiver<State>) {
        let mut listener = None;
        let mut connections = JoinSet::new();
        let mut cuts = 0;
        loop {
            let now = *state.borrow_and_update();
            if now.refusing {
                listener = None;
            } else if listener.is_none() {
                listener = Some(TcpListener::from_std(self.place.listen().unwrap()).unwrap());
            }
            if now.refusing || now.cuts != cuts {
                connections.shutdown().await;
                cuts = now.cuts;
            }
            self.applied.send_replace(now.serial);
            tokio::select! {
                changed = state.changed() => if changed.is_err() {
                    return;
                },
                stream = next(listener.as_ref()) => if let Ok(stream) = stream {
                    self.carried.connections.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(carry(stream, self.server, state.clone(), Arc::clone(&self.carried)));
                },
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> std::io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// One connection. A server that isn't there ends it: behind a proxy nobody sees more of that.
async fn carry(
    client: TcpStream,
    server: SocketAddr,
    state: watch::Receiver<State>,
    carried: Arc<Carried>,
) {
    if heard(&mut state.clone()).await.is_none() {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    for stream in [&client, &server] {
        if stream.set_nodelay(true).is_err() {
            return;
        }
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pump(from_client, to_server, state.clone(), &carried.sent),
        pump(from_server, to_client, state, &carried.received),
    );
}

/// Waits until bytes are carried; gives how late.
async fn heard(state: &mut watch::Receiver<State>) -> Option<Duration> {
    state.wait_for(|state| !state.silent).await.map(|state| state.latency).ok()
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    count: &AtomicU64,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let Some(latency) = heard(&mut state).await else {
            return;
        };
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            // Gone already is fine.
            _ = to.shutdown().await;
            return;
        }
        count.fetch_add(read as u64, Ordering::Relaxed);
    }
}
