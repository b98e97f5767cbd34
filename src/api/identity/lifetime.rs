//! When a client certificate is valid, and when it is renewed.

use rustls_pki_types::CertificateDer;
use x509_cert::{Certificate, der::Decode as _};

/// When a certificate is valid, in seconds since 1970, and its part in the spread of renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct Lifetime {
    pub(in crate::api) from: i64,
    pub(in crate::api) until: i64,
    /// One byte of the certificate, which differs from node to node and stays over restarts.
    pub(in crate::api) spread: u8,
}

impl Lifetime {
    pub(in crate::api) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = Certificate::from_der(certificate).ok()?;
        let validity = parsed.tbs_certificate().validity();
        let seconds =
            |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).ok();
        Some(Self {
            from: seconds(validity.not_before)?,
            until: seconds(validity.not_after)?,
            spread: *certificate.last()?,
        })
    }

    pub(in crate::api) fn is_over(self, now: jiff::Timestamp) -> bool {
        now.as_second() >= self.until
    }

    /// When it is to be renewed: between 70 and 90 percent of its time, as the kubelet does.
    pub(in crate::api) fn renewal(self) -> i64 {
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
