//! The manifests lie on a file system of their own, which is mounted late after a reboot.
//!
//! While the directory is an empty mount point, the agent runs the last good revision of every pod,
//! with its data. This includes a pod whose manifest was removed while the agent was down: the
//! agent can't know that yet. Once the file system is mounted, the agent removes that pod, and the
//! others keep running. An agent that starts with the file system mounted never starts a pod whose
//! manifest is gone, although the agent has saved the manifest.

use crate::{
    machine::SOON,
    node::{MANIFESTS, Node, Options, Status},
    support::manifest::{FOREVER, Pod},
};
use serde_json::{Value, json};

/// An ext4 image on the machine's disk. It brings a `lost+found`, as such a disk does.
const MAKE: &str = "truncate -s 16M /var/manifests.img && mke2fs -q -t ext4 /var/manifests.img && \
    mkdir -p /etc/nodelet/static-pods";
/// systemd knows nothing of this mount, so the next boot does not have it.
const MOUNT: &str = "mount -o loop /var/manifests.img /etc/nodelet/static-pods";
/// systemd is to mount a disk there that is gone.
const LOSE: &str = "echo /dev/lost /etc/nodelet/static-pods ext4 nofail,x-systemd.device-timeout=1s 0 0 >>/etc/fstab && \
    systemctl daemon-reload";
/// Files that come and go: no two looks at the directory find the same files, so the agent can't
/// settle a removal.
const CHURN: &str = r#"systemd-run --quiet --unit churn perl -e 'chdir "/etc/nodelet/static-pods" or die;
    for (;;) { open F, ">", ++$n . ".yaml"; close F; unlink $n - 1 . ".yaml"; select undef, undef, undef, 0.02 }'"#;
const END_CHURN: &str = "systemctl stop churn; rm -f /etc/nodelet/static-pods/[0-9]*.yaml";

/// One machine, one reboot. At the end, the file system can't be mounted at all.
pub fn a_reboot_with_the_manifest_mount_late() {
    // inotify reports no event for a mount over a watched directory. The next periodic look finds
    // it.
    let kubelet = "fileCheckFrequency: 2s".to_owned();
    let node = Node::boot(&Options { kubelet, ..Options::default() });
    node.sh(&format!("{MAKE} && {MOUNT}"));
    node.start_agent();
    node.drop_pods(&["web", "db", "old"].map(with_data));
    let status = node.wait_running(&["web", "db", "old"]);
    let uids = ["web", "db", "old"].map(|pod| uid(&status, pod));
    let [web, db, old] = &uids;
    let mut boots = vec![boot(&node)];
    for uid in &uids {
        wait_for_boots(&node, uid, &boots);
    }
    node.note("three pods have data");

    node.sh(&format!("systemctl stop nodelet && rm {MANIFESTS}/old.yaml"));
    node.reboot();
    node.wait_for_runtime();
    node.note("rebooted without the mount");
    let status = node.wait_running(&["web", "db", "old"]);
    let mounted = node.run(&format!("findmnt {MANIFESTS}"));
    assert_ne!(mounted.code, 0, "{}", mounted.output);
    let error = source_error(&status);
    assert!(error.as_str().is_some_and(|text| text.contains(MANIFESTS)), "{status:?}");
    assert_eq!(["web", "db", "old"].map(|pod| uid(&status, pod)), uids);
    boots.push(boot(&node));
    for uid in &uids {
        wait_for_boots(&node, uid, &boots);
    }
    let mut running = node.running();
    node.note("the last good pods run, with their data");

    node.sh(MOUNT);
    let settled = |status: &Status| source_error(status).is_null() && status.pod("old").is_none();
    let status = node.wait_for(SOON * 2, "the removed pod goes", settled);
    wait_for_no_data(&node, old);
    running.remove("old/main");
    assert_eq!(node.running(), running, "the others run on, in the same containers");
    assert_eq!(["web", "db"].map(|pod| uid(&status, pod)), [web.clone(), db.clone()]);
    for uid in [web, db] {
        wait_for_boots(&node, uid, &boots);
    }
    node.note("the mount has come, and its removed pod has gone");

    // The agent finds no sandbox, as after a reboot.
    node.sh(&format!("systemctl stop nodelet && rm {MANIFESTS}/db.yaml"));
    for sandbox in node.ready_sandboxes().values() {
        node.cri.remove_sandbox(sandbox).unwrap();
    }
    let begun = node.sh(&format!("{CHURN}; date +%s; systemctl start nodelet"));
    node.wait_for(SOON * 2, "what is written runs", |status| status.runs("web"));
    let journal = "journalctl -u containerd -o cat --no-pager -g 'RunPodSandbox for'";
    let made = node.sh(&format!("{journal} --since @{}", begun.trim()));
    assert!(made.contains("Name:web-node1"), "{made}");
    assert!(!made.contains("Name:db-node1"), "a saved manifest alone starts nothing: {made}");
    node.sh(END_CHURN);
    node.wait_for(SOON * 2, "the removed pod is forgotten", |status| status.pod("db").is_none());
    wait_for_no_data(&node, db);
    assert_eq!(uid(&node.status().unwrap(), "web"), *web);
    wait_for_boots(&node, web, &boots);

    let running = node.running();
    node.sh(&format!(
        "systemctl stop nodelet && umount {MANIFESTS} && {LOSE} && systemctl start nodelet"
    ));
    let without = |status: &Status| source_error(status).is_string() && status.runs("web");
    node.wait_for(SOON, "the agent runs without its manifests", without);
    assert_eq!(node.running(), running);
    node.note("a file system that can't be mounted does not keep the agent from starting");
    node.sh(&format!("sed -i '/lost/d' /etc/fstab && systemctl daemon-reload && {MOUNT}"));
    node.wait_for(SOON * 2, "the manifests are back", |status| source_error(status).is_null());
    node.finish();
}

/// A pod that adds the boot's id to a file in its emptyDir at each start. A network of its own
/// would cost the machine seconds.
fn with_data(name: &str) -> Pod {
    let script = format!("cat /proc/sys/kernel/random/boot_id >>/data/boots; {FOREVER}");
    Pod::with_main(name, &script)
        .set("hostNetwork", true)
        .set("volumes", json!([{ "name": "data", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "data", "mountPath": "/data" }]))
}

fn uid(status: &Status, pod: &str) -> String {
    status.pod(pod).unwrap().metadata.uid.clone().unwrap()
}

fn boot(node: &Node) -> String {
    node.sh("cat /proc/sys/kernel/random/boot_id").trim().to_owned()
}

/// Waits until the file in a pod's emptyDir names exactly these boots. A container that starts
/// twice in a boot adds a second line; containerd fails some starts on a slow machine.
fn wait_for_boots(node: &Node, uid: &str, boots: &[String]) {
    let look =
        format!("uniq /var/lib/nodelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data/boots");
    let told = |answer: &crate::shell::Answer| answer.output.lines().eq(boots);
    node.wait_until("its data is that of all boots", || node.run(&look), told);
}

fn wait_for_no_data(node: &Node, uid: &str) {
    let look = format!("ls -d /var/lib/nodelet/pods/{uid}");
    node.wait_until("its data is removed", || node.run(&look), |answer| answer.code != 0);
}

/// The error of the manifest directory; null when there is none.
fn source_error(status: &Status) -> &Value {
    &status.node["sources"][0]["error"]
}
