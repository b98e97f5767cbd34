//! Probes and lifecycle hooks.

use super::{Report, given, names};
use crate::{
    model::{ProbeKind, k8s},
    podspec::is_sidecar,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// A container of `spec.containers` or, with `init`, of `spec.initContainers`.
pub(super) fn check(
    report: &mut Report,
    path: &str,
    container: &k8s::Container,
    init: bool,
    pod_grace: i64,
) {
    let plain_init = init && !is_sidecar(container);
    let forbidden = "must not be set for init containers without restartPolicy=Always";
    for kind in ProbeKind::ALL {
        let Some(probe) = kind.of(container) else { continue };
        let path = format!("{path}.{}Probe", kind.name());
        if plain_init {
            report.forbidden(&path, forbidden);
        } else {
            check_probe(report, &path, probe, kind, container);
        }
    }
    let Some(lifecycle) = &container.lifecycle else { return };
    let path = format!("{path}.lifecycle");
    if plain_init {
        report.forbidden(&path, forbidden);
        return;
    }
    for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(hook) = hook {
            check_hook(report, &format!("{path}.{name}"), hook, container, pod_grace);
        }
    }
}

fn check_probe(
    report: &mut Report,
    path: &str,
    probe: &k8s::Probe,
    kind: ProbeKind,
    container: &k8s::Container,
) {
    let handlers = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    check_one_handler(report, path, &handlers);
    if let Some(exec) = &probe.exec {
        check_exec(report, path, exec);
    }
    if let Some(get) = &probe.http_get {
        check_http_get(report, path, get, container);
    }
    if let Some(tcp) = &probe.tcp_socket {
        check_port(report, &format!("{path}.tcpSocket.port"), &tcp.port, container);
    }
    if let Some(grpc) = &probe.grpc
        && !(1..=65535).contains(&grpc.port)
    {
        report.invalid(&format!("{path}.grpc.port"), grpc.port, PORT_RANGE);
    }
    let numbers = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (name, number) in numbers {
        if let Some(number) = number.filter(|number| *number < 0) {
            let detail = "must be greater than or equal to 0";
            report.invalid(&format!("{path}.{name}"), number, detail);
        }
    }
    if let Some(threshold) = probe.success_threshold
        && kind != ProbeKind::Readiness
        && threshold > 1
    {
        report.invalid(&format!("{path}.successThreshold"), threshold, "must be 1");
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        let path = format!("{path}.terminationGracePeriodSeconds");
        if kind == ProbeKind::Readiness {
            report.invalid(&path, grace, "must not be set for readinessProbes");
        } else if grace <= 0 {
            report.invalid(&path, grace, "must be greater than 0");
        }
    }
}

fn check_hook(
    report: &mut Report,
    path: &str,
    hook: &k8s::LifecycleHandler,
    container: &k8s::Container,
    pod_grace: i64,
) {
    let handlers = [
        ("exec", hook.exec.is_some()),
        ("httpGet", hook.http_get.is_some()),
        ("sleep", hook.sleep.is_some()),
    ];
    check_one_handler(report, path, &handlers);
    if let Some(exec) = &hook.exec {
        check_exec(report, path, exec);
    }
    if let Some(get) = &hook.http_get {
        check_http_get(report, path, get, container);
    }
    if let Some(sleep) = &hook.sleep
        && !(0..=pod_grace).contains(&sleep.seconds)
    {
        let detail = format!(
            "must be non-negative and less than or equal to terminationGracePeriodSeconds ({pod_grace})"
        );
        report.invalid(&format!("{path}.sleep.seconds"), sleep.seconds, &detail);
    }
}

fn check_one_handler(report: &mut Report, path: &str, handlers: &[(&str, bool)]) {
    let mut set = handlers.iter().filter(|(_, set)| *set);
    if set.next().is_none() {
        report.required_because(path, "must specify a handler type");
    }
    for (name, _) in set {
        report.forbidden(&format!("{path}.{name}"), "may not specify more than 1 handler type");
    }
}

fn check_exec(report: &mut Report, path: &str, exec: &k8s::ExecAction) {
    if exec.command.as_ref().is_none_or(Vec::is_empty) {
        report.required(&format!("{path}.exec.command"));
    }
}

fn check_http_get(
    report: &mut Report,
    path: &str,
    get: &k8s::HTTPGetAction,
    container: &k8s::Container,
) {
    let path = format!("{path}.httpGet");
    check_port(report, &format!("{path}.port"), &get.port, container);
    let schemes = ["HTTP", "HTTPS"];
    report.one_of(&format!("{path}.scheme"), given(get.scheme.as_ref()), &schemes);
    for (index, header) in get.http_headers.iter().flatten().enumerate() {
        let path = format!("{path}.httpHeaders[{index}].name");
        if header.name.is_empty() {
            report.required(&path);
        } else if !header.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name')";
            report.invalid(&path, header.name.as_str(), detail);
        }
    }
}

/// A name that no port of the container has fails when the container runs, as in the kubelet.
fn check_port(report: &mut Report, path: &str, port: &IntOrString, container: &k8s::Container) {
    match port {
        IntOrString::Int(number) if !(1..=65535).contains(number) => {
            report.invalid(path, *number, PORT_RANGE);
        }
        IntOrString::Int(_) => {}
        IntOrString::String(digits)
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) =>
        {
            let detail = "a port number must not be in quotes: remove the quotes";
            report.invalid(path, digits.as_str(), detail);
        }
        IntOrString::String(name) => {
            report.name(path, name, names::port_name);
            let mut ports = container.ports.iter().flatten();
            if !name.is_empty() && !ports.any(|port| port.name.as_deref() == Some(name)) {
                report.warn(path, "no port of the container has this name, so this fails");
            }
        }
    }
}
