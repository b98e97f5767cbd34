//! What a node asks of the API server, counted by the link between them.

use crate::{
    controlplane::link::{Link, Recorded},
    objects::{LEASES, NODES},
    sightings::kind_of,
};
use std::time::Duration;

/// How long a quiet node is watched.
pub const QUIET: Duration = Duration::from_secs(300);

/// What was asked and carried in some time.
pub struct Asked {
    /// Requests.
    pub requests: f64,
    /// Of these, requests that an idle node does not make: no lease, and nothing of the Node.
    pub of_pods: f64,
    /// KiB of requests and answers, as carried.
    pub kib: f64,
}

impl Asked {
    /// Counts during `act`, and tells on the terminal how many of each kind there were.
    pub fn during(link: &Link, act: impl FnOnce()) -> Self {
        link.http.forget();
        let before = link.tcp.bytes();
        act();
        let after = link.tcp.bytes();
        let requests = link.http.requests();
        let bytes = after.sent - before.sent + after.received - before.received;
        let mut kinds: Vec<String> =
            requests.iter().map(|r| format!("{} {}", r.verb, kind_of(&r.path))).collect();
        kinds.sort_unstable();
        for kind in kinds.chunk_by(|a, b| a == b) {
            crate::progress(&format!("        {:4} {}", kind.len(), kind[0]));
        }
        let of_pods = requests.iter().filter(|request| is_of_pods(request)).count();
        #[expect(clippy::cast_precision_loss, reason = "counts of minutes are small")]
        let [requests, of_pods, kib] =
            [requests.len() as u64, of_pods as u64, bytes >> 10].map(|count| count as f64);
        Self { requests, of_pods, kib }
    }
}

fn is_of_pods(request: &Recorded) -> bool {
    ![LEASES, NODES].iter().any(|path| request.path.starts_with(path))
}
