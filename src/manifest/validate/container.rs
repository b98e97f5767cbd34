//! `spec.containers` and `spec.initContainers`.

use super::{Report, dns, env, given, lifecycle, names, resources, security, volumes};
use crate::{
    model::k8s,
    podspec::image_name::{self, NameError},
};
use std::collections::HashSet;

const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// What containers and volumes refer to by name.
pub(super) struct Named<'a> {
    pub(super) volumes: HashSet<&'a str>,
    pub(super) containers: HashSet<&'a str>,
}

impl<'a> Named<'a> {
    pub(super) fn of(spec: &'a k8s::PodSpec) -> Self {
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        Self {
            volumes: spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect(),
            containers: all.map(|c| c.name.as_str()).collect(),
        }
    }
}

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec, named: &Named<'_>) {
    let host_network = spec.host_network == Some(true);
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    let never = spec.restart_policy.as_deref() == Some("Never");
    let mut names = HashSet::new();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        let is_init = list == "initContainers";
        let mut host_ports = HashSet::new();
        for (index, container) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            let name_path = format!("{path}.name");
            report.name(&name_path, &container.name, names::dns_label);
            if !container.name.is_empty() && !names.insert(container.name.as_str()) {
                report.duplicate(&name_path, container.name.as_str());
            }
            check_one(report, &path, container, named);
            check_ports(report, &path, container, host_network && !is_init);
            lifecycle::check(report, &path, container, is_init, grace);
            if is_init {
                // The API server checks each init container alone, because they run one by one.
                host_ports.clear();
            }
            check_host_ports(report, &path, container, &mut host_ports);
            resources::check_resize(report, &path, container, is_init, never);
        }
    }
    if spec.containers.is_empty() {
        report.required("spec.containers");
    }
}

/// What is wrong with the name of an image, without the name, which may be long.
fn image_detail(error: &NameError) -> String {
    let reason = match error {
        NameError::Uppercase { .. } => "repository name must be lowercase".to_owned(),
        NameError::LooksLikeId { .. } => "64 hexadecimal digits are the id of an image".to_owned(),
        NameError::Format
        | NameError::TooLong
        | NameError::DigestAlgorithm
        | NameError::DigestLength => error.to_string(),
    };
    let examples = "'busybox:1.37' or 'registry.example.com/team/app:v1'";
    format!("must be an image name like {examples}: {reason}")
}

/// The name of an image, and the policy of its pulls.
pub(super) fn check_image(
    report: &mut Report,
    (path, image): (&str, Option<&String>),
    (policy_path, policy): (&str, Option<&str>),
) {
    match given(image) {
        None => report.required(path),
        Some(image) if image.trim() != image => {
            let detail = "must not have leading or trailing whitespace";
            report.invalid(path, image, detail);
        }
        Some(image) => {
            if let Err(error) = image_name::normalize(image) {
                report.invalid(path, image, &image_detail(&error));
            }
        }
    }
    report.one_of(policy_path, policy, &["Always", "IfNotPresent", "Never"]);
}

fn check_one(report: &mut Report, path: &str, container: &k8s::Container, named: &Named<'_>) {
    check_image(
        report,
        (&format!("{path}.image"), container.image.as_ref()),
        (&format!("{path}.imagePullPolicy"), container.image_pull_policy.as_deref()),
    );
    report.one_of(
        &format!("{path}.terminationMessagePolicy"),
        container.termination_message_policy.as_deref(),
        &["File", "FallbackToLogsOnError"],
    );
    env::check(report, path, container, named);
    volumes::check_mounts(report, path, container, named);
    resources::check_container(report, path, container);
    security::check_container(report, path, container);
    check_restart(report, path, container);
}

/// `same`: a port of the host must be the port of the container.
fn check_ports(report: &mut Report, path: &str, container: &k8s::Container, same: bool) {
    let in_range = |port: i32| (1..=65535).contains(&port);
    let mut names = HashSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = format!("{path}.ports[{index}]");
        if let Some(name) = given(port.name.as_ref()) {
            report.name(&format!("{path}.name"), name, names::port_name);
            if !names.insert(name) {
                report.duplicate(&format!("{path}.name"), name);
            }
        }
        let range = "must be between 1 and 65535, inclusive";
        if port.container_port == 0 {
            report.required(&format!("{path}.containerPort"));
        } else if !in_range(port.container_port) {
            report.invalid(&format!("{path}.containerPort"), port.container_port, range);
        }
        let host_port = port.host_port.unwrap_or(0);
        if host_port != 0 && !in_range(host_port) {
            report.invalid(&format!("{path}.hostPort"), host_port, range);
        } else if same && host_port != 0 && host_port != port.container_port {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            report.invalid(&format!("{path}.hostPort"), host_port, detail);
        }
        report.one_of(
            &format!("{path}.protocol"),
            port.protocol.as_deref(),
            &["SCTP", "TCP", "UDP"],
        );
        if let Some(host_ip) = given(port.host_ip.as_ref()) {
            dns::ip(report, &format!("{path}.hostIP"), host_ip);
        }
    }
}

/// No port of the host is taken twice. `taken`: the ports of the containers before this one.
fn check_host_ports(
    report: &mut Report,
    path: &str,
    container: &k8s::Container,
    taken: &mut HashSet<String>,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(host_port) = port.host_port.filter(|p| *p != 0) else { continue };
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let host_ip = port.host_ip.as_deref().unwrap_or_default();
        let address = format!("{protocol}/{host_ip}/{host_port}");
        if !taken.insert(address.clone()) {
            report.duplicate(&format!("{path}.ports[{index}].hostPort"), address);
        }
    }
}

fn check_restart(report: &mut Report, path: &str, container: &k8s::Container) {
    let policies = ["Always", "OnFailure", "Never"];
    let policy = container.restart_policy.as_deref();
    report.one_of(&format!("{path}.restartPolicy"), policy, &policies);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if rules.is_empty() {
        return;
    }
    if policy.is_none() {
        let detail = "must specify restartPolicy when restart rules are used";
        report.required_because(&format!("{path}.restartPolicy"), detail);
    }
    if rules.len() > MAX_RESTART_RULES {
        report.too_many(&format!("{path}.restartPolicyRules"), rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}.restartPolicyRules[{index}]");
        if rule.action.is_empty() {
            report.required(&format!("{path}.action"));
        } else {
            let actions = ["Restart", "RestartAllContainers"];
            report.one_of(&format!("{path}.action"), Some(&rule.action), &actions);
        }
        let Some(codes) = &rule.exit_codes else {
            report.required_because(&format!("{path}.exitCodes"), "must be specified");
            continue;
        };
        let path = format!("{path}.exitCodes");
        if codes.operator.is_empty() {
            report.required(&format!("{path}.operator"));
        } else {
            report.one_of(&format!("{path}.operator"), Some(&codes.operator), &["In", "NotIn"]);
        }
        let values = codes.values.as_deref().unwrap_or_default();
        if values.len() > MAX_EXIT_CODES {
            report.too_many(&format!("{path}.values"), values.len(), MAX_EXIT_CODES);
        }
    }
}
