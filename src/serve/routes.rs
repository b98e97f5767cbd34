//! The paths of the local socket. Long answers are made pod by pod while they are sent, so that an
//! answer about many pods never lies in memory as a whole.

use super::{
    Command, ForgetAnswer, ForgetRequest, Views, document::pod_object, health, health::Health,
};
use crate::event;
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use std::{path::PathBuf, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// Bytes that a request may carry.
const MAX_BODY: usize = 4096;
/// How long the agent may take to answer a command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

type Piece = Result<Bytes, serde_json::Error>;

#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) views: Views,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) health: Health,
    pub(super) pod_logs_dir: PathBuf,
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
    let pods: Vec<_> = app.views.pods.borrow().values().cloned().collect();
    let log = app.views.events.borrow().clone();
    let tail = [
        literal(b",\"eventsDropped\":"),
        json(&log.dropped),
        literal(b",\"podLogsDir\":"),
        json(&app.pod_logs_dir),
        literal(b"}\n"),
    ];
    let events = event::to_objects(&log, &node.name);
    let pieces = [literal(b"{\"node\":"), json(&*node), literal(b",\"pods\":[")]
        .into_iter()
        .chain(listed(pods, |pod| json(&**pod)))
        .chain([literal(b"],\"events\":[")])
        .chain(listed(events, json))
        .chain([literal(b"]")])
        .chain(tail);
    streamed(pieces)
}

/// `v1` `PodList`, as the kubelet serves it.
async fn pods(State(app): State<App>) -> Response {
    let pods: Vec<_> = app.views.pods.borrow().values().cloned().collect();
    streamed(list("PodList", listed(pods, |pod| json(&pod_object(pod)))))
}

/// `v1` `EventList`.
async fn events(State(app): State<App>) -> Response {
    let node_name = app.views.node.borrow().name.clone();
    let events = app.views.events.borrow().entries.clone();
    let pieces = listed(events, move |entry| json(&event::to_object(entry, &node_name)));
    streamed(list("EventList", pieces))
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
fn listed<T>(
    items: Vec<T>,
    make: impl Fn(&T) -> Piece + Send + 'static,
) -> impl Iterator<Item = Piece>
where
    T: Send + 'static,
{
    items.into_iter().enumerate().flat_map(move |(n, item)| {
        let comma = if n == 0 { literal(b"") } else { literal(b",") };
        [comma, make(&item)]
    })
}

fn list(kind: &str, items: impl Iterator<Item = Piece>) -> impl Iterator<Item = Piece> {
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"items\":[");
    [Ok(Bytes::from(head))].into_iter().chain(items).chain([literal(b"]}\n")])
}

fn streamed(pieces: impl Iterator<Item = Piece> + Send + 'static) -> Response {
    let pieces = pieces.filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty));
    let body = Body::from_stream(tokio_stream::iter(pieces));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
