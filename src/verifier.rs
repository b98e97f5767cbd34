//! Whom the agent believes in TLS: any server at all, or servers that an authority has certified.
//! And how long a chain of certificates may be, that of a client as well.

use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme, WantsVerifier,
    client::{
        VerifierBuilderError, WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::{io, sync::Arc};

/// The most certificates between the one that is shown and its authority. They are tried in every
/// order, so twice as many would take seconds.
const MOST_BETWEEN: usize = 6;
/// The most bytes of a chain. It is held as long as its connection.
const MOST_BYTES: usize = 16 << 10;

/// A chain of certificates that is refused unread.
#[derive(Debug, thiserror::Error)]
#[error(
    "the chain of certificates is too long: at most {MOST_BETWEEN} certificates between the first one and the authority, and {MOST_BYTES} bytes"
)]
struct TooLong;

/// Refuses a chain that takes long to verify or much memory. Whoever reaches the agent, or is on the
/// way to a server, can show one.
///
/// # Errors
/// When it is too long.
pub(crate) fn check_length(
    own: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let bytes = own.len() + between.iter().map(|one| one.len()).sum::<usize>();
    if between.len() > MOST_BETWEEN || bytes > MOST_BYTES {
        return Err(Error::Other(OtherError(Arc::new(TooLong))));
    }
    Ok(())
}

/// Accepts servers that an authority has certified, with a chain of a bounded length.
#[derive(Debug)]
struct CertifiedServer(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for CertifiedServer {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check_length(own, between)?;
        self.0.verify_server_cert(own, between, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A client of servers that one of these authorities has certified.
///
/// # Errors
/// When there is no authority.
pub(crate) fn with_authorities(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    authorities: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, VerifierBuilderError> {
    let provider: Arc<CryptoProvider> = Arc::clone(builder.crypto_provider());
    let authorities = Arc::new(authorities);
    let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider).build()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(CertifiedServer(verifier))))
}

/// The authorities of the system. Reads files: it blocks.
///
/// # Errors
/// When there is none.
pub(crate) fn system_authorities() -> io::Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    if authorities.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        let message = format!("there are no certificates of authorities{why}");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(authorities)
}

/// Accepts any certificate, and does not check that the server has its key: an attacker between the
/// agent and the server could have made both.
#[derive(Debug)]
pub(crate) struct AnyServer(pub(crate) WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_chain_has_a_bounded_size() {
        let certificate = |bytes: usize| CertificateDer::from(vec![0; bytes]);
        let half = certificate(MOST_BYTES / 2);
        check_length(&half, std::slice::from_ref(&half)).unwrap();
        check_length(&half, &[half.clone(), certificate(1)]).unwrap_err();
        check_length(&certificate(MOST_BYTES + 1), &[]).unwrap_err();
    }
}
