//! The probes of a container: what is asked, in kubectl's words, and what came of it.

use super::text::{age_at, one_line};
use crate::{
    model::{ProbeKind, ProbeView, k8s},
    probe::ProbeSettings,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The text below the name of a probe, in up to three lines; `None` when the container has no
/// probe of this kind.
pub(super) fn describe(
    container: &k8s::Container,
    kind: ProbeKind,
    views: &[ProbeView],
    now: Timestamp,
) -> Option<String> {
    let probe = kind.of(container)?;
    let settings = ProbeSettings::of(probe);
    let mut text = format!(
        "{} delay={}s timeout={}s period={}s #success={} #failure={}",
        handler(probe),
        settings.initial_delay.as_secs(),
        settings.timeout.as_secs(),
        settings.period.as_secs(),
        settings.success_threshold,
        settings.failure_threshold,
    );
    let view = views.iter().find(|view| *view.container == *container.name && view.kind == kind);
    text.push('\n');
    text.push_str(&outcome(view, now));
    if let Some((output, at)) = view.and_then(|view| view.last_failure.as_ref()) {
        let output = one_line(output);
        let output = if output.is_empty() { "no output".to_owned() } else { output };
        text.push_str(&format!("\nlast failure {} ago: {output}", age_at(*at, now)));
    }
    Some(text)
}

/// The result and the last attempt: `passing; last attempt succeeded 3s ago`.
fn outcome(view: Option<&ProbeView>, now: Timestamp) -> String {
    let result = match view.and_then(|view| view.result) {
        Some(true) => "passing",
        Some(false) => "failing",
        None => "no result yet",
    };
    match view.and_then(|view| view.last) {
        Some((succeeded, at)) => {
            let what = if succeeded { "succeeded" } else { "failed" };
            format!("{result}; last attempt {what} {} ago", age_at(at, now))
        }
        None => result.to_owned(),
    }
}

/// What is asked, as `kubectl describe` shows it.
fn handler(probe: &k8s::Probe) -> String {
    let text = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
    if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.iter().flatten().cloned().collect::<Vec<_>>().join(" "))
    } else if let Some(get) = &probe.http_get {
        let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let path = get.path.as_deref().unwrap_or("/");
        format!("http-get {scheme}://{}:{}{path}", text(&get.host), port(&get.port))
    } else if let Some(tcp) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", text(&tcp.host), port(&tcp.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, text(&grpc.service)).trim_end().to_owned()
    } else {
        "unknown".to_owned()
    }
}

fn port(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2026-11-20T10:00:10Z";

    fn container() -> k8s::Container {
        serde_json::from_value(json!({
            "name": "web",
            "livenessProbe": {"httpGet": {"port": "http", "path": "/alive"}, "periodSeconds": 5},
            "readinessProbe": {"exec": {"command": ["cat", "/ready"]}},
        }))
        .unwrap()
    }

    fn view(kind: ProbeKind) -> ProbeView {
        let at = "2026-11-20T10:00:07Z".parse().unwrap();
        ProbeView {
            container: "web".into(),
            kind,
            result: Some(false),
            last: Some((false, at)),
            last_failure: Some(("cat: can't open\n'/ready'".into(), at)),
        }
    }

    #[test]
    fn a_probe_shows_its_result_and_its_last_failure() {
        let views = [view(ProbeKind::Readiness)];
        let now = NOW.parse().unwrap();
        let text = describe(&container(), ProbeKind::Readiness, &views, now).unwrap();
        assert_eq!(
            text,
            "exec [cat /ready] delay=0s timeout=1s period=10s #success=1 #failure=3\n\
             failing; last attempt failed 3s ago\n\
             last failure 3s ago: cat: can't open '/ready'"
        );
        let text = describe(&container(), ProbeKind::Liveness, &views, now).unwrap();
        assert_eq!(
            text,
            "http-get http://:http/alive delay=0s timeout=1s period=5s #success=1 #failure=3\n\
             no result yet"
        );
        assert_eq!(describe(&container(), ProbeKind::Startup, &views, now), None);
    }
}
