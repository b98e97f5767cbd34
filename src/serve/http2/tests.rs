use super::*;
use crate::serve::connections::Peer;
use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::IntoResponse as _,
    routing::get,
};
use futures_util::stream::unfold;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2 as client;
use hyper_util::rt::TokioExecutor;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::{Barrier, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};

const SOON: Duration = Duration::from_secs(20);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);
const PATIENT: ConnectionPolicy =
    ConnectionPolicy { places: 1, head: LONG, head_bytes: 1024, lifetime: LONG, kept: Some(LONG) };

const PART: Result<Bytes, Infallible> = Ok(Bytes::from_static(&[b'x'; 16 << 10]));

/// The server's side of a connection.
pub(in crate::serve) struct Http2Rig {
    /// The first task that ends is the one of the connection.
    pub(in crate::serve) tasks: JoinSet<()>,
    requests: Arc<ConnectionRequests>,
    shutdown: CancellationToken,
}

type Http2Sender = client::SendRequest<Empty<Bytes>>;

pub(in crate::serve) fn serve(
    router: Router,
    policy: ConnectionPolicy,
) -> (Http2Rig, DuplexStream) {
    let (near, far) = duplex(64 << 10);
    let on: (Io, _) = (Box::new(far), Arc::new(Peer(Vec::new())));
    let (requests, shutdown) = (Arc::default(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(answer(on, router, policy, Arc::clone(&requests), shutdown.clone()));
    (Http2Rig { tasks, requests, shutdown }, near)
}

/// A client that reads answers into a window of so many bytes.
pub(in crate::serve) async fn connect(
    rig: &mut Http2Rig,
    near: DuplexStream,
    window: u32,
) -> Http2Sender {
    let mut builder = client::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
    rig.tasks.spawn(async { drop(connection.await) });
    sender
}

pub(in crate::serve) fn request(path: &str) -> hyper::Request<Empty<Bytes>> {
    hyper::Request::get(format!("https://node{path}")).body(Empty::new()).unwrap()
}

pub(in crate::serve) async fn text(response: hyper::Response<Incoming>) -> String {
    let body = timeout(SOON, response.into_body().collect()).await.unwrap().unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

impl Http2Rig {
    #[track_caller]
    fn assert_serves(&mut self) {
        assert!(self.tasks.try_join_next().is_none(), "the connection has ended");
    }

    async fn ends(&mut self) {
        timeout(SOON, self.tasks.join_next()).await.expect("it goes on").unwrap().unwrap();
    }
}

/// Lets requests in as the guard does, but those to `/secret`, and counts them.
fn guarded(router: Router) -> (Router, Arc<AtomicUsize>) {
    let (router, count, _) = gated(router);
    (router, count)
}

/// As [`guarded`]; `/waits` is answered when there is a permit for it.
fn gated(router: Router) -> (Router, Arc<AtomicUsize>, Arc<Semaphore>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let check = move |request: Request, next: Next| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if request.uri().path() == "/secret" {
                let close = [(header::CONNECTION, "close")];
                return (StatusCode::UNAUTHORIZED, close, "who?").into_response();
            }
            if request.uri().path() != "/undecided" {
                request.extensions().get::<Arc<ConnectionRequests>>().unwrap().let_in();
            }
            next.run(request).await
        }
    };
    let both = Arc::new(Barrier::new(2));
    let meet = get(async move || {
        both.wait().await;
        "met"
    });
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let waits = get(async move || {
        opens.acquire().await.unwrap().forget();
        "waited"
    });
    let router = router
        .route("/", get("ok"))
        .route("/secret", get("never told"))
        .route("/undecided", get(std::future::pending::<&'static str>))
        .route("/waits", waits)
        .route("/meet", meet)
        .layer(from_fn(check));
    (router, count, gate)
}

/// Parts as fast as they are read.
fn endless() -> Response {
    let parts = unfold((), |()| async { Some((PART, ())) });
    Body::from_stream(parts).into_response()
}

/// A part every 20 ms, while the client reads them.
fn followed() -> Response {
    let pace = Pace::default();
    let parts = unfold(pace.clone(), |pace| async move {
        pace.moves();
        sleep(Duration::from_millis(20)).await;
        Some((PART, pace))
    });
    let mut response = Body::from_stream(parts).into_response();
    response.extensions_mut().insert(pace);
    response
}

fn with_parts() -> Router {
    Router::new()
        .route("/endless", get(async || endless()))
        .route("/followed", get(async || followed()))
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_side_by_side() {
    let (router, _) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut sender = connect(&mut rig, near, WINDOW).await;
    let both = (sender.send_request(request("/meet")), sender.send_request(request("/meet")));
    let (one, two) = timeout(SOON, async { tokio::join!(both.0, both.1) }).await.unwrap();
    assert_eq!(text(one.unwrap()).await, "met");
    assert_eq!(text(two.unwrap()).await, "met");
    assert_eq!(rig.requests.placed(), 0);
    rig.assert_serves();
}

#[tokio::test]
async fn an_answer_that_is_not_read_wait_cut_off_and_no_other_one() {
    let policy = ConnectionPolicy { lifetime: Duration::from_millis(300), ..PATIENT };
    for path in ["/endless", "/followed"] {
        let (router, _) = guarded(with_parts());
        let (mut rig, near) = serve(router, policy);
        let mut sender = connect(&mut rig, near, 1024).await;
        let unread = sender.send_request(request(path)).await.unwrap();
        for _ in 0..3 {
            let answered = sender.send_request(request("/")).await.unwrap();
            assert_eq!(text(answered).await, "ok");
        }
        rig.ends().await;
        let cut_off = unread.into_body().collect().await;
        assert!(cut_off.is_err(), "{path}");
    }
}

#[tokio::test]
async fn a_follower_that_reads_stays() {
    let lifetime = Duration::from_millis(100);
    let (router, _) = guarded(with_parts());
    let (mut rig, near) = serve(router, ConnectionPolicy { lifetime, ..PATIENT });
    let mut sender = connect(&mut rig, near, WINDOW).await;
    let mut followed = sender.send_request(request("/followed")).await.unwrap().into_body();
    let begun = Instant::now();
    while begun.elapsed() < 10 * lifetime {
        timeout(SOON, followed.frame()).await.unwrap().unwrap().unwrap();
    }
    rig.assert_serves();
}

#[tokio::test]
async fn a_refusal_ends_the_connection_after_the_other_requests() {
    let (router, _, gate) = gated(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut sender = connect(&mut rig, near, WINDOW).await;
    let waits = sender.send_request(request("/waits"));
    let refused = sender.send_request(request("/secret")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(refused.headers().get(header::CONNECTION).is_none());
    assert_eq!(text(refused).await, "who?");
    assert_eq!(rig.requests.placed(), 1);
    sleep(Duration::from_millis(50)).await;
    rig.assert_serves();
    gate.add_permits(1);
    assert_eq!(text(waits.await.unwrap()).await, "waited");
    rig.ends().await;
}

#[tokio::test]
async fn a_connection_ends_with_the_agent() {
    let (router, _) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut sender = connect(&mut rig, near, WINDOW).await;
    assert_eq!(text(sender.send_request(request("/")).await.unwrap()).await, "ok");
    let waits = sender.send_request(request("/waits"));
    rig.shutdown.cancel();
    rig.ends().await;
    assert!(waits.await.is_err());
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let (router, count) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut sender = connect(&mut rig, near, WINDOW).await;
    let mut long = request("/");
    long.headers_mut().insert("x", "x".repeat(20_000).parse().unwrap());
    let refused = sender.send_request(long).await.unwrap();
    assert_eq!(refused.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert_eq!(text(sender.send_request(request("/")).await.unwrap()).await, "ok");
}

/// A client that breaks the rules.
struct RawClient(DuplexStream);

const HEADERS_FRAME: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const AWAY: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A GET of `path`, which is complete.
fn head(stream: u32, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    // GET, https, :path and the :authority "x", as HPACK writes them.
    let fields = [&[0x82, 0x87, 0x04, length], path.as_bytes(), &[0x01, 1, b'x']].concat();
    frame(HEADERS_FRAME, 0x05, stream, &fields)
}

/// The client gives a request up.
fn reset(stream: u32) -> Vec<u8> {
    frame(RESET, 0, stream, &8_u32.to_be_bytes())
}

impl RawClient {
    /// Its windows for answers are so large.
    async fn begin(near: DuplexStream, window: u32) -> Self {
        let mut raw = Self(near);
        let setting = [&[0, 4], &window.to_be_bytes()[..]].concat();
        raw.send(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &setting)])
            .await;
        raw
    }

    /// Sends it all at once. The server may have gone.
    async fn send(&mut self, frames: &[Vec<u8>]) {
        drop(self.0.write_all(&frames.concat()).await);
    }

    /// The next frame of one of these kinds: its kind, stream and content; `None` at the end.
    async fn next(&mut self, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            timeout(SOON, self.0.read_exact(&mut head)).await.expect("nothing comes").ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if kinds.contains(&head[3]) {
                return Some((head[3], stream, payload));
            }
        }
    }
}

async fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_without_a_complete_request_is_closed() {
    let policy = ConnectionPolicy { head: Duration::from_millis(200), ..PATIENT };
    let half = frame(HEADERS_FRAME, 0, 1, &[0x82, 0x87]);
    for sent in [None, Some(Vec::new()), Some(half)] {
        let (router, _) = guarded(Router::new());
        let (mut rig, near) = serve(router, policy);
        let mut raw = match &sent {
            None => RawClient(near),
            Some(_) => RawClient::begin(near, WINDOW).await,
        };
        raw.send(&[sent.unwrap_or_default()]).await;
        rig.ends().await;
    }
}

#[tokio::test]
async fn a_quiet_connection_is_kept_for_a_while() {
    let kept = Duration::from_millis(500);
    let head = Duration::from_millis(100);
    let (router, _) = guarded(Router::new());
    let (mut rig, near) = serve(router, ConnectionPolicy { head, kept: Some(kept), ..PATIENT });
    let mut sender = connect(&mut rig, near, WINDOW).await;
    assert_eq!(text(sender.send_request(request("/")).await.unwrap()).await, "ok");
    let answered = Instant::now();
    rig.ends().await;
    assert!(answered.elapsed() > kept / 2, "{:?}", answered.elapsed());
}

#[tokio::test]
async fn a_request_too_many_is_sent_back() {
    let (router, count) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut raw = RawClient::begin(near, WINDOW).await;
    let all: Vec<_> = (0..=STREAMS).map(|n| head(2 * n + 1, "/waits")).collect();
    raw.send(&all).await;
    let refused = raw.next(&[RESET]).await.unwrap();
    assert_eq!(refused, (RESET, 2 * STREAMS + 1, 7_u32.to_be_bytes().to_vec()));
    wait_for("all others", || count.load(Ordering::Relaxed) == STREAMS as usize).await;
    rig.assert_serves();
}

#[tokio::test]
async fn a_stranger_has_one_request_at_a_time() {
    let (router, count) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut raw = RawClient::begin(near, WINDOW).await;
    raw.send(&[head(1, "/undecided"), head(3, "/undecided"), head(5, "/undecided")]).await;
    wait_for("all arrive", || rig.requests.placed() == 3).await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(count.load(Ordering::Relaxed), 1);
    rig.assert_serves();
}

#[tokio::test]
async fn a_stranger_gets_one_refusal() {
    let policy = ConnectionPolicy { head: Duration::from_millis(500), ..PATIENT };
    // One whose window is closed does not get the text.
    for window in [WINDOW, 0] {
        let (router, count) = guarded(Router::new());
        let (mut rig, near) = serve(router, policy);
        let mut raw = RawClient::begin(near, window).await;
        raw.send(&[head(1, "/secret")]).await;
        // They come in any order.
        let told = [raw.next(&[HEADERS_FRAME, AWAY]).await, raw.next(&[HEADERS_FRAME, AWAY]).await];
        let mut told = told.map(|frame| frame.unwrap().0);
        told.sort_unstable();
        assert_eq!(told, [HEADERS_FRAME, AWAY]);
        assert_eq!(rig.requests.placed(), 0);
        // It does not care that it was told to go.
        for stream in [3, 5, 7] {
            raw.send(&[head(stream, "/secret")]).await;
            assert_eq!(raw.next(&[RESET, HEADERS_FRAME]).await.unwrap().0, RESET);
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        rig.ends().await;
    }
}

#[tokio::test]
async fn a_stranger_that_gives_requests_up_gets_no_more() {
    let (router, count) = guarded(Router::new());
    let (rig, near) = serve(router, PATIENT);
    let mut raw = RawClient::begin(near, WINDOW).await;
    raw.send(&[head(1, "/undecided")]).await;
    wait_for("it arrives", || count.load(Ordering::Relaxed) == 1).await;
    raw.send(&[reset(1)]).await;
    assert!(raw.next(&[AWAY]).await.is_some());
    for stream in (3..100).step_by(2) {
        raw.send(&[head(stream, "/undecided")]).await;
        assert_eq!(raw.next(&[RESET]).await.unwrap().1, stream);
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(rig.requests.placed(), 0);
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let (router, count) = guarded(Router::new());
    let (mut rig, near) = serve(router, PATIENT);
    let mut raw = RawClient::begin(near, WINDOW).await;
    let flood: Vec<_> =
        (0..1000).flat_map(|n| [head(2 * n + 1, "/waits"), reset(2 * n + 1)]).collect();
    tokio::join!(raw.send(&flood), rig.ends());
    assert!(count.load(Ordering::Relaxed) <= 2 * STREAMS as usize, "{count:?}");
}
