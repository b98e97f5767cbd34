//! The start order.

use crate::{
    admission::{Progress, StartOrder},
    model::{AFTER, DesiredPod, Origin, PodKey, SourceKind, k8s},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

type Pods = BTreeMap<PodKey, Arc<DesiredPod>>;

/// A pod of namespace `default`, or of the one before the slash.
fn add(pods: &mut Pods, name: &str, policy: &str, after: &str) {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let full = format!("{name}-n1");
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": full, "namespace": namespace, "annotations": {AFTER: after, "kubernetes.io/config.source": "file"}},
        "spec": {"restartPolicy": policy, "containers": []},
    }))
    .unwrap();
    let key = PodKey::new(namespace, &full);
    let pod = DesiredPod {
        key: key.clone(),
        uid: full.as_str().into(),
        revision: "1".into(),
        pod: Arc::new(pod),
        origin: Origin {
            source: SourceKind::File,
            location: format!("/m/{name}.yaml").into(),
            document: 0,
            line: 1,
        },
    };
    pods.insert(key, Arc::new(pod));
}

fn pods(all: &[(&str, &str)]) -> Pods {
    let mut pods = Pods::new();
    for (name, after) in all {
        add(&mut pods, name, "Always", after);
    }
    pods
}

/// Who waits, while these pods are ready.
fn waiting(pods: &Pods, ready: &[&str]) -> Vec<String> {
    let progress = |pod: &DesiredPod| match ready.iter().any(|name| *pod.key.name == **name) {
        true => Progress::Ready,
        false => Progress::NotReady,
    };
    let waits = StartOrder::new(pods, "n1").waits(&progress);
    waits.iter().map(|(key, why)| format!("{}: {why}", key.name)).collect()
}

#[test]
fn pods_of_the_api_server_have_no_part_in_the_order() {
    let mut pods = pods(&[("db", ""), ("app", "db"), ("web", "db")]);
    let from_api = |pods: &mut Pods, name: &str| {
        let pod = Arc::make_mut(pods.get_mut(&PodKey::new("default", name)).unwrap());
        let annotations = &mut Arc::make_mut(&mut pod.pod).metadata.annotations;
        let source = ("kubernetes.io/config.source".to_owned(), "api".to_owned());
        annotations.get_or_insert_default().extend([source]);
    };
    from_api(&mut pods, "app-n1");
    let waits = "web-n1: waiting for pod db (nodelet.dev/after): it is not Ready";
    assert_eq!(waiting(&pods, &[]), [waits], "it waits for none");
    from_api(&mut pods, "db-n1");
    let waits = "web-n1: waiting for pod db (nodelet.dev/after): no manifest has this name";
    assert_eq!(waiting(&pods, &["db-n1"]), [waits], "none waits for it");
}

#[test]
fn a_chain_starts_one_after_the_other() {
    let pods = pods(&[("db", ""), ("app", "db"), ("web", "app")]);
    let db = "app-n1: waiting for pod db (nodelet.dev/after): it is not Ready";
    let app = "web-n1: waiting for pod app (nodelet.dev/after): it is not Ready";
    assert_eq!(waiting(&pods, &[]), [db, app]);
    assert_eq!(waiting(&pods, &["db-n1"]), [app]);
    assert!(waiting(&pods, &["db-n1", "app-n1"]).is_empty());
}

#[test]
fn a_diamond_starts_when_both_sides_are_ready() {
    let pods = pods(&[("db", ""), ("a", "db"), ("b", "db"), ("web", " a , b")]);
    assert_eq!(waiting(&pods, &["db-n1", "a-n1", "b-n1"]).len(), 0);
    let one = "web-n1: waiting for pod b (nodelet.dev/after): it is not Ready";
    assert_eq!(waiting(&pods, &["db-n1", "a-n1"]), [one]);
    let both = "web-n1: waiting for pod a (nodelet.dev/after): it is not Ready; \
                pod b (nodelet.dev/after): it is not Ready";
    assert_eq!(waiting(&pods, &["db-n1"]), [both]);
}

#[test]
fn an_unknown_name_waits_and_is_named() {
    let pods = pods(&[("web", "db"), ("other/db", "")]);
    let expected = "web-n1: waiting for pod db (nodelet.dev/after): no manifest has this name";
    assert_eq!(waiting(&pods, &["db-n1"]), [expected]);
    let order = StartOrder::new(&pods, "n1");
    let unknown: Vec<_> = order.unknown().map(|(key, name)| format!("{key} {name}")).collect();
    assert_eq!(unknown, ["default/web-n1 db"]);
}

#[test]
fn all_pods_of_a_cycle_are_named_and_their_followers_wait() {
    let pods = pods(&[("a", "c"), ("b", "a"), ("c", "b"), ("d", "a"), ("db", "")]);
    let order = StartOrder::new(&pods, "n1");
    let found: Vec<String> =
        order.cycles().iter().map(|c| format!("{} {}", c.origin.location, c.message)).collect();
    let message = |location: &str, path: &str| {
        format!(
            "/m/{location}.yaml the pods wait for each other, so none of them starts: {path}. \
             Those that run keep running"
        )
    };
    let expected = [
        message("a", "a -> c -> b -> a"),
        message("b", "b -> a -> c -> b"),
        message("c", "c -> b -> a -> c"),
    ];
    assert_eq!(found, expected);
    let waiting = waiting(&pods, &["a-n1", "b-n1", "c-n1"]);
    assert_eq!(waiting.len(), 3, "the cycle, ready or not; d has what it waits for: {waiting:?}");
    assert_eq!(waiting[0], "a-n1: waiting for itself (nodelet.dev/after): a -> c -> b -> a");
}

#[test]
fn jobs_have_to_succeed_and_other_pods_to_be_ready() {
    let failed = |reason: &str| Progress::Failed(Some(reason.to_owned()));
    for (policy, progress, why) in [
        ("Always", Progress::NotReady, Some("it is not Ready")),
        ("Always", Progress::Ready, None),
        ("Always", failed("Evicted"), Some("it has failed: Evicted")),
        ("Always", failed("OutOfcpu"), Some("it has failed: OutOfcpu")),
        ("Never", Progress::NotReady, Some("it has not succeeded yet")),
        ("Never", Progress::Ready, Some("it has not succeeded yet")),
        ("Never", Progress::Succeeded, None),
        ("OnFailure", Progress::Succeeded, None),
        ("OnFailure", Progress::Failed(None), Some("it has failed")),
    ] {
        let mut pods = Pods::new();
        add(&mut pods, "db", policy, "");
        add(&mut pods, "web", "Always", "db");
        let waits = StartOrder::new(&pods, "n1").waits(&|_| progress.clone());
        let expected = why.map(|why| format!("waiting for pod db (nodelet.dev/after): {why}"));
        let found = waits.values().next().map(|why| why.to_string());
        assert_eq!(found, expected, "{policy} {progress:?}");
    }
}

#[test]
fn pods_that_nobody_waits_for_have_no_followers() {
    let pods = pods(&[("db", ""), ("web", "db")]);
    let order = StartOrder::new(&pods, "n1");
    let has = |name: &str| order.has_followers(&PodKey::new("default", name));
    assert_eq!((has("db-n1"), has("web-n1")), (true, false));
}
