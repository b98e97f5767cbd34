//! `nodelet run`: configuration, log, process, then the agent.

use super::{EXIT_FAILURE, EXIT_USAGE, RunArgs, complain};
use crate::{
    blocking::THREADS,
    config::{self, Config, ConfigError, Environment, HostFacts, Loaded},
    logging,
};
use std::{process::ExitCode, time::Duration};

/// The address space of a thread's stack. glibc keeps the stacks of threads that have ended, with
/// the 16 KiB that each has used, up to 40 MiB of address space: twenty stacks of 2 MiB, but ten of
/// this size. Where the kernel does not overcommit memory, all of the address space counts.
const STACK: usize = 4 << 20;

/// Runs the agent until it receives a signal to stop.
pub(super) fn run<F>(args: RunArgs, agent: impl FnOnce(Config) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let environment = Environment::read();
    let (config, unknown) = match configure(args, &environment) {
        Ok(configured) => configured,
        Err(error) => {
            complain(&refusal(&error));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let log = match logging::init(config.logging, &environment) {
        Ok(log) => log,
        Err(error) => return super::fail(&error),
    };
    let code = run_agent(config, unknown, agent);
    log.finish();
    code
}

/// The configuration, and how many unknown fields it has. What it is made from is freed before the
/// agent runs.
fn configure(args: RunArgs, environment: &Environment) -> Result<(Config, usize), ConfigError> {
    let RunArgs { flags } = args;
    let loaded = config::load(&flags, &HostFacts::read())?;
    let Loaded { mut config, unknown, notices: _, effective } = loaded;
    config.effective = effective.to_string().into();
    config.flags = config::given_flags(&flags).into();
    environment.complete(&mut config);
    Ok((config, unknown.len()))
}

fn run_agent<F>(config: Config, unknown: usize, agent: impl FnOnce(Config) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    // Each is among the notices, which the agent logs.
    if unknown > 0 {
        tracing::error!(
            count = unknown,
            "the configuration has unknown fields, which have no effect"
        );
    }
    // One thread: the agent waits nearly always, and a second one costs half a megabyte. File work
    // goes to threads that come and go; enough of them that some may hang on a dead file system.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_keep_alive(Duration::from_secs(1))
        .thread_stack_size(STACK)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let ended = runtime.block_on(agent(config));
    // A thread that hangs on a dead file system must not keep the process, and with it the lock,
    // for ever.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Everything that is wrong, for people.
fn refusal(error: &ConfigError) -> String {
    let mut text = "nodelet: the configuration is wrong, nothing was started:".to_owned();
    for mistake in error.mistakes.iter().chain(&error.unknown) {
        text.push_str(&format!("\n  {mistake}"));
    }
    text
}
