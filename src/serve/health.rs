//! `/healthz`, in the kubelet's words: `ping` (the agent answers), `log` (the agent never waits for
//! its log, so this check always passes), `syncloop` (the agent's own loops came round not long
//! ago: the sources of manifests, the set of workers, the relist loop, the writers of state files).
//!
//! What a restart of the agent does not heal is shown in the status and fails nothing here: a
//! runtime that is away, a manifest directory that does not answer, a removal that takes long.

use super::connections::{self, ConnectionPolicy, Plain};
use crate::{clock, metrics::metrics};
use axum::{
    Router,
    extract::{Path, RawQuery, State},
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use std::{net::SocketAddr, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];
/// No loop is called late before this.
const LATE_AT_LEAST: Duration = Duration::from_secs(300);
/// Every user and every pod on the host network may connect. Answers are small and made at once, so
/// only a client that misbehaves comes near these limits.
const POLICY: ConnectionPolicy = ConnectionPolicy {
    places: 64,
    head: Duration::from_secs(5),
    head_bytes: connections::HEAD_BYTES,
    lifetime: Duration::from_secs(10),
    kept: None,
};

/// Knows whether the agent is alive. Times are those of [`clock::awake`]: after the machine was
/// suspended no loop is late.
#[derive(Clone, Debug)]
pub(super) struct Health {
    heartbeats: Vec<watch::Receiver<Duration>>,
    late_after: Duration,
}

impl Health {
    pub(super) fn new(
        heartbeats: Vec<watch::Receiver<Duration>>,
        sync_frequency: Duration,
    ) -> Self {
        Self { heartbeats, late_after: (sync_frequency * 2).max(LATE_AT_LEAST) }
    }

    /// Makes all checks, so that their metrics are of now.
    pub(super) fn check_all(&self) {
        let now = clock::awake();
        for check in CHECKS {
            self.failure(check, now);
        }
    }

    /// What is wrong with one check; `None` when nothing is.
    fn failure(&self, check: &str, now: Duration) -> Option<&'static str> {
        let late = self.heartbeats.iter().any(|heartbeat| {
            let last = *heartbeat.borrow();
            !last.is_zero() && now.saturating_sub(last) > self.late_after
        });
        let failure =
            (check == "syncloop" && late).then_some("sync Loop took longer than expected");
        metrics().health_checked(check, failure.is_none());
        failure
    }

    /// Status and body of `/healthz`.
    fn report(&self, verbose: bool, excluded: &[String], now: Duration) -> (StatusCode, String) {
        let mut lines = String::new();
        let mut healthy = true;
        for check in CHECKS {
            if excluded.iter().any(|name| name == check) {
                lines.push_str(&format!("[+]{check} excluded: ok\n"));
            } else if self.failure(check, now).is_some() {
                healthy = false;
                lines.push_str(&format!("[-]{check} failed: reason withheld\n"));
            } else {
                lines.push_str(&format!("[+]{check} ok\n"));
            }
        }
        let unknown: Vec<String> = excluded
            .iter()
            .filter(|name| !CHECKS.contains(&name.as_str()))
            .map(|name| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            let names = unknown.join(",");
            lines.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {names}\n"
            ));
        }
        match (healthy, verbose) {
            (true, false) => (StatusCode::OK, "ok".to_owned()),
            (true, true) => (StatusCode::OK, lines + "healthz check passed\n"),
            (false, _) => (StatusCode::INTERNAL_SERVER_ERROR, lines + "healthz check failed\n"),
        }
    }
}

/// The paths, for the port and for the socket alike.
pub(super) fn router<S>(health: Health) -> Router<S> {
    Router::new().route("/healthz", any(all)).route("/healthz/{check}", any(one)).with_state(health)
}

async fn all(State(health): State<Health>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let verbose = pairs().any(|(name, _)| name == "verbose");
    let excluded: Vec<String> =
        pairs().filter(|(name, _)| *name == "exclude").map(|(_, v)| v.to_owned()).collect();
    plain(health.report(verbose, &excluded, clock::awake()))
}

async fn one(State(health): State<Health>, Path(check): Path<String>) -> Response {
    if !CHECKS.contains(&check.as_str()) {
        return not_found().await;
    }
    plain(match health.failure(&check, clock::awake()) {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
    })
}

/// The kubelet's answer to a path that does not exist.
pub(super) async fn not_found() -> Response {
    plain((StatusCode::NOT_FOUND, "404: Page Not Found".to_owned()))
}

pub(super) fn plain((status, body): (StatusCode, String)) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
    ];
    (status, headers, body).into_response()
}

/// Serves the health port until `shutdown`.
pub(super) async fn serve(
    address: Option<SocketAddr>,
    health: Health,
    shutdown: CancellationToken,
) {
    let Some(address) = address else { return };
    if let Some(listener) = connections::bound(address, "the health port", &shutdown).await {
        let router = router(health).fallback(not_found);
        connections::serve(&listener, Plain, router, POLICY, shutdown).await;
    }
}
