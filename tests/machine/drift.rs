//! What a machine's surroundings change under the agent: its clock, its name, its network.

use crate::{
    machine::Hardware,
    node::{Node, Options},
    support::{
        manifest::{FOREVER, Pod},
        pause,
    },
};
use std::time::Duration;

/// One machine without a battery for its clock and without a network.
pub fn a_clock_that_jumps_a_name_that_changes_and_no_network() {
    let hardware = Hardware { clock: "1970-01-01", ..Hardware::default() };
    let node = Node::boot(&Options { hardware, ..Options::default() });
    // systemd sets a clock that is older than itself, so the last of it has to be done by hand.
    node.sh("systemctl stop containerd; ip route del default; date -s @1000; systemctl start containerd");
    node.start_agent();
    node.wait_for_runtime();
    node.drop_pods(&[
        Pod::running("web"),
        Pod::with_main("latest", FOREVER).set("containers/0/image", "nodelet.test/busybox:latest"),
        Pod::with_main("crash", "exit 3"),
    ]);
    node.wait("pods run in 1970, the image of one being asked for in vain", |status| {
        status.runs("web") && status.runs("latest") && status.restarts("crash", "main") >= 1
    });
    node.note("pods run in 1970");
    let before = node.running();
    let crashes = node.status().unwrap().restarts("crash", "main");

    node.sh("date -s 2031-02-03T04:05:06");
    pause(Duration::from_secs(5));
    let status = node.wait("the agent sees its pods in 2031", |status| status.pods.len() == 3);
    let more = status.restarts("crash", "main") - crashes;
    assert!(more <= 1, "sixty years are not sixty years of back-off: {more} more restarts");
    let crashes = status.restarts("crash", "main");

    // How the crashing container ended lies in the future now.
    node.sh("date -s 2001-02-03T04:05:06; systemctl restart nodelet");
    let again = |status: &crate::node::Status| status.restarts("crash", "main") > crashes;
    node.wait("back-off goes by the time since boot", again);
    let since = |name: &str, status: &crate::node::Status| {
        assert!(status.runs(name), "{name}: {status:?}");
    };
    let status = node.status().unwrap();
    since("web", &status);
    since("latest", &status);
    still(&node, &before);
    node.note("nothing was restarted by the clock");

    node.sh("hostname elsewhere; echo elsewhere >/etc/hostname; systemctl restart nodelet");
    let status = node.wait("the agent has kept its name", |status| status.runs("web"));
    assert_eq!(status.node["metadata"]["name"], "node1");
    let warnings = status.node["warnings"].to_string();
    assert!(warnings.contains("elsewhere"), "the other name is told: {warnings}");
    still(&node, &before);
    node.finish();
}

/// What ran before runs on, but for the container that crashes by itself.
#[track_caller]
fn still(node: &Node, before: &std::collections::BTreeMap<String, crate::node::Running>) {
    let mut now = node.running();
    now.remove("crash/main");
    let mut before = before.clone();
    before.remove("crash/main");
    assert_eq!(now, before, "nothing is restarted");
}
