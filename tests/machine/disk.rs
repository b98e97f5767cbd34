//! The file system of the agent's root directory is full, has no inodes left, or has become
//! read-only under the running agent.

use crate::{
    machine::SOON,
    node::{Node, Options, Running, Status},
    support::manifest::Pod,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ROOT: &str = "/var/lib/nodelet";
/// A RAM disk: unlike a loop device it has no file on the machine's own disk, which the read-only
/// step touches, too.
const MAKE: &str = "modprobe brd rd_nr=1 rd_size=16384 && mke2fs -q -t ext4 -b 4096 -m 0 -N 256 /dev/ram0 && \
    mkdir -p /var/lib/nodelet && mount /dev/ram0 /var/lib/nodelet && rmdir /var/lib/nodelet/lost+found";

/// What is wrong with the disk.
struct Trouble {
    name: &'static str,
    /// What the system says of it.
    cause: &'static str,
    begin: &'static str,
    end: &'static str,
}

const TROUBLES: [Trouble; 3] = [
    Trouble {
        name: "full",
        cause: "No space left on device",
        begin: "mkdir ballast; for size in 1M 4k; do ! dd if=/dev/zero of=ballast/$size bs=$size 2>&1; done | grep 'No space'
            until [ $(stat -f -c %a .) = 0 ]; do dd if=/dev/zero of=ballast/$((n += 1)) bs=4k || true; done",
        end: "rm -r ballast",
    },
    Trouble {
        name: "inodes",
        cause: "No space left on device",
        begin: "mkdir ballast; for n in {1..256}; do echo -n >ballast/$n || break; done 2>&1 | grep 'No space'
            until [ $(stat -f -c %d .) = 0 ]; do echo -n >ballast/$((n += 1)) || true; done",
        end: "rm -r ballast",
    },
    // What the kernel does to a file system with errors, whoever has files open for writing. It is
    // done to all of them: the machine's own disk is made writable again at once.
    Trouble {
        name: "readonly",
        cause: "Read-only file system",
        begin: "echo u >/proc/sysrq-trigger
            for mount in / /var/lib/nodelet; do until findmnt -n -o OPTIONS $mount | grep -q ^ro; do sleep 0.1; done; done
            mount -o remount,rw /
            ! touch file",
        end: "mount -o remount,rw /var/lib/nodelet; touch file; rm file",
    },
];

/// One machine, one trouble after the other.
pub fn a_disk_that_takes_nothing_stops_nothing() {
    let node = Node::boot(&Options::default());
    node.sh(MAKE);
    node.start_agent();
    node.drop_pods(&[with_volume("web"), Pod::running("quiet")]);
    node.wait_running(&["web", "quiet"]);
    let mut pods = vec!["web".to_owned(), "quiet".to_owned()];
    for trouble in &TROUBLES {
        goes_wrong_and_right_again(&node, trouble, &mut pods);
    }
    node.finish();
}

/// With a volume, so that it needs a place of its own on the disk.
fn with_volume(name: &str) -> Pod {
    Pod::running(name)
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))
}

fn goes_wrong_and_right_again(node: &Node, trouble: &Trouble, pods: &mut Vec<String>) {
    let before = node.running();
    let (agent, starts) = (node.agent_pid(), node.property("nodelet", "NRestarts"));
    node.sh(&format!("cd {ROOT}; {}", trouble.begin));
    node.note(&format!("{}: begins", trouble.name));

    let new = format!("new-{}", trouble.name);
    node.drop_pods(&[with_volume(&new)]);
    node.wait("the disk and its trouble are named, and why the new pod does not run", |status| {
        warned(status, trouble) && status.has_event("FailedMount", trouble.cause)
    });
    still(node, &before, trouble);
    assert_eq!(node.agent_pid(), agent, "{}: the agent goes on", trouble.name);

    // An agent that starts on such a disk finds what runs, and what is wished.
    node.sh("systemctl restart nodelet");
    node.wait("all is seen again, and the trouble, too", |status| {
        pods.iter().all(|pod| status.runs(pod))
            && status.pod(&new).is_some()
            && warned(status, trouble)
    });
    still(node, &before, trouble);
    state_files_are_whole(node);
    node.note(&format!("{}: named, and found by a new agent", trouble.name));

    node.sh(&format!("cd {ROOT}; {}", trouble.end));
    pods.push(new.clone());
    let status = node.wait_for(SOON * 2, "all is well again without help", |status| {
        status.node["warnings"] == json!([]) && pods.iter().all(|pod| status.runs(pod))
    });
    assert_eq!(status.pods.len(), pods.len(), "{status:?}");
    still(node, &before, trouble);
    assert_eq!(node.property("nodelet", "NRestarts"), starts, "the agent has not ended by itself");
    state_files_are_whole(node);
    node.sh(&format!("ls {ROOT}/nodelet/pods/default_{new}-node1.json"));
    node.note(&format!("{}: over", trouble.name));
}

/// The warning names the directory and the cause.
fn warned(status: &Status, trouble: &Trouble) -> bool {
    let said = |warning: &Value| {
        let text = warning.as_str().unwrap_or_default();
        text.starts_with(&format!("cannot write state files in \"{ROOT}/"))
            && text.contains(trouble.cause)
    };
    status.node["warnings"].as_array().is_some_and(|warnings| warnings.iter().any(said))
}

/// What ran before runs on: the same containers.
#[track_caller]
fn still(node: &Node, before: &BTreeMap<String, Running>, trouble: &Trouble) {
    let mut now = node.running();
    now.retain(|name, _| before.contains_key(name));
    assert_eq!(&now, before, "{}: nothing is restarted", trouble.name);
}

/// Every state file can be read, and none had to be set aside.
#[track_caller]
pub fn state_files_are_whole(node: &Node) {
    let listing = node.sh("find /var/lib/nodelet/nodelet /run/nodelet/pods -type f");
    assert!(!listing.contains(".damaged"), "{listing}");
    let files: Vec<&str> = listing.lines().filter(|file| file.ends_with(".json")).collect();
    assert!(!files.is_empty(), "{listing}");
    // One that has gone meanwhile is no damage.
    let text = node.sh(&format!(
        "for file in {}; do text=$(cat $file 2>/dev/null) && echo \"$file $text\"; done; true",
        files.join(" ")
    ));
    assert!(!text.is_empty(), "{listing}");
    for line in text.lines() {
        let (file, text) = line.split_once(' ').unwrap();
        let read = serde_json::from_str::<Value>(text);
        assert!(read.is_ok(), "{file} is torn: {text:?}");
    }
}
