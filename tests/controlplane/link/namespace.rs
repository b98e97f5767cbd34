//! A network namespace at the end of a wire of its own, where packets can be lost: a peer that is
//! gone without a word, as when a cable is pulled.

use crate::support::{ip, slot::Slot};
use nix::sched::{CloneFlags, setns};
use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Command,
};

/// A namespace, gone with its wire when dropped. Its names carry the slot's number.
pub struct Namespace {
    name: String,
    wire: String,
    address: Ipv4Addr,
}

impl Namespace {
    /// Makes the namespace of a slot anew, whatever the last owner left.
    pub fn make(slot: &Slot) -> Self {
        let number = slot.number();
        let namespace = Self {
            name: slot.network_namespace(),
            wire: format!("ndlink{number}"),
            address: address_in(slot),
        };
        namespace.remove();
        let (name, wire) = (namespace.name.as_str(), namespace.wire.as_str());
        ip(&format!("netns add {name}"));
        ip(&format!("link add {wire} type veth peer name peer netns {name}"));
        ip(&format!("address add {}/30 dev {wire}", address_outside(slot)));
        ip(&format!("link set {wire} up"));
        ip(&format!("-n {name} address add {}/30 dev peer", namespace.address));
        ip(&format!("-n {name} link set peer up"));
        namespace
    }

    /// Listens inside; the listener is at home there wherever it is used.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn listen(&self, port: u16) -> std::io::Result<TcpListener> {
        let entry = File::open(format!("/run/netns/{}", self.name))?;
        let at = SocketAddr::from((self.address, port));
        // A namespace is a thread's: this one ends in there.
        std::thread::spawn(move || {
            setns(entry, CloneFlags::CLONE_NEWNET)?;
            TcpListener::bind(at)
        })
        .join()
        .unwrap()
    }

    /// From now on every packet in and out is lost, or none.
    pub fn lose_packets(&self, lose: bool) {
        for chain in ["INPUT", "OUTPUT"] {
            let policy = if lose { "DROP" } else { "ACCEPT" };
            ip(&format!("netns exec {} iptables -P {chain} {policy}", self.name));
        }
    }

    fn remove(&self) {
        // What isn't there need not go.
        for arguments in [["netns", "del", &self.name], ["link", "del", &self.wire]] {
            _ = Command::new("ip").args(arguments).output().unwrap();
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The address at the near end of the wire, which only this slot has.
pub fn address_outside(slot: &Slot) -> Ipv4Addr {
    Ipv4Addr::new(10, 214, slot.number(), 1)
}

/// The address inside, for certificates.
pub fn address_in(slot: &Slot) -> Ipv4Addr {
    Ipv4Addr::new(10, 214, slot.number(), 2)
}
