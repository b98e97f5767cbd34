//! What probes and hooks ask, of whom and when: the numbers, hosts and headers of the manifest.

use crate::support::{
    manifest::{FOREVER, Pod},
    status::Status,
    web::Web,
    world::{Kind, World},
};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::time::Instant;

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

/// A server over TLS, with a certificate of its own, that answers every request. Its thread ends
/// with the test.
fn serve_tls() -> u16 {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port(&listener);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = stream.unwrap();
            let mut tls = rustls::Stream::new(&mut connection, &mut stream);
            // A client that does not speak TLS gets no answer.
            if tls.read(&mut [0; 4096]).is_ok() {
                tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                connection.send_close_notify();
                connection.complete_io(&mut stream).unwrap();
            }
        }
    });
    port
}

/// Gives a Unix socket a TCP port on every address: containerd's has the gRPC health service.
fn forward(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = port(&listener);
    thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let Ok(server) = UnixStream::connect(&socket) else { continue };
            join(client, server);
        }
    });
    port
}

fn join(client: TcpStream, server: UnixStream) {
    let (mut from_client, mut to_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        io::copy(&mut from_client, &mut to_server).ok();
        to_server.shutdown(Shutdown::Both).ok();
    });
    thread::spawn(move || {
        io::copy(&mut from_server, &mut to_client).ok();
        to_client.shutdown(Shutdown::Both).ok();
    });
}

fn has_unhealthy(status: &Status, text: &str) -> bool {
    let events = status.events.iter().filter(|event| event["reason"] == "Unhealthy");
    events.filter_map(|event| event["message"].as_str()).any(|message| message.contains(text))
}

/// The probe, with the shortest period.
fn often(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe
}

/// Asks for the whole server's health and for that of a service that it does not know.
fn pod_with_grpc_probes(port: u16) -> Pod {
    let grpc = |service: &str| often(json!({ "grpc": { "port": port, "service": service } }));
    Pod::running("host")
        .set("hostNetwork", true)
        .set("containers/0/readinessProbe", grpc(""))
        .container("other", FOREVER)
        .set("containers/1/readinessProbe", grpc("nobody"))
}

/// Hosts, paths, headers, schemes and services of requests; hooks that only wait.
pub fn requests_of_probes_and_hooks_are_as_written(kind: Kind) {
    let world = World::start(kind);
    let web = Web::start();
    let of_web: u16 = web.url("").rsplit(':').next().unwrap().parse().unwrap();
    let get = |path: &str| {
        web.serve(path, "");
        let headers =
            json!([{ "name": "X-Test", "value": path }, { "name": "Host", "value": "named.test" }]);
        json!({ "httpGet": { "host": "127.0.0.1", "port": of_web, "path": path, "httpHeaders": headers } })
    };
    let secure =
        json!({ "httpGet": { "scheme": "HTTPS", "host": "127.0.0.1", "port": serve_tls() } });
    let sleeps = json!({ "sleep": { "seconds": 1 } });
    let pod = Pod::running("web")
        .set("terminationGracePeriodSeconds", 20)
        .set(
            "containers/0/lifecycle",
            json!({ "postStart": get("/started"), "preStop": get("/stops") }),
        )
        .set(
            "containers/0/startupProbe",
            often(json!({ "tcpSocket": { "host": "127.0.0.1", "port": of_web } })),
        )
        .set("containers/0/livenessProbe", often(get("/alive")))
        .set("containers/0/readinessProbe", often(get("/ready?of=it")))
        .container("secure", FOREVER)
        .set("containers/1/readinessProbe", often(secure.clone()))
        .set("containers/1/lifecycle", json!({ "postStart": secure, "preStop": secure }))
        .container("sleeps", FOREVER)
        .set("containers/2/lifecycle", json!({ "postStart": sleeps, "preStop": sleeps }))
        .container("after", FOREVER);
    world.drop_pod(&pod);
    world.drop_pod(&pod_with_grpc_probes(forward(world.runtime.socket())));
    world.wait_running("web");
    let ready = |status: &Status, container: &str| {
        status.container("host", container).is_some_and(|container| container.ready)
    };
    world.wait("one service is healthy, the other one unknown", |status| {
        ready(status, "main") && !ready(status, "other") && has_unhealthy(status, "NotFound")
    });
    let head = |path: &str| web.asked(path).pop().unwrap_or_default();
    world.wait_until("it is probed", || head("/alive"), |head| !head.is_empty());
    for path in ["/started", "/alive", "/ready?of=it"] {
        let head = head(path);
        assert!(head.contains(&format!("x-test: {path}\r\n")), "{path}: {head}");
        assert!(head.contains("host: named.test\r\n"), "{path}: {head}");
    }
    assert_eq!(web.asked("/started").len(), 1);
    let calls = world.proxy.calls();
    let call = |method: &str, container: &str| {
        let mut of_method = calls.iter().filter(|call| call.method == method && call.is_for("web"));
        of_method.find(|call| call.pod.as_ref().unwrap().container == container).unwrap().at
    };
    assert!(
        call("CreateContainer", "after") - call("StartContainer", "sleeps")
            >= Duration::from_secs(1)
    );
    world.proxy.forget_calls();
    let removed = Instant::now();
    world.remove("web.yaml");
    world.wait_gone("web");
    let status = world.agent.status().unwrap();
    let failed = |event: &Value| event["reason"] == "FailedPreStopHook";
    assert!(!status.events.iter().any(failed), "{status:?}");
    assert!(head("/stops").contains("x-test: /stops\r\n"));
    let calls = world.proxy.calls();
    let stop = |container: &str| {
        let mut stops =
            calls.iter().filter(|call| call.method == "StopContainer" && call.is_for("web"));
        stops.find(|call| call.pod.as_ref().unwrap().container == container).unwrap().at
    };
    assert!(stop("sleeps") - removed >= Duration::from_secs(1));
    world.finish();
}

/// Delays, periods and thresholds of probes, how long an attempt may take, and how long a container
/// that a probe ends has to leave.
pub fn probes_keep_to_their_numbers(kind: Kind) {
    let world = World::start(kind);
    let host = world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    let uptime = "cut -d' ' -f1 /proc/uptime >>/host/starts";
    let exec = |script: &str| json!({ "command": ["sh", "-c", script] });
    let patient = json!({ "exec": exec("true"), "initialDelaySeconds": 2, "periodSeconds": 2, "successThreshold": 2 });
    let strict = json!({ "exec": exec("sleep 100000"), "periodSeconds": 1, "timeoutSeconds": 1,
                         "failureThreshold": 2, "terminationGracePeriodSeconds": 1 });
    // Takes no notice of SIGTERM until the test is over.
    let stubborn = "trap '[ -e /host/over ] && exit 0' TERM; while :; do sleep 0.1; done";
    let pod = Pod::running("web")
        .container("hangs", &format!("{uptime}; {stubborn}"))
        .set("containers/0/readinessProbe", patient)
        .set("containers/1/livenessProbe", strict)
        .set("terminationGracePeriodSeconds", 600);
    world.drop_pod(&pod.host_dir(&host));
    let ready = |status: &Status| status.container("web", "main").is_some_and(|main| main.ready);
    world.wait("it is ready", ready);
    let calls = world.proxy.calls();
    let of_main = |method: &str| -> Vec<Instant> {
        let of_method = calls.iter().filter(|call| call.method == method && call.is_for("web"));
        of_method
            .filter(|call| call.pod.as_ref().unwrap().container == "main")
            .map(|call| call.at)
            .collect()
    };
    let (start, attempts) = (of_main("StartContainer")[0], of_main("ExecSync"));
    assert!(attempts.len() >= 2, "ready after {} successes", attempts.len());
    // A machine under load may be late, but the agent is never early.
    for (attempt, after) in attempts.iter().zip([2.0, 4.0]) {
        let seconds = (*attempt - start).as_secs_f64();
        assert!(seconds > after - 0.1, "attempt after {seconds} s instead of {after} s");
    }
    world.wait("it is restarted long before the grace period of its pod", |status| {
        status.restarts("web", "hangs") >= 1 && has_unhealthy(status, "timed out")
    });
    let times = || -> Vec<f64> {
        let text = fs::read_to_string(host.join("starts")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let starts = world.wait_until("it has started again", times, |all| all.len() >= 2);
    // Two attempts of a second each, and a second to leave.
    assert!(starts[1] - starts[0] >= 2.9, "restarted after {} s", starts[1] - starts[0]);
    fs::write(host.join("over"), "").unwrap();
    world.finish();
}
