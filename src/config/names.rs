//! The syntax of names, labels and addresses.

use super::tree::{Mistake, Place};
use std::{collections::BTreeMap, net::IpAddr};

const SUBDOMAIN: &str = "must be lower case letters, digits, '-' and '.', begin and end with a \
     letter or digit, and be at most 253 characters long";
const VALUE: &str = "must be letters, digits, '-', '_' and '.', begin and end with a letter or \
     digit, and be at most 63 characters long";
const KEY: &str = "must be a label name, like example.com/rack";

/// Checks a DNS-1123 subdomain.
pub(super) fn subdomain(text: &str) -> Result<(), &'static str> {
    let good = !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            framed(label, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-')
        });
    if good { Ok(()) } else { Err(SUBDOMAIN) }
}

/// Checks the value of a label, which may be empty.
pub(super) fn label_value(text: &str) -> Result<(), &'static str> {
    let good = text.is_empty()
        || text.len() <= 63
            && framed(text, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'));
    if good { Ok(()) } else { Err(VALUE) }
}

fn label_key(text: &str) -> Result<(), &'static str> {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    let good = !name.is_empty()
        && label_value(name).is_ok()
        && prefix.is_none_or(|prefix| subdomain(prefix).is_ok());
    if good { Ok(()) } else { Err(KEY) }
}

fn framed(text: &str, ends: impl Fn(u8) -> bool, inside: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| ends(*b))
        && bytes.last().is_some_and(|b| ends(*b))
        && bytes.iter().all(|b| ends(*b) || inside(*b))
}

/// Labels under kubernetes.io and k8s.io that a node may give itself.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// `a=b,c=d` of `--node-labels`, with everything that is wrong with it.
pub(super) fn node_labels(text: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut labels, mut wrong) = (BTreeMap::new(), Vec::new());
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        for checked in [label_key(key), label_value(value)] {
            if let Err(must) = checked {
                wrong.push(format!("Invalid value: {pair:?}: {must}"));
            }
        }
        if reserved(key) {
            wrong.push(format!(
                "Invalid value: {key:?}: a node may not give itself this label under kubernetes.io \
                 or k8s.io; use node.kubernetes.io/... or a domain of your own"
            ));
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    (labels, wrong)
}

fn reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    let under = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    (under("kubernetes.io") || under("k8s.io"))
        && !under("kubelet.kubernetes.io")
        && !under("node.kubernetes.io")
        && !OWN_LABELS.contains(&key)
}

/// `--node-ip`: one address, or one of each family.
pub(super) fn node_ips(text: &str, place: &Place, mistakes: &mut Vec<Mistake>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => mistakes
                .push(place.mistake("", format!("Invalid value: {part:?}: must be an IP address"))),
        }
    }
    let pair = match ips.as_slice() {
        [a, b] => a.is_ipv4() != b.is_ipv4() && !a.is_unspecified() && !b.is_unspecified(),
        more => more.len() < 2,
    };
    if !pair {
        let message =
            format!("Invalid value: {text:?}: must be one address, or one of each family");
        mistakes.push(place.mistake("", message));
    }
    ips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_and_checked() {
        let (labels, wrong) = node_labels("rack=a1,example.com/x=,node.kubernetes.io/pool=p");
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(labels["example.com/x"], "");
        for bad in ["-a=b", "a=b c", "kubernetes.io/role=x", "foo.k8s.io/y=z", "a/b/c=d", "=x"] {
            assert_eq!(node_labels(bad).1.len(), 1, "{bad}: {:?}", node_labels(bad).1);
        }
        assert!(node_labels("topology.kubernetes.io/zone=z").1.is_empty());
    }

    #[test]
    fn subdomains_are_checked() {
        for good in ["a", "node-1.example.com", "0"] {
            assert!(subdomain(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", &"x".repeat(254)] {
            assert!(subdomain(bad).is_err(), "{bad}");
        }
    }
}
