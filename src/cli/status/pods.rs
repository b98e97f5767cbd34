//! The table of pods, and why a pod does not run.

use super::text;
use crate::{
    model::{NodeView, PodView},
    presentation::{columns, manifest, reason_beside},
};
use jiff::Timestamp;

/// Characters of a reason in the table; `-o wide` has all.
const REASON_WIDTH: usize = 110;

/// The table; a sentence when there are no pods.
pub(super) fn table(pods: &[&PodView], node: &NodeView, now: Timestamp, wide: bool) -> String {
    if pods.is_empty() {
        return "No pods.\n".to_owned();
    }
    let last_good = node.last_good();
    let reasons: Vec<String> =
        pods.iter().map(|view| reason_beside(view, last_good.contains(&view.key))).collect();
    let with_reason = reasons.iter().any(|reason| !reason.is_empty());
    let mut rows = vec![header(wide, with_reason)];
    for (view, reason) in pods.iter().zip(reasons) {
        rows.push(row(view, with_reason.then_some(reason), now, wide));
    }
    text::table(&rows)
}

/// The index of the column with the status.
pub(super) const STATUS: usize = 3;

/// The names of the columns.
pub(super) fn header(wide: bool, with_reason: bool) -> Vec<String> {
    let mut header = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"];
    if wide {
        header.extend(["UID", "IMAGES", "MANIFEST"]);
    }
    header.extend(with_reason.then_some("REASON"));
    header.into_iter().map(str::to_owned).collect()
}

/// The row of a pod; `reason` is `None` when the table has no column for it.
pub(super) fn row(
    view: &PodView,
    reason: Option<String>,
    now: Timestamp,
    wide: bool,
) -> Vec<String> {
    let mut row = columns(view, now).to_vec();
    if wide {
        row.extend([view.uid.to_string(), images(view), manifest(view)]);
    }
    row.extend(reason.map(|reason| if wide { reason } else { text::cut(&reason, REASON_WIDTH) }));
    row
}

fn images(view: &PodView) -> String {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let images = spec.iter().flat_map(|spec| &spec.containers).filter_map(|c| c.image.as_deref());
    let images: Vec<&str> = images.collect();
    if images.is_empty() { "<none>".to_owned() } else { images.join(",") }
}
