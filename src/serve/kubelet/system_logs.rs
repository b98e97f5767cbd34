//! `/logs/`: files below /var/log, and the logs of services, which the journal has or files there.
//! Both are off unless they are switched on.

mod files;
mod query;

use super::relay::{Refused, Relays};
use crate::{
    blocking::LOG_READS,
    model::SystemLogs,
    program::{self, Output, Program},
    serve::{follow::Pace, routes as local},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path as PathOf, Query, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use files::Found;
use futures_util::stream::unfold;
use nix::errno::Errno;
use query::LogQuery;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

/// Where the logs of the system are.
const DIR: &str = "/var/log";
/// The longest time that the logs of services are read, as the kubelet's.
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes that are read at a time.
const PART: usize = 64 << 10;

#[derive(Clone)]
struct Logs {
    dir: PathBuf,
    with_services: bool,
    relays: Relays,
}

pub(super) fn router(which: SystemLogs, relays: Relays) -> Router {
    let with_services = match which {
        SystemLogs::Off => {
            return Router::new().route("/logs/", get(off)).route("/logs/{*path}", get(off));
        }
        SystemLogs::Files => false,
        SystemLogs::FilesAndServices => true,
    };
    Router::new()
        .route("/logs/", get(top))
        .route("/logs/{*path}", get(below))
        .method_not_allowed_fallback(local::not_allowed)
        .with_state(Logs { dir: DIR.into(), with_services, relays })
}

async fn off() -> Refused {
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.")
}

type Pairs = Vec<(String, String)>;

async fn top(State(logs): State<Logs>, Query(query): Query<Pairs>) -> Result<Response, Refused> {
    let place = logs.relays.place()?;
    if logs.with_services && query.iter().any(|(name, _)| name == "query") {
        return asked(logs.dir, &query, place).await;
    }
    found(logs.dir, "", place).await
}

async fn below(
    State(logs): State<Logs>,
    PathOf(path): PathOf<String>,
) -> Result<Response, Refused> {
    found(logs.dir, &path, logs.relays.place()?).await
}

/// A file, or the names in a directory.
async fn found(dir: PathBuf, path: &str, place: OwnedSemaphorePermit) -> Result<Response, Refused> {
    let relative = PathBuf::from(path);
    let found = opened(dir, relative.clone()).await?;
    match found {
        Found::File(file) => {
            let kind = match relative.extension() {
                Some(end) if end == "gz" => "application/gzip",
                Some(_) | None => "text/plain; charset=utf-8",
            };
            Ok(sent(vec![Part::File(file)], None, place, kind))
        }
        // Names in a page are relative to it.
        Found::Directory(_) if !path.is_empty() && !path.ends_with('/') => {
            let name = relative.file_name().unwrap_or_default().to_string_lossy();
            let encoded = files::encoded(&format!("{name}/"));
            Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, encoded)]).into_response())
        }
        Found::Directory(names) => {
            let head = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), DEFENCE];
            Ok((head, files::listing(&names)).into_response())
        }
    }
}

/// The page of a directory has names that anybody may have given.
const DEFENCE: (HeaderName, &str) = (header::CONTENT_SECURITY_POLICY, "default-src 'none'");

async fn opened(dir: PathBuf, relative: PathBuf) -> Result<Found, Refused> {
    let opened = LOG_READS.run(move || files::open(&dir, &relative)).await;
    opened.map_err(io::Error::other).flatten().map_err(|error| {
        if leads_nowhere(&error) {
            return Refused::new(StatusCode::NOT_FOUND, "404 page not found");
        }
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })
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

/// The node log query: the logs of services, or one file.
async fn asked(
    dir: PathBuf,
    pairs: &[(String, String)],
    place: OwnedSemaphorePermit,
) -> Result<Response, Refused> {
    let query = LogQuery::parse(pairs).map_err(|error| {
        let status = match error {
            query::QueryError::Undecodable(_) => StatusCode::BAD_REQUEST,
            query::QueryError::Invalid(_) => StatusCode::NOT_ACCEPTABLE,
        };
        Refused::new(status, error.to_string())
    })?;
    let end = Instant::now() + DEADLINE;
    let mut parts = Vec::new();
    if let Some(file) = &query.file {
        parts.push(file_of(&dir, Path::new(file)).await?);
    }
    let mut of_journal = Vec::new();
    for service in &query.services {
        if in_journal(service, end).await {
            of_journal.push(service.as_str());
        } else if let Some(part) = in_files(&dir, service).await {
            parts.push(part);
        }
    }
    if !of_journal.is_empty() {
        parts.insert(0, Part::Unread(journalctl(query.arguments(&of_journal))));
    }
    if parts.is_empty() {
        let services = query.services.join(", ");
        let text = format!("there is no log of {services} in the journal or below {DIR}");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    Ok(sent(parts, Some(end), place, "text/plain; charset=utf-8"))
}

async fn file_of(dir: &Path, relative: &Path) -> Result<Part, Refused> {
    let relative = relative.strip_prefix("/").unwrap_or(relative);
    match opened(dir.to_owned(), relative.to_owned()).await? {
        Found::File(file) => Ok(Part::File(file)),
        Found::Directory(_) => Err(Refused::new(StatusCode::NOT_FOUND, "it is a directory")),
    }
}

/// The names that a service's log file usually has.
async fn in_files(dir: &Path, service: &str) -> Option<Part> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        if let Ok(part) = file_of(dir, Path::new(&name)).await {
            return Some(part);
        }
    }
    None
}

fn journalctl(args: Vec<String>) -> Program {
    Program { program: "journalctl".into(), args, env: Vec::new() }
}

async fn in_journal(service: &str, end: Instant) -> bool {
    let unit = format!("--unit={service}");
    let args = ["--quiet", "--no-pager", "--lines=1", &unit].map(ToOwned::to_owned).to_vec();
    let Ok(mut output) = program::output(journalctl(args), &LOG_READS).await else { return false };
    let mut line = [0; 1];
    matches!(timeout_at(end, output.read(&mut line)).await, Ok(Ok(1..)))
}

/// Something that is sent.
enum Part {
    File(File),
    /// A program that is not started yet.
    Unread(Program),
    Program(Output),
}

/// What is left to be sent.
struct Sending {
    /// The next one last.
    parts: Vec<Part>,
    end: Option<Instant>,
    pace: Pace,
    _place: OwnedSemaphorePermit,
}

fn sent(
    mut parts: Vec<Part>,
    end: Option<Instant>,
    place: OwnedSemaphorePermit,
    kind: &'static str,
) -> Response {
    parts.reverse();
    let pace = Pace::default();
    let sending = Sending { parts, end, pace: pace.clone(), _place: place };
    let bytes = unfold(sending, |mut sending| async move {
        let part = sending.next().await.transpose()?;
        Some((part, sending))
    });
    let mut response = Body::from_stream(bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.extensions_mut().insert(pace);
    response
}

impl Sending {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.pace.moves();
        while let Some(part) = self.parts.pop() {
            let Some(next) = self.in_time(read(part)).await? else { return Ok(None) };
            if let (bytes, Some(part)) = next {
                self.parts.push(part);
                if !bytes.is_empty() {
                    return Ok(Some(bytes));
                }
            }
        }
        Ok(None)
    }

    /// `None`: the time for the whole answer is over.
    async fn in_time<T>(&self, read: impl Future<Output = io::Result<T>>) -> io::Result<Option<T>> {
        match self.end {
            None => read.await.map(Some),
            Some(end) => match timeout_at(end, read).await {
                Ok(read) => read.map(Some),
                Err(_) => Ok(None),
            },
        }
    }
}

/// Some bytes, and the rest unless there is none.
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
        Part::Unread(program) => {
            let output = program::output(program, &LOG_READS).await?;
            Ok((Bytes::new(), Some(Part::Program(output))))
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
