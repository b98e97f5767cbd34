//! Attacks on the real agent, on a private real containerd: by containers, by manifests, by files
//! that an administrator names, by local users. Each test makes one attack and is named after what
//! it tries. A watchdog holds the agent to a status answer within 1 s, or as much longer as other
//! processes take the CPU (`contention`), and to 64 MiB of memory, and checks that an innocent pod
//! notices nothing. `docs/security.md` lists the attacks with the rule that each of them meets.
//!
//! An attack that takes more than a minute is `#[ignore]`d; `make test-attacks` and `make soak` run
//! it.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    unreachable_pub,
    reason = "a panic is how a test fails"
)]

#[path = "../support/mod.rs"]
mod support;

mod contention;
mod credentials;
mod floods;
mod https_api;
mod identity;
mod local_users;
mod logs;
mod manifests;
mod ownership;
mod removal;
mod storage;
mod sub_paths;
mod watchdog;

use std::time::Duration;
use support::world::{Kind, World};
use support::{agent::Settings, containerd::Suite};

/// How long an agent may take to end in order. What has not ended after ten seconds is cut off.
const PATIENCE: Duration = Duration::from_secs(9);

/// A world with a private real containerd in which the agent runs; `None`, said loudly, when the
/// test must be skipped.
fn world(settings: impl FnOnce(Settings) -> Settings) -> Option<World> {
    let world = prepared(settings)?;
    world.agent.start();
    Some(world)
}

/// As [`world`], with the agent not started yet.
fn prepared(settings: impl FnOnce(Settings) -> Settings) -> Option<World> {
    if support::skip_without_containerd() {
        return None;
    }
    let kind = kind();
    Some(World::prepare(kind, &settings(Settings::for_kind(kind))))
}

/// The installed containerd, or that of the Debian release that `NODELET_CONTAINERD` names (`sid`),
/// after `scripts/containerd-versions fetch`.
fn kind() -> Kind {
    let Some(name) = std::env::var_os("NODELET_CONTAINERD") else { return Kind::Real };
    let suite = Suite::ALL.into_iter().find(|suite| name == suite.name());
    Kind::Debian(suite.unwrap_or_else(|| panic!("NODELET_CONTAINERD: {name:?} is no release")))
}

/// The watchdog itself can fail: an agent that stands still does not pass.
#[test]
fn the_watchdog_notices_an_agent_that_stands_still() {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    let Some(world) = world(|settings| settings) else { return };
    let dog = watchdog::Watchdog::start(&world);
    let pid = Pid::from_raw(i32::try_from(world.agent.pid()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    // Longer than the busiest machine may make an answer take.
    support::pause(std::time::Duration::from_millis(4500));
    kill(pid, Signal::SIGCONT).unwrap();
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dog.finish(&world)));
    assert!(seen.is_err(), "it passed: {seen:?}");
    world.finish();
}
