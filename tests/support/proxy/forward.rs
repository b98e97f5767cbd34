//! One connection through the proxy, and one call on it.

use super::{
    Call, Fault, Hook, MUTATING, Moment, PodRef, Rule, Shared, State, Witness, call, frames,
};
use http_body_util::{BodyExt, Collected, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http2::SendRequest,
    server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{convert::Infallible, future::pending, sync::Arc};
use tokio::{net::UnixStream, time::Instant};
use tonic::Code;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;
type Upstream = SendRequest<Full<Bytes>>;

/// Serves one connection until either side ends.
pub(super) async fn connection(downstream: UnixStream, shared: Arc<Shared>) {
    let Ok(upstream) = UnixStream::connect(&shared.upstream).await else {
        return;
    };
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await;
    let Ok((sender, upstream_ended)) = handshake else {
        return;
    };
    let service = service_fn(move |request| {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        async move { Ok::<_, Infallible>(handle(request, sender, &shared).await) }
    });
    let served = server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(downstream), service);
    // Neither arm is resumed: the end of one side is the end of the connection.
    tokio::select! {
        _ = served => {}
        _ = upstream_ended => {}
    }
}

async fn handle(request: Request<Incoming>, upstream: Upstream, shared: &Arc<Shared>) -> Answer {
    let (parts, body) = request.into_parts();
    let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let Ok(body) = body.collect().await.map(Collected::to_bytes) else {
        return error(Code::Cancelled, "the request did not arrive whole");
    };
    let is_events = matches!(method.as_str(), "Subscribe" | "GetContainerEvents");
    let Arrived { number, pod, fault, mut hook, witness } =
        arrive(&mut shared.state(), &method, frames::message(&body));
    if let Some((witness, call)) = witness {
        witness(&call);
    }
    if let Some(hook) = hook.take_if(|hook| hook.moment == Moment::Before) {
        (hook.run)();
        return pending().await;
    }
    match &fault {
        Some((_, Fault::Delay(by))) => tokio::time::sleep(*by).await,
        Some((rule, Fault::Hang)) => lifted(shared, *rule).await,
        Some((_, Fault::Fail(code, message))) => {
            return answer(shared, number, *code, error(*code, message));
        }
        Some((_, Fault::HangAnswer | Fault::LoseAnswer)) | None => {}
    }
    if let Some(call) = recorded(&mut shared.state(), number) {
        call.reached = true;
    }
    let mut execution = Execution { shared, is_over: !MUTATING.contains(&&*method) };
    let response = pass_on(upstream, Request::from_parts(parts, Full::new(body))).await;
    let response = match response {
        Ok(response) if is_events => {
            let shared = Arc::clone(shared);
            return response.map(|body| frames::Events::new(body, shared).boxed());
        }
        Ok(response) => response,
        Err(message) => {
            execution.is_over = true;
            return answer(shared, number, Code::Unavailable, error(Code::Unavailable, &message));
        }
    };
    let (head, body) = response.into_parts();
    let body = body.collect().await;
    execution.is_over = true;
    let Ok(body) = body else {
        return answer(
            shared,
            number,
            Code::Unavailable,
            error(Code::Unavailable, "answer cut off"),
        );
    };
    let trailers = body.trailers().cloned();
    let code = status_of(trailers.as_ref().unwrap_or(&head.headers));
    let bytes = body.to_bytes();
    if code == Code::Ok {
        call::learn(&mut shared.state(), &method, pod.as_ref(), frames::message(&bytes));
    }
    if let Some(hook) = hook {
        (hook.run)();
        return pending().await;
    }
    match &fault {
        Some((rule, Fault::HangAnswer)) => lifted(shared, *rule).await,
        Some((_, Fault::LoseAnswer)) => {
            let lost = error(Code::Unavailable, "transport is closing");
            return answer(shared, number, Code::Unavailable, lost);
        }
        Some((_, Fault::Delay(_) | Fault::Hang | Fault::Fail(..))) | None => {}
    }
    let body = Full::new(bytes);
    // An answer that is all head has to stay so: grpc-go takes one with a body and no trailers for
    // broken.
    let body = match trailers {
        None => body.map_err(|never| match never {}).boxed(),
        Some(trailers) => {
            let body = body.with_trailers(async move { Some(Ok(trailers)) });
            body.map_err(|never| match never {}).boxed()
        }
    };
    answer(shared, number, code, Response::from_parts(head, body))
}

/// The runtime's work on a call.
struct Execution<'a> {
    shared: &'a Shared,
    is_over: bool,
}

impl Drop for Execution<'_> {
    /// Nobody waits for an answer any more, and the runtime drops what it is doing.
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.state().cut_short = true;
        }
    }
}

/// A call that was recorded, and what is to happen to it.
struct Arrived {
    number: usize,
    pod: Option<PodRef>,
    fault: Option<(u64, Fault)>,
    hook: Option<Hook>,
    witness: Option<(Witness, Call)>,
}

fn arrive(state: &mut State, method: &str, message: &[u8]) -> Arrived {
    let number = state.next_call;
    state.next_call += 1;
    let pod = call::pod_of(state, method, message);
    let mutating = MUTATING.contains(&method).then(|| {
        state.mutating_calls += 1;
        state.mutating_calls - 1
    });
    let call = Call {
        number,
        mutating,
        method: method.to_owned(),
        request: message.to_vec(),
        pod: pod.clone(),
        at: Instant::now(),
        reached: false,
        answered: None,
    };
    let fault =
        state.rules.iter_mut().find(|rule| rule.left > 0 && matches(rule, &call)).map(|rule| {
            rule.left -= 1;
            (rule.id, rule.fault.clone())
        });
    let hook = match &state.hook {
        Some(hook) if mutating == Some(hook.mutating_call) => state.hook.take(),
        _ => None,
    };
    let witness = state.witness.clone().filter(|_| mutating.is_some());
    let witness = witness.map(|witness| (witness, call.clone()));
    state.calls.push(call);
    Arrived { number, pod, fault, hook, witness }
}

fn matches(rule: &Rule, call: &Call) -> bool {
    rule.filter.method.is_none_or(|method| method == call.method)
        && rule.filter.pod.as_ref().is_none_or(|pod| call.is_for(pod))
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
    mut upstream: Upstream,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, String> {
    let path = request.uri().path().to_owned();
    *request.uri_mut() = format!("http://localhost{path}").parse().map_err(|_| path)?;
    upstream.ready().await.map_err(|err| err.to_string())?;
    upstream.send_request(request).await.map_err(|err| err.to_string())
}

/// A call in the recording, unless that was forgotten meanwhile.
fn recorded(state: &mut State, number: usize) -> Option<&mut Call> {
    state.calls.iter_mut().rfind(|call| call.number == number)
}

fn answer(shared: &Shared, number: usize, code: Code, response: Answer) -> Answer {
    if let Some(call) = recorded(&mut shared.state(), number) {
        call.answered = Some((code, Instant::now()));
    }
    response
}

fn error(code: Code, message: &str) -> Answer {
    let empty = Full::new(Bytes::new()).map_err(|never| match never {}).boxed();
    tonic::Status::new(code, message).into_http::<BoxBody<Bytes, hyper::Error>>().map(|_| empty)
}

fn status_of(headers: &HeaderMap) -> Code {
    headers.get("grpc-status").map_or(Code::Unknown, |value| Code::from_bytes(value.as_bytes()))
}
