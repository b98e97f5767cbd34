//! Opening a connection to a host that a specification names.

use super::error::NetworkError;
use crate::blocking::LOOKUPS;
use nix::sys::socket::{setsockopt, sockopt};
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
        let stream = TcpStream::connect(&*addresses).await?;
        keep_alive(&stream)?;
        Ok(stream)
    };
    opened.await.map_err(|error| NetworkError::dial(host, port, &error))
}

/// A peer whose machine is gone answers no keepalive, so the connection fails after 2.5 minutes. A
/// hook has no other limit. The values are those of the kubelet's HTTP client (Go's `net.Dialer`).
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    const SECONDS: u32 = 15;
    const TRIES: u32 = 9;
    setsockopt(stream, sockopt::TcpKeepIdle, &SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepCount, &TRIES)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    Ok(())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use nix::sys::socket::getsockopt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_peer_that_is_gone_is_noticed_in_minutes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = connect("127.0.0.1", port, &LookupWaits::default()).await.unwrap();
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        let idle = getsockopt(&stream, sockopt::TcpKeepIdle).unwrap();
        let interval = getsockopt(&stream, sockopt::TcpKeepInterval).unwrap();
        let tries = getsockopt(&stream, sockopt::TcpKeepCount).unwrap();
        assert_eq!(idle + interval * tries, 150);
    }
}
