//! `/logs/`: serves files below /var/log, and the logs of services from the journal or from such
//! files. Both are off unless they are switched on.

mod files;
mod query;

use super::relay::{Refused, Relays};
use crate::{
    blocking::LOG_READS,
    model::SystemLogs,
    program::{self, Program, ProgramOutput},
    serve::{follow::Pace, routes as local},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path as PathOf, Query, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use files::Found;
use futures_util::stream::{StreamExt as _, iter, unfold};
use nix::errno::Errno;
use query::{NodeLogQuery, NodeLogQueryError};
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Where the logs of the system are.
const DIR: &str = "/var/log";
/// The longest time that the logs of services are read, as the kubelet's.
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes that are read at a time.
const PART: usize = 64 << 10;
const TEXT: &str = "text/plain; charset=utf-8";

/// The most queries at a time: each runs a program.
const MOST_QUERIES: usize = 4;

#[derive(Clone)]
struct SystemLogFiles {
    dir: PathBuf,
    /// The places of queries; `None`: services are not served.
    queries: Option<Arc<Semaphore>>,
    relays: Relays,
}

pub(super) fn router(which: SystemLogs, relays: Relays) -> Router {
    let queries = match which {
        SystemLogs::Off => {
            return Router::new()
                .route("/logs/", get(refuse_disabled))
                .route("/logs/{*path}", get(refuse_disabled))
                .method_not_allowed_fallback(local::not_allowed);
        }
        SystemLogs::Files => None,
        SystemLogs::FilesAndServices => Some(Arc::new(Semaphore::new(MOST_QUERIES))),
    };
    Router::new()
        .route("/logs/", get(serve_root))
        .route("/logs/{*path}", get(serve_path))
        .method_not_allowed_fallback(local::not_allowed)
        .with_state(SystemLogFiles { dir: DIR.into(), queries, relays })
}

async fn refuse_disabled() -> Refused {
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.")
}

type Pairs = Vec<(String, String)>;

async fn serve_root(
    State(logs): State<SystemLogFiles>,
    Query(query): Query<Pairs>,
) -> Result<Response, Refused> {
    let place = logs.relays.place()?;
    let asks = query.iter().any(|(name, _)| name == "query");
    let Some(queries) = logs.queries.filter(|_| asks) else {
        return serve_found(logs.dir, "", place).await;
    };
    let turn = queries.try_acquire_owned().map_err(|_| {
        let text = "too many logs are queried: try again later";
        Refused::new(StatusCode::TOO_MANY_REQUESTS, text)
    })?;
    answer_query(logs.dir, &query, Held { _place: place, _turn: Some(turn) }).await
}

async fn serve_path(
    State(logs): State<SystemLogFiles>,
    PathOf(path): PathOf<String>,
) -> Result<Response, Refused> {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    let steps_up = path.split('/').any(|part| part == "." || part == "..");
    if steps_up || !Path::new(&path).components().all(plain) {
        return Err(not_found());
    }
    serve_found(logs.dir, &path, logs.relays.place()?).await
}

/// Answers with a file, or with the names in a directory.
async fn serve_found(
    dir: PathBuf,
    path: &str,
    place: OwnedSemaphorePermit,
) -> Result<Response, Refused> {
    let relative = PathBuf::from(path);
    match open_below(dir, relative.clone()).await? {
        Found::File(file) => {
            let kind = match relative.extension() {
                Some(end) if end == "gz" => "application/gzip",
                Some(_) | None => TEXT,
            };
            let held = Held { _place: place, _turn: None };
            stream_parts(vec![Part::File(file)], None, held, kind).await
        }
        // Links in a listing are relative to it.
        Found::Directory(_) if !path.is_empty() && !path.ends_with('/') => {
            let name = relative.file_name().unwrap_or_default().to_string_lossy();
            let encoded = files::encoded(&format!("{name}/"));
            Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, encoded)]).into_response())
        }
        Found::Directory(listing) => {
            // File names in a listing are untrusted.
            let head = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
            ];
            Ok((head, listing.page()).into_response())
        }
    }
}

async fn open_below(dir: PathBuf, relative: PathBuf) -> Result<Found, Refused> {
    let opened = LOG_READS.run(move || files::open(&dir, &relative)).await;
    opened.map_err(io::Error::other).flatten().map_err(|error| {
        if leads_nowhere(&error) {
            return not_found();
        }
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })
}

fn not_found() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "404 page not found")
}

/// There is nothing of this name, or it leads out of the directory.
fn leads_nowhere(error: &io::Error) -> bool {
    match error.raw_os_error().map(Errno::from_raw) {
        // A name with a NUL has no errno.
        None => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput),
        Some(errno) => matches!(
            errno,
            Errno::ENOENT | Errno::ENOTDIR | Errno::EXDEV | Errno::ELOOP | Errno::ENAMETOOLONG
        ),
    }
}

/// Answers the node log query: with the logs of services, or with one file.
async fn answer_query(
    dir: PathBuf,
    pairs: &[(String, String)],
    held: Held,
) -> Result<Response, Refused> {
    let query = NodeLogQuery::parse(pairs).map_err(|error| {
        let status = match error {
            NodeLogQueryError::Undecodable(_) => StatusCode::BAD_REQUEST,
            NodeLogQueryError::Invalid(_) => StatusCode::NOT_ACCEPTABLE,
        };
        Refused::new(status, error.to_string())
    })?;
    let end = Instant::now() + DEADLINE;
    let mut parts = Vec::new();
    if let Some(file) = &query.file {
        parts.push(open_log_file(&dir, Path::new(file)).await?);
    }
    let mut in_journal = Vec::new();
    for service in &query.services {
        if has_journal(service, end).await {
            in_journal.push(service.as_str());
        } else if let Some(part) = find_log_file(&dir, service).await {
            parts.push(part);
        }
    }
    if !in_journal.is_empty() {
        parts.insert(0, Part::NotStarted(journalctl(query.arguments(&in_journal))));
    }
    if parts.is_empty() {
        let services = query.services.join(", ");
        let text = format!("there is no log of {services} in the journal or below {DIR}");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    stream_parts(parts, Some(end), held, TEXT).await
}

async fn open_log_file(dir: &Path, path: &Path) -> Result<Part, Refused> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    match open_below(dir.to_owned(), relative.to_owned()).await? {
        Found::File(file) => Ok(Part::File(file)),
        Found::Directory(_) => Err(Refused::new(StatusCode::NOT_FOUND, "it is a directory")),
    }
}

/// Tries the names that the log file of a service usually has.
async fn find_log_file(dir: &Path, service: &str) -> Option<Part> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        if let Ok(part) = open_log_file(dir, Path::new(&name)).await {
            return Some(part);
        }
    }
    None
}

fn journalctl(args: Vec<String>) -> Program {
    Program { program: "journalctl".into(), args, env: Vec::new() }
}

async fn has_journal(service: &str, end: Instant) -> bool {
    let unit = format!("--unit={service}");
    let args = ["--quiet", "--no-pager", "--lines=1", &unit].map(ToOwned::to_owned).to_vec();
    let Ok(mut output) = program::output(journalctl(args), &LOG_READS).await else { return false };
    let mut line = [0; 1];
    matches!(timeout_at(end, output.read(&mut line)).await, Ok(Ok(1..)))
}

/// A part of the answer.
enum Part {
    File(File),
    NotStarted(Program),
    Program(Box<ProgramOutput>),
}

/// What an answer holds for as long as it is sent.
struct Held {
    _place: OwnedSemaphorePermit,
    _turn: Option<OwnedSemaphorePermit>,
}

/// What is left to be sent.
struct SendingSystemLogs {
    /// The next one last.
    parts: Vec<Part>,
    end: Option<Instant>,
    pace: Pace,
    _held: Held,
}

/// Answers with these parts, once the first bytes are there: what fails before is an error.
async fn stream_parts(
    mut parts: Vec<Part>,
    end: Option<Instant>,
    held: Held,
    kind: &'static str,
) -> Result<Response, Refused> {
    parts.reverse();
    let pace = Pace::default();
    let mut sending = SendingSystemLogs { parts, end, pace: pace.clone(), _held: held };
    let first = sending
        .next()
        .await
        .map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let rest = unfold(sending, |mut sending| async move {
        let part = sending.next().await.transpose()?;
        Some((part, sending))
    });
    let mut response = Body::from_stream(iter(first.map(Ok)).chain(rest)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.extensions_mut().insert(pace);
    Ok(response)
}

impl SendingSystemLogs {
    /// The next bytes; `None` at the end. An error breaks the connection, so that the client sees
    /// that something is missing.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.pace.moves();
        while let Some(part) = self.parts.pop() {
            let (bytes, rest) = match self.end {
                None => read(part).await?,
                Some(end) => timeout_at(end, read(part)).await??,
            };
            self.parts.extend(rest);
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Reads some bytes; gives the rest of the part, unless it has ended.
async fn read(part: Part) -> io::Result<(Bytes, Option<Part>)> {
    match part {
        Part::File(mut file) => {
            let read = LOG_READS.run(move || {
                let mut bytes = vec![0; PART];
                let length = file.read(&mut bytes)?;
                bytes.truncate(length);
                Ok::<_, io::Error>((bytes, file))
            });
            let (bytes, file) = read.await.map_err(io::Error::other).flatten()?;
            let rest = (!bytes.is_empty()).then_some(Part::File(file));
            Ok((bytes.into(), rest))
        }
        Part::NotStarted(program) => {
            let output = program::output(program, &LOG_READS).await?;
            Ok((Bytes::new(), Some(Part::Program(Box::new(output)))))
        }
        Part::Program(mut output) => {
            let mut bytes = vec![0; PART];
            let length = output.read(&mut bytes).await?;
            bytes.truncate(length);
            let rest = (length > 0).then_some(Part::Program(output));
            Ok((bytes.into(), rest))
        }
    }
}
