//! The HTTPS API of the node: kubectl reaches into pods through the API server, and nobody gets in
//! without a permission.

use super::{
    controlplane::{
        ControlPlane, Options,
        client::Client,
        pki::{Authority, Identity, Validity},
    },
    programs,
    support::{
        agent::{NODE_NAME, Settings},
        block_on,
        images::BUSYBOX,
        manifest::Pod,
        program, skip_without_containerd,
        skips::skip_without,
        status::exchange,
        wait_until,
        world::{Kind, World, full_name},
    },
};
use futures_util::future::select_all;
use hyper::Method;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep};

pub(super) const SOON: Duration = Duration::from_secs(60);

/// Every path, and one that does not exist.
pub(super) const PATHS: [(Method, &str); 24] = [
    (Method::GET, "/healthz"),
    (Method::GET, "/healthz/ping"),
    (Method::GET, "/pods"),
    (Method::GET, "/pods/"),
    (Method::GET, "/runningpods/"),
    (Method::POST, "/exec/default/web-n1/main?command=id&output=1"),
    (Method::GET, "/exec/default/web-n1/main?command=id&output=1"),
    (Method::POST, "/attach/default/web-n1/main?output=1"),
    (Method::POST, "/portForward/default/web-n1"),
    (Method::POST, "/checkpoint/default/web-n1/main"),
    (Method::GET, "/logs/"),
    (Method::GET, "/logs/../../etc/shadow"),
    (Method::GET, "/%70ods"),
    (Method::GET, "/nothing/is//here"),
    (Method::GET, "/containerLogs/default/web-n1/main"),
    (Method::POST, "/run/default/web-n1/main?cmd=id"),
    (Method::GET, "/metrics"),
    (Method::GET, "/stats/summary"),
    (Method::GET, "/metrics/cadvisor"),
    (Method::DELETE, "/metrics/slis"),
    (Method::GET, "/configz"),
    (Method::GET, "/ui"),
    (Method::GET, "/flagz"),
    (Method::GET, "/statusz"),
];

/// Where the agent's API listens.
pub(super) fn api(world: &World) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, world.agent.api_port()).into()
}

/// Where the files of these tests are.
fn file(world: &World, name: &str) -> PathBuf {
    world.slot.dir().join(name)
}

/// Replaces a file, as careful people do.
pub(super) fn put(world: &World, name: &str, content: &str) -> PathBuf {
    let path = file(world, name);
    let whole = path.with_extension("new");
    fs::write(&whole, content).unwrap();
    fs::rename(&whole, &path).unwrap();
    path
}

/// The agent shows a certificate for 127.0.0.1 of this authority.
pub(super) fn shows(world: &World, authority: &Authority) {
    let identity = authority.server(&[Ipv4Addr::LOCALHOST.into()]);
    let key = put(world, "tls.key", &identity.key_pem);
    let certificate = put(world, "tls.crt", &identity.certificate_pem);
    world.agent.add_flag(format!("--tls-cert-file={}", certificate.display()));
    world.agent.add_flag(format!("--tls-private-key-file={}", key.display()));
}

/// The agent believes client certificates of this authority.
pub(super) fn believes(world: &World, authority: &Authority) {
    let path = put(world, "clients.crt", authority.pem());
    world.agent.add_flag(format!("--client-ca-file={}", path.display()));
}

/// The status of an answer; 0 when there is none.
pub(super) fn status(client: &Client, method: &Method, path: &str) -> u16 {
    client.send(method.clone(), path, None).map_or(0, |answer| answer.status)
}

#[track_caller]
pub(super) fn wait_served(client: &Client) {
    wait_until("the API answers", SOON, || status(client, &Method::GET, "/healthz"), |s| *s != 0);
}

/// A node of a control plane, which believes client certificates of the cluster. The agent does not
/// run yet.
pub(super) fn member(kind: Kind) -> Option<(World, ControlPlane)> {
    member_with(kind, "", &Options::default())
}

/// As [`member`], with more lines of the agent's configuration and a control plane of one's own.
pub(super) fn member_with(
    kind: Kind,
    lines: &str,
    options: &Options,
) -> Option<(World, ControlPlane)> {
    if matches!(kind, Kind::Real) && skip_without_containerd() {
        return None;
    }
    let programs = programs()?;
    let lines = format!("crashLoopBackOff: {{ maxContainerRestartPeriod: 1s }}\n{lines}");
    let world = World::prepare(kind, &Settings::for_kind(kind).kubelet(&lines));
    let plane = ControlPlane::start(&world.slot, &programs, options);
    world.agent.join(&plane.node_kubeconfig(NODE_NAME, plane.address()));
    believes(&world, &plane.authority());
    Some((world, plane))
}

#[test]
fn kubectl_reaches_into_pods() {
    let Some((world, plane)) = member(Kind::Real) else { return };
    world.agent.start();
    let reads = json!(["sh", "-c", "read line; echo got $line; exec sleep 1000"]);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(
        &Pod::running("talk").set("containers/0/command", reads).set("containers/0/stdin", true),
    );
    let serves = "mkdir /www && echo hello > /www/index.html && exec httpd -f -p 8080 -h /www";
    world.drop_pod(
        &Pod::running("http")
            .set("containers/0/image", BUSYBOX)
            .set("containers/0/command", json!(["sh", "-c", serves])),
    );
    let (web, talk, http) = (full_name("web"), full_name("talk"), full_name("http"));
    for pod in ["web", "talk", "http"] {
        world.wait_running(pod);
        let mirror = format!("/api/v1/namespaces/default/pods/{}", full_name(pod));
        wait_until(
            "it is shown",
            SOON,
            || plane.admin.find(&mirror),
            |found| found.as_ref().is_some_and(|pod| pod["status"]["phase"] == "Running"),
        );
    }
    // A command: its output, its input up to the end, its exit code.
    let text = plane.kubectl_text(&["exec", &web, "--", "echo", "hello"]);
    assert_eq!(text, "hello\n");
    let admin = plane.admin_kubeconfig();
    let many = "0123456789abcdef\n".repeat(20_000);
    let copied = plane.kubectl_as(&admin, &["exec", "-i", &web, "--", "cat"], &many);
    assert_eq!(String::from_utf8(copied.stdout).unwrap(), many);
    let failed = plane.kubectl(&["exec", &web, "--", "sh", "-c", "echo no >&2; exit 7"]);
    let errors = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(7), "{errors}");
    assert!(errors.contains("no\n"), "{errors}");
    let missing = plane.kubectl(&["exec", &web, "-c", "other", "--", "true"]);
    assert!(!missing.status.success());

    // A file, both ways.
    let file = world.slot.dir().join("file");
    fs::write(&file, &many).unwrap();
    plane.kubectl_text(&["cp", file.to_str().unwrap(), &format!("{web}:/tmp/file")]);
    let back = world.slot.dir().join("back");
    plane.kubectl_text(&["cp", &format!("{web}:/tmp/file"), back.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&back).unwrap(), many);

    reads_logs(&world, &plane);
    attaches_and_forwards(&world, &plane, &talk, &http);

    // The node itself, as the API server passes it on.
    let proxied = |path: &str| {
        plane.kubectl_text(&["get", "--raw", &format!("/api/v1/nodes/{NODE_NAME}/proxy{path}")])
    };
    assert_eq!(proxied("/healthz"), "ok");
    for path in ["/pods", "/runningpods/"] {
        let list: serde_json::Value = serde_json::from_str(&proxied(path)).unwrap();
        assert_eq!(
            (&list["kind"], list["items"].as_array().unwrap().len()),
            (&"PodList".into(), 3)
        );
    }
    let configuration: Value = serde_json::from_str(&proxied("/configz")).unwrap();
    let configured = &configuration["kubeletconfig"];
    assert_eq!(configured["kind"], "KubeletConfiguration", "{configured}");
    assert_eq!(configured["crashLoopBackOff"]["maxContainerRestartPeriod"], "1s");
    assert_eq!(configured["cgroupDriver"], "cgroupfs");
    let run = |command: &str| {
        let path = format!("/api/v1/nodes/{NODE_NAME}/proxy/run/default/{web}/main?cmd={command}");
        plane.admin.send(Method::POST, &path, None).unwrap()
    };
    let (ran, failed) = (run("echo%20a%20b"), run("false"));
    assert_eq!((ran.status, &*ran.text), (200, "a b\n"));
    assert_eq!((failed.status, &*failed.text), (500, "command terminated with exit code 1: "));
    let node = plane.admin.get(&format!("/api/v1/nodes/{NODE_NAME}"));
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    assert_eq!(*port, world.agent.api_port());
    world.finish();
}

/// Connections of clients to the HTTPS API.
fn connections(world: &World) -> usize {
    let port = format!(":{:04X} ", world.agent.api_port());
    let of_server = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| format!("{local} ").ends_with(&port));
        local && fields.nth(1) == Some("01")
    };
    // The API listens on an IPv6 socket, for IPv4 as well.
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    tables.iter().flatten().map(|table| table.lines().filter(of_server).count()).sum()
}

#[test]
fn the_api_server_follows_many_logs_on_few_connections() {
    const MANY: usize = 30;
    let Some((world, plane)) = member(Kind::Real) else { return };
    world.agent.start();
    world.drop_pod(&Pod::with_main("says", "echo '{}'; exec sleep 1000"));
    world.wait_running("says");
    let pod = format!("/api/v1/namespaces/default/pods/{}", full_name("says"));
    let runs = |found: &Option<Value>| {
        found.as_ref().is_some_and(|pod| pod["status"]["phase"] == "Running")
    };
    wait_until("it is shown", SOON, || plane.admin.find(&pod), runs);
    let log = format!("{pod}/log?follow=true");
    let files = || world.agent.usage().fds;
    let before = files();
    let lines = AtomicUsize::new(0);
    let all_say = async {
        let begun = Instant::now();
        while lines.load(Ordering::Relaxed) < MANY {
            assert!(begun.elapsed() < SOON, "{lines:?} of {MANY} logs have come");
            sleep(Duration::from_millis(50)).await;
        }
        connections(&world)
    };
    let followed = (0..MANY).map(|_| {
        plane.admin.watch(&log, |_| {
            lines.fetch_add(1, Ordering::Relaxed);
        })
    });
    let held = block_on(async {
        tokio::select! {
            held = all_say => held,
            ended = select_all(followed.map(Box::pin)) => panic!("a log has ended: {:?}", ended.0),
        }
    });
    assert!((1..=MANY / 2).contains(&held), "{held} connections");
    let gone = |now: &u64| *now <= before + u64::try_from(held).unwrap();
    wait_until("no log is followed any more", SOON, files, gone);
    world.finish();
}

fn reads_logs(world: &World, plane: &ControlPlane) {
    // The runtime reads the two outputs on their own.
    let says = "waits() { while [ ! -e $1 ]; do sleep 0.1; done; }; \
                n=0; while [ $n -lt 1000 ]; do echo line $n; n=$((n+1)); done; waits /tmp/err; \
                echo no >&2; waits /tmp/go; echo last words; exit 3";
    world.drop_pod(&Pod::with_main("says", says));
    world.wait_running("says");
    let says = full_name("says");
    let mirror = format!("/api/v1/namespaces/default/pods/{says}");
    wait_until("it is shown", SOON, || plane.admin.find(&mirror), Option::is_some);
    let logs = |more: &[&str]| {
        let mut words = vec!["logs", &*says];
        words.extend(more);
        plane.kubectl_text(&words)
    };
    wait_until("all was written", SOON, || logs(&[]), |text| text.ends_with("line 999\n"));
    plane.kubectl_text(&["exec", &says, "--", "touch", "/tmp/err"]);
    wait_until("errors are, too", SOON, || logs(&[]), |text| text.ends_with("line 999\nno\n"));
    assert_eq!(logs(&[]).lines().count(), 1001);
    assert_eq!(logs(&["--tail=2"]), "line 999\nno\n");
    assert_eq!(logs(&["--limit-bytes=10"]), "line 0\nlin");
    assert_eq!(logs(&["--since=1h", "--tail=1"]), "no\n");
    let stamped = logs(&["--timestamps", "--tail=1"]);
    let (time, text) = stamped.split_once(' ').unwrap();
    assert!(time.ends_with('Z') && time.len() == 30 && text == "no\n", "{stamped}");
    let previous = plane.kubectl(&["logs", &says, "--previous"]);
    let error = String::from_utf8(previous.stderr).unwrap();
    assert!(error.contains("previous terminated container"), "{error}");
    // What comes later, up to the end of the container.
    let admin = plane.admin_kubeconfig();
    let output = tempfile::NamedTempFile::new().unwrap();
    let followed = || fs::read_to_string(output.path()).unwrap();
    let mut following = plane.kubectl_command(&admin, &["logs", "-f", "--tail=1", &says]);
    let mut following = following.stdout(output.reopen().unwrap()).spawn().unwrap();
    wait_until("it follows", SOON, followed, |text| text == "no\n");
    let count = || world.agent.usage().fds;
    let before = count();
    let mut gone = plane.kubectl_command(&admin, &["logs", "-f", &says]).spawn().unwrap();
    wait_until("another one follows", SOON, count, |fds| *fds > before);
    gone.kill().unwrap();
    gone.wait().unwrap();
    plane.kubectl_text(&["exec", &says, "--", "touch", "/tmp/go"]);
    following.wait().unwrap();
    assert_eq!(followed(), "no\nlast words\n");
    wait_until(
        "the last run is told",
        SOON,
        || plane.kubectl(&["logs", &says, "-p"]),
        |output| String::from_utf8_lossy(&output.stdout).ends_with("last words\n"),
    );
    world.remove("says.yaml");
    world.wait_gone("says");
}

fn attaches_and_forwards(world: &World, plane: &ControlPlane, talk: &str, http: &str) {
    let admin = plane.admin_kubeconfig();
    let mut attached = plane.kubectl_command(&admin, &["attach", "-i", talk]).spawn().unwrap();
    let mut input = attached.stdin.take().unwrap();
    input.write_all(b"this\n").unwrap();
    let mut output = BufReader::new(attached.stdout.take().unwrap());
    let mut line = String::new();
    while line != "got this\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "attach ended");
    }
    // It ends with its container.
    world.remove("talk.yaml");
    wait_until("attach ends", SOON, || attached.try_wait().unwrap(), Option::is_some);

    let arguments = ["port-forward", http, "--address=127.0.0.1", ":8080"];
    let mut forwarding = plane.kubectl_command(&admin, &arguments).spawn().unwrap();
    // kubectl ends when it can't tell of a connection, so its output stays open.
    let mut output = BufReader::new(forwarding.stdout.take().unwrap());
    let mut told = String::new();
    output.read_line(&mut told).unwrap();
    // `Forwarding from 127.0.0.1:41234 -> 8080`
    let address = told.split(' ').nth(2).unwrap_or_else(|| panic!("{told:?}"));
    for _ in 0..3 {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        connection.read_to_string(&mut page).unwrap();
        assert!(page.ends_with("hello\n"), "{page}");
    }
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
    world.drop_pod(&Pod::running("talk"));
    world.wait_running("talk");
}

#[test]
fn nobody_gets_in_without_a_permission() {
    let Some((world, plane)) = member(Kind::Fake) else { return };
    let serving_authority = Authority::new("serving");
    shows(&world, &serving_authority);
    world.agent.add_flag("--authorization-webhook-cache-unauthorized-ttl=1s".to_owned());
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");

    let authority = plane.authority();
    let client =
        |identity: Option<&Identity>| Client::new(api(&world), &serving_authority, identity);
    let other = Authority::new("other").client("admin", &["system:masters"], Validity::Long);
    let expired = authority.client("admin", &["system:masters"], Validity::Expired);
    let jane = authority.client("jane", &["people"], Validity::Long);
    let node = plane.node_identity(NODE_NAME);
    let account = token_of(&plane, "viewer");
    wait_served(&client(None));
    for (who, client, expected) in [
        ("nobody", client(None), 401),
        ("another authority's", client(Some(&other)), 401),
        ("an expired one", client(Some(&expired)), 401),
        ("a wrong token", client(None).with_token("wrong"), 401),
        ("a wrong certificate and a wrong token", client(Some(&other)).with_token("wrong"), 401),
        ("a user without permission", client(Some(&jane)), 403),
        ("the node itself", client(Some(&node)), 403),
        ("an account without permission", client(None).with_token(&account), 403),
    ] {
        for (method, path) in &PATHS {
            assert_eq!(status(&client, method, path), expected, "{who}: {method} {path}");
        }
    }
    // A permission is enough for what it names.
    allow(&plane, "viewer", "metrics-of-nodes", &["nodes/pods"], &["get"]);
    let viewer = client(None).with_token(&account);
    let get = |path: &'static str| status(&viewer, &Method::GET, path);
    wait_until("pods may be read", SOON, || get("/pods"), |status| *status == 200);
    assert_eq!((get("/healthz"), get("/exec/default/x/main?output=1")), (403, 403));
    // The status page tells of statistics, too.
    assert_eq!(get("/ui"), 403);
    allow(&plane, "viewer", "stats-of-nodes", &["nodes/stats"], &["get"]);
    wait_until("the page may be read", SOON, || get("/ui"), |status| *status == 200);
    // Reading nodes/proxy is not running something, also by a GET.
    allow(&plane, "viewer", "proxy-of-nodes", &["nodes/proxy"], &["get"]);
    wait_until("the rest may be read", SOON, || get("/healthz"), |status| *status == 200);
    assert_eq!(get("/exec/default/x/main?output=1"), 403);
    // The administrator sees what is there.
    let admin = authority.client("admin", &["system:masters"], Validity::Long);
    let admin = client(Some(&admin));
    let of_admin = PATHS.map(|(method, path)| status(&admin, &method, path));
    let expected = [
        200, 200, 200, 200, 200, 404, 404, 404, 404, 404, 405, 405, 404, 404, 404, 404, 200, 200,
        200, 200, 200, 200, 200, 200,
    ];
    assert_eq!(of_admin, expected);
    let web = format!("/exec/default/{}/main?command=id&output=1", full_name("web"));
    let answer = admin.send(Method::GET, &web, None).unwrap();
    assert_eq!((answer.status, &*answer.text), (500, "Upgrade request required"));
    // The API server is away: who is known by a certificate can't be judged any more.
    plane.kill_all();
    let late = || status(&client(Some(&jane)), &Method::GET, "/pods");
    wait_until("no permission is given", SOON, late, |status| *status == 500);
    assert_eq!(status(&client(None).with_token("new"), &Method::GET, "/pods"), 401);
}

/// The data of Prometheus and where it listens. It ends with this.
struct Prometheus {
    process: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Prometheus {
    /// Scrapes the agent as examples/monitoring says, but more often. `program` is `prometheus`.
    fn start(program: &Path, world: &World, token: &str, authority: &Authority) -> Self {
        let dir = world.slot.dir().join("prometheus");
        fs::create_dir(&dir).unwrap();
        let example = include_str!("../../examples/monitoring/prometheus.yml");
        let targets = "[\"edge1:10250\", \"edge2:10250\"]";
        assert!(example.contains(targets) && example.contains("scrape_interval: 15s"));
        let config = example
            .replace(targets, &format!("[\"127.0.0.1:{}\"]", world.agent.api_port()))
            .replace("scrape_interval: 15s", "scrape_interval: 1s");
        let rules = include_str!("../../examples/monitoring/rules.yml");
        for (name, text) in [
            ("prometheus.yml", &*config),
            ("rules.yml", rules),
            ("token", token),
            ("node-ca.crt", authority.pem()),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        // Free a moment ago.
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).current_dir(&dir);
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { process, port }
    }

    /// The values of an expression.
    fn values(&self, expression: &str) -> Vec<f64> {
        let answer = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
            exchange(&mut stream, &format!("/api/v1/query?query={encoded}"))
        };
        let answer: Value = serde_json::from_str(&answer().unwrap_or_default()).unwrap_or_default();
        let found = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        found.iter().map(|one| one["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

#[test]
fn prometheus_scrapes_the_node() {
    let prometheus = program("prometheus");
    if skip_without(&[(prometheus.is_some(), "prometheus (scripts/prerequisites test)")]) {
        return;
    }
    let Some((world, plane)) = member(Kind::Real) else { return };
    let authority = Authority::new("serving");
    shows(&world, &authority);
    world.agent.start();
    let token = token_of(&plane, "prometheus");
    allow(&plane, "prometheus", "metrics-of-nodes", &["nodes/metrics"], &["get"]);
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    world.drop_pod(&Pod::running("web").set("containers/0/readinessProbe", probe));
    world.wait_running("web");
    let prometheus = Prometheus::start(&prometheus.unwrap(), &world, &token, &authority);
    let is = |expression: &str, accept: &dyn Fn(&Vec<f64>) -> bool| {
        wait_until(expression, SOON, || prometheus.values(expression), accept);
    };
    is("up", &|values| *values == [1.0, 1.0, 1.0]);
    is("kubelet_running_pods", &|values| *values == [1.0]);
    is("nodelet_lease_renewed_seconds", &|values| values.len() == 1 && values[0] > 1.7e9);
    is("sum(rest_client_requests_total)", &|values| values.len() == 1 && values[0] > 1.0);
    is("kubelet_http_requests_total{path=\"metrics\"}", &|values| {
        values.len() == 1 && values[0] > 1.0
    });
    is("kubelet_mirror_pods", &|values| *values == [1.0]);
    is("kubelet_pod_status_sync_duration_seconds_count", &|values| {
        values.len() == 1 && values[0] >= 1.0
    });
    is("kubelet_http_inflight_requests{path=\"metrics\"}", &|values| *values == [1.0]);
    is("kubelet_certificate_manager_server_ttl_seconds", &|values| {
        values.len() == 1 && values[0] > 0.0
    });
    // The parts of the start of this node add up to the whole.
    let parts = ["pre_kubelet", "pre_registration", "registration", "post_registration"];
    let parts = parts.map(|part| format!("kubelet_node_startup_{part}_duration_seconds"));
    let rest = format!("kubelet_node_startup_duration_seconds - {}", parts.join(" - "));
    is(&rest, &|values| values.len() == 1 && values[0].abs() < 0.1);
    let of_web = "{pod=\"web-node1\",container=\"main\"}";
    is(&format!("container_memory_working_set_bytes{of_web}"), &|values| {
        values.len() == 1 && values[0] > 4096.0
    });
    is("rate(container_cpu_usage_seconds_total{id=\"/\"}[10s])", &|values| {
        values.len() == 1 && values[0] > 0.0
    });
    is("prober_probe_total{result=\"successful\"}", &|values| {
        values.len() == 1 && values[0] >= 1.0
    });
    // No alert about a node that is well.
    is("count(ALERTS{alertstate=\"firing\"})", &Vec::is_empty);
    drop(prometheus);
    world.finish();
}

/// Makes a service account, and a token of it.
fn token_of(plane: &ControlPlane, account: &str) -> String {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let object = json!({ "metadata": { "name": account } });
    plane.admin.create(accounts, &object).unwrap().ok();
    let request = json!({ "spec": { "audiences": ["https://kubernetes.default.svc"] } });
    let path = format!("{accounts}/{account}/token");
    let answer = plane.admin.create(&path, &request).unwrap().ok();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

fn allow(plane: &ControlPlane, account: &str, name: &str, resources: &[&str], verbs: &[&str]) {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let rule = json!({ "apiGroups": [""], "resources": resources, "verbs": verbs });
    let role = json!({ "metadata": { "name": name }, "rules": [rule] });
    plane.admin.create(&format!("{RBAC}/clusterroles"), &role).unwrap().ok();
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "default" }],
    });
    plane.admin.create(&format!("{RBAC}/clusterrolebindings"), &binding).unwrap().ok();
}
