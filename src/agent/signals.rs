//! Signals that the agent acts on, and signals that must not end it.
//!
//! | signal | |
//! |---|---|
//! | SIGTERM, SIGINT | the agent stops |
//! | SIGHUP | manifests and credentials are read again |
//! | others that people, timers or limits send | nothing |
//!
//! A signal without effect is caught and not set to SIG_IGN: programs that the agent starts would
//! inherit SIG_IGN, while exec(2) gives a caught signal its default action again.

use nix::libc;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// Signals that end a process by default and mean nothing to the agent. SIGQUIT and SIGABRT still
/// end it with a core dump: systemd's watchdog and people who debug rely on it.
const WITHOUT_EFFECT: [i32; 9] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    // A file that grows beyond RLIMIT_FSIZE is an error of write(2) then.
    libc::SIGXFSZ,
];

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    reloads: watch::Sender<u64>,
}

impl Signals {
    /// Catches the signals. `reloads` counts each SIGHUP.
    pub(super) fn install(reloads: watch::Sender<u64>) -> std::io::Result<Self> {
        for number in WITHOUT_EFFECT.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
            // The process keeps tokio's handler when this is dropped.
            drop(signal(SignalKind::from_raw(number))?);
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            reloads,
        })
    }

    /// Waits until the agent is asked to stop; gives the signal's name. Each SIGHUP is counted
    /// meanwhile.
    ///
    /// # Cancel safety
    /// Cancel safe: a signal that arrives meanwhile is kept for the next call.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: manifests and credentials are read again");
                    self.reloads.send_modify(|count| *count += 1);
                }
            }
        }
    }
}
