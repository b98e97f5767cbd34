//! The CRI requests of nodelet and of the upstream kubelet, compared field by field.
//!
//! Both run the same manifests, each on a containerd of its own behind the recording proxy; then
//! the manifests are removed. What an agent has to choose for itself (uids, ids, directories,
//! times) is named, everything else has to be the same, or stand in [`expected::ALL`] with its
//! reason. An entry there that no longer comes true fails as well.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    unreachable_pub,
    reason = "a panic is how a test fails"
)]

#[path = "../support/mod.rs"]
mod support;
#[path = "../upstream/mod.rs"]
mod upstream;

mod expected;
mod manifests;
mod recording;
mod requests;

use recording::{Recording, Side};
use std::collections::BTreeSet;
use support::skips::skip_without;

/// A field of a request that is not the same, or a whole request that only one makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// `pod method container attempt`
    pub request: String,
    /// The field's path, or `(request)`.
    pub field: String,
    /// What nodelet sends; empty for nothing.
    pub ours: String,
    /// What the kubelet sends.
    pub theirs: String,
}

#[test]
fn requests_are_the_kubelets() {
    if support::skip_without_containerd() {
        return;
    }
    let Some(kubelet) = upstream::binary() else {
        skip_without(&[(false, "an upstream kubelet or Go to build it")]);
        return;
    };
    // The same for both, and a shared mount, as mount propagation asks of it.
    let slot = support::slot::Slot::take();
    let host_dir = slot.dir().join("host");
    std::fs::create_dir(&host_dir).unwrap();
    upstream::share(&host_dir);
    let cases = manifests::all(host_dir.to_str().unwrap());
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| Recording::make(Side::Kubelet(&kubelet), &cases));
        let ours = Recording::make(Side::Nodelet, &cases);
        (ours, theirs.join().unwrap())
    });
    let differences = compare(&ours, &theirs);
    let expected: Vec<_> = expected::here().collect();
    let mut unused: BTreeSet<usize> = (0..expected.len()).collect();
    let mut report = Vec::new();
    for difference in &differences {
        match expected.iter().position(|entry| entry.is_for(difference)) {
            Some(index) => _ = unused.remove(&index),
            None => report.push(format!(
                "not expected: {}\n    {}\n    nodelet: {:?}\n    kubelet: {:?}",
                difference.request, difference.field, difference.ours, difference.theirs
            )),
        }
    }
    for index in unused {
        let expected::Expected { request, field, reason } = expected[index];
        report.push(format!("expected, but no longer so: {request}\n    {field}\n    {reason}"));
    }
    let requests = ours.requests.len();
    assert!(
        report.is_empty(),
        "{} differences in {requests} requests, which lie in {}:\n{}",
        report.len(),
        recording::directory().display(),
        report.join("\n")
    );
    assert!(requests > 100, "only {requests} requests were compared");
}

fn compare(ours: &Recording, theirs: &Recording) -> Vec<Difference> {
    let mut differences = Vec::new();
    let all: BTreeSet<&String> = ours.requests.keys().chain(theirs.requests.keys()).collect();
    for request in all {
        let mut differs = |field: &str, ours: &str, theirs: &str| {
            if ours != theirs {
                differences.push(Difference {
                    request: request.clone(),
                    field: field.to_owned(),
                    ours: ours.to_owned(),
                    theirs: theirs.to_owned(),
                });
            }
        };
        match (ours.requests.get(request), theirs.requests.get(request)) {
            (Some(ours), Some(theirs)) => {
                let fields: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
                for field in fields {
                    let of = |side: &requests::Fields| side.get(field).cloned().unwrap_or_default();
                    differs(field, &of(ours), &of(theirs));
                }
            }
            (ours, theirs) => {
                let made = |fields: Option<_>| if fields.is_some() { "made" } else { "" };
                differs("(request)", made(ours), made(theirs));
            }
        }
    }
    differences
}
