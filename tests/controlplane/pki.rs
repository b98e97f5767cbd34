//! Certificates: of servers, of whoever has a name in a cluster, and of those whom a cluster must
//! not believe.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, SystemTime},
};
use tokio_rustls::rustls::{
    self, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// Every identity of this process by its certificate, for the proxy that has to pass them on.
static ISSUED: LazyLock<Mutex<HashMap<Vec<u8>, Identity>>> = LazyLock::new(Mutex::default);

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    key_pem: String,
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate as a file has it.
    pub certificate_pem: String,
    /// Its key as a file has it.
    pub key_pem: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

/// How long a certificate is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Longer than any test.
    Long,
    /// It ended an hour ago.
    Expired,
    /// It ends after this long.
    EndsIn(Duration),
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let mut params = params(name, Validity::Long);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        let key_pem = key.serialize_pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate: own.der().clone(),
            pem: own.pem(),
            key_pem,
        }
    }

    /// Its certificate as a file has it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its key, for who signs in its place.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Whom the API server knows as `user` in `groups`.
    pub fn client(&self, user: &str, groups: &[&str], validity: Validity) -> Identity {
        let mut params = params(user, validity);
        for group in groups {
            let group = DnValue::Utf8String((*group).to_owned());
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A server at these addresses.
    pub fn server(&self, addresses: &[IpAddr]) -> Identity {
        let mut params = params("server", Validity::Long);
        params.subject_alt_names = addresses.iter().copied().map(SanType::IpAddress).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A server with this DNS name.
    pub fn server_named(&self, name: &str) -> Identity {
        let mut params = params("server", Validity::Long);
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Identity {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let identity = Identity {
            certificate_pem: signed.pem(),
            key_pem: key.serialize_pem(),
            certificate: signed.der().clone(),
            key: key.serialize_der(),
        };
        ISSUED.lock().unwrap().insert(signed.der().to_vec(), identity.clone());
        identity
    }

    /// What a client needs that trusts this authority.
    pub fn client_config(&self, identity: Option<&Identity>) -> ClientConfig {
        let own = identity.map(|identity| (identity.chain(), identity.key()));
        client_config(self.certificate.clone(), own)
    }
}

/// What a client needs that trusts `root` and shows a certificate of its own.
pub fn client_config(
    root: CertificateDer<'static>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match own {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
        None => config.with_no_client_auth(),
    }
}

impl Identity {
    /// The identity that shows this certificate, if it is of this process.
    pub fn showing(certificate: &CertificateDer<'_>) -> Option<Self> {
        ISSUED.lock().unwrap().get(certificate.as_ref()).cloned()
    }

    /// For rustls.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    /// For rustls.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

/// A key pair that is in no certificate: private, public.
pub fn bare_key() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    (key.serialize_pem(), key.public_key_pem())
}

/// The cryptography that all of it uses.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(ring::default_provider()));
    Arc::clone(&PROVIDER)
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let now = SystemTime::from(nodelet::clock::now().wall);
    let hour = Duration::from_secs(3600);
    let end = match validity {
        Validity::Long => now + 24 * 365 * hour,
        Validity::Expired => now - hour,
        Validity::EndsIn(span) => now + span,
    };
    let mut params = CertificateParams::default();
    params.not_before = (now - 48 * hour).into();
    params.not_after = end.into();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Lets everybody in who has the key of the certificate that he shows, whoever signed it and
/// however old it is: the API server behind is the one to judge.
#[derive(Debug)]
pub struct AnyClient;

impl rustls::server::danger::ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Ok(rustls::server::danger::ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
