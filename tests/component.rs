//! The real agent against the stateful fake runtime: needs nothing but itself.

mod scenarios;
mod support;
mod upgrade;
mod workers;

use support::world::Kind;

macro_rules! on_fake {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            #[test]
            fn $scenario() {
                scenarios::$module::$scenario(Kind::Fake);
            }
        )*
    };
}

scenarios::shared_scenarios!(on_fake);
on_fake! {
    confinement::app_armor_profiles_are_asked_for_or_refused,
    drivers::the_runtimes_cgroup_driver_counts,
    pressure::more_manifests_than_the_node_takes_at_its_start,
    runtime::strict_groups_wait_for_a_runtime_that_supports_them,
}
