//! `nodelet restart POD` and `nodelet retry POD`: what a person asks the agent to do with one pod.

use super::{
    EXIT_FAILURE,
    args::{AgentArgs, RestartArgs, RetryArgs},
    status::{SelectError, Wanted, no_agent},
};
use crate::{
    model::{Ask, AskAnswer},
    serve::{Client, ClientError},
};
use std::{io, process::ExitCode};
use thiserror::Error;

/// Why it could not be done.
#[derive(Debug, Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Client(#[from] ClientError),
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
    let client = Client::new(&agent.socket());
    let document = match client.status().await {
        Ok(document) => document,
        Err(error) => return Ok(no_agent(error, &agent.run_dir)?),
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
