#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better without an ampersand"
)]

use super::*;
use crate::model::{CpuMemory, NodeObjects, PodKey, PodUid, k8s};
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::IpAddr};

fn spec(value: Value) -> k8s::PodSpec {
    serde_json::from_value(value).unwrap()
}

fn pod(value: Value) -> k8s::Pod {
    serde_json::from_value(value).unwrap()
}

fn container(name: &str, requests: Value, limits: Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn milli(amounts: &Amounts, resource: &str) -> Option<i64> {
    amounts.get(resource).map(crate::model::Quantity::milli_value)
}

fn bytes(amounts: &Amounts, resource: &str) -> Option<i64> {
    amounts.get(resource).map(crate::model::Quantity::value)
}

const OPTIONS: CgroupOptions =
    CgroupOptions { cpu_cfs_quota: true, cpu_period_micros: 100_000, pids_limit: Some(1024) };

#[test]
fn classes() {
    let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    for (containers, class) in [
        (json!([{"name": "a"}]), QosClass::BestEffort),
        (json!([container("a", both("0", "0"), json!({}))]), QosClass::BestEffort),
        (
            json!([container("a", json!({"ephemeral-storage": "1Gi"}), json!({}))]),
            QosClass::BestEffort,
        ),
        (json!([container("a", both("1", "1Gi"), both("1000m", "1024Mi"))]), QosClass::Guaranteed),
        (json!([container("a", both("1", "1Gi"), both("2", "1Gi"))]), QosClass::Burstable),
        (json!([container("a", json!({"cpu": "1"}), json!({"cpu": "1"}))]), QosClass::Burstable),
        (
            json!([container("a", both("1", "1Gi"), both("1", "1Gi")), {"name": "b"}]),
            QosClass::Burstable,
        ),
    ] {
        assert_eq!(qos_class(&spec(json!({"containers": containers}))), class, "{containers}");
    }
}

#[test]
fn init_containers_count_for_the_class() {
    let equal = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed = container("a", equal.clone(), equal);
    let with_init = |init: Value| {
        qos_class(&spec(json!({"containers": [guaranteed], "initContainers": [init]})))
    };
    assert_eq!(with_init(guaranteed.clone()), QosClass::Guaranteed);
    assert_eq!(with_init(json!({"name": "i"})), QosClass::Burstable);
}

#[test]
fn pod_level_resources_decide_the_class() {
    let both = json!({"cpu": "1", "memory": "1Gi"});
    let own = container("a", both.clone(), both.clone());
    let with =
        |resources: Value| qos_class(&spec(json!({"containers": [own], "resources": resources})));
    assert_eq!(with(json!({})), QosClass::BestEffort);
    assert_eq!(with(json!({"limits": {"hugepages-2Mi": "2Mi"}})), QosClass::BestEffort);
    assert_eq!(with(json!({"requests": both, "limits": both})), QosClass::Guaranteed);
    assert_eq!(with(json!({"requests": {"cpu": "1"}, "limits": both})), QosClass::Guaranteed);
    assert_eq!(with(json!({"limits": {"memory": "1Gi"}})), QosClass::Burstable);
}

#[test]
fn the_larger_of_running_and_initializing_counts() {
    let of = |name: &str, cpu: &str| container(name, json!({"cpu": cpu}), json!({}));
    let sidecar = |name: &str, cpu: &str| {
        let mut made = of(name, cpu);
        made["restartPolicy"] = json!("Always");
        made
    };
    for (init, expected) in [
        (json!([]), 300),
        (json!([of("i", "100m")]), 300),
        (json!([of("i", "1")]), 1000),
        (json!([sidecar("s", "50m")]), 350),
        // The sidecar runs beside the init container after it, and not beside the one before.
        (json!([of("i", "500m"), sidecar("s", "50m"), of("j", "480m")]), 530),
        (json!([of("i", "540m"), sidecar("s", "50m"), of("j", "480m")]), 540),
    ] {
        let made = spec(json!({
            "containers": [of("a", "100m"), of("b", "200m")], "initContainers": init,
        }));
        assert_eq!(milli(&pod_requests(&made), "cpu"), Some(expected), "{init}");
    }
}

#[test]
fn pod_level_amounts_replace_sums() {
    let made = spec(json!({
        "containers": [container("a", json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2"}))],
        "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "4Gi"}},
    }));
    let (requests, limits) = (pod_requests(&made), pod_limits(&made));
    assert_eq!((milli(&requests, "cpu"), bytes(&requests, "memory")), (Some(3000), Some(1 << 30)));
    assert_eq!((milli(&limits, "cpu"), bytes(&limits, "memory")), (Some(2000), Some(4 << 30)));
}

#[test]
fn a_pod_is_limited_only_when_every_container_is() {
    let limited = container("a", json!({}), json!({"cpu": "500m", "memory": "64Mi"}));
    let one = pod_cgroup(&spec(json!({"containers": [limited]})), &OPTIONS);
    assert_eq!((one.cpu_quota_micros, one.memory_limit_bytes), (Some(50_000), Some(64 << 20)));
    assert_eq!(one.pids_max, Some(1024));

    let loose = json!([limited, {"name": "b", "resources": {"limits": {"cpu": "1"}}}]);
    let two = pod_cgroup(&spec(json!({"containers": loose})), &OPTIONS);
    assert_eq!((two.cpu_quota_micros, two.memory_limit_bytes), (Some(150_000), None));

    let init = json!({"containers": [limited], "initContainers": [{"name": "i"}]});
    let three = pod_cgroup(&spec(init.clone()), &OPTIONS);
    assert_eq!((three.cpu_quota_micros, three.memory_limit_bytes), (None, None));

    let mut whole = init;
    whole["resources"] = json!({"limits": {"memory": "1Gi"}});
    let four = pod_cgroup(&spec(whole), &OPTIONS);
    assert_eq!((four.cpu_quota_micros, four.memory_limit_bytes), (None, Some(1 << 30)));
}

#[test]
fn the_amounts_of_a_cgroup_are_those_that_it_is_given() {
    let amounts = |requests, limits| {
        cgroup_amounts(&spec(json!({"containers": [container("a", requests, limits)]})))
    };
    let one = amounts(json!({"cpu": "1", "memory": "1Gi"}), json!({"memory": "1Gi"}));
    let expected =
        CpuMemory { cpu_request: Some(1000), memory_limit: Some(1 << 30), ..CpuMemory::default() };
    assert_eq!(one, expected);
    let less = amounts(json!({"cpu": "1000m", "memory": "64Mi"}), json!({"memory": "1024Mi"}));
    assert_eq!(one, less, "a memory request changes no cgroup");
    assert_eq!(amounts(json!({}), json!({})), CpuMemory::default());
}

#[test]
fn a_best_effort_pod_gets_the_least_and_no_limits() {
    let cgroup = pod_cgroup(&spec(json!({"containers": [{"name": "a"}]})), &OPTIONS);
    let expected = PodCgroup {
        cpu_shares: 2,
        cpu_period_micros: 100_000,
        pids_max: Some(1024),
        ..PodCgroup::default()
    };
    assert_eq!(cgroup, expected);
}

#[test]
fn overhead_adds_to_requests_and_to_limits_that_exist() {
    let both = json!({"cpu": "1", "memory": "1Gi"});
    let made = json!({
        "containers": [container("a", both.clone(), both)],
        "overhead": {"cpu": "250m", "memory": "120Mi"},
    });
    let cgroup = pod_cgroup(&spec(made), &OPTIONS);
    assert_eq!(cgroup.cpu_shares, 1280);
    assert_eq!(cgroup.cpu_quota_micros, Some(125_000));
    assert_eq!(cgroup.memory_limit_bytes, Some((1024 + 120) << 20));
    let free = json!({"containers": [{"name": "a"}], "overhead": {"memory": "120Mi"}});
    assert_eq!(pod_cgroup(&spec(free), &OPTIONS).memory_limit_bytes, None);
}

#[test]
fn no_quota_when_cpu_limits_are_switched_off() {
    let limited = container("a", json!({}), json!({"cpu": "500m", "memory": "64Mi"}));
    let options = CgroupOptions { cpu_cfs_quota: false, pids_limit: None, ..OPTIONS };
    let cgroup = pod_cgroup(&spec(json!({"containers": [limited]})), &options);
    assert_eq!((cgroup.cpu_quota_micros, cgroup.pids_max), (None, None));
    assert!(cgroup.memory_limit_bytes.is_some());
}

#[test]
fn huge_pages_by_size() {
    let amounts = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "2Gi", "cpu": "1"});
    let made = spec(json!({"containers": [container("a", amounts.clone(), amounts)]}));
    let limit = |page, limit| HugepageLimit { page_size_bytes: page, limit_bytes: limit };
    assert_eq!(
        pod_cgroup(&made, &OPTIONS).hugepage_limits,
        vec![limit(2 << 20, 4 << 20), limit(1 << 30, 2 << 30)]
    );
}

#[test]
fn the_burstable_tier_has_what_its_pods_request() {
    let burstable =
        spec(json!({"containers": [container("a", json!({"cpu": "500m"}), json!({}))]}));
    let best_effort = spec(json!({"containers": [{"name": "a"}]}));
    let both = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed = spec(json!({"containers": [container("a", both.clone(), both)]}));
    assert_eq!(burstable_shares([&burstable, &best_effort, &guaranteed, &burstable]), 1024);
    assert_eq!(burstable_shares([&best_effort]), 2);
}

#[test]
fn cgroup_names_by_tier() {
    let named = |containers: Value| {
        let made = pod(json!({"metadata": {"uid": "1a2b"}, "spec": {"containers": containers}}));
        pod_cgroup_name(&made).join("/")
    };
    let both = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(named(json!([{"name": "a"}])), "kubepods/besteffort/pod1a2b");
    assert_eq!(named(json!([container("a", both.clone(), both)])), "kubepods/pod1a2b");
    let some = container("a", json!({"cpu": "1"}), json!({}));
    assert_eq!(named(json!([some])), "kubepods/burstable/pod1a2b");
}

#[test]
fn conversions() {
    for (milli, shares) in
        [(0, 2), (-5, 2), (1, 2), (10, 10), (100, 102), (1000, 1024), (9_999_999, 262_144)]
    {
        assert_eq!(cpu_shares(milli), shares, "{milli}");
    }
    for (milli, quota) in
        [(1, 1000), (5, 1000), (10, 1000), (11, 1100), (500, 50_000), (2000, 200_000)]
    {
        assert_eq!(cpu_quota_micros(milli, 100_000), quota, "{milli}");
    }
    for (shares, weight) in [(0, 1), (2, 1), (1024, 39), (262_144, 10_000), (999_999, 10_000)] {
        assert_eq!(weight_of_shares(shares), weight, "{shares}");
    }
}

fn oom(value: Value) -> i64 {
    let made = pod(value);
    let first = made.spec.as_ref().unwrap().containers[0].clone();
    oom_score_adj(&made, &first, 1_000_000_000)
}

#[test]
fn oom_scores() {
    let burstable = |memory: &str| json!({"spec": {"containers": [container("a", json!({"memory": memory}), json!({}))]}});
    let both = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(oom(json!({"spec": {"containers": [{"name": "a"}]}})), 1000);
    assert_eq!(oom(json!({"spec": {"containers": [container("a", both.clone(), both)]}})), -997);
    for (memory, score) in [("400M", 600), ("1M", 999), ("1k", 999), ("999M", 3), ("5G", 3)] {
        assert_eq!(oom(burstable(memory)), score, "{memory}");
    }
    let mut critical = burstable("400M");
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    critical["spec"]["priority"] = json!(2_000_001_000);
    assert_eq!(oom(critical), -997);
}

#[test]
fn a_sidecar_is_no_likelier_victim_than_what_it_serves() {
    let made = pod(json!({"spec": {
        "containers": [container("a", json!({"memory": "500M"}), json!({})),
                       container("b", json!({"memory": "300M"}), json!({}))],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}],
    }}));
    let init = made.spec.as_ref().unwrap().init_containers.clone().unwrap();
    assert_eq!(oom_score_adj(&made, &init[0], 1_000_000_000), 700);
    assert_eq!(oom_score_adj(&made, &init[1], 1_000_000_000), 999);
}

#[test]
fn a_pod_level_request_is_shared_by_those_without() {
    let made = json!({"spec": {
        "containers": [container("a", json!({"memory": "100M"}), json!({})), {"name": "b"}],
        "resources": {"requests": {"memory": "500M"}},
    }});
    assert_eq!(oom(made.clone()), 700);
    let mut with_init = made;
    with_init["spec"]["initContainers"] = json!([{"name": "i"}]);
    assert_eq!(oom(with_init), 767, "init containers have a share, too");
}

#[test]
fn host_names() {
    let named = |spec: Value| {
        let made = pod(json!({"metadata": {"name": "web-node1", "namespace": "ns"}, "spec": spec}));
        hostname(&made, "cluster.local").map(|h| (h.hostname, h.domain))
    };
    let text = |h: &str, d: &str| Ok((h.to_owned(), d.to_owned()));
    let none = json!([]);
    assert_eq!(named(json!({"containers": none})), text("web-node1", ""));
    assert_eq!(named(json!({"containers": none, "hostNetwork": true})), text("", ""));
    assert_eq!(named(json!({"containers": none, "hostname": "h"})), text("h", ""));
    let sub = json!({"containers": none, "hostname": "h", "subdomain": "s"});
    assert_eq!(named(sub.clone()), text("h", "s.ns.svc.cluster.local"));
    let mut fqdn = sub;
    fqdn["setHostnameAsFQDN"] = json!(true);
    let domain = "s.ns.svc.cluster.local";
    assert_eq!(named(fqdn.clone()), text(&format!("h.{domain}"), domain));
    let made = pod(json!({"metadata": {"namespace": "ns"}, "spec": fqdn.clone()}));
    assert_eq!(hostname(&made, "cluster.local").unwrap().short, "h");
    fqdn["subdomain"] = json!("s".repeat(60));
    let error = named(fqdn).unwrap_err().to_string();
    assert!(
        error.contains("is too long (64 characters is the max, 83 characters requested)"),
        "{error}"
    );
    let cut = format!("{}-{}", "a".repeat(62), "b");
    assert_eq!(named(json!({"containers": none, "hostname": cut})), text(&"a".repeat(62), ""));
    let override_ = json!({"containers": none, "hostnameOverride": "a.b", "subdomain": "s"});
    assert_eq!(named(override_), text("a.b", ""));
}

/// One address of each family, the family of the node first, whatever the network's order is.
#[test]
fn addresses_of_a_pod_follow_the_family_of_the_node() {
    let parse = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
    for (node, of_sandbox, expected) in [
        (&[] as &[&str], &["fd00::2", "10.0.0.2"] as &[&str], &["10.0.0.2", "fd00::2"] as &[&str]),
        (&["192.0.2.1"], &["fd00::2", "10.0.0.2", "10.0.0.3"], &["10.0.0.2", "fd00::2"]),
        (&["fd00::1", "192.0.2.1"], &["10.0.0.2", "fd00::2"], &["fd00::2", "10.0.0.2"]),
        (&["fd00::1"], &["10.0.0.2"], &["10.0.0.2"]),
        (&["192.0.2.1"], &[], &[]),
    ] {
        assert_eq!(primary_ips(&parse(of_sandbox), &parse(node)), parse(expected), "{node:?}");
    }
}

#[test]
fn names_and_paths() {
    let (key, uid) = (PodKey::new("ns", "web"), PodUid::from("u1"));
    assert_eq!(pod_display(&key, &uid), "web_ns(u1)");
    assert_eq!(pod_log_directory_name(&key, &uid), "ns_web_u1");
    assert_eq!(container_log_path("c", 3), "c/3.log");
}

fn environment(pod_value: Value) -> Result<BTreeMap<String, String>, String> {
    let made = pod(pod_value);
    let host: [IpAddr; 1] = ["192.0.2.1".parse().unwrap()];
    let own: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let list = serde_json::from_value(json!({"cpu": "4", "memory": "8Gi"})).unwrap();
    let allocatable = Amounts::of(Some(&list));
    let cx = EnvContext {
        node_name: "node1",
        host_ips: &host,
        pod_ips: &own,
        allocatable: &allocatable,
        objects: &NodeObjects::default(),
    };
    let first = &made.spec.as_ref().unwrap().containers[0];
    build_env(&made, first, &cx).map(BTreeMap::from_iter).map_err(|e| e.to_string())
}

fn with_env(env: Value) -> Result<BTreeMap<String, String>, String> {
    environment(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u",
                     "labels": {"app": "x", "a/b": "y"}, "annotations": {"k": "v"}},
        "spec": {"serviceAccountName": "sa", "containers": [
            {"name": "main", "env": env,
             "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}},
            {"name": "other", "resources": {"limits": {"cpu": "1500m"}}},
        ]},
    }))
}

#[test]
fn an_address_that_the_node_does_not_have_yet_is_waited_for() {
    let objects = NodeObjects::default();
    let amounts = Amounts::default();
    let value = |path: &str, host_network: bool, pod_ips: &[IpAddr]| {
        let env = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
        let made = pod(json!({"metadata": {"name": "web"}, "spec": {
            "hostNetwork": host_network, "containers": [{"name": "main", "env": env}],
        }}));
        let cx = EnvContext {
            node_name: "node1",
            host_ips: &[],
            pod_ips,
            allocatable: &amounts,
            objects: &objects,
        };
        build_env(&made, &made.spec.as_ref().unwrap().containers[0], &cx)
            .map(|env| env[0].1.clone())
    };
    for field in ["status.hostIP", "status.hostIPs"] {
        let unknown = EnvError::NoAddress { path: field.to_owned() };
        assert_eq!(value(field, false, &["10.0.0.2".parse().unwrap()]), Err(unknown));
    }
    for field in ["status.podIP", "status.podIPs"] {
        assert_eq!(value(field, true, &[]), Err(EnvError::NoAddress { path: field.to_owned() }));
        assert_eq!(value(field, false, &[]).as_deref(), Ok(""), "the runtime gave it none");
    }
}

#[test]
fn references_see_what_came_before() {
    let made = with_env(json!([
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(C)$$(A)"},
        {"name": "C", "value": "2"},
        {"name": "A", "value": "$(A)$(C)"},
        {"name": "EMPTY"},
    ]))
    .unwrap();
    let text: Vec<String> = made.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(text.join(" "), "A=12 B=1$(C)$(A) C=2 EMPTY=");
}

#[test]
fn fields_and_resources() {
    let field = |path: &str| {
        with_env(json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]))
            .map(|made| made["X"].clone())
    };
    for (path, value) in [
        ("metadata.name", "web"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['a/b']", "y"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['k']", "v"),
        ("spec.nodeName", "node1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "192.0.2.1"),
        ("status.podIP", "10.0.0.2"),
        ("status.podIPs", "10.0.0.2,fd00::2"),
    ] {
        assert_eq!(field(path).as_deref(), Ok(value), "{path}");
    }
    assert_eq!(field("metadata.labels").unwrap_err(), "unsupported fieldPath: metadata.labels");
    let resource = |resource: &str, divisor: &str, of: &str| {
        let selector = json!({"resource": resource, "divisor": divisor, "containerName": of});
        with_env(json!([{"name": "X", "valueFrom": {"resourceFieldRef": selector}}]))
            .map(|made| made["X"].clone())
    };
    for (name, divisor, of, value) in [
        ("requests.cpu", "0", "", "1"),
        ("requests.cpu", "1m", "", "250"),
        ("limits.memory", "1Mi", "", "64"),
        ("limits.memory", "0", "", "67108864"),
        ("limits.cpu", "1", "", "4"),
        ("limits.cpu", "1", "other", "2"),
        ("limits.memory", "1Gi", "other", "8"),
        ("requests.memory", "1", "", "0"),
    ] {
        assert_eq!(resource(name, divisor, of).as_deref(), Ok(value), "{name} {divisor} {of}");
    }
    assert_eq!(resource("limits.cpu", "1", "none").unwrap_err(), "container none not found");
    assert!(resource("limits.gpu", "1", "").unwrap_err().contains("limits.gpu"));
}

#[test]
fn a_source_that_is_not_known_is_refused() {
    let source = json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}});
    let error = with_env(json!([{"name": "X", "valueFrom": source}])).unwrap_err();
    assert_eq!(error, "environment variable X: fileKeyRef is not supported");
}

/// `A0` with 10 bytes, and variables that are each `width` times the one before.
fn doubling(variables: usize, width: usize) -> Value {
    let value = |index: usize| match index {
        0 => "xxxxxxxxxx".to_owned(),
        _ => format!("$(A{})", index - 1).repeat(width),
    };
    (0..variables).map(|n| json!({"name": format!("A{n}"), "value": value(n)})).collect()
}

#[test]
fn environment_that_references_multiply_is_refused() {
    let error = with_env(doubling(20, 4)).unwrap_err();
    assert!(error.starts_with("env[7].value: must be no more than 131072 bytes"), "{error}");
    // Each value fits, and all together do not.
    let mut many: Vec<Value> = doubling(7, 4).as_array().unwrap().clone();
    many.extend((0..40).map(|n| json!({"name": format!("B{n}"), "value": "$(A6)"})));
    let error = with_env(json!(many)).unwrap_err();
    assert!(error.contains("no more than 1048576 bytes together"), "{error}");
    assert!(error.starts_with("env[31].value: "), "{error}");
    // A replaced definition is work as well.
    let replaced: Vec<Value> =
        many[..7].iter().cloned().chain(vec![json!({"name": "B", "value": "$(A6)"}); 40]).collect();
    assert!(with_env(json!(replaced)).unwrap_err().contains("together"));
}

#[test]
fn values_of_fields_count_before_they_are_used() {
    let annotation = json!({"fieldRef": {"fieldPath": "metadata.annotations['k']"}});
    let made = |length: usize| {
        environment(json!({
            "metadata": {"name": "web", "annotations": {"k": "x".repeat(length)}},
            "spec": {"containers": [{"name": "main", "env": [{"name": "X", "valueFrom": annotation}]}]},
        }))
    };
    assert_eq!(made(MAX_ENTRY_BYTES - 3).unwrap()["X"].len(), MAX_ENTRY_BYTES - 3);
    assert!(made(MAX_ENTRY_BYTES - 2).unwrap_err().starts_with("env[0].value: "));
}

#[test]
fn command_arguments_and_sub_paths_count_after_expansion() {
    let long = "x".repeat(3000);
    for (field, part) in [
        ("command[1]", json!({"command": ["a", "$(L)".repeat(44)]})),
        ("args[0]", json!({"args": ["$(L)".repeat(44)]})),
        ("args[34]", json!({"args": vec!["$(L)".repeat(10); 40]})),
        (
            "volumeMounts[0].subPathExpr",
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(L)$(L)"}]}),
        ),
    ] {
        let mut container = part;
        container["name"] = "c".into();
        container["env"] = json!([{"name": "L", "value": long}]);
        let container: k8s::Container = serde_json::from_value(container).unwrap();
        let error = check_expansion(&container).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
}

#[test]
fn expansion_takes_time_proportional_to_the_text() {
    // Unfinished references, each of which could search to the end.
    let text = "$(".repeat(2 << 20);
    assert_eq!(expanded_len(&text, |_| None), text.len());
    assert_eq!(expanded_len(&format!("){text}"), |_| None), text.len() + 1);
    let many: Vec<Value> = (0..60_000).map(|n| json!({"name": format!("V{n}")})).collect();
    assert_eq!(with_env(json!(many)).unwrap().len(), 60_000);
}

#[test]
fn commands_and_sub_paths_are_expanded() {
    let env = [("A".to_owned(), "1".to_owned()), ("E".to_owned(), String::new())];
    let made: k8s::Container = serde_json::from_value(
        json!({"name": "c", "command": ["$(A)", "$(B)"], "args": ["x$(A)"]}),
    )
    .unwrap();
    let expanded = expand_command(&made, &env);
    assert_eq!(expanded.command, ["1", "$(B)"]);
    assert_eq!(expanded.args, ["x1"]);
    assert_eq!(expand_sub_path("logs/$(A)", &env).as_deref(), Ok("logs/1"));
    let error = expand_sub_path("$(E)/$(B)", &env).unwrap_err();
    assert_eq!(error.to_string(), "missing value for E, B");
    let many: String = (0..100).map(|n| format!("$(X{n})$(X{n})")).collect();
    let error = expand_sub_path(&many, &env).unwrap_err().to_string();
    assert!(error.starts_with("missing value for X0, X1, ") && error.ends_with(", X19"), "{error}");
}

#[test]
fn an_annotation_with_a_typo_names_no_apparmor_profile() {
    for named in ["runtime/default", "unconfined", "localhost/p"] {
        assert!(names_app_armor_profile(named), "{named}");
    }
    for other in ["", "runtime/defaults", "RuntimeDefault", "localhost/", "localhost:p"] {
        assert!(!names_app_armor_profile(other), "{other}");
    }
}

#[test]
fn a_pod_keeps_its_cpu_and_memory_while_a_resize_waits() {
    let made = |image: &str, cpu: &str, pod_cpu: &str| {
        pod(json!({"spec": {
            "resources": {"limits": {"cpu": pod_cpu}},
            "containers": [{"name": "web", "image": image, "resources": {"limits": {"cpu": cpu}}}],
            "initContainers": [{"name": "setup", "resources": {"requests": {"cpu": cpu}}}],
        }}))
    };
    let (before, after) = (made("a:1", "1", "2"), made("a:2", "3", "4"));
    assert_eq!(with_amounts_of(&after, &before), made("a:2", "1", "2"));
    assert!(has_same_amounts(&made("a:1", "1", "2"), &made("a:2", "1000m", "2000m")));
    assert!(!has_same_amounts(&before, &made("a:1", "1", "4")), "the pod as a whole");
    assert!(!has_same_amounts(&before, &made("a:1", "2", "2")));
    assert_eq!(with_amounts_of(&after, &k8s::Pod::default()), after);
}

#[test]
fn a_container_without_a_memory_limit_has_that_of_its_pod() {
    let pod = pod(json!({"spec": {
        "resources": {"limits": {"memory": "64Mi"}},
        "containers": [
            {"name": "bounded", "resources": {"limits": {"memory": "32Mi"}}}, {"name": "free"},
        ],
    }}));
    let containers = &pod.spec.as_ref().unwrap().containers;
    let bounds = [0, 1].map(|n| container_amounts(&pod, &containers[n]).memory_bound());
    assert_eq!(bounds, [Some(32 << 20), Some(64 << 20)]);
    let alone = k8s::Pod::default();
    assert_eq!(container_amounts(&alone, &containers[1]).memory_bound(), None);
}
