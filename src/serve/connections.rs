//! Accepts connections and serves a router on them, under one policy for each listener.
//!
//! ```text
//!  accepted ──► waits for a request ──head complete──► answers ──► closed
//!                    │                                    │
//!                    ├── head deadline ───────────────────┤
//!                    └── dropped for a newer connection ──┴── lifetime
//! ```
//!
//! A connection carries one request, or several where the policy keeps it, and over HTTP/2 several
//! at a time ([`http2`]). A new connection always gets in: when all places are taken, one is dropped
//! for it, the oldest of those with the least [`Standing`]. A client that sends nothing, sends
//! slowly, or waits for the guard's decision therefore keeps its place only as long as no other
//! client needs it. An answer with a [`Pace`] has no end of its own. It ends when the client reads
//! nothing for a whole lifetime although there is something to read. A connection that is upgraded
//! leaves its place: it is counted by whoever carries its streams.
//!
//! The accept loop yields whenever it has accepted a quarter of its places. A new connection reads
//! what its client has sent before it can be dropped, and a flood of connections leaves every other
//! task its turn.

use super::{
    follow::Pace,
    http2,
    requests::{ConnectionRequests, PlacedBody, Standing},
};
use crate::keep_alive::keep_alive;
use axum::Router;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use nix::sys::socket::{setsockopt, sockopt};
use rustls_pki_types::CertificateDer;
use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener},
    task::{AbortHandle, Id, JoinError, JoinSet, yield_now},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// The longest head of a request from a client that may be anybody.
pub(super) const HEAD_BYTES: usize = 16 * 1024;
/// How long nothing is accepted after accepting has failed, which is when the process is out of
/// file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a port that is taken is left alone.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// Connections that may wait to be accepted. When more wait the kernel drops them, and a client
/// tries again only after a second. The kernel has a limit of its own, `net.core.somaxconn`.
const WAITING: u32 = 4096;

/// What the clients of one listener are allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionPolicy {
    /// The most connections at a time.
    pub(super) places: usize,
    /// How long a client may take to send the head of its request.
    pub(super) head: Duration,
    /// The most bytes that are read ahead. A request whose head is longer is refused.
    pub(super) head_bytes: usize,
    /// How long a connection may last, from its acceptance until the client has read the answer. An
    /// answer that goes on may last longer while the client reads it. Where connections are kept,
    /// it is the longest time that one answer may take.
    pub(super) lifetime: Duration,
    /// How long a connection is kept for a further request, and how long the head of a request may
    /// then take; `None`: a connection carries one request.
    pub(super) kept: Option<Duration>,
}

/// The certificates that a client has shown, its own first. It has the key of that one; nothing
/// else is known of them.
#[derive(Debug)]
pub(super) struct Peer(pub(super) Vec<CertificateDer<'static>>);

/// What HTTP is spoken on. One type for all listeners: the code of an HTTP server is large.
pub(super) type Io = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// The version of HTTP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    One,
    Two,
}

/// A connection on which HTTP is spoken.
pub(super) struct OpenedConnection {
    pub(super) stream: Io,
    pub(super) peer: Peer,
    pub(super) version: HttpVersion,
}

/// Makes of an accepted connection what HTTP is spoken on.
pub(super) trait Open: Clone + Send + 'static {
    /// `None`: the client is sent away.
    fn open(&self, stream: Io) -> impl Future<Output = Option<OpenedConnection>> + Send;
}

/// HTTP on the connection itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain;

impl Open for Plain {
    async fn open(&self, stream: Io) -> Option<OpenedConnection> {
        Some(OpenedConnection { stream, peer: Peer(Vec::new()), version: HttpVersion::One })
    }
}

/// Something that connections come from.
pub(super) trait Accept {
    async fn connection(&self) -> io::Result<Io>;
}

impl Accept for UnixListener {
    async fn connection(&self) -> io::Result<Io> {
        self.accept().await.map(|(stream, _)| Box::new(stream) as Io)
    }
}

impl Accept for TcpListener {
    async fn connection(&self) -> io::Result<Io> {
        self.accept().await.map(|(stream, _)| Box::new(stream) as Io)
    }
}

/// Listens on an address. `0.0.0.0` stands for the IPv6 addresses of the machine as well, as in Go
/// and so in the kubelet.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != Ipv4Addr::UNSPECIFIED {
        return listen_on(address);
    }
    match listen_on((Ipv6Addr::UNSPECIFIED, address.port()).into()) {
        // The machine may have no IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => listen_on(address),
        listening => listening,
    }
}

/// As `TcpListener::bind`, which lets only 128 connections wait and has Nagle's algorithm on.
fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // IPv4 as well, whatever the machine's default is (`net.ipv6.bindv6only`).
        setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    }
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit these. The small frames of exec and port-forward would otherwise
    // wait for the acknowledgement of the frame before, which the other side delays by up to 40 ms.
    socket.set_nodelay(true)?;
    // Nothing else notices that the client of a silent session or of a followed log is gone.
    keep_alive(&socket)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// A listener on this address; `None` at shutdown. A port that is taken is tried again and again,
/// because it may be a kubelet's that is being replaced. `what` is served there, for people.
pub(super) async fn bound(
    address: SocketAddr,
    what: &'static str,
    shutdown: &CancellationToken,
) -> Option<TcpListener> {
    let mut told = false;
    loop {
        match listen(address) {
            Ok(listener) => {
                if told {
                    tracing::info!(%address, "{what} is served now");
                }
                return Some(listener);
            }
            Err(err) if !told => {
                tracing::warn!(%address, %err, "{what} can't be served yet; trying again");
                told = true;
            }
            Err(_) => {}
        }
        // Cancel-safe: both arms only wait.
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = sleep(BIND_AGAIN) => {}
        }
    }
}

/// Serves until `shutdown`. Open connections are closed then; clients of HTTP/2 get GOAWAY first.
pub(super) async fn serve(
    listener: &impl Accept,
    open: impl Open,
    router: Router,
    policy: ConnectionPolicy,
    shutdown: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let mut connections: Vec<Connection> = Vec::new();
    let mut since_yield = 0;
    loop {
        // Cancel-safe: accept, join_next_with_id and cancelled lose nothing when dropped.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = tasks.join_next_with_id() => {
                forget(&mut connections, ended);
                continue;
            }
            accepted = listener.connection() => accepted,
        };
        match accepted {
            Ok(stream) => {
                // Connections that have ended take no place.
                while let Some(ended) = tasks.try_join_next_with_id() {
                    forget(&mut connections, ended);
                }
                while connections.len() >= policy.places {
                    let standings = connections.iter().map(|open| open.requests.standing());
                    connections.remove(dispensable(standings)).task.abort();
                }
                let requests = Arc::new(ConnectionRequests::default());
                let (opening, router, own) = (open.clone(), router.clone(), Arc::clone(&requests));
                let stop = shutdown.clone();
                let answer = async move {
                    let opened = timeout(policy.head, opening.open(stream));
                    if let Some(Ok(Some(opened))) = stop.run_until_cancelled(opened).await {
                        answer(opened, router, policy, own, stop).await;
                    }
                };
                connections.push(Connection { task: tasks.spawn(answer), requests });
                since_yield += 1;
                if since_yield >= policy.places / 4 {
                    since_yield = 0;
                    yield_now().await;
                }
            }
            Err(err) => {
                tracing::warn!(%err, "a connection can't be accepted");
                // Cancel-safe: both arms only wait.
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

struct Connection {
    task: AbortHandle,
    requests: Arc<ConnectionRequests>,
}

impl Connection {
    fn id(&self) -> Id {
        self.task.id()
    }
}

fn forget(open: &mut Vec<Connection>, ended: Result<(Id, ()), JoinError>) {
    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
    open.retain(|connection| connection.id() != id);
}

/// Which connection is dropped for a new one. `standings` are theirs, those of the oldest first.
fn dispensable(standings: impl Iterator<Item = Standing>) -> usize {
    // Of equal ones the first.
    standings.enumerate().min_by_key(|(_, standing)| *standing).map_or(0, |(index, _)| index)
}

/// Answers the requests of a connection until it ends, or `shutdown`.
async fn answer(
    OpenedConnection { stream, peer, version }: OpenedConnection,
    router: Router,
    policy: ConnectionPolicy,
    requests: Arc<ConnectionRequests>,
    shutdown: CancellationToken,
) {
    let on = (stream, Arc::new(peer));
    match version {
        HttpVersion::One => {
            shutdown.run_until_cancelled(answer_http1(on, router, policy, requests)).await;
        }
        // On the heap: few connections speak it.
        HttpVersion::Two => {
            Box::pin(http2::answer(on, router, policy, requests, shutdown)).await;
        }
    }
}

async fn answer_http1(
    (stream, peer): (Io, Arc<Peer>),
    router: Router,
    policy: ConnectionPolicy,
    requests: Arc<ConnectionRequests>,
) {
    let router = TowerToHyperService::new(router);
    // Of the last answer.
    let pace = Arc::new(Mutex::new(None));
    let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
        let place = requests.place();
        request.extensions_mut().insert(Arc::clone(&requests));
        request.extensions_mut().insert(Arc::clone(&peer));
        let response = hyper::service::Service::call(&router, request);
        let pace = Arc::clone(&pace);
        async move {
            let response = response.await?;
            *lock(&pace) = response.extensions().get::<Pace>().cloned();
            Ok::<_, Infallible>(response.map(|body| PlacedBody { body, _place: place }))
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(policy.kept.unwrap_or(policy.head))
            .keep_alive(policy.kept.is_some())
            .max_buf_size(policy.head_bytes)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let mut deadline = requests.moved.at() + policy.lifetime;
    loop {
        // Cancel-safe: the connection stays pinned outside.
        match timeout_at(deadline, &mut served).await {
            Ok(Ok(())) => return,
            Ok(Err(err)) => return tracing::debug!(%err, "a connection ended with an error"),
            Err(_) => {}
        }
        let of_last = requests.moved.at() + policy.lifetime;
        deadline = if policy.kept.is_some() && of_last > deadline {
            of_last
        } else if goes_on(lock(&pace).as_ref(), policy.lifetime) {
            Instant::now() + policy.lifetime
        } else {
            return;
        };
    }
}

/// Whether an answer that has lasted for `lifetime` may go on.
pub(super) fn goes_on(pace: Option<&Pace>, lifetime: Duration) -> bool {
    let Some(pace) = pace else {
        tracing::debug!("an answer was cut off at the end of its lifetime");
        return false;
    };
    let goes_on = pace.goes_on();
    if !goes_on {
        let seconds = lifetime.as_secs();
        tracing::info!(seconds, "a command that follows this agent read nothing and was cut off");
    }
    goes_on
}

fn lock(pace: &Mutex<Option<Pace>>) -> MutexGuard<'_, Option<Pace>> {
    // One value, which is replaced as a whole.
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::follow::{Followed, follow};
    use super::*;
    use crate::event::{self, Recorder};
    use crate::model::{Event, EventKind, EventTarget, PodKey};
    use nix::sys::socket::getsockopt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        net::TcpStream,
        sync::Semaphore,
    };

    const POLICY: ConnectionPolicy = ConnectionPolicy {
        places: 16,
        head: Duration::from_secs(5),
        head_bytes: HEAD_BYTES,
        lifetime: Duration::from_millis(200),
        kept: None,
    };

    /// A client that follows events, the tasks behind it, and the recorder of events. The first task
    /// that ends is the one of the connection.
    async fn start_follower() -> (DuplexStream, JoinSet<()>, Recorder) {
        let (recorder, events, log) = event::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(events.run(CancellationToken::new()));
        let places = Arc::new(Semaphore::new(1));
        let events = axum::routing::get(move || async move {
            follow(Followed::Events { log, node_name: "n1".into(), taken: None }, &places)
        });
        let router = Router::new().route("/events", events);
        let (mut client, server) = duplex(1024);
        let on: (Io, _) = (Box::new(server), Arc::new(Peer(Vec::new())));
        tasks.spawn(answer_http1(on, router, POLICY, Arc::default()));
        client.write_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        (client, tasks, recorder)
    }

    /// More events than all buffers of the connection hold.
    fn record_many(recorder: &Recorder) {
        for number in 0..100 {
            let key = PodKey::new("default", &format!("pod-{number}"));
            let uid = key.to_string().as_str().into();
            let target = EventTarget::Pod { key, uid, field_path: None };
            let message = "m".repeat(1024);
            recorder.record(Event { target, kind: EventKind::Normal, reason: "Pulled", message });
        }
    }

    #[tokio::test]
    async fn accepted_connections_have_nodelay_and_keepalive() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, _client) = tokio::join!(listener.accept(), connecting);
        let accepted = accepted.unwrap().0;
        assert!(accepted.nodelay().unwrap());
        assert!(getsockopt(&accepted, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&accepted, sockopt::TcpKeepIdle).unwrap(), 15);
    }

    #[tokio::test]
    async fn an_ipv4_wildcard_is_reached_over_ipv6_as_well() {
        let listener = listen((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        } else {
            crate::skips::say_skipped("this machine has no IPv6");
        }
        let again = listen((Ipv4Addr::UNSPECIFIED, port).into()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_follower_that_does_not_read_wait_cut_off() {
        let (client, mut tasks, recorder) = start_follower().await;
        record_many(&recorder);
        timeout(Duration::from_secs(20), tasks.join_next()).await.unwrap().unwrap().unwrap();
        drop(client);
    }

    #[tokio::test]
    async fn a_follower_that_reads_or_has_nothing_to_read_stays() {
        let (mut client, mut tasks, recorder) = start_follower().await;
        let mut read = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < 5 * POLICY.lifetime {
            timeout(POLICY.lifetime * 2, client.read_buf(&mut read)).await.ok();
        }
        assert!(read.ends_with(b"\"begun\"\n\r\n"), "{}", String::from_utf8_lossy(&read));
        record_many(&recorder);
        while read.len() < 100 * 1024 {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "it was cut off");
        }
        assert!(tasks.try_join_next().is_none());
    }

    #[tokio::test]
    async fn an_answer_on_a_kept_connection_has_one_lifetime_from_its_request() {
        let lifetime = Duration::from_secs(2);
        let policy = ConnectionPolicy { lifetime, kept: Some(8 * lifetime), ..POLICY };
        let router = Router::new()
            .route("/soon", axum::routing::get(async || "answered"))
            .route("/never", axum::routing::get(std::future::pending::<()>));
        let (mut client, server) = duplex(1024);
        let on: (Io, _) = (Box::new(server), Arc::new(Peer(Vec::new())));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer_http1(on, router, policy, Arc::default()));
        client.write_all(b"GET /soon HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"answered") {
            assert!(client.read_buf(&mut read).await.unwrap() > 0);
        }
        sleep(lifetime / 20).await;
        let asked = Instant::now();
        client.write_all(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let cut_off = timeout(lifetime * 19 / 10, client.read_buf(&mut read)).await;
        assert!(matches!(cut_off, Ok(Ok(0))), "{cut_off:?}");
        assert!(asked.elapsed() >= lifetime);
    }

    /// A connection with a request for `/path`, once that has arrived: `arrived` gets a permit then.
    async fn ask(address: SocketAddr, path: &str, arrived: &Semaphore) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        timeout(Duration::from_secs(20), arrived.acquire()).await.unwrap().unwrap().forget();
        stream
    }

    #[tokio::test]
    async fn a_stranger_makes_room_before_an_older_client_that_was_let_in() {
        let (arrived, answers) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (arrives, waits) = (Arc::clone(&arrived), Arc::clone(&answers));
        let handler = async move |request: axum::extract::Request| {
            if request.uri().path() == "/known" {
                request.extensions().get::<Arc<ConnectionRequests>>().unwrap().let_in();
            }
            arrives.add_permits(1);
            waits.acquire().await.unwrap().forget();
            "answered"
        };
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let policy = ConnectionPolicy { places: 2, lifetime: Duration::from_secs(60), ..POLICY };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let router = Router::new().fallback(handler);
            serve(&listener, Plain, router, policy, CancellationToken::new()).await;
        });
        let mut known = ask(address, "known", &arrived).await;
        let mut stranger = ask(address, "stranger", &arrived).await;
        let _third = ask(address, "third", &arrived).await;
        let mut read = String::new();
        let cut_off = stranger.read_to_string(&mut read);
        timeout(Duration::from_secs(20), cut_off).await.unwrap().ok();
        assert_eq!(read, "");
        answers.add_permits(2);
        timeout(Duration::from_secs(20), known.read_to_string(&mut read)).await.unwrap().unwrap();
        assert!(read.ends_with("answered"), "{read}");
    }

    #[tokio::test]
    async fn a_connection_whose_request_is_answered_makes_room() {
        let (arrived, answers) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (arrives, waits) = (Arc::clone(&arrived), Arc::clone(&answers));
        let handler = async move |request: axum::extract::Request| {
            request.extensions().get::<Arc<ConnectionRequests>>().unwrap().let_in();
            arrives.add_permits(1);
            if request.uri().path() == "/long" {
                waits.acquire().await.unwrap().forget();
            }
            "answered"
        };
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let minute = Duration::from_secs(60);
        let policy = ConnectionPolicy { places: 2, lifetime: minute, kept: Some(minute), ..POLICY };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let router = Router::new().fallback(handler);
            serve(&listener, Plain, router, policy, CancellationToken::new()).await;
        });
        let mut long = ask(address, "long", &arrived).await;
        let mut idle = ask(address, "short", &arrived).await;
        let mut read = [0; 4096];
        let length = idle.read(&mut read).await.unwrap();
        assert!(read[..length].ends_with(b"answered"));
        let _third = ask(address, "short", &arrived).await;
        let gone = timeout(Duration::from_secs(20), idle.read(&mut read)).await.unwrap();
        assert!(matches!(gone, Ok(0) | Err(_)), "{gone:?}");
        answers.add_permits(1);
        let length = timeout(minute, long.read(&mut read)).await.unwrap().unwrap();
        assert!(read[..length].ends_with(b"answered"));
    }

    #[test]
    fn the_oldest_connection_of_the_least_standing_is_dropped_first() {
        use Standing::{Known, Silent, Stranger};
        for (standings, dropped) in [
            ([Known, Silent, Silent], 1),
            ([Stranger, Known, Silent], 2),
            ([Known, Stranger, Stranger], 1),
            ([Known, Known, Known], 0),
        ] {
            assert_eq!(dispensable(standings.into_iter()), dropped, "{standings:?}");
        }
    }
}
