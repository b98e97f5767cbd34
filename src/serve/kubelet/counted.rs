//! Counts the requests that were let in, for `/metrics`.

use crate::metrics::metrics;
use axum::{body::Body, extract::Request, http::Method, middleware::Next, response::Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use prometheus::IntGauge;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::Instant;

/// First parts of paths that are told in metrics; that of others is not, because it is the client's.
const COUNTED: [&str; 16] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "exec",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
    "statusz",
    "ui",
];
/// The paths below `/metrics` that are told apart, as by the kubelet.
const METRICS: [&str; 4] =
    ["metrics/cadvisor", "metrics/probes", "metrics/resource", "metrics/slis"];
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// A request that is answered.
struct Counted {
    method: &'static str,
    path: &'static str,
    begun: Instant,
}

impl Counted {
    fn of(method: &Method, path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let known =
            |all: &[&'static str], name: &str| all.iter().find(|one| **one == name).copied();
        let path = match path.split_once('/') {
            Some(("metrics", _)) => known(&METRICS, path),
            Some((first, _)) => known(&COUNTED, first),
            None => known(&COUNTED, path),
        };
        Self {
            method: known(&METHODS, method.as_str()).unwrap_or("other"),
            path: path.unwrap_or("other"),
            begun: Instant::now(),
        }
    }

    fn labels(&self) -> [&'static str; 4] {
        let is_long = matches!(self.path, "attach" | "exec" | "portForward");
        [self.method, self.path, "readwrite", if is_long { "true" } else { "false" }]
    }

    fn answered(&self) {
        let labels = self.labels();
        metrics().requests.with_label_values(&labels).inc();
        let took = self.begun.elapsed().as_secs_f64();
        metrics().request_seconds.with_label_values(&labels).observe(took);
    }
}

/// A request that is in flight as long as this lives: until the last byte of its answer, or until
/// the end of its session, which takes it out of the request.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    _level: Arc<Level>,
}

/// One of the requests that a gauge tells.
#[derive(Debug)]
struct Level(IntGauge);

impl Drop for Level {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl InFlight {
    fn new(labels: &[&str]) -> Self {
        let gauge = metrics().node.requests_in_flight.with_label_values(labels);
        gauge.inc();
        Self { _level: Arc::new(Level(gauge)) }
    }
}

/// The body of an answer, which keeps its request in flight.
struct CountedBody {
    body: Body,
    _in_flight: InFlight,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Answers a request, and counts it.
pub(super) async fn count(mut request: Request, next: Next) -> Response {
    let counted = Counted::of(request.method(), request.uri().path());
    let in_flight = InFlight::new(&counted.labels());
    request.extensions_mut().insert(in_flight.clone());
    let response = next.run(request).await;
    counted.answered();
    response.map(|body| Body::new(CountedBody { body, _in_flight: in_flight }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_are_told() {
        for (path, told) in [
            ("/metrics", "metrics"),
            ("/metrics/resource", "metrics/resource"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/secret", "other"),
            ("/pods", "pods"),
            ("/pods/", "pods"),
            ("/exec/ns/pod/c", "exec"),
            ("/secret/metrics", "other"),
            ("/", "other"),
        ] {
            assert_eq!(Counted::of(&Method::GET, path).path, told, "{path}");
        }
    }

    #[test]
    fn a_request_is_in_flight_until_its_last_holder_is_gone() {
        // No client can cause these labels.
        let labels = ["GET", "a test", "readwrite", "true"];
        let level = || metrics().node.requests_in_flight.with_label_values(&labels).get();
        let of_answer = InFlight::new(&labels);
        let of_session = of_answer.clone();
        drop(of_answer);
        assert_eq!(level(), 1);
        drop(of_session);
        assert_eq!(level(), 0);
    }
}
