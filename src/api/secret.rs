//! Checks of secrets before a library sees them. No error repeats a secret.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use thiserror::Error;

/// What is wrong with a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Nothing but white space.
    #[error("is empty")]
    Empty,
    /// A line break or another control character.
    #[error(
        "holds a character that an HTTP header can't hold (a line break or a control character)"
    )]
    NotHeader,
    /// Not base64.
    #[error("is not base64")]
    NotBase64,
    /// No certificate in it, or a damaged one.
    #[error("holds no certificate in PEM")]
    NoCertificate,
    /// No private key in it, or a damaged one.
    #[error("holds no private key in PEM")]
    NoKey,
}

/// The `Authorization` header of a bearer token. White space around the token is no part of it, as
/// for client-go's token files.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, SecretError> {
    match token.trim() {
        "" => Err(SecretError::Empty),
        token => header(&format!("Bearer {token}")),
    }
}

/// A header value that is never shown.
pub(super) fn header(value: &str) -> Result<HeaderValue, SecretError> {
    let mut header = HeaderValue::from_str(value).map_err(|_| SecretError::NotHeader)?;
    header.set_sensitive(true);
    Ok(header)
}

/// The bytes of base64 text, in which line breaks are allowed, as for Go.
pub(super) fn decode_base64(text: &str) -> Result<Vec<u8>, SecretError> {
    let lines: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(lines).map_err(|_| SecretError::NotBase64)
}

/// The certificates of a PEM text; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SecretError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(SecretError::NoCertificate)
}

/// The first private key of a PEM text.
pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, SecretError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| SecretError::NoKey)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn white_space_around_a_token_is_trimmed() {
        assert_eq!(bearer(" \n abc.def\r\n\n").unwrap(), "Bearer abc.def");
        assert_eq!(bearer(" \n\t"), Err(SecretError::Empty));
    }

    #[test]
    fn a_token_that_no_header_can_hold_is_refused() {
        for token in ["a\nb", "a\u{7}b", "a\0b", "a\u{7f}b", "a\rb"] {
            assert_eq!(bearer(token), Err(SecretError::NotHeader), "{token:?}");
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", bearer("abc").unwrap()), "Sensitive");
    }

    #[test]
    fn base64_may_have_line_breaks() {
        assert_eq!(decode_base64("YWJj\nZGVm\n").unwrap(), b"abcdef");
        assert_eq!(decode_base64("no base64!"), Err(SecretError::NotBase64));
    }

    #[test]
    fn damaged_pem_is_refused() {
        let broken = b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(broken), Err(SecretError::NoCertificate));
        assert_eq!(certificates(b"text"), Err(SecretError::NoCertificate));
        assert_eq!(private_key(b"-----BEGIN PRIVATE KEY-----\n"), Err(SecretError::NoKey));
    }
}
