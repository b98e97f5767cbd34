//! The composition root: makes and connects all parts, and runs them until one of them ends or the
//! agent is asked to stop. It is the only module that knows all others.
//!
//! ```text
//! start: process limits, locks ─► pleg ─► state files, node name, cgroups
//!        ─► tasks: sources, workers, events, server, node view
//! stop:  sources and workers finish the call they are in; containers keep running
//! ```
//!
//! Nothing here waits for the runtime: an agent without a runtime runs, reports the problem, and
//! continues when the runtime is there. A task that ends unexpectedly ends the agent with an error.
//! systemd restarts the agent, which is the best tested path.

mod build;
mod cluster;
mod kubelet_api;
mod node_facts;
mod places;
mod process;
mod remembered;
mod settings;
mod signals;
mod sources;

use crate::{config::Config, notify, shutdown::Stage};
use anyhow::{Context as _, bail};
use std::time::Duration;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// How long workers may take to finish their calls when the agent is asked to stop. A call that is
/// cut off after that has the effect of a crash, which the next start handles.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The name and the result of a task.
type Ended = (&'static str, anyhow::Result<()>);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// When something that the agent can't do without fails at start (another agent has the root
/// directory, the socket can't be made), or a task ends unexpectedly.
pub async fn run(config: Config) -> anyhow::Result<()> {
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    process::apply(&config.process);
    let shutdown = CancellationToken::new();
    let (reloads, reload) = watch::channel(0);
    let mut signals = signals::Signals::install(reloads).context("cannot handle signals")?;
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let version = env!("CARGO_PKG_VERSION");
    // State files are read on a thread of their own, and their disk may not answer.
    let built = tokio::select! {
        built = build::spawn_all(&config, reload, &mut tasks, &shutdown) => built?,
        signal = signals.stop() => {
            tracing::info!(signal, "stopping before the start was over");
            return Ok(());
        }
    };
    let node = built.node_name;
    tracing::info!(version, node, pid = std::process::id(), "nodelet is running");
    let machine = ShutdownWatch { stage: built.shutdown_stage, config: &config };
    supervise(tasks, signals, shutdown, machine).await
}

/// The stage of a shutdown of the machine.
struct ShutdownWatch<'a> {
    stage: watch::Receiver<Stage>,
    config: &'a Config,
}

impl ShutdownWatch<'_> {
    /// Lets pods have their time when the machine goes down sooner than it was asked to. It never
    /// begins a shutdown: an agent that is stopped leaves pods alone.
    async fn let_pods_end(&mut self) {
        if *self.stage.borrow() != Stage::Ending {
            return;
        }
        let time = self.config.shutdown.as_ref().map(|periods| periods.total()).unwrap_or_default();
        tracing::info!("the machine shuts down: stopping when the time for pods is over");
        if let Some(socket) = &self.config.process.notify_socket {
            let micros = (time + STOP_PATIENCE).as_micros();
            if let Err(err) = notify::send(socket, &format!("EXTEND_TIMEOUT_USEC={micros}\n")) {
                tracing::warn!(%err, "cannot ask systemd for time");
            }
        }
        let over = self.stage.wait_for(|stage| *stage != Stage::Ending);
        if tokio::time::timeout(time, over).await.is_err() {
            tracing::warn!("pods have not ended in time");
        }
    }
}

async fn supervise(
    mut tasks: JoinSet<Ended>,
    mut signals: signals::Signals,
    shutdown: CancellationToken,
    mut machine: ShutdownWatch<'_>,
) -> anyhow::Result<()> {
    // Both arms only wait: a signal or the end of a task is not lost when the other comes first.
    let unexpected = tokio::select! {
        signal = signals.stop() => {
            match *machine.stage.borrow() {
                Stage::Up => tracing::info!(signal, "stopping; containers keep running"),
                Stage::Ending | Stage::Over => tracing::info!(signal, "stopping"),
            }
            None
        }
        ended = tasks.join_next() => Some(ended),
    };
    if unexpected.is_none() {
        // A second signal means now.
        tokio::select! {
            () = machine.let_pods_end() => {}
            _ = signals.stop() => {}
        }
    }
    shutdown.cancel();
    let stopped = tokio::time::timeout(STOP_PATIENCE, async {
        while let Some(ended) = tasks.join_next().await {
            if let Ok((name, Err(error))) = ended {
                tracing::warn!(task = name, "{error:#}");
            }
        }
    });
    // A second signal means now.
    let stopped = tokio::select! {
        stopped = stopped => stopped.is_ok(),
        _ = signals.stop() => false,
    };
    if !stopped {
        tracing::warn!("some calls to the runtime have not returned");
    }
    match unexpected {
        None => Ok(()),
        Some(None) => bail!("nothing was running"),
        Some(Some(Err(panic))) => Err(panic).context("a task has crashed"),
        Some(Some(Ok((name, Ok(()))))) => bail!("the {name} task has ended"),
        Some(Some(Ok((name, Err(error))))) => Err(error.context(format!("the {name} task failed"))),
    }
}
