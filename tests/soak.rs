//! Chaos on a real containerd for `SOAK_MINUTES` (without it, a look-in of half a minute).

mod scenarios;
mod support;

use scenarios::chaos::Dangers;
use std::time::Duration;
use support::world::Kind;

#[test]
fn soak() {
    if support::skip_without_containerd() {
        return;
    }
    let minutes = std::env::var_os("SOAK_MINUTES").and_then(|text| text.to_str()?.parse().ok());
    let span =
        minutes.map_or(Duration::from_secs(30), |minutes: u64| Duration::from_secs(minutes * 60));
    let dangers = Dangers { runtime_dies: true, disk_fails: true };
    scenarios::chaos::chaos(Kind::Real, span, dangers);
}

/// Long enough for the runtime to count as down.
#[test]
fn a_daemon_that_stands_still_for_a_minute() {
    if !support::skip_without_containerd() {
        scenarios::daemon::stands_still_for(Kind::Real, Duration::from_secs(60));
    }
}
