//! The addresses of all interfaces, asked of the kernel over rtnetlink(7).
//!
//! getifaddrs(3) asks for the links too: on a full node a quarter of a megabyte, of which nothing
//! is needed here.

use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    sys::time::TimeVal,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

/// The kernel makes no part of an answer larger.
const PART: usize = 32 << 10;
/// The kernel answers at once, or never.
const PATIENCE_SECONDS: i64 = 1;

/// An address, and the index of its interface.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct InterfaceAddress {
    pub interface: u32,
    pub ip: IpAddr,
}

/// The addresses of all interfaces, in the order in which the kernel has them.
///
/// # Errors
/// When the kernel can't be asked.
pub(super) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE_SECONDS, 0))?;
    send(socket.as_raw_fd(), &request(), MsgFlags::empty())?;
    let (mut found, mut part) = (Vec::new(), vec![0; PART]);
    loop {
        match recv(socket.as_raw_fd(), &mut part, MsgFlags::empty()) {
            Ok(length) => {
                if take(part.get(..length).unwrap_or(&part), &mut found)? {
                    return Ok(found);
                }
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// `struct nlmsghdr` and, all zero, `struct ifaddrmsg`: all addresses of both families.
fn request() -> Vec<u8> {
    /// `NLM_F_REQUEST | NLM_F_DUMP`.
    const FLAGS: u16 = 0x301;
    const LENGTH: u32 = 16 + 8;
    let mut request = LENGTH.to_ne_bytes().to_vec();
    request.extend(libc::RTM_GETADDR.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    request.extend([0; 16]);
    request
}

/// Takes the addresses from a part of the answer. True: it was the last.
fn take(mut part: &[u8], found: &mut Vec<InterfaceAddress>) -> io::Result<bool> {
    while let Some((length, kind)) = header(part) {
        let message = part.get(16..length).ok_or(io::ErrorKind::InvalidData)?;
        match i32::from(kind) {
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                let errno = word(message).unwrap_or_default().cast_signed().saturating_neg();
                return if errno == 0 {
                    Ok(true)
                } else {
                    Err(io::Error::from_raw_os_error(errno))
                };
            }
            _ => found.extend(address(message).filter(|_| kind == libc::RTM_NEWADDR)),
        }
        part = part.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

/// Length and kind of the message at the beginning of `part` (`struct nlmsghdr`).
fn header(part: &[u8]) -> Option<(usize, u16)> {
    let kind = part.get(4..6)?.try_into().ok()?;
    Some((usize::try_from(word(part)?).ok()?, u16::from_ne_bytes(kind)))
}

/// What `struct ifaddrmsg` and its attributes tell. The address of the interface is IFA_LOCAL where
/// there is one, otherwise IFA_ADDRESS (IPv6 without another end).
fn address(message: &[u8]) -> Option<InterfaceAddress> {
    let interface = word(message.get(4..)?)?;
    let mut attributes = message.get(8..)?;
    let mut address = None;
    while let Some((length, kind)) = attribute(attributes) {
        let value = attributes.get(4..length)?;
        match kind {
            libc::IFA_LOCAL => return Some(InterfaceAddress { interface, ip: ip(value)? }),
            libc::IFA_ADDRESS => address = ip(value),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    Some(InterfaceAddress { interface, ip: address? })
}

/// Length and kind of an attribute (`struct rtattr`).
fn attribute(attributes: &[u8]) -> Option<(usize, u16)> {
    let half = |at: usize| {
        Some(u16::from_ne_bytes(attributes.get(at..at.checked_add(2)?)?.try_into().ok()?))
    };
    Some((usize::from(half(0)?), half(2)?))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(|octets| Ipv4Addr::from(octets).into());
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(|octets| Ipv6Addr::from(octets).into())).ok()
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// Messages and attributes begin at multiples of four bytes.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};

    #[test]
    fn the_loopback_interface_has_the_addresses_that_getifaddrs_has() {
        let found = interface_addresses().unwrap().into_iter();
        let index = if_nametoindex("lo").unwrap();
        let found = found.filter(|found| found.interface == index).map(|found| found.ip);
        let of_libc = getifaddrs().unwrap().filter(|found| found.interface_name == "lo");
        let of_libc = of_libc.filter_map(|found| {
            let address = found.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        });
        let of_libc: Vec<_> = of_libc.collect();
        assert!(of_libc.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(found.collect::<Vec<_>>(), of_libc);
    }

    /// An answer with one IPv4 address of an interface that has another end, and its end.
    fn answer() -> Vec<u8> {
        let attribute = |kind: u16, value: [u8; 4]| {
            [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat()
        };
        let message = |kind: u16, body: &[u8]| {
            let length = u32::try_from(16 + body.len()).unwrap();
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        let other_end = attribute(libc::IFA_ADDRESS, [192, 0, 2, 1]);
        let own = attribute(libc::IFA_LOCAL, [192, 0, 2, 2]);
        let body = [&[2, 32, 0, 0][..], &7_u32.to_ne_bytes(), &other_end, &own].concat();
        let done = u16::try_from(libc::NLMSG_DONE).unwrap();
        [message(libc::RTM_NEWADDR, &body), message(done, &[0; 4])].concat()
    }

    #[test]
    fn takes_the_own_end_of_a_point_to_point_link() {
        let mut found = Vec::new();
        assert!(take(&answer(), &mut found).unwrap());
        let ip = "192.0.2.2".parse().unwrap();
        assert_eq!(found, [InterfaceAddress { interface: 7, ip }]);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_never_whole() {
        let answer = answer();
        for length in 0..answer.len() {
            assert!(!take(&answer[..length], &mut Vec::new()).unwrap_or_default(), "{length}");
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_one() {
        let kind = u16::try_from(libc::NLMSG_ERROR).unwrap();
        let errno = (-libc::EPERM).to_ne_bytes();
        let message = [&20_u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &errno].concat();
        let error = take(&message, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
