//! Opening a connection to a host that a specification names.

use super::error::NetworkError;
use crate::blocking::LOOKUPS;
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
};
use tokio::net::TcpStream;

/// Opens a connection to an address or a name.
///
/// # Cancel safety
/// A lookup that has begun keeps its thread until it ends.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, NetworkError> {
    let opened = async {
        let addresses = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) => lookup(host, port).await?,
        };
        TcpStream::connect(&*addresses).await
    };
    opened.await.map_err(|error| NetworkError::dial(host, port, &error))
}

async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = host.to_owned();
    let found = LOOKUPS.run(move || (name.as_str(), port).to_socket_addrs()).await;
    Ok(found.map_err(io::Error::other)??.collect())
}
