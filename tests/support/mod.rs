//! The bench that the integration tests stand on: the real agent, a runtime (a stateful fake or a
//! private real containerd), and one fault proxy between them.
//!
//! ```text
//!   test ── World ──┬── Agent ── CRI ──► Proxy ──► Fake | Containerd
//!                   └── Cri (looks at the runtime behind the proxy's back)
//! ```
//!
//! Tests are plain synchronous functions. What serves sockets runs on one shared tokio runtime;
//! tests wait on a predicate with a deadline and never for a time.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "each test binary uses its own part; a panic is how a test fails"
)]

pub mod agent;
pub mod containerd;
pub mod cri;
pub mod dead_file_system;
pub mod fake;
pub mod figures;
pub mod gate;
pub mod images;
pub mod logind;
pub mod loop_disk;
pub mod manifest;
pub mod process;
pub mod proxy;
pub mod random;
pub mod registry;
pub mod serve;
pub mod skips;
pub mod slot;
pub mod status;
pub mod web;
pub mod world;
pub mod writes;

use skips::skip_without;
use std::{
    fmt,
    future::Future,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Duration,
};
use tokio::{runtime::Runtime, time::Instant};

/// The runtime that proxies, fakes and clients of all tests of a binary share.
pub fn tokio_runtime() -> &'static Runtime {
    // A fake waits for the disk now and then, and proxies of other tests must go on meanwhile.
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build().unwrap()
    });
    &RUNTIME
}

/// Runs a future on the shared runtime and waits for it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio_runtime().block_on(future)
}

/// Runs `ip` of iproute2, which must succeed; the arguments are separated by spaces.
#[track_caller]
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_ascii_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
}

/// How often a predicate is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Lets time pass: between two looks, or between two things that a test does at random.
pub fn pause(time: Duration) {
    block_on(async { tokio::time::sleep(time).await });
}

/// Looks until `accept` likes what `look` sees; gives it back. `Err` holds the last value seen.
pub fn poll_until<T>(
    deadline: Duration,
    mut look: impl FnMut() -> T,
    mut accept: impl FnMut(&T) -> bool,
) -> Result<T, T> {
    let end = Instant::now() + deadline;
    loop {
        let value = look();
        if accept(&value) {
            return Ok(value);
        }
        if Instant::now() >= end {
            return Err(value);
        }
        pause(LOOK_EVERY);
    }
}

/// As [`poll_until`]; fails the test with the last value seen.
#[track_caller]
pub fn wait_until<T: fmt::Debug>(
    what: &str,
    deadline: Duration,
    look: impl FnMut() -> T,
    accept: impl FnMut(&T) -> bool,
) -> T {
    match poll_until(deadline, look, accept) {
        Ok(value) => value,
        Err(last) => panic!("not within {deadline:?}: {what}\nlast seen: {last:#?}"),
    }
}

/// Checks that `holds` stays true for `span`; for "nothing happens" only.
#[track_caller]
pub fn stays<T: fmt::Debug>(
    what: &str,
    span: Duration,
    look: impl FnMut() -> T,
    mut holds: impl FnMut(&T) -> bool,
) {
    if let Ok(broken) = poll_until(span, look, |value| !holds(value)) {
        panic!("no longer true: {what}\nseen: {broken:#?}");
    }
}

/// Prints past the test harness's capturing: for what a person must see although the test passes.
pub fn say_loudly(text: &str) {
    writeln!(std::io::stderr().lock(), "{text}").unwrap();
}

/// Whether what needs a real containerd must be skipped here.
#[track_caller]
pub fn skip_without_containerd() -> bool {
    skip_without(&[
        skips::root(),
        (on_path("containerd"), "containerd"),
        (on_path("runc"), "runc"),
        (on_path("iptables"), "iptables"),
        (images::static_busybox().is_some(), "busybox-static"),
    ])
}

/// A program that is installed, or that `scripts/prerequisites test` has unpacked.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr/bin");
    let dirs = std::env::split_paths(&path).chain([unpacked]);
    dirs.map(|dir| dir.join(name)).find(|program| program.exists())
}

/// Whether a program can be run by its name.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}
