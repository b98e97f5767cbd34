//! TLS of the HTTPS API: the certificate that the agent shows, and the authorities whose client
//! certificates it believes.
//!
//! Files are looked at when a client connects, at most once a second: what was replaced counts from
//! then on, and nothing is polled. A pair that can't be used is reported once, and the last good one
//! serves on.
//!
//! A client certificate is asked for, never required, and anything is accepted during the handshake
//! as long as the client has its key and the chain is short. Whether an authority has signed it is
//! found out for each request, so that a wrong certificate is answered with 401 and not with a
//! closed connection.

use super::self_signed;
use crate::{
    blocking::{Pool, SERVING},
    certificate::{Lifetime, own_identity},
    clock,
    files::read_regular,
    model::error_chain,
    publish::PublishIfChanged as _,
    serve::connections::Peer,
    verifier::check_length,
};
use jiff::Timestamp;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _};
use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use thiserror::Error;
use tokio::sync::watch;

static POOL: &Pool = &SERVING;
/// HTTP/2, as clients name it during the handshake.
pub(super) const HTTP2: &[u8] = b"h2";
/// The largest certificate or key file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The least time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Which certificates and versions.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The certificate and its key; `None`: self-signed ones in `directory`.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub directory: PathBuf,
    /// Certificates of the authorities of clients.
    pub client_ca: Option<PathBuf>,
    pub tls13_only: bool,
    /// The cipher suites of TLS 1.2 that are allowed; empty: all.
    pub tls12_suites: Vec<&'static str>,
    pub node_name: String,
    /// The node's addresses, for self-signed certificates.
    pub node_ips: watch::Receiver<Arc<[IpAddr]>>,
}

/// Why the files can't be used.
#[derive(Debug, Error)]
pub(super) enum TlsError {
    #[error("{}: {why}", path.display())]
    Read { path: PathBuf, why: crate::files::ReadError },
    #[error("{}: no PEM block of a certificate in it can be read", .0.display())]
    NoCertificate(PathBuf),
    #[error("{}: no PEM block of a private key in it can be read", .0.display())]
    NoKey(PathBuf),
    #[error("{} and {} do not fit together", .0.display(), .1.display())]
    Pair(PathBuf, PathBuf, #[source] rustls::Error),
    #[error("{}: no certificate in it is one of an authority", .0.display())]
    NoAuthority(PathBuf),
    #[error("a self-signed certificate can't be made in {}", .0.display())]
    SelfSigned(PathBuf, #[source] self_signed::SelfSignedError),
    #[error("TLS can't be set up")]
    Setup(#[source] rustls::Error),
}

/// Certificates and keys as they are now.
#[derive(Debug)]
pub(super) struct Keys {
    settings: Option<TlsSettings>,
    /// When the certificate in use expires.
    until: watch::Sender<Option<Timestamp>>,
    current: Mutex<Current>,
    looks: tokio::sync::Mutex<Duration>,
}

#[derive(Debug, Default)]
struct Current {
    seen: Vec<Option<Stamp>>,
    server: Option<Arc<ServerConfig>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Why the files can't be used, as it was reported.
    trouble: Option<String>,
}

/// What tells one content of a file from another.
type Stamp = (u64, u64, i64, i64);

/// What is made from the files.
struct Loaded {
    server: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// When the certificate expires; `None`: it is damaged.
    until: Option<Timestamp>,
    /// Why it is no new one, although it should be.
    not_renewed: Option<TlsError>,
}

impl Keys {
    /// `until` is told when the certificate in use expires.
    pub(super) fn new(settings: TlsSettings, until: watch::Sender<Option<Timestamp>>) -> Self {
        let (current, looks) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { settings: Some(settings), until, current, looks }
    }

    /// Believes no certificate.
    #[cfg(test)]
    pub(super) fn without_authorities() -> Self {
        Self {
            settings: None,
            until: watch::Sender::default(),
            current: Mutex::default(),
            looks: tokio::sync::Mutex::default(),
        }
    }

    /// What to shake hands with; `None` while there is no certificate.
    pub(super) async fn server(&self) -> Option<Arc<ServerConfig>> {
        self.look().await;
        self.current().server.clone()
    }

    /// The client's certificate, if one of the authorities has signed it for clients and it has not
    /// expired.
    pub(super) async fn verified(&self, peer: &Peer) -> Option<CertificateDer<'static>> {
        self.look().await;
        let clients = self.current().clients.clone()?;
        let (own, between) = peer.0.split_first()?;
        clients.verify_client_cert(own, between, UnixTime::now()).ok()?;
        Some(own.clone())
    }

    /// Takes up files that have changed.
    async fn look(&self) {
        let Some(settings) = &self.settings else { return };
        // One look at a time. Who comes meanwhile takes what is there: the file system may hang.
        let Ok(mut last) = self.looks.try_lock() else { return };
        let now = clock::now().boot;
        if !last.is_zero() && now.saturating_sub(*last) < LOOK_AGAIN {
            return;
        }
        *last = now;
        let (settings, seen) = (settings.clone(), self.current().seen.clone());
        let looked = POOL.run(move || {
            let stamps = stamps(&settings);
            let renew = settings.certificate.is_none()
                && self_signed::is_due(&settings.directory, &wanted(&settings));
            (stamps != seen || renew).then(|| {
                // From before: files that are replaced meanwhile are loaded at the next look.
                (stamps, load(&settings))
            })
        });
        let Ok(Some((seen, loaded))) = looked.await else { return };
        let mut current = self.current();
        let trouble = match loaded {
            Ok(loaded) => {
                self.until.publish_if_changed(loaded.until);
                current.server = Some(loaded.server);
                current.clients = loaded.clients;
                loaded.not_renewed
            }
            Err(error) => Some(error),
        };
        match trouble {
            None => {
                current.seen = seen;
                if current.trouble.take().is_some() {
                    tracing::info!("the certificates of the HTTPS API can be used again");
                }
            }
            Some(error) => {
                // The next look tries again: it need not be the files that are to blame.
                current.seen.clear();
                let text = error_chain(&error);
                if current.trouble.as_ref() != Some(&text) {
                    let serves_on = current.server.is_some();
                    tracing::warn!(err = %text, serves_on, "the certificates of the HTTPS API can't be used or renewed");
                    current.trouble = Some(text);
                }
            }
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        // Each of its fields is replaced as a whole.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wanted(settings: &TlsSettings) -> self_signed::Wanted {
    self_signed::Wanted {
        node_name: settings.node_name.clone(),
        ips: settings.node_ips.borrow().to_vec(),
    }
}

fn pair(settings: &TlsSettings) -> (PathBuf, PathBuf) {
    settings.certificate.clone().unwrap_or_else(|| self_signed::files(&settings.directory))
}

fn stamps(settings: &TlsSettings) -> Vec<Option<Stamp>> {
    let (certificate, key) = pair(settings);
    let stamp = |path: &Path| -> io::Result<Stamp> {
        let found = fs::metadata(path)?;
        Ok((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    let files = [Some(certificate), Some(key), settings.client_ca.clone()];
    files.into_iter().flatten().map(|path| stamp(&path).ok()).collect()
}

fn load(settings: &TlsSettings) -> Result<Loaded, TlsError> {
    let renew = |half_written| {
        let directory = &settings.directory;
        self_signed::renew(directory, &wanted(settings), half_written)
            .map_err(|error| TlsError::SelfSigned(directory.clone(), error))
    };
    if settings.certificate.is_some() {
        return load_pair(settings);
    }
    let renewed = renew(false);
    match (load_pair(settings), renewed) {
        // A crash between the two files.
        (Err(TlsError::Pair(..)), Ok(())) => {
            renew(true)?;
            load_pair(settings)
        }
        // On a full disk the certificate that is there serves on.
        (Ok(loaded), renewed) => Ok(Loaded { not_renewed: renewed.err(), ..loaded }),
        (Err(_), Err(error)) => Err(error),
        (loaded, Ok(())) => loaded,
    }
}

fn load_pair(settings: &TlsSettings) -> Result<Loaded, TlsError> {
    let (certificate_file, key_file) = pair(settings);
    let chain = certificates(&certificate_file)?;
    let until = chain.first().and_then(Lifetime::of_der).map(|lifetime| lifetime.until);
    let until = until.and_then(|until| Timestamp::from_second(until).ok());
    let key = PrivateKeyDer::from_pem_slice(&read(&key_file)?)
        .map_err(|_| TlsError::NoKey(key_file.clone()))?;
    let provider = Arc::new(provider(&settings.tls12_suites));
    let identity = own_identity(chain, key, &provider)
        .map_err(|error| TlsError::Pair(certificate_file, key_file, error))?;
    let (clients, hints) = match &settings.client_ca {
        None => (None, None),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(path)?);
            let hints = roots.subjects();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let verifier = verifier.build().map_err(|_| TlsError::NoAuthority(path.clone()))?;
            (Some(verifier), Some(hints))
        }
    };
    let versions: &[_] = if settings.tls13_only {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(TlsError::Setup)?;
    let builder = match hints {
        None => builder.with_no_client_auth(),
        Some(hints) => builder.with_client_cert_verifier(Arc::new(AnyClient { hints, provider })),
    };
    let mut server = builder.with_cert_resolver(identity);
    // Sessions hold the chains of their clients, which may be strangers.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(Loaded { server: Arc::new(server), clients, until, not_renewed: None })
}

/// The algorithms, without the cipher suites of TLS 1.2 that are not allowed.
fn provider(tls12_suites: &[&str]) -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| match suite {
        SupportedCipherSuite::Tls13(_) => true,
        SupportedCipherSuite::Tls12(_) => {
            let name = suite.suite().as_str().unwrap_or_default();
            tls12_suites.is_empty() || tls12_suites.contains(&name)
        }
    });
    provider
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    read_regular(path, MAX_BYTES).map_err(|why| TlsError::Read { path: path.to_owned(), why })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    found.ok().filter(|all| !all.is_empty()).ok_or_else(|| TlsError::NoCertificate(path.to_owned()))
}

/// Accepts any client that has the key of its certificate, whose chain has a bounded length.
#[derive(Debug)]
struct AnyClient {
    /// The names of the authorities, by which a client chooses its certificate.
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_length(own, between)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{certificate::as_version_1, verifier::AnyServer};
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use rustls::{ClientConfig, ConfigBuilder, client::WantsClientCert};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    fn settings(directory: &Path) -> TlsSettings {
        TlsSettings {
            certificate: None,
            directory: directory.to_owned(),
            client_ca: None,
            tls13_only: false,
            tls12_suites: Vec::new(),
            node_name: "edge-1".to_owned(),
            node_ips: watch::channel(Arc::from([])).1,
        }
    }

    #[test]
    fn a_pair_that_was_half_written_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        load(&settings).unwrap();
        let (certificate, key) = pair(&settings);
        let before = fs::read(&certificate).unwrap();
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        fs::write(&key, other).unwrap();
        load(&settings).unwrap();
        assert_ne!(fs::read(&certificate).unwrap(), before);
        // The crash may have come before there was any certificate.
        fs::remove_file(&certificate).unwrap();
        load(&settings).unwrap();
        // Somebody else's pair is not touched.
        let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
        fs::write(&certificate, other.cert.pem()).unwrap();
        assert!(matches!(load(&settings), Err(TlsError::Pair(..))));
        assert_eq!(fs::read_to_string(&certificate).unwrap(), other.cert.pem());
    }

    #[tokio::test]
    async fn a_certificate_that_cannot_be_renewed_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        load(&settings).unwrap();
        let renamed = TlsSettings { node_name: "edge-2".to_owned(), ..settings };
        // A new key can be written, and no new certificate.
        let in_the_way = dir.path().join("kubelet.crt.unfinished");
        fs::create_dir(&in_the_way).unwrap();
        let keys = Keys::new(renamed, watch::Sender::default());
        assert!(keys.server().await.is_some());
        assert!(keys.current().trouble.as_ref().unwrap().contains("kubelet.crt"));
        assert!(!dir.path().join("kubelet.key.unfinished").exists());
        fs::remove_dir(&in_the_way).unwrap();
        *keys.looks.lock().await = Duration::ZERO;
        assert!(keys.server().await.is_some());
        assert!(keys.current().trouble.is_none());
    }

    /// A client that takes any server.
    fn any_client() -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let provider = ring::default_provider();
        let any = AnyServer(provider.signature_verification_algorithms);
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(any))
    }

    #[tokio::test]
    async fn a_certificate_of_version_1_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let of = rcgen::generate_simple_self_signed(vec!["edge-1".to_owned()]).unwrap();
        let version_1 = as_version_1(of.cert.der());
        let (certificate, key) = (dir.path().join("crt"), dir.path().join("key"));
        let base64 = STANDARD.encode(&version_1);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n");
        fs::write(&certificate, pem).unwrap();
        fs::write(&key, of.signing_key.serialize_pem()).unwrap();
        let given = TlsSettings { certificate: Some((certificate, key)), ..settings(dir.path()) };
        let server = load(&given).unwrap().server;
        let client = any_client().with_no_client_auth();
        let (near, far) = tokio::io::duplex(64 << 10);
        let (served, asked) = tokio::join!(
            TlsAcceptor::from(server).accept(far),
            TlsConnector::from(Arc::new(client)).connect("edge-1".try_into().unwrap(), near),
        );
        served.unwrap();
        assert_eq!(asked.unwrap().get_ref().1.peer_certificates().unwrap(), [version_1]);
    }

    /// Shakes hands as a client with `between` certificates between its own and an authority.
    async fn handshake(server: &Arc<ServerConfig>, between: usize) -> Result<(), io::Error> {
        let own = rcgen::generate_simple_self_signed(vec!["client".to_owned()]).unwrap();
        let chain = vec![own.cert.der().clone(); 1 + between];
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let client = any_client().with_client_auth_cert(chain, key).unwrap();
        let (near, far) = tokio::io::duplex(64 << 10);
        let (served, _) = tokio::join!(
            TlsAcceptor::from(Arc::clone(server)).accept(far),
            TlsConnector::from(Arc::new(client)).connect("edge-1".try_into().unwrap(), near),
        );
        served.map(drop)
    }

    #[tokio::test]
    async fn a_client_with_a_long_chain_of_certificates_is_sent_away() {
        let dir = tempfile::tempdir().unwrap();
        let authority = rcgen::generate_simple_self_signed(vec!["authority".to_owned()]).unwrap();
        let client_ca = dir.path().join("ca.crt");
        fs::write(&client_ca, authority.cert.pem()).unwrap();
        let settings = TlsSettings { client_ca: Some(client_ca), ..settings(dir.path()) };
        let server = load(&settings).unwrap().server;
        handshake(&server, 6).await.unwrap();
        let refused = handshake(&server, 7).await.unwrap_err().to_string();
        assert!(refused.contains("the chain of certificates is too long"), "{refused}");
    }

    #[tokio::test]
    async fn a_failed_load_is_tried_again_though_the_files_look_alike() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        load(&settings).unwrap();
        let (certificate, key) = pair(&settings);
        let good = fs::read(&certificate).unwrap();
        let write = |content: &[u8]| {
            fs::write(&certificate, content).unwrap();
            let file = fs::File::options().write(true).open(&certificate).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        };
        let given = TlsSettings { certificate: Some((certificate.clone(), key)), ..settings };
        let keys = Keys::new(given, watch::Sender::default());
        write(&vec![b'x'; good.len()]);
        assert!(keys.server().await.is_none());
        write(&good);
        *keys.looks.lock().await = Duration::ZERO;
        assert!(keys.server().await.is_some());
        assert!(keys.current().trouble.is_none());
    }

    #[test]
    fn cipher_suites_of_tls_12_can_be_chosen() {
        let names = |allowed: &[&str]| {
            let suites = provider(allowed).cipher_suites;
            let (old, new): (Vec<_>, Vec<_>) =
                suites.into_iter().partition(|s| matches!(s, SupportedCipherSuite::Tls12(_)));
            (old.len(), new.len())
        };
        assert_eq!(names(&[]), (6, 3));
        assert_eq!(names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]), (1, 3));
    }
}
