//! TCP keepalive, by which a peer whose machine is gone is noticed.

use nix::sys::socket::{setsockopt, sockopt};
use std::{io, os::fd::AsFd};

/// A connection whose peer answers no keepalive fails after 2.5 minutes. The values are those of the
/// kubelet's connections (Go's `net.Dialer` and `net.ListenConfig`). Connections that a socket
/// accepts inherit them.
///
/// # Errors
/// When the socket is not one of TCP.
pub(crate) fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    const SECONDS: u32 = 15;
    const TRIES: u32 = 9;
    setsockopt(socket, sockopt::TcpKeepIdle, &SECONDS)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &SECONDS)?;
    setsockopt(socket, sockopt::TcpKeepCount, &TRIES)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    Ok(())
}
