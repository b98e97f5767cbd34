//! What containers, pods and the node have used, in the kubelet's forms: `/stats/summary`,
//! `/metrics/resource` and `/metrics/cadvisor`.

mod cadvisor;
mod facts;
mod resource;
mod summary;

use super::routes::{self, App, JSON, Piece, json, listed, literal, streamed};
use crate::{
    metrics::{TEXT, metrics},
    model::{ClaimStats, LogSize, Stats, StatsDepth},
};
use axum::{
    Router,
    extract::{Query, State},
    response::Response,
    routing::{MethodFilter, get, on},
};
use std::{fmt, pin::Pin, sync::Arc};

/// Asks for statistics.
#[derive(Clone)]
pub struct StatsSource {
    /// What containers, pods and the node have used.
    pub collect: CollectStats,
    /// The sizes of the logs of containers.
    pub measure_logs: Measure<LogSize>,
    /// The use of PersistentVolumes.
    pub measure_claims: Measure<ClaimStats>,
}

type Measure<T> = Arc<dyn Fn() -> Measuring<T> + Send + Sync>;
type Measuring<T> = Pin<Box<dyn Future<Output = Arc<[T]>> + Send>>;
type CollectStats = Arc<dyn Fn(StatsDepth) -> Collecting + Send + Sync>;
type Collecting = Pin<Box<dyn Future<Output = Arc<Stats>> + Send>>;

impl StatsSource {
    pub(super) async fn collect(&self, depth: StatsDepth) -> Arc<Stats> {
        (self.collect)(depth).await
    }
}

impl fmt::Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatsSource")
    }
}

/// What a machine is known by in its metrics.
#[derive(Clone, Debug, Default)]
pub struct MachineFacts {
    /// CPUs.
    pub cpus: i64,
    /// Physical cores.
    pub cores: u64,
    /// Bytes of memory.
    pub memory_bytes: i64,
    /// Bytes of swap.
    pub swap_bytes: i64,
    /// The installation.
    pub machine_id: String,
    /// The firmware's id of the machine.
    pub system_uuid: String,
    /// The boot.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel: String,
    /// The operating system.
    pub os: String,
    /// Version of its cgroups, 1 or 2.
    pub cgroup_version: u8,
}

/// The paths, on the local socket and on the HTTPS API alike.
pub(super) fn router(app: App) -> Router {
    Router::new()
        .route("/stats/summary", on(MethodFilter::GET.or(MethodFilter::POST), summary))
        .route("/metrics", get(own))
        .route("/metrics/probes", get(probes))
        .route("/metrics/slis", get(slis).delete(forget_slis))
        .route("/metrics/resource", get(resource))
        .route("/metrics/cadvisor", get(cadvisor))
        .method_not_allowed_fallback(routes::not_allowed)
        .with_state(app)
}

/// A `Summary`.
async fn summary(State(app): State<App>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let wants = |what: &str| query.iter().any(|(name, value)| name == what && value == "true");
    let short = wants("only_cpu_and_memory");
    // `nodelet top` sets it, so that there are samples when the status page is opened next.
    if wants("graphs") {
        app.views.graphs.look();
    }
    let depth = if short { StatsDepth::Resources } else { StatsDepth::Everything };
    let stats = app.views.stats.collect(depth).await;
    let of_node = {
        let node = app.views.node.borrow();
        let started_at = node.started_at.parse().ok();
        summary::node(&stats.node, &node.name, started_at, short)
    };
    let pods: Arc<[usize]> = (0..stats.pods.len()).collect();
    let pod = move |nth: &usize| json(&summary::pod(&stats.node, &stats.pods[*nth], short));
    let head = [literal(b"{\"node\":"), json(&of_node), literal(b",\"pods\":[")];
    let pieces = head.into_iter().chain(listed(&pods, pod)).chain([literal(b"]}\n")]);
    streamed(JSON, pieces)
}

/// What the agent counts of its own work, and what it knows now.
async fn own(State(app): State<App>) -> Response {
    let source = &app.views.stats;
    let (logs, claims) = tokio::join!((source.measure_logs)(), (source.measure_claims)());
    let facts = facts::Facts::of(&app, logs, claims);
    let facts = facts::SERIES.iter().map(move |(family, tell)| family.text(|to| tell(&facts, to)));
    streamed(TEXT, [Ok(metrics().text().into())].into_iter().chain(facts.map(text)))
}

async fn probes() -> Response {
    streamed(TEXT, [Ok(metrics().text_of_probes().into())].into_iter())
}

async fn slis(State(app): State<App>) -> Response {
    app.health.check_all();
    streamed(TEXT, [Ok(metrics().text_of_slis().into())].into_iter())
}

async fn forget_slis() -> &'static str {
    metrics().forget_health_checks();
    "reset metrics\n"
}

async fn resource(State(app): State<App>) -> Response {
    let stats = app.views.stats.collect(StatsDepth::Resources).await;
    let families = resource::SERIES.iter().map(move |series| series.text(&stats));
    streamed(TEXT, families.map(text))
}

async fn cadvisor(State(app): State<App>) -> Response {
    let (stats, machine) = (app.views.stats.collect(StatsDepth::Everything).await, app.machine);
    let failed = f64::from(u8::from(stats.node.machine.memory.is_none()));
    let failed = cadvisor::FAILED.text(|samples| samples.put("", failed, None));
    let rows = cadvisor::Rows::of(stats);
    let of_containers = cadvisor::SERIES.iter().map(move |series| series.text(&rows));
    let of_machine = cadvisor::MACHINE.iter().map(move |(family, tell)| {
        let (labels, value) = tell(&machine);
        family.text(|samples| samples.put(&labels, value, None))
    });
    streamed(TEXT, of_containers.chain(of_machine).chain([failed]).map(text))
}

fn text(text: String) -> Piece {
    Ok(text.into())
}

#[cfg(test)]
mod tests;
