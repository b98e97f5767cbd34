//! Tests that can't run here. The unit tests of src/ use this file as well.

use std::io::Write as _;

/// Set in the environment, it makes every test fail that would be skipped for something that the
/// project's scripts can install. `.ci/run` sets it.
const NO_SKIPS: &str = "NODELET_NO_SKIPS";

/// Whether the running test must be skipped because some of its needs are missing; says which. Each
/// need is whether it is there, and its name.
///
/// # Panics
/// When something is missing and [`NO_SKIPS`] is set.
#[track_caller]
pub fn skip_without(needs: &[(bool, &str)]) -> bool {
    let missing: Vec<&str> = needs.iter().filter(|need| !need.0).map(|need| need.1).collect();
    if missing.is_empty() {
        return false;
    }
    let why = format!("needs {}", missing.join(", "));
    assert!(std::env::var_os(NO_SKIPS).is_none(), "{NO_SKIPS} is set, and this test {why}");
    say_skipped(&why);
    true
}

/// Prints that the running test, or a part of it, is skipped, for a reason that nobody can install
/// away: another version of cgroups, a machine that has just been started.
pub fn say_skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    // Past the capturing of the test harness.
    _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {why}");
}

/// The need of a user who may do everything.
pub fn root() -> (bool, &'static str) {
    (nix::unistd::geteuid().is_root(), "root")
}
