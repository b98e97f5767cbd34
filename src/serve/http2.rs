//! HTTP/2 on one connection, under the [`ConnectionPolicy`] of its listener.
//!
//! ```text
//!               ┌─► request ─► let in ──► answered ──► ended
//!  connection ──┤                 │          └── lifetime, or nothing read ──► reset ──┐
//!               │                 └── refused, or given up before its answer ──────────┤
//!               ├── later, no request for `kept` ──────────────────────────────────────┤
//!               │                                                                      ▼
//!               └── no request for `head` ───────────────────► closed ◄── `head` ─── GOAWAY
//! ```
//!
//! A connection has at most [`STREAMS`] requests at a time, each with the deadlines that a request
//! has over HTTP/1.1. So no client gets more than that many places, and a client that needs more
//! opens another connection. A connection has one request at a time until the guard has let one
//! in: a stranger gets no more turns than over HTTP/1.1. All requests of a connection are answered
//! in its one task. They end with it, and get no more time of the CPU than one request does.
//!
//! A request that is refused, that the client gives up before it is answered, or whose answer is
//! not read in time ends the connection, as it does over HTTP/1.1. The other requests are answered
//! before that, and the client is told to open another connection (GOAWAY). A refused request
//! holds no place: a client that does not read the refusal keeps nothing. A connection from which
//! no request was let in gets no further one then, so resets are no way to make many requests.
//!
//! For each connection h2 keeps at most [`HEADERS`] bytes of each head, a window of bodies that
//! are not read yet, and one part of each answer that the client has not read.

use super::{
    connections::{ConnectionPolicy, Io, Peer, goes_on},
    follow::Pace,
    requests::{ConnectionRequests, HeldPlace, STREAMS},
};
use axum::{Router, extract::Request, http::header, response::Response};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    cell::RefCell,
    convert::Infallible,
    future::pending,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task_local,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// The most bytes of the head of a request, as over HTTP/1.1.
const HEADERS: u32 = 16 * 1024;
/// The most bytes of bodies that a client may send before they are read: what HTTP/2 begins with.
const WINDOW: u32 = 65_535;
/// Bytes of an answer that are buffered before the client reads them.
const SEND_BUFFER: usize = 16 * 1024;
/// How long a client may take to acknowledge that the agent ends.
const GOODBYE: Duration = Duration::from_millis(250);

task_local! {
    /// Of the request that is polled.
    static ANSWER: RefCell<AnswerState>;
}

/// What the connection must know of a request.
struct AnswerState {
    /// `None`: it was refused, or began too late.
    place: Option<HeldPlace>,
    /// Of an answer that goes on.
    pace: Option<Pace>,
}

type RequestTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes requests that have begun to the task of their connection.
#[derive(Clone)]
struct StreamExecutor {
    begun: mpsc::Sender<RequestTask>,
    requests: Arc<ConnectionRequests>,
    lifetime: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        if self.requests.leaves() && !self.requests.is_known() {
            return;
        }
        let (requests, lifetime) = (Arc::clone(&self.requests), self.lifetime);
        let in_time = async move {
            if !ends_in_time(stream, lifetime).await {
                requests.leave();
            }
        };
        let answer = AnswerState { place: self.requests.place(), pace: None };
        let stream = ANSWER.scope(RefCell::new(answer), in_time);
        // A stream that is dropped is reset. Only a client that resets streams begins so many.
        if self.begun.try_send(Box::pin(stream)).is_err() {
            tracing::debug!("a client began too many requests at once");
        }
    }
}

/// Whether an answer was taken by its client before its deadline.
async fn ends_in_time(stream: impl Future<Output = ()>, lifetime: Duration) -> bool {
    let mut stream = pin!(stream);
    // Cancel-safe: the stream stays pinned outside.
    while timeout(lifetime, &mut stream).await.is_err() {
        if !ANSWER.with(|answer| goes_on(answer.borrow().pace.as_ref(), lifetime)) {
            return false;
        }
    }
    true
}

/// Ends the connection unless the request is answered.
struct Unanswered<'a>(Option<&'a ConnectionRequests>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(requests) = self.0 {
            requests.leave();
        }
    }
}

async fn respond(
    mut request: hyper::Request<Incoming>,
    router: TowerToHyperService<Router>,
    requests: Arc<ConnectionRequests>,
) -> Result<Response, Infallible> {
    let mut unanswered = Unanswered(Some(&requests));
    // It is never closed.
    let turn = requests.turns.acquire().await;
    request.extensions_mut().insert(Arc::clone(&requests));
    let mut response = hyper::service::Service::call(&router, request).await?;
    drop(turn);
    unanswered.0 = None;
    // A refusal has this header. HTTP/2 has GOAWAY instead.
    let refused = response.headers_mut().remove(header::CONNECTION).is_some();
    ANSWER.with(|answer| {
        let mut answer = answer.borrow_mut();
        answer.pace = response.extensions().get::<Pace>().cloned();
        if refused {
            answer.place = None;
        }
    });
    if refused {
        requests.leave();
    }
    Ok(response)
}

/// Serves a connection until its client leaves, the policy ends it, or `shutdown`.
pub(super) async fn answer(
    (stream, peer): (Io, Arc<Peer>),
    router: Router,
    policy: ConnectionPolicy,
    requests: Arc<ConnectionRequests>,
    shutdown: CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&peer));
        respond(request, router.clone(), Arc::clone(&requests))
    });
    let (begun, mut new) = mpsc::channel(2 * STREAMS as usize);
    let begin =
        StreamExecutor { begun, requests: Arc::clone(&requests), lifetime: policy.lifetime };
    let mut served = pin!(
        http2::Builder::new(begin)
            .timer(TokioTimer::new())
            // Finds clients that are gone while a long answer waits. Quiet connections end earlier.
            .keep_alive_interval(policy.lifetime)
            .keep_alive_timeout(policy.head)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADERS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut streams = FuturesUnordered::new();
    // How long the connection may last while no request holds a place, and since when none does.
    let mut patience = policy.head;
    let mut quiet = None;
    loop {
        if requests.placed() > 0 {
            patience = policy.kept.unwrap_or(policy.head);
            quiet = None;
        } else if quiet.is_none() {
            quiet = Some(Instant::now());
        }
        if requests.leaves() {
            patience = policy.head;
        }
        // Cancel-safe: the connection stays pinned outside, and every other arm only waits. The
        // connection is polled after its requests, so that a refusal and GOAWAY are sent together.
        tokio::select! {
            biased;
            () = requests.leave_requested.notified() => served.as_mut().graceful_shutdown(),
            Some(stream) = new.recv() => streams.push(stream),
            Some(()) = streams.next() => {}
            ended = &mut served => {
                if let Err(err) = ended {
                    tracing::debug!(%err, "a connection ended with an error");
                }
                return;
            }
            () = ends(quiet, patience) => {
                if requests.leaves() || !requests.is_known() {
                    return tracing::debug!("a connection without a request was closed");
                }
                // A client may be about to send a request. After GOAWAY it repeats it elsewhere.
                requests.leave();
                quiet = Some(Instant::now());
            }
            () = shutdown.cancelled() => break,
        }
    }
    drop(streams);
    served.as_mut().graceful_shutdown();
    // A client that does not answer is told nothing more.
    drop(timeout(GOODBYE, served).await);
}

/// Waits until a connection has been quiet for too long.
async fn ends(quiet: Option<Instant>, patience: Duration) {
    match quiet {
        Some(since) => sleep_until(since + patience).await,
        None => pending().await,
    }
}

#[cfg(test)]
pub(super) mod tests;
