//! Every rule: its reason and its message, and a pod beside it that meets it.

use super::*;

/// What is told of a pod `x` that is refused: its status, and the event.
fn refused(reason: &str, message: &str) -> Vec<String> {
    vec![format!("x {reason}: Pod was rejected: {message}"), format!("event x {reason}: {message}")]
}

const FINE: [&str; 1] = ["x admitted"];

fn check(node: Node, spec: Value, expected: &[impl AsRef<str> + std::fmt::Debug]) {
    let shown = spec.to_string();
    let found = node.wants([pod("x", spec)]).admits();
    let expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
    assert_eq!(found, expected, "{shown}");
}

fn requests(requests: &Value) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]})
}

#[test]
fn a_pod_is_refused_for_what_the_node_has_too_little_of() {
    let short = |resource: &str, requested: i64, used: i64, capacity: i64| {
        refused(
            &format!("OutOf{resource}"),
            &format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        )
    };
    let beside = || {
        let mut node = node();
        node.facts.allocatable.cpu_milli = 3000;
        node.facts.allocatable.memory_bytes = 7 * GI;
        node
    };
    check(beside(), requests(&json!({"cpu": "3", "memory": "7Gi"})), &FINE);
    check(beside(), requests(&json!({"cpu": "3001m"})), &short("cpu", 3001, 0, 3000));
    check(
        beside(),
        requests(&json!({"memory": "7516192769"})),
        &short("memory", 7 * GI + 1, 0, 7 * GI),
    );
    check(node(), requests(&json!({"ephemeral-storage": "10Gi"})), &FINE);
    check(
        node(),
        requests(&json!({"ephemeral-storage": "11Gi"})),
        &short("ephemeral-storage", 11 * GI, 0, 10 * GI),
    );
    check(node(), requests(&json!({"hugepages-2Mi": "1Gi"})), &FINE);
    check(
        node(),
        requests(&json!({"hugepages-2Mi": "2Gi"})),
        &short("hugepages-2Mi", 2 * GI, 0, GI),
    );
    check(node(), requests(&json!({"hugepages-1Gi": "1Gi"})), &short("hugepages-1Gi", GI, 0, 0));
    // Several at once: in this order. What no node has is dropped.
    let all = json!({"memory": "99Gi", "cpu": "99", "example.com/gpu": "1"});
    check(node(), requests(&all), &short("cpu", 99_000, 0, 4000));
    check(node(), requests(&json!({"example.com/gpu": "1"})), &FINE);
    let mut full = node();
    full.facts.allocatable.pods = 0;
    check(full, requests(&json!({"cpu": "99"})), &short("pods", 1, 0, 0));
    let mut unknown = node();
    unknown.facts.allocatable.ephemeral_storage_bytes = None;
    check(unknown, requests(&json!({"ephemeral-storage": "11Gi"})), &FINE);
}

#[test]
fn extended_resources_are_those_of_the_node_object() {
    let object = json!({"status": {"allocatable": {"example.com/dongle": "2", "cpu": "9"}}});
    let object: k8s::Node = serde_json::from_value(object).unwrap();
    let with_dongles = || {
        let mut node = node();
        node.scheduling.as_mut().unwrap().extended = NodeScheduling::from(&object).extended;
        node
    };
    check(with_dongles(), requests(&json!({"example.com/dongle": "2"})), &FINE);
    // One that only the cluster has.
    check(with_dongles(), requests(&json!({"example.com/gpu": "1"})), &FINE);
    let told =
        "Node didn't have enough resource: example.com/dongle, requested: 3, used: 0, capacity: 2";
    let expected = [
        format!("x OutOfexample.com/dongle: Pod was rejected: {told}"),
        format!("event x OutOfExtendedResources: {told}"),
    ];
    check(with_dongles(), requests(&json!({"example.com/dongle": "3"})), &expected);
    // A static node has none, and counts none.
    let mut alone = with_dongles();
    alone.scheduling = None;
    let metadata = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    let mut spec = requests(&json!({"example.com/dongle": "3"}));
    spec["metadata"] = metadata;
    check(alone, spec, &FINE);
}

#[test]
fn requests_include_overhead_and_init_containers() {
    let container =
        |cpu: &str| json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
    let sidecar = json!({
        "name": "s", "image": "i", "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "1"}},
    });
    let spec = json!({
        "initContainers": [sidecar, container("2500m")],
        "containers": [container("1"), container("1")],
        "overhead": {"cpu": "501m"},
    });
    let message = "Node didn't have enough resource: cpu, requested: 4001, used: 0, capacity: 4000";
    check(node(), spec, &refused("OutOfcpu", message));
}

#[test]
fn what_others_have_is_used() {
    let mut node = node().runs([asks("a", 0, "1", "2Gi"), asks("b", 0, "500m", "0")]);
    node = node.wants([asks("x", 0, "2501m", "1Gi"), asks("y", 0, "2500m", "6Gi")]);
    let message =
        "Node didn't have enough resource: cpu, requested: 2501, used: 4000, capacity: 4000";
    let mut expected = vec!["a admitted".to_owned(), "b admitted".to_owned()];
    expected.extend(refused("OutOfcpu", message));
    expected.insert(3, "y admitted".to_owned());
    assert_eq!(node.admits(), expected);
}

#[test]
fn sysctls_are_safe_ones_or_allowed_ones_of_the_pods_own() {
    let with = |name: &str, more: Value| {
        let mut spec = json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let forbidden = |why: &str| refused("SysctlForbidden", &format!("forbidden sysctl: {why}"));
    for fine in
        ["net.ipv4.tcp_rmem", "kernel.shm_rmid_forced", "net.core.somaxconn", "kernel.msgmax"]
    {
        check(node(), with(fine, json!({})), &FINE);
    }
    check(node(), with("net/core/somaxconn", json!({})), &FINE);
    let unsafe_one = forbidden("\"kernel.msgmnb\" not allowlisted");
    check(node(), with("kernel.msgmnb", json!({})), &unsafe_one);
    check(
        node(),
        with("vm.swappiness", json!({})),
        &forbidden("\"vm.swappiness\" not allowlisted"),
    );
    let net = forbidden("\"net.ipv4.tcp_rmem\" not allowed with host net enabled");
    check(node(), with("net.ipv4.tcp_rmem", json!({"hostNetwork": true})), &net);
    let ipc = forbidden("\"kernel.msgmax\" not allowed with host ipc enabled");
    check(node(), with("kernel.msgmax", json!({"hostIPC": true})), &ipc);
    check(node(), with("kernel.msgmax", json!({"hostNetwork": true})), &FINE);
    for (name, since) in [
        ("net.ipv4.ip_local_reserved_ports", (3, 16)),
        ("net.ipv4.tcp_keepalive_time", (4, 5)),
        ("net.ipv4.tcp_fin_timeout", (4, 6)),
        ("net.ipv4.tcp_wmem", (4, 15)),
    ] {
        let mut old = node();
        old.facts.kernel = Some((since.0, since.1 - 1));
        check(old, with(name, json!({})), &forbidden(&format!("\"{name}\" not allowlisted")));
        let mut new = node();
        new.facts.kernel = Some(since);
        check(new, with(name, json!({})), &FINE);
        let mut unknown = node();
        unknown.facts.kernel = None;
        check(unknown, with(name, json!({})), &FINE);
    }
}

#[test]
fn a_pod_says_which_operating_system_it_is_for() {
    let label = |os: &str| json!({"metadata": {"labels": {"kubernetes.io/os": os}}});
    let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    check(node(), label("linux"), &FINE);
    check(node(), label("windows"), &refused("PodOSSelectorNodeLabelDoesNotMatch", message));
    let message = "Failed to admit pod as the OS field doesn't match node OS";
    check(node(), json!({"os": {"name": "linux"}}), &FINE);
    check(node(), json!({"os": {"name": "windows"}}), &refused("PodOSNotSupported", message));
}

#[test]
fn a_pod_says_which_nodes_it_is_for() {
    let message =
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let selector = |value: &str| json!({"nodeSelector": {"kubernetes.io/arch": value}});
    check(node(), selector("amd64"), &FINE);
    check(node(), selector("arm64"), &refused("NodeAffinity", message));
    let affinity = |name: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
        json!({"affinity": {"nodeAffinity": required}})
    };
    check(node(), affinity("n1"), &FINE);
    check(node(), affinity("n2"), &refused("NodeAffinity", message));
    let message = "Predicate NodeName failed: node(s) didn't match the requested node name";
    check(node(), json!({"nodeName": "n1"}), &FINE);
    check(node(), json!({"nodeName": "n2"}), &refused("NodeName", message));
}

/// A pod that a file of this machine has brought.
fn static_pod(mut spec: Value) -> Value {
    spec["metadata"] = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    spec
}

#[test]
fn labels_of_the_node_object_count_before_configured_ones() {
    let message =
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let refusal = refused("NodeAffinity", message);
    let selector = || json!({"nodeSelector": {"disk": "ssd"}});
    let configured = |mut node: Node| {
        node.facts.labels.insert("disk".to_owned(), "ssd".to_owned());
        node
    };
    for spec in [selector(), static_pod(selector())] {
        check(node().labeled("disk", "ssd"), spec.clone(), &FINE);
        check(configured(node()), spec.clone(), &refusal);
        check(configured(node()).labeled("disk", "hdd"), spec, &refusal);
    }
    let mut unknown = configured(node());
    unknown.scheduling = None;
    check(unknown, static_pod(selector()), &FINE);
}

#[test]
fn a_refused_pod_is_admitted_once_the_node_has_the_label() {
    let mut node = node().wants([pod("x", json!({"nodeSelector": {"disk": "ssd"}}))]);
    assert!(node.again()[0].starts_with("x NodeAffinity: "));
    node = node.labeled("disk", "ssd");
    assert_eq!(node.again(), FINE);
}

#[test]
fn no_execute_taints_must_be_tolerated() {
    let message =
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let refusal = refused("TaintToleration", message);
    let tolerates = |tolerations: Value| json!({"tolerations": tolerations});
    let gpu = json!({"key": "gpu", "operator": "Exists"});
    let down = json!({"key": "down", "value": "soon", "tolerationSeconds": 300});
    for (taints, spec, expected) in [
        (&["gpu:NoExecute"][..], json!({}), Some(&refusal)),
        (&["gpu:NoExecute"], tolerates(json!([gpu])), None),
        (&["gpu:NoExecute", "down=soon:NoExecute"], tolerates(json!([gpu])), Some(&refusal)),
        (&["gpu:NoExecute", "down=soon:NoExecute"], tolerates(json!([down, gpu])), None),
        (&["gpu:NoSchedule", "down:PreferNoSchedule"], json!({}), None),
        (&["gpu:NoExecute"], json!({"priority": CRITICAL}), Some(&refusal)),
        (&["gpu:NoExecute"], static_pod(json!({})), None),
    ] {
        match expected {
            Some(lines) => check(node().tainted(taints), spec, lines),
            None => check(node().tainted(taints), spec, &FINE),
        }
    }
}

#[test]
fn a_taint_throws_out_no_pod_that_runs() {
    assert_eq!(node().tainted(&["gpu:NoExecute"]).runs([pod("x", json!({}))]).admits(), FINE);
}

#[test]
fn a_pod_of_the_api_server_waits_for_the_node_object() {
    let mut node = node();
    node.scheduling = None;
    let critical = json!({"priority": CRITICAL});
    node = node.wants([pod("s", static_pod(json!({}))), pod("x", critical)]);
    let waits = "x waits: the labels and taints of the node have not been read yet";
    assert_eq!(node.admits(), ["s admitted", waits]);
}

#[test]
fn a_port_of_the_node_is_had_once() {
    let mut node = node().runs([port("a", 0, 8080)]);
    node = node.wants([port("x", 5, 8080), port("y", 0, 8081)]);
    let message =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let mut expected = vec!["a admitted".to_owned()];
    expected.extend(refused("NodePorts", message));
    expected.insert(2, "y admitted".to_owned());
    assert_eq!(node.admits(), expected);
}

#[test]
fn profiles_need_a_kernel_that_enforces_them() {
    let without = || {
        let mut node = node();
        node.facts.app_armor = false;
        node
    };
    let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
    let container = |kind: &str| json!({"containers": [{"name": "c", "image": "i", "securityContext": profile(kind)}]});
    let annotated = |value: &str| {
        let key = "container.apparmor.security.beta.kubernetes.io/c";
        json!({"metadata": {"annotations": {key: value}}})
    };
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    for asks in [
        json!({"securityContext": profile("RuntimeDefault")}),
        container("RuntimeDefault"),
        annotated("runtime/default"),
    ] {
        check(without(), asks.clone(), &refused("AppArmor", message));
        check(node(), asks, &FINE);
    }
    for asks_nothing in [
        json!({"securityContext": profile("Unconfined")}),
        container("Unconfined"),
        annotated("unconfined"),
        annotated("runtime/defaults"),
    ] {
        check(without(), asks_nothing, &FINE);
    }
}

#[test]
fn strict_groups_need_a_runtime_that_supports_them() {
    let on = |supported: Option<bool>| {
        let mut node = node();
        node.runtime.features = supported
            .map(|supported| k8s::NodeFeatures { supplemental_groups_policy: Some(supported) });
        node
    };
    let policy = |policy: &str| json!({"securityContext": {"supplementalGroupsPolicy": policy}});
    let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
    let refusal = refused("SupplementalGroupsPolicyNotSupported", message);
    check(on(Some(true)), policy("Strict"), &FINE);
    check(on(Some(false)), policy("Strict"), &refusal);
    // An older runtime says nothing about its features.
    check(on(None), policy("Strict"), &refusal);
    check(on(None), policy("Merge"), &FINE);
    let critical =
        || json!({"priority": CRITICAL, "securityContext": {"supplementalGroupsPolicy": "Strict"}});
    check(on(None), critical(), &refusal);
    let mut silent = on(None);
    silent.runtime.name.clear();
    let waits = silent.wants([pod("x", critical()), pod("y", policy("Merge"))]).admits();
    let told =
        "x waits: the runtime has not reported yet which supplementalGroupsPolicy it supports";
    assert_eq!(waits, [told, "y admitted"]);
    // What runs keeps its place.
    assert_eq!(on(None).runs([pod("x", policy("Strict"))]).admits(), FINE);
}

#[test]
fn pressure_refuses_what_is_new() {
    use Pressure::{Disk, Memory, Pid};
    let tolerates = |toleration: Value| json!({"tolerations": [toleration]});
    let key = "node.kubernetes.io/memory-pressure";
    let tolerating = tolerates(json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}));
    let burstable = requests(&json!({"memory": "1Gi"}));
    let evicted =
        |conditions: &str| refused("Evicted", &format!("The node had condition: [{conditions}]. "));
    let memory = evicted("MemoryPressure");
    for (conditions, spec, expected) in [
        (&[][..], json!({}), None),
        (&[Memory], json!({}), Some(&memory)),
        (&[Memory], burstable.clone(), None),
        (&[Memory], tolerating.clone(), None),
        (&[Memory], tolerates(json!({"operator": "Exists"})), None),
        (&[Memory], tolerates(json!({"key": key})), None),
        // What every static pod tolerates.
        (&[Memory], tolerates(json!({"operator": "Exists", "effect": "NoExecute"})), Some(&memory)),
        (&[Memory], tolerates(json!({"key": "other", "operator": "Exists"})), Some(&memory)),
        (&[Memory], tolerates(json!({"key": key, "value": "x"})), Some(&memory)),
        (&[Disk], burstable.clone(), Some(&evicted("DiskPressure"))),
        (&[Pid], tolerating.clone(), Some(&evicted("PIDPressure"))),
        (
            &[Pid, Memory, Disk],
            burstable.clone(),
            Some(&evicted("MemoryPressure DiskPressure PIDPressure")),
        ),
        (&[Memory, Disk], tolerating.clone(), Some(&evicted("MemoryPressure DiskPressure"))),
        (&[Disk, Memory, Pid], json!({"priority": CRITICAL}), None),
        (&[Memory], json!({"priority": CRITICAL - 1}), Some(&memory)),
    ] {
        let node = node().short_of(conditions);
        match expected {
            Some(lines) => check(node, spec, lines),
            None => check(node, spec, &FINE),
        }
    }
}

#[test]
fn the_first_rule_in_the_kubelets_order_is_told() {
    let mut spec = json!({
        "metadata": {"labels": {"kubernetes.io/os": "windows"}},
        "os": {"name": "windows"},
        "securityContext": {
            "sysctls": [{"name": "vm.swappiness", "value": "1"}],
            "appArmorProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"rack": "a"},
        "nodeName": "n2",
        "containers": [{
            "name": "c", "image": "i", "resources": {"requests": {"cpu": "99"}},
            "ports": [{"containerPort": 80, "hostPort": 80}],
        }],
    });
    // Each rule in its turn, and what has to change so that it is met.
    type Mend = fn(&mut Node, &mut Value);
    let turns: [(&str, Mend); 9] = [
        ("Evicted", |node, _| node.pressure.conditions.clear()),
        ("SysctlForbidden", |_, spec| spec["securityContext"]["sysctls"] = json!([])),
        ("PodOSSelectorNodeLabelDoesNotMatch", |_, spec| spec["metadata"] = json!({})),
        ("PodOSNotSupported", |_, spec| spec["os"]["name"] = json!("linux")),
        ("OutOfcpu", |_, spec| spec["containers"][0]["resources"] = json!({})),
        ("NodeAffinity", |_, spec| spec["nodeSelector"] = json!({})),
        ("NodeName", |_, spec| spec["nodeName"] = json!("n1")),
        ("NodePorts", |_, spec| spec["containers"][0]["ports"][0]["hostPort"] = json!(81)),
        ("TaintToleration", |node, _| node.scheduling = Some(NodeScheduling::default())),
    ];
    let mut node = node().runs([port("a", 0, 80)]).short_of(&[Pressure::Disk]);
    node = node.tainted(&["a:NoExecute"]);
    node.facts.app_armor = false;
    for (reason, mend) in turns {
        node = node.wants([pod("x", spec.clone())]);
        assert!(node.admits()[1].starts_with(&format!("x {reason}: ")), "{:?}", node.admits());
        node.remove("x");
        mend(&mut node, &mut spec);
    }
    node = node.wants([pod("x", spec)]);
    assert!(node.admits()[1].starts_with("x AppArmor: "), "{:?}", node.admits());
}

#[test]
fn every_reason_is_an_event_of_its_own() {
    let hold = |reason: &str| Hold {
        reason: reason.to_owned(),
        message: "Pod was rejected: why".to_owned(),
        stop: HoldStop::Within(1),
        disruption: None,
    };
    for reason in ["OutOfpods", "OutOfhugepages-1Gi", "UnexpectedAdmissionError", "Preempting"] {
        let event = refusal::event(&pod("x", json!({})), &hold(reason), None).unwrap();
        assert_eq!((event.reason, event.message.as_str()), (reason, "why"));
    }
}

#[test]
fn a_refused_pod_that_runs_has_its_own_grace_period() {
    let node = node().short_of(&[Pressure::Disk]).wants([pod("x", json!({}))]);
    let Ruling { admissions, .. } = admit(&node.input());
    let Some(Decision::Held(hold)) = admissions.get(&node.pods[0].pod.key, &"uid-x".into()) else {
        panic!("{admissions:?}");
    };
    assert_eq!((hold.stop, &hold.disruption), (HoldStop::Within(20), &None));
}
