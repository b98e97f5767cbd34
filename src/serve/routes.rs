//! The paths of the local socket. A long answer is made pod by pod while it is sent, so that an answer about many pods is
//! never in memory as a whole. It is made once before, piece by piece, only to count its bytes: the simplest clients
//! need a Content-Length. Counting yields to other tasks.

use super::{
    Command, ForgetAnswer, ForgetRequest, Views, document::pod_object, health, health::Health,
};
use crate::{event, model::PodView};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::yield_now,
    time::timeout,
};

/// Bytes that a request may carry.
const MAX_BODY: usize = 4096;
/// How long the agent may take to answer a command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of JSON that are made before other tasks run.
const YIELD_AFTER: usize = 64 * 1024;

type Piece = Result<Bytes, serde_json::Error>;

#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) views: Views,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) health: Health,
    pub(super) pod_logs_dir: PathBuf,
}

impl App {
    fn pods(&self) -> Arc<[Arc<PodView>]> {
        self.views.pods.borrow().values().cloned().collect()
    }
}

pub(super) fn router(app: App) -> Router {
    let health = health::router(app.health.clone());
    Router::new()
        .route("/status", get(status))
        .route("/pods", get(pods))
        .route("/pods/", get(pods))
        .route("/events", get(events))
        .route("/forget", post(forget))
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app)
        .merge(health)
        .fallback(health::not_found)
}

/// A [`super::StatusDocument`].
async fn status(State(app): State<App>) -> Response {
    let node = app.views.node.borrow().clone();
    let pods = app.pods();
    let log = app.views.events.borrow().clone();
    let events: Arc<[_]> = log.entries.as_slice().into();
    let pieces = move || {
        let tail = [
            literal(b"],\"eventsDropped\":"),
            json(&log.dropped),
            literal(b",\"podLogsDir\":"),
            json(&app.pod_logs_dir),
            literal(b"}\n"),
        ];
        [literal(b"{\"node\":"), json(&*node), literal(b",\"pods\":[")]
            .into_iter()
            .chain(listed(&pods, |pod| json(&**pod)))
            .chain([literal(b"],\"events\":[")])
            .chain(listed(&events, event_object(&node.name)))
            .chain(tail)
    };
    streamed(pieces).await
}

/// `v1` `PodList`, as the kubelet serves it.
async fn pods(State(app): State<App>) -> Response {
    let pods = app.pods();
    streamed(move || list("PodList", listed(&pods, |pod| json(&pod_object(pod))))).await
}

/// `v1` `EventList`.
async fn events(State(app): State<App>) -> Response {
    let node_name = app.views.node.borrow().name.clone();
    let events: Arc<[_]> = app.views.events.borrow().entries.as_slice().into();
    streamed(move || list("EventList", listed(&events, event_object(&node_name)))).await
}

fn event_object(node_name: &str) -> impl Fn(&Arc<event::Entry>) -> Piece + use<> {
    let node_name = node_name.to_owned();
    move |entry| json(&event::to_object(entry, &node_name))
}

async fn forget(State(app): State<App>, Json(request): Json<ForgetRequest>) -> Response {
    let (reply, answer) = oneshot::channel();
    let command = Command::Forget { key: request.key, reply };
    if app.commands.try_send(command).is_err() {
        return failed(StatusCode::SERVICE_UNAVAILABLE, "the agent is busy or about to stop");
    }
    match timeout(COMMAND_DEADLINE, answer).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(_)) => failed(StatusCode::SERVICE_UNAVAILABLE, "the agent is about to stop"),
        Err(_) => {
            failed(StatusCode::GATEWAY_TIMEOUT, "the agent took it in but has not answered yet")
        }
    }
}

fn failed(status: StatusCode, message: &str) -> Response {
    (status, Json(ForgetAnswer::Failed { message: message.to_owned() })).into_response()
}

async fn not_allowed() -> Response {
    health::plain((StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned()))
}

fn literal(text: &'static [u8]) -> Piece {
    Ok(Bytes::from_static(text))
}

fn json(value: &impl Serialize) -> Piece {
    serde_json::to_vec(value).map(Bytes::from)
}

/// Each item as a piece of its own, with commas between.
fn listed<T, F: Fn(&T) -> Piece>(
    items: &Arc<[T]>,
    make: F,
) -> impl Iterator<Item = Piece> + use<T, F> {
    let items = Arc::clone(items);
    (0..items.len()).flat_map(move |n| {
        let comma = if n == 0 { literal(b"") } else { literal(b",") };
        [comma, make(&items[n])]
    })
}

fn list(kind: &str, items: impl Iterator<Item = Piece>) -> impl Iterator<Item = Piece> {
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"items\":[");
    [Ok(Bytes::from(head))].into_iter().chain(items).chain([literal(b"]}\n")])
}

async fn streamed<I>(pieces: impl Fn() -> I + Send) -> Response
where
    I: Iterator<Item = Piece> + Send + 'static,
{
    let length = match length(pieces()).await {
        Ok(length) => length,
        Err(err) => {
            tracing::error!(%err, "an answer can't be written as JSON");
            let body = "500: Internal Server Error".to_owned();
            return health::plain((StatusCode::INTERNAL_SERVER_ERROR, body));
        }
    };
    let filled = pieces().filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty));
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
    ];
    (headers, Body::from_stream(tokio_stream::iter(filled))).into_response()
}

/// Bytes of all pieces together. Other tasks run in between.
async fn length(pieces: impl Iterator<Item = Piece>) -> Result<usize, serde_json::Error> {
    let (mut length, mut since_yield) = (0, 0);
    for piece in pieces {
        let bytes = piece?.len();
        length += bytes;
        since_yield += bytes;
        if since_yield >= YIELD_AFTER {
            since_yield = 0;
            yield_now().await;
        }
    }
    Ok(length)
}
