//! Tells systemd how the agent is: datagrams to the socket that `NOTIFY_SOCKET` names.
//!
//! Never waits and never fails the agent: what can't be sent is left to the service's timeouts.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Sends assignments (`READY=1`), one a line, to the socket that systemd gave; a leading `@` names
/// an abstract socket.
///
/// # Errors
/// When there is no such socket, or its receiver does not accept the message.
pub fn send(socket: &OsStr, assignments: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(assignments.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_arrives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1\n").unwrap();
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\n");
    }

    #[test]
    fn an_abstract_socket_is_reached_and_a_missing_one_is_an_error() {
        let name = format!("nodelet-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1\n").unwrap();
        let mut buffer = [0; 64];
        assert!(receiver.recv(&mut buffer).is_ok());
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1\n").is_err());
    }
}
