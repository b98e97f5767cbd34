//! One attempt of a probe.

use crate::{
    cri::{CriError, RuntimeClient},
    handler::{Handlers, HttpGet, PROBE_USER_AGENT, named_host, resolve_port},
    model::{Finding, k8s},
    podspec::{container_of, pod_display, probe_command, uid_of},
    probe::Attempt,
};

/// A probe that can't be made is tried this often in a row.
const TRIES: usize = 3;

/// Makes an attempt. `host` is the address of the pod.
pub(super) async fn make(
    runtime: &RuntimeClient,
    handlers: &Handlers,
    attempt: &Attempt,
    host: Option<Box<str>>,
) -> Finding {
    let container = container_of(&attempt.pod, &attempt.container);
    let probe = container.and_then(|container| Some((container, attempt.kind.of(container)?)));
    let Some((container, probe)) = probe else {
        return Finding::Error("the container has no such probe any more".to_owned());
    };
    let asked = Asked { runtime, handlers, attempt, container, host: host.as_deref() };
    let mut finding = asked.once(probe).await;
    for _ in 1..TRIES {
        if !matches!(finding, Finding::Error(_)) {
            break;
        }
        finding = asked.once(probe).await;
    }
    finding
}

struct Asked<'a> {
    runtime: &'a RuntimeClient,
    handlers: &'a Handlers,
    attempt: &'a Attempt,
    container: &'a k8s::Container,
    host: Option<&'a str>,
}

/// The host that is asked: the one that the probe names, or else the pod.
fn asked_host<'a>(probe: &'a k8s::Probe, pod_host: Option<&'a str>) -> Option<&'a str> {
    let http = probe.http_get.as_ref().and_then(|action| action.host.as_ref());
    let tcp = probe.tcp_socket.as_ref().and_then(|action| action.host.as_ref());
    named_host(http.or(tcp)).or(pod_host)
}

impl Asked<'_> {
    async fn once(&self, probe: &k8s::Probe) -> Finding {
        let timeout = self.attempt.timeout;
        if let Some(exec) = &probe.exec {
            return Box::pin(self.exec(exec.command.as_deref().unwrap_or_default())).await;
        }
        let Some(host) = asked_host(probe, self.host) else {
            return Finding::Failure("the pod has no IP address".to_owned());
        };
        if let Some(action) = &probe.http_get {
            match HttpGet::of(action, self.container, host, PROBE_USER_AGENT) {
                Ok(get) => Box::pin(self.handlers.http_probe(&get, timeout)).await,
                Err(error) => Finding::Error(error.to_string()),
            }
        } else if let Some(action) = &probe.tcp_socket {
            match resolve_port(&action.port, self.container) {
                Ok(port) => self.handlers.tcp_probe(host, port, timeout).await,
                Err(error) => Finding::Error(error.to_string()),
            }
        } else if let Some(action) = &probe.grpc {
            let service = action.service.as_deref().unwrap_or_default();
            match u16::try_from(action.port) {
                Ok(port) => Box::pin(self.handlers.grpc_probe(host, port, service, timeout)).await,
                Err(_) => Finding::Error(format!("invalid port number: {}", action.port)),
            }
        } else {
            // Only a later version of the API knows the handler. The words are the kubelet's.
            let pod = pod_display(&self.attempt.key, &uid_of(&self.attempt.pod));
            Finding::Error(format!("missing probe handler for {pod}:{}", self.container.name))
        }
    }

    async fn exec(&self, command: &[String]) -> Finding {
        let command = match probe_command(self.container, command) {
            Ok(command) => command,
            Err(error) => return Finding::Failure(error.to_string()),
        };
        let id = &self.attempt.instance;
        match self.runtime.exec_probe(id, command, self.attempt.timeout).await {
            Ok(Some(done)) if done.exit_code == 0 => Finding::Success,
            Ok(Some(done)) => Finding::Failure(String::from_utf8_lossy(&done.output).into_owned()),
            Ok(None) => Finding::Failure("the command has written more than 1 MiB".to_owned()),
            Err(error @ CriError::ExecTimedOut { .. }) => Finding::Failure(error.to_string()),
            Err(error) => Finding::Error(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;

    #[test]
    fn a_probe_that_names_a_host_needs_no_address_of_the_pod() {
        let host = |probe: serde_json::Value, pod_host: Option<&str>| {
            let probe: k8s::Probe = serde_json::from_value(probe).unwrap();
            asked_host(&probe, pod_host).map(str::to_owned)
        };
        let http = |host: &str| json!({"httpGet": {"port": 80, "host": host}});
        let tcp = |host: &str| json!({"tcpSocket": {"port": 80, "host": host}});
        for named in [http("other.example"), tcp("other.example")] {
            assert_eq!(host(named, None).as_deref(), Some("other.example"));
        }
        for of_pod in [http(""), tcp(""), json!({"grpc": {"port": 80}})] {
            assert_eq!(host(of_pod.clone(), Some("10.0.0.2")).as_deref(), Some("10.0.0.2"));
            assert_eq!(host(of_pod, None), None);
        }
    }
}
