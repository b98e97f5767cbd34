//! The status page: `/ui`. It is written pod by pod while the client reads it.

use super::routes::{self, App, Piece, streamed};
use crate::{
    clock, event,
    model::{CollectOrdered as _, PodKey, StatsDepth, UseHistory},
    status_page::{Facts, SCRIPT, STYLE},
};
use axum::{
    Router,
    extract::State,
    http::{HeaderName, HeaderValue, header},
    response::Response,
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    iter,
    sync::{Arc, LazyLock},
    time::Duration,
};
use tokio::sync::watch;

const HTML: &str = "text/html; charset=utf-8";

/// What the page may do: its own style and script, and loads of itself.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = |text: &str| STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(STYLE),
        digest(SCRIPT)
    );
    HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
});

/// The samples that the graphs of the page are drawn from. They are taken while somebody looks.
#[derive(Clone, Debug)]
pub struct Graphs {
    /// Boot time of the last look.
    pub looks: watch::Sender<Duration>,
    /// The samples since the first look; empty while nobody looks.
    pub history: watch::Receiver<Arc<UseHistory>>,
}

impl Graphs {
    /// Somebody looks.
    pub(super) fn look(&self) {
        self.looks.send_replace(clock::now().boot);
    }
}

/// `live`: the page refreshes itself. Otherwise it is made to be saved.
pub(super) fn router(app: App, live: bool) -> Router {
    let page = move |state| page(state, live);
    Router::new()
        .route("/ui", get(page))
        .route("/ui/", get(page))
        .method_not_allowed_fallback(routes::not_allowed)
        .with_state(app)
}

async fn page(State(app): State<App>, live: bool) -> Response {
    let stats = app.views.stats.collect(StatsDepth::Resources).await;
    app.views.graphs.look();
    let history = Arc::clone(&app.views.graphs.history.borrow());
    let node = app.views.node.borrow().clone();
    let log = app.views.events.borrow().clone();
    let latest = log.entries.len().saturating_sub(Facts::EVENTS);
    let entries = log.entries.get(latest..).unwrap_or_default().iter();
    let events = entries.map(|entry| event::to_object(entry, &node.name)).collect();
    let now = clock::now().wall;
    let facts = Facts { node, pods: app.pods(), events, stats, history, now, live };
    let mut response = streamed(HTML, pieces(facts));
    for (name, value) in [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ] {
        response.headers_mut().insert(name, value);
    }
    response
}

fn pieces(facts: Facts) -> impl Iterator<Item = Piece> + Send {
    let (head, tail) = facts.around_pods();
    let last_good: BTreeSet<PodKey> = facts.node.last_good().into_iter().cloned().collect_ordered();
    let rows = (0..facts.pods.len()).map(move |nth| {
        let view = &facts.pods[nth];
        Ok(facts.pod_row(view, last_good.contains(&view.key)).into())
    });
    iter::once(Ok(head.into())).chain(rows).chain([Ok(tail.into())])
}
