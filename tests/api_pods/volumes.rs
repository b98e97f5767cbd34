//! Volumes of pods whose data outlive them: PersistentVolumes.

use super::{
    node::{Node, WAITS, is_ready, plain},
    support::{agent::NODE_NAME, status::get},
};
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// A directory of the host for a volume. Containers write to it as root.
fn disk(node: &Node, name: &str) -> PathBuf {
    let path = node.world.slot.dir().join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

fn create(node: &Node, collection: &str, object: &Value) {
    node.admin().create(collection, object).unwrap().ok();
}

/// A volume of this class, with this source.
fn volume(node: &Node, name: &str, class: &str, source: &Value) {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
        },
    });
    for (field, value) in source.as_object().unwrap() {
        volume["spec"][field] = value.clone();
    }
    create(node, VOLUMES, &volume);
}

fn claim_spec(class: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class,
        "resources": { "requests": { "storage": "1Gi" } },
    })
}

fn claim(node: &Node, name: &str, class: &str) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": claim_spec(class),
    });
    create(node, CLAIMS, &claim);
}

/// A pod whose container mounts a volume with this source at `/data`.
fn mounting(name: &str, script: &str, source: &Value) -> Value {
    let mut pod = plain(name, script);
    let mut volume = source.clone();
    volume["name"] = json!("data");
    pod["spec"]["volumes"] = json!([volume]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    pod
}

fn claimed(name: &str, script: &str, claim: &str) -> Value {
    mounting(name, script, &json!({ "persistentVolumeClaim": { "claimName": claim } }))
}

/// `hostPath` of a directory that is there.
fn host_path(disk: &PathBuf) -> Value {
    json!({ "hostPath": { "path": disk, "type": "Directory" } })
}

#[test]
fn a_claimed_host_path_outlives_its_pods() {
    let Some(node) = Node::start() else { return };
    let disk = disk(&node, "disk");
    volume(&node, "pv", "manual", &host_path(&disk));
    claim(&node, "data", "manual");
    let mut writer = claimed("writer", &format!("echo kept > /data/file; {WAITS}"), "data");
    writer["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("part");
    node.create(&writer);
    node.wait_pod_ready("writer");
    node.wait("the file is there", || disk.join("part/file").exists(), |there| *there);
    node.delete("writer");
    node.wait_pod_gone("writer");
    assert_eq!(fs::read_to_string(disk.join("part/file")).unwrap(), "kept\n");

    let mut reader = claimed("reader", WAITS, "data");
    reader["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    node.create(&reader);
    node.wait_pod_ready("reader");
    let touch = "cat /data/part/file; touch /data/new 2>/dev/null || echo read-only";
    assert_eq!(node.exec("reader", &["sh", "-c", touch]), "kept\nread-only\n");
    node.finish();
}

#[test]
fn a_local_volume_is_bound_when_its_pod_comes() {
    let Some(node) = Node::start() else { return };
    let disk = disk(&node, "disk");
    fs::write(disk.join("file"), "old").unwrap();
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "local" },
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&node, CLASSES, &class);
    let here = json!({
        "key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME],
    });
    let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } });
    let source = json!({ "local": { "path": disk }, "nodeAffinity": affinity });
    volume(&node, "pv", "local", &source);
    claim(&node, "data", "local");
    let mut pod = claimed("web", WAITS, "data");
    pod["spec"]["securityContext"] = json!({ "fsGroup": 4711 });
    pod["spec"]["containers"][0]["securityContext"] = json!({ "runAsUser": 1000 });
    node.create(&pod);
    node.wait_pod_ready("web");
    node.exec("web", &["sh", "-c", "echo new >> /data/file && touch /data/own"]);
    assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "oldnew\n");
    for name in ["", "file", "own"] {
        assert_eq!(fs::metadata(disk.join(name)).unwrap().gid(), 4711, "{name:?}");
    }
    claim_is_measured(&node, &disk);
    node.finish();
}

/// Claim `data` of pod `web` is in the statistics: what the file system of this directory says.
fn claim_is_measured(node: &Node, disk: &Path) {
    let socket = node.world.agent.run_dir().join("nodelet.sock");
    let asked = |path: &str| get(&socket, path).unwrap_or_default();
    let size = {
        let found = statvfs(disk).unwrap();
        found.blocks() * found.fragment_size()
    };
    let volume = || {
        let summary: Value = serde_json::from_str(&asked("/stats/summary")).unwrap_or_default();
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let web = pods.into_iter().find(|pod| pod["podRef"]["name"] == "web");
        web.map(|pod| pod["volume"][0].clone()).unwrap_or_default()
    };
    let volume = node.wait("it is measured", volume, |volume| volume["name"] == "data");
    assert_eq!(volume["pvcRef"], json!({ "name": "data", "namespace": "default" }));
    assert_eq!(volume["capacityBytes"], size, "{volume}");
    let sample = format!(
        "kubelet_volume_stats_capacity_bytes{{namespace=\"default\",persistentvolumeclaim=\"data\"}} {size}"
    );
    let metrics = asked("/metrics");
    assert!(metrics.lines().any(|line| line == sample), "no {sample}: {metrics}");
}

#[test]
fn an_ephemeral_volume_has_a_claim_of_its_own() {
    let Some(node) = Node::start() else { return };
    let disk = disk(&node, "disk");
    volume(&node, "pv", "manual", &host_path(&disk));
    let template = json!({ "spec": claim_spec("manual") });
    let source = json!({ "ephemeral": { "volumeClaimTemplate": template } });
    node.create(&mounting("web", &format!("echo here > /data/file; {WAITS}"), &source));
    node.wait_pod_ready("web");
    node.wait("the file is there", || disk.join("file").exists(), |there| *there);
    assert_eq!(node.admin().get(&format!("{CLAIMS}/web-data"))["status"]["phase"], "Bound");
    node.finish();
}

#[test]
fn a_local_volume_is_mounted_with_its_options() {
    let Some(node) = Node::start() else { return };
    let disk = disk(&node, "disk");
    let here = json!({
        "key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME],
    });
    let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } });
    let source = json!({
        "local": { "path": disk }, "nodeAffinity": affinity, "mountOptions": ["noexec"],
    });
    volume(&node, "pv", "manual", &source);
    claim(&node, "data", "manual");
    let mut pod = claimed("web", WAITS, "data");
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        { "name": "data", "mountPath": "/data" },
        { "name": "data", "mountPath": "/part", "subPath": "part" },
    ]);
    node.create(&pod);
    node.wait_pod_ready("web");
    let script = "for place in /data /part; do
        printf '#!/bin/sh\necho ran\n' > $place/file; chmod 755 $place/file
        $place/file 2>/dev/null || echo refused
    done";
    assert_eq!(node.exec("web", &["sh", "-c", script]), "refused\nrefused\n");
    assert!(disk.join("file").exists() && disk.join("part/file").exists());
    node.delete("web");
    node.wait_pod_gone("web");
    assert!(disk.join("file").exists());
    node.finish();
}

/// Waits until an event says `why`. The pod is Pending then.
#[track_caller]
fn wait_pending(node: &Node, pod: &str, why: &str) {
    let told = || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    node.wait("the pod says why", told, |events| events.contains(why));
    assert_eq!(node.pod(pod).unwrap()["status"]["phase"], "Pending");
}

#[test]
fn a_host_path_with_mount_options_keeps_its_pod_pending() {
    let Some(node) = Node::start() else { return };
    let mut source = host_path(&disk(&node, "disk"));
    source["mountOptions"] = json!(["noexec"]);
    volume(&node, "pv", "manual", &source);
    claim(&node, "data", "manual");
    node.create(&claimed("web", WAITS, "data"));
    let refused = r#"MountVolume.MountOptionSupport check failed for volume "pv" : mount options are not supported for this volume type"#;
    wait_pending(&node, "web", refused);
    let patch = json!({ "spec": { "mountOptions": null } });
    node.admin().patch(&format!("{VOLUMES}/pv"), &patch).unwrap().ok();
    node.wait_pod_ready("web");
    node.finish();
}

#[test]
fn a_volume_of_an_unsupported_kind_keeps_its_pod_pending() {
    let Some(node) = Node::start() else { return };
    let source = json!({ "csi": { "driver": "csi.example.com", "volumeHandle": "v1" } });
    volume(&node, "pv", "manual", &source);
    claim(&node, "data", "manual");
    node.create(&claimed("web", WAITS, "data"));
    let unsupported = r#"MountVolume.SetUp failed for volume "data" : PersistentVolumes of kind csi are not supported by this node"#;
    wait_pending(&node, "web", unsupported);
    node.finish();
}

#[test]
fn a_volume_of_other_nodes_is_not_mounted() {
    let Some(node) = Node::start() else { return };
    let here = json!({ "key": "disk", "operator": "In", "values": ["ssd"] });
    let mut source = host_path(&disk(&node, "disk"));
    source["nodeAffinity"] =
        json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } });
    volume(&node, "pv", "manual", &source);
    claim(&node, "data", "manual");
    let mut pod = claimed("web", WAITS, "data");
    // The scheduler would not bind the pod.
    pod["spec"]["nodeName"] = json!(NODE_NAME);
    node.create(&pod);
    let elsewhere =
        r#"MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms"#;
    wait_pending(&node, "web", elsewhere);
    let waits = |pod: &Value| {
        let status = &pod["status"];
        let waiting = &status["containerStatuses"][0]["state"]["waiting"]["reason"];
        status["phase"] == "Pending" && waiting == "ContainerCreating"
    };
    node.wait_pod("web", "waits", waits);
    let set_label = |value: Value| {
        let patch = json!({ "metadata": { "labels": { "disk": value } } });
        node.admin().patch(&format!("/api/v1/nodes/{NODE_NAME}"), &patch).unwrap().ok();
    };
    set_label(json!("ssd"));
    node.wait_pod_ready("web");
    // As with a kubelet, only a mount compares the labels.
    set_label(Value::Null);
    node.world.kill_container(&node.running("web")[0]);
    node.wait_pod("web", "is restarted", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    node.finish();
}

#[test]
fn a_claimed_volume_is_mounted_again_while_the_api_server_is_away() {
    let Some(node) = Node::start() else { return };
    let disk = disk(&node, "disk");
    volume(&node, "pv", "manual", &host_path(&disk));
    claim(&node, "data", "manual");
    let script = "echo start >> /data/starts; until rm /data/stop 2>/dev/null; do sleep 0.2; done";
    node.create(&claimed("web", script, "data"));
    node.wait_pod_ready("web");
    let starts = || fs::read_to_string(disk.join("starts")).unwrap_or_default().lines().count();
    node.wait("it has written", starts, |starts| *starts == 1);
    node.link.tcp.refuse(true);
    node.link.tcp.cut();
    node.world.agent.kill();
    node.world.agent.start();
    node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    fs::write(disk.join("stop"), "").unwrap();
    node.wait("it has written again", starts, |starts| *starts == 2);
    node.link.heal();
    node.wait_pod_ready("web");
    node.finish();
}
