//! How TLS to the API server is set up: by whom the server must be certified, and which
//! certificate the agent shows.

use super::secret;
use crate::{
    certificate::own_identity,
    verifier::{AnyServer, system_authorities, with_authorities},
};
use rustls::{ClientConfig, RootCertStore, client::VerifierBuilderError, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use thiserror::Error;

/// A client certificate with those that certify it, and its key.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    pub certificates: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// How the server is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// One of these authorities must have certified it.
    Authorities(Vec<CertificateDer<'static>>),
    /// One of the system's authorities must have certified it.
    System,
    /// Any server will do (`insecure-skip-tls-verify`).
    Anyone,
}

/// Why no connection can be made with what was read.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate of an authority is damaged.
    #[error("certificate-authority: {0}")]
    Authority(rustls::Error),
    /// There is none.
    #[error("certificate-authority: {0}")]
    NoAuthority(VerifierBuilderError),
    /// The system has no authorities, and the kubeconfig names none.
    #[error("the kubeconfig has no certificate-authority, and the system's can't be read: {0}")]
    System(std::io::Error),
    /// The certificate and the key do not belong together, or the key is of an unknown kind.
    #[error("client-certificate and client-key: {0}")]
    Identity(rustls::Error),
    /// The cryptography library refuses its own defaults.
    #[error("TLS: {0}")]
    Versions(rustls::Error),
}

/// The configuration of one client. [`Trust::System`] reads files: it blocks.
///
/// # Errors
/// When the certificates can't be used.
pub(super) fn client_config(
    trust: Trust,
    identity: Option<ClientIdentity>,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?;
    let builder = match trust {
        Trust::Authorities(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority).map_err(TlsError::Authority)?;
            }
            with_authorities(builder, roots).map_err(TlsError::NoAuthority)?
        }
        Trust::System => {
            let roots = system_authorities().map_err(TlsError::System)?;
            with_authorities(builder, roots).map_err(TlsError::NoAuthority)?
        }
        Trust::Anyone => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(algorithms)))
        }
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(ClientIdentity { certificates, key }) => {
            let identity =
                own_identity(certificates, key, &provider).map_err(TlsError::Identity)?;
            Ok(builder.with_client_cert_resolver(identity))
        }
    }
}

/// Whether a key is that of the first certificate, both PEM.
pub(super) fn fit(certificates: &[u8], key: &[u8]) -> bool {
    let (Ok(certificates), Ok(key)) =
        (secret::certificates(certificates), secret::private_key(key))
    else {
        return false;
    };
    client_config(Trust::Anyone, Some(ClientIdentity { certificates, key })).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::certificate::as_version_1;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls_pki_types::ServerName;
    use tokio::io::duplex;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    fn certified() -> CertifiedKey<rcgen::KeyPair> {
        generate_simple_self_signed(["server".to_owned()]).unwrap()
    }

    fn identity(of: &CertifiedKey<rcgen::KeyPair>, key: &rcgen::KeyPair) -> ClientIdentity {
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        ClientIdentity { certificates: vec![of.cert.der().clone()], key }
    }

    /// Whether a client with this trust takes a server with this certificate, which it shows so many
    /// times.
    async fn takes(trust: Trust, server: &CertifiedKey<rcgen::KeyPair>, shown: usize) -> bool {
        let ClientIdentity { certificates, key } = identity(server, &server.signing_key);
        let certificates = vec![certificates[0].clone(); shown];
        let server =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(certificates, key)
                .unwrap();
        let client = Arc::new(client_config(trust, None).unwrap());
        let (near, far) = duplex(64 << 10);
        let name = ServerName::try_from("server").unwrap();
        let (answered, asked) = tokio::join!(
            TlsAcceptor::from(Arc::new(server)).accept(far),
            TlsConnector::from(client).connect(name, near),
        );
        drop(answered);
        asked.is_ok()
    }

    #[tokio::test]
    async fn a_server_is_taken_as_the_kubeconfig_trusts() {
        let (server, other) = (certified(), certified());
        let by =
            |authority: &CertifiedKey<_>| Trust::Authorities(vec![authority.cert.der().clone()]);
        assert!(takes(by(&server), &server, 1).await);
        assert!(!takes(by(&other), &server, 1).await);
        assert!(takes(Trust::Anyone, &server, 1).await);
        // A chain of certificates may have six more, and no more than that.
        assert!(takes(by(&server), &server, 7).await);
        assert!(!takes(by(&server), &server, 8).await);
    }

    #[test]
    fn a_key_of_another_certificate_is_an_error() {
        let (one, other) = (certified(), certified());
        let refused = client_config(Trust::Anyone, Some(identity(&one, &other.signing_key)));
        assert!(matches!(refused, Err(TlsError::Identity(_))));
        assert!(client_config(Trust::Anyone, Some(identity(&one, &one.signing_key))).is_ok());
    }

    #[test]
    fn a_certificate_of_version_1_is_shown() {
        let one = certified();
        let mut identity = identity(&one, &one.signing_key);
        identity.certificates = vec![as_version_1(one.cert.der())];
        let config = client_config(Trust::Anyone, Some(identity)).unwrap();
        assert!(config.client_auth_cert_resolver.has_certs());
    }
}
