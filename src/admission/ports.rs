//! Ports of the node that a pod takes.

use crate::{model::k8s, podspec::is_sidecar};
use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPort<'a> {
    address: IpAddr,
    protocol: &'a str,
    port: i32,
}

impl<'a> HostPort<'a> {
    /// Those that the containers of a pod take which stay: regular ones and sidecars.
    pub(super) fn of(pod: &'a k8s::Pod) -> Vec<Self> {
        let Some(spec) = &pod.spec else { return Vec::new() };
        let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
        spec.containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| container.ports.iter().flatten())
            .filter_map(|port| {
                let address = port.host_ip.as_deref().and_then(|ip| ip.parse().ok());
                Some(Self {
                    address: address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
                    protocol: port.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP"),
                    port: port.host_port.filter(|port| *port != 0)?,
                })
            })
            .collect()
    }

    /// Whether both can't be had at once. No address, and 0.0.0.0, stand for every address; `::`
    /// for those of IPv6.
    fn conflicts(&self, other: &Self) -> bool {
        let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv4() || b.is_ipv6());
        let (a, b) = (self.address, other.address);
        self.port == other.port
            && self.protocol == other.protocol
            && (a == b || covers(a, b) || covers(b, a))
    }
}

/// Whether one of the ports is taken.
pub(super) fn any_conflict(wanted: &[HostPort<'_>], taken: &[HostPort<'_>]) -> bool {
    wanted.iter().any(|wanted| taken.iter().any(|taken| wanted.conflicts(taken)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_conflict_by_number_protocol_and_address() {
        let port = |text: &'static str| {
            let (protocol, rest) = text.split_once('/').unwrap();
            let (address, port) = rest.rsplit_once('/').unwrap();
            HostPort { address: address.parse().unwrap(), protocol, port: port.parse().unwrap() }
        };
        for (a, b, conflict) in [
            ("TCP/0.0.0.0/80", "TCP/0.0.0.0/80", true),
            ("TCP/0.0.0.0/80", "TCP/0.0.0.0/81", false),
            ("TCP/0.0.0.0/80", "UDP/0.0.0.0/80", false),
            ("TCP/0.0.0.0/80", "TCP/10.0.0.1/80", true),
            ("TCP/10.0.0.2/80", "TCP/10.0.0.1/80", false),
            ("TCP/10.0.0.1/80", "TCP/10.0.0.1/80", true),
            ("TCP/0.0.0.0/80", "TCP/::1/80", true),
            ("TCP/::/80", "TCP/::1/80", true),
            ("TCP/::/80", "TCP/10.0.0.1/80", false),
            ("TCP/::/80", "TCP/0.0.0.0/80", true),
        ] {
            for (a, b) in [(a, b), (b, a)] {
                assert_eq!(port(a).conflicts(&port(b)), conflict, "{a} {b}");
            }
        }
    }
}
