//! Follows the node's addresses while the kernel changes them (rtnetlink(7)).

use super::addresses::{host_ips, unassigned};
use crate::publish::PublishIfChanged as _;
use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
    },
};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// What the kernel tells about: addresses and routes. Each start of a pod changes some of them.
const GROUPS: libc::c_int = libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;
/// Changes that come within this time are read together. A read takes a millisecond on a full node.
const SETTLE: Duration = Duration::from_secs(2);
/// After this time the addresses are read even if the kernel has told nothing.
const RESYNC: Duration = Duration::from_secs(300);

/// The node's addresses, primary first; empty while there is none.
pub type NodeIps = Arc<[IpAddr]>;

/// Publishes the node's addresses.
#[derive(Debug)]
pub struct AddressTask {
    configured: Vec<IpAddr>,
    published: watch::Sender<NodeIps>,
}

impl AddressTask {
    /// With the addresses as they are now. `configured` is `--node-ip`: an address that is given
    /// there never changes.
    pub fn new(configured: Vec<IpAddr>) -> Self {
        let ips = host_ips(&configured);
        for ip in unassigned(&configured) {
            tracing::warn!(%ip, "--node-ip: no interface has this address; the node reports it all the same");
        }
        Self { configured, published: watch::Sender::new(ips.into()) }
    }

    /// The addresses.
    pub fn addresses(&self) -> watch::Receiver<NodeIps> {
        self.published.subscribe()
    }

    /// Follows the addresses until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        if self.configured.iter().any(|ip| !ip.is_unspecified()) {
            return shutdown.cancelled().await;
        }
        let mut changes = Changes::open()
            .inspect_err(|err| {
                let every = RESYNC.as_secs();
                tracing::warn!(%err, "the kernel does not report changes of addresses; they are read every {every} s");
            })
            .ok();
        while !shutdown.is_cancelled() {
            self.publish(host_ips(&self.configured));
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(RESYNC) => {}
                () = next_change(&mut changes) => {}
            }
            shutdown.run_until_cancelled(tokio::time::sleep(SETTLE)).await;
        }
    }

    /// Publishes addresses that are new. A node that has lost its address keeps it until there is
    /// another: the address is most likely to come back.
    fn publish(&self, found: Vec<IpAddr>) {
        let found = NodeIps::from(found);
        if !found.is_empty() && self.published.publish_if_changed(Arc::clone(&found)) {
            tracing::info!(addresses = ?found, "the node has new addresses");
        }
    }
}

/// Waits until something has changed; for ever when the kernel can't tell.
async fn next_change(changes: &mut Option<Changes>) {
    if let Some(open) = changes {
        match open.next().await {
            Ok(()) => return,
            Err(err) => tracing::warn!(%err, "the kernel no longer reports changes of addresses"),
        }
        *changes = None;
    }
    std::future::pending::<()>().await;
}

/// A socket on which the kernel tells that addresses or routes have changed.
struct Changes {
    socket: AsyncFd<OwnedFd>,
}

impl Changes {
    fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS.unsigned_abs()))?;
        #[expect(
            deprecated,
            reason = "its successor is an unsafe function; OwnedFd owns its descriptor"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self { socket })
    }

    /// Waits for at least one message and drops all that are there: what changed is read anew.
    async fn next(&mut self) -> io::Result<()> {
        let mut readable = self.socket.readable().await?;
        // The kernel drops what does not fit.
        let mut message = [0; 64];
        loop {
            match recv(readable.get_inner().as_raw_fd(), &mut message, MsgFlags::empty()) {
                // ENOBUFS: the kernel had more to tell than the socket can hold.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        readable.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_lost_address_is_kept_until_there_is_another() {
        let task = AddressTask::new(vec!["192.0.2.1".parse().unwrap()]);
        let mut addresses = task.addresses();
        task.publish(Vec::new());
        assert!(!addresses.has_changed().unwrap());
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        task.publish(vec![other]);
        assert_eq!(**addresses.borrow_and_update(), [other]);
        task.publish(vec![other]);
        assert!(!addresses.has_changed().unwrap());
    }
}
