//! The control plane itself: it comes up, each part of it can fail and come back, and it leaves
//! nothing behind.

use super::{
    control_plane,
    controlplane::{ControlPlane, Options, metrics},
    objects::{self, NODES, PODS},
    programs,
    support::{poll_until, say_loudly, slot::Slot, wait_until},
};
use serde_json::json;
use std::{fs, net::TcpListener, panic, time::Duration};
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(60);

#[test]
fn comes_up_whole() {
    let begun = Instant::now();
    let Some((cluster, _slot)) =
        control_plane(&Options::default().controller_manager(&[]).scheduler())
    else {
        return;
    };
    let answered = begun.elapsed();
    // Made by the controller manager.
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    wait_until("controllers work", SOON, || cluster.admin.find(account).is_some(), |made| *made);
    let controllers = begun.elapsed();
    // Only the scheduler binds pods.
    let mut node = objects::node("somewhere");
    node["status"]["allocatable"] = json!({ "cpu": "1", "memory": "1Gi", "pods": "10" });
    node["status"]["capacity"] = node["status"]["allocatable"].clone();
    cluster.admin.create(NODES, &node).unwrap().ok();
    let mut pod = objects::pod("anywhere", "");
    pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
    cluster.admin.create(PODS, &pod).unwrap().ok();
    let look = || cluster.admin.get(&format!("{PODS}/anywhere"))["spec"]["nodeName"].clone();
    wait_until("the pod is bound", SOON, look, |node| node == "somewhere");

    let text = cluster.kubectl_text(&["version"]);
    assert_eq!(text.matches("v1.36.").count(), 2, "kubectl and API server: {text}");
    let text = cluster.kubectl_text(&["get", "nodes", "-o", "wide"]);
    assert!(text.contains("somewhere"), "{text}");
    let parts = [&cluster.etcd, &cluster.apiserver].into_iter();
    let parts = parts.chain(&cluster.controller_manager).chain(&cluster.scheduler);
    let memory: Vec<u64> = parts.map(|part| part.rss_mib()).collect();
    say_loudly(&format!(
        "control plane: answers after {answered:.1?}, controllers after {controllers:.1?}; MiB of etcd, kube-apiserver, \
         kube-controller-manager, kube-scheduler: {memory:?}"
    ));
}

#[test]
fn leaves_nothing_behind() {
    let Some(programs) = programs() else { return };
    let slot = Slot::take();
    let (dir, number) = (slot.dir().to_owned(), slot.number());
    let ours = format!("{}/", dir.display());
    let gone = || processes_naming(&ours).is_empty();
    let cluster = ControlPlane::start(&slot, &programs, &Options::default());
    assert_eq!(processes_naming(&ours).len(), 2);
    let address = cluster.address();
    drop(cluster);
    assert!(gone(), "{:?}", processes_naming(&ours));
    TcpListener::bind(address).unwrap();

    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let _cluster = ControlPlane::start(&slot, &programs, &Options::default());
        panic!("a test that fails");
    }));
    panicked.unwrap_err();
    assert!(gone(), "{:?}", processes_naming(&ours));

    // A test that is killed: nothing is dropped, and the next owner cleans.
    std::mem::forget(ControlPlane::start(&slot, &programs, &Options::default()));
    drop(slot);
    let ended = poll_until(SOON, gone, |gone| *gone);
    assert!(ended.is_ok(), "{:?}", processes_naming(&ours));
    assert!(!dir.exists(), "slot {number} still has {}", dir.display());
}

/// Processes of which an argument contains this, and that have not ended.
fn processes_naming(text: &str) -> Vec<String> {
    let commands = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).replace('\0', " "))
    });
    commands.filter(|command| command.contains(text)).collect()
}

#[test]
fn fails_and_comes_back() {
    let Some((cluster, _slot)) = control_plane(&Options::default()) else { return };
    let nodes = || -> Vec<String> {
        let list = cluster.admin.get(NODES)["items"].clone();
        let names = list.as_array().unwrap().iter();
        names.map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    cluster.admin.create(NODES, &objects::node("first")).unwrap().ok();

    cluster.apiserver.kill();
    assert!(cluster.admin.find(NODES).is_none());
    cluster.start_all();
    assert_eq!(nodes(), ["first"]);

    cluster.etcd.kill();
    let refused = cluster.admin.create(NODES, &objects::node("never"));
    assert!(refused.is_err() || refused.as_ref().is_ok_and(|a| a.status >= 500), "{refused:?}");
    cluster.start_all();
    assert_eq!(nodes(), ["first"]);

    let frozen = cluster.apiserver.freeze();
    let short = cluster.client(&cluster.node_identity("first"));
    let short = short.with_deadline(Duration::from_secs(2));
    let answer = short.send(hyper::Method::GET, "/version", None);
    assert!(answer.as_ref().is_err_and(|err| err.contains("no answer within")), "{answer:?}");
    drop(frozen);
    cluster.wait_ready();

    let snapshot = cluster.snapshot();
    cluster.admin.create(NODES, &objects::node("second")).unwrap().ok();
    assert_eq!(nodes(), ["first", "second"]);
    cluster.restore(&snapshot);
    assert_eq!(nodes(), ["first"]);
    let uid = |name: &str| cluster.admin.get(&format!("{NODES}/{name}"))["metadata"]["uid"].clone();
    let before = uid("first");
    cluster.wipe();
    assert!(nodes().is_empty());
    cluster.admin.create(NODES, &objects::node("first")).unwrap().ok();
    assert_ne!(uid("first"), before);
    // From an empty one back to a full one as well.
    cluster.restore(&snapshot);
    assert_eq!(uid("first"), before);
}

#[test]
fn counts_requests() {
    let Some((cluster, _slot)) = control_plane(&Options::default()) else { return };
    let count = |verb, resource| metrics::sum(&cluster.request_counts(), verb, resource);
    assert_eq!((count("POST", "nodes"), count("PATCH", "nodes/status")), (0, 0));
    cluster.admin.create(NODES, &objects::node("first")).unwrap().ok();
    for number in 0..3 {
        let patch = json!({ "metadata": { "annotations": { "n": number.to_string() } } });
        cluster.admin.patch(&format!("{NODES}/first/status"), &patch).unwrap().ok();
    }
    let refused = cluster.admin.create(NODES, &objects::node("first")).unwrap();
    assert_eq!(refused.status, 409);
    assert_eq!((count("POST", "nodes"), count("PATCH", "nodes/status")), (2, 3));
    assert_eq!(count("PATCH", "nodes"), 0);
    let conflicts = cluster.request_counts();
    let conflicts = conflicts.iter().filter(|c| c.resource == "nodes" && c.code == "409");
    assert_eq!(conflicts.map(|c| c.count).sum::<u64>(), 1);
}

#[test]
fn notices_a_silent_node_as_soon_as_it_is_told_to() {
    let quick = ["--node-monitor-grace-period=4s", "--node-monitor-period=1s"];
    let options = Options::default().controller_manager(&quick);
    let Some((cluster, _slot)) = control_plane(&options) else { return };
    let node = cluster.admin.create(NODES, &objects::node("silent")).unwrap().ok();
    let begun = Instant::now();
    let mut pod = objects::mirror("web", &node);
    pod["status"] = json!({});
    cluster.admin.create(PODS, &pod).unwrap().ok();
    let status = json!({ "status": { "phase": "Running", "conditions": [
        { "type": "Ready", "status": "True" },
    ] } });
    cluster.admin.patch(&format!("{PODS}/web/status"), &status).unwrap().ok();
    let ready = |path: String| objects::condition(&cluster.admin.get(&path), "Ready");
    let unknown = ("Unknown".to_owned(), "NodeStatusUnknown".to_owned());
    let look = || ready(format!("{NODES}/silent"));
    wait_until("the node is unknown", SOON, look, |seen| seen.as_ref() == Some(&unknown));
    let look = || ready(format!("{PODS}/web")).map(|(status, _)| status);
    wait_until("its pod is not ready", SOON, look, |seen| seen.as_deref() == Some("False"));
    say_loudly(&format!("a silent node is noticed after {:.1?}", begun.elapsed()));
    let look = || cluster.kubectl_text(&["describe", "node", "silent"]);
    let tainted = |text: &String| text.contains("node.kubernetes.io/unreachable");
    wait_until("it is tainted", SOON, look, tainted);
}
