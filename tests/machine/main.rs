//! Whole machines: Debian 12 with systemd, cgroup v2 and its own containerd in QEMU, and the agent
//! on it under the shipped unit. Needs root, qemu-system-x86, qemu-utils, mmdebstrap and e2fsprogs
//! (`scripts/prerequisites machine`); says so when it must skip. `join` and `api_pods` also need the
//! programs of a control plane, or Go to build them.
//!
//! ```text
//!   test ── Node ──┬── Machine: power on, reboot, cut the power; sh("…") runs bash as root inside and gives its output
//!                  ├── status(), wait("…", |status| …): `nodelet status -o json` on the host, asking the agent inside
//!                  └── cri: containerd's socket inside, for the test's own CRI client
//! ```
//!
//! ```ignore
//! let node = Node::start(&Options { driver: Driver::Systemd, ..Options::default() });
//! node.drop_pods(&[Pod::running("web")]);
//! node.wait_running(&["web"]);
//! node.sh("cat /sys/fs/cgroup/kubepods.slice/memory.max");
//! node.reboot();
//! node.finish();
//! ```
//!
//! The image is made once for the present content of `tests/machine/image` and
//! `tests/machine/guest` (45 s), below `target/machine`. Each test has a disk of its own over it, a
//! boot takes about 15 s, and everything inside is 5 to 15 times slower than outside: few boots,
//! many looks. A test that fails prints the end of the serial line and of the journal and says
//! where the whole journal lies; `NODELET_MACHINE_JOURNAL=1` does that for tests that pass, too.
//! `NODELET_MACHINE_ACCEL=kvm` uses the hardware, where that works. With `NODELET_AARCH64`, an
//! agent for aarch64, the machines have such a processor (`make test-aarch64`).

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    reason = "a panic is how a test fails; how far it came before is printed"
)]

#[path = "../controlplane/mod.rs"]
mod controlplane;
#[path = "../support/mod.rs"]
mod support;
#[path = "../upstream/mod.rs"]
mod upstream;

mod api_pods;
mod attacks;
mod cgroups;
mod cluster;
mod disk;
mod drift;
mod drivers;
mod join;
mod late_mount;
mod life;
mod machine;
mod nfs;
mod node;
mod power;
mod pressure;
mod processor;
mod shell;
mod shutdown;
mod signals;
mod small;

macro_rules! on_machines {
    ($($module:ident :: $scenario:ident),* $(,)?) => {
        $(
            #[test]
            fn $scenario() {
                if !machine::skip_without_machines() {
                    $module::$scenario();
                }
            }
        )*
    };
}

on_machines! {
    life::a_node_through_its_life,
    shutdown::a_reboot_waits_for_pods,
    drivers::slices_hold_what_manifests_ask,
    drivers::two_drivers_are_told_apart_and_changed,
    attacks::pods_that_attack_a_node_with_cgroup_v2,
    late_mount::a_reboot_with_the_manifest_mount_late,
    power::power_losses_in_a_churn,
    nfs::a_server_that_is_down_holds_up_its_own_pods_alone,
    nfs::claims_mount_an_nfs_volume_with_its_options,
    disk::a_disk_that_takes_nothing_stops_nothing,
    pressure::memory_pressure_on_a_small_machine,
    signals::signals_evict_only_the_pod_that_is_the_cause,
    join::kubeadm_makes_a_machine_a_node,
    api_pods::pods_of_the_api_server_outlive_reboots,
    drift::a_clock_that_jumps_a_name_that_changes_and_no_network,
}

/// Takes many minutes: for `make soak-machine`.
#[test]
#[ignore = "many minutes: make soak-machine"]
fn thirty_pods_on_a_small_machine() {
    if !machine::skip_without_machines() {
        small::thirty_pods_on_a_small_machine();
    }
}
