//! NFS volumes: what `mount` is asked for.

use super::ClaimedVolumes;
use crate::model::{PersistentSource, k8s};
use std::net::Ipv6Addr;
use thiserror::Error;

/// Why an NFS volume can't be mounted as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NfsExportError {
    /// `server` could be read as something else by `mount` or its helper: an option, a label of a
    /// disk, a list of servers.
    #[error("must be a host name or an IP address")]
    Server,
    /// `path` does not begin at the server's root.
    #[error("must be an absolute path")]
    RelativePath,
    /// `path` has control characters.
    #[error("must not contain control characters")]
    Path,
}

/// The export of an NFS volume, `SERVER:PATH`, as `mount` takes it. An IPv6 address is put into
/// brackets.
///
/// # Errors
/// When the server or the path is not acceptable.
pub fn nfs_export(server: &str, path: &str) -> Result<String, NfsExportError> {
    check_nfs_path(path)?;
    Ok(format!("{}:{path}", nfs_server(server)?))
}

/// True when the pod has an NFS volume: its own, or a PersistentVolume.
#[must_use]
pub fn has_nfs_volume(pod: &k8s::Pod, claimed: &ClaimedVolumes) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let is_nfs = |source: &PersistentSource| match source {
        PersistentSource::Nfs { .. } => true,
        PersistentSource::HostPath { .. }
        | PersistentSource::Local { .. }
        | PersistentSource::Other(_) => false,
    };
    volumes.any(|volume| volume.nfs.is_some())
        || claimed.values().flatten().any(|bound| is_nfs(&bound.volume.source))
}

/// # Errors
/// When the path on the server is not acceptable.
pub fn check_nfs_path(path: &str) -> Result<(), NfsExportError> {
    if !path.starts_with('/') {
        return Err(NfsExportError::RelativePath);
    }
    if path.contains(char::is_control) { Err(NfsExportError::Path) } else { Ok(()) }
}

/// The server as `mount` takes it.
///
/// # Errors
/// When it is neither a name nor an address.
pub fn nfs_server(text: &str) -> Result<String, NfsExportError> {
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let (without_zone, zone) = address.split_once('%').unwrap_or((address, "0"));
    if without_zone.parse::<Ipv6Addr>().is_ok() && is_name(zone) {
        return Ok(format!("[{address}]"));
    }
    if is_name(text) { Ok(text.to_owned()) } else { Err(NfsExportError::Server) }
}

/// A name of hosts or interfaces. Host names on local networks have underscores, too.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    text.bytes().all(fits) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_names_and_addresses() {
        for (server, expected) in [
            ("nfs.example.com", "nfs.example.com:/srv"),
            ("nas_1", "nas_1:/srv"),
            ("192.0.2.1", "192.0.2.1:/srv"),
            ("2001:db8::1", "[2001:db8::1]:/srv"),
            ("[2001:db8::1]", "[2001:db8::1]:/srv"),
            ("fe80::1%eth0", "[fe80::1%eth0]:/srv"),
        ] {
            assert_eq!(nfs_export(server, "/srv").as_deref(), Ok(expected));
        }
        for server in
            ["", "-o", "LABEL=x", "a,b", "a b", "a:b", "a/b", "[a]", "fe80::1%-o", "a\n", "nfs://a"]
        {
            assert_eq!(nfs_export(server, "/srv"), Err(NfsExportError::Server), "{server}");
        }
    }

    #[test]
    fn paths_are_absolute() {
        assert_eq!(nfs_export("a", "/srv/with blank").as_deref(), Ok("a:/srv/with blank"));
        assert_eq!(nfs_export("a", "srv"), Err(NfsExportError::RelativePath));
        assert_eq!(nfs_export("a", ""), Err(NfsExportError::RelativePath));
        assert_eq!(nfs_export("a", "/srv\n"), Err(NfsExportError::Path));
    }
}
