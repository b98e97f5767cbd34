//! What pods read from the API server: ConfigMaps, Secrets, tokens, Services.

use super::{
    node::{Node, PODS, WAITS, is_ready, plain, shell},
    support::{
        images::BUSYBOX,
        registry::{Registry, USER},
    },
};
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

fn config_map(name: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "key": value } })
}

#[test]
fn a_pod_has_a_token_for_the_api_server() {
    let Some(node) = Node::start() else { return };
    node.create(&shell("web", WAITS));
    node.wait_pod_ready("web");
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let files = node.exec("web", &["ls", account]);
    assert_eq!(files.split_whitespace().collect::<Vec<_>>(), ["ca.crt", "namespace", "token"]);
    assert_eq!(node.exec("web", &["cat", &format!("{account}/namespace")]), "default");
    let token = token(&node, "web");
    is_for_pod(&node, &token, "web");
    assert!(!node.world.agent.log().contains(&token), "the token is in the log");
    node.finish();
}

/// The token that a pod has now.
fn token(node: &Node, pod: &str) -> String {
    node.exec(pod, &["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"])
}

/// The API server knows whose token it is, and for which pod.
#[track_caller]
fn is_for_pod(node: &Node, token: &str, pod: &str) {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": token },
    });
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = node.admin().create(reviews, &review).unwrap().ok();
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:default:default");
    let bound = &answer["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert_eq!(*bound, json!([pod]), "{answer:#}");
}

/// The API server grants no lifetime below ten minutes, so the answers are changed on the way.
#[test]
fn a_token_is_replaced_before_it_expires() {
    let Some(node) = Node::prepare("", &[]) else { return };
    let lifetime = |answer: &mut Value| answer["spec"]["expirationSeconds"] = json!(15);
    node.link.http.on("POST", TOKENS).rewrite(lifetime);
    node.world.agent.start();
    node.wait_ready();
    node.create(&shell("web", WAITS));
    let started = node.wait_pod_ready("web");
    let first = token(&node, "web");
    let second = node.wait("it is replaced", || token(&node, "web"), |token| *token != first);
    let third = node.wait("and again", || token(&node, "web"), |token| *token != second);
    is_for_pod(&node, &third, "web");
    let requests = node.link.http.count("POST", TOKENS);
    assert!((3..=4).contains(&requests), "{requests} requests");
    let now = node.pod("web").unwrap();
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&now), id(&started), "its container runs on");
    node.finish();
}

/// As with a manifest's Secret: the pod waits until the registry's password is there.
#[test]
fn a_pull_secret_opens_the_registry() {
    let Some(node) = Node::start() else { return };
    let Some(mut registry) = Registry::prepare(&node.world.slot) else { return };
    registry.start(false);
    registry.push(node.world.runtime.containerd(), BUSYBOX, "busybox:pulled");
    registry.stop();
    registry.start(true);
    let mut pod = plain("web", WAITS);
    pod["spec"]["imagePullSecrets"] = json!([{ "name": "registry" }]);
    pod["spec"]["containers"][0]["image"] = json!(registry.image("busybox:pulled"));
    node.create(&pod);
    let reason = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"].as_str().is_some_and(|reason| reason.ends_with("Pull"))
    };
    node.wait_pod("web", "can't pull", reason);
    let told = || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    let missing = "Unable to retrieve some image pull secrets (registry)";
    node.wait("the Secret is missed", told, |events| events.contains(missing));
    let docker =
        json!({ "auths": { registry.address(): { "username": USER, "password": "secret" } } });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "registry" },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": docker.to_string() },
    });
    node.admin().create(SECRETS, &secret).unwrap().ok();
    node.wait_pod_ready("web");
    node.finish();
}

#[test]
fn config_maps_and_secrets_are_followed() {
    let Some(node) = Node::start() else { return };
    let mut pod = plain("web", WAITS);
    pod["spec"]["volumes"] = json!([
        { "name": "config", "configMap": { "name": "config" } },
        { "name": "secret", "secret": { "secretName": "secret" } },
    ]);
    // As Helm charts make it. It names no Secret.
    pod["spec"]["imagePullSecrets"] = json!([{ "name": "" }]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([
        { "name": "config", "mountPath": "/config" },
        { "name": "secret", "mountPath": "/secret" },
    ]);
    container["envFrom"] = json!([{ "configMapRef": { "name": "config" } }]);
    node.create(&pod);
    // A pod whose objects are missing says so, and begins with them.
    let told = || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    let missing = r#"MountVolume.SetUp failed for volume "config" : configmap "config" not found"#;
    node.wait("the pod says what it lacks", told, |events| events.contains(missing));
    node.admin().create(CONFIG_MAPS, &config_map("config", "one")).unwrap().ok();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "secret" }, "stringData": { "key": "hidden" } });
    node.admin().create(SECRETS, &secret).unwrap().ok();
    node.wait_pod_ready("web");
    assert_eq!(
        node.exec("web", &["sh", "-c", "echo $key; cat /config/key /secret/key"]),
        "one\nonehidden"
    );
    node.admin()
        .patch(&format!("{CONFIG_MAPS}/config"), &json!({ "data": { "key": "two" } }))
        .unwrap()
        .ok();
    let read = || node.exec("web", &["cat", "/config/key"]);
    node.wait("the file follows", read, |text| text == "two");
    assert!(!told().contains("image pull secrets"), "{}", told());
    // While the API server is away, the files stay as they were.
    node.link.tcp.refuse(true);
    node.link.tcp.cut();
    node.world.agent.kill();
    node.world.agent.start();
    node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    node.admin()
        .patch(&format!("{CONFIG_MAPS}/config"), &json!({ "data": { "key": "three" } }))
        .unwrap()
        .ok();
    node.wait("the file is as it was", || read_by_cli(&node), |text| text == "two");
    node.link.heal();
    node.wait("the file follows", || read_by_cli(&node), |text| text == "three");
    node.finish();
}

/// Past the API server; with what the command has to say.
fn read_by_cli(node: &Node) -> String {
    let command = ["exec", "web", "--", "cat", "/config/key"];
    let output = node.world.agent.cli_with_input(&command, b"");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn volumes_follow_labels_and_annotations() {
    let Some(node) = Node::start() else { return };
    let item =
        |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field } });
    let labels = json!({ "items": [item("labels", "metadata.labels")] });
    let note = json!({ "items": [item("note", "metadata.annotations['note']")] });
    let mut pod = plain("web", WAITS);
    pod["metadata"]["labels"] = json!({ "stage": "one" });
    pod["metadata"]["annotations"] = json!({ "note": "one" });
    pod["spec"]["volumes"] = json!([
        { "name": "labels", "downwardAPI": labels },
        { "name": "note", "projected": { "sources": [{ "downwardAPI": note }] } },
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        { "name": "labels", "mountPath": "/labels" },
        { "name": "note", "mountPath": "/note" },
    ]);
    node.create(&pod);
    node.wait_pod_ready("web");
    let read = || node.exec("web", &["sh", "-c", "cat /labels/labels; echo; cat /note/note"]);
    assert_eq!(read(), "stage=\"one\"\none");
    let edit = |text: &str| {
        let patch =
            json!({ "metadata": { "labels": { "stage": text }, "annotations": { "note": text } } });
        node.admin().patch(&format!("{PODS}/web"), &patch).unwrap().ok();
    };
    edit("two");
    node.wait("the files follow", read, |text| text == "stage=\"two\"\ntwo");
    // An edit that the agent has missed is found by its next run.
    node.world.agent.kill();
    edit("three");
    node.world.agent.start();
    node.wait("the agent answers", || node.world.agent.status().is_ok(), |up| *up);
    let by_cli = || {
        let command = ["exec", "web", "--", "cat", "/labels/labels", "/note/note"];
        let output = node.world.agent.cli_with_input(&command, b"");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    node.wait("the files follow", by_cli, |text| text == "stage=\"three\"three");
    let pod = node.pod("web").unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod:#}");
    node.finish();
}

#[test]
fn services_are_in_the_environment() {
    let Some(node) = Node::start() else { return };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "my-db" },
        "spec": { "selector": { "app": "db" }, "ports": [{ "name": "sql", "port": 5432 }] },
    });
    let made = node.admin().create("/api/v1/namespaces/default/services", &service).unwrap().ok();
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let mut pod = plain("web", &format!("echo at $URL; {WAITS}"));
    pod["spec"]["containers"][0]["env"] =
        json!([{ "name": "URL", "value": "db://$(MY_DB_SERVICE_HOST):$(MY_DB_SERVICE_PORT_SQL)" }]);
    node.create(&pod);
    node.wait_pod("web", "is Ready", is_ready);
    let logs = || node.plane.kubectl_text(&["logs", "web"]);
    node.wait("the variables are expanded", logs, |logs| *logs == format!("at db://{ip}:5432\n"));
    let environment = node.exec("web", &["env"]);
    for line in
        [format!("MY_DB_PORT=tcp://{ip}:5432"), "KUBERNETES_SERVICE_HOST=10.213.0.1".to_owned()]
    {
        assert!(environment.lines().any(|found| found == line), "{line}: {environment}");
    }
    let resolver = node.exec("web", &["cat", "/etc/resolv.conf"]);
    assert!(resolver.contains("nameserver 10.213.0.10"), "{resolver}");
    assert!(resolver.contains("default.svc.cluster.local"), "{resolver}");
    node.finish();
}

#[test]
fn kubectl_debug_joins_a_pod() {
    let Some(node) = Node::start() else { return };
    node.create(&plain("web", WAITS));
    node.wait_pod_ready("web");
    node.plane.kubectl_text(&[
        "debug",
        "web",
        "--image=nodelet.test/busybox:1",
        "--target=main",
        "--container=look",
        "--profile=general",
        "--",
        "sh",
        "-c",
        "ps -o args | grep -c trap; exit 3",
    ]);
    let ended = node.wait_pod("web", "has been debugged", |pod| {
        pod["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"].is_object()
    });
    let state = &ended["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["exitCode"], 3, "{state}");
    let seen = node.plane.kubectl_text(&["logs", "web", "-c", "look"]);
    assert!(seen.trim().parse::<u32>().unwrap() >= 2, "the processes of its target: {seen}");
    assert!(is_ready(&ended) && ended["status"]["containerStatuses"][0]["restartCount"] == 0);
    node.finish();
}
