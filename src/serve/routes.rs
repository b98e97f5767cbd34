//! The paths of the local socket. A long answer is written as JSON part by part while the client
//! reads it, so that it is never in memory as a whole. Other tasks run between two parts.

use super::{
    AskRequest, Command, ForgetAnswer, ForgetRequest, Views,
    document::pod_object,
    follow::{Followed, follow},
    health,
    health::Health,
    stats::{self, MachineFacts},
    ui,
};
use crate::{
    event,
    model::{Ask, AskAnswer, PodKey, PodView},
};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::stream::{StreamExt as _, once, try_unfold};
use jiff::Timestamp;
use serde::Serialize;
use std::{future::ready, iter, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::yield_now,
    time::timeout,
};

/// Bytes that a request may carry.
const MAX_BODY: usize = 4096;
/// How long the agent may take to answer a command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);
pub(super) const JSON: &str = "application/json";
/// Bytes of an answer that are written without a break.
const PART: usize = 64 * 1024;

pub(super) type Piece = Result<Bytes, serde_json::Error>;

#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) views: Views,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) health: Health,
    pub(super) pod_logs_dir: PathBuf,
    pub(super) machine: Arc<MachineFacts>,
    /// When the certificate of the HTTPS API expires; `None` while there is none.
    pub(super) certificate_until: watch::Receiver<Option<Timestamp>>,
    pub(super) configuration: Arc<str>,
    /// The places of clients that follow.
    pub(super) followers: Arc<Semaphore>,
}

impl App {
    pub(super) fn pods(&self) -> Arc<[Arc<PodView>]> {
        self.views.pods.borrow().values().cloned().collect()
    }

    /// A view with the probes of its pod.
    fn with_probes(&self, pod: &PodView) -> Piece {
        match self.views.probes.borrow().get(&pod.key) {
            Some(probes) => json(&PodView { probes: probes.clone(), ..pod.clone() }),
            None => json(pod),
        }
    }
}

pub(super) fn router(app: App) -> Router {
    let health = health::router(app.health.clone());
    Router::new()
        .route("/status", get(status))
        .route("/events", get(events))
        .route("/forget", post(forget))
        .route("/restart", post(restart))
        .route("/retry", post(retry))
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app.clone())
        .merge(health)
        .merge(facts_router(app.clone()))
        .merge(stats::router(app.clone()))
        .merge(ui::router(app, false))
        .fallback(health::not_found)
}

/// What the agent tells of itself, on the local socket and on the HTTPS API alike.
pub(super) fn facts_router(app: App) -> Router {
    let configz = Router::new().route("/configz", get(configz)).with_state(app.clone());
    configz.merge(pods_router(app))
}

/// A `PodList`.
pub(super) fn pods_router(app: App) -> Router {
    Router::new()
        .route("/pods", get(pods))
        .route("/pods/", get(pods))
        .method_not_allowed_fallback(not_allowed)
        .with_state(app)
}

/// A [`super::StatusDocument`], or the pods as they change.
async fn status(State(app): State<App>, RawQuery(query): RawQuery) -> Response {
    if watches(query.as_deref()) {
        let Views { pods, node, .. } = app.views;
        return follow(Followed::Pods { pods, node, taken: None }, &app.followers);
    }
    let node = app.views.node.borrow().clone();
    let pods = app.pods();
    let log = app.views.events.borrow().clone();
    let events: Arc<[_]> = log.entries.as_slice().into();
    let (name, of_pods) = (node.name.clone(), app.clone());
    let tail = move || {
        [
            literal(b"],\"eventsDropped\":"),
            json(&log.dropped),
            literal(b",\"podLogsDir\":"),
            json(&app.pod_logs_dir),
            literal(b"}\n"),
        ]
    };
    let head = move || [literal(b"{\"node\":"), json(&*node), literal(b",\"pods\":[")];
    let pieces = later(head)
        .chain(listed(&pods, move |pod| of_pods.with_probes(pod)))
        .chain([literal(b"],\"events\":[")])
        .chain(listed(&events, event_object(&name)))
        .chain(later(tail));
    streamed(JSON, pieces)
}

/// The configuration that is in effect, with the cgroup driver that the runtime has told.
async fn configz(State(app): State<App>) -> Response {
    let mut all: serde_json::Value = serde_json::from_str(&app.configuration).unwrap_or_default();
    if let Some(driver) = app.views.node.borrow().cgroup_driver {
        all["cgroupDriver"] = driver.to_string().into();
    }
    Json(serde_json::json!({ "kubeletconfig": all })).into_response()
}

/// `v1` `PodList`, as the kubelet serves it.
async fn pods(State(app): State<App>) -> Response {
    let pods = app.pods();
    streamed(JSON, list("PodList", listed(&pods, |pod| json(&pod_object(pod)))))
}

/// True when the answer is to go on.
fn watches(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// `v1` `EventList`, or the events as they happen.
async fn events(State(app): State<App>, RawQuery(query): RawQuery) -> Response {
    let node_name = app.views.node.borrow().name.clone();
    if watches(query.as_deref()) {
        let (log, node_name) = (app.views.events, node_name.into());
        return follow(Followed::Events { log, node_name, taken: None }, &app.followers);
    }
    let events: Arc<[_]> = app.views.events.borrow().entries.as_slice().into();
    streamed(JSON, list("EventList", listed(&events, event_object(&node_name))))
}

fn event_object(node_name: &str) -> impl Fn(&Arc<event::Entry>) -> Piece + use<> {
    let node_name = node_name.to_owned();
    move |entry| json(&event::to_object(entry, &node_name))
}

async fn forget(State(app): State<App>, Json(request): Json<ForgetRequest>) -> Response {
    let (reply, answer) = oneshot::channel();
    let command = Command::Forget { key: request.key, reply };
    match carried_out(&app, command, answer).await {
        Ok(answer) => Json(answer).into_response(),
        Err((status, message)) => {
            (status, Json(ForgetAnswer::Failed { message: message.to_owned() })).into_response()
        }
    }
}

async fn restart(State(app): State<App>, Json(request): Json<AskRequest>) -> Response {
    ask(&app, request.key, Ask::Restart { container: request.container }).await
}

async fn retry(State(app): State<App>, Json(request): Json<AskRequest>) -> Response {
    ask(&app, request.key, Ask::Retry).await
}

async fn ask(app: &App, key: PodKey, ask: Ask) -> Response {
    let (reply, answer) = oneshot::channel();
    match carried_out(app, Command::Ask { key, ask, reply }, answer).await {
        Ok(answer) => Json(answer).into_response(),
        Err((status, message)) => {
            let message = format!("Nothing was done: {message}.");
            (status, Json(AskAnswer::Refused { message })).into_response()
        }
    }
}

/// Passes a command on and awaits its answer.
///
/// # Errors
/// There is no answer: the status and the reason.
async fn carried_out<T>(
    app: &App,
    command: Command,
    answer: oneshot::Receiver<T>,
) -> Result<T, (StatusCode, &'static str)> {
    if app.commands.try_send(command).is_err() {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "the agent is busy or about to stop"));
    }
    match timeout(COMMAND_DEADLINE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err((StatusCode::SERVICE_UNAVAILABLE, "the agent is about to stop")),
        Err(_) => {
            Err((StatusCode::GATEWAY_TIMEOUT, "the agent took it in but has not answered yet"))
        }
    }
}

pub(super) async fn not_allowed() -> Response {
    health::plain((StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned()))
}

pub(super) fn literal(text: &'static [u8]) -> Piece {
    Ok(Bytes::from_static(text))
}

pub(super) fn json(value: &impl Serialize) -> Piece {
    serde_json::to_vec(value).map(Bytes::from)
}

/// Pieces that are made when their turn comes.
fn later<const N: usize>(make: impl FnOnce() -> [Piece; N]) -> impl Iterator<Item = Piece> {
    iter::once_with(make).flatten()
}

/// Each item as a piece of its own, with commas between.
pub(super) fn listed<T, F: Fn(&T) -> Piece>(
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

/// An answer of one part has a Content-Length; a longer one is sent in chunks.
pub(super) fn streamed<I>(media_type: &'static str, pieces: I) -> Response
where
    I: Iterator<Item = Piece> + Send + 'static,
{
    let head = [(header::CONTENT_TYPE, media_type)];
    match write_part(pieces) {
        Ok(Part { bytes, rest: None }) => (head, bytes).into_response(),
        Ok(Part { bytes, rest }) => {
            let later = try_unfold(rest, |rest| async {
                yield_now().await;
                let part = rest.map(write_part).transpose()?;
                Ok::<_, serde_json::Error>(part.map(|part| (part.bytes, part.rest)))
            });
            let parts = once(ready(Ok(bytes))).chain(later);
            (head, Body::from_stream(parts)).into_response()
        }
        Err(err) => {
            tracing::error!(%err, "an answer can't be written");
            let body = "500: Internal Server Error".to_owned();
            health::plain((StatusCode::INTERNAL_SERVER_ERROR, body))
        }
    }
}

/// Some bytes of an answer, and what comes after them.
struct Part<I> {
    bytes: Bytes,
    /// `None` after the last part.
    rest: Option<I>,
}

/// Writes the next pieces: until there are [`PART`] bytes, or no more pieces.
fn write_part<I: Iterator<Item = Piece>>(mut pieces: I) -> Result<Part<I>, serde_json::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < PART {
        match pieces.next() {
            Some(piece) => bytes.extend_from_slice(&piece?),
            None => return Ok(Part { bytes: bytes.into(), rest: None }),
        }
    }
    Ok(Part { bytes: bytes.into(), rest: Some(pieces) })
}
