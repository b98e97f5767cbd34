#![allow(clippy::unwrap_used, reason = "tests")]

use super::{conditions::READY, *};
use crate::{
    admission::{Allocatable, Capacity},
    model::{CloudProvider, KUBELET_VERSION, Now, Pressure, k8s},
    patch::{NODE_STATUS, status_patch},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const PERIODS: ReportPeriods =
    ReportPeriods { update: Duration::from_secs(10), report: Duration::from_secs(300) };

fn at(seconds: u64) -> Now {
    let wall = "2026-11-21T10:00:00Z".parse::<jiff::Timestamp>().unwrap();
    Now { boot: Duration::from_secs(seconds), wall: wall + Duration::from_secs(seconds) }
}

fn report() -> NodeReport {
    let (capacity, allocatable) = resources(
        &Capacity {
            cpu_milli: 2000,
            memory_bytes: 16 << 30,
            ephemeral_storage_bytes: Some(100 << 30),
            hugepages: [("hugepages-2Mi".to_owned(), 0)].into(),
            pods: 110,
        },
        &Allocatable {
            cpu_milli: 1900,
            memory_bytes: (16 << 30) - (100 << 20),
            ephemeral_storage_bytes: Some(96_636_764_160),
            hugepages: [("hugepages-2Mi".to_owned(), 0)].into(),
            pods: 110,
        },
    );
    let address = |type_: &str, address: &str| k8s::NodeAddress {
        type_: type_.to_owned(),
        address: address.to_owned(),
    };
    NodeReport {
        name: "n1".to_owned(),
        local_storage: true,
        addresses: vec![address("InternalIP", "10.0.0.1"), address("Hostname", "n1")],
        capacity,
        allocatable,
        info: k8s::NodeSystemInfo {
            boot_id: "b1".to_owned(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            ..Default::default()
        },
        ..NodeReport::default()
    }
}

fn registration() -> Registration {
    Registration {
        enabled: true,
        attach_detach: true,
        labels: [("kubernetes.io/os", "linux"), ("kubernetes.io/hostname", "n1"), ("rack", "a")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        taints: vec![static_only_taint()],
        ..Registration::default()
    }
}

fn condition<'a>(status: &'a k8s::NodeStatus, type_: &str) -> &'a k8s::NodeCondition {
    status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap()
}

fn reasons(computed: &Computed) -> Vec<&'static str> {
    computed.told.iter().map(|event| event.reason).collect()
}

#[test]
fn a_new_node_says_what_there_is_and_keeps_foreign_pods_away() {
    let node = new_node(&registration(), &report(), at(0));
    let node = serde_json::to_value(node).unwrap();
    assert_eq!(node["metadata"]["labels"]["rack"], "a");
    assert_eq!(
        node["metadata"]["annotations"],
        json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"})
    );
    assert_eq!(
        node["spec"]["taints"],
        json!([{"key": "nodelet.dev/static-only", "effect": "NoSchedule"}])
    );
    assert_eq!(
        node["status"]["capacity"],
        json!({"cpu": "2", "memory": "16Gi", "ephemeral-storage": "100Gi", "hugepages-2Mi": "0",
               "pods": "110"})
    );
    assert_eq!(node["status"]["allocatable"]["cpu"], "1900m");
    assert_eq!(node["status"]["allocatable"]["memory"], "16284Mi");
    assert_eq!(node["status"]["allocatable"]["ephemeral-storage"], "90Gi");
    let types: Vec<&Value> =
        node["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
}

#[test]
fn a_condition_keeps_its_time_until_it_changes() {
    let mut report = report();
    let node = new_node(&registration(), &report, at(0));
    let later = status(&report, Some(&node), at(60));
    assert!(later.told.is_empty(), "{:?}", later.told);
    let ready = condition(&later.status, READY);
    assert_eq!(
        ready.last_transition_time,
        condition(node.status.as_ref().unwrap(), READY).last_transition_time
    );
    assert_ne!(ready.last_transition_time, ready.last_heartbeat_time);

    let why = vec!["container runtime is down".to_owned()];
    report.conditions.update(&BTreeSet::new(), why.clone(), true, at(65));
    let down = status(&report, Some(&node), at(70));
    let ready = condition(&down.status, READY);
    assert_eq!(ready.status, "False");
    assert_eq!(
        ready.message.as_deref(),
        Some("[container runtime is down, node is shutting down]")
    );
    assert_eq!(ready.last_transition_time.as_ref().unwrap().0, at(65).wall);
    assert_eq!(reasons(&down), ["NodeNotReady"]);

    report.conditions.update(&BTreeSet::from([Pressure::Memory]), why, true, at(75));
    let short = status(&report, Some(&node), at(80));
    let memory = condition(&short.status, "MemoryPressure");
    assert_eq!(
        (memory.status.as_str(), memory.reason.as_deref()),
        ("True", Some("KubeletHasInsufficientMemory"))
    );
}

#[test]
fn a_node_that_was_given_up_is_written_again_completely() {
    let report = report();
    let mut node = new_node(&registration(), &report, at(0));
    for condition in node.status.as_mut().unwrap().conditions.iter_mut().flatten() {
        condition.status = "Unknown".to_owned();
        condition.reason = Some("NodeStatusUnknown".to_owned());
    }
    let healed = status(&report, Some(&node), at(100));
    assert!(healed.status.conditions.iter().flatten().all(|c| c.status != "Unknown"));
    assert_eq!(
        reasons(&healed),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    );
}

#[test]
fn what_others_wrote_stays() {
    let mut report = report();
    let mut node = new_node(&registration(), &report, at(0));
    let theirs = node.status.as_mut().unwrap();
    let network = json!({"type": "NetworkUnavailable", "status": "False"});
    theirs.conditions.as_mut().unwrap().push(serde_json::from_value(network).unwrap());
    let one = Quantity("1".to_owned());
    for table in [&mut theirs.capacity, &mut theirs.allocatable] {
        table.as_mut().unwrap().insert("example.com/gpu".to_owned(), one.clone());
    }
    report.addresses.clear();
    let computed = status(&report, Some(&node), at(10)).status;
    assert_eq!(condition(&computed, "NetworkUnavailable").status, "False");
    assert_eq!(computed.capacity.unwrap()["example.com/gpu"], one);
    assert_eq!(computed.allocatable.unwrap()["example.com/gpu"], one);
    assert_eq!(computed.addresses.unwrap().len(), 2, "old addresses stay where none is known");
}

#[test]
fn pods_may_request_what_others_add_to_the_capacity() {
    let report = report();
    let mut node = new_node(&registration(), &report, at(0));
    for amount in ["4", "2"] {
        let capacity = node.status.as_mut().unwrap().capacity.as_mut().unwrap();
        capacity.insert("example.com/dongle".to_owned(), Quantity(amount.to_owned()));
        node.status = Some(status(&report, Some(&node), at(10)).status);
        let allocatable = node.status.as_ref().unwrap().allocatable.as_ref().unwrap();
        assert_eq!(allocatable["example.com/dongle"].0, amount);
        assert_eq!(allocatable["cpu"].0, "1900m", "our own resources are not taken from there");
    }
    node.status.as_mut().unwrap().capacity.as_mut().unwrap().remove("example.com/dongle");
    let allocatable = status(&report, Some(&node), at(20)).status.allocatable.unwrap();
    assert!(!allocatable.contains_key("example.com/dongle"), "{allocatable:?}");
}

#[test]
fn resources_that_the_machine_has_lost_leave_the_node() {
    let mut report = report();
    let node = new_node(&registration(), &report, at(0));
    for table in [&mut report.capacity, &mut report.allocatable] {
        table.remove("ephemeral-storage");
        table.remove("hugepages-2Mi");
    }
    let why = "missing node capacity for resources: ephemeral-storage";
    assert_eq!(report.not_ready().last().map(String::as_str), Some(why));
    report.local_storage = false;
    assert!(!report.not_ready().iter().any(|why| why.contains("missing")));
    let status = status(&report, Some(&node), at(10)).status;
    for table in [status.capacity.unwrap(), status.allocatable.unwrap()] {
        assert_eq!(table.keys().collect::<Vec<_>>(), ["cpu", "memory", "pods"]);
    }
}

#[test]
fn devices_of_another_agent_are_gone_when_its_node_is_taken_over() {
    let report = report();
    let was = |kubelet_version: &str, machine_id: &str| {
        let mut node = new_node(&registration(), &report, at(0));
        let theirs = node.status.as_mut().unwrap();
        let info = theirs.node_info.as_mut().unwrap();
        (info.kubelet_version, info.machine_id) = (kubelet_version.into(), machine_id.into());
        for table in [&mut theirs.capacity, &mut theirs.allocatable] {
            let table = table.as_mut().unwrap();
            table.insert("example.com/gpu".to_owned(), Quantity("1".to_owned()));
        }
        let first = status(&report, Some(&node), at(10)).status;
        let (capacity, allocatable) = (first.capacity.unwrap(), first.allocatable.unwrap());
        assert_eq!(capacity["cpu"].0, "2");
        [capacity, allocatable].map(|table| table["example.com/gpu"].0.clone())
    };
    assert_eq!(was("v1.36.0", ""), ["0", "0"], "a kubelet");
    assert_eq!(was(KUBELET_VERSION, "other"), ["0", "0"], "another machine");
    assert_eq!(was("v1.35.0+nodelet.0.1.0", ""), ["1", "1"], "this agent, before an upgrade");
}

#[test]
fn the_endpoint_of_a_kubelet_is_removed_from_the_node() {
    let report = report();
    let mut node = new_node(&registration(), &report, at(0));
    let mut patch = |port: u16| {
        let seen = json!({"kubeletEndpoint": {"Port": port}});
        node.status.as_mut().unwrap().daemon_endpoints = serde_json::from_value(seen).unwrap();
        let ours = serde_json::to_value(status(&report, Some(&node), at(10)).status).unwrap();
        let theirs = serde_json::to_value(&node.status).unwrap();
        status_patch(&theirs, &ours, &NODE_STATUS).map(Value::Object)
    };
    assert_eq!(patch(10250), Some(json!({"daemonEndpoints": null})));
    assert_eq!(patch(0), None);
}

#[test]
fn the_declared_features_are_those_of_this_agent() {
    let report = report();
    let mut node = new_node(&registration(), &report, at(0));
    let own = node.status.as_ref().unwrap().declared_features.clone().unwrap();
    assert!(own.contains(&"RestartAllContainersOnContainerExits".to_owned()) && own.is_sorted());
    let mut patch = |features: Vec<String>| {
        node.status.as_mut().unwrap().declared_features = Some(features);
        let ours = serde_json::to_value(status(&report, Some(&node), at(10)).status).unwrap();
        let theirs = serde_json::to_value(&node.status).unwrap();
        status_patch(&theirs, &ours, &NODE_STATUS).map(Value::Object)
    };
    // Those of a kubelet that was here before are replaced.
    let ours = json!({"declaredFeatures": own});
    assert_eq!(patch(vec!["ExtendWebSocketsToKubelet".to_owned()]), Some(ours));
    assert_eq!(patch(own), None);
}

#[test]
fn volumes_of_a_kubelet_are_in_use_until_the_machine_reboots() {
    let mut report = report();
    let mut node = new_node(&registration(), &report, at(0));
    let volumes = Some(vec!["kubernetes.io/csi/disk".to_owned()]);
    node.status.as_mut().unwrap().volumes_in_use.clone_from(&volumes);
    let kept = status(&report, Some(&node), at(10)).status.volumes_in_use;
    assert_eq!(kept, volumes, "the kubelet's containers may still run");
    report.info.boot_id = "b2".to_owned();
    let ours = serde_json::to_value(status(&report, Some(&node), at(10)).status).unwrap();
    let theirs = serde_json::to_value(&node.status).unwrap();
    let patch = status_patch(&theirs, &ours, &NODE_STATUS).unwrap();
    assert_eq!(patch["volumesInUse"], Value::Null);
}

#[test]
fn a_reboot_is_told() {
    let mut report = report();
    let node = new_node(&registration(), &report, at(0));
    report.info.boot_id = "b2".to_owned();
    let computed = status(&report, Some(&node), at(10));
    assert_eq!(reasons(&computed), ["Rebooted"]);
    assert_eq!(computed.told[0].message, "Node n1 has been rebooted, boot id: b2");
}

#[test]
fn only_the_kubelets_labels_are_put_right() {
    let mut node = new_node(&registration(), &report(), at(0));
    assert_eq!(reconciled(&registration(), &node), None);
    let labels = node.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/os".to_owned(), "plan9".to_owned());
    labels.insert("rack".to_owned(), "b".to_owned());
    assert_eq!(
        reconciled(&registration(), &node),
        Some(json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}))
    );
    node.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("kubernetes.io/os".to_owned(), "linux".to_owned());
    node.metadata.annotations = None;
    assert!(reconciled(&registration(), &node).is_some());
}

#[test]
fn a_taint_that_does_not_fit_the_configuration_is_told() {
    let static_only = new_node(&registration(), &report(), at(0));
    let all = Registration { taints: Vec::new(), ..registration() };
    let bare = new_node(&all, &report(), at(0));
    assert_eq!(bare.spec.as_ref().unwrap().taints, None);
    assert_eq!(taint_note(&registration(), &static_only), None);
    assert_eq!(taint_note(&all, &bare), None);
    assert_eq!(
        taint_note(&registration(), &bare).unwrap(),
        "the node takes pods that it will not run: kubectl taint nodes n1 nodelet.dev/static-only=:NoSchedule"
    );
    assert_eq!(
        taint_note(&all, &static_only).unwrap(),
        "the node could run pods of the API server, and a taint keeps them away: kubectl taint nodes n1 nodelet.dev/static-only-"
    );
}

#[test]
fn the_attach_detach_annotation_follows_the_configuration() {
    let on = registration();
    let off = Registration { attach_detach: false, ..registration() };
    let annotated = new_node(&on, &report(), at(0));
    let bare = new_node(&off, &report(), at(0));
    assert_eq!(bare.metadata.annotations, None);
    let name = "volumes.kubernetes.io/controller-managed-attach-detach";
    let patch = |value: Value| Some(json!({"metadata": {"annotations": {name: value}}}));
    assert_eq!(reconciled(&on, &annotated), None);
    assert_eq!(reconciled(&on, &bare), patch(json!("true")));
    assert_eq!(reconciled(&off, &bare), None);
    assert_eq!(reconciled(&off, &annotated), patch(Value::Null));
}

fn external(node_ips: &[&str]) -> Registration {
    let node_ips = node_ips.iter().map(|ip| ip.parse().unwrap()).collect();
    Registration { cloud_provider: CloudProvider::External, node_ips, ..registration() }
}

#[test]
fn an_external_cloud_provider_initializes_the_node() {
    let uninitialized = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized",
                               "value": "true", "effect": "NoSchedule"});
    let own = json!({"key": "nodelet.dev/static-only", "effect": "NoSchedule"});
    let node = new_node(&external(&[]), &report(), at(0));
    assert_eq!(json!(node.spec.as_ref().unwrap().taints), json!([own, uninitialized]));
    // The API server refuses a taint that is there twice.
    let taints = node.spec.unwrap().taints.unwrap();
    let given = new_node(&Registration { taints, ..external(&[]) }, &report(), at(0));
    assert_eq!(json!(given.spec.unwrap().taints), json!([own, uninitialized]));
    // A node may not change its taints after the registration.
    let plain = new_node(&registration(), &report(), at(0));
    assert_eq!(json!(plain.spec.as_ref().unwrap().taints), json!([own]));
    assert_eq!(reconciled(&external(&[]), &plain), None);
}

#[test]
fn an_external_cloud_provider_is_told_the_given_addresses() {
    let name = "alpha.kubernetes.io/provided-node-ip";
    let patch = |value: Value| Some(json!({"metadata": {"annotations": {name: value}}}));
    let plain = new_node(&registration(), &report(), at(0));
    for (given, told) in [
        (&["10.0.0.7"][..], Some("10.0.0.7")),
        (&["10.0.0.7", "fd00::7"], Some("10.0.0.7,fd00::7")),
        (&["::"], None),
        (&[], None),
    ] {
        let node = new_node(&external(given), &report(), at(0));
        let annotation = node.metadata.annotations.as_ref().unwrap().get(name);
        assert_eq!(annotation.map(String::as_str), told);
        assert_eq!(reconciled(&external(given), &node), None);
        assert_eq!(reconciled(&external(given), &plain), told.and_then(|told| patch(json!(told))));
        assert_eq!(reconciled(&registration(), &node), told.and_then(|_| patch(Value::Null)));
    }
}

#[test]
fn addresses_of_an_external_cloud_provider_stay() {
    let mut node = new_node(&registration(), &report(), at(0));
    let theirs = json!([{"type": "ExternalIP", "address": "203.0.113.5"}]);
    node.status.as_mut().unwrap().addresses = serde_json::from_value(theirs.clone()).unwrap();
    let addresses = |report: &NodeReport, node: &k8s::Node| {
        json!(status(report, Some(node), at(10)).status.addresses)
    };
    let external = NodeReport { cloud_provider: CloudProvider::External, ..report() };
    assert_eq!(addresses(&external, &node), theirs);
    assert_eq!(addresses(&report(), &node), json!(report().addresses));
    // Ours are there until the cloud provider has set its own.
    node.status.as_mut().unwrap().addresses = None;
    assert_eq!(addresses(&external, &node), json!(report().addresses));
}

/// The wall clock is set, forward or back by a day: only what people read follows it.
#[test]
fn a_wall_clock_step_changes_no_condition_and_no_schedule() {
    let report = report();
    let first = at(0);
    let node = new_node(&registration(), &report, first);
    let day = Duration::from_secs(24 * 3600);
    let boot = Duration::from_secs(10);
    for wall in [first.wall + day, first.wall - day] {
        let now = Now { boot, wall };
        let computed = status(&report, Some(&node), now);
        assert_eq!(reasons(&computed), Vec::<&str>::new());
        for condition in computed.status.conditions.iter().flatten() {
            assert_eq!(
                condition.last_transition_time.as_ref().map(|time| time.0),
                Some(first.wall)
            );
            assert_eq!(condition.last_heartbeat_time.as_ref().map(|time| time.0), Some(wall));
        }
        let theirs = serde_json::to_value(&node.status).unwrap();
        let ours = serde_json::to_value(&computed.status).unwrap();
        assert_eq!(status_patch(&theirs, &ours, &NODE_STATUS), None);
        let mut posting = Posting::new(PERIODS, first);
        posting.posted(false, 0.5, first);
        assert!(!posting.is_due(false, now));
        assert!(posting.is_due(false, Now { boot: Duration::from_secs(300), wall }));
        // The node controller goes by its own clock, from when it saw a later renewal.
        let next = renewed(&lease("n1", "u1", 40, first), "n1", "u1", 40, now);
        let renewed_at = next.spec.unwrap().renew_time.unwrap().0;
        assert!(renewed_at > first.wall && renewed_at >= wall, "{renewed_at}");
        assert!(renewed_at == wall || wall < first.wall, "{renewed_at}");
    }
}

#[test]
fn a_lease_follows_the_node_that_it_belongs_to() {
    let first = lease("n1", "u1", 40, at(0));
    let next = renewed(&first, "n1", "u1", 40, at(10));
    assert_eq!(next.metadata, first.metadata);
    assert_ne!(next.spec, first.spec);
    let back = renewed(&next, "n1", "u1", 40, at(5)).spec.unwrap().renew_time.unwrap();
    assert!(back.0 > at(10).wall && back.0 < at(11).wall, "a later renewal: {back:?}");
    let moved = renewed(&first, "n1", "u2", 40, at(20));
    assert_eq!(moved.metadata.owner_references.unwrap()[0].uid, "u2");
}

#[test]
fn the_first_status_waits_for_the_runtime() {
    let mut posting = Posting::new(PERIODS, at(100));
    let node = |boot: &str| k8s::Node {
        status: Some(k8s::NodeStatus {
            node_info: Some(k8s::NodeSystemInfo { boot_id: boot.to_owned(), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let ready = report();
    let mut not_ready = report();
    not_ready.conditions.runtime = vec!["container runtime is down".to_owned()];
    let mut going_down = not_ready.clone();
    going_down.conditions.shutdown = true;
    let wait = |posting: &Posting, report: &NodeReport, boot, second| {
        posting.wait_for_runtime(report, &node(boot), at(second)).map(|wait| wait.as_secs())
    };
    assert_eq!(wait(&posting, &ready, "b1", 100), None);
    assert_eq!(wait(&posting, &not_ready, "b1", 103), Some(7));
    assert_eq!(wait(&posting, &not_ready, "b1", 110), None, "it has waited long enough");
    assert_eq!(wait(&posting, &not_ready, "b0", 100), None, "nothing runs after a reboot");
    assert_eq!(wait(&posting, &going_down, "b1", 100), None);
    let rarely = ReportPeriods { update: Duration::from_secs(300), ..PERIODS };
    assert_eq!(wait(&Posting::new(rarely, at(100)), &not_ready, "b1", 100), Some(10));
    posting.posted(true, 0.5, at(101));
    assert_eq!(wait(&posting, &not_ready, "b1", 102), None, "it was ready in this run");
}

#[test]
fn a_status_is_written_when_it_changes_or_is_due() {
    let mut posting = Posting::new(PERIODS, at(0));
    assert!(posting.is_due(false, at(0)), "the first");
    posting.posted(true, 0.5, at(0));
    assert!(!posting.is_due(false, at(299)));
    assert!(posting.is_due(true, at(1)));
    assert!(posting.is_due(false, at(300)));
    posting.posted(false, 0.9, at(300));
    let due = |posting: &Posting| (0..1000).find(|second| posting.is_due(false, at(*second)));
    assert_eq!(due(&posting), Some(600), "regular ones are not spread");
    posting.posted(true, 0.0, at(310));
    assert_eq!(due(&posting), Some(460));
}
