//! Servers that answer slowly, endlessly, or not as they should.

use super::*;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// A server that does something with each connection once it has read the head of a request.
async fn does<F: Future<Output = ()> + Send + 'static>(
    work: impl Fn(TcpStream) -> F + Send + 'static,
) -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            head(&mut stream).await;
            tokio::spawn(work(stream));
        }
    });
    port
}

/// A server that sends this, and then `more` as long as anybody reads it.
async fn endless(first: &'static str, more: &'static str) -> u16 {
    does(move |mut stream| async move {
        let mut alive = stream.write_all(first.as_bytes()).await.is_ok();
        while alive {
            alive = stream.write_all(more.repeat(64).as_bytes()).await.is_ok();
        }
    })
    .await
}

async fn probe(port: u16, limit: Duration) -> Finding {
    handlers().http_probe(&request(port, json!({})), limit).await
}

#[tokio::test]
async fn endless_heads_are_failures() {
    let header = ("HTTP/1.1 200 OK\r\n", "X-Filler: 0123456789\r\n");
    let value = ("HTTP/1.1 200 OK\r\nX-Filler: ", "0123456789");
    let reason = ("HTTP/1.1 200 ", "0123456789");
    for (first, more) in [header, value, reason] {
        let words = failure(probe(endless(first, more).await, LIMIT).await);
        assert!(words.contains("message head is too large"), "{words}");
    }
    // The size of a chunk may have a comment.
    let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;";
    error(probe(endless(chunk, "comment").await, LIMIT).await);
}

#[tokio::test]
async fn an_answer_is_waited_for_no_longer_than_the_timeout() {
    let endless = endless("", "HTTP/1.1 100 Continue\r\n\r\n").await;
    // Each byte comes in time, and all of them do not.
    let slow = does(|mut stream| async move {
        for byte in answer("200 OK", "", "").bytes().cycle() {
            sleep(SHORT / 10).await;
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
        }
    });
    for port in [endless, slow.await] {
        let begun = Instant::now();
        let words = failure(probe(port, SHORT).await);
        assert!(words.contains("context deadline exceeded"), "{words}");
        assert!(begun.elapsed() < LIMIT / 3, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_slow_answer_within_the_timeout_counts() {
    let slow = does(|mut stream| async move {
        for byte in answer("200 OK", "", "hello").bytes() {
            sleep(Duration::from_millis(2)).await;
            stream.write_all(&[byte]).await.ok();
        }
    });
    assert_eq!(probe(slow.await, LIMIT).await, Finding::Success);
}

/// Wrong lengths of chunks.
#[tokio::test]
async fn damaged_bodies_are_errors() {
    for body in ["zz\r\nhello\r\n", "ffffffffffffffffffffff\r\nhello\r\n", "5\r\nhel"] {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let port = server(move |_| format!("{head}{body}"));
        let words = error(probe(port.await, LIMIT).await);
        assert!(!words.contains("127.0.0.1"), "{words}");
    }
}

/// Wrong lengths of bodies.
#[tokio::test]
async fn damaged_lengths_in_headers_are_failures() {
    for body in
        ["Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length: -1\r\n\r\nhello"]
    {
        let port = server(move |_| format!("HTTP/1.1 200 OK\r\n{body}")).await;
        let words = failure(probe(port, LIMIT).await);
        assert!(words.starts_with(&format!("Get \"http://127.0.0.1:{port}/\": ")), "{words}");
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_is_a_failure() {
    let port = does(|stream| async move { stream.set_zero_linger().unwrap() }).await;
    let words = failure(probe(port, LIMIT).await);
    assert!(words.contains("onnection reset"), "{words}");
    // It was open.
    let opened = handlers().tcp_probe("127.0.0.1", port, LIMIT).await;
    assert_eq!(opened, Finding::Success);
}

/// Shows a certificate, whatever it is worth.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesServerCert for Shows {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Certificates that rustls itself would refuse, made by OpenSSL 3.0: of X.509 version 1
/// (`openssl x509 -req -signkey`), and with a key of 1024 bits, signed with SHA-1
/// (`openssl req -x509 -sha1`). And one that is noise. The server has another key than theirs.
#[tokio::test]
async fn certificates_are_not_even_read() {
    let read = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();
    let noise = CertificateDer::from(vec![7; 100]);
    let all = [read(include_bytes!("v1.crt")), read(include_bytes!("weak.crt")), noise];
    for version in rustls::ALL_VERSIONS {
        for certificate in &all {
            let key = PrivateKeyDer::try_from(KeyPair::generate().unwrap().serialize_der());
            let key = ring::sign::any_supported_type(&key.unwrap()).unwrap();
            let shown = CertifiedKey::new(vec![certificate.clone()], key);
            let config =
                rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                    .with_protocol_versions(&[version])
                    .unwrap()
                    .with_no_client_auth()
                    .with_cert_resolver(Arc::new(Shows(Arc::new(shown))));
            let port = serve_tls(config).await;
            let get = request(port, json!({"scheme": "HTTPS"}));
            let finding = handlers().http_probe(&get, LIMIT).await;
            assert_eq!(finding, Finding::Success, "{version:?}");
        }
    }
}

#[tokio::test]
async fn addresses_of_ipv6_are_asked() {
    let socket = TcpSocket::new_v6().unwrap();
    if let Err(err) = socket.bind("[::1]:0".parse().unwrap()) {
        say_skipped(&format!("no IPv6 on loopback: {err}"));
        return;
    }
    let listener = socket.listen(16).unwrap();
    let port = listener.local_addr().unwrap().port();
    serve_grpc(listener, true);
    assert_eq!(handlers().tcp_probe("::1", port, LIMIT).await, Finding::Success);
    assert_eq!(handlers().grpc_probe("::1", port, "good", LIMIT).await, Finding::Success);
    let closed = closed_port().await;
    let words = failure(handlers().grpc_probe("::1", closed, "", LIMIT).await);
    assert!(words.contains(&format!("\"[::1]:{closed}\"")), "{words}");
    let get = HttpGet::of(
        &action(closed, json!({})),
        &k8s::Container::default(),
        "::1",
        PROBE_USER_AGENT,
    );
    let words = failure(handlers().http_probe(&get.unwrap(), LIMIT).await);
    assert!(words.starts_with(&format!("Get \"http://[::1]:{closed}/\": dial tcp [::1]:")));
}

#[tokio::test]
async fn servers_that_speak_no_grpc_are_failures() {
    let ask = async |port| handlers().grpc_probe("127.0.0.1", port, "", SHORT * 3).await;
    let http = does(|mut stream| async move {
        stream.write_all(answer("200 OK", "", "").as_bytes()).await.ok();
    });
    let closes = does(|stream| async move { drop(stream) });
    let resets = does(|stream| async move { stream.set_zero_linger().unwrap() });
    let endless = endless("", "0123456789").await;
    for port in [http.await, closes.await, resets.await, endless] {
        let words = failure(ask(port).await);
        assert!(words.starts_with("error: ") || words.starts_with("timeout: "), "{words}");
    }
}

/// A gRPC server that wants answers without end and reads none of them.
#[tokio::test]
async fn a_grpc_server_that_reads_nothing_loses_its_connection() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (listener, port) = listener().await;
    let serving = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all(&SETTINGS).await.unwrap();
        while stream.write_all(&PING.repeat(1024)).await.is_ok() {}
    });
    let probed = handlers().grpc_probe("127.0.0.1", port, "", SHORT).await;
    assert!(failure(probed).contains("timeout"));
    timeout(LIMIT, serving).await.unwrap().unwrap();
}
