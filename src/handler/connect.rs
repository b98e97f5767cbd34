//! Opening a connection to a host that a specification names.

use super::error::NetworkError;
use crate::blocking::LOOKUPS;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::net::TcpStream;

/// Tells whether the lookup of a host still waits for a thread, because other lookups have all of
/// them.
#[derive(Clone, Default)]
pub(super) struct LookupWaits(Arc<AtomicBool>);

impl LookupWaits {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::Relaxed);
    }
}

/// Opens a connection to an address or a name.
///
/// # Cancel safety
/// A lookup that has begun keeps its thread until it ends.
pub(super) async fn connect(
    host: &str,
    port: u16,
    waits: &LookupWaits,
) -> Result<TcpStream, NetworkError> {
    let opened = async {
        let addresses = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            // It must not wait for the lookups of other names.
            Err(_) if host.eq_ignore_ascii_case("localhost") => {
                vec![(Ipv6Addr::LOCALHOST, port).into(), (Ipv4Addr::LOCALHOST, port).into()]
            }
            Err(_) => lookup(host, port, waits.clone()).await?,
        };
        TcpStream::connect(&*addresses).await
    };
    opened.await.map_err(|error| NetworkError::dial(host, port, &error))
}

async fn lookup(host: &str, port: u16, waits: LookupWaits) -> io::Result<Vec<SocketAddr>> {
    let name = host.to_owned();
    waits.set(true);
    let found = LOOKUPS.run(move || {
        waits.set(false);
        (name.as_str(), port).to_socket_addrs()
    });
    Ok(found.await.map_err(io::Error::other)??.collect())
}
