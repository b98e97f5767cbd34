use super::*;
use crate::{
    cli::args::{AgentArgs, NamespaceArgs},
    model::{PodUpdate, SourceKind, SourceView},
};
use serde_json::{Value, json};

const NOW: &str = "2026-11-20T10:00:00Z";

fn args(pod: Option<&str>, output: Output) -> StatusArgs {
    StatusArgs {
        pod: pod.map(str::to_owned),
        namespace: NamespaceArgs { namespace: None },
        output,
        watch: false,
        html: false,
        agent: AgentArgs { run_dir: "/run/nodelet".into() },
    }
}

fn shown(document: &StatusDocument, args: &StatusArgs) -> String {
    render(document, args, NOW.parse().unwrap()).unwrap()
}

/// A pod's view as the agent sends it.
fn view(name: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "key": {"namespace": "default", "name": name},
        "uid": format!("uid-of-{name}"),
        "pod": {"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {
            "name": name, "namespace": "default", "labels": {"app": name},
            "annotations": {"kubernetes.io/config.source": "file", "team": "shop",
                            "nodelet.dev/revision": "0123abcd"},
        }},
        "status": status,
        "origin": {"source": "file", "location": format!("/m/{name}.yaml"), "document": 0, "line": 1},
        "terminating": false, "hung": null, "waiting": null,
    })
}

fn web() -> Value {
    let spec = json!({
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
        "initContainers": [{"name": "setup", "image": "busybox:1"}],
        "containers": [
            {"name": "web", "image": "nginx:1", "command": ["nginx", "-g", "daemon off;"],
             "ports": [{"containerPort": 80, "hostPort": 8080}],
             "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}},
             "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true},
                              {"name": "keys", "mountPath": "/keys"}]},
            {"name": "side", "image": "side:2"},
        ],
        "ephemeralContainers": [{"name": "debug", "image": "busybox:1", "targetContainerName": "web"}],
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "10Mi"}},
                    {"name": "logs", "hostPath": {"path": "/var/log", "type": "Directory"}},
                    {"name": "conf", "configMap": {"name": "web", "optional": true}},
                    {"name": "keys", "projected": {"sources": [
                        {"secret": {"name": "db"}}, {"downwardAPI": {"items": []}}]}},
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "web", "readOnly": true}}],
    });
    let status = json!({
        "phase": "Running", "podIP": "10.88.0.4", "podIPs": [{"ip": "10.88.0.4"}],
        "qosClass": "Burstable", "startTime": "2026-11-20T09:56:48Z",
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-11-20T09:57:00Z"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-20T09:59:30Z",
             "reason": "ContainersNotReady", "message": "containers with unready status: [side]"},
        ],
        "initContainerStatuses": [
            {"name": "setup", "image": "busybox:1", "imageID": "sha256:b", "ready": true, "restartCount": 0,
             "containerID": "containerd://i0",
             "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": "2026-11-20T09:56:50Z",
                                      "finishedAt": "2026-11-20T09:56:52Z"}}},
        ],
        "containerStatuses": [
            {"name": "side", "image": "side:2", "imageID": "sha256:s", "ready": false, "restartCount": 2,
             "containerID": "containerd://s2",
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message":
                 "back-off 20s restarting failed container=side pod=web-n1_default(uid-of-web-n1)"}},
             "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "panic:\n\u{1b}[31mno",
                           "startedAt": "2026-11-20T09:59:40Z", "finishedAt": "2026-11-20T09:59:50Z"}}},
            {"name": "web", "image": "nginx:1", "imageID": "sha256:n", "ready": true, "restartCount": 0,
             "containerID": "containerd://w0", "state": {"running": {"startedAt": "2026-11-20T09:56:54Z"}}},
        ],
    });
    view("web-n1", &spec, &status)
}

fn simple(name: &str, status: &Value) -> Value {
    view(name, &json!({"containers": [{"name": "main", "image": "busybox:1"}]}), status)
}

fn pods() -> Value {
    let start = "2026-11-18T10:00:00Z";
    let ready = json!({"phase": "Running", "startTime": start, "podIP": "10.88.0.9",
        "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                               "state": {"running": {"startedAt": start}}}]});
    let mut host = simple("host-n1", &ready);
    host["pod"]["spec"]["hostNetwork"] = json!(true);
    host["status"]["podIP"] = json!(null);
    let job = simple(
        "job-n1",
        &json!({"phase": "Failed", "startTime": start, "containerStatuses": [
        {"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]}),
    );
    let mut going = simple("going-n1", &ready);
    going["terminating"] = json!(true);
    going["origin"] = json!(null);
    going["hung"] = json!("StopContainer of 4f2a, since 3m");
    let mut network = simple("network-n1", &json!({"phase": "Pending", "startTime": start}));
    network["waiting"] = json!("the pod network is not ready");
    let pull = simple(
        "pull-n1",
        &json!({"phase": "Pending", "startTime": "2026-11-20T09:59:59Z",
        "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"waiting": {"reason": "ImagePullBackOff", "message": format!(
             "Back-off pulling image \"busybox:1\": ErrImagePull: failed to resolve reference: {}", "x".repeat(90))}}}]}),
    );
    let stale = simple("stale-n1", &ready);
    let mut lost = simple("lost-n1", &json!({}));
    lost["pod"] = json!(null);
    json!([going, host, job, lost, network, pull, stale, web()])
}

fn node() -> Value {
    let problem = |line: usize, path: &str, message: &str| json!({"position": {"line": line, "column": 7}, "path": path, "message": message});
    let accepted = |name: &str, warnings: Value| {
        let key = json!({"namespace": "default", "name": name});
        json!({"location": format!("/m/{name}.yaml"),
               "verdicts": [{"verdict": "accepted", "key": key, "warnings": warnings}]})
    };
    json!({
        "name": "n1", "version": "0.1.0", "pid": 4711, "started_at": "2026-11-20T09:55:00Z",
        "runtime": {"endpoint": "unix:///run/containerd/containerd.sock", "name": "containerd", "version": "1.6.20",
                    "not_ready": null, "network_not_ready": "cni plugin not initialized"},
        "pleg": {"last_relist_at": "2026-11-20T09:59:59Z", "unhealthy": null, "events_connected": true,
                 "hung": [{"key": {"namespace": "default", "name": "going-n1"}, "what": "ContainerStatus of 4f2a"}]},
        "sources": [
            {"kind": "file", "location": "/m", "error": null, "files": [
                accepted("web-n1", json!([problem(9, "spec.priorityClassName", "known, not acted on")])),
                {"location": "/m/stale.yaml", "verdicts": [{
                    "verdict": "rejected", "key": {"namespace": "default", "name": "stale-n1"},
                    "position": {"line": 1, "column": 1}, "last_good": true, "problems": [
                        problem(4, "spec.containers[0].image", "Required value"),
                        problem(6, "spec.contaners", "unknown field, did you mean \"containers\"?")]}]},
                {"location": "/m/half.yaml", "verdicts": [{
                    "verdict": "rejected", "key": null, "position": {"line": 0, "column": 0}, "last_good": false,
                    "problems": [{"position": {"line": 0, "column": 0}, "path": "", "message": "unreadable: Input/output error"}]}]},
                {"location": "/m/web.yaml~", "verdicts": [{"verdict": "skipped", "reason": "backup file"}]},
            ]},
            {"kind": "http", "location": "http://boot/pods", "error": "connection refused", "files": []},
        ],
        "notices": ["/etc/nodelet.yaml:3: cgroupDriver: systemd is not acted on"],
        "warnings": ["the disk with /var/lib/nodelet is full"],
        "foreign": [{"key": {"namespace": "kube-system", "name": "dns"}, "uid": "u", "owner": null,
                     "running": true, "ips": []},
                    {"key": {"namespace": "a", "name": "b"}, "uid": "v", "owner": "9f1c", "running": false, "ips": []}],
    })
}

fn events() -> Value {
    let event = |name: &str, part: Value, kind: &str, reason: &str, message: &str, count: i32| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
               "involvedObject": {"kind": "Pod", "namespace": "default", "name": name, "fieldPath": part},
               "type": kind, "reason": reason, "message": message, "count": count,
               "firstTimestamp": "2026-11-20T09:57:00Z", "lastTimestamp": "2026-11-20T09:59:48Z"})
    };
    json!([
        event("web-n1", json!(null), "Warning", "NetworkNotReady", "network is not ready", 1),
        event(
            "web-n1",
            json!("spec.containers{side}"),
            "Warning",
            "BackOff",
            "Back-off restarting\nside",
            5
        ),
        event("other-n1", json!(null), "Normal", "Killing", "not to be shown", 1),
    ])
}

fn document() -> StatusDocument {
    serde_json::from_value(json!({
        "node": node(), "pods": pods(), "events": events(), "eventsDropped": 2, "podLogsDir": "/var/log/pods",
    }))
    .unwrap()
}

#[test]
fn the_whole_picture() {
    assert_eq!(shown(&document(), &args(None, Output::Table)), include_str!("golden/overview.txt"));
}

#[test]
fn the_wide_table_cuts_nothing() {
    let wide = shown(&document(), &args(None, Output::Wide));
    let head: Vec<&str> = wide.lines().next().unwrap().split_whitespace().collect();
    let columns = "NAMESPACE NAME READY STATUS RESTARTS AGE IP UID IMAGES MANIFEST REASON";
    assert_eq!(head.join(" "), columns);
    assert!(wide.contains(&"x".repeat(90)), "{wide}");
    assert!(wide.contains("nginx:1,side:2   /m/web-n1.yaml"), "{wide}");
}

#[test]
fn one_pod_in_detail() {
    let text = shown(&document(), &args(Some("web"), Output::Table));
    assert_eq!(text, include_str!("golden/describe.txt"));
    let stale = shown(&document(), &args(Some("stale"), Output::Table));
    assert!(stale.contains("/m/stale-n1.yaml\n                invalid now"), "{stale}");
    let lost = shown(&document(), &args(Some("default/lost-n1"), Output::Wide));
    assert!(lost.contains("its specification is lost"), "{lost}");
}

#[test]
fn an_empty_node_reads_well() {
    let text = shown(&StatusDocument::default(), &args(None, Output::Table));
    assert_eq!(text, include_str!("golden/empty.txt"));
}

#[test]
fn manifests_that_are_not_read_yet_are_not_called_none() {
    let mut document = StatusDocument::default();
    let unread = SourceView { unread: true, ..SourceView::empty(SourceKind::File, "/m") };
    document.node.sources = vec![unread.into()];
    let shown_with = |document: &StatusDocument| shown(document, &args(None, Output::Table));
    let text = shown_with(&document);
    assert!(text.contains("Manifests from /m\n  not read yet\n"), "{text}");
    assert!(text.contains("  Manifests:      not read yet\n"), "{text}");

    document.node.sources.push(SourceView::empty(SourceKind::Http, "http://boot/pods").into());
    let text = shown_with(&document);
    assert!(text.contains("Manifests from http://boot/pods\n  none\n"), "{text}");
    let counts = "0 accepted, 0 rejected, 0 ignored, 1 of 2 sources not read yet";
    assert!(text.contains(counts), "{text}");
}

#[test]
fn healthy_pods_need_no_column_for_reasons() {
    let mut document = document();
    document.pods.retain(|view| *view.key.name == *"host-n1");
    let text = shown(&document, &args(None, Output::Table));
    assert!(
        text.starts_with("NAMESPACE   NAME      READY   STATUS    RESTARTS   AGE   IP\n"),
        "{text}"
    );
    assert!(
        text.contains("default     host-n1   1/1     Running   0          2d    <host>\n"),
        "{text}"
    );
}

#[test]
fn a_namespace_narrows_the_table() {
    let mut arguments = args(None, Output::Table);
    arguments.namespace.namespace = Some("shop".to_owned());
    let mut document = document();
    document.pods[7].update = Some(PodUpdate::Waits("the image is missing".to_owned()));
    let text = shown(&document, &arguments);
    assert!(text.starts_with("No pods.\n"), "{text}");
    // The rest is that of the whole node.
    let all = shown(&document, &args(None, Output::Table));
    let (_, rest) = all.split_once("\n\n").unwrap();
    assert!(rest.contains("accepted, WAITS") && rest.contains("8 in all"), "{rest}");
    assert_eq!(text, format!("No pods.\n\n{rest}"));
    arguments.output = Output::Json;
    let list: Value = serde_json::from_str(&shown(&document, &arguments)).unwrap();
    assert_eq!(list["items"], json!([]));
}

#[test]
fn objects_are_kubernetes_objects() {
    let text = shown(&document(), &args(None, Output::Json));
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|i| i["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names.len(), 8);
    assert_eq!(list["items"][7]["kind"], "Pod");
    assert_eq!(list["items"][7]["metadata"]["uid"], "uid-of-web-n1");
    assert_eq!(list["items"][7]["status"]["podIP"], "10.88.0.4");
    let node = &list["nodelet"];
    assert_eq!((&node["kind"], &node["metadata"]["name"]), (&json!("NodeStatus"), &json!("n1")));
    assert_eq!(node["pleg"]["lastRelistAt"], "2026-11-20T09:59:59Z");
    assert_eq!(node["sources"][0]["files"][1]["verdicts"][0]["lastGood"], true);
    assert_eq!(node["events"][1]["count"], 5);

    let text = shown(&document(), &args(Some("web"), Output::Json));
    let pod: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&pod["kind"], &pod["spec"]["containers"][0]["name"]),
        (&json!("Pod"), &json!("web"))
    );
}

#[test]
fn yaml_says_the_same_as_json() {
    let mut document = document();
    let labels = json!({"octal": "0644", "bool": "yes", "null": "~", "time": "2026-11-20", "number": "1e3",
                        "long": "word ".repeat(60), "lines": "a\n b\n\nc\n"});
    let pod = document.pods[7].pod.as_mut().unwrap();
    std::sync::Arc::make_mut(pod).metadata.labels = serde_json::from_value(labels.clone()).unwrap();
    for pod in [Some("web"), None] {
        let yaml = shown(&document, &args(pod, Output::Yaml));
        let json: Value =
            serde_json::from_str(&shown(&document, &args(pod, Output::Json))).unwrap();
        let read = crate::document::parse(yaml.as_bytes()).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].root.to_json(), json, "{yaml}");
    }
}

#[test]
fn no_such_pod_and_several_such_pods_are_told_apart() {
    let mut document = document();
    let said = |document: &StatusDocument, pod: &str| {
        render(document, &args(Some(pod), Output::Table), NOW.parse().unwrap())
            .unwrap_err()
            .to_string()
    };
    assert!(said(&document, "nothing").starts_with("no pod nothing; there are default/going-n1,"));
    let mut gone = document.clone();
    gone.pods.retain(|view| *view.key.name != *"stale-n1");
    let rejected = said(&gone, "stale");
    assert!(
        rejected.contains("does not run, its manifest is rejected:\n/m/stale.yaml:4:7: spec"),
        "{rejected}"
    );
    let mut twin = document.pods[7].clone();
    twin.key = crate::model::PodKey::new("shop", "web-n1");
    document.pods.push(twin);
    assert!(said(&document, "web").contains("default/web-n1, shop/web-n1"));
}

#[test]
fn without_an_agent_the_exit_code_says_so() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut arguments = args(None, Output::Table);
    arguments.agent.run_dir = dir.path().join("run");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = runtime.block_on(run(arguments)).unwrap();
    assert_eq!(code, ExitCode::from(EXIT_NO_AGENT));
}
