//! The node's addresses: the configured ones, or an address of the interface of a default route, or
//! one of the loopback interface.
//!
//! The order of choice is the kubelet's, without its DNS lookup: a lookup could hang when the agent
//! starts, and an agent without an API server sends no packets.

use super::rtnetlink::{InterfaceAddress, interface_addresses};
use crate::model::Order as _;
use nix::net::if_::if_nametoindex;
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The loopback interface, which is the first one of every network namespace.
const LOOPBACK: &str = "lo";
const LOOPBACK_INDEX: u32 = 1;

/// Addresses of the node, primary first; empty when there is no default route (yet).
pub(super) fn host_ips(configured: &[IpAddr]) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = configured.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    if !given.is_empty() {
        return given;
    }
    let v4 = read("/proc/net/route").map(|text| default_v4_interfaces(&text)).unwrap_or_default();
    let v6 =
        read("/proc/net/ipv6_route").map(|text| default_v6_interfaces(&text)).unwrap_or_default();
    if v4.is_empty() && v6.is_empty() {
        return Vec::new();
    }
    let found = interface_addresses()
        .inspect_err(|err| tracing::warn!(%err, "cannot list the node's addresses"))
        .unwrap_or_default();
    let v4 = address_of_routes(&indices(&v4), &found, IpAddr::is_ipv4);
    let v6 = address_of_routes(&indices(&v6), &found, IpAddr::is_ipv6);
    let prefers_v6 = configured.contains(&IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let (first, second) = if prefers_v6 { (v6, v4) } else { (v4, v6) };
    first.or(second).into_iter().collect()
}

/// The configured addresses that no interface has. They are published all the same: an interface may
/// get its address after the agent has started.
pub(super) fn unassigned(configured: &[IpAddr]) -> Vec<IpAddr> {
    let given = configured.iter().copied().filter(|ip| !ip.is_unspecified());
    // A host answers on all of 127.0.0.0/8.
    let given: Vec<IpAddr> = given.filter(|ip| !ip.is_loopback()).collect();
    match interface_addresses() {
        Ok(found) if !given.is_empty() => {
            given.into_iter().filter(|ip| !found.iter().any(|found| found.ip == *ip)).collect()
        }
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).inspect_err(|err| tracing::debug!(%err, "cannot read {path}")).ok()
}

/// The interfaces of the default routes in /proc/net/route, those with the lowest metric first.
fn default_v4_interfaces(text: &str) -> Vec<String> {
    const UP: u32 = 1;
    let routes = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [interface, destination, _, flags, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        let up = u32::from_str_radix(flags, 16).ok()? & UP != 0;
        let default = *destination == "00000000" && *mask == "00000000";
        (default && up).then_some((metric.parse::<u32>().ok()?, (*interface).to_owned()))
    });
    by_metric(routes.collect())
}

/// The same of /proc/net/ipv6_route, whose fields are hexadecimal.
fn default_v6_interfaces(text: &str) -> Vec<String> {
    let routes = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, _, interface] = fields.as_slice() else {
            return None;
        };
        let default = destination.bytes().all(|b| b == b'0') && *length == "00";
        let metric = u32::from_str_radix(metric, 16).ok()?;
        (default && *interface != LOOPBACK).then_some((metric, (*interface).to_owned()))
    });
    by_metric(routes.collect())
}

fn by_metric(mut routes: Vec<(u32, String)>) -> Vec<String> {
    routes.order();
    routes.into_iter().map(|(_, interface)| interface).collect()
}

fn indices(interfaces: &[String]) -> Vec<u32> {
    interfaces.iter().filter_map(|name| if_nametoindex(name.as_str()).ok()).collect()
}

/// The first address that others can reach, of the interface of the best default route that has one,
/// whatever its label is. Where that interface has none that others can reach, the node may have its
/// address on the loopback interface (BGP unnumbered, RFC 5549).
fn address_of_routes(
    interfaces: &[u32],
    found: &[InterfaceAddress],
    family: fn(&IpAddr) -> bool,
) -> Option<IpAddr> {
    let address_of = |interface: u32| {
        let mut own = found.iter().filter(|found| found.interface == interface);
        own.find(|found| family(&found.ip) && is_global_unicast(found.ip)).map(|found| found.ip)
    };
    interfaces
        .iter()
        .find_map(|interface| address_of(*interface).or_else(|| address_of(LOOPBACK_INDEX)))
}

fn is_global_unicast(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip == Ipv4Addr::BROADCAST,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_ordered_by_metric() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_v4_interfaces(table), ["eth0", "wlan0"]);
        assert!(default_v4_interfaces("Iface\tDestination\n").is_empty());
    }

    #[test]
    fn takes_the_v6_default_route_and_not_the_unreachable_one_of_lo() {
        let zero = "0".repeat(32);
        let table = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth1\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        );
        assert_eq!(default_v6_interfaces(&table), ["eth1"]);
    }

    #[test]
    fn the_address_is_of_the_route_of_loopback_or_of_another_route() {
        let address = |interface, ip: &str| InterfaceAddress { interface, ip: ip.parse().unwrap() };
        let first = |interfaces: &[u32], found: &[InterfaceAddress]| {
            address_of_routes(interfaces, found, IpAddr::is_ipv4).map(|ip| ip.to_string())
        };
        let (loopback, local) = (address(1, "127.0.0.1"), address(2, "169.254.0.2"));
        let (ethernet, wireless) = (address(2, "10.0.0.7"), address(3, "10.9.0.7"));
        let node = address(1, "10.1.0.7");
        assert_eq!(first(&[2, 3], &[loopback, local, ethernet, wireless]).unwrap(), "10.0.0.7");
        assert_eq!(first(&[2, 3], &[loopback, node, local, wireless]).unwrap(), "10.1.0.7");
        assert_eq!(first(&[2, 3], &[loopback, local, wireless]).unwrap(), "10.9.0.7");
        assert_eq!(first(&[2], &[loopback, local, address(2, "fd00::7")]), None);
    }

    #[test]
    fn addresses_that_no_interface_has_are_found() {
        let documentation: IpAddr = "192.0.2.1".parse().unwrap();
        let own = ["127.0.0.1", "127.0.0.7", "0.0.0.0"].map(|ip| ip.parse().unwrap());
        assert_eq!(unassigned(&[&own[..], &[documentation]].concat()), [documentation]);
    }

    #[test]
    fn configured_addresses_win() {
        let given = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        assert_eq!(host_ips(&given), given);
    }
}
