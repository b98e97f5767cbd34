//! The real agent against a private real containerd with real networking. Needs root and Debian's
//! containerd, runc, containernetworking-plugins, iptables and busybox-static; says so when it must
//! skip.

mod scenarios;
mod support;

use support::world::Kind;

macro_rules! on_containerd {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            #[test]
            fn $scenario() {
                if !support::skip_without_containerd() {
                    scenarios::$module::$scenario(Kind::Real);
                }
            }
        )*
    };
}

scenarios::shared_scenarios!(on_containerd);
scenarios::real_scenarios!(on_containerd);
