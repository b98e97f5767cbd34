//! Requests to servers that misbehave.

#![allow(clippy::disallowed_methods, reason = "a server ends with the runtime of its test")]
#![allow(clippy::needless_pass_by_value, reason = "json! reads best where it is passed")]

use super::*;
use crate::{
    blocking::LOOKUPS,
    handler::health::{
        HealthCheckRequest, HealthCheckResponse,
        health_check_response::ServingStatus,
        health_server::{Health, HealthServer},
    },
    model::k8s,
    skips::say_skipped,
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls_pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service as _;

mod misbehaving;

/// Long enough for any answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Too short for a server that does not answer.
const SHORT: Duration = Duration::from_millis(300);

fn handlers() -> Handlers {
    Handlers::new().unwrap()
}

fn action(port: u16, fields: serde_json::Value) -> k8s::HTTPGetAction {
    let mut action = json!({"port": port});
    for (name, value) in fields.as_object().unwrap() {
        action[name] = value.clone();
    }
    serde_json::from_value(action).unwrap()
}

fn request(port: u16, fields: serde_json::Value) -> HttpGet {
    let container = k8s::Container::default();
    let action = action(port, fields);
    let host = named_host(action.host.as_ref()).unwrap_or("127.0.0.1");
    HttpGet::of(&action, &container, host, PROBE_USER_AGENT).unwrap()
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A port on which nobody listens.
async fn closed_port() -> u16 {
    listener().await.1
}

/// A server that reads the head of each request and answers what `answer` makes of it.
async fn server(answer: impl Fn(&str) -> String + Send + 'static) -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = head(&mut stream).await;
            stream.write_all(answer(&head).as_bytes()).await.ok();
        }
    });
    port
}

/// The head of a request.
async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn answer(status: &str, head: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}\r\n{body}", body.len())
}

fn failure(finding: Finding) -> String {
    match finding {
        Finding::Failure(words) => words,
        Finding::Success | Finding::Warning(_) | Finding::Error(_) => {
            panic!("no failure: {finding:?}")
        }
    }
}

fn error(finding: Finding) -> String {
    match finding {
        Finding::Error(words) => words,
        Finding::Success | Finding::Warning(_) | Finding::Failure(_) => {
            panic!("no error: {finding:?}")
        }
    }
}

#[tokio::test]
async fn the_status_decides() {
    for (status, expected) in [
        ("200 OK", Finding::Success),
        ("204 No Content", Finding::Success),
        (
            "304 Not Modified",
            Finding::Warning("Probe terminated redirects, Response body: ".into()),
        ),
        ("404 Not Found", Finding::Failure("HTTP probe failed with statuscode: 404".into())),
        ("503 No", Finding::Failure("HTTP probe failed with statuscode: 503".into())),
    ] {
        let port = server(move |_| answer(status, "", "")).await;
        assert_eq!(handlers().http_probe(&request(port, json!({})), LIMIT).await, expected);
    }
}

#[tokio::test]
async fn a_request_has_the_headers_of_the_specification() {
    let (listener, port) = listener().await;
    let ask = |fields| async move {
        let get = request(port, fields);
        tokio::spawn(async move { handlers().http_probe(&get, LIMIT).await });
    };
    ask(json!({"path": "healthz?full=1 2#x"})).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let plain = head(&mut stream).await;
    assert!(plain.starts_with("GET /healthz?full=1%202 HTTP/1.1\r\n"), "{plain}");
    for line in [
        "User-Agent: kube-probe/1.36",
        "Accept: */*",
        "Connection: close",
        &format!("Host: 127.0.0.1:{port}"),
    ] {
        assert!(plain.lines().any(|one| one.eq_ignore_ascii_case(line)), "{line} in {plain}");
    }
    let headers = json!([
        {"name": "X-A", "value": "1"}, {"name": "X-A", "value": "2"},
        {"name": "accept", "value": ""}, {"name": "User-Agent", "value": "me"},
        {"name": "Host", "value": "shop.example"},
    ]);
    ask(json!({"httpHeaders": headers})).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let own = head(&mut stream).await.to_lowercase();
    assert!(own.contains("x-a: 1\r\nx-a: 2\r\n") && !own.contains("accept:"), "{own}");
    assert!(own.contains("user-agent: me\r\n") && own.contains("host: shop.example\r\n"), "{own}");
    assert_eq!(own.matches("host:").count(), 1, "{own}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_a_failure() {
    let (silent, port) = listener().await;
    let words = failure(handlers().http_probe(&request(port, json!({})), SHORT).await);
    assert!(
        words.ends_with(
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )
    );
    drop(silent);
    for noise in ["", "\0\u{1}\u{2}\r\n\r\n", "220 mail.example ESMTP\r\n"] {
        let port = server(move |_| noise.to_owned()).await;
        let words = failure(handlers().http_probe(&request(port, json!({})), LIMIT).await);
        assert!(words.starts_with(&format!("Get \"http://127.0.0.1:{port}/\": ")), "{words}");
    }
    let port = closed_port().await;
    let refused = format!(
        "Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: connect: connection refused"
    );
    assert_eq!(failure(handlers().http_probe(&request(port, json!({})), LIMIT).await), refused);
}

#[tokio::test]
async fn a_body_is_read_to_a_limit() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let finding = handlers().http_probe(&request(port, json!({})), LIMIT).await;
    assert_eq!(finding, Finding::Success);
}

#[tokio::test]
async fn redirects_to_the_same_host_are_followed() {
    let port = server(|head| {
        let path = head.split(' ').nth(1).unwrap();
        let to = |location: &str| answer("302 Found", &format!("Location: {location}\r\n"), "");
        match path {
            "/" => to("/a/b"),
            "/a/b" => to("c?d"),
            "/a/c?d" => to("?e"),
            "/a/c?e" => to("/login?next=http://other.example/"),
            "/login?next=http://other.example/" => to("../b/./c d"),
            "/b/c%20d" => answer("200 OK", "", ""),
            "/loop" => to("/loop"),
            "/away" => answer("302 Found", "Location: http://other.example/\r\n", "gone"),
            _ => answer("500 No", "", ""),
        }
    })
    .await;
    let ask = async |path: &str| {
        handlers().http_probe(&request(port, json!({"path": path})), LIMIT).await
    };
    assert_eq!(ask("/").await, Finding::Success);
    let words = failure(ask("/loop").await);
    assert!(words.ends_with("stopped after 10 redirects"), "{words}");
    let warning = "Probe terminated redirects, Response body: gone".to_owned();
    assert_eq!(ask("/away").await, Finding::Warning(warning));
}

#[tokio::test]
async fn a_redirect_may_change_port_and_scheme() {
    let last = server(|_| answer("200 OK", "", "")).await;
    let location = format!("Location: http://127.0.0.1:{last}/x\r\n");
    let first = server(move |_| answer("307 Over there", &location, "")).await;
    let get = request(first, json!({}));
    assert_eq!(handlers().http_probe(&get, LIMIT).await, Finding::Success);
}

/// A server over TLS with this certificate that answers 200.
async fn tls_server(
    params: CertificateParams,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
) -> u16 {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    serve_tls(config).await
}

async fn serve_tls(config: rustls::ServerConfig) -> u16 {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            head(&mut stream).await;
            stream.write_all(answer("200 OK", "", "").as_bytes()).await.ok();
            stream.shutdown().await.ok();
        }
    });
    port
}

#[tokio::test]
async fn certificates_are_not_checked() {
    let named = |name: &str| CertificateParams::new([name.to_owned()]).unwrap();
    let mut expired = named("127.0.0.1");
    (expired.not_before, expired.not_after) =
        (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    let (v12, v13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    static ALL: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;
    static ONLY_12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
    static ONLY_13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
    assert_ne!(v12.version, v13.version);
    let cases = [
        (expired, ALL),
        (named("somebody.else"), ALL),
        (CertificateParams::default(), ALL),
        (named("a"), ONLY_12),
        (named("a"), ONLY_13),
    ];
    for (params, versions) in cases {
        let port = tls_server(params, versions).await;
        let get = request(port, json!({"scheme": "HTTPS"}));
        assert_eq!(handlers().http_probe(&get, LIMIT).await, Finding::Success);
    }
}

#[tokio::test]
async fn a_server_without_tls_fails_a_probe_and_serves_a_hook() {
    let port = server(|_| answer("500 No", "", "")).await;
    // A ClientHello has no head, so this server answers whatever is sent first.
    let (listener, noisy) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut sent = [0; 1024];
            if stream.read(&mut sent).await.is_ok_and(|count| count > 0) {
                stream.write_all(answer("400 Speak HTTP", "", "").as_bytes()).await.ok();
            }
            while stream.read(&mut sent).await.is_ok_and(|count| count > 0) {}
        }
    });
    let get = request(noisy, json!({"scheme": "HTTPS"}));
    assert_eq!(get.address(), format!("127.0.0.1:{noisy}"));
    assert!(failure(handlers().http_probe(&get, LIMIT).await).contains("tls: "));
    let hook = handlers().http_hook(&get, LIMIT).await;
    assert_eq!(hook.unwrap(), HookAnswer { fell_back: true });
    // The status does not matter to a hook.
    let get = request(port, json!({}));
    let hook = handlers().http_hook(&get, LIMIT).await;
    assert_eq!(hook.unwrap(), HookAnswer { fell_back: false });
    let get = request(closed_port().await, json!({}));
    let refused = handlers().http_hook(&get, LIMIT).await.unwrap_err();
    assert!(refused.to_string().contains("connection refused"), "{refused}");
}

/// What a probe finds of a server that answers this and then hangs.
async fn probe_stopped_answer(part: &'static str, within: Duration) -> Finding {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(part.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let finding = handlers().http_probe(&request(port, json!({})), within).await;
    server.abort();
    finding
}

#[tokio::test]
async fn an_answer_that_stops_in_its_headers_is_a_failure() {
    let words = failure(probe_stopped_answer("HTTP/1.1 200 OK\r\nX-A: ", SHORT).await);
    assert!(words.ends_with("(Client.Timeout exceeded while awaiting headers)"), "{words}");
}

#[tokio::test]
async fn an_answer_that_stops_in_its_body_is_an_error() {
    for part in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n",
        "HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let words = error(probe_stopped_answer(part, Duration::from_secs(2)).await);
        assert_eq!(words, BODY_TIMED_OUT);
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_and_fails_no_hook() {
    let port = server(|_| "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_owned()).await;
    let get = request(port, json!({}));
    error(handlers().http_probe(&get, LIMIT).await);
    let hook = handlers().http_hook(&get, LIMIT).await;
    assert_eq!(hook.unwrap(), HookAnswer { fell_back: false });
}

#[tokio::test]
async fn a_redirect_is_followed_although_its_body_breaks_off() {
    let ask = async |last: &'static str| {
        let port = server(move |head| {
            match head.split(' ').nth(1) {
                Some("/") => "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 10\r\n\r\nhalf",
                Some(_) | None => last,
            }
            .to_owned()
        });
        handlers().http_probe(&request(port.await, json!({})), LIMIT).await
    };
    assert_eq!(ask("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await, Finding::Success);
    failure(ask("").await);
    error(ask("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await);
}

#[tokio::test]
async fn a_redirect_to_a_silent_server_is_a_failure() {
    let (_silent, last) = listener().await;
    let location = format!("Location: http://127.0.0.1:{last}/\r\n");
    let first = server(move |_| answer("302 Found", &location, "there")).await;
    let words = failure(handlers().http_probe(&request(first, json!({})), SHORT).await);
    assert!(words.ends_with("(Client.Timeout exceeded while awaiting headers)"), "{words}");
}

#[tokio::test]
async fn a_host_may_be_a_name() {
    let (_listener, port) = listener().await;
    assert_eq!(handlers().tcp_probe("localhost", port, LIMIT).await, Finding::Success);
    let unknown = handlers().tcp_probe("no such host", port, LIMIT).await;
    assert!(failure(unknown).starts_with(&format!("dial tcp no such host:{port}: ")));
}

#[tokio::test]
async fn a_probe_that_gets_no_lookup_does_not_count() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let held = Arc::clone(&held);
        slow.spawn(LOOKUPS.run(move || held.lock().unwrap().recv().ok()));
    }
    tokio::task::yield_now().await;
    let (_listener, port) = listener().await;
    let tcp = handlers().tcp_probe("other.example", port, SHORT).await;
    let get = request(port, json!({"host": "other.example"}));
    let http = handlers().http_probe(&get, SHORT).await;
    let why = format!("dial tcp other.example:{port}: too many lookups of hosts are under way");
    assert_eq!((tcp, http), (Finding::Error(why.clone()), Finding::Error(why)));
    // No lookup is needed for this host.
    assert_eq!(handlers().tcp_probe("localhost", port, LIMIT).await, Finding::Success);
    assert_eq!(handlers().tcp_probe("LocalHost", port, LIMIT).await, Finding::Success);
    drop(release);
    while slow.join_next().await.is_some() {}
}

#[test]
fn more_headers_than_a_thousand_are_an_error() {
    let of = |count: usize| {
        let headers: Vec<_> =
            (0..count).map(|n| json!({"name": format!("X-{n}"), "value": "1"})).collect();
        let container = k8s::Container::default();
        let action = action(80, json!({"httpHeaders": headers}));
        HttpGet::of(&action, &container, "127.0.0.1", PROBE_USER_AGENT)
    };
    assert!(of(1000).is_ok());
    let words = |count| of(count).unwrap_err().to_string();
    assert_eq!(words(1001), "1001 headers can't be sent, at most 1000");
    // So many would be too many for the table of headers, which panics.
    assert_eq!(words(30_000), "30000 headers can't be sent, at most 1000");
}

#[tokio::test]
async fn an_answer_may_have_hundreds_of_headers() {
    let port = server(|_| answer("200 OK", &"X-A: 1\r\n".repeat(900), "")).await;
    assert_eq!(handlers().http_probe(&request(port, json!({})), LIMIT).await, Finding::Success);
}

#[tokio::test]
async fn tcp_is_a_success_when_it_connects() {
    let (_listener, port) = listener().await;
    assert_eq!(handlers().tcp_probe("127.0.0.1", port, LIMIT).await, Finding::Success);
    let port = closed_port().await;
    let words = failure(handlers().tcp_probe("127.0.0.1", port, LIMIT).await);
    assert_eq!(words, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
}

#[test]
fn ports_are_numbers_or_names() {
    let container: k8s::Container = serde_json::from_value(json!({
        "name": "web", "ports": [{"name": "http", "containerPort": 8080}],
    }))
    .unwrap();
    let resolve = |port: IntOrString| resolve_port(&port, &container);
    assert_eq!(resolve(IntOrString::Int(80)), Ok(80));
    assert_eq!(resolve(IntOrString::String("http".to_owned())), Ok(8080));
    assert_eq!(resolve(IntOrString::String("9090".to_owned())), Ok(9090));
    let error = resolve(IntOrString::Int(70000)).unwrap_err();
    assert_eq!(error.to_string(), "invalid port number: 70000");
    assert!(resolve(IntOrString::String("grpc".to_owned())).is_err());
}

struct Says;

#[tonic::async_trait]
impl Health for Says {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, tonic::Status> {
        let status = match request.into_inner().service.as_str() {
            "" | "good" => ServingStatus::Serving,
            "bad" => ServingStatus::NotServing,
            other => return Err(tonic::Status::not_found(format!("no service {other}"))),
        };
        Ok(tonic::Response::new(HealthCheckResponse { status: status.into() }))
    }
}

/// A gRPC server with the health service, or without any.
async fn grpc_server(with_health: bool) -> u16 {
    let (listener, port) = listener().await;
    serve_grpc(listener, with_health);
    port
}

fn serve_grpc(listener: TcpListener, with_health: bool) {
    let health = HealthServer::new(Says);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let health = health.clone();
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let mut health = health.clone();
                async move {
                    if with_health {
                        health.call(request).await
                    } else {
                        Ok(tonic::Status::unimplemented("unknown service").into_http())
                    }
                }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
}

#[tokio::test]
async fn grpc_goes_by_the_health_service() {
    let port = grpc_server(true).await;
    let ask = async |service: &str| handlers().grpc_probe("127.0.0.1", port, service, LIMIT).await;
    assert_eq!(ask("").await, Finding::Success);
    assert_eq!(ask("good").await, Finding::Success);
    assert_eq!(failure(ask("bad").await), "service unhealthy (responded with \"NOT_SERVING\")");
    assert!(failure(ask("none").await).contains("code = NotFound desc = no service none"));
    let port = grpc_server(false).await;
    let words = failure(handlers().grpc_probe("127.0.0.1", port, "", LIMIT).await);
    assert!(words.contains("does not implement the grpc health protocol"), "{words}");
    let words = failure(handlers().grpc_probe("127.0.0.1", closed_port().await, "", LIMIT).await);
    assert!(words.starts_with("error: failed to connect service at \"127.0.0.1:"), "{words}");
    let (_silent, port) = listener().await;
    let words = failure(handlers().grpc_probe("127.0.0.1", port, "", SHORT).await);
    assert!(words.starts_with("timeout: "), "{words}");
}
