//! The machine goes down under the real logind and systemd, and waits for pods; an agent that is
//! stopped does not end them.

use crate::{
    machine::SOON,
    node::{Driver, Node, Options},
    support::manifest::Pod,
};
use serde_json::json;

/// Where pods write what happens to them.
const DIARY: &str = "/var/tmp/diary";

/// A pod that needs two seconds to end, and writes down when it is told to and when it is done.
fn diarist(name: &str) -> Pod {
    let script = format!(
        "trap 'echo {name} told >>/host/lines; sleep 2; echo {name} done >>/host/lines; exit 0' TERM; \
         sleep 100000 & wait"
    );
    let directory = json!({ "path": DIARY, "type": "DirectoryOrCreate" });
    Pod::with_main(name, &script)
        .set("terminationGracePeriodSeconds", 20)
        .set("volumes", json!([{ "name": "host", "hostPath": directory }]))
        .set("containers/0/volumeMounts", json!([{ "name": "host", "mountPath": "/host" }]))
}

pub fn a_reboot_waits_for_pods() {
    // Containers are units of systemd's then, which it would stop all at once.
    let node = Node::start(&Options { driver: Driver::Systemd, ..Options::default() });
    node.drop_pods(&[diarist("ordinary"), diarist("critical").set("priority", 2_000_000_000)]);
    node.wait_running(&["ordinary", "critical"]);
    let delay = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                 org.freedesktop.login1.Manager InhibitDelayMaxUSec";
    node.wait_until(
        "logind waits long enough",
        || node.sh(delay),
        |told| told.trim() == "t 30000000",
    );
    let drop_in = node.sh("cat /etc/systemd/logind.conf.d/99-nodelet.conf");
    assert!(drop_in.contains("InhibitDelayMaxSec=30"), "{drop_in}");
    let locks = || node.sh("systemd-inhibit --list --no-legend --no-pager");
    let held = |locks: &String| locks.contains("nodelet") && locks.contains("delay");
    node.wait_until("the agent holds the lock", locks, held);
    node.note("the agent holds the lock");

    let before = node.running();
    node.sh("systemctl stop nodelet");
    node.wait_until("a stopped agent does not hold it", locks, |locks| !locks.contains("nodelet"));
    let told = node.run(&format!("cat {DIARY}/lines"));
    assert_ne!(told.code, 0, "a stopped agent ends no pod: {}", told.output);
    node.sh("systemctl start nodelet");
    node.wait_until("the agent holds it again", locks, held);
    node.wait_running(&["ordinary", "critical"]);
    assert_eq!(node.running(), before, "nothing is restarted");

    node.reboot();
    node.note("rebooted");
    let lines = node.sh(&format!("cat {DIARY}/lines"));
    assert_eq!(lines, "ordinary told\nordinary done\ncritical told\ncritical done\n");
    let log = node.sh("journalctl -b -1 -u nodelet -o cat --no-pager");
    assert!(log.contains("Shutdown manager detected shutdown event"), "{log}");
    assert!(log.contains("the time for pods is over; the machine may shut down"), "{log}");
    let status = node.wait_for(SOON, "the pods run again", |status| {
        status.runs("ordinary") && status.runs("critical")
    });
    assert!(status.node["shutdown"].is_null(), "{status:?}");
    for pod in ["ordinary", "critical"] {
        // A start that containerd fails on a slow machine counts as another one.
        let restarts = status.restarts(pod, "main");
        assert!((1..=2).contains(&restarts), "a reboot counts as one restart: {restarts}");
        assert_eq!(status.pod(pod).unwrap().status.as_ref().unwrap().reason, None);
    }
    node.finish();
}
