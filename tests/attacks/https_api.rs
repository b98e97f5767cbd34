//! Clients of the HTTPS API: without credentials, and with them.

use crate::support::{
    manifest::Pod,
    pause,
    world::{World, full_name},
};
use crate::watchdog::Watchdog;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
};
use std::{
    fs, io,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The longest time that an honest request may take beside an attack.
const HONEST: Duration = Duration::from_secs(4);

/// An agent whose HTTPS API lets clients of an authority in.
struct Rig {
    world: World,
    clients: Clients,
}

/// Who connects to it.
struct Clients {
    port: SocketAddr,
    /// Of a client that is let in.
    known: Arc<ClientConfig>,
    /// Of one that is not.
    stranger: Arc<ClientConfig>,
}

/// Trusts every server: these are attackers.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A certificate of an authority, for a client.
fn identity(
    issuer: &Issuer<'_, KeyPair>,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "somebody");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    (vec![signed.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
}

fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

impl Rig {
    fn start() -> Option<Self> {
        let world = crate::prepared(|settings| settings)?;
        let ((pem, issuer), (_, other)) = (authority(), authority());
        let ca = world.slot.dir().join("clients.crt");
        fs::write(&ca, pem).unwrap();
        world.agent.add_flag(format!("--client-ca-file={}", ca.display()));
        world.agent.add_flag("--authorization-mode=AlwaysAllow".to_owned());
        world.agent.add_flag(format!("--port={}", world.agent.api_port()));
        world.agent.start();
        let config = |issuer| {
            let (chain, key) = identity(issuer);
            let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Any));
            Arc::new(builder.with_client_auth_cert(chain, key).unwrap())
        };
        let port = (Ipv4Addr::LOCALHOST, world.agent.api_port()).into();
        let clients = Clients { port, known: config(&issuer), stranger: config(&other) };
        let rig = Self { world, clients };
        let answers = || rig.clients.asks("/healthz").is_ok();
        rig.world.wait_until("the API answers", answers, |answers| *answers);
        Some(rig)
    }

    /// Attacks in a thread for 3 s while honest requests are made; then nothing may be left.
    fn under_attack(self, attack: impl Fn(&Clients, &AtomicBool) + Sync) {
        let clients = &self.clients;
        let dog = Watchdog::start(&self.world);
        let over = AtomicBool::new(false);
        let failed: Vec<String> = std::thread::scope(|scope| {
            scope.spawn(|| attack(clients, &over));
            // The attack is at its full strength by then.
            pause(Duration::from_millis(500));
            let begun = Instant::now();
            let mut failed = Vec::new();
            while begun.elapsed() < Duration::from_secs(3) {
                let asked = Instant::now();
                match clients.asks("/healthz") {
                    Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => {}
                    other => failed.push(format!("{other:?} after {:?}", asked.elapsed())),
                }
                pause(Duration::from_millis(50));
            }
            over.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_empty(), "{} honest requests failed: {failed:?}", failed.len());
        dog.finish(&self.world);
        self.world.finish();
    }
}

impl Clients {
    fn connect(&self, config: &Arc<ClientConfig>) -> io::Result<Tls> {
        let stream = TcpStream::connect_timeout(&self.port, HONEST)?;
        stream.set_read_timeout(Some(HONEST))?;
        stream.set_write_timeout(Some(HONEST))?;
        let name = ServerName::try_from("node1").unwrap();
        let client = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(client, stream))
    }

    /// The answer to an honest request.
    fn asks(&self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut tls = self.connect(&self.known)?;
        tls.write_all(request.as_bytes())?;
        answer(&mut tls)
    }
}

/// What comes until the end of the connection, however it ends.
fn answer(tls: &mut Tls) -> io::Result<String> {
    let mut text = Vec::new();
    match tls.read_to_end(&mut text) {
        Err(error) if text.is_empty() => Err(error),
        Ok(_) | Err(_) => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

#[test]
fn a_flood_of_connections_keeps_no_client_out() {
    let Some(rig) = Rig::start() else { return };
    let words: [&[u8]; 3] = [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"];
    rig.under_attack(|clients, over| {
        let mut held = std::collections::VecDeque::new();
        for word in words.iter().cycle().take(10_000) {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let Ok(mut stream) = TcpStream::connect(clients.port) else { continue };
            stream.write_all(word).ok();
            held.push_back(stream);
            // So many fit into the descriptors of the test.
            if held.len() > 500 {
                held.pop_front();
            }
            // Faster than this, the handshakes of honest clients would not be the oldest ones that
            // go.
            pause(Duration::from_millis(2));
        }
    });
}

#[test]
fn heads_that_never_end_keep_no_client_out_and_take_no_memory() {
    let Some(rig) = Rig::start() else { return };
    rig.under_attack(|clients, over| {
        let long = format!("GET /pods HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
        let mut slow = Vec::new();
        while !over.load(Ordering::Relaxed) {
            // Some say a byte at a time, and others never stop.
            if let Ok(mut tls) = clients.connect(&clients.stranger)
                && slow.len() < 100
                && tls.write_all(b"GET /pods HTTP/1.1\r\nX: ").is_ok()
            {
                slow.push(tls);
            }
            for tls in &mut slow {
                tls.write_all(b"x").ok();
            }
            if let Ok(mut tls) = clients.connect(&clients.stranger) {
                for _ in 0..100 {
                    if tls.write_all(long.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        }
    });
}

/// Frames of HTTP/2, as the client of an attack writes them.
mod frames {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// What a connection begins with. Answers must fit into a window of `window` bytes.
    pub fn begin(window: u32) -> Vec<u8> {
        let setting = [&[0, 4], &window.to_be_bytes()[..]].concat();
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &setting)[..]].concat()
    }

    /// A complete GET with a header of `filler` bytes, at least 127.
    pub fn get(stream: u32, path: &str, filler: usize) -> Vec<u8> {
        let length = u8::try_from(path.len()).unwrap();
        let mut fields = [&[0x82, 0x87, 0x04, length], path.as_bytes(), &[0x01, 1, b'x']].concat();
        // A literal "x", whose length is written as HPACK writes large numbers.
        fields.extend([0x00, 1, b'x', 0x7f]);
        let mut rest = filler - 127;
        while rest >= 128 {
            fields.push(u8::try_from(rest % 128).unwrap() | 0x80);
            rest /= 128;
        }
        fields.push(u8::try_from(rest).unwrap());
        fields.extend(std::iter::repeat_n(b'x', filler));
        frame(HEADERS, 0x05, stream, &fields)
    }

    pub fn reset(stream: u32) -> Vec<u8> {
        frame(RESET, 0, stream, &8_u32.to_be_bytes())
    }
}

#[test]
fn requests_over_http2_keep_no_client_out_and_take_no_memory() {
    let Some(rig) = Rig::start() else { return };
    let over_http2 = |config: &Arc<ClientConfig>| {
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    };
    let (known, stranger) = (over_http2(&rig.clients.known), over_http2(&rig.clients.stranger));
    // As many as a client may begin with, before it is told how many are answered.
    let streams = || (0..100).map(|n| 2 * n + 1);
    let resets: Vec<u8> = (0..2000)
        .map(|n| 2 * n + 1)
        .flat_map(|n| [frames::get(n, "/pods", 127), frames::reset(n)].concat())
        .collect();
    let long: Vec<u8> = streams().flat_map(|n| frames::get(n, "/pods", 15_000)).collect();
    let unread: Vec<u8> =
        streams().flat_map(|n| frames::get(n, "/metrics/cadvisor", 127)).collect();
    let attacks = [
        (&stranger, frames::begin(65_535), resets),
        (&stranger, frames::begin(0), long.clone()),
        (&known, frames::begin(0), [unread, long].concat()),
        (&stranger, frames::begin(0), Vec::new()),
    ];
    rig.under_attack(|clients, over| {
        let mut held = std::collections::VecDeque::new();
        for (config, begin, requests) in attacks.iter().cycle() {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let Ok(mut tls) = clients.connect(config) else { continue };
            if tls.write_all(begin).and_then(|()| tls.write_all(requests)).is_ok() {
                held.push_back(tls);
            }
            if held.len() > 400 {
                held.pop_front();
            }
        }
    });
}

#[test]
fn sessions_that_never_speak_leave_their_places() {
    let Some(rig) = Rig::start() else { return };
    rig.world.drop_pod(&Pod::running("web"));
    rig.world.wait_running("web");
    let before = rig.world.agent.usage().fds;
    let path = format!("/exec/default/{}/main?command=cat&input=1&output=1", full_name("web"));
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    let world = &rig.world;
    let begin = |config| {
        let mut tls = rig.clients.connect(config).ok()?;
        tls.write_all(request.as_bytes()).ok()?;
        let mut head = [0; 12];
        tls.read_exact(&mut head).ok()?;
        Some((tls, String::from_utf8_lossy(&head).into_owned()))
    };
    let (_, refused) = begin(&rig.clients.stranger).unwrap();
    assert_eq!(refused, "HTTP/1.1 401");
    let open: Vec<_> = (0..100).filter_map(|_| begin(&rig.clients.known)).collect();
    assert!(open.iter().all(|(_, head)| head == "HTTP/1.1 101"), "{} of 100", open.len());
    assert_eq!(open.len(), 100);
    let held = world.agent.usage().fds;
    assert!(held >= before + 150, "{held} after {before}: each holds two connections");
    assert!(rig.clients.asks("/healthz").unwrap().starts_with("HTTP/1.1 200 "));
    // Half of them go with a word, half without.
    for (n, (tls, _)) in open.into_iter().enumerate() {
        if n % 2 == 0 {
            tls.sock.shutdown(std::net::Shutdown::Both).ok();
        }
    }
    world.wait_until("all are closed", || world.agent.usage().fds, |n| *n < before + 8);
    rig.world.finish();
}

#[test]
fn a_request_inside_a_request_is_not_answered() {
    let Some(rig) = Rig::start() else { return };
    let hidden = "GET /pods HTTP/1.1\r\nHost: x\r\n\r\n";
    let length = hidden.len();
    for request in [
        // The two ways to say how long a body is contradict each other.
        format!(
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\
             Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!(
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\
             Content-Length: {length}\r\n\r\n{hidden}"
        ),
        format!("POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: +{length}\r\n\r\n{hidden}"),
        format!(
            "POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\nGET /pods HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let mut tls = rig.clients.connect(&rig.clients.known).unwrap();
        tls.write_all(request.as_bytes()).unwrap();
        tls.sock.shutdown(std::net::Shutdown::Write).unwrap();
        let answered = answer(&mut tls).unwrap_or_default();
        assert!(!answered.contains("PodList"), "{request}\n{answered}");
        // A stranger's second request is not even read: a refusal ends the connection.
        let mut tls = rig.clients.connect(&rig.clients.stranger).unwrap();
        tls.write_all(format!("{hidden}{hidden}").as_bytes()).unwrap();
        let answered = answer(&mut tls).unwrap_or_default();
        assert_eq!(answered.matches("HTTP/1.1 401").count(), 1, "{answered}");
    }
    for path in ["/pods/../pods", "//pods", "/pods%2f", "/%2e%2e/pods", "*"] {
        let answered = rig.clients.asks(path).unwrap();
        assert!(!answered.contains("PodList"), "{path}: {answered}");
    }
    rig.world.finish();
}
