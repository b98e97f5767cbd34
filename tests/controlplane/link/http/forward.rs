//! One connection through the proxy, and one request on it.

use super::{Fault, Moment, Recorded, Shared, State, pki::Identity, rewritten::Rewriter};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, Uri,
    body::{Bytes, Incoming},
    client::conn::{http1, http2},
    header::{self, HeaderName},
    http::response::Builder,
    server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::pending,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, sync::Mutex, time::Instant};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// How long the last answers may take to arrive after the API server has ended its connection.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// The API server's end of a connection.
#[derive(Clone)]
enum Upstream {
    /// One request at a time.
    Http1(Arc<Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Serves one connection until either side ends.
pub(super) async fn connection(downstream: TcpStream, shared: Arc<Shared>) {
    let Ok(downstream) = shared.acceptor.accept(downstream).await else {
        return;
    };
    let session = downstream.get_ref().1;
    let shown = session.peer_certificates().and_then(<[_]>::first);
    let identity = shown.and_then(Identity::showing);
    let protocol = session.alpn_protocol().unwrap_or(b"http/1.1").to_vec();
    let is_http2 = protocol == b"h2";

    let mut config = shared.authority.client_config(identity.as_ref());
    config.alpn_protocols = vec![protocol];
    let Ok(stream) = TcpStream::connect(shared.server).await else {
        return;
    };
    let name = ServerName::IpAddress(shared.server.ip().into());
    let Ok(stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await else {
        return;
    };
    let (stream, downstream) = (TokioIo::new(stream), TokioIo::new(downstream));
    let service = |upstream: Upstream| {
        service_fn(move |request| {
            let (shared, upstream) = (Arc::clone(&shared), upstream.clone());
            async move { Ok::<_, Infallible>(handle(request, upstream, &shared).await) }
        })
    };
    if is_http2 {
        let Ok((sender, ended)) = http2::handshake(TokioExecutor::new(), stream).await else {
            return;
        };
        let served = server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(downstream, service(Upstream::Http2(sender)));
        until_either_ends(served, ended, server::conn::http2::Connection::graceful_shutdown).await;
    } else {
        let Ok((sender, ended)) = http1::handshake(stream).await else {
            return;
        };
        let upstream = Upstream::Http1(Arc::new(Mutex::new(sender)));
        let served =
            server::conn::http1::Builder::new().serve_connection(downstream, service(upstream));
        until_either_ends(served, ended, server::conn::http1::Connection::graceful_shutdown).await;
    }
}

/// Serves the agent's side until it ends, or until the API server's side has `ended`. An orderly end
/// of the API server follows an answer, which has to arrive: that is how it rejects credentials.
async fn until_either_ends<S: Future>(
    served: S,
    ended: impl Future<Output = Result<(), hyper::Error>>,
    finish: fn(Pin<&mut S>),
) {
    let mut served = pin!(served);
    // `served` is pinned outside and goes on below; `ended` loses nothing.
    let orderly = tokio::select! {
        _ = served.as_mut() => return,
        ended = ended => ended.is_ok(),
    };
    if orderly {
        finish(served.as_mut());
        // Some answers never come, and who waits for them sees the end of the connection.
        _ = tokio::time::timeout(LAST_ANSWERS, served).await;
    }
}

async fn handle(request: Request<Incoming>, upstream: Upstream, shared: &Arc<Shared>) -> Answer {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return pending().await;
    };
    let body = body.to_bytes();
    let (number, fault) = arrive(&mut shared.state(), &parts, &body);
    match &fault {
        Some((_, Fault::Answer(status, retry_after))) => {
            return answered(shared, number, refusal(*status, *retry_after));
        }
        Some((_, Fault::Expire)) => {
            let event = json!({ "type": "ERROR", "object": status(410) });
            return answered(shared, number, answer(Response::builder(), &event));
        }
        Some((_, Fault::Delay(by))) => tokio::time::sleep(*by).await,
        Some((rule, Fault::Hang)) => lifted(shared, *rule).await,
        Some((_, Fault::Run(Moment::Before, hook))) => {
            hook();
            return pending().await;
        }
        Some((_, Fault::HangAnswer | Fault::Run(Moment::After, _) | Fault::Rewrite(_))) | None => {}
    }
    if let Some(request) = recorded(&mut shared.state(), number) {
        request.reached = true;
    }
    let Ok(response) = pass_on(upstream, Request::from_parts(parts, Full::new(body))).await else {
        // The connection behind has ended, and this one with it.
        return pending().await;
    };
    match &fault {
        Some((rule, Fault::HangAnswer)) => lifted(shared, *rule).await,
        Some((_, Fault::Run(Moment::After, hook))) => {
            hook();
            return pending().await;
        }
        _ => {}
    }
    let mut rewriter = match fault {
        Some((_, Fault::Rewrite(change))) => Some(Rewriter::new(change)),
        _ => None,
    };
    let mut response = answered(shared, number, response);
    if rewriter.is_some() {
        // The answer gets another length.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let shared = Arc::clone(shared);
    response.map(|body| {
        let counted = body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref()
                && let Some(request) = recorded(&mut shared.state(), number)
            {
                request.answered_bytes += data.len() as u64;
            }
            match &mut rewriter {
                Some(rewriter) => frame.map_data(|data| rewriter.rewrite(&data)),
                None => frame,
            }
        });
        counted.boxed()
    })
}

fn arrive(
    state: &mut State,
    parts: &hyper::http::request::Parts,
    body: &Bytes,
) -> (usize, Option<(u64, Fault)>) {
    let number = state.next_request;
    state.next_request += 1;
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let watches = query.split('&').any(|pair| matches!(pair, "watch" | "watch=true" | "watch=1"));
    let request = Recorded {
        number,
        verb: if watches { "WATCH".to_owned() } else { parts.method.to_string() },
        path: parts.uri.path().to_owned(),
        query,
        content_type: text_of(&parts.headers, header::CONTENT_TYPE),
        user_agent: text_of(&parts.headers, header::USER_AGENT),
        body: body.to_vec(),
        at: Instant::now(),
        reached: false,
        status: None,
        answered_bytes: 0,
    };
    let mut rules = state.rules.iter_mut();
    let rule = rules.find(|rule| rule.left > 0 && request.is(rule.verb, &rule.path));
    let fault = rule.and_then(|rule| {
        if let Some(skip) = rule.skip.checked_sub(1) {
            rule.skip = skip;
            return None;
        }
        rule.left -= 1;
        Some((rule.id, rule.fault.clone()))
    });
    state.requests.push(request);
    (number, fault)
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> String {
    let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    value.unwrap_or_default().into_owned()
}

/// Waits until a rule is lifted.
async fn lifted(shared: &Shared, rule: u64) {
    let mut changed = shared.rules_changed.subscribe();
    let held = |state: &State| state.rules.iter().any(|r| r.id == rule);
    while held(&shared.state()) {
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn pass_on(
    upstream: Upstream,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    match upstream {
        Upstream::Http1(sender) => {
            // Its Host header goes along; HTTP/1.1 has no authority in the request line.
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        }
        Upstream::Http2(mut sender) => {
            sender.ready().await?;
            sender.send_request(request).await
        }
    }
}

/// A request in the recording, unless that was forgotten meanwhile.
fn recorded(state: &mut State, number: usize) -> Option<&mut Recorded> {
    state.requests.iter_mut().rfind(|request| request.number == number)
}

/// Records an answer's status.
fn answered<T>(shared: &Shared, number: usize, answer: Response<T>) -> Response<T> {
    if let Some(request) = recorded(&mut shared.state(), number) {
        request.status = Some(answer.status().as_u16());
    }
    answer
}

/// An error as the API server words it.
fn refusal(code: u16, retry_after: Option<u32>) -> Answer {
    let mut body = status(code);
    let mut response = Response::builder().status(code);
    if let Some(seconds) = retry_after {
        body["details"] = json!({ "retryAfterSeconds": seconds });
        response = response.header(header::RETRY_AFTER, seconds);
    }
    answer(response, &body)
}

fn status(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the test says so", "reason": reason, "code": code,
    })
}

/// One line of JSON.
fn answer(response: Builder, body: &Value) -> Answer {
    let line = Full::new(Bytes::from(format!("{body}\n"))).map_err(|never| match never {});
    response.header(header::CONTENT_TYPE, "application/json").body(line.boxed()).unwrap()
}
