//! The certificate of a node that was given none: self-signed, in `kubelet.crt` and `kubelet.key` as
//! the kubelet names them.
//!
//! It is made again before it expires, when it is not valid yet, and when the node's name or
//! addresses are no longer those in it. A certificate that somebody else has put there is left alone.

use crate::{
    certificate::{Lifetime, names, parse},
    clock,
    files::{sync_dir, write_unfinished},
    model::CollectOrdered as _,
};
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use thiserror::Error;
use x509_cert::Certificate;

const HOUR: Duration = Duration::from_secs(3600);
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// It is made again this long before it expires.
const MARGIN_SECONDS: i64 = 73 * 24 * 3600;

/// Whom the certificate is for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) node_name: String,
    pub(super) ips: Vec<IpAddr>,
}

/// Why there is no certificate.
#[derive(Debug, Error)]
pub(super) enum SelfSignedError {
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    #[error("a key or a certificate can't be made")]
    Make(#[from] rcgen::Error),
    #[error("there is a kubelet.crt without a kubelet.key: remove it or add its key")]
    Half,
}

/// The certificate and its key.
pub(super) fn files(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("kubelet.crt"), directory.join("kubelet.key"))
}

/// Whether there is none, or one that is to be made again.
pub(super) fn is_due(directory: &Path, wanted: &Wanted) -> bool {
    let (certificate, _) = files(directory);
    let found =
        fs::read(certificate).ok().and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
    let found = found.and_then(|der| parse(&der));
    found.is_none_or(|found| {
        let now = clock::now().wall.as_second();
        // One that is not valid yet was made while the clock was ahead.
        let is_untimely = Lifetime::of(&found)
            .is_none_or(|lifetime| lifetime.from > now || lifetime.until < now + MARGIN_SECONDS);
        is_ours(&found) && (is_untimely || names(&found) != wanted.names())
    })
}

/// Makes a certificate where [`is_due`] says so, or where certificate and key do not fit together.
/// Nothing happens otherwise, and not where the certificate is somebody else's or can't be read.
pub(super) fn renew(
    directory: &Path,
    wanted: &Wanted,
    half_written: bool,
) -> Result<(), SelfSignedError> {
    let (certificate, key) = files(directory);
    let there = (certificate.exists(), key.exists());
    match there {
        (true, true) if !half_written && !is_due(directory, wanted) => return Ok(()),
        (true, true) => {
            let pem = fs::read(&certificate)
                .map_err(|error| SelfSignedError::File(certificate.clone(), error))?;
            let der = CertificateDer::from_pem_slice(&pem).ok();
            let ours = der.and_then(|der| parse(&der)).map(|found| is_ours(&found));
            if ours != Some(true) {
                return Ok(());
            }
        }
        (false, false) => {}
        // The key is written first.
        (false, true) => {}
        (true, false) => return Err(SelfSignedError::Half),
    }
    fs::create_dir_all(directory)
        .map_err(|error| SelfSignedError::File(directory.to_owned(), error))?;
    let (certificate_pem, key_pem) = make(wanted, clock::now().wall)?;
    let new = [(&key, key_pem), (&certificate, certificate_pem)];
    // On a full disk neither is replaced, so that the pair that is there still fits.
    let mut written = Vec::new();
    for (path, pem) in &new {
        match write_unfinished(path, ".unfinished", pem.as_bytes(), true) {
            Ok(unfinished) => written.push(unfinished),
            Err(error) => {
                written.iter().for_each(|unfinished| drop(fs::remove_file(unfinished)));
                return Err(SelfSignedError::File(PathBuf::from(path), error));
            }
        }
    }
    // A crash between the two leaves a pair that does not fit, and the next reading makes another.
    for (unfinished, (path, _)) in written.iter().zip(&new) {
        fs::rename(unfinished, path)
            .map_err(|error| SelfSignedError::File(PathBuf::from(path), error))?;
    }
    sync_dir(directory).map_err(|error| SelfSignedError::File(directory.to_owned(), error))?;
    tracing::info!(file = %certificate.display(), "made a self-signed certificate for the HTTPS API");
    Ok(())
}

impl Wanted {
    fn names(&self) -> BTreeSet<String> {
        let ips = self.ips.iter().map(ToString::to_string);
        ips.chain([self.node_name.clone()]).collect_ordered()
    }
}

fn make(wanted: &Wanted, now: Timestamp) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(vec![wanted.node_name.clone()])?;
    params.subject_alt_names.extend(wanted.ips.iter().copied().map(SanType::IpAddress));
    params.distinguished_name = DistinguishedName::new();
    let name = format!("{}@{}", wanted.node_name, now.as_second());
    params.distinguished_name.push(DnType::CommonName, name);
    // Clocks of clients may be late.
    params.not_before = (SystemTime::from(now) - HOUR).into();
    params.not_after = (SystemTime::from(now) + LIFETIME).into();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Whether this agent made it: nobody else has signed it, and its name is one of those that
/// [`make`] gives.
fn is_ours(found: &Certificate) -> bool {
    let tbs = found.tbs_certificate();
    tbs.issuer() == tbs.subject() && tbs.subject().to_string().contains('@')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_certificate_is_made_once_and_again_for_other_names() {
        let dir = tempfile::tempdir().unwrap();
        let dir = &dir.path().join("pki");
        let mut wanted = Wanted {
            node_name: "edge-1".to_owned(),
            ips: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
        };
        let (certificate, key) = files(dir);
        let read = || fs::read_to_string(&certificate).unwrap();
        assert!(is_due(dir, &wanted));
        renew(dir, &wanted, false).unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let first = read();
        let parsed =
            |pem: &str| parse(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        let names: Vec<String> = names(&parsed(&first)).into_iter().collect();
        assert_eq!(names, ["10.0.0.5", "edge-1", "fd00::5"]);
        assert!(!is_due(dir, &wanted) && is_ours(&parsed(&first)));
        renew(dir, &wanted, false).unwrap();
        assert_eq!(read(), first);
        wanted.ips.pop();
        assert!(is_due(dir, &wanted));
        renew(dir, &wanted, false).unwrap();
        assert_ne!(read(), first);

        // The clock was ahead when it was made.
        let ahead = clock::now().wall + 2 * HOUR;
        let (certificate_pem, key_pem) = make(&wanted, ahead).unwrap();
        fs::write(&certificate, certificate_pem).unwrap();
        fs::write(&key, key_pem).unwrap();
        assert!(is_due(dir, &wanted));
        renew(dir, &wanted, false).unwrap();
        assert!(!is_due(dir, &wanted));

        // Somebody else's is left alone, whatever is in it.
        let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
        fs::write(&certificate, other.cert.pem()).unwrap();
        assert!(!is_due(dir, &wanted));
        renew(dir, &wanted, false).unwrap();
        assert_eq!(read(), other.cert.pem());
        fs::remove_file(&key).unwrap();
        assert!(matches!(renew(dir, &wanted, false), Err(SelfSignedError::Half)));
    }
}
