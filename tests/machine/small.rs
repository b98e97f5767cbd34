//! Thirty pods on a machine that is hardly large enough for them, through a reboot: the figures of
//! `docs/performance.md`.

use crate::{
    machine::Hardware,
    node::{Node, Options},
    support::{
        figures::{Table, figure},
        manifest::Pod,
    },
};
use std::time::Duration;

const PODS: usize = 30;
/// Each takes seconds of work in an emulated machine.
const LONG: Duration = Duration::from_secs(1200);

/// 512 MiB, 30 pods.
pub fn thirty_pods_on_a_small_machine() {
    let hardware = Hardware { memory_mib: 512, ..Hardware::default() };
    let node = Node::start(&Options { hardware, ..Options::default() });
    let names: Vec<String> = (0..PODS).map(|n| format!("pod{n:02}")).collect();
    let pods: Vec<Pod> = names.iter().map(|name| Pod::running(name)).collect();
    node.drop_pods(&pods);
    let all = |status: &crate::node::Status| names.iter().all(|name| status.runs(name));
    node.wait_for(LONG, "thirty pods run", all);
    node.note("thirty pods run");
    let restarts = node.property("nodelet", "NRestarts");
    assert_eq!(restarts, "0", "the agent is never the one that memory is taken from");
    println!("{}", node.sh("free -m; grep -E 'VmRSS|VmHWM' /proc/$(pidof nodelet)/status"));
    let before = node.running();
    assert_eq!(before.len(), PODS);
    node.reboot();
    node.wait_for(LONG, "thirty pods run again", all);
    let uptime = node.sh("cut -d' ' -f1 /proc/uptime");
    let uptime = Duration::from_secs_f64(uptime.trim().parse().unwrap());
    figure(Table::Machine, &format!("512 MiB: kernel started → {PODS} pods run"), uptime);
    for (name, now) in node.running() {
        // A start that the runtime failed in the crowd counts as well.
        assert!(now.restarts > before[&name].restarts, "{name}: {now:?}");
    }
    node.sh("rm -f /etc/nodelet/static-pods/*.yaml");
    node.wait_for(LONG, "every pod is gone", |status| status.pods.is_empty());
    node.finish();
}
