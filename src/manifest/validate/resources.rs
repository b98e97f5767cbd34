//! Requests and limits of containers and of the pod.

use super::Report;
use crate::{
    model::{Quantity, k8s},
    podspec::{is_sidecar, pod_limits, pod_requests},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use std::collections::{BTreeMap, BTreeSet};

type Amounts = BTreeMap<String, Written>;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

pub(super) fn check_container(report: &mut Report, path: &str, container: &k8s::Container) {
    let Some(resources) = &container.resources else { return };
    check(report, &format!("{path}.resources"), resources);
}

/// `resizePolicy` of a container of `spec.containers` or, with `init`, of `spec.initContainers`.
/// `never`: the pod has `restartPolicy: Never`, so a resize must not need a restart.
pub(super) fn check_resize(
    report: &mut Report,
    path: &str,
    container: &k8s::Container,
    init: bool,
    never: bool,
) {
    let plain_init = init && !is_sidecar(container);
    let mut resources = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let path = format!("{path}.resizePolicy[{index}]");
        let (resource, restart) = (policy.resource_name.as_str(), policy.restart_policy.as_str());
        if !resources.insert(resource) {
            report.duplicate(&path, resource);
        }
        for (name, value, supported) in [
            ("resourceName", resource, ["cpu", "memory"]),
            ("restartPolicy", restart, ["NotRequired", "RestartContainer"]),
        ] {
            let path = format!("{path}.{name}");
            if value.is_empty() {
                report.required(&path);
            } else {
                report.one_of(&path, Some(value), &supported);
            }
        }
        if restart == "RestartContainer" && (never || plain_init) {
            let detail = if never {
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            } else {
                "must not be set to 'RestartContainer' for non-sidecar initContainers"
            };
            report.invalid(&format!("{path}.restartPolicy"), restart, detail);
        }
    }
}

/// Requests and limits of the pod as a whole, and what they mean for its containers'.
pub(super) fn check_pod(report: &mut Report, spec: &k8s::PodSpec) {
    let none = Amounts::new();
    for (name, written) in spec.overhead.as_ref().unwrap_or(&none) {
        let path = format!("spec.overhead[{name}]");
        if is_known(report, &path, name) {
            check_amount(report, &path, written);
        }
    }
    let Some(resources) = &spec.resources else { return };
    check(report, "spec.resources", resources);
    for name in ["cpu", "memory"] {
        if let Some(limit) = amount(resources.limits.as_ref(), name) {
            for (index, container) in spec.containers.iter().enumerate() {
                let own =
                    container.resources.as_ref().and_then(|r| amount(r.limits.as_ref(), name));
                if let Some(own) = own.filter(|own| *own > limit) {
                    let path = format!("spec.containers[{index}].resources.limits[{name}]");
                    let detail = format!("must be less than or equal to pod limits of {limit}");
                    report.invalid(&path, own.to_string(), &detail);
                }
            }
        }
    }
    check_sums(report, spec, resources);
    for (list, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        if amounts.as_ref().is_some_and(|a| a.contains_key("ephemeral-storage")) {
            let path = format!("spec.resources.{list}[ephemeral-storage]");
            report.unsupported_value(&path, "ephemeral-storage", &["cpu", "hugepages-*", "memory"]);
        }
    }
}

/// What the containers request together, with sidecars and init containers, fits into the pod's
/// requests. For huge pages, whose requests equal their limits, the limits are compared instead.
fn check_sums(report: &mut Report, spec: &k8s::PodSpec, resources: &k8s::ResourceRequirements) {
    let containers = k8s::PodSpec { resources: None, ..spec.clone() };
    let sums = pod_requests(&containers);
    for name in ["cpu", "memory"] {
        let request = amount(resources.requests.as_ref(), name);
        if let (Some(request), Some(sum)) = (request, sums.get(name))
            && sum > request
        {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            let path = format!("spec.resources.requests[{name}]");
            report.invalid(&path, request.to_string(), &detail);
        }
    }
    let sums = pod_limits(&containers);
    for (name, sum) in sums.iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        if let Some(limit) = amount(resources.limits.as_ref(), name).filter(|limit| sum > *limit) {
            let detail =
                format!("must be greater than or equal to aggregate container limits of {sum}");
            let path = format!("spec.resources.limits[{name}]");
            report.invalid(&path, limit.to_string(), &detail);
        }
    }
}

fn check(report: &mut Report, path: &str, resources: &k8s::ResourceRequirements) {
    let none = Amounts::new();
    let limits = resources.limits.as_ref().unwrap_or(&none);
    let requests = resources.requests.as_ref().unwrap_or(&none);
    for (list, amounts) in [("limits", limits), ("requests", requests)] {
        for (name, written) in amounts {
            // Most likely a default made of the limit: said once.
            if list == "requests" && limits.get(name) == Some(written) {
                continue;
            }
            let path = format!("{path}.{list}[{name}]");
            if is_known(report, &path, name) {
                check_amount(report, &path, written);
                page_multiple(report, &path, name, written);
            }
        }
    }
    for (name, request) in requests {
        let (Some(limit), Ok(request)) = (amount(Some(limits), name), Quantity::parse(&request.0))
        else {
            if name.starts_with("hugepages-") && !limits.contains_key(name) {
                let detail = "Limit must be set for non overcommitable resources";
                report.required_because(&format!("{path}.limits[{name}]"), detail);
            }
            continue;
        };
        let path = format!("{path}.requests[{name}]");
        if name.starts_with("hugepages-") && request != limit {
            let detail = format!("must be equal to {name} limit of {limit}");
            report.invalid(&path, request.to_string(), &detail);
        } else if request > limit {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            report.invalid(&path, request.to_string(), &detail);
        }
    }
    let any = |prefix: &str| limits.keys().chain(requests.keys()).any(|n| n.starts_with(prefix));
    if any("hugepages-") && !any("cpu") && !any("memory") {
        report.forbidden(path, "HugePages require cpu or memory");
    }
}

/// Resources that this node has. Extended resources need device plugins, which this version does
/// not support: a pod that asks for one could never start.
fn is_known(report: &mut Report, path: &str, name: &str) -> bool {
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || name.strip_prefix("hugepages-").is_some_and(|size| Quantity::parse(size).is_ok());
    if !known && name.contains('/') {
        report.not_honoured(path, "there are no device plugins that could provide this resource");
    } else if !known {
        let names = ["cpu", "ephemeral-storage", "hugepages-*", "memory"];
        report.unsupported_value(path, name, &names);
    }
    known
}

fn check_amount(report: &mut Report, path: &str, written: &Written) {
    if Quantity::parse(&written.0).is_ok_and(Quantity::is_negative) {
        report.invalid(path, written.0.as_str(), NOT_NEGATIVE);
    }
}

fn page_multiple(report: &mut Report, path: &str, name: &str, written: &Written) {
    let page = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok());
    let (Some(page), Ok(amount)) = (page, Quantity::parse(&written.0)) else { return };
    if page.value() <= 0 || amount.value() % page.value() != 0 {
        let detail = "must be a multiple of the page size";
        report.invalid(path, written.0.as_str(), detail);
    }
}

fn amount(amounts: Option<&Amounts>, name: &str) -> Option<Quantity> {
    Quantity::parse(&amounts?.get(name)?.0).ok()
}
