//! `kubectl top`, as docs/metrics.md describes it: the real metrics-server reads `/metrics/resource`
//! of the node with a token of its service account, and kube-apiserver passes the requests of
//! kubectl on to it.

use super::{
    controlplane::{ControlPlane, METRICS_SERVER_ACCOUNT, Options, Rows, component::Component},
    kubelet_api::member_with,
    support::{
        agent::NODE_NAME,
        images::BUSYBOX,
        manifest::Pod,
        skips::skip_without,
        wait_until,
        world::{Kind, World, full_name},
    },
    upstream,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(120);
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";

/// A pod that uses a tenth of a CPU and keeps 16 MiB in memory.
fn user() -> Pod {
    let uses = "head -c 16777216 /dev/zero >/held/file; while true; do :; done";
    Pod::with_main("user", uses)
        .set("containers/0/image", BUSYBOX)
        .set("containers/0/resources", json!({ "limits": { "cpu": "100m", "memory": "64Mi" } }))
        .set("containers/0/volumeMounts", json!([{ "name": "held", "mountPath": "/held" }]))
        .set("volumes", json!([{ "name": "held", "emptyDir": { "medium": "Memory" } }]))
}

/// A pod with two containers that run and two that have ended: metrics-server leaves out a whole
/// pod when one of its containers has incomplete figures.
fn mixed() -> Pod {
    Pod::running("mixed")
        .init("before", "true")
        .container("side", "exec sleep 1000")
        .container("once", "true")
        .set("restartPolicy", "Never")
}

/// Approves the request for the serving certificate of the node, as docs/https-api.md describes.
fn approve_serving_certificate(plane: &ControlPlane) {
    let request = || {
        let requests = plane.admin.find(REQUESTS)?;
        requests["items"][0]["metadata"]["name"].as_str().map(str::to_owned)
    };
    let name = wait_until("the node requests a certificate", SOON, request, Option::is_some);
    plane.kubectl_text(&["certificate", "approve", &name.unwrap()]);
}

/// Starts metrics-server on the host, with the flags of its release manifest and with those that it
/// needs outside a pod.
fn start_metrics_server(program: &Path, world: &World, plane: &ControlPlane) -> Component {
    let dir = world.slot.dir().join("metrics-server");
    fs::create_dir(&dir).unwrap();
    let authority = plane.authority();
    let port = world.slot.second_port();
    let objects = include_str!("metrics-server.yaml")
        .replace("PORT", &port.to_string())
        .replace("AUTHORITY", &STANDARD.encode(authority.pem()));
    let objects = format!("{METRICS_SERVER_ACCOUNT}---\n{objects}");
    let applied = plane.kubectl_as(&plane.admin_kubeconfig(), &["apply", "--filename=-"], &objects);
    assert!(applied.status.success(), "{applied:?}");

    let identity = authority.server_named("metrics-server.kube-system.svc");
    let token = plane.kubectl_text(&["create", "token", "metrics-server", "-n", "kube-system"]);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: c\n  cluster: {{ server: \"https://{}\", certificate-authority: ca.crt }}\n\
         users:\n- name: u\n  user: {{ token: {} }}\n\
         contexts:\n- name: c\n  context: {{ cluster: c, user: u }}\n",
        plane.address(),
        token.trim(),
    );
    for (name, content) in [
        ("ca.crt", authority.pem()),
        ("tls.crt", &identity.certificate_pem),
        ("tls.key", &identity.key_pem),
        ("kubeconfig", &kubeconfig),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
    let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
    let flags = vec![
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        "--metric-resolution=15s".to_owned(),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        file("tls-cert-file", "tls.crt"),
        file("tls-private-key-file", "tls.key"),
        file("kubeconfig", "kubeconfig"),
        file("authentication-kubeconfig", "kubeconfig"),
        file("authorization-kubeconfig", "kubeconfig"),
    ];
    let server = Component::prepare(program, &dir, flags);
    server.start();
    server
}

/// Waits until `kubectl top` prints rows as wanted.
#[track_caller]
fn wait_top(plane: &ControlPlane, words: &[&str], accept: impl Fn(&Rows) -> bool) -> Rows {
    let what = format!("kubectl top {} prints what is used", words.join(" "));
    let printed = |rows: &Result<Rows, String>| rows.as_ref().is_ok_and(&accept);
    wait_until(&what, SOON, || plane.top(words), printed).unwrap()
}

/// `123m`, `45Mi` or `6%` as a number.
#[track_caller]
fn figure(word: &str, unit: &str) -> u64 {
    let number = word.strip_suffix(unit).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{word} has not the form 1{unit}"))
}

/// The CPUs of a node in millicores, and its memory in MiB.
fn capacity(node: &Value) -> (u64, u64) {
    let read = |name: &str| node["status"]["capacity"][name].as_str().unwrap();
    (figure(read("cpu"), "") * 1000, figure(read("memory"), "Ki") / 1024)
}

/// How many containers of a pod are `running` or `terminated`.
fn in_state(pod: &Value, state: &str) -> usize {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let statuses = statuses.map(Vec::as_slice).unwrap_or_default();
    statuses.iter().filter(|one| one["state"][state].is_object()).count()
}

#[test]
fn kubectl_top_shows_the_node_and_its_pods() {
    let program = upstream::metrics_server();
    if skip_without(&[(program.is_some(), "metrics-server or Go to build it")]) {
        return;
    }
    let signs = ["--controllers=certificatesigningrequest-signing-controller"];
    let options = Options::default().aggregation().controller_manager(&signs);
    let Some((world, plane)) = member_with(Kind::Real, "serverTLSBootstrap: true\n", &options)
    else {
        return;
    };
    world.agent.start();
    world.drop_pod(&user());
    world.drop_pod(&mixed());
    approve_serving_certificate(&plane);
    world.wait_running("user");
    let mirror = format!("/api/v1/namespaces/default/pods/{}", full_name("mixed"));
    let shown = || plane.admin.find(&mirror).unwrap_or_default();
    wait_until("one container of three has ended", SOON, shown, |pod| {
        in_state(pod, "running") == 2 && in_state(pod, "terminated") == 1
    });

    let server = start_metrics_server(&program.unwrap(), &world, &plane);
    let available = || {
        let service = plane.admin.find(API_SERVICE).unwrap_or_default();
        (service["status"]["conditions"][0].clone(), server.log_tail(5))
    };
    wait_until("the API is available", SOON, available, |(condition, _)| {
        condition["type"] == "Available" && condition["status"] == "True"
    });

    // A tenth of a CPU, more in bursts, and less while other processes take the CPUs.
    let (user, mixed) = (full_name("user"), full_name("mixed"));
    let plausible = |row: &[String]| {
        (50..=150).contains(&figure(&row[0], "m")) && (16..=64).contains(&figure(&row[1], "Mi"))
    };
    let containers = wait_top(&plane, &["pod", "--containers"], |rows| {
        rows.len() == 3 && rows.iter().any(|row| row[0] == user && plausible(&row[2..]))
    });
    let names: Vec<_> = containers.iter().map(|row| (&*row[0], &*row[1])).collect();
    for expected in [(&*user, "main"), (&*mixed, "main"), (&*mixed, "side")] {
        assert!(names.contains(&expected), "{containers:?}");
    }
    for row in containers.iter().filter(|row| row[0] == mixed) {
        assert!(figure(&row[2], "m") <= 20 && figure(&row[3], "Mi") <= 16, "{containers:?}");
    }
    wait_top(&plane, &["pod"], |rows| {
        rows.len() == 2 && rows.iter().any(|row| row[0] == user && plausible(&row[1..]))
    });

    let (cpu, memory) = capacity(&plane.admin.get(&format!("/api/v1/nodes/{NODE_NAME}")));
    let nodes = wait_top(&plane, &["node"], |rows| rows.len() == 1);
    let row = &nodes[0];
    assert_eq!(row[0], NODE_NAME);
    assert!((50..=cpu + cpu / 20).contains(&figure(&row[1], "m")), "{nodes:?}");
    assert!((64..=memory).contains(&figure(&row[3], "Mi")), "{nodes:?}");
    assert!(figure(&row[2], "%") <= 105 && figure(&row[4], "%") <= 100, "{nodes:?}");
    drop(server);
    world.finish();
}
