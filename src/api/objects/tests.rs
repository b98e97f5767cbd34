#![allow(clippy::unwrap_used, reason = "tests")]

use super::{
    super::{
        Clients,
        client::{self, ApiClient, Body},
    },
    *,
};
use crate::{
    desired::Knowledge,
    model::{
        ClaimAnswer, ObjectAnswer, ObjectKey, ObjectKind, Origin, PersistentVolume, SourceView,
        TokenAnswer,
    },
    podspec::are_services_known,
};
use http::{Method, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tower::BoxError;

const PATIENCE: Duration = Duration::from_secs(30);

/// A stream of a watch that goes on.
type Stream = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

/// An API server: objects by `KIND/NAMESPACE/NAME`, and the watches that go on.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    streams: Vec<(String, Stream)>,
    /// Every request that began a watch.
    watched: Vec<String>,
    /// Bodies of requests for tokens.
    token_requests: Vec<Value>,
    /// The lifetime of tokens in seconds; `None`: none is issued.
    token_seconds: Option<i64>,
    /// What may not be watched.
    forbidden: Option<&'static str>,
}

fn frame(event: &Value) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(format!("{event}\n").into()))
}

fn json_response(code: u16, answer: &Value) -> Response<Body> {
    Response::builder().status(code).body(client::whole(answer.to_string())).unwrap()
}

/// What a watch is about: the object that its path and selector name, or `services`.
fn watched_key(path: &str, query: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "api", "v1", "namespaces", namespace, kind] = parts[..] else {
        return parts.last().unwrap().to_string();
    };
    let (_, name) = query.split_once("metadata.name%3D").unwrap();
    let name = name.split('&').next().unwrap();
    format!("{kind}/{namespace}/{name}")
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Response<Body> {
        if *method == Method::POST {
            return self.issue(path, body);
        }
        if !query.contains("watch=true") {
            return self.read(path);
        }
        let key = watched_key(path, query);
        if self.forbidden == Some(&*key) {
            let message = "services is forbidden";
            let status = json!({"code": 403, "reason": "Forbidden", "message": message});
            return json_response(403, &status);
        }
        let (stream, events) = mpsc::channel(64);
        for (name, object) in &self.objects {
            if *name == key || name.starts_with(&format!("{key}/")) {
                stream.try_send(frame(&json!({"type": "ADDED", "object": object}))).unwrap();
            }
        }
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let mark = json!({"metadata": {"annotations": annotations}});
        stream.try_send(frame(&json!({"type": "BOOKMARK", "object": mark}))).unwrap();
        self.streams.push((key.clone(), stream));
        self.watched.push(key);
        Response::new(StreamBody::new(ReceiverStream::new(events)).boxed_unsync())
    }

    fn read(&self, path: &str) -> Response<Body> {
        let key = path.trim_start_matches("/api/v1/").trim_start_matches("namespaces/");
        match self.objects.get(key) {
            Some(object) => json_response(200, object),
            None => json_response(404, &json!({"code": 404, "reason": "NotFound"})),
        }
    }

    fn issue(&mut self, path: &str, body: Value) -> Response<Body> {
        self.token_requests.push(body.clone());
        let count = self.token_requests.len();
        let account = path.split('/').nth(6).unwrap();
        match self.token_seconds {
            Some(seconds) => {
                let mut answer = body;
                answer["spec"]["expirationSeconds"] = json!(seconds);
                answer["status"] = json!({"token": format!("{account}-{count}")});
                json_response(201, &answer)
            }
            None => {
                let message = format!("serviceaccounts \"{account}\" not found");
                let status = json!({"code": 404, "reason": "NotFound", "message": message});
                json_response(404, &status)
            }
        }
    }

    fn send(&mut self, key: &str, kind: &str, object: &Value) {
        for (of, stream) in &self.streams {
            let is_about = key == of || key.starts_with(&format!("{of}/"));
            if is_about && !stream.is_closed() {
                stream.try_send(frame(&json!({"type": kind, "object": object}))).unwrap();
            }
        }
    }

    /// Writes an object; `rest` is everything besides its name.
    fn put(&mut self, key: &str, rest: Value) {
        let (namespace, name) = key.split_once('/').unwrap().1.split_once('/').unwrap();
        let mut object = rest;
        object["metadata"] = json!({"name": name, "namespace": namespace, "uid": name});
        self.objects.insert(key.to_owned(), object.clone());
        self.send(key, "MODIFIED", &object);
    }

    fn delete(&mut self, key: &str) {
        let object = self.objects.remove(key).unwrap();
        self.send(key, "DELETED", &object);
    }

    /// Watches of this object that go on.
    fn open(&self, key: &str) -> Vec<Stream> {
        let of_key = self.streams.iter().filter(|(of, stream)| of == key && !stream.is_closed());
        of_key.map(|(_, stream)| stream.clone()).collect()
    }
}

fn link_to(server: &Arc<Mutex<Server>>) -> Link {
    let server = Arc::clone(server);
    let client = ApiClient::new(move |request| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await?.to_bytes());
            let query = parts.uri.query().unwrap_or_default().to_owned();
            let body = body.unwrap_or_default();
            Ok(server.lock().unwrap().answer(&parts.method, parts.uri.path(), &query, body))
        }
    });
    Some(Arc::new(Clients::of_client(&client)))
}

/// The task and its surroundings.
struct Bench {
    server: Arc<Mutex<Server>>,
    link: watch::Sender<Link>,
    pods: watch::Sender<Arc<SourceSnapshot>>,
    node: watch::Sender<Option<Arc<NodeScheduling>>>,
    objects: watch::Receiver<Arc<NodeObjects>>,
    trouble: watch::Receiver<Option<String>>,
    _tasks: JoinSet<()>,
}

impl Bench {
    fn new() -> Self {
        Self::remembering(SavedAnswers::default(), &[])
    }

    /// A bench whose task knows what an earlier run has saved, and these pods.
    fn remembering(remembered: SavedAnswers, recorded: &[Arc<DesiredPod>]) -> Self {
        let server: Arc<Mutex<Server>> = Arc::default();
        let (link, of_link) = watch::channel(link_to(&server));
        let (pods, of_pods) = watch::channel(snapshot(recorded));
        let (published, objects) = watch::channel(Arc::new(ObjectsTask::nothing()));
        let (node, of_node) = watch::channel(Some(Arc::default()));
        let task = ObjectsTask::new(of_link, of_pods, of_node, published, remembered);
        let trouble = task.trouble();
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(CancellationToken::new()));
        Self { server, link, pods, node, objects, trouble, _tasks: tasks }
    }

    fn server<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        change(&mut self.server.lock().unwrap())
    }

    fn run(&self, pods: &[Arc<DesiredPod>]) {
        self.pods.send_replace(snapshot(pods));
    }

    /// Waits until what is published is as it should be.
    async fn until(&mut self, what: &str, is_so: impl FnMut(&NodeObjects) -> bool) {
        let mut is_so = is_so;
        let waiting = self.objects.wait_for(|objects| is_so(objects));
        let found = tokio::time::timeout(PATIENCE, waiting).await.is_ok_and(|found| found.is_ok());
        assert!(found, "{what}: {:?}", self.objects.borrow());
    }

    /// Waits until an object is seen so: its value of `k`, or what is known instead.
    async fn sees(&mut self, kind: ObjectKind, name: &str, expected: &str) {
        let key = ObjectKey::new(kind, "ns", name);
        let what = format!("{key} is {expected}");
        self.until(&what, |objects| seen(objects, &key) == expected).await;
    }

    /// Waits until no watch of this object goes on.
    async fn closes(&self, key: &str) {
        let open = self.server(|server| server.open(key));
        for stream in open {
            tokio::time::timeout(PATIENCE, stream.closed()).await.unwrap();
        }
    }
}

fn seen(objects: &NodeObjects, key: &ObjectKey) -> String {
    match objects.api.objects.get(key) {
        Some(ObjectAnswer::Found(object)) => object.data["k"].as_text().unwrap().to_owned(),
        Some(ObjectAnswer::Missing) => "missing".to_owned(),
        Some(ObjectAnswer::Refused(why)) => why.to_string(),
        None => "unknown".to_owned(),
    }
}

fn snapshot(pods: &[Arc<DesiredPod>]) -> Arc<SourceSnapshot> {
    let kind = SourceKind::Api;
    Arc::new(SourceSnapshot {
        kind,
        knowledge: Knowledge::Complete,
        pods: pods.to_vec(),
        unconfirmed: BTreeSet::new(),
        ends: BTreeMap::new(),
        view: SourceView::empty(kind, "").into(),
    })
}

/// A pod of namespace `ns`, whose uid is its name, with these projected sources.
fn pod(name: &str, sources: &Value) -> Arc<DesiredPod> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "serviceAccountName": "web",
            "containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "projected": {"sources": sources}}],
        },
    }));
    let origin = Origin { source: SourceKind::Api, location: "api".into(), document: 0, line: 1 };
    Arc::new(DesiredPod {
        key: crate::model::PodKey::new("ns", name),
        uid: name.into(),
        revision: "r".into(),
        pod: Arc::new(pod.unwrap()),
        origin,
    })
}

fn config_map(name: &str) -> Value {
    json!([{"configMap": {"name": name}}])
}

fn token_of(objects: &NodeObjects) -> Option<String> {
    Some(match objects.api.tokens.values().next()? {
        TokenAnswer::Issued(token) => {
            String::from_utf8(token.content().as_bytes().to_vec()).unwrap()
        }
        TokenAnswer::Refused(why) => why.to_string(),
    })
}

use ObjectKind::{ConfigMap, Secret};

#[tokio::test]
async fn an_object_appears_changes_and_disappears() {
    let mut bench = Bench::new();
    bench.run(&[pod("a", &config_map("conf"))]);
    bench.sees(ConfigMap, "conf", "missing").await;
    bench.server(|server| server.put("configmaps/ns/conf", json!({"data": {"k": "1"}})));
    bench.sees(ConfigMap, "conf", "1").await;
    bench.server(|server| server.put("configmaps/ns/conf", json!({"data": {"k": "2"}})));
    bench.sees(ConfigMap, "conf", "2").await;
    bench.server(|server| server.delete("configmaps/ns/conf"));
    bench.sees(ConfigMap, "conf", "missing").await;
    assert!(bench.objects.borrow().known, "no static pod waits for the API server");
}

#[tokio::test]
async fn nothing_is_known_before_the_api_server_answers() {
    let mut bench = Bench::new();
    bench.link.send_replace(None);
    bench.run(&[pod(
        "a",
        &json!([
            {"secret": {"name": "pass"}}, {"serviceAccountToken": {"path": "t"}},
        ]),
    )]);
    bench.sees(Secret, "pass", "unknown").await;
    bench.server(|server| {
        server.put("secrets/ns/pass", json!({"type": "Opaque", "data": {"k": "YQ=="}}));
        server.token_seconds = Some(3600);
    });
    bench.link.send_replace(link_to(&bench.server));
    bench.sees(Secret, "pass", "a").await;
    bench.until("the token comes", |objects| token_of(objects).is_some()).await;
}

#[tokio::test]
async fn pods_share_a_watch_which_closes_after_the_last_one() {
    let mut bench = Bench::new();
    bench.server(|server| server.put("configmaps/ns/conf", json!({"data": {"k": "1"}})));
    let pods = [pod("a", &config_map("conf")), pod("b", &config_map("conf"))];
    bench.run(&pods);
    bench.sees(ConfigMap, "conf", "1").await;
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    bench.run(&pods[1..]);
    bench.server(|server| server.put("configmaps/ns/conf", json!({"data": {"k": "2"}})));
    bench.sees(ConfigMap, "conf", "2").await;
    bench.server(|server| {
        let watched = server.watched.iter().filter(|key| **key == "configmaps/ns/conf");
        assert_eq!(watched.count(), 1);
        assert_eq!(server.open("services").len(), 1);
    });
    bench.run(&[]);
    bench.closes("configmaps/ns/conf").await;
    bench.closes("services").await;
    let nothing = NodeObjects { known: true, ..NodeObjects::default() };
    bench.until("nothing is left", |objects| *objects == nothing).await;
}

#[tokio::test]
async fn an_immutable_object_needs_no_watch() {
    let mut bench = Bench::new();
    let object = json!({"immutable": true, "data": {"k": "1"}});
    bench.server(|server| server.put("configmaps/ns/conf", object));
    bench.run(&[pod("a", &config_map("conf"))]);
    bench.sees(ConfigMap, "conf", "1").await;
    bench.closes("configmaps/ns/conf").await;
    assert_eq!(seen(&bench.objects.borrow(), &ObjectKey::new(ConfigMap, "ns", "conf")), "1");
    bench.run(&[]);
    bench.sees(ConfigMap, "conf", "unknown").await;
    bench.run(&[pod("b", &config_map("conf"))]);
    bench.sees(ConfigMap, "conf", "1").await;
}

#[tokio::test]
async fn data_stay_while_the_api_server_is_away_and_are_read_again_after() {
    let mut bench = Bench::new();
    bench.server(|server| {
        server.put("configmaps/ns/conf", json!({"data": {"k": "1"}}));
        server.put("services/ns/db", json!({"spec": {"clusterIP": "10.0.0.9"}}));
    });
    bench.run(&[pod("a", &config_map("conf")), pod("b", &config_map("new"))]);
    bench.sees(ConfigMap, "conf", "1").await;
    bench.sees(ConfigMap, "new", "missing").await;
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    bench.link.send_replace(None);
    bench.closes("configmaps/ns/conf").await;
    bench.run(&[pod("a", &config_map("conf")), pod("c", &config_map("other"))]);
    bench.sees(ConfigMap, "new", "unknown").await;
    bench.sees(ConfigMap, "conf", "1").await;
    assert!(bench.objects.borrow().api.services.is_some());
    let other: Arc<Mutex<Server>> = Arc::default();
    other.lock().unwrap().put("configmaps/ns/conf", json!({"data": {"k": "2"}}));
    bench.link.send_replace(link_to(&other));
    bench.sees(ConfigMap, "conf", "2").await;
    bench.sees(ConfigMap, "other", "missing").await;
}

#[tokio::test]
async fn a_name_that_no_object_can_have_is_not_asked_for() {
    let mut bench = Bench::new();
    let names = ["a&fieldSelector=metadata.name=b", "..", "A", ""];
    let pods: Vec<_> = names.iter().map(|name| pod("a", &config_map(name))).collect();
    bench.run(&pods);
    for name in names {
        bench.sees(ConfigMap, name, "missing").await;
    }
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    assert_eq!(bench.server(|server| server.watched.clone()), ["services"]);
}

#[tokio::test]
async fn services_of_the_pods_namespaces_are_published() {
    let mut bench = Bench::new();
    bench.server(|server| {
        let spec = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]}});
        for name in ["default/kubernetes", "default/other", "ns/db", "elsewhere/db"] {
            server.put(&format!("services/{name}"), spec.clone());
        }
        server.put("services/ns/headless", json!({"spec": {"clusterIP": "None"}}));
    });
    bench.run(&[pod("a", &json!([]))]);
    let names = |objects: &NodeObjects| {
        let services = objects.api.services.clone()?;
        let all = ["default", "ns", "elsewhere"].into_iter();
        let names = all.flat_map(|of| services.of_namespace(of).map(|one| one.name.to_string()));
        Some(names.collect::<Vec<_>>())
    };
    let expected = Some(vec!["kubernetes".to_owned(), "db".to_owned()]);
    bench.until("two are of interest", |objects| names(objects) == expected).await;
    bench.server(|server| server.delete("services/ns/db"));
    bench.until("one is left", |objects| names(objects).is_some_and(|all| all.len() == 1)).await;
    assert_eq!(*bench.trouble.borrow(), None);
}

#[tokio::test]
async fn a_service_that_is_too_large_takes_nothing_from_others() {
    let mut bench = Bench::new();
    bench.server(|server| {
        let ports = |count| (1..=count).map(|port| json!({"port": port})).collect::<Vec<_>>();
        let spec = |count| json!({"spec": {"clusterIP": "10.0.0.1", "ports": ports(count)}});
        server.put("services/ns/db", spec(1));
        server.put("services/ns/wide", spec(30_000));
    });
    bench.run(&[pod("a", &json!([]))]);
    let known = |objects: &NodeObjects| {
        let services = objects.api.services.clone();
        services.is_some_and(|all| all.of_namespace("ns").map(|one| &*one.name).eq(["db"]))
    };
    bench.until("the other is known", known).await;
    let told = bench.trouble.wait_for(Option::is_some);
    let told = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().clone();
    let expected = "the Service ns/wide is left out: the object has more than 25000 values";
    assert_eq!(told.as_deref(), Some(expected));
}

#[tokio::test]
async fn services_that_may_not_be_watched_are_told() {
    let mut bench = Bench::new();
    bench.server(|server| server.forbidden = Some("services"));
    bench.run(&[pod("a", &json!([]))]);
    let told = bench.trouble.wait_for(Option::is_some);
    let told = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().clone();
    let expected = "Services can't be watched: services is forbidden: Forbidden";
    assert_eq!(told.as_deref(), Some(expected));
    bench.server(|server| server.forbidden = None);
    let over = bench.trouble.wait_for(Option::is_none);
    tokio::time::timeout(PATIENCE, over).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_token_is_fetched_renewed_and_dropped() {
    let mut bench = Bench::new();
    // It is due again after a second.
    bench.server(|server| server.token_seconds = Some(1));
    let sources = json!([{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}]);
    bench.run(&[pod("a", &sources)]);
    for expected in ["web-1", "web-2"] {
        let is_there = |objects: &NodeObjects| token_of(objects).as_deref() == Some(expected);
        bench.until(expected, is_there).await;
    }
    bench.server(|server| {
        let spec = &server.token_requests[0]["spec"];
        assert_eq!(spec["audiences"], json!(["vault"]));
        assert_eq!(spec["expirationSeconds"], 600);
        assert_eq!(spec["boundObjectRef"]["uid"], "a");
    });
    bench.run(&[]);
    bench.until("it is dropped", |objects| objects.api.tokens.is_empty()).await;
}

#[tokio::test]
async fn runtime_classes_are_read_while_a_pod_names_one() {
    let mut bench = Bench::new();
    bench.server(|server| {
        let class = json!({"metadata": {"name": "sandboxed"}, "handler": "runsc"});
        server.objects.insert("runtimeclasses/sandboxed".to_owned(), class);
    });
    bench.run(&[pod("a", &json!([]))]);
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    assert_eq!(bench.server(|server| server.watched.clone()), ["services"]);
    let mut named = (*pod("b", &json!([]))).clone();
    let spec = Arc::make_mut(&mut named.pod).spec.as_mut().unwrap();
    spec.runtime_class_name = Some("sandboxed".to_owned());
    bench.run(&[Arc::new(named)]);
    let handler =
        |objects: &NodeObjects| objects.api.runtime_classes.as_ref()?.get("sandboxed").cloned();
    bench.until("the class is read", |objects| handler(objects).as_deref() == Some("runsc")).await;
    bench.run(&[]);
    bench.closes("runtimeclasses").await;
    bench.until("it is dropped", |objects| objects.api.runtime_classes.is_none()).await;
}

#[tokio::test]
async fn a_claim_is_read_until_it_is_bound() {
    let mut bench = Bench::new();
    let claimed = claiming_pod();
    bench.run(&[Arc::clone(&claimed)]);
    let failed = |objects: &NodeObjects, expected: &str| {
        let answer = ClaimAnswer::Failed(expected.into());
        objects.api.claims.values().eq([&answer])
    };
    let missing = "persistentvolumeclaim \"data\" not found";
    bench.until(missing, |objects| failed(objects, missing)).await;
    let claim = |phase: &str| {
        json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": phase},
        })
    };
    let put = |server: &mut Server, key: &str, object: Value| {
        server.objects.insert(key.to_owned(), object);
    };
    let claim_key = "ns/persistentvolumeclaims/data";
    bench.server(|server| put(server, claim_key, claim("Pending")));
    bench.until("it is pending", |objects| failed(objects, "PVC is not bound")).await;
    bench.server(|server| put(server, claim_key, claim("Bound")));
    let missing = "persistentvolume \"pv\" not found";
    bench.until(missing, |objects| failed(objects, missing)).await;
    bench.server(|server| put(server, "persistentvolumes/pv", local_volume()));
    let is_bound = |objects: &NodeObjects| {
        let mut answers = objects.api.claims.values();
        answers.all(|answer| matches!(answer, ClaimAnswer::Bound(volume) if &*volume.name == "pv"))
    };
    bench.until("it is bound", is_bound).await;
    // The binding is final, so nothing is read again.
    bench.server(|server| server.objects.clear());
    bench.link.send_replace(link_to(&bench.server));
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    assert!(is_bound(&bench.objects.borrow()));
    let saved = bench.objects.borrow().api.to_save().unwrap();
    bench.run(&[]);
    bench.until("it is dropped", |objects| objects.api.claims.is_empty()).await;

    let mut later = Bench::remembering(saved, &[claimed]);
    later.link.send_replace(None);
    later.until("it is remembered", |objects| !objects.api.claims.is_empty()).await;
    assert!(is_bound(&later.objects.borrow()));
    assert!(later.objects.borrow().api.services.is_some());
    // Its namespace may have had no pod when they were saved.
    let new = pod("new", &json!([]));
    let known = |objects: &NodeObjects| {
        [&claiming_pod(), &new].map(|pod| are_services_known(&pod.pod, objects))
    };
    assert_eq!(known(&later.objects.borrow()), [true, false]);
    later.run(&[claiming_pod(), Arc::clone(&new)]);
    later.link.send_replace(link_to(&later.server));
    later.until("Services are read", |objects| known(objects) == [true, true]).await;
}

/// A newer version may mount what an older one could not.
#[tokio::test]
async fn a_saved_volume_of_an_unsupported_kind_is_read_again() {
    let claimed = claiming_pod();
    let source = PersistentSource::Other("nfs".into());
    let (name, mount_options) = ("pv".into(), Vec::new());
    let volume = PersistentVolume { name, is_block: false, source, mount_options, gid: None };
    let key = claim_keys(&claimed.pod).remove(0);
    let claims = vec![(key, Arc::new(volume))];
    let saved = SavedAnswers { claims, ..SavedAnswers::default() };
    let mut bench = Bench::remembering(saved, &[claimed]);
    bench.server(|server| {
        let claim = json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        });
        server.objects.insert("persistentvolumes/pv".to_owned(), local_volume());
        server.objects.insert("ns/persistentvolumeclaims/data".to_owned(), claim);
    });
    let is_local = |objects: &NodeObjects| match objects.api.claims.values().next() {
        Some(ClaimAnswer::Bound(volume)) => {
            matches!(volume.source, PersistentSource::Local { .. })
        }
        _ => false,
    };
    bench.until("it is read", is_local).await;
}

fn local_volume() -> Value {
    let spec = json!({"claimRef": {"uid": "c1"}, "local": {"path": "/disk"}});
    json!({"metadata": {"name": "pv"}, "spec": spec})
}

#[tokio::test]
async fn a_claim_waits_for_the_labels_of_the_node() {
    let mut bench = Bench::new();
    bench.node.send_replace(None);
    bench.run(&[claiming_pod()]);
    bench.until("Services are read", |objects| objects.api.services.is_some()).await;
    bench.server(|server| {
        let mut volume = local_volume();
        let here = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        volume["spec"]["nodeAffinity"] =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}});
        let claim = json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        });
        server.objects.insert("persistentvolumes/pv".to_owned(), volume);
        server.objects.insert("ns/persistentvolumeclaims/data".to_owned(), claim);
    });
    assert!(bench.objects.borrow().api.claims.is_empty(), "the labels are not known");
    let labelled = |value: &str| {
        let labels = [("disk".to_owned(), value.to_owned())].into();
        Some(Arc::new(NodeScheduling { labels, ..NodeScheduling::default() }))
    };
    bench.node.send_replace(labelled("hdd"));
    let elsewhere = ClaimAnswer::Elsewhere("pv".into());
    let is_elsewhere = |objects: &NodeObjects| objects.api.claims.values().eq([&elsewhere]);
    bench.until("it is elsewhere", is_elsewhere).await;
    assert_eq!(bench.objects.borrow().api.to_save().unwrap().claims, []);
    bench.node.send_replace(labelled("ssd"));
    let is_bound = |objects: &NodeObjects| {
        matches!(objects.api.claims.values().next(), Some(ClaimAnswer::Bound(_)))
    };
    bench.until("it is bound", is_bound).await;
    // As with a kubelet, a mounted volume is not given up.
    bench.node.send_replace(labelled("hdd"));
    bench.run(&[claiming_pod(), pod("b", &config_map("conf"))]);
    bench.sees(ConfigMap, "conf", "missing").await;
    assert!(is_bound(&bench.objects.borrow()));
}

/// A pod of namespace `ns` that mounts claim `data`.
fn claiming_pod() -> Arc<DesiredPod> {
    let mut desired = (*pod("a", &json!([]))).clone();
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let spec = Arc::make_mut(&mut desired.pod).spec.as_mut().unwrap();
    spec.volumes = serde_json::from_value(volumes).unwrap();
    Arc::new(desired)
}

#[tokio::test]
async fn a_refused_token_is_told_and_tried_again() {
    let mut bench = Bench::new();
    bench.run(&[pod("a", &json!([{"serviceAccountToken": {"path": "t"}}]))]);
    let refused = "serviceaccounts \"web\" not found: NotFound";
    bench.until("it is refused", |objects| token_of(objects).as_deref() == Some(refused)).await;
    bench.server(|server| server.token_seconds = Some(3600));
    let is_issued =
        |objects: &NodeObjects| token_of(objects).is_some_and(|t| t.starts_with("web-"));
    bench.until("it is issued", is_issued).await;
}
