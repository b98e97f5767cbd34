//! The task against an API server of a few lines in this process.

use super::*;
use crate::{
    api::Clients,
    mirror::Deletion,
    model::{Completeness, k8s},
};
use http::Method;
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::sync::Mutex;

/// Pods by path, and every request.
#[derive(Default)]
struct Api {
    pods: BTreeMap<String, Value>,
    requests: Vec<String>,
    version: u64,
    /// How many of the next requests fail.
    failing: usize,
    /// Which pod a webhook is in the way of.
    minded: Option<&'static str>,
}

impl Api {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        self.requests.push(format!("{method} {path}"));
        if self.failing > 0 {
            self.failing -= 1;
            return (
                503,
                json!({"status": "Failure", "code": 503, "message": "not now", "reason": "ServiceUnavailable"}),
            );
        }
        if method == Method::POST && body["metadata"]["name"].as_str() == self.minded {
            let message = "Internal error occurred: failed calling webhook \"a.b\": no answer";
            return (
                500,
                json!({"status": "Failure", "code": 500, "message": message, "reason": "InternalError"}),
            );
        }
        self.version += 1;
        let version = json!(self.version.to_string());
        if method == Method::POST {
            let mut pod = body.clone();
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            pod["metadata"]["uid"] = json!(format!("uid-{}", self.version));
            pod["metadata"]["resourceVersion"] = version;
            pod["status"] = json!({"phase": "Pending"});
            self.pods.insert(path, pod.clone());
            return (201, pod);
        }
        let Some(pod) = self.pods.get_mut(path.trim_end_matches("/status")) else {
            return (
                404,
                json!({"status": "Failure", "code": 404, "message": "not found", "reason": "NotFound"}),
            );
        };
        if method == Method::DELETE {
            return (200, self.pods.remove(path).unwrap());
        }
        pod["metadata"]["resourceVersion"] = version;
        for (field, value) in body["status"].as_object().unwrap() {
            pod["status"][field] = value.clone();
        }
        (200, pod.clone())
    }
}

fn clients(api: &Arc<Mutex<Api>>) -> Clients {
    let api = Arc::clone(api);
    Clients::of_server(move |method, path, body| api.lock().unwrap().answer(method, path, &body))
}

/// The task's surroundings.
struct Bench {
    api: Arc<Mutex<Api>>,
    link: watch::Sender<Link>,
    picture: watch::Sender<Arc<WatchCache<SeenPod>>>,
    views: watch::Sender<Arc<PodViews>>,
    known: watch::Sender<Arc<Known>>,
    node: watch::Sender<Option<NodeRef>>,
    report: watch::Receiver<Arc<PodsReport>>,
    events: Arc<Mutex<Vec<Event>>>,
    tasks: JoinSet<()>,
}

impl Bench {
    fn new(budget: Option<Bucket>) -> Self {
        let api = Arc::default();
        let (link, link_of_task) = watch::channel(Some(Arc::new(clients(&api))));
        let (picture, picture_of_task) = watch::channel(Arc::default());
        let (views, views_of_task) = watch::channel(Arc::default());
        let (known, known_of_task) = watch::channel(Arc::default());
        let (node, node_of_task) = watch::channel(Some(NodeRef {
            name: "n1".into(),
            uid: "node-1".into(),
            deleting: false,
        }));
        let (report, published) = watch::channel(Arc::default());
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = Arc::clone(&events);
        let task = PodsTask::new(PodsInputs {
            link: link_of_task,
            picture: picture_of_task,
            views: views_of_task,
            known: known_of_task,
            node: node_of_task,
            events: Box::new(move |event| told.lock().unwrap().push(event)),
            runs_api_pods: false,
            budget,
            report,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(CancellationToken::new()));
        Self { api, link, picture, views, known, node, report: published, events, tasks }
    }

    fn run(&self, names: &[&str]) {
        let views =
            names.iter().map(|name| view(name)).map(|view| (view.key.clone(), Arc::new(view)));
        self.views.send_replace(Arc::new(views.collect()));
    }

    fn show(&self, pods: &[Value]) {
        let pods = pods.iter().map(|pod| serde_json::from_value::<SeenPod>(pod.clone()).unwrap());
        let objects = pods.map(|pod| (pod.key(), Arc::new(pod))).collect();
        let picture = WatchCache { objects, whole: true, live: true, ..WatchCache::default() };
        self.picture.send_replace(Arc::new(picture));
    }

    async fn until(&mut self, what: impl Fn(&PodsReport) -> bool) -> Arc<PodsReport> {
        let last = self.report.clone();
        let found = self.report.wait_for(|report| what(report));
        match tokio::time::timeout(Duration::from_secs(20), found).await {
            Ok(report) => Arc::clone(&report.unwrap()),
            Err(_) => panic!("{:?} after {:?}", last.borrow(), self.api.lock().unwrap().requests),
        }
    }

    fn requests(&self) -> Vec<String> {
        self.api.lock().unwrap().requests.clone()
    }
}

fn view(name: &str) -> PodView {
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "annotations": {"nodelet.dev/revision": "r1"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap();
    let status = k8s::PodStatus { phase: Some("Running".to_owned()), ..k8s::PodStatus::default() };
    PodView {
        key: PodKey::new("default", name),
        uid: name.into(),
        pod: Some(Arc::new(pod)),
        status: Arc::new(status),
        containers: Vec::new(),
        origin: None,
        config: crate::model::PodConfig::Desired,
        terminating: false,
        stopped: false,
        hung: None,
        waiting: None,
        update: None,
        previous: None,
        probes: Vec::new(),
    }
}

#[tokio::test]
async fn a_mirror_lives_as_long_as_its_manifest() {
    let mut bench = Bench::new(Some(Bucket::new(1000, 1000)));
    let names: Vec<String> = (0..20).map(|n| format!("web{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    bench.run(&names);
    // Nothing is written before the watch has shown everything once.
    bench.until(|report| report.waiting == 20).await;
    assert_eq!(bench.requests(), Vec::<String>::new());
    bench.show(&[]);
    bench.until(|report| report.mirrored == 20 && report.waiting == 0).await;
    assert_eq!(bench.requests().len(), 40);
    let pods: Vec<Value> = bench.api.lock().unwrap().pods.values().cloned().collect();
    assert!(pods.iter().all(|pod| pod["status"]["phase"] == "Running"), "{pods:?}");
    // What the watch shows late, or again, is no reason to write.
    bench.show(&pods);
    bench.known.send_replace(Arc::new(Known { complete: Completeness::All, ..Known::default() }));
    bench.run(&[]);
    // The watch has not shown the end of the mirrors yet.
    bench.until(|report| *report == PodsReport { shown: 20, ..PodsReport::default() }).await;
    assert!(bench.api.lock().unwrap().pods.is_empty());
    assert_eq!(bench.requests().len(), 60);
    bench.tasks.shutdown().await;
}

#[tokio::test]
async fn a_pod_that_begins_is_told_of_after_a_moment() {
    let mut bench = Bench::new(None);
    bench.show(&[]);
    let mut begins = view("web");
    begins.status = Arc::new(
        serde_json::from_value(json!({
            "phase": "Pending", "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}],
        }))
        .unwrap(),
    );
    let views = BTreeMap::from([(begins.key.clone(), Arc::new(begins))]);
    bench.views.send_replace(Arc::new(views));
    let api = Arc::clone(&bench.api);
    let is_made = move || api.lock().unwrap().requests.len() == 1;
    bench.until(|report| report.waiting == 1 && is_made()).await;
    // Nothing else wakes the task.
    bench.until(|report| report.mirrored == 1 && report.waiting == 0).await;
    let pod = bench.api.lock().unwrap().pods.values().next().cloned().unwrap();
    assert_eq!(pod["status"]["startTime"], "2026-01-01T00:00:00Z");
    assert_eq!(bench.requests().len(), 2);
    bench.tasks.shutdown().await;
}

#[tokio::test]
async fn pods_of_the_api_are_declined_once() {
    let mut bench = Bench::new(Some(Bucket::new(1000, 1000)));
    let pod = json!({"metadata": {"name": "own", "namespace": "default", "uid": "u1", "resourceVersion": "1"}});
    let ended = json!({
        "metadata": {"name": "job", "namespace": "default", "uid": "u2", "resourceVersion": "1"},
        "status": {"phase": "Succeeded"},
    });
    bench.show(&[pod, ended]);
    let report = bench.until(|report| report.declined.len() == 1).await;
    assert_eq!(&*report.declined[0].name, "own");
    bench.link.send_modify(|_| {});
    bench.run(&["web"]);
    bench.until(|report| report.mirrored == 1).await;
    let events: Vec<Event> = bench.events.lock().unwrap().clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].reason, "StaticPodsOnly");
    bench.tasks.shutdown().await;
}

#[tokio::test]
async fn everything_is_written_once_the_server_is_able_again() {
    let mut bench = Bench::new(None);
    bench.api.lock().unwrap().failing = 6;
    bench.show(&[]);
    bench.run(&["a", "b", "c", "d"]);
    let report = bench.until(|report| report.trouble.is_some()).await;
    assert_eq!(report.trouble.as_ref().map(|trouble| &*trouble.what), Some("not now (503)"));
    assert!(bench.requests().len() <= 4);
    bench.until(|report| report.mirrored == 4 && report.trouble.is_none()).await;
    let node = NodeRef { name: "n1".into(), uid: "node-2".into(), deleting: false };
    bench.node.send_replace(Some(node));
    let api = Arc::clone(&bench.api);
    let owners_are_new = || {
        let api = api.lock().unwrap();
        let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == "node-2";
        api.pods.len() == 4 && api.pods.values().all(owner)
    };
    bench.until(|report| report.mirrored == 4 && report.waiting == 0 && owners_are_new()).await;
    bench.tasks.shutdown().await;
}

#[tokio::test]
async fn a_webhook_in_the_way_of_one_pod_is_no_trouble_of_the_server() {
    let mut bench = Bench::new(None);
    // Told from any other refusal by its words: the pods beside it are not held up.
    bench.api.lock().unwrap().minded = Some("a");
    bench.show(&[]);
    bench.run(&["a", "b", "c"]);
    let report = bench.until(|report| report.mirrored == 2 && !report.refused.is_empty()).await;
    assert_eq!(report.trouble, None);
    let (key, why) = &report.refused[0];
    assert!(&*key.name == "a" && why.contains("webhook"), "{key} {why}");
    bench.api.lock().unwrap().minded = None;
    bench.until(|report| report.mirrored == 3 && report.refused.is_empty()).await;
    bench.tasks.shutdown().await;
}

/// Shows one pod, and that it is left out.
fn show_left_out(bench: &Bench, uid: &str, deletion: Option<Deletion>) {
    let head = ObjectHead { uid: uid.to_owned(), version: 1, deletion, phase: None };
    let one = LeftOut { head, why: "it is too large".to_owned() };
    let left_out = BTreeMap::from([("shop/wide".to_owned(), one)]);
    let picture = WatchCache { left_out, whole: true, live: true, ..WatchCache::default() };
    bench.picture.send_replace(Arc::new(picture));
}

#[test]
fn the_mirror_of_a_pod_that_has_ended_is_needed() {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Succeeded"},
    });
    let phase = |object: &Value| SeenPod::deserialize(object).unwrap().head().phase;
    assert_eq!(phase(&object), Some(TerminalPhase::Succeeded));
    object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "u2"});
    assert_eq!(phase(&object), None);
}

#[tokio::test]
async fn a_pod_that_is_left_out_goes_when_it_is_deleted() {
    let mut bench = Bench::new(None);
    show_left_out(&bench, "u1", None);
    // A source of static pods does not matter.
    bench.known.send_replace(Arc::new(Known { complete: Completeness::Api, ..Known::default() }));
    bench.until(|report| !report.left_out.is_empty()).await;
    assert_eq!(bench.requests(), [""; 0]);
    show_left_out(&bench, "u1", Some(Deletion { seconds: 30, held: false }));
    let deleted = async {
        while bench.requests() != ["DELETE /api/v1/namespaces/shop/pods/wide"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), deleted).await;
    assert!(in_time.is_ok(), "{:?}", bench.requests());
    bench.tasks.shutdown().await;
}

#[tokio::test]
async fn a_pod_that_is_left_out_is_told_once() {
    let mut bench = Bench::new(None);
    let show = |bench: &Bench, uid: &str| show_left_out(bench, uid, None);
    let told = |bench: &Bench| {
        let events = bench.events.lock().unwrap();
        events.iter().filter(|event| event.reason == "PodTooLarge").count()
    };
    show(&bench, "u1");
    let report = bench.until(|report| !report.left_out.is_empty()).await;
    let expected = (PodKey::new("shop", "wide"), "it is too large".to_owned());
    assert_eq!((report.left_out.as_slice(), told(&bench)), ([expected].as_slice(), 1));
    bench.show(&[]);
    bench.until(|report| report.left_out.is_empty()).await;
    show(&bench, "u2");
    bench.until(|report| !report.left_out.is_empty()).await;
    show(&bench, "u2");
    bench.run(&["web"]);
    bench.until(|report| report.mirrored == 1).await;
    assert_eq!(told(&bench), 2);
    bench.tasks.shutdown().await;
}

/// A client that may write pods can give any pod the annotation of a mirror.
#[tokio::test]
async fn a_mirror_of_a_pod_with_another_name_is_deleted() {
    let mut bench = Bench::new(None);
    bench.run(&["web"]);
    bench.show(&[]);
    bench.until(|report| report.mirrored == 1 && report.waiting == 0).await;
    let mut pods: Vec<Value> = bench.api.lock().unwrap().pods.values().cloned().collect();
    let mut orphan = pods[0].clone();
    orphan["metadata"]["name"] = json!("orphan");
    orphan["metadata"]["uid"] = json!("orphan-1");
    let path = "/api/v1/namespaces/default/pods/orphan";
    bench.api.lock().unwrap().pods.insert(path.to_owned(), orphan.clone());
    pods.push(orphan);
    // Not complete yet: the uid alone proves that no static pod has this name.
    bench.show(&pods);
    let api = Arc::clone(&bench.api);
    let gone = move || !api.lock().unwrap().pods.contains_key(path);
    tokio::time::timeout(Duration::from_secs(20), async {
        while !gone() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the orphan is still there");
    assert_eq!(bench.api.lock().unwrap().pods.len(), 1);
    bench.tasks.shutdown().await;
}
