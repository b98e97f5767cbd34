//! Opening a connection to a host that a specification names.

use super::error::NetworkError;
use crate::{blocking::LOOKUPS, keep_alive::keep_alive};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// How long the addresses of one family are tried alone: as with the kubelet (Go's `net.Dialer`).
const FALLBACK_DELAY: Duration = Duration::from_millis(300);

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
        let stream = open(addresses).await?;
        // A hook has no other limit.
        keep_alive(&stream)?;
        Ok(stream)
    };
    opened.await.map_err(|error| NetworkError::dial(host, port, &error))
}

/// Opens a connection to one of the addresses of a host. While the first ones do not answer, those
/// of the other family are tried beside them: packets of one family may be lost on the way.
async fn open(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let is_ipv4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == is_ipv4);
    let mut opening = pin!(TcpStream::connect(&*first));
    if others.is_empty() {
        return opening.await;
    }
    match timeout(FALLBACK_DELAY, &mut opening).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(_)) => return TcpStream::connect(&*others).await,
        Err(_) => {}
    }
    let mut beside = pin!(TcpStream::connect(&*others));
    // Cancel-safe: both stay pinned outside. The one that is left is awaited, or its connection is
    // not needed.
    tokio::select! {
        opened = &mut opening => match opened {
            Ok(stream) => Ok(stream),
            Err(_) => beside.await,
        },
        opened = &mut beside => match opened {
            Ok(stream) => Ok(stream),
            Err(_) => opening.await,
        },
    }
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
    use crate::skips::say_skipped;
    use nix::sys::socket::{getsockopt, sockopt};
    use tokio::net::{TcpListener, TcpSocket};

    /// A listener that accepts nothing and has no place for another connection: the kernel drops
    /// what is sent to it. With the connections that have taken its places.
    async fn deaf() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut open = Vec::new();
        while let Ok(stream) = timeout(FALLBACK_DELAY, TcpStream::connect(address)).await {
            open.push(stream.unwrap());
        }
        (listener, open)
    }

    #[tokio::test]
    async fn addresses_of_the_other_family_are_tried_beside() {
        let Ok(listener) = TcpListener::bind("[::1]:0").await else {
            say_skipped("no IPv6 on loopback");
            return;
        };
        let (deaf, _places) = deaf().await;
        let deaf = deaf.local_addr().unwrap();
        let heard = listener.local_addr().unwrap();
        let closed = TcpListener::bind("[::1]:0").await.unwrap().local_addr().unwrap();
        for addresses in [vec![deaf, heard], vec![closed, heard], vec![heard, deaf]] {
            let opened = timeout(Duration::from_secs(20), open(addresses.clone())).await;
            assert_eq!(opened.unwrap().unwrap().peer_addr().unwrap(), heard, "{addresses:?}");
        }
        let refused = timeout(Duration::from_secs(20), open(vec![closed])).await.unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

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
