//! The syntax of names, label values and addresses.

use super::tree::{Mistake, Place};
use std::net::IpAddr;

const SUBDOMAIN: &str = "must be lower case letters, digits, '-' and '.', begin and end with a \
     letter or digit, and be at most 253 characters long";
const LABEL: &str = "must be lower case letters, digits and '-', begin and end with a letter or \
     digit, and be at most 63 characters long";
const KEY: &str = "must be a name of letters, digits, '-', '_' and '.', at most 63 characters long, \
     alone or after a DNS name and '/', like example.com/rack";
const VALUE: &str = "must be letters, digits, '-', '_' and '.', begin and end with a letter or \
     digit, and be at most 63 characters long";

/// Checks a DNS-1123 subdomain.
pub(super) fn subdomain(text: &str) -> Result<(), &'static str> {
    let good = !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            framed(label, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-')
        });
    if good { Ok(()) } else { Err(SUBDOMAIN) }
}

/// Checks a DNS-1123 label.
pub(super) fn label(text: &str) -> Result<(), &'static str> {
    let good = text.len() <= 63 && !text.contains('.') && subdomain(text).is_ok();
    if good { Ok(()) } else { Err(LABEL) }
}

/// Checks the value of a label, which may be empty.
pub(super) fn label_value(text: &str) -> Result<(), &'static str> {
    let good = text.is_empty()
        || text.len() <= 63
            && framed(text, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'));
    if good { Ok(()) } else { Err(VALUE) }
}

/// Checks the key of a label: a name, after a DNS subdomain and a slash or alone.
pub(super) fn label_key(text: &str) -> Result<(), &'static str> {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(p, name)| (Some(p), name));
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

/// `--node-ip`: one address, or one of each family.
pub(super) fn node_ips(text: &str, place: &Place, mistakes: &mut Vec<Mistake>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(ip) if names_no_node(ip) => {
                let why = "must not be a multicast or link-local address";
                mistakes.push(place.mistake("", format!("Invalid value: {part:?}: {why}")));
            }
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

/// True for an address that the kubelet never publishes and that is of no use on one host either.
/// The kubelet publishes no loopback address; here a node may have one.
fn names_no_node(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_link_local || ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_checked() {
        for good in ["", "a", "A_b.c-1"] {
            assert!(label_value(good).is_ok(), "{good}");
        }
        for bad in ["-a", "a-", "b c", "a/b", &"x".repeat(64)] {
            assert!(label_value(bad).is_err(), "{bad}");
        }
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
