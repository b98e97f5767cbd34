//! The paths of the HTTPS API, with the kubelet's answers and error texts.

use super::{
    container_logs::container_logs,
    counted,
    guard::{self, Guard},
    relay::{Refused, Relays, asks_for_upgrade},
    system_logs,
};
use crate::{
    cri::{CriError, ExecOutput, RuntimeClient, Streams, from_cri},
    model::{ContainerInstance, PodKey, PodView, SandboxId, SandboxState, SystemLogs},
    podspec::all_containers,
    serve::{health, routes as local, stats, ui},
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, any, get, on, post},
};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// Bytes that a request may carry.
const MAX_BODY: usize = 64 << 10;
const SESSION: MethodFilter = MethodFilter::GET.or(MethodFilter::POST);

/// What answers are made from.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Api {
    pub(in crate::serve) local: local::App,
    pub(in crate::serve) runtime: RuntimeClient,
    pub(in crate::serve) relays: Relays,
}

type Pairs = Vec<(String, String)>;

/// All paths of the HTTPS API but `/flagz` and `/statusz`, without the guard.
pub(super) fn router(api: Api, debugging_handlers: bool, system_logs: SystemLogs) -> Router {
    let health = health::router(api.local.health.clone());
    let facts = local::facts_router(api.local.clone());
    let stats = stats::router(api.local.clone());
    let ui = ui::router(api.local.clone(), true);
    let mut router =
        Router::new().route("/checkpoint/{namespace}/{pod}/{container}", post(no_checkpoint));
    let system_logs = match debugging_handlers {
        true => system_logs::router(system_logs, api.relays.clone()),
        false => Router::new(),
    };
    if debugging_handlers {
        router = router
            .route("/runningpods/", get(running_pods))
            .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
            .route("/run/{namespace}/{pod}/{container}", post(run))
            .route("/run/{namespace}/{pod}/{uid}/{container}", post(run))
            .merge(sessions_routes());
    } else {
        router = router.merge(without_debugging());
    }
    router
        .method_not_allowed_fallback(local::not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(api)
        .merge(health)
        .merge(facts)
        .merge(stats)
        .merge(ui)
        .merge(system_logs)
}

/// Keeps a browser from guessing what an answer is. The log of a container may look like a page
/// with scripts, and they would have the rights of a page of this node.
async fn forbid_sniffing(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Puts the guard in front of all paths, unknown ones included.
pub(super) fn guarded(router: Router, guard: Arc<Guard>) -> Router {
    router
        .fallback(health::not_found)
        .layer(middleware::from_fn(counted::count))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .layer(middleware::map_response(forbid_sniffing))
}

/// The paths of the read-only port: health, pods, statistics and metrics.
pub(super) fn read_only_router(app: local::App) -> Router {
    without_debugging()
        .merge(health::router(app.health.clone()))
        .merge(local::pods_router(app.clone()))
        .merge(stats::router(app))
        .fallback(health::not_found)
        .layer(middleware::from_fn(only_reads))
}

/// Nobody is known there, so nobody changes anything.
async fn only_reads(request: Request, next: Next) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD | Method::POST => next.run(request).await,
        _ => local::not_allowed().await,
    }
}

/// The kubelet's answer on paths that are switched off.
fn without_debugging<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let mut router =
        Router::new().route("/runningpods/", any(no_debugging)).route("/logs/", any(no_debugging));
    for path in ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs"] {
        router = router.route(&format!("/{path}/{{*path}}"), any(no_debugging));
    }
    router
}

/// The paths of sessions, for the local socket.
pub(in crate::serve) fn sessions_router(api: Api) -> Router {
    sessions_routes().method_not_allowed_fallback(local::not_allowed).with_state(api)
}

fn sessions_routes() -> Router<Api> {
    Router::new()
        .route("/exec/{namespace}/{pod}/{container}", on(SESSION, exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", on(SESSION, exec))
        .route("/attach/{namespace}/{pod}/{container}", on(SESSION, attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", on(SESSION, attach))
        .route("/portForward/{namespace}/{pod}", on(SESSION, port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", on(SESSION, port_forward))
}

async fn no_debugging() -> Refused {
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.")
}

async fn no_checkpoint() -> Refused {
    Refused::new(
        StatusCode::NOT_FOUND,
        "this node agent does not support checkpoints of containers",
    )
}

/// The pods of which a container runs: names and images alone.
async fn running_pods(State(api): State<Api>) -> Response {
    let running = |view: &PodView| {
        let runs = |name: &str| {
            view.containers.iter().any(|c| &*c.name == name && c.running_since.is_some())
        };
        let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
        let containers: Vec<_> = spec
            .into_iter()
            .flat_map(all_containers)
            .filter(|container| runs(&container.name))
            .map(|container| json!({ "name": container.name, "image": container.image, "resources": {} }))
            .collect();
        (!containers.is_empty()).then(|| {
            json!({
                "metadata": {
                    "name": view.key.name, "namespace": view.key.namespace, "uid": view.uid,
                },
                "spec": { "containers": containers },
                "status": {},
            })
        })
    };
    let items: Vec<_> = api.local.pods().iter().filter_map(|view| running(view)).collect();
    Json(json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
        .into_response()
}

async fn logs(
    State(api): State<Api>,
    Path(place): Path<PodPath>,
    Query(query): Query<Pairs>,
) -> Result<Response, Refused> {
    let Some(view) = api.view(&place) else {
        let text = format!("pod {:?} does not exist", place.pod);
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    };
    let turn = api.relays.place()?;
    let views = api.local.views.pods.clone();
    container_logs(&api.local.pod_logs_dir, views, (view, place.container), &query, turn).await
}

/// Runs a command to its end.
async fn run(
    State(api): State<Api>,
    Path(place): Path<PodPath>,
    Query(query): Query<Pairs>,
) -> Result<Response, Refused> {
    api.run(&place, &query).await
}

async fn exec(
    State(api): State<Api>,
    Path(place): Path<PodPath>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Result<Response, Refused> {
    api.session(&place, Session::Exec, &query, request).await
}

async fn attach(
    State(api): State<Api>,
    Path(place): Path<PodPath>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Result<Response, Refused> {
    api.session(&place, Session::Attach, &query, request).await
}

async fn port_forward(
    State(api): State<Api>,
    Path(place): Path<PodPath>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Result<Response, Refused> {
    api.session(&place, Session::PortForward, &query, request).await
}

/// What a path names.
#[derive(Deserialize)]
struct PodPath {
    namespace: String,
    pod: String,
    #[serde(default)]
    uid: Option<String>,
    /// Empty where the path names none.
    #[serde(default)]
    container: String,
}

/// What a client wants to be connected with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Exec,
    Attach,
    PortForward,
}

impl Api {
    fn view(&self, place: &PodPath) -> Option<Arc<PodView>> {
        let key = PodKey::new(&place.namespace, &place.pod);
        let view = self.local.views.pods.borrow().get(&key).cloned()?;
        place.uid.as_ref().is_none_or(|uid| *uid == *view.uid.as_str()).then_some(view)
    }

    async fn session(
        &self,
        place: &PodPath,
        session: Session,
        query: &[(String, String)],
        request: Request,
    ) -> Result<Response, Refused> {
        let url = self.prepared(place, session, query, request.headers()).await?;
        Ok(self.relays.relay(request, &url, self.relays.place()?).await)
    }

    /// The URL at which the runtime waits for the client.
    async fn prepared(
        &self,
        place: &PodPath,
        session: Session,
        query: &[(String, String)],
        headers: &HeaderMap,
    ) -> Result<String, Refused> {
        let streams = streams(query);
        let none = Streams { tty: streams.tty, ..Streams::default() } == streams;
        if none && session != Session::PortForward {
            let text = "you must specify at least 1 of stdin, stdout, stderr";
            return Err(Refused::new(StatusCode::BAD_REQUEST, text));
        }
        let Some(view) = self.view(place) else {
            return Err(Refused::new(StatusCode::NOT_FOUND, "pod does not exist"));
        };
        if !asks_for_upgrade(headers) {
            return Err(failed("Upgrade request required"));
        }
        let container = &place.container;
        let url = match session {
            Session::Exec => {
                let found = instance(&view, container).ok_or_else(|| no_container(container))?;
                let command = values(query, "command").map(ToOwned::to_owned).collect();
                self.runtime.exec(&found.id, command, streams).await
            }
            Session::Attach => {
                let found = instance(&view, container).ok_or_else(|| {
                    let (pod, namespace) = (&place.pod, &place.namespace);
                    failed(format!("container {container} not found in pod {pod}_{namespace}"))
                })?;
                let tty = has_terminal(&view, container);
                let streams = Streams { tty, stderr: streams.stderr && !tty, ..streams };
                self.runtime.attach(&found.id, streams).await
            }
            Session::PortForward => {
                let ports = ports(query)?;
                let sandbox = self.sandbox(&view).await.map_err(|error| of_runtime(&error))?;
                let sandbox = sandbox.ok_or_else(|| {
                    failed(format!("pod not found (\"{}_{}\")", place.pod, place.namespace))
                })?;
                self.runtime.port_forward(&sandbox, ports).await
            }
        };
        url.map_err(|error| of_runtime(&error))
    }

    /// The output of a command (`cmd`, whose words are separated by single spaces). One that fails
    /// is an error, with its output.
    async fn run(&self, place: &PodPath, query: &[(String, String)]) -> Result<Response, Refused> {
        let Some(view) = self.view(place) else {
            return Err(Refused::new(StatusCode::NOT_FOUND, "pod does not exist"));
        };
        let container = &place.container;
        let found = instance(&view, container).ok_or_else(|| no_container(container))?;
        let command = values(query, "cmd").next().unwrap_or_default();
        let command = command.split(' ').map(ToOwned::to_owned).collect();
        let turn = self.relays.place()?;
        let ended = self.runtime.exec_to_end(&found.id, command).await;
        drop(turn);
        match ended.map_err(|error| of_runtime(&error))? {
            ExecOutput { exit_code: 0, output } => {
                Ok(([(header::CONTENT_TYPE, "application/json")], output).into_response())
            }
            ExecOutput { exit_code, output } => {
                let output = String::from_utf8_lossy(&output);
                Err(failed(format!("command terminated with exit code {exit_code}: {output}")))
            }
        }
    }

    /// The sandbox in which a pod runs.
    async fn sandbox(&self, view: &PodView) -> Result<Option<SandboxId>, CriError> {
        let listed = self.runtime.list_sandboxes(crate::cri::ListFilter::Pod(&view.key)).await?;
        let found = listed.into_iter().filter_map(from_cri::listed_sandbox).map(|(_, found)| found);
        let runs = found.filter(|s| s.uid == view.uid && s.state == SandboxState::Ready);
        Ok(runs.max_by_key(|sandbox| sandbox.attempt).map(|sandbox| sandbox.id))
    }
}

fn failed(text: impl Into<String>) -> Refused {
    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn no_container(container: &str) -> Refused {
    failed(format!("container not found (\"{container}\")"))
}

fn instance<'a>(view: &'a PodView, container: &str) -> Option<&'a ContainerInstance> {
    view.containers.iter().find(|one| &*one.name == container && one.running_since.is_some())
}

fn has_terminal(view: &PodView, container: &str) -> bool {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let found = spec.and_then(|spec| all_containers(spec).find(|one| one.name == container));
    found.is_some_and(|one| one.tty == Some(true))
}

/// The runtime's error with the kubelet's status.
fn of_runtime(error: &CriError) -> Refused {
    match error {
        CriError::NotFound { message } => Refused::new(StatusCode::NOT_FOUND, message),
        CriError::Other { code, message } if code == "ResourceExhausted" => {
            Refused::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
        CriError::Other { .. }
        | CriError::Unavailable { .. }
        | CriError::DeadlineExceeded { .. }
        | CriError::ExecTimedOut { .. }
        | CriError::NameReserved { .. }
        | CriError::Unimplemented { .. }
        | CriError::Endpoint { .. } => failed(error.to_string()),
    }
}

fn values<'a>(query: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    query.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// A stream is wanted where the first value of its parameter is `1`. A terminal has no standard
/// error of its own.
fn streams(query: &[(String, String)]) -> Streams {
    let wants = |name: &str| values(query, name).next() == Some("1");
    let tty = wants("tty");
    Streams { stdin: wants("input"), stdout: wants("output"), stderr: wants("error") && !tty, tty }
}

/// `port=80,443`
fn ports(query: &[(String, String)]) -> Result<Vec<i32>, Refused> {
    let named = values(query, "port").flat_map(|list| list.split(','));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).map(i32::from);
    named
        .map(|text| {
            port(text).ok_or_else(|| {
                let text = format!("unable to parse {text:?} as a port");
                Refused::new(StatusCode::BAD_REQUEST, text)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn query(text: &str) -> Pairs {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn streams_are_those_that_are_one() {
        let all = streams(&query("input=1&output=1&error=1&command=ls"));
        assert_eq!(all, Streams { stdin: true, stdout: true, stderr: true, tty: false });
        let terminal = streams(&query("output=1&error=1&tty=1"));
        assert_eq!(terminal, Streams { stdin: false, stdout: true, stderr: false, tty: true });
        assert_eq!(streams(&query("input=true&stdout=1&output=0")), Streams::default());
    }

    #[test]
    fn ports_are_numbers() {
        assert_eq!(ports(&query("port=80,443&port=8080")).unwrap(), [80, 443, 8080]);
        assert_eq!(ports(&query("")).unwrap(), Vec::<i32>::new());
        for wrong in ["port=http", "port=0", "port=70000", "port=80,"] {
            assert_eq!(ports(&query(wrong)).unwrap_err().0, 400, "{wrong}");
        }
    }
}
