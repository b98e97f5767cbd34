//! Reports of the kernel: stalls on memory (PSI), and processes that the kernel killed because the
//! machine is out of memory.

use crate::signals::{KernelLog, PsiTrigger, SystemOom};
use std::{io, path::Path};

/// A report of the kernel.
pub(super) enum KernelReport {
    /// It killed a process because the whole machine is out of memory.
    OutOfMemory(SystemOom),
    /// Tasks have waited for memory.
    Stalled,
}

/// The sources of reports; each is dropped when it fails.
pub(super) struct KernelReports {
    stalls: Option<PsiTrigger>,
    log: Option<KernelLog>,
}

impl KernelReports {
    pub(super) fn open(proc: &Path) -> Self {
        let stalls = PsiTrigger::memory(proc).inspect_err(|err| {
            tracing::info!(%err, "the kernel does not report tasks that wait for memory; memory is read at intervals only");
        });
        let log = KernelLog::open(Path::new("/dev/kmsg")).inspect_err(|err| {
            tracing::info!(%err, "the kernel's log can't be read: there will be no SystemOOM events");
        });
        Self { stalls: stalls.ok(), log: log.ok() }
    }

    /// Waits for the next report; for ever when every source has failed. Cancel-safe.
    pub(super) async fn next(&mut self) -> KernelReport {
        loop {
            // Each arm only waits for a file to be readable.
            let failed = tokio::select! {
                stalled = next_stall(&mut self.stalls) => match stalled {
                    Ok(()) => return KernelReport::Stalled,
                    Err(err) => {
                        self.stalls = None;
                        err
                    }
                },
                oom = next_oom(&mut self.log) => match oom {
                    Ok(oom) => return KernelReport::OutOfMemory(oom),
                    Err(err) => {
                        self.log = None;
                        err
                    }
                },
            };
            tracing::debug!(err = %failed, "a source of kernel reports has failed");
        }
    }
}

async fn next_stall(trigger: &mut Option<PsiTrigger>) -> io::Result<()> {
    match trigger {
        Some(trigger) => trigger.fired().await,
        None => std::future::pending().await,
    }
}

async fn next_oom(log: &mut Option<KernelLog>) -> io::Result<SystemOom> {
    match log {
        Some(log) => log.next_oom().await,
        None => std::future::pending().await,
    }
}
