//! NFS volumes, with the server on the same machine: what a pod writes is there, an agent that is
//! killed mounts nothing twice, and a server that does not answer holds up its own pods alone.

use crate::{
    machine::SOON,
    node::{MANIFESTS, Node, Options},
    support::manifest::{FOREVER, Pod},
};
use serde_json::json;

const SERVE: &str = "mkdir -p /srv/share/part && echo hello >/srv/share/greeting && chmod -R 777 /srv/share && \
    echo '/srv/share *(rw,no_root_squash,no_subtree_check,insecure)' >/etc/exports && systemctl start nfs-server";
/// Packets to the server are lost, as with a cable that is pulled.
const CUT: &str = "iptables -I INPUT -p tcp --dport 2049 -j DROP";
const HEAL: &str = "iptables -D INPUT -p tcp --dport 2049 -j DROP";
const MOUNTS: &str = "grep -c ' /var/lib/nodelet/pods/' /proc/self/mountinfo; true";

/// A pod that mounts the share, a part of it, and the share again for reading alone.
fn user(name: &str, script: &str) -> Pod {
    let nfs = json!({ "server": "127.0.0.1", "path": "/srv/share" });
    let mut read_only = nfs.clone();
    read_only["readOnly"] = json!(true);
    Pod::with_main(name, &format!("{script}; {FOREVER}"))
        .set("hostNetwork", true)
        .set("terminationGracePeriodSeconds", 2)
        .set(
            "volumes",
            json!([{ "name": "share", "nfs": nfs }, { "name": "look", "nfs": read_only }]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "share", "mountPath": "/share" },
                { "name": "share", "mountPath": "/part", "subPath": "part" },
                { "name": "look", "mountPath": "/look" },
            ]),
        )
}

/// One machine.
pub fn a_server_that_is_down_holds_up_its_own_pods_alone() {
    let node = Node::start(&Options::default());
    node.drop_pods(&[user("early", "true")]);
    let refused = "cannot mount 127.0.0.1:/srv/share: mount failed";
    node.wait("it is told why the pod waits", |status| status.has_event("FailedMount", refused));
    node.note("there is no server yet");
    node.sh(SERVE);
    node.wait_running(&["early"]);
    node.sh(&format!("rm {MANIFESTS}/early.yaml"));
    what_a_pod_writes_is_there(&node);
    node.note("a pod reads and writes, and an agent that is killed mounts nothing twice");

    node.sh(CUT);
    node.drop_pods(&[user("late", "true"), Pod::running("other").set("hostNetwork", true)]);
    node.wait("the other pod runs", |status| status.runs("other") && status.runs("writer"));
    let late = "cannot mount 127.0.0.1:/srv/share: mount did not end within 30 s and was killed";
    node.wait("the server does not answer", |status| status.has_event("FailedMount", late));
    node.note("no answer from the server");
    // The mounts of a pod that goes are given up.
    node.sh(&format!("rm {MANIFESTS}/writer.yaml"));
    let gone = |status: &crate::node::Status| status.pod("writer").is_none();
    node.wait_for(SOON * 2, "the pod goes without the server", gone);
    assert_eq!(node.sh(MOUNTS).trim(), "0");
    assert_eq!(
        node.sh("cd /srv/share && cat greeting written part/written"),
        "hello\nhello\nhello\n"
    );
    node.note("a pod goes without the server, and its files stay");

    node.sh(HEAL);
    node.wait_running(&["late", "other"]);
    assert_eq!(node.sh("ls -A /srv/share"), "greeting\npart\nwritten\n");
    node.finish();
}

fn what_a_pod_writes_is_there(node: &Node) {
    let script = "set -e; cp /share/greeting /share/written; cp /look/greeting /part/written; \
         ! touch /look/refused 2>/dev/null";
    node.drop_pods(&[user("writer", script)]);
    node.wait_running(&["writer"]);
    let id = node.running()["writer/main"].id.clone();
    assert_eq!(node.sh("cd /srv/share && cat written part/written"), "hello\nhello\n");
    assert_eq!(node.run("ls /srv/share/refused").code, 2);
    // Two volumes and a subPath.
    assert_eq!(node.sh(MOUNTS).trim(), "3");
    node.sh("systemctl kill -s KILL nodelet");
    node.wait_running(&["writer"]);
    assert_eq!(node.sh(MOUNTS).trim(), "3");
    assert_eq!(node.running()["writer/main"].id, id);
}
