//! The node's part in a cluster.

use super::text::{self, Page};
use crate::model::{CLIENT_CERTIFICATE, ClusterView};
use jiff::Timestamp;

const INDENT: usize = 2;

pub(super) fn render(page: &mut Page, view: &ClusterView, node: &str, now: Timestamp) {
    page.line("");
    match &view.server {
        Some(server) => page.line(&format!("Cluster {server}")),
        None if view.troubles.iter().any(|trouble| trouble.what == CLIENT_CERTIFICATE) => {
            page.line("Cluster: the node has no client certificate yet");
        }
        None => page.line(&format!("Cluster: {} can't be used", view.kubeconfig)),
    }
    let registered = match &view.node_uid {
        Some(uid) => format!("node {node}, uid {uid}"),
        None => "NOT REGISTERED yet".to_owned(),
    };
    page.field(INDENT, "Registered", &registered);
    if let Some(until) = view.certificate_until {
        let left = match until > now {
            true => format!("valid for {}", text::age_at(now, until)),
            false => format!("EXPIRED {} ago", text::age_at(until, now)),
        };
        page.field(INDENT, "Certificate", &left);
    }
    let ago = |at: Option<Timestamp>| {
        at.map_or("never".to_owned(), |at| format!("{} ago", text::age_at(at, now)))
    };
    page.field(INDENT, "Status posted", &ago(view.status_posted));
    page.field(INDENT, "Lease renewed", &ago(view.lease_renewed));
    let watching =
        if view.watching { "changes are received" } else { "NO: changes are not received" };
    page.field(INDENT, "Watching", watching);
    let waiting = match (view.pods_waiting, view.events_waiting) {
        (0, 0) => String::new(),
        (pods, events) => format!("; {pods} pods and {events} events wait to be written"),
    };
    if let Some(pods) = view.api_pods {
        page.field(INDENT, "API pods", &pods.to_string());
    }
    page.field(INDENT, "Mirror pods", &format!("{}{waiting}", view.mirrors));
    for trouble in &view.troubles {
        let since = trouble.since.map(|at| format!(", for {}", text::age_at(at, now)));
        let line = format!(
            "{}: {}{}",
            trouble.what,
            text::one_line(&trouble.error),
            since.unwrap_or_default()
        );
        page.field(INDENT, "Failing", &line);
    }
    for note in &view.notes {
        page.block(INDENT, &text::one_line(note));
    }
}
