use super::{Settings, context, decode, decode_on, only};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web, tier: '1'}
spec:
  containers:
  - name: web
    image: registry.example/web:1.2
    ports: [{containerPort: 8080}]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}
";

fn identity(node: &str, text: &str) -> (String, String) {
    let pod = only(decode_on(node, text)).result.unwrap();
    (pod.uid.to_string(), pod.revision.to_string())
}

/// These never change: a release that breaks them replaces every pod of every user.
#[test]
fn golden_vectors() {
    let small = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}";
    let rich = "\
apiVersion: v1
kind: Pod
metadata: {name: rich, namespace: kube-system, annotations: {text: \"a\\n\\\"quoted\\\" \\u00e9 \\u2028\"}}
spec:
  hostNetwork: on
  terminationGracePeriodSeconds: 1.0
  containers:
  - {name: c, image: i, resources: {limits: {cpu: 1, memory: 1Gi}}}
  volumes: [{name: v, hostPath: {path: /srv}}]
";
    for (node, text, uid, revision) in [
        ("node1", small, "49058f38a2974e1aeaa8241b08826fd8", "3e405577773e7c01bbec838350f0b37c"),
        ("node2", small, "d094453f696f3abcdd3481d872dd5a92", "3e405577773e7c01bbec838350f0b37c"),
        ("node1", POD, "9806029c4104bd51bd4c517c1fcc1ab2", "f6c4990319a1aa87fa3acc8585a66975"),
        ("node1", rich, "5293a74835028fb911fa92e4e234c183", "dda114bc6ee09760f26b853ef2d720a5"),
    ] {
        assert_eq!(identity(node, text), (uid.to_owned(), revision.to_owned()), "{node} {text}");
    }
}

#[test]
fn what_means_the_same_is_the_same() {
    let expected = identity("node1", POD);
    let json = r#"{"kind":"Pod","spec":{"containers":[{"resources":{"limits":{"memory":"64Mi"},
        "requests":{"memory":"64Mi","cpu":"100m"}},"image":"registry.example/web:1.2","name":"web",
        "ports":[{"containerPort":8080.0}]}]},"apiVersion":"v1","metadata":{"labels":{"tier":"1","app":"web"},"name":"web"}}"#;
    for (why, text) in [
        ("comments and white space", POD.replace("spec:\n", "\n# a comment\nspec:   # here\n\n")),
        (
            "quotes",
            POD.replace("image: registry.example/web:1.2", "image: \"registry.example/web:1.2\""),
        ),
        ("null is not set", POD.replace("spec:\n", "spec:\n  nodeName: null\n  volumes: ~\n")),
        ("notation of numbers", POD.replace("8080", "0x1f90")),
        ("key order, JSON", json.to_owned()),
        ("anchors", POD.replace("'1'", "&one '1'")),
        ("CRLF", POD.replace('\n', "\r\n")),
        ("a byte order mark", format!("\u{feff}{POD}")),
    ] {
        assert_eq!(identity("node1", &text), expected, "{why}");
    }
}

#[test]
fn the_start_order_changes_the_revision_only() {
    let (uid, revision) = identity("node1", POD);
    for names in ["db", "db, cache"] {
        let annotations = format!("  annotations: {{nodelet.dev/after: '{names}'}}\nspec:\n");
        let edited = identity("node1", &POD.replace("spec:\n", &annotations));
        assert_eq!(edited.0, uid, "{names}");
        assert_ne!(edited.1, revision, "{names}");
    }
    let other = "  annotations: {a: b}\nspec:\n";
    let both = "  annotations: {a: b, nodelet.dev/after: db}\nspec:\n";
    let of = |text: &str| identity("node1", &POD.replace("spec:\n", text)).0;
    assert_eq!(of(other), of(both));
    assert_ne!(of(other), uid);
}

#[test]
fn amounts_of_cpu_and_memory_change_the_revision_only() {
    let (uid, revision) = identity("node1", POD);
    for (from, to) in [
        ("cpu: 100m", "cpu: 200m"),
        ("requests: {cpu: 100m, memory: 64Mi}, ", ""),
        ("{requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}", "{requests: {cpu: 1m}}"),
    ] {
        let edited = identity("node1", &POD.replace(from, to));
        assert_eq!(edited.0, uid, "{from} -> {to}");
        assert_ne!(edited.1, revision, "{from} -> {to}");
    }
}

#[test]
fn every_other_edit_and_the_qos_class_change_both() {
    let (uid, revision) = identity("node1", POD);
    for (from, to) in [
        ("web:1.2", "web:1.3"),
        ("tier: '1'", "tier: '2'"),
        ("8080", "8081"),
        ("spec:\n", "spec:\n  restartPolicy: Always\n"),
        // BestEffort, then Guaranteed.
        ("    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}\n", ""),
        (
            "{requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}",
            "{limits: {cpu: 1, memory: 64Mi}}",
        ),
    ] {
        let edited = identity("node1", &POD.replace(from, to));
        assert_ne!(edited.0, uid, "{from} -> {to}");
        assert_ne!(edited.1, revision, "{from} -> {to}");
    }
    let elsewhere = identity("node2", POD);
    assert_ne!(elsewhere.0, uid);
    assert_eq!(elsewhere.1, revision);
}

#[test]
fn empty_resources_say_nothing() {
    let without = POD.replace(
        "    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}\n",
        "",
    );
    let empty = POD.replace("{requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}", "{}");
    assert_eq!(identity("node1", &without).0, identity("node1", &empty).0);
}

#[test]
fn a_uid_of_its_own_wins() {
    let text = POD.replace("  name: web\n  labels", "  name: web\n  uid: 12-34\n  labels");
    let pod = only(decode_on("node1", &text)).result.unwrap();
    assert_eq!(pod.uid.as_str(), "12-34");
    let annotations = pod.pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubernetes.io/config.hash"], "12-34");
    let edited = only(decode_on("node1", &text.replace("web:1.2", "web:1.3"))).result.unwrap();
    assert_eq!(edited.uid, pod.uid);
    assert_ne!(edited.revision, pod.revision);
}

/// What a class stands for is not written in the manifest: another table replaces no pod.
#[test]
fn a_class_gives_the_pod_its_priority_and_no_other_identity() {
    let pod = |more: &str, classes: &[(&str, i32)]| {
        let settings = Settings {
            priority_classes: classes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            ..Settings::default()
        };
        let text = format!("{POD}  {more}\n");
        only(decode(text.as_bytes(), &context("node1", &settings)).unwrap()).result.unwrap()
    };
    let batch = "priorityClassName: batch";
    let mut uids = Vec::new();
    for (more, classes, priority) in [
        (batch, &[("batch", -5)][..], Some(-5)),
        (batch, &[("batch", 7)], Some(7)),
        (batch, &[], None),
        ("priorityClassName: system-node-critical", &[], Some(2_000_001_000)),
        ("priorityClassName: system-cluster-critical", &[], Some(2_000_000_000)),
        ("priorityClassName: batch\n  priority: 3", &[("batch", 7)], Some(3)),
        ("priorityClassName: ''", &[("", 7)], None),
    ] {
        let pod = pod(more, classes);
        assert_eq!(pod.pod.spec.as_ref().unwrap().priority, priority, "{more} {classes:?}");
        uids.push(pod.uid);
    }
    assert!(uids[0] == uids[1] && uids[1] == uids[2]);
    assert_ne!(uids[0], uids[3]);
}
