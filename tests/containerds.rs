//! The real agent on every containerd that people run: a private instance of each Debian release's
//! (`scripts/containerd-versions`), the tests named after it; and one data directory carried
//! through all of them. Needs what `node` needs, and says so when it must skip.

mod scenarios;
mod support;

use support::{containerd::Suite, world::Kind};

/// Whether what needs these releases' containerd must be skipped here.
fn skip_without(suites: &[Suite]) -> bool {
    if support::skip_without_containerd() {
        return true;
    }
    let name = |suite: &Suite| {
        format!("containerd of {} (scripts/containerd-versions fetch)", suite.name())
    };
    let needs = suites.iter().map(|suite| (suite.directory().is_some(), name(suite)));
    let needs: Vec<(bool, String)> = needs.collect();
    let needs: Vec<(bool, &str)> = needs.iter().map(|(there, name)| (*there, &**name)).collect();
    support::skips::skip_without(&needs)
}

fn run_on(suite: Suite, scenario: fn(Kind)) {
    if !skip_without(&[suite]) {
        scenario(Kind::Debian(suite));
    }
}

macro_rules! on {
    ($test:ident, $suite:ident, $module:ident :: $scenario:ident) => {
        #[test]
        fn $test() {
            super::run_on(super::Suite::$suite, super::scenarios::$module::$scenario);
        }
    };
}

macro_rules! on_every_containerd {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            mod $scenario {
                on!(on_bookworm, Bookworm, $module::$scenario);
                on!(on_trixie, Trixie, $module::$scenario);
                on!(on_sid, Sid, $module::$scenario);
            }
        )*
    };
}

/// What the node tier has run on Debian 12's, the installed one.
macro_rules! on_newer_containerds {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            mod $scenario {
                on!(on_trixie, Trixie, $module::$scenario);
                on!(on_sid, Sid, $module::$scenario);
            }
        )*
    };
}

scenarios::containerd_scenarios!(on_every_containerd);
scenarios::core_scenarios!(on_newer_containerds);

/// What only the newest containerd has, with its own runc.
macro_rules! on_the_newest_containerd {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            #[test]
            fn $scenario() {
                let runc = (Suite::Sid.has_own_runc(), "runc of sid (scripts/containerd-versions fetch)");
                if !skip_without(&[Suite::Sid]) && !support::skips::skip_without(&[runc]) {
                    scenarios::$module::$scenario(Kind::Debian(Suite::Sid));
                }
            }
        )*
    };
}

on_the_newest_containerd! {
    user_namespaces::a_pod_has_ids_of_its_own,
    user_namespaces::ids_are_kept_until_their_pod_is_gone,
    user_namespaces::groups_of_the_image_count_unless_the_policy_is_strict,
}

#[test]
fn a_volume_of_a_secrets_image_is_for_pods_with_its_credentials() {
    run_on(
        Suite::Sid,
        scenarios::pull_records::a_volume_of_a_secrets_image_is_for_pods_with_its_credentials,
    );
}

#[test]
fn upgraded_in_place_from_bookworm_to_trixie_to_sid() {
    if !skip_without(&Suite::ALL) {
        scenarios::versions::upgraded_in_place(Suite::ALL);
    }
}
