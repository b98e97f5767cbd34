//! Counts the requests that were let in, for `/metrics`.

use crate::metrics::metrics;
use axum::{extract::Request, http::Method, middleware::Next, response::Response};
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
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// A request that is answered.
struct Counted {
    method: &'static str,
    path: &'static str,
    begun: Instant,
}

impl Counted {
    fn of(method: &Method, path: &str) -> Self {
        let first = path.strip_prefix('/').unwrap_or(path).split('/').next().unwrap_or_default();
        let known =
            |all: &[&'static str], name: &str| all.iter().find(|one| **one == name).copied();
        Self {
            method: known(&METHODS, method.as_str()).unwrap_or("other"),
            path: known(&COUNTED, first).unwrap_or("other"),
            begun: Instant::now(),
        }
    }

    fn answered(&self) {
        let long = matches!(self.path, "attach" | "exec" | "portForward").to_string();
        let labels = [self.method, self.path, "readwrite", long.as_str()];
        metrics().requests.with_label_values(&labels).inc();
        let took = self.begun.elapsed().as_secs_f64();
        metrics().request_seconds.with_label_values(&labels).observe(took);
    }
}

/// Answers a request, and counts it.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let counted = Counted::of(request.method(), request.uri().path());
    let response = next.run(request).await;
    counted.answered();
    response
}
