//! DNS settings of a pod: pure, from the node's resolver configuration and the pod's policy.

use crate::model::k8s;
use std::{fmt, net::IpAddr};

/// What resolvers take.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LENGTH: usize = 255;
const MAX_SEARCH_LINE: usize = 2048;

/// A parsed resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines, in order.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// `options`, merged by name.
    pub options: Vec<String>,
}

/// What the node knows about DNS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDns {
    /// The file that `resolvConf` names; `None` when it is set to the empty string.
    pub resolv_conf: Option<ResolvConf>,
    /// `clusterDNS`
    pub cluster_servers: Vec<String>,
    /// `clusterDomain`, may be empty.
    pub cluster_domain: String,
    pub node_ips: Vec<IpAddr>,
}

/// DNS settings of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDns {
    /// At most 3.
    pub servers: Vec<String>,
    /// At most 32, 2048 characters together.
    pub searches: Vec<String>,
    /// `name` or `name:value`.
    pub options: Vec<String>,
    /// For the pod's events.
    pub warnings: Vec<DnsWarning>,
}

/// Something about the settings that a person should know; `Display` is the event's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsWarning {
    /// The pod wants the cluster's DNS and the node has none. For the node; the pod's event has
    /// `pod: "<name>_<namespace>(<uid>)". ` in front.
    MissingClusterDns,
    /// Too many servers; these are used.
    Servers {
        /// Joined by spaces.
        applied: String,
    },
    /// Too many or too long search domains; these are used.
    Searches {
        /// Joined by spaces.
        applied: String,
    },
}

impl DnsWarning {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MissingClusterDns => "MissingClusterDNS",
            Self::Servers { .. } | Self::Searches { .. } => "DNSConfigForming",
        }
    }
}

impl fmt::Display for DnsWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingClusterDns => f.write_str(
                "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
            ),
            Self::Servers { applied } => write!(
                f,
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {applied}"
            ),
            Self::Searches { applied } => write!(
                f,
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {applied}"
            ),
        }
    }
}

impl ResolvConf {
    /// Reads the text of a resolv.conf. Lines that it doesn't know are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parsed = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => parsed.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    parsed.searches = words
                        .filter(|domain| *domain != ".")
                        .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                        .collect();
                }
                Some("options") => merge_options(&mut parsed.options, words.map(str::to_owned)),
                Some(_) | None => {}
            }
        }
        parsed
    }
}

/// The DNS settings for a pod of `namespace`.
#[must_use]
pub fn pod_dns(spec: &k8s::PodSpec, namespace: &str, node: &NodeDns) -> PodDns {
    let host_network = spec.host_network == Some(true);
    let mut warnings = Vec::new();
    let wants_cluster = match spec.dns_policy.as_deref() {
        Some("None") => None,
        Some("Default") => Some(false),
        Some("ClusterFirst") => Some(!host_network),
        Some(_) => Some(true),
        None => Some(!host_network),
    };
    let mut dns = match wants_cluster {
        None => ResolvConf::default(),
        Some(true) if !node.cluster_servers.is_empty() => cluster_settings(namespace, node),
        Some(wanted) => {
            if wanted {
                warnings.push(DnsWarning::MissingClusterDns);
            }
            node.resolv_conf.clone().unwrap_or_else(|| no_resolution(&node.node_ips))
        }
    };
    if let Some(config) = &spec.dns_config {
        add_missing(&mut dns.servers, config.nameservers.iter().flatten());
        add_missing(&mut dns.searches, config.searches.iter().flatten());
        let options = config.options.iter().flatten().map(|option| {
            let name = option.name.as_deref().unwrap_or("");
            match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                Some(_) | None => name.to_owned(),
            }
        });
        merge_options(&mut dns.options, options);
    }
    fit(dns, warnings)
}

fn cluster_settings(namespace: &str, node: &NodeDns) -> ResolvConf {
    let mut searches = Vec::new();
    let domain = &node.cluster_domain;
    if !domain.is_empty() {
        searches.push(format!("{namespace}.svc.{domain}"));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.clone());
    }
    let host = node.resolv_conf.iter().flat_map(|conf| &conf.searches);
    add_missing(&mut searches, host);
    ResolvConf {
        servers: node.cluster_servers.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

/// `resolvConf: ""`: nothing is to be resolved, which takes a server that isn't there.
fn no_resolution(node_ips: &[IpAddr]) -> ResolvConf {
    let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
    let mut servers: Vec<String> = node_ips.iter().map(loopback).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    ResolvConf { servers, searches: vec![".".to_owned()], options: Vec::new() }
}

fn add_missing<'a>(list: &mut Vec<String>, more: impl Iterator<Item = &'a String>) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// A later option of the same name replaces the earlier one, at its place.
fn merge_options(options: &mut Vec<String>, more: impl Iterator<Item = String>) {
    let name = |option: &str| option.split(':').next().unwrap_or("").to_owned();
    for option in more {
        match options.iter_mut().find(|known| name(known) == name(&option)) {
            Some(known) => *known = option,
            None => options.push(option),
        }
    }
}

/// Cuts the settings to what resolvers take.
fn fit(dns: ResolvConf, mut warnings: Vec<DnsWarning>) -> PodDns {
    let ResolvConf { mut servers, mut searches, options } = dns;
    if servers.len() > MAX_SERVERS {
        servers.truncate(MAX_SERVERS);
        warnings.push(DnsWarning::Servers { applied: servers.join(" ") });
    }
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    // glibc 2.28 aborts the process on a longer one.
    searches.retain(|domain| domain.len() <= MAX_SEARCH_LENGTH);
    let mut length = 0;
    let fitting = searches
        .iter()
        .take_while(|domain| {
            length += domain.len() + 1;
            length - 1 <= MAX_SEARCH_LINE
        })
        .count();
    searches.truncate(fitting);
    if searches.len() < before {
        warnings.push(DnsWarning::Searches { applied: searches.join(" ") });
    }
    PodDns { servers, searches, options, warnings }
}
