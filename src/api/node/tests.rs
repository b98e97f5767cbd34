//! The task against an API server that does not keep all that it is told.

use super::*;
use std::sync::Mutex;

/// A Node, and how often it was written.
#[derive(Default)]
struct Api {
    node: Value,
    writes: usize,
}

impl Api {
    /// An older server: it knows no features of the runtime.
    fn patch(&mut self, body: &Value) -> Value {
        self.writes += 1;
        for (field, value) in body["status"].as_object().unwrap() {
            if field != "features" {
                self.node["status"][field] = value.clone();
            }
        }
        self.node.clone()
    }
}

fn clients(api: &Arc<Mutex<Api>>) -> Clients {
    let api = Arc::clone(api);
    Clients::of_server(move |_, _, body| (200, api.lock().unwrap().patch(&body)))
}

#[tokio::test]
async fn what_the_server_does_not_keep_is_not_written_again_and_again() {
    let api: Arc<Mutex<Api>> = Arc::default();
    let clients = clients(&api);
    let registration = Registration::default();
    let mut report = NodeReport { name: "n1".to_owned(), ..NodeReport::default() };
    let new = node::new_node(&registration, &report, clock::now());
    api.lock().unwrap().node = serde_json::to_value(new).unwrap();
    report.features = Some(k8s::NodeFeatures { supplemental_groups_policy: Some(true) });
    let (published, state) = watch::channel(NodeState::default());
    let (events, ..) = crate::event::channel();
    let task = NodeTask {
        registration,
        // Nobody who writes something else is waited for.
        periods: ReportPeriods { update: Duration::ZERO, report: Duration::from_secs(300) },
        report: watch::channel(None).1,
        link: watch::channel(None).1,
        picture: watch::channel(Arc::default()).1,
        registered: watch::channel(None).0,
        scheduling: watch::channel(None).0,
        wanted: watch::channel(Duration::ZERO).1,
        published,
        events,
    };
    let mut memory = NodeMemory::new(task.periods);
    let mut write = async |report: &NodeReport| {
        let seen = serde_json::from_value(api.lock().unwrap().node.clone()).unwrap();
        task.report(&clients, &Arc::new(report.clone()), &seen, &mut memory).await.unwrap();
        api.lock().unwrap().writes
    };
    assert_eq!([write(&report).await, write(&report).await, write(&report).await], [1, 1, 1]);
    let notes = state.borrow().notes.join("\n");
    assert!(notes.contains("does not keep") && notes.contains("features"), "{notes}");
    // Whatever else changes is written.
    report.conditions.runtime = vec!["not now".to_owned()];
    assert_eq!([write(&report).await, write(&report).await], [2, 2]);
    report.features = None;
    report.conditions.runtime.clear();
    assert_eq!([write(&report).await, write(&report).await], [3, 3]);
    assert!(!state.borrow().notes.join("\n").contains("does not keep"));
}

#[tokio::test]
async fn the_node_is_registered_only_once_its_watch_is_whole() {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&requests);
    let clients = Clients::of_server(move |method, _, body| {
        seen.lock().unwrap().push(method.to_string());
        (200, body)
    });
    let report = NodeReport { name: "n1".to_owned(), ..NodeReport::default() };
    let (picture, shown) = watch::channel(Arc::default());
    let (events, ..) = crate::event::channel();
    let mut task = NodeTask {
        registration: Registration { enabled: true, ..Registration::default() },
        periods: ReportPeriods {
            update: Duration::from_secs(10),
            report: Duration::from_secs(300),
        },
        report: watch::channel(Some(Arc::new(report))).1,
        link: watch::channel(Some(Arc::new(clients))).1,
        picture: shown,
        registered: watch::Sender::default(),
        scheduling: watch::Sender::default(),
        wanted: watch::channel(Duration::ZERO).1,
        published: watch::Sender::default(),
        events,
    };
    let mut memory = NodeMemory::new(task.periods);
    task.pass(&mut memory).await;
    assert!(requests.lock().unwrap().is_empty(), "nobody knows whether it is there");
    picture.send_replace(Arc::new(WatchCache { whole: true, live: true, ..WatchCache::default() }));
    task.pass(&mut memory).await;
    assert_eq!(*requests.lock().unwrap(), ["POST"]);
    assert_eq!(task.registered.borrow().as_ref().map(|node| node.name.as_str()), Some("n1"));
}

/// A watch that shows this Node.
fn picture(node: &Value) -> Arc<WatchCache<k8s::Node>> {
    let node: k8s::Node = serde_json::from_value(node.clone()).unwrap();
    let objects = [(node.key(), Arc::new(node))].into();
    Arc::new(WatchCache { objects, whole: true, live: true, ..WatchCache::default() })
}

#[tokio::test]
async fn labels_and_taints_are_published_when_they_change() {
    let (events, ..) = crate::event::channel();
    let (sender, shown) = watch::channel(Arc::default());
    let (published, mut scheduling) = watch::channel(None);
    let periods =
        ReportPeriods { update: Duration::from_secs(10), report: Duration::from_secs(300) };
    let mut task = NodeTask {
        registration: Registration::default(),
        periods,
        report: watch::channel(None).1,
        link: watch::channel(None).1,
        picture: shown,
        registered: watch::Sender::default(),
        scheduling: published,
        wanted: watch::channel(Duration::ZERO).1,
        published: watch::Sender::default(),
        events,
    };
    let mut memory = NodeMemory::new(periods);
    task.pass(&mut memory).await;
    assert!(!scheduling.has_changed().unwrap(), "the Node was not seen yet");
    let mut node = json!({
        "metadata": {"name": "n1", "labels": {"disk": "ssd"}},
        "spec": {"taints": [{"key": "gpu", "effect": "NoExecute"}]},
    });
    sender.send_replace(picture(&node));
    task.pass(&mut memory).await;
    let seen = scheduling.borrow_and_update().clone().unwrap();
    assert_eq!(seen.labels, [("disk".to_owned(), "ssd".to_owned())].into());
    assert_eq!(seen.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["gpu"]);
    node["status"] = json!({"phase": "Running"});
    sender.send_replace(picture(&node));
    task.pass(&mut memory).await;
    assert!(!scheduling.has_changed().unwrap(), "a new status changes nothing");
    node["spec"] = json!({});
    sender.send_replace(picture(&node));
    task.pass(&mut memory).await;
    assert!(scheduling.borrow_and_update().as_ref().unwrap().taints.is_empty());
}

/// The watch of pods may be ahead of the watch of the Node.
#[tokio::test]
async fn the_node_is_read_once_for_a_pod_that_its_labels_refuse() {
    let node = |version: &str, disk: &str| {
        let labels = json!({"disk": disk});
        json!({"metadata": {"name": "n1", "resourceVersion": version, "labels": labels}})
    };
    let reads: Arc<Mutex<(usize, u16)>> = Arc::new(Mutex::new((0, 500)));
    let (of_server, newer) = (Arc::clone(&reads), node("2", "ssd"));
    let clients = Clients::of_server(move |method, _, body| {
        if method != http::Method::GET {
            return (200, body);
        }
        let mut reads = of_server.lock().unwrap();
        reads.0 += 1;
        (reads.1, newer.clone())
    });
    let report = NodeReport { name: "n1".to_owned(), ..NodeReport::default() };
    let (events, ..) = crate::event::channel();
    let (wanted, since) = watch::channel(Duration::ZERO);
    let (published, scheduling) = watch::channel(None);
    let periods =
        ReportPeriods { update: Duration::from_secs(10), report: Duration::from_secs(300) };
    let mut task = NodeTask {
        registration: Registration::default(),
        periods,
        report: watch::channel(Some(Arc::new(report))).1,
        link: watch::channel(Some(Arc::new(clients))).1,
        picture: watch::channel(picture(&node("1", "hdd"))).1,
        registered: watch::Sender::default(),
        scheduling: published,
        wanted: since,
        published: watch::Sender::default(),
        events,
    };
    let mut memory = NodeMemory::new(periods);
    let shown = || {
        let node: Arc<NodeScheduling> = scheduling.borrow().clone().unwrap();
        (node.labels["disk"].clone(), node.read_at)
    };
    task.pass(&mut memory).await;
    assert_eq!((reads.lock().unwrap().0, shown()), (0, ("hdd".to_owned(), Duration::ZERO)));
    let came = clock::now().boot;
    wanted.send_replace(came);
    task.pass(&mut memory).await;
    assert_eq!((reads.lock().unwrap().0, shown().1), (1, Duration::ZERO), "no answer, no refusal");
    reads.lock().unwrap().1 = 200;
    task.pass(&mut memory).await;
    let (disk, read_at) = shown();
    assert_eq!(disk, "ssd", "the watch has not shown it");
    assert!(read_at >= came);
    task.pass(&mut memory).await;
    assert_eq!((reads.lock().unwrap().0, shown()), (2, ("ssd".to_owned(), read_at)));
}
