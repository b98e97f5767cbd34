//! API servers of other versions than the node. A later one sends fields and values that the node
//! does not know. An earlier one lacks fields that the node writes.

use super::{
    controlplane::Options,
    node::{Node, PODS, WAITS, condition, is_ready, plain, shell},
    scale::{DEPLOYMENTS, deployment},
    support::{agent::NODE_NAME, say_loudly, skips::skip_without, world::Kind},
    upstream,
};
use hyper::Method;
use serde_json::{Value, json};

const NEW_FIELD: &str = "fromTheFuture";
/// A condition that a controller writes.
const NEW_CONDITION: &str = "example.com/Audited";
/// Fields of objects whose keys are no fields.
const MAPS: [&str; 15] = [
    "allocatable",
    "allocatedResources",
    "annotations",
    "binaryData",
    "capacity",
    "data",
    "extra",
    "fieldsV1",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "overhead",
    "requests",
    "selector",
];

/// Changes an object to one of a later version of the API.
fn make_newer(object: &mut Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if object["kind"] == "Node" {
        object["spec"]["taints"] = json!([{ "key": "example.com/a", "effect": "PreferNoBatch" }]);
    }
    if let Some(spec) = object.get_mut("spec").filter(|spec| spec["containers"].is_array()) {
        set_new_values(&name, spec);
    }
    add_fields(object);
}

/// Gives some pods values that the node does not know.
fn set_new_values(name: &str, spec: &mut Value) {
    let container = &mut spec["containers"][0];
    match name {
        "hook" => container["lifecycle"] = json!({ "postStart": { "teleport": {} } }),
        "probe" => container["readinessProbe"] = json!({ "teleport": {} }),
        "variable" => {
            container["env"] = json!([{ "name": "A", "valueFrom": { "teleportRef": {} } }]);
        }
        "volume" => spec["volumes"][0] = json!({ "name": "data", "teleport": { "to": "moon" } }),
        "dns" => spec["dnsPolicy"] = json!("ClusterNearest"),
        "tolerant" => {
            spec["tolerations"] = json!([{ "key": "example.com/a", "operator": "Matches" }]);
        }
        _ => {}
    }
}

/// Adds a field to every object in `value`, at every depth.
fn add_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let known = fields.iter_mut().filter(|(name, _)| !MAPS.contains(&name.as_str()));
            known.for_each(|(_, inner)| add_fields(inner));
            fields.insert(NEW_FIELD.to_owned(), json!({ "mode": "Quantum", "list": [{ "a": 1 }] }));
        }
        Value::Array(items) => items.iter_mut().for_each(add_fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The pods with values that the node does not know, as the API server of the tests accepts them.
fn create_pods(node: &Node) {
    let mut volume = plain("volume", WAITS);
    volume["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    volume["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    node.create(&volume);
    for name in ["hook", "variable", "probe", "dns", "tolerant"] {
        node.create(&plain(name, WAITS));
    }
    let config = json!({ "metadata": { "name": "config" }, "data": { "KEY": "value" } });
    let config_maps = "/api/v1/namespaces/default/configmaps";
    node.admin().create(config_maps, &config).unwrap().ok();
    let mut web = shell("web", WAITS);
    web["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "config" } }]);
    node.create(&web);
}

/// Messages and counts of the warnings about a pod.
fn warnings(node: &Node, pod: &str) -> Vec<(String, i64)> {
    let events = node.admin().get("/api/v1/namespaces/default/events")["items"].clone();
    let of_pod = |event: &&Value| {
        event["involvedObject"]["name"] == pod
            && event["type"] == "Warning"
            && event["source"]["component"] != "default-scheduler"
            && event["reason"] != "FailedScheduling"
    };
    let told = |event: &Value| {
        (event["message"].as_str().unwrap().to_owned(), event["count"].as_i64().unwrap_or(1))
    };
    events.as_array().unwrap().iter().filter(of_pod).map(told).collect()
}

/// A pod with something that the node lacks waits, and says so once.
fn stays_pending(node: &Node, pod: &str, message: &str) {
    let told = || warnings(node, pod);
    let told = node.wait(&format!("pod {pod} says why"), told, |told| !told.is_empty());
    assert_eq!(told, [(message.to_owned(), 1)]);
    let seen = node.wait_pod(pod, "waits", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    });
    assert_eq!(seen["status"]["phase"], "Pending");
    assert_eq!(node.running(pod), [""; 0]);
}

/// What was written to the status of a pod or node until now.
fn writes(node: &Node, path: &str) -> Vec<String> {
    let requests = node.link.http.requests().into_iter();
    let writes = requests.filter(|one| one.verb == "PATCH" && one.path.starts_with(path));
    writes.map(|one| String::from_utf8_lossy(&one.body).into_owned()).collect()
}

#[test]
fn fields_and_values_of_a_newer_api_server() {
    let Some(node) = Node::prepare("", &[]) else { return };
    node.link.http.on("*", "/api").rewrite(make_newer);
    node.world.agent.start();
    node.wait_ready();
    create_pods(&node);
    for name in ["web", "dns", "tolerant"] {
        node.wait_pod_ready(name);
    }
    assert_eq!(node.exec("web", &["sh", "-c", "echo $KEY"]), "value\n");
    // As with a kubelet: an unknown policy counts as ClusterFirst.
    let resolver = node.exec("dns", &["cat", "/etc/resolv.conf"]);
    assert!(resolver.contains("nameserver 10.213.0.10"), "{resolver}");
    let mount = "MountVolume.SetUp failed for volume \"data\" : volumes of an unknown kind are not supported by this node";
    stays_pending(&node, "volume", mount);
    for (pod, place) in [("hook", "lifecycle.postStart"), ("variable", "env[].valueFrom")] {
        let why = format!("{place} (unknown kind) of container \"main\"");
        let message = format!("Failed to create pod sandbox: {why} is not supported by this node");
        stays_pending(&node, pod, &message);
    }
    // As with a kubelet: no result of this probe is ever known.
    let uid = node.pod("probe").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let errored = format!(
        "Readiness probe errored and resulted in unknown state: missing probe handler for probe_default({uid}):main"
    );
    let told = || warnings(&node, "probe");
    node.wait("the probe is an error", told, |told| told.iter().any(|(text, _)| *text == errored));
    let probed = node.wait_pod("probe", "runs", |pod| pod["status"]["phase"] == "Running");
    assert!(!is_ready(&probed), "{probed:#}");
    conditions_of_others_stay(&node);
    assert_eq!(node.link.http.count("WATCH", "/api/v1/pods"), 1, "the watch never broke");
    assert_eq!(node.link.http.count("WATCH", "/api/v1/nodes"), 1, "the watch never broke");
    node.finish();
}

/// Statuses are written without the conditions of others, and no field that the node does not know
/// is a reason to write one.
fn conditions_of_others_stay(node: &Node) {
    let audited =
        json!({ "type": NEW_CONDITION, "status": "True", "reason": "Audit", "message": "m" });
    let (pod, this) = (format!("{PODS}/web"), format!("/api/v1/nodes/{NODE_NAME}"));
    for path in [&pod, &this] {
        let patch = json!({ "status": { "conditions": [audited] } });
        node.admin().patch(&format!("{path}/status"), &patch).unwrap().ok();
    }
    let (of_pod, of_node) = (writes(node, &pod).len(), writes(node, &this).len());
    node.world.kill_container(&node.running("web")[0]);
    node.wait_pod("web", "is restarted", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    node.world.runtime.set_network_ready(false);
    let reported = |status: &'static str| {
        let ready = || condition(&node.admin().get(&this), "Ready").unwrap()["status"].clone();
        node.wait(&format!("Ready is {status}"), ready, |ready| *ready == status);
    };
    reported("False");
    node.world.runtime.set_network_ready(true);
    reported("True");
    for path in [&pod, &this] {
        let object = node.admin().get(path);
        let kept = condition(&object, NEW_CONDITION).unwrap();
        for field in ["status", "reason", "message"] {
            assert_eq!(kept[field], audited[field], "{path}");
        }
    }
    // The end of the container, its next start, and what lies between; and the network.
    for (path, before, most) in [(&pod, of_pod, 6), (&this, of_node, 6)] {
        let said = &writes(node, path)[before..];
        assert!((1..=most).contains(&said.len()), "{path}: {said:#?}");
    }
    // The lease is replaced, so that it is sent with the fields that came.
    let requests = node.link.http.requests();
    let mut sent = requests.iter().filter(|request| request.verb != "PUT");
    let unknown = sent.find(|request| String::from_utf8_lossy(&request.body).contains(NEW_FIELD));
    assert!(unknown.is_none(), "{unknown:?}");
}

/// The node in a cluster whose API server is one minor version older.
#[test]
#[ignore = "builds another kube-apiserver: make test-skew"]
fn pods_of_an_api_server_of_kubernetes_1_35() {
    let Some(program) = upstream::earlier_apiserver() else {
        skip_without(&[(false, "kube-apiserver of 1.35 or Go to build it")]);
        return;
    };
    let options = Options::default().controller_manager(&[]).apiserver_program(program);
    let Some(node) = Node::prepare_with(Kind::Real, "", &options) else { return };
    let version = node.admin().get("/version")["gitVersion"].as_str().unwrap().to_owned();
    assert!(version.starts_with("v1.35."), "{version}");
    say_loudly(&format!("API server: {version}"));
    node.world.agent.start();
    node.wait_ready();
    node.create(&shell("web", WAITS));
    let web = node.wait_pod_ready("web");
    assert_eq!(web["status"]["observedGeneration"], web["metadata"]["generation"]);
    assert_eq!(node.exec("web", &["echo", "hello"]), "hello\n");
    node.wait("logs are read", || node.plane.kubectl(&["logs", "web"]).status.success(), |ok| *ok);
    resize(&node);
    node.world.kill_container(&node.running("web")[0]);
    node.wait_pod("web", "is restarted", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    deployment_is_replaced(&node);
    let cluster = || node.world.agent.status().unwrap().node.cluster.clone().unwrap();
    node.wait(
        "the agent has no trouble",
        || (cluster().troubles.len(), cluster().notes.clone()),
        |(troubles, notes)| *troubles == 0 && notes.is_empty(),
    );
    node.delete("web");
    node.wait_pod_gone("web");
    node.finish();
}

/// The status has fields that only a later API server keeps.
fn resize(node: &Node) {
    let mut sized = plain("sized", WAITS);
    let resources = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu } });
    sized["spec"]["containers"][0]["resources"] = resources("100m");
    node.create(&sized);
    node.wait_pod_ready("sized");
    let container = json!({ "name": "main", "resources": resources("200m") });
    let patch = json!({ "spec": { "containers": [container] } });
    node.admin().patch(&format!("{PODS}/sized/resize"), &patch).unwrap().ok();
    node.wait_pod("sized", "reports its new size", |pod| {
        pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == "200m"
    });
}

/// A pod of a Deployment is deleted, and another one takes its place.
fn deployment_is_replaced(node: &Node) {
    let mut kept = deployment("kept", WAITS);
    kept["spec"]["replicas"] = json!(1);
    node.admin().create(DEPLOYMENTS, &kept).unwrap().ok();
    let ready = || {
        let pods = node.admin().get(&format!("{PODS}?labelSelector=app%3Dkept"))["items"].clone();
        let pods = pods.as_array().cloned().unwrap_or_default();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        pods.iter().filter(|pod| is_ready(pod)).map(name).collect::<Vec<_>>()
    };
    let first = node.wait("its pod is Ready", ready, |pods| !pods.is_empty());
    node.admin().send(Method::DELETE, &format!("{PODS}/{}", first[0]), None).unwrap().ok();
    node.wait("another pod is Ready", ready, |pods| pods.len() == 1 && *pods != first);
}
