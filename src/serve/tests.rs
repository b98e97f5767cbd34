use super::{client::FollowLines, *};
use crate::{
    model::{Event, EventKind, EventTarget, PodView, k8s},
    skips::say_skipped,
};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A running server with the ends that an agent would hold.
struct Rig {
    dir: TempDir,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
    commands: mpsc::Receiver<Command>,
    pods: watch::Sender<Arc<PodViews>>,
    heartbeat: watch::Sender<Duration>,
    events: crate::event::Recorder,
}

fn pod(name: &str) -> (PodKey, Arc<PodView>) {
    let key = PodKey::new("default", name);
    let spec = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let view = PodView {
        key: key.clone(),
        uid: "u1".into(),
        pod: Some(Arc::new(serde_json::from_value(spec).unwrap())),
        status: Arc::new(k8s::PodStatus { phase: Some("Running".into()), ..Default::default() }),
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
    };
    (key, Arc::new(view))
}

fn settings(dir: &Path, healthz: Option<SocketAddr>) -> ServeSettings {
    ServeSettings {
        run_dir: dir.join("run"),
        healthz,
        read_only: None,
        pod_logs_dir: "/logs".into(),
        machine: MachineFacts::default(),
        configuration: "{}".into(),
        stream_idle: Duration::from_secs(60),
        sync_frequency: Duration::from_secs(60),
    }
}

/// A source that never answers.
fn no_stats() -> StatsSource {
    StatsSource {
        collect: Arc::new(|_| Box::pin(std::future::pending())),
        measure_logs: Arc::new(|| Box::pin(std::future::pending())),
        measure_claims: Arc::new(|| Box::pin(std::future::pending())),
    }
}

/// Graphs for which no samples are taken.
fn no_graphs() -> Graphs {
    let (looks, history) = (watch::channel(Duration::ZERO).0, watch::channel(Arc::default()).1);
    Graphs { looks, history }
}

/// One that is not there.
fn runtime() -> RuntimeClient {
    RuntimeClient::new("unix:///nowhere.sock", None, Duration::from_secs(1)).unwrap()
}

fn start(healthz: Option<SocketAddr>) -> Rig {
    let dir = TempDir::new().unwrap();
    let (pods, pods_seen) = watch::channel(Arc::new([pod("a"), pod("b")].into_iter().collect()));
    let node = NodeView { name: "n1".into(), ..NodeView::default() };
    let (heartbeat, beats) = watch::channel(Duration::ZERO);
    let (events, event_task, log) = crate::event::channel();
    let views = Views {
        pods: pods_seen,
        probes: watch::channel(ProbeViews::new()).1,
        node: watch::channel(Arc::new(node)).1,
        events: log,
        heartbeats: vec![beats],
        stats: no_stats(),
        graphs: no_graphs(),
    };
    let (sender, commands) = mpsc::channel(4);
    let server =
        Server::bind(settings(dir.path(), healthz), views, sender, runtime(), None).unwrap();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(watch::channel(0).1, shutdown.clone()));
    tasks.spawn(event_task.run(shutdown.clone()));
    Rig { dir, tasks, shutdown, commands, pods, heartbeat, events }
}

impl Rig {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("run").join(SOCKET_NAME)
    }

    fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    /// The whole answer to a raw request.
    async fn raw(&self, request: &'static str) -> String {
        let socket = self.socket();
        tokio::task::spawn_blocking(move || ask(UnixStream::connect(socket).unwrap(), request))
            .await
            .unwrap()
    }
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn tells_pods_node_and_events() {
    let rig = start(None);
    let key = PodKey::new("default", "a");
    rig.events.record(Event {
        target: EventTarget::Pod { key, uid: "u1".into(), field_path: None },
        kind: EventKind::Normal,
        reason: "Pulled",
        message: "m".into(),
    });
    let mut document = rig.client().status().await.unwrap();
    for _ in 0..100 {
        if !document.events.is_empty() {
            break;
        }
        tokio::task::yield_now().await;
        document = rig.client().status().await.unwrap();
    }
    let names: Vec<_> = document.pods.iter().map(|p| p.key.to_string()).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(document.node.name, "n1");
    assert_eq!(document.events[0].reason.as_deref(), Some("Pulled"));
    assert_eq!(document.pod_logs_dir, Path::new("/logs"));
    rig.pods.send_replace(Arc::default());
    assert!(rig.client().status().await.unwrap().pods.is_empty());
}

#[tokio::test]
async fn serves_kubernetes_lists() {
    let rig = start(None);
    let answer = rig.raw("GET /pods HTTP/1.0\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/json"), "{head}");
    let list: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"PodList".into(), &"v1".into()));
    assert_eq!(list["items"][1]["metadata"]["name"], "b");
    assert_eq!(list["items"][1]["metadata"]["uid"], "u1");
    assert_eq!(list["items"][1]["status"]["phase"], "Running");
    let answer = rig.raw("GET /pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(body), "chunked: {answer}");
    let answer = rig.raw("GET /events HTTP/1.0\r\n\r\n").await;
    assert!(
        answer.contains(r#""kind":"EventList""#) && answer.ends_with("\"items\":[]}\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn refuses_other_paths_methods_and_long_requests() {
    let rig = start(None);
    let answer = rig.raw("GET /secrets HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains("404 ") && answer.ends_with("404: Page Not Found"), "{answer}");
    let answer = rig.raw("DELETE /pods HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains("405 ") && answer.ends_with("405: Method Not Allowed"), "{answer}");
    let long: &'static str = Box::leak(
        format!("GET /status HTTP/1.0\r\nX: {}\r\n\r\n", "x".repeat(400_000)).into_boxed_str(),
    );
    let socket = rig.socket();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        // The server may close before it has read everything.
        let written = stream.write_all(long.as_bytes());
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        (written.is_ok() || read.is_ok() || answer.is_empty(), String::from_utf8(answer).unwrap())
    });
    let (_, answer) = answer.await.unwrap();
    assert!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
    assert!(rig.client().status().await.is_ok());
}

#[tokio::test]
async fn passes_on_what_is_to_be_forgotten() {
    let mut rig = start(None);
    let client = rig.client();
    let key = PodKey::new("default", "a");
    let asked = client.forget(&key);
    let agent = async {
        let Some(Command::Forget { key, reply }) = rig.commands.recv().await else { panic!() };
        assert_eq!(key.to_string(), "default/a");
        let location = "/m/a.yaml".into();
        reply.send(ForgetAnswer::Forgotten { location, waits: false }).unwrap();
    };
    let (answer, ()) = tokio::join!(asked, agent);
    let location = "/m/a.yaml".into();
    assert_eq!(answer.unwrap(), ForgetAnswer::Forgotten { location, waits: false });

    drop(rig.commands);
    let answer = client.forget(&key).await.unwrap();
    assert!(matches!(answer, ForgetAnswer::Failed { .. }), "{answer:?}");
}

#[tokio::test]
async fn passes_on_what_a_person_asks_of_a_pod() {
    let mut rig = start(None);
    let client = rig.client();
    let key = PodKey::new("default", "a");
    for asked in
        [Ask::Restart { container: None }, Ask::Restart { container: Some("c".into()) }, Ask::Retry]
    {
        let agent = async {
            let Some(Command::Ask { key, ask, reply }) = rig.commands.recv().await else {
                panic!()
            };
            reply.send(AskAnswer::Taken { message: key.to_string() }).unwrap();
            ask
        };
        let (answer, passed) = tokio::join!(client.tell(&key, asked.clone()), agent);
        assert_eq!(answer.unwrap(), AskAnswer::Taken { message: "default/a".into() });
        assert_eq!(passed, asked);
    }
    drop(rig.commands);
    let answer = client.tell(&key, Ask::Retry).await.unwrap();
    assert!(matches!(answer, AskAnswer::Refused { .. }), "{answer:?}");
}

#[tokio::test]
async fn the_socket_is_for_root_and_goes_with_the_server() {
    let mut rig = start(None);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&rig.socket()), 0o600);
    assert_eq!(mode(&rig.dir.path().join("run")), 0o700);
    rig.shutdown.cancel();
    while rig.tasks.join_next().await.is_some() {}
    assert!(!rig.socket().exists());
    let error = rig.client().status().await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
}

#[tokio::test]
async fn replaces_a_dead_socket_and_spares_a_living_one() {
    let rig = start(None);
    let bind = |dir: &Path| {
        let (_, pods) = watch::channel(Arc::default());
        let (_, node) = watch::channel(Arc::default());
        let (_, heartbeat) = watch::channel(Duration::ZERO);
        let (_, _, events) = crate::event::channel();
        let probes = watch::channel(ProbeViews::new()).1;
        let (heartbeats, stats, graphs) = (vec![heartbeat], no_stats(), no_graphs());
        let views = Views { pods, probes, node, events, heartbeats, stats, graphs };
        Server::bind(settings(dir, None), views, mpsc::channel(1).0, runtime(), None)
    };
    let error = bind(rig.dir.path()).unwrap_err();
    assert!(matches!(error, ServeError::InUse(_)), "{error}");
    assert!(rig.client().status().await.is_ok(), "still there");

    let dir = TempDir::new().unwrap();
    let path = dir.path().join("run").join(SOCKET_NAME);
    fs::create_dir(dir.path().join("run")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = Client::new(&path).status().await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    bind(dir.path()).unwrap();

    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    let error = bind(dir.path()).unwrap_err();
    assert!(matches!(error, ServeError::InTheWay(_)), "{error}");
}

#[tokio::test]
async fn the_health_port_tells_whether_the_main_loop_comes_round() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let rig = start(Some(address));
    let get = |path: &'static str| async move {
        let asked = tokio::task::spawn_blocking(move || {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
            loop {
                match TcpStream::connect(address) {
                    Ok(stream) => return ask(stream, &format!("GET {path} HTTP/1.0\r\n\r\n")),
                    Err(e) => assert!(tokio::time::Instant::now() < deadline, "{e}"),
                }
            }
        });
        let answer = asked.await.unwrap();
        let code = answer.split(' ').nth(1).unwrap().to_owned();
        (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    };
    let ok = ("200".to_owned(), "ok".to_owned());
    assert_eq!(get("/healthz").await, ok);
    assert_eq!(get("/healthz/ping").await, ok);
    assert_eq!(get("/healthz/log").await, ok);
    assert_eq!(get("/healthz/syncloop").await, ok);
    let (_, text) = get("/healthz?verbose").await;
    assert_eq!(text, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n");
    assert_eq!(get("/healthz/other").await.0, "404");
    assert_eq!(get("/status").await.0, "404", "the port tells nothing else");

    let now = crate::clock::awake();
    if now < Duration::from_secs(301) {
        say_skipped(
            "a machine that is awake for less than five minutes has no heartbeat that is late",
        );
        return;
    }
    rig.heartbeat.send_replace(now - Duration::from_secs(290));
    assert_eq!(get("/healthz").await, ok);
    rig.heartbeat.send_replace(now - Duration::from_secs(301));
    let (code, text) = get("/healthz").await;
    assert_eq!(code, "500");
    assert_eq!(
        text,
        "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"
    );
    let (code, text) = get("/healthz/syncloop").await;
    assert_eq!(code, "500");
    assert_eq!(text, "internal server error: sync Loop took longer than expected\n");
    let (code, text) = get("/healthz?verbose&exclude=syncloop").await;
    assert_eq!(code, "200");
    assert!(text.contains("[+]syncloop excluded: ok\n"), "{text}");
    assert_eq!(get("/healthz/ping").await, ok);
}

#[tokio::test]
async fn silent_clients_on_the_socket_give_way_to_new_ones() {
    let rig = start(None);
    let socket = rig.socket();
    let half: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nX").unwrap();
            stream
        })
        .collect();
    assert!(rig.client().status().await.is_ok());
    drop(half);
}

#[tokio::test]
async fn clients_that_read_no_answer_give_way_to_new_ones() {
    let rig = start(None);
    let large = (0..1_000).map(|number| pod(&format!("pod-{number}")));
    rig.pods.send_replace(Arc::new(large.collect()));
    let socket = rig.socket();
    let unread: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert_eq!(rig.client().status().await.unwrap().pods.len(), 1_000);
    drop(unread);
}

#[tokio::test]
async fn a_long_answer_comes_in_parts_and_is_complete() {
    let rig = start(None);
    let large = (0..1_000).map(|number| pod(&format!("pod-{number}")));
    rig.pods.send_replace(Arc::new(large.collect()));
    let answer = rig.raw("GET /pods HTTP/1.0\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(body.len() > 100_000 && !head.contains("content-length"), "{head}");
    let list: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1_000);
    assert_eq!(rig.client().status().await.unwrap().pods.len(), 1_000);
}

#[tokio::test]
async fn a_connection_carries_one_request() {
    let rig = start(None);
    let request = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n";
    let pipelined: &'static str = Box::leak(request.repeat(100).into_boxed_str());
    let answer = rig.raw(pipelined).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
}

fn pulled(message: &str) -> Event {
    let key = PodKey::new("default", "a");
    let target = EventTarget::Pod { key, uid: "u1".into(), field_path: None };
    Event { target, kind: EventKind::Normal, reason: "Pulled", message: message.to_owned() }
}

/// The next event of a follower.
async fn followed(lines: &mut FollowLines) -> Option<String> {
    loop {
        match tokio::time::timeout(Duration::from_secs(10), lines.next()).await.unwrap() {
            Ok(FollowLine::Event(event)) => return event.message,
            Ok(FollowLine::Begun) => {}
            other => panic!("{other:?}"),
        }
    }
}

const EVENTS: &str = "/events?watch=true";

#[tokio::test]
async fn a_follower_gets_what_there_is_and_then_each_event() {
    let mut rig = start(None);
    rig.events.record(pulled("first"));
    let mut lines = rig.client().follow(EVENTS).await.unwrap();
    assert_eq!(followed(&mut lines).await.as_deref(), Some("first"));
    for message in ["second", "third"] {
        rig.events.record(pulled(message));
        assert_eq!(followed(&mut lines).await.as_deref(), Some(message));
    }
    rig.shutdown.cancel();
    while rig.tasks.join_next().await.is_some() {}
    let error = lines.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Ended { .. }), "{error}");
}

#[tokio::test]
async fn followers_beyond_their_places_are_refused_until_one_goes() {
    let rig = start(None);
    let client = rig.client();
    let mut followers = Vec::new();
    for _ in 0..follow::FOLLOWERS {
        followers.push(client.follow(EVENTS).await.unwrap());
    }
    let error = client.follow(EVENTS).await.unwrap_err();
    assert!(error.to_string().contains("429 Too Many Requests 8 other commands"), "{error}");
    for _ in 0..100 {
        assert!(client.status().await.is_ok());
    }
    followers.pop();
    let begun = tokio::time::Instant::now();
    while let Err(error) = client.follow(EVENTS).await {
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
        tokio::task::yield_now().await;
    }
    rig.events.record(pulled("all are still there"));
    for lines in &mut followers {
        assert_eq!(followed(lines).await.as_deref(), Some("all are still there"));
    }
}
