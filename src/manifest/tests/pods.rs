use super::{context, decode_here, only};
use crate::{
    manifest::{Settings, decode},
    model::{SourceKind, k8s},
    podspec::{QosClass, qos_class},
};
use serde_json::json;

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  deletionTimestamp: 2026-01-01T00:00:00Z
  annotations: {a: b}
spec:
  nodeName: elsewhere
  hostNetwork: true
  initContainers:
  - {name: setup, image: 'busybox@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', restartPolicy: Always}
  containers:
  - name: web
    image: localhost:5000/web
    ports: [{containerPort: 80}]
    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    resources: {limits: {cpu: 1, memory: 1Gi}}
  - {name: side, image: 'side:1', resources: {limits: {cpu: 0.5, memory: 1Gi}}}
  volumes:
  - name: scratch
  - {name: host, hostPath: {path: /srv}}
";

fn spec(text: &str) -> k8s::PodSpec {
    let pod = only(decode_here(text)).result.unwrap().pod;
    pod.spec.clone().unwrap()
}

#[test]
fn defaults_are_the_apis() {
    let found = serde_json::to_value(spec(POD)).unwrap();
    let expected = json!({
        "nodeName": "Node1",
        "hostNetwork": true,
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": true,
        "securityContext": {},
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "initContainers": [{
            "name": "setup", "image": "busybox@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "restartPolicy": "Always",
            "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File", "resources": {},
        }],
        "containers": [{
            "name": "web", "image": "localhost:5000/web",
            "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
        }, {
            "name": "side", "image": "side:1",
            "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {"limits": {"cpu": "0.5", "memory": "1Gi"}, "requests": {"cpu": "0.5", "memory": "1Gi"}},
        }],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/srv", "type": ""}},
        ],
    });
    assert_eq!(found, expected);
}

#[test]
fn metadata_is_dressed_as_the_kubelets() {
    let document = only(decode_here(POD));
    let pod = document.result.unwrap();
    assert_eq!(pod.key.to_string(), "default/web-node1");
    assert_eq!(document.key.as_ref(), Some(&pod.key));
    assert_eq!(document.warnings.len(), 1);
    assert_eq!(
        document.warnings[0].to_string(),
        "line 5, column 3: metadata.deletionTimestamp: ignored: set by an API server; has no meaning in a manifest"
    );
    let expected = json!({
        "name": "web-node1",
        "namespace": "default",
        "uid": pod.uid,
        "annotations": {
            "a": "b",
            "kubernetes.io/config.hash": pod.uid,
            "kubernetes.io/config.source": "file",
            "kubernetes.io/config.seen": "2027-01-15T08:00:00.000000000Z",
            "nodelet.dev/revision": pod.revision,
        },
    });
    assert_eq!(serde_json::to_value(&pod.pod.metadata).unwrap(), expected);
    assert_eq!(pod.pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
}

#[test]
fn pods_of_a_url_get_no_toleration() {
    let settings = Settings::default();
    let context = crate::manifest::Context { source: SourceKind::Http, ..context("n", &settings) };
    let pod = only(decode(POD.as_bytes(), &context).unwrap()).result.unwrap().pod;
    assert_eq!(pod.spec.as_ref().unwrap().tolerations, None);
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubernetes.io/config.source"], "http");
}

#[test]
fn pod_level_requests_default_to_what_the_containers_ask_for() {
    let sidecar = |requests: &str| {
        format!("{{name: s, image: i, restartPolicy: Always, resources: {{requests: {requests}}}}}")
    };
    let setup =
        |requests: &str| format!("{{name: s, image: i, resources: {{requests: {requests}}}}}");
    let both = "{cpu: 1, memory: 1Gi}";
    let huge = "{memory: 1Gi, hugepages-2Mi: 100Mi}";
    let (less, burstable) = ("{limits: {memory: 64Mi, hugepages-2Mi: 50Mi}}", QosClass::Burstable);
    for (limits, init, app, expected, class) in [
        (both, String::new(), "{}", "cpu=1 memory=1Gi", QosClass::Guaranteed),
        (both, String::new(), "{requests: {cpu: 500m}}", "cpu=0.5 memory=1Gi", burstable),
        (both, sidecar("{cpu: 100m, memory: 64Mi}"), "{}", "cpu=0.1 memory=67108864", burstable),
        (
            "{memory: 1Gi}",
            sidecar("{memory: 512Mi}"),
            "{requests: {memory: 128Mi}}",
            "memory=671088640",
            burstable,
        ),
        // An init container that asks for more than all containers that run after it.
        (both, setup("{cpu: 700m}"), "{requests: {cpu: 300m}}", "cpu=0.7 memory=1Gi", burstable),
        // Another resource is limited.
        (
            "{memory: 1Gi}",
            String::new(),
            "{requests: {cpu: 300m}}",
            "cpu=0.3 memory=1Gi",
            burstable,
        ),
        (
            "{hugepages-2Mi: 16Mi}",
            String::new(),
            "{requests: {cpu: 300m}}",
            "cpu=0.3 hugepages-2Mi=16Mi",
            burstable,
        ),
        // Huge pages can't be overcommitted.
        (huge, String::new(), less, "hugepages-2Mi=100Mi memory=67108864", burstable),
    ] {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{
                resources: {{limits: {limits}}}, initContainers: [{init}],
                containers: [{{name: a, image: i, resources: {app}}}, {{name: b, image: i}}]}}}}"
        );
        let spec = spec(&text);
        let requests = spec.resources.as_ref().unwrap().requests.as_ref().unwrap();
        let found: Vec<String> =
            requests.iter().map(|(name, q)| format!("{name}={}", q.0)).collect();
        assert_eq!((found.join(" ").as_str(), qos_class(&spec)), (expected, class), "{text}");
    }
}

#[test]
fn unquoted_quantities_and_empty_labels_are_fine() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {a: }}, spec: {
        containers: [{name: a, image: i, resources: {limits: {cpu: 1.5, memory: 1000000}}}]}}";
    let pod = only(decode_here(text)).result.unwrap().pod;
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["a"], "");
    let limits = pod.spec.clone().unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
    assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("1.5", "1000000"));
}

/// Large in every way that a text of a few MiB can be, and wrong everywhere: still quick, and
/// readable.
#[test]
fn a_hostile_pod_is_rejected_in_bounded_time() {
    let head = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {";
    let list =
        |item: &dyn Fn(usize) -> String| -> String { (0..9_000).map(|n| item(n) + ", ").collect() };
    let label = list(&|n| format!("'{n} x': y z"));
    for (text, problems) in [
        (
            format!(
                "{head}volumes: [{}], initContainers: [{}]}}}}",
                list(&|n| format!("{{name: v{n}}}")),
                list(&|_| "{}".to_owned()),
            ),
            2,
        ),
        (format!("{head}nodeSelector: {{{label}}}}}}}"), 100),
        (
            format!("{head}containers: [{{name: c, env: [{}]}}]}}}}", list(&|_| "{}".to_owned())),
            100,
        ),
        (format!("{head}containers: [{}]}}}}", list(&|n| format!("{{name: c, imag{n}: i}}"))), 1),
        (format!("{head}containers: [{}]}}}}", list(&|_| "null".to_owned())), 1),
    ] {
        let found = only(decode_here(&text)).result.unwrap_err();
        assert_eq!(found.len(), problems, "{:?}", found.last());
    }
}
