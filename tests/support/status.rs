//! What the agent says of itself and of its pods, as read from its socket.

use nodelet::model::{FileVerdict, NodeView, PodView, k8s};
use serde::Deserialize;
use std::{
    fmt,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// One reading of `/status`.
#[derive(Deserialize)]
pub struct Status {
    /// The node.
    pub node: NodeView,
    /// Every pod.
    pub pods: Vec<PodView>,
    /// Recent events, newest last.
    #[serde(default)]
    pub events: Vec<serde_json::Value>,
}

/// Reads the status.
///
/// # Errors
/// When the agent does not answer, in words.
pub fn read(socket: &Path) -> Result<Status, String> {
    let body = get(socket, "/status").map_err(|err| format!("{}: {err}", socket.display()))?;
    serde_json::from_str(&body).map_err(|err| format!("/status is not as expected: {err}\n{body}"))
}

/// GET over HTTP/1.1; gives the body of a 200.
///
/// # Errors
/// No connection, no answer within 10 s, another status.
pub fn get(socket: &Path, path: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    exchange(&mut stream, path)
}

/// One request and its answer's body.
///
/// # Errors
/// As [`get`].
pub fn exchange(stream: &mut (impl Read + Write), path: &str) -> std::io::Result<String> {
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(answer)),
    }
}

impl Status {
    /// The pod that was named `name` in its manifest (the node's name follows), of the newest
    /// incarnation.
    pub fn pod(&self, name: &str) -> Option<&PodView> {
        let full = format!("{name}-{}", super::agent::NODE_NAME);
        self.pods.iter().find(|pod| *pod.key.name == *full)
    }

    /// Whether the pod runs, every container ready.
    pub fn runs(&self, name: &str) -> bool {
        self.pod(name).is_some_and(|pod| {
            let statuses = pod.status.container_statuses.iter().flatten();
            !pod.terminating
                && phase(pod) == "Running"
                && statuses.clone().count() > 0
                && statuses.clone().all(|status| status.ready)
        })
    }

    /// The pod's phase; empty when there is no such pod.
    pub fn phase(&self, name: &str) -> &str {
        self.pod(name).map_or("", phase)
    }

    /// A container's status (regular or init).
    pub fn container(&self, pod: &str, container: &str) -> Option<&k8s::ContainerStatus> {
        let status = &self.pod(pod)?.status;
        let regular = status.container_statuses.iter().flatten();
        let init = status.init_container_statuses.iter().flatten();
        regular.chain(init).find(|status| status.name == container)
    }

    /// Restart count of a container; -1 when it is unknown.
    pub fn restarts(&self, pod: &str, container: &str) -> i32 {
        self.container(pod, container).map_or(-1, |status| status.restart_count)
    }

    /// Why a container waits; empty when it does not.
    pub fn waiting_reason(&self, pod: &str, container: &str) -> &str {
        let state = self.container(pod, container).and_then(|status| status.state.as_ref());
        let waiting = state.and_then(|state| state.waiting.as_ref());
        waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default()
    }

    /// How a container ended, in its present or its last state.
    pub fn terminated(&self, pod: &str, container: &str) -> Option<&k8s::ContainerStateTerminated> {
        let status = self.container(pod, container)?;
        let now = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        now.or_else(|| status.last_state.as_ref().and_then(|state| state.terminated.as_ref()))
    }

    /// The verdicts on a manifest file, by file name.
    pub fn verdicts(&self, file: &str) -> Vec<&FileVerdict> {
        let reports = self.node.sources.iter().flat_map(|source| &source.files);
        let ours = reports.filter(|report| report.location.rsplit('/').next() == Some(file));
        ours.flat_map(|report| &report.verdicts).collect()
    }

    /// Whether a file has a rejected document.
    pub fn rejected(&self, file: &str) -> bool {
        self.verdicts(file).iter().any(|verdict| matches!(verdict, FileVerdict::Rejected { .. }))
    }

    /// Whether an event with that reason was recorded whose text mentions `about`.
    pub fn has_event(&self, reason: &str, about: &str) -> bool {
        self.events
            .iter()
            .any(|event| event["reason"] == reason && event.to_string().contains(about))
    }
}

/// The phase, empty when not set.
pub fn phase(pod: &PodView) -> &str {
    pod.status.phase.as_deref().unwrap_or_default()
}

/// A few lines that a person can read in a failed test's output.
impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runtime = &self.node.runtime;
        let (not_ready, no_network) = (&runtime.not_ready, &runtime.network_not_ready);
        writeln!(
            f,
            "\nruntime: not_ready {not_ready:?}, network {no_network:?}, pleg {:?}",
            self.node.pleg
        )?;
        for warning in &self.node.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        for source in &self.node.sources {
            writeln!(f, "source {}: {:?}", source.location, source.error)?;
            for file in &source.files {
                writeln!(f, "  {}: {:?}", file.location, file.verdicts)?;
            }
        }
        for pod in &self.pods {
            let (terminating, hung, waiting) = (pod.terminating, &pod.hung, &pod.waiting);
            write!(f, "pod {} {} {}", pod.key, pod.uid, phase(pod))?;
            writeln!(f, " terminating {terminating} hung {hung:?} waiting {waiting:?}")?;
            let init = pod.status.init_container_statuses.iter().flatten();
            for container in init.chain(pod.status.container_statuses.iter().flatten()) {
                let state = serde_json::to_string(&container.state).unwrap_or_default();
                let (name, restarts) = (&container.name, container.restart_count);
                writeln!(f, "  {name}: ready {} restarts {restarts} {state}", container.ready)?;
            }
        }
        for event in self.events.iter().rev().take(12) {
            writeln!(f, "event {} {} {}", event["reason"], event["message"], event["count"])?;
        }
        Ok(())
    }
}
