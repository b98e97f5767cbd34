//! The way from an agent to its API server, and what can happen on it.
//!
//! ```text
//!   agent ──► Tcp (refuses, is silent, slow, flaps; its packets are lost) ──► Http (answers itself, delays, loses,
//!             records) ──► kube-apiserver
//! ```

pub mod http;
mod namespace;
mod tcp;

pub use http::{Http, Moment, Recorded, RuleId};
pub use namespace::{Namespace, address_in, address_outside};
pub use tcp::{Bytes, Flapping, Tcp};

use super::ControlPlane;
use crate::support::slot::Slot;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
};

/// Where a link begins.
#[derive(Clone)]
pub struct Place {
    namespace: Option<Arc<Namespace>>,
    address: SocketAddr,
}

impl Place {
    fn listen(&self) -> std::io::Result<TcpListener> {
        let listener = match &self.namespace {
            Some(namespace) => namespace.listen(self.address.port())?,
            None => TcpListener::bind(self.address)?,
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

/// A link to a control plane. Fields are dropped in this order.
pub struct Link {
    /// What happens to connections.
    pub tcp: Tcp,
    /// What happens to requests.
    pub http: Http,
    place: Place,
}

impl Link {
    /// Makes one that begins on loopback. `index` tells the links of a slot apart.
    pub fn start(slot: &Slot, cluster: &ControlPlane, index: u16) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port(slot, index)));
        Self::start_at(Place { namespace: None, address }, cluster)
    }

    /// Makes one that begins in a network namespace, where packets can be lost; needs root.
    pub fn start_in_namespace(slot: &Slot, cluster: &ControlPlane) -> Self {
        let namespace = Arc::new(Namespace::make(slot));
        let address = SocketAddr::from((address_in(slot), port(slot, 0)));
        Self::start_at(Place { namespace: Some(namespace), address }, cluster)
    }

    fn start_at(place: Place, cluster: &ControlPlane) -> Self {
        let http = Http::start(cluster);
        Self { tcp: Tcp::start(place.clone(), http.address()), http, place }
    }

    /// Where it begins: what takes the place of the API server's address.
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// From now on every packet is lost, either way, or none.
    #[track_caller]
    pub fn lose_packets(&self, lose: bool) {
        self.place.namespace.as_ref().expect("begins in a namespace").lose_packets(lose);
    }

    /// Ends every fault.
    pub fn heal(&self) {
        if let Some(namespace) = &self.place.namespace {
            namespace.lose_packets(false);
        }
        self.http.lift_all();
        self.tcp.heal();
    }
}

fn port(slot: &Slot, index: u16) -> u16 {
    assert!(index < 8, "a slot has 8 links at most");
    super::first_port(slot) + 8 + index
}
