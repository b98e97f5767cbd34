//! DNS, host names and host aliases.

use super::{Report, given, names};
use crate::model::k8s;
use std::net::IpAddr;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const IS_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec) {
    report.one_of(
        "spec.dnsPolicy",
        spec.dns_policy.as_deref(),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    let servers = spec.dns_config.iter().flat_map(|c| c.nameservers.iter().flatten()).count();
    if spec.dns_policy.as_deref() == Some("None") && servers == 0 {
        report.required_because(
            "spec.dnsConfig.nameservers",
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        );
    }
    if let Some(config) = &spec.dns_config {
        dns_config(report, config);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = format!("spec.hostAliases[{index}]");
        ip(report, &format!("{path}.ip"), &alias.ip);
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            report.name(&format!("{path}.hostnames[{index}]"), name, names::dns_subdomain);
        }
    }
    hostname(report, spec);
}

fn dns_config(report: &mut Report, config: &k8s::PodDNSConfig) {
    let path = "spec.dnsConfig";
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > MAX_NAMESERVERS {
        report.too_many(&format!("{path}.nameservers"), servers.len(), MAX_NAMESERVERS);
    }
    for (index, server) in servers.iter().enumerate() {
        ip(report, &format!("{path}.nameservers[{index}]"), server);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        report.too_many(&format!("{path}.searches"), searches.len(), MAX_SEARCHES);
    }
    if searches.join(" ").chars().count() > MAX_SEARCH_CHARS {
        report.too_long(&format!("{path}.searches"), MAX_SEARCH_CHARS);
    }
    for (index, search) in searches.iter().enumerate() {
        // "." alone is allowed, and one dot at the end; underscores are, anywhere.
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "u");
        if search != "."
            && let Err(detail) = names::dns_subdomain(&name)
        {
            let path = format!("{path}.searches[{index}]");
            report.invalid(&path, search.as_str(), &detail.to_string());
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if given(option.name.as_ref()).is_none() {
            let path = format!("{path}.options[{index}].name");
            report.required_because(&path, "must not be empty");
        }
    }
}

fn hostname(report: &mut Report, spec: &k8s::PodSpec) {
    if let Some(hostname) = given(spec.hostname.as_ref()) {
        report.name("spec.hostname", hostname, names::dns_label);
    }
    if let Some(subdomain) = given(spec.subdomain.as_ref()) {
        report.name("spec.subdomain", subdomain, names::dns_label);
    }
    let Some(name) = given(spec.hostname_override.as_ref()) else { return };
    let path = "spec.hostnameOverride";
    report.name(path, name, names::dns_subdomain);
    if name.len() > 64 {
        report.too_long(path, 64);
    }
    if spec.host_network == Some(true) {
        report.forbidden(path, "may not be set when `hostNetwork` is true");
    }
    if spec.set_hostname_as_fqdn == Some(true) {
        report.forbidden(path, "may not be set when `setHostnameAsFQDN` is true");
    }
}

/// An IP address in its usual notation.
pub(super) fn ip(report: &mut Report, path: &str, text: &str) {
    if text.is_empty() {
        report.required(path);
    } else if text.parse::<IpAddr>().is_err() {
        report.invalid(path, text, IS_IP);
    }
}
