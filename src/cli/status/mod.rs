//! `nodelet status [POD]`: the pods, and why a pod does not run, as text or as objects.
//!
//! Everything comes from one response of the running agent. The output is a pure function of this
//! response and the time.

mod cluster;
mod describe;
mod events;
mod objects;
mod overview;
mod pods;
mod pressure;
mod probes;
mod select;
mod text;
mod watch;

pub(super) use events::run as events;
pub(super) use select::{SelectError, Wanted};
pub(super) use text::table;

use super::{
    EXIT_NO_AGENT, EXIT_USAGE,
    args::{AgentArgs, Output, StatusArgs, UsageError},
};
use crate::{
    clock,
    model::{FileVerdict, PodKey, PodView, printable_lines},
    presentation::findings,
    serve::{Client, ClientError, StatusDocument},
};
use jiff::Timestamp;
use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};
use thiserror::Error;

/// Why the status can't be shown.
#[derive(Debug, Error)]
pub(super) enum StatusError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("wrong command line")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("pod {key} does not run, its manifest is rejected:\n{problems}")]
    Rejected { key: PodKey, problems: String },
    #[error("can't write the status as JSON")]
    Json(#[from] serde_json::Error),
    #[error("can't write the status as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
    #[error("can't write to standard output")]
    Write(#[from] io::Error),
}

/// Asks the agent and prints what it says.
pub(super) async fn run(args: StatusArgs) -> Result<ExitCode, StatusError> {
    if args.watch && matches!(args.output, Output::Json | Output::Yaml) {
        super::complain(
            "nodelet: --watch prints a table; -o json and -o yaml print the status once",
        );
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    // A wrong name is told also when no agent answers.
    if let Some(pod) = &args.pod {
        Wanted::new(pod, args.namespace.namespace.as_deref())?;
    }
    let Some((client, document)) = reach(&args.agent).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    if args.html {
        super::show(&(client.page().await? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.watch {
        return watch(&client, &document, &args).await;
    }
    let text = render(&document, &args, clock::now().wall)?;
    super::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints rows of the table of pods as they change.
async fn watch(
    client: &Client,
    document: &StatusDocument,
    args: &StatusArgs,
) -> Result<ExitCode, StatusError> {
    let namespace = args.namespace.namespace.as_deref();
    let pod = match &args.pod {
        Some(pod) => Some(&one(document, &Wanted::new(pod, namespace)?)?.key),
        None => None,
    };
    // The pod may be one whose namespace is part of its name.
    let namespace = namespace.filter(|_| pod.is_none());
    let wide = args.output == Output::Wide;
    watch::Watch::new(pod, namespace, wide).run(client).await
}

/// Asks the agent for its status. `None`: no agent answers, and advice was printed.
///
/// # Errors
/// An agent is there, and its answer is of no use.
pub(super) async fn reach(
    agent: &AgentArgs,
) -> Result<Option<(Client, StatusDocument)>, ClientError> {
    let client = Client::new(&agent.socket());
    match client.status().await {
        Ok(document) => Ok(Some((client, document))),
        Err(error) => no_agent(error, &agent.run_dir).map(|()| None),
    }
}

/// Prints advice when no agent answers. Other errors are returned.
fn no_agent(error: ClientError, run_dir: &Path) -> Result<(), ClientError> {
    let advice = match error {
        ClientError::NotRunning { .. } => {
            "Start it with:         systemctl start nodelet   (or, by hand: nodelet run)\n\
             Why it ended:          journalctl -u nodelet -e\n\
             It has another runDir: use --run-dir DIR"
        }
        ClientError::TimedOut { .. } => {
            "It accepts connections but does not answer: it is stopped (SIGSTOP), or the machine is \
             overloaded.\nWhat it did last: journalctl -u nodelet -e"
        }
        ClientError::Denied { .. }
        | ClientError::Connect { .. }
        | ClientError::Http { .. }
        | ClientError::Ended { .. }
        | ClientError::TooLong
        | ClientError::Refused { .. }
        | ClientError::Unreadable { .. } => return Err(error),
    };
    let mut text = format!("nodelet: {error}\n{advice}\n");
    if !run_dir.is_dir() {
        text.push_str(&format!("{} does not exist.\n", run_dir.display()));
    }
    // A closed standard error is ignored: the exit code reports the failure, too.
    match io::stderr().lock().write_all(printable_lines(&text).as_bytes()) {
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What is printed.
fn render(
    document: &StatusDocument,
    args: &StatusArgs,
    now: Timestamp,
) -> Result<String, StatusError> {
    let namespace = args.namespace.namespace.as_deref();
    let wanted = match &args.pod {
        Some(pod) => Some(one(document, &Wanted::new(pod, namespace)?)?),
        None => None,
    };
    // A namespace narrows the list of pods alone. Manifests and the node are shown as a whole.
    let is_shown = |view: &&PodView| namespace.is_none_or(|name| *view.key.namespace == *name);
    let listed: Vec<&PodView> = document.pods.iter().filter(is_shown).collect();
    match (args.output, wanted) {
        (Output::Table, None) => Ok(overview::render(document, &listed, now, false)),
        (Output::Wide, None) => Ok(overview::render(document, &listed, now, true)),
        (Output::Table | Output::Wide, Some(view)) => Ok(describe::render(document, view, now)),
        (output @ (Output::Json | Output::Yaml), wanted) => {
            let object = match wanted {
                Some(view) => objects::pod(view)?,
                None => objects::list(document, &listed)?,
            };
            if output == Output::Json {
                Ok(serde_json::to_string_pretty(&object)? + "\n")
            } else {
                objects::yaml(&object)
            }
        }
    }
}

fn one<'a>(document: &'a StatusDocument, wanted: &Wanted) -> Result<&'a PodView, StatusError> {
    let selected = wanted.select(&document.node.name, document.pods.iter().map(|view| &view.key));
    let found = document.pods.iter().find(|view| selected.as_ref().is_ok_and(|k| **k == view.key));
    match (found, selected) {
        (Some(view), _) => Ok(view),
        (None, Ok(_)) => {
            Err(SelectError::NotFound { wanted: wanted.to_string(), known: Vec::new() }.into())
        }
        (None, Err(error)) => Err(rejected(document, wanted).unwrap_or_else(|| error.into())),
    }
}

/// The problems of a rejected manifest, for a pod that does not run because of them.
fn rejected(document: &StatusDocument, wanted: &Wanted) -> Option<StatusError> {
    let files = || document.node.sources.iter().flat_map(|source| &source.files);
    let verdicts = || files().flat_map(|file| file.verdicts.iter().map(move |v| (file, v)));
    let key_of = |verdict: &'_ FileVerdict| match verdict {
        FileVerdict::Rejected { key, .. } => key.clone(),
        FileVerdict::Accepted { .. } | FileVerdict::Object { .. } | FileVerdict::Skipped { .. } => {
            None
        }
    };
    let keys: Vec<PodKey> = verdicts().filter_map(|(_, verdict)| key_of(verdict)).collect();
    let key = wanted.select(&document.node.name, &keys).ok()?.clone();
    let of_pod = verdicts().filter(|(_, verdict)| key_of(verdict).as_ref() == Some(&key));
    let problems: Vec<String> =
        of_pod.flat_map(|(file, verdict)| findings(file, verdict)).collect();
    Some(StatusError::Rejected { key, problems: problems.join("\n") })
}

#[cfg(test)]
mod tests;
