//! The agent's own process: how the kernel treats it. What can't be set is a warning: it makes the
//! agent weaker, not wrong.

use crate::config::ProcessConfig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs;

pub(super) fn apply(config: &ProcessConfig) {
    let score = config.oom_score_adj;
    if let Err(err) = fs::write("/proc/self/oom_score_adj", score.to_string()) {
        // Lowering needs CAP_SYS_RESOURCE, which a container of the agent may lack.
        tracing::warn!(%err, "cannot set the agent's oom_score_adj to {score}");
    }
    if let Err(err) = raise_open_files(config.max_open_files) {
        tracing::warn!(%err, "cannot raise the limit on open files to {}", config.max_open_files);
    }
}

/// Raises the soft limit to `wanted`, the hard one with it where that is allowed. Never lowers one.
fn raise_open_files(wanted: u64) -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).or_else(|error| {
        if hard > soft { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Err(error) }
    })
}
