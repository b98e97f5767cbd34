//! What the agent reads of certificates: when they are valid, when they are renewed, for which
//! names they are, and whether a key is theirs.

use crate::model::CollectOrdered as _;
use rustls::{
    Error, InconsistentKeys,
    crypto::CryptoProvider,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};
use x509_cert::{
    Certificate, Version,
    der::{Decode as _, Encode as _},
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// `None`: it is damaged.
pub(crate) fn parse(der: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(der).ok()
}

/// The DNS names and IP addresses that a certificate is for.
pub(crate) fn names(found: &Certificate) -> BTreeSet<String> {
    let extension = found.tbs_certificate().get_extension::<SubjectAltName>();
    let names = extension.ok().flatten().map(|(_, names)| names.0).unwrap_or_default();
    let text = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        GeneralName::IpAddress(octets) => {
            let octets = octets.as_bytes();
            let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(octets).map(IpAddr::from);
            v4.or_else(|_| v6()).ok().map(|ip| ip.to_string())
        }
        GeneralName::OtherName(_)
        | GeneralName::Rfc822Name(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EdiPartyName(_)
        | GeneralName::UniformResourceIdentifier(_)
        | GeneralName::RegisteredId(_) => None,
    };
    names.into_iter().filter_map(text).collect_ordered()
}

/// What the agent shows to the other side of a connection: its certificate, those that certify it,
/// and its key.
///
/// # Errors
/// When the key is not that of the first certificate, or of an unknown kind.
pub(crate) fn own_identity(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Arc<SingleCertAndKey>, Error> {
    let version_1 =
        chain.first().and_then(parse).filter(|own| own.tbs_certificate().version() == Version::V1);
    let certified = match version_1 {
        None => CertifiedKey::from_der(chain, key, provider)?,
        // rustls does not read version 1, which OpenSSL writes for a request without extensions.
        // The other side may accept it, as Go does.
        Some(own) => {
            let key = provider.key_provider.load_private_key(key)?;
            let of_certificate = own.tbs_certificate().subject_public_key_info().to_der().ok();
            if let Some(of_key) = key.public_key()
                && of_certificate.as_deref() != Some(of_key.as_ref())
            {
                return Err(InconsistentKeys::KeyMismatch.into());
            }
            CertifiedKey::new(chain, key)
        }
    };
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

/// When a certificate is valid, in seconds since 1970, and its part in the spread of renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) from: i64,
    pub(crate) until: i64,
    /// One byte of the certificate, which differs from node to node and stays over restarts.
    pub(crate) spread: u8,
}

impl Lifetime {
    pub(crate) fn of(certificate: &Certificate) -> Option<Self> {
        let validity = certificate.tbs_certificate().validity();
        let seconds =
            |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).ok();
        Some(Self {
            from: seconds(validity.not_before)?,
            until: seconds(validity.not_after)?,
            spread: certificate.signature().raw_bytes().last().copied()?,
        })
    }

    /// `None`: the certificate is damaged.
    pub(crate) fn of_der(der: &CertificateDer<'_>) -> Option<Self> {
        Self::of(&parse(der)?)
    }

    pub(crate) fn is_over(self, now: jiff::Timestamp) -> bool {
        now.as_second() >= self.until
    }

    /// When it is to be renewed: between 70 and 90 percent of its time, as the kubelet does.
    pub(crate) fn renewal(self) -> i64 {
        let total = self.until.saturating_sub(self.from).max(0);
        let spread = total / 5 * i64::from(self.spread) / 255;
        self.from.saturating_add(total / 10 * 7).saturating_add(spread)
    }
}

/// The same certificate as one of X.509 version 1: without extensions.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) fn as_version_1(der: &CertificateDer<'_>) -> CertificateDer<'static> {
    use x509_cert::der::{Tag, asn1::Any};
    let sequence = |parts: &[Vec<u8>]| {
        Any::new(Tag::Sequence, parts.concat()).and_then(|sequence| sequence.to_der()).unwrap()
    };
    let certificate = parse(der).unwrap();
    let content = certificate.tbs_certificate();
    let algorithm = certificate.signature_algorithm().to_der().unwrap();
    let content = sequence(&[
        content.serial_number().to_der().unwrap(),
        algorithm.clone(),
        content.issuer().to_der().unwrap(),
        content.validity().to_der().unwrap(),
        content.subject().to_der().unwrap(),
        content.subject_public_key_info().to_der().unwrap(),
    ]);
    sequence(&[content, algorithm, certificate.signature().to_der().unwrap()]).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use rustls::crypto::ring;

    #[test]
    fn a_certificate_of_any_version_needs_its_own_key() {
        let pair = || rcgen::generate_simple_self_signed(["server".to_owned()]).unwrap();
        let (one, other) = (pair(), pair());
        let identity = |certificate: CertificateDer<'static>, key: &rcgen::KeyPair| {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            own_identity(vec![certificate], key, &ring::default_provider()).map(drop)
        };
        let version_3 = one.cert.der().clone();
        let version_1 = as_version_1(&version_3);
        let version = parse(&version_1).map(|own| own.tbs_certificate().version());
        assert_eq!(version, Some(Version::V1));
        for certificate in [version_1, version_3] {
            assert_eq!(identity(certificate.clone(), &one.signing_key), Ok(()));
            let mismatch = Err(InconsistentKeys::KeyMismatch.into());
            assert_eq!(identity(certificate, &other.signing_key), mismatch);
        }
        assert!(identity(b"damaged".to_vec().into(), &one.signing_key).is_err());
    }

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_time() {
        let of = |spread| Lifetime { from: 1000, until: 2000, spread };
        assert_eq!((of(0).renewal(), of(255).renewal()), (1700, 1900));
        assert!((1700..1900).contains(&of(100).renewal()));
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        assert!(!of(0).is_over(at(1999)) && of(0).is_over(at(2000)));
    }
}
