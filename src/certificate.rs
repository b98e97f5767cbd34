//! What the agent reads of certificates: when they are valid, when they are renewed, and for which
//! names they are.

use crate::model::CollectOrdered as _;
use rustls_pki_types::CertificateDer;
use std::{collections::BTreeSet, net::IpAddr};
use x509_cert::{
    Certificate,
    der::Decode as _,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_time() {
        let of = |spread| Lifetime { from: 1000, until: 2000, spread };
        assert_eq!((of(0).renewal(), of(255).renewal()), (1700, 1900));
        assert!((1700..1900).contains(&of(100).renewal()));
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        assert!(!of(0).is_over(at(1999)) && of(0).is_over(at(2000)));
    }
}
