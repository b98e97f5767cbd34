//! `nodelet logs POD`: prints what a container wrote, read from the files that the runtime writes.
//!
//! A running agent says which pod is meant, which incarnation runs and where the logs lie; without
//! one the directories themselves have to tell, and the newest incarnation is taken. Both of a
//! container's streams are printed to standard output, as `kubectl logs` does.

use super::{
    EXIT_NO_AGENT,
    args::{LogsArgs, UsageError},
    status::{SelectError, Wanted},
};
use crate::{
    clock,
    logs::{self, LogDir, PodLogs, Position, Printer, Run, beginnings},
    machine,
    model::{Order as _, PodKey, PodView, k8s},
    podspec::pod_log_directory_name,
    serve::{Client, ClientError, StatusDocument},
    status::{container_statuses, present_run},
};
use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};
use thiserror::Error;

/// Where logs lie when no agent says otherwise.
const DEFAULT_DIR: &str = "/var/log/pods";

/// Why there is no log.
#[derive(Debug, Error)]
pub(super) enum LogsError {
    #[error("wrong command line")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(
        "{error}. Only {DEFAULT_DIR} was searched, because no agent reported its log directory ({why}); use --pod-logs-dir for another directory"
    )]
    SelectAlone { error: SelectError, why: String },
    #[error("can't read the logs in {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("can't copy the log to standard output")]
    Write(#[from] io::Error),
    #[error("container \"{container}\" not found in pod \"{pod}\"; it has {known}")]
    NoSuchContainer { container: String, pod: PodKey, known: String },
    #[error("pod \"{pod}\" has several containers, say which with -c: {known}")]
    WhichContainer { pod: PodKey, known: String },
    #[error("container \"{container}\" in pod \"{pod}\" has written no log yet{why}")]
    NoLog { container: String, pod: PodKey, why: String },
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found{why}")]
    NoPrevious { container: String, pod: PodKey, why: String },
}

/// A container whose log is wanted.
#[derive(Debug)]
struct Target {
    pod: PodKey,
    container: String,
    /// Its directory.
    path: PathBuf,
    /// Why it does not run, where the agent knows.
    why: String,
    /// The number of its present run, where the agent knows it. Its log may not exist yet.
    present: Option<u32>,
    /// To be told before the log.
    note: Option<String>,
}

/// Finds the log and prints it.
pub(super) async fn run(args: LogsArgs) -> Result<ExitCode, LogsError> {
    let agent = Client::new(&args.agent.socket()).status().await;
    let target = match locate(&args, &agent) {
        Ok(target) => target,
        Err(error @ LogsError::SelectAlone { .. }) => {
            hint(&format!("nodelet: {error}"));
            return Ok(ExitCode::from(EXIT_NO_AGENT));
        }
        Err(error) => return Err(error),
    };
    if let Some(note) = &target.note {
        hint(note);
    }
    let since = args.since.map(|since| clock::now().wall - since);
    let wanted = logs::Wanted { since, timestamps: args.timestamps, ..logs::Wanted::default() };
    let out = BufWriter::new(io::stdout().lock());
    let mut printer = Printer::new(out, wanted);
    print(&args, &target, &mut printer).await?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard error. A closed standard error is ignored.
fn hint(text: &str) {
    match writeln!(io::stderr().lock(), "{text}") {
        Ok(()) | Err(_) => {}
    }
}

async fn print(
    args: &LogsArgs,
    target: &Target,
    printer: &mut Printer<impl Write>,
) -> Result<(), LogsError> {
    let cant_read = |source| LogsError::Read { path: target.path.clone(), source };
    let runs = logs::runs(&target.path).map_err(cant_read)?;
    let (number, run) = chosen(runs, target, args.previous)?;
    if run.compressed > 0 && args.tail.is_none() {
        let count = run.compressed;
        let dir = target.path.display();
        hint(&format!("Older lines are in {count} compressed files in {dir}, not shown."));
    }
    let dir = LogDir::trusted(&target.path);
    let files = Run::open(&dir, number).map_err(cant_read)?;
    let mut logs = beginnings(files, args.tail).map_err(cant_read)?.into_iter();
    if args.follow && !args.previous {
        // It goes on with the other files by itself.
        return match logs.next() {
            Some((path, log)) => {
                Ok(logs::follow(&dir, Position { number, path, log }, printer).await?)
            }
            None => Ok(printer.finish()?),
        };
    }
    for (_, mut log) in logs {
        log.print(printer)?;
        log.finish(printer)?;
    }
    Ok(printer.finish()?)
}

/// The run to print: the newest, or the one before it.
fn chosen(
    mut runs: BTreeMap<u32, Run>,
    target: &Target,
    previous: bool,
) -> Result<(u32, Run), LogsError> {
    let (container, pod, why) = (target.container.clone(), target.pod.clone(), target.why.clone());
    let newest = runs.pop_last();
    if !previous {
        return newest.ok_or(LogsError::NoLog { container, pod, why });
    }
    let has_ended = |(number, _): &(u32, Run)| target.present.is_some_and(|one| *number < one);
    let before = newest.filter(has_ended).or_else(|| runs.pop_last());
    before.ok_or(LogsError::NoPrevious { container, pod, why })
}

/// Which container is meant, and where its logs are.
fn locate(
    args: &LogsArgs,
    agent: &Result<StatusDocument, ClientError>,
) -> Result<Target, LogsError> {
    let wanted = Wanted::new(&args.pod, args.namespace.namespace.as_deref())?;
    let asked = args.pod_logs_dir.as_deref();
    // An agent that writes its logs elsewhere knows nothing about those that are asked for.
    let document =
        agent.as_ref().ok().filter(|told| asked.is_none_or(|dir| dir == told.pod_logs_dir));
    let told = document.map(|document| document.pod_logs_dir.as_path());
    let dir = asked.or(told).unwrap_or(Path::new(DEFAULT_DIR)).to_owned();
    let logs = logs::pods(&dir).map_err(|source| LogsError::Read { path: dir.clone(), source })?;
    let key = match (document, agent) {
        (Some(document), _) => {
            let known = document.pods.iter().map(|view| &view.key);
            let keys = known.chain(logs.iter().map(|logs| &logs.key));
            wanted.select(&document.node.name, keys)?.clone()
        }
        (None, Err(why)) if asked.is_none() => alone(&wanted, &logs)
            .map_err(|error| LogsError::SelectAlone { error, why: why.to_string() })?,
        (None, Ok(_) | Err(_)) => alone(&wanted, &logs)?,
    };
    let view = document.and_then(|doc| doc.pods.iter().find(|view| view.key == key));
    let path = incarnation(&key, view, &logs, &dir);
    in_pod(args, key, &path, view)
}

/// The directory of the incarnation that runs, without an agent of the newest.
fn incarnation(key: &PodKey, view: Option<&PodView>, logs: &[PodLogs], dir: &Path) -> PathBuf {
    let ours = || logs.iter().filter(|logs| logs.key == *key);
    let running = view.and_then(|view| ours().find(|logs| *logs.uid == *view.uid.as_str()));
    let found = running.or_else(|| {
        // A pod that has just been accepted has no directory yet; an older one's log is not its
        // own.
        ours().filter(|_| view.is_none()).max_by_key(|logs| logs.changed)
    });
    match (found, view) {
        (Some(logs), _) => logs.path.clone(),
        (None, Some(view)) => dir.join(pod_log_directory_name(key, &view.uid)),
        (None, None) => dir.to_owned(),
    }
}

/// The pod that is meant, from directory names alone. The node's name is not known: it is taken for
/// the host's, and then for anything.
fn alone(wanted: &Wanted, logs: &[PodLogs]) -> Result<PodKey, SelectError> {
    let host = machine::host_name().unwrap_or_default().to_lowercase();
    let keys = || logs.iter().map(|logs| &logs.key);
    match wanted.select(&host, keys()) {
        Err(SelectError::NotFound { wanted: name, known }) => {
            let prefix = format!("{}-", wanted.name);
            let begins = |key: &&PodKey| {
                key.name.starts_with(&prefix)
                    && wanted.namespace.as_deref().is_none_or(|ns| *key.namespace == *ns)
            };
            let mut found: Vec<PodKey> = keys().filter(begins).cloned().collect();
            found.order();
            found.dedup();
            match found.as_slice() {
                [] => Err(SelectError::NotFound { wanted: name, known }),
                [one] => Ok(one.clone()),
                _ => Err(SelectError::Ambiguous { wanted: name, found }),
            }
        }
        selected => selected.cloned(),
    }
}

/// Which of a pod's containers.
fn in_pod(
    args: &LogsArgs,
    pod: PodKey,
    path: &Path,
    view: Option<&PodView>,
) -> Result<Target, LogsError> {
    let logged = logs::containers(path)
        .map_err(|source| LogsError::Read { path: path.to_owned(), source })?;
    let spec = view.and_then(|view| view.pod.as_ref()?.spec.as_ref());
    let names = |containers: &[k8s::Container]| -> Vec<String> {
        containers.iter().map(|container| container.name.clone()).collect()
    };
    let regular = spec.map(|spec| names(&spec.containers)).unwrap_or_default();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).map(names).unwrap_or_default();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default();
    let ephemeral: Vec<String> = ephemeral.iter().map(|one| one.name.clone()).collect();
    let known = described(&regular, &init, &ephemeral, &logged);
    let several = regular.len() + init.len() + ephemeral.len() > 1;
    let (container, note) = match (&args.container, regular.first(), logged.as_slice()) {
        (Some(name), _, _)
            if [&regular, &init, &ephemeral, &logged].iter().any(|of| of.contains(name)) =>
        {
            (name.clone(), None)
        }
        (Some(name), _, _) => {
            return Err(LogsError::NoSuchContainer { container: name.clone(), pod, known });
        }
        (None, Some(first), _) => {
            let note = several.then(|| format!("Container {first} is shown; the pod has {known}."));
            (first.clone(), note)
        }
        (None, None, [only]) => (only.clone(), None),
        (None, None, []) => {
            return Err(LogsError::NoLog { container: "?".to_owned(), pod, why: String::new() });
        }
        (None, None, _) => return Err(LogsError::WhichContainer { pod, known }),
    };
    let status = view.and_then(|view| status_of(view, &container));
    let waiting = status.and_then(|status| status.state.as_ref()?.waiting.as_ref());
    let why = waiting.and_then(|waiting| {
        let parts = [waiting.reason.as_deref(), waiting.message.as_deref()];
        let parts: Vec<&str> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!(": it is waiting to start: {}", parts.join(": ")))
    });
    Ok(Target {
        path: path.join(&container),
        pod,
        container,
        why: why.unwrap_or_default(),
        present: status.map(present_run),
        note,
    })
}

/// `web, side, setup (init), debug (ephemeral)`
fn described(
    regular: &[String],
    init: &[String],
    ephemeral: &[String],
    logged: &[String],
) -> String {
    let mut names: Vec<String> = regular.to_vec();
    names.extend(init.iter().map(|name| format!("{name} (init)")));
    names.extend(ephemeral.iter().map(|name| format!("{name} (ephemeral)")));
    if names.is_empty() {
        names.extend_from_slice(logged);
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn status_of<'a>(view: &'a PodView, container: &str) -> Option<&'a k8s::ContainerStatus> {
    container_statuses(&view.status).find(|status| status.name == container)
}

#[cfg(test)]
mod tests;
