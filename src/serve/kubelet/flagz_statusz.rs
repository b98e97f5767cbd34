//! `/flagz` and `/statusz`: what the process was started with and how it is, for people.

use super::relay::Refused;
use crate::{
    clock,
    model::{KUBELET_VERSION, NodeView},
    serve::routes::{self, App},
};
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use jiff::Timestamp;
use std::{fmt::Write as _, sync::Arc};

const WARNING: &str = "Warning: This page is for people. Its format may change at any time.";
/// Paths that `/statusz` lists.
const PATHS: [&str; 11] = [
    "/configz",
    "/flagz",
    "/healthz",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/metrics/slis",
    "/pods",
    "/stats/summary",
    "/ui",
];

#[derive(Clone)]
struct Pages {
    app: App,
    flags: Arc<str>,
}

/// `flags`: a line for each, `name=value`.
pub(super) fn router(app: App, flags: Arc<str>) -> Router {
    Router::new()
        .route("/flagz", get(flagz))
        .route("/statusz", get(statusz))
        .method_not_allowed_fallback(routes::not_allowed)
        .with_state(Pages { app, flags })
}

async fn flagz(State(pages): State<Pages>, headers: HeaderMap) -> Result<Response, Refused> {
    page(&headers, format!("nodelet flagz\n{WARNING}\n\n{}", pages.flags))
}

async fn statusz(State(pages): State<Pages>, headers: HeaderMap) -> Result<Response, Refused> {
    let node = Arc::clone(&pages.app.views.node.borrow());
    page(&headers, status(&node, clock::now().wall))
}

fn status(node: &NodeView, now: Timestamp) -> String {
    let mut text = format!("nodelet statusz\n{WARNING}\n\n");
    let mut line = |name: &str, value: &str| {
        // Writing to a String can't fail.
        writeln!(text, "{name}: {value}").ok();
    };
    line("Started", &node.started_at);
    if let Ok(started) = node.started_at.parse::<Timestamp>() {
        let minutes = now.duration_since(started).as_secs().max(0) / 60;
        line("Up", &format!("{} hr {:02} min", minutes / 60, minutes % 60));
    }
    line("Binary version", &node.version);
    line("Kubelet version", KUBELET_VERSION);
    line("Paths", &PATHS.join(" "));
    text
}

/// Text alone. The objects `Flagz` and `Statusz` are not served.
fn page(headers: &HeaderMap, text: String) -> Result<Response, Refused> {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let wanted: Vec<&str> = accepted.flat_map(|all| all.split(',')).collect();
    let kind = |wanted: &&str| wanted.split(';').next().unwrap_or_default().trim().to_owned();
    let fits = |kind: String| matches!(kind.as_str(), "text/plain" | "text/*" | "*/*");
    if !wanted.is_empty() && !wanted.iter().map(kind).any(fits) {
        return Err(Refused::new(StatusCode::NOT_ACCEPTABLE, "only text/plain is served here"));
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_status_has_versions_and_paths() {
        let node = NodeView {
            version: "1.2.3".into(),
            started_at: "2026-11-26T08:00:00Z".into(),
            ..NodeView::default()
        };
        let text = status(&node, "2026-11-26T10:05:59Z".parse().unwrap());
        for line in ["Up: 2 hr 05 min\n", "Binary version: 1.2.3\n", "Paths: /configz /flagz "] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn other_media_types_are_refused() {
        let status = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, header::HeaderValue::from_static(accept));
            page(&headers, String::new()).map_or_else(|refused| refused.0, |answer| answer.status())
        };
        for accept in ["text/plain", "*/*", "application/json, */*;q=0.1"] {
            assert_eq!(status(accept), 200, "{accept}");
        }
        assert_eq!(status("application/json;g=config.k8s.io;v=v1beta1;as=Statusz"), 406);
        assert!(page(&HeaderMap::new(), String::new()).is_ok());
    }
}
