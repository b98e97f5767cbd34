//! `nodelet restart POD` and `nodelet retry POD`: what a person asks the agent to do with one pod.

use super::{
    EXIT_FAILURE, EXIT_NO_AGENT,
    args::{AgentArgs, RestartArgs, RetryArgs, UsageError},
    status::{SelectError, Wanted, reach},
};
use crate::{
    model::{Ask, AskAnswer},
    serve::ClientError,
};
use std::{io, process::ExitCode};
use thiserror::Error;

/// Why the agent could not be asked, or its answer not be shown; for `restart`, `retry` and `top`.
#[derive(Debug, Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("wrong command line")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("can't write to standard output")]
    Write(#[from] io::Error),
}

pub(super) async fn restart(args: RestartArgs) -> Result<ExitCode, AskError> {
    let wanted = Wanted::new(&args.pod, args.namespace.namespace.as_deref())?;
    let container = args.container.map(String::into_boxed_str);
    ask(&args.agent, &wanted, Ask::Restart { container }).await
}

pub(super) async fn retry(args: RetryArgs) -> Result<ExitCode, AskError> {
    let wanted = Wanted::new(&args.pod, args.namespace.namespace.as_deref())?;
    ask(&args.agent, &wanted, Ask::Retry).await
}

/// Asks the agent, and prints what came of it.
async fn ask(agent: &AgentArgs, wanted: &Wanted, ask: Ask) -> Result<ExitCode, AskError> {
    let Some((client, document)) = reach(agent).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let pods = document.pods.iter().map(|view| &view.key);
    let key = wanted.select(&document.node.name, pods)?;
    match client.tell(key, ask).await? {
        AskAnswer::Taken { message } => Ok(super::print(&format!("{message}\n"))?),
        AskAnswer::Refused { message } => {
            super::complain(&format!("nodelet: {message}"));
            Ok(ExitCode::from(EXIT_FAILURE))
        }
    }
}
