//! NFS volumes, with the server on the same machine: what a pod writes is there, an agent that is
//! killed mounts nothing twice, and a server that does not answer holds up its own pods alone. The
//! same with PersistentVolumes, for pods of an API server that runs on the host.

use crate::{
    api_pods::boot,
    cluster::Cluster,
    controlplane::{
        self,
        objects::{WAITS, is_ready, plain},
    },
    machine::SOON,
    node::{MANIFESTS, Node, Options},
    support::{
        agent::NODE_NAME,
        manifest::{FOREVER, Pod},
    },
};
use http::Method;
use serde_json::{Value, json};

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

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// The options of what is mounted for pods.
const MOUNTED: &str = "grep -o ' /var/lib/nodelet/pods/.*' /proc/self/mounts; true";

/// How many threads of the agent that ask a file system are in an uninterruptible sleep.
const HANGING_LOOKS: &str = "cd /proc/$(systemctl show -P MainPID nodelet)/task && \
    grep -l '^file-system' */comm | xargs -n 1 dirname | \
    while read thread; do grep '^State:.*D' $thread/status; done | wc -l";

/// One machine.
pub fn claims_mount_an_nfs_volume_with_its_options() {
    let options = controlplane::Options::default().controller_manager(&[]);
    let Some(cluster) = Cluster::start(options) else { return };
    let node = boot(&cluster);
    cluster.wait_for_account();
    cluster.create_share("data", false, &["nfsvers=4.1", "noatime", "bg", "retry=5"]);
    cluster.create_share("kept", true, &[]);
    cluster.create_pod("early", "data", |_| {});
    let refused = r#"MountVolume.SetUp failed for volume "share" : cannot mount 127.0.0.1:/srv/share: mount failed"#;
    node.wait("it is told why the pod waits", |status| status.has_event("FailedMount", refused));
    let mounting = || node.sh("pgrep -x mount.nfs; true");
    node.wait_until("nothing mounts in the background", mounting, String::is_empty);
    node.sh(SERVE);
    cluster.wait_pod_ready(&node, "early");
    cluster.delete_pods(&node, &["early"]);
    node.note("a pod has waited for the server");
    what_claims_mount(&node, &cluster);
    an_agent_that_is_killed_mounts_nothing_twice(&node, &cluster);

    node.sh(CUT);
    node.drop_pods(&[Pod::running("other").set("hostNetwork", true)]);
    node.wait("the other pod runs", |status| status.runs("other"));
    let shown = || node.ask("/stats/summary");
    node.wait_until("statistics come", shown, |summary| {
        summary.contains("\"writer\"") && claim_in(summary).is_null()
    });
    let looks = || node.sh(HANGING_LOOKS);
    node.wait_until("the agent looks at each claim", looks, |looks| looks.trim() == "3");
    cluster.delete_pods(&node, &["looker"]);
    assert_eq!(node.sh(MOUNTED).lines().count(), 3);
    node.wait_until("its look has ended", looks, |looks| looks.trim() == "2");
    node.note("a pod goes while the agent's own look at its volume hangs");
    node.sh("systemctl kill -s KILL nodelet");
    cluster.create_pod("late", "data", |_| {});
    let late = "cannot mount 127.0.0.1:/srv/share: mount did not end within 30 s and was killed";
    node.wait("the server does not answer", |status| status.has_event("FailedMount", late));
    cluster.delete_pods(&node, &["late", "writer", "reader"]);
    assert_eq!(node.sh(MOUNTED), "");
    node.note("pods go without the server");
    node.sh(HEAL);
    assert_eq!(node.sh("ls -A /srv/share"), "greeting\npart\n");
    assert_eq!(node.sh("cat /srv/share/part/written"), "hello\n");
    node.finish();
}

/// A pod writes to a part of the share. Another one, which has the claim for reading alone, and one
/// whose PersistentVolume is read-only, can't.
fn what_claims_mount(node: &Node, cluster: &Cluster) {
    cluster.create_pod("writer", "data", |spec| {
        spec["securityContext"] = json!({ "fsGroup": 4711 });
        spec["containers"][0]["volumeMounts"] = json!([
            { "name": "share", "mountPath": "/share", "readOnly": true },
            { "name": "share", "mountPath": "/part", "subPath": "part" },
        ]);
        let script =
            format!("set -e; cp /share/greeting /part/written; ! touch /share/new; {WAITS}");
        spec["containers"][0]["command"][2] = json!(script);
    });
    cluster.create_pod("reader", "data", |spec| {
        spec["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    });
    cluster.create_pod("looker", "kept", |_| {});
    for pod in ["writer", "reader", "looker"] {
        cluster.wait_pod_ready(node, pod);
    }
    assert_eq!(node.sh("cat /srv/share/part/written"), "hello\n");
    assert_eq!(node.sh("stat -c %g /srv/share /srv/share/greeting"), "0\n0\n", "no fsGroup");
    let mounted = node.sh(MOUNTED);
    let with = |options: &[&str]| {
        let all = |line: &&str| {
            let words: Vec<&str> = line.split([' ', ',']).collect();
            options.iter().all(|option| words.contains(option))
        };
        mounted.lines().filter(all).count()
    };
    // The volume and the part of it.
    assert_eq!(with(&["rw", "noatime", "vers=4.1"]), 2, "{mounted}");
    assert_eq!(with(&["ro", "noatime", "vers=4.1"]), 1, "{mounted}");
    assert_eq!(with(&["ro", "relatime"]), 1, "{mounted}");
    let summary = || node.ask("/stats/summary");
    let summary = node.wait_until("it is measured", summary, |text| !claim_in(text).is_null());
    // NFS counts in other units than the disk below it.
    let size = node
        .sh("stat -f -c '%b %S' /var/lib/nodelet/pods/*/volumes/kubernetes.io~nfs/share | sort -u");
    let (blocks, block) = size.trim().split_once(' ').unwrap();
    let size = blocks.parse::<u64>().unwrap() * block.parse::<u64>().unwrap();
    assert_eq!(claim_in(&summary)["capacityBytes"], size, "{summary}");
    node.note("claims are mounted with the options of their volumes, and measured");
}

fn an_agent_that_is_killed_mounts_nothing_twice(node: &Node, cluster: &Cluster) {
    let before = (node.sh(MOUNTED), node.running());
    node.sh("systemctl kill -s KILL nodelet");
    let pid = || node.agent_pid();
    node.wait_until("the agent is back", pid, |pid| *pid != 0);
    node.wait("it answers", |status| status.pods.len() == 3);
    for pod in ["writer", "reader", "looker"] {
        cluster.wait_pod_ready(node, pod);
    }
    assert_eq!((node.sh(MOUNTED), node.running()), before);
    node.note("an agent that is killed mounts nothing twice");
}

/// What the statistics say of claim `data` of pod `writer`.
fn claim_in(summary: &str) -> Value {
    let summary: Value = serde_json::from_str(summary).unwrap_or_default();
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    let writer = pods.find(|pod| pod["podRef"]["name"] == "writer");
    let mut volumes = writer.and_then(|pod| pod["volume"].as_array()).into_iter().flatten();
    let claim = json!({ "name": "data", "namespace": "default" });
    volumes.find(|volume| volume["pvcRef"] == claim).cloned().unwrap_or_default()
}

impl Cluster {
    /// A PersistentVolume for the share, and a claim that is bound to it.
    fn create_share(&self, name: &str, read_only: bool, options: &[&str]) {
        let nfs = json!({ "server": "127.0.0.1", "path": "/srv/share", "readOnly": read_only });
        let modes = json!(["ReadWriteMany"]);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": modes, "storageClassName": "",
                "nfs": nfs, "mountOptions": options,
            },
        });
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
            "spec": {
                "volumeName": name, "accessModes": modes, "storageClassName": "",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        self.plane.admin.create(VOLUMES, &volume).unwrap().ok();
        self.plane.admin.create(CLAIMS, &claim).unwrap().ok();
    }

    /// A pod that mounts the claim at `/share`, with a change of its specification.
    fn create_pod(&self, name: &str, claim: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = plain(name, WAITS);
        let spec = &mut pod["spec"];
        spec["nodeName"] = json!(NODE_NAME);
        spec["hostNetwork"] = json!(true);
        spec["volumes"] =
            json!([{ "name": "share", "persistentVolumeClaim": { "claimName": claim } }]);
        spec["containers"][0]["volumeMounts"] = json!([{ "name": "share", "mountPath": "/share" }]);
        change(spec);
        self.plane.admin.create(PODS, &pod).unwrap().ok();
    }

    #[track_caller]
    fn wait_pod_ready(&self, node: &Node, pod: &str) {
        let look = || self.plane.admin.find(&format!("{PODS}/{pod}")).unwrap_or_default();
        node.wait_until("the pod is Ready", look, is_ready);
    }

    /// Deletes pods and waits until they are gone.
    #[track_caller]
    fn delete_pods(&self, node: &Node, pods: &[&str]) {
        let path = |pod: &&str| format!("{PODS}/{pod}");
        for pod in pods {
            self.plane.admin.send(Method::DELETE, &path(pod), None).unwrap().ok();
        }
        let there = || pods.iter().filter_map(|pod| self.plane.admin.find(&path(pod))).count();
        node.wait_until("the pods are gone", there, |there| *there == 0);
    }
}
