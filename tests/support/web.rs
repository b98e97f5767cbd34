//! A small web server on loopback: it gives each path its answer, notes what it was asked, and may
//! go away.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// A running server. It ends when it is dropped.
pub struct Web {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<BTreeMap<String, Answer>>,
    /// The heads of requests, in the order of arrival.
    asked: Mutex<Vec<String>>,
    away: AtomicBool,
    ended: AtomicBool,
}

/// What follows a request.
#[derive(Clone)]
enum Answer {
    Whole(String),
    /// The body goes on until the client hangs up.
    Endless,
    /// Nothing, until the client hangs up.
    None,
}

impl Web {
    /// Listens on a free port of loopback.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let served = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if served.ended.load(Ordering::SeqCst) {
                    return;
                }
                // Of its own: an answer may take as long as its client waits.
                let (served, stream) = (Arc::clone(&served), stream.unwrap());
                thread::spawn(move || served.answer(stream));
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of a path: `/pods`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers requests for a path with this body.
    pub fn serve(&self, path: &str, body: &str) {
        self.set(path, "200 OK", "", body);
    }

    /// Answers requests for a path with a status and no content: `500 Internal Server Error`.
    pub fn fail(&self, path: &str, status: &str) {
        self.set(path, status, "", "");
    }

    /// Answers requests for a path with a body that has no end.
    pub fn serve_without_end(&self, path: &str) {
        self.answer(path, Answer::Endless);
    }

    /// Never answers requests for a path.
    pub fn hang(&self, path: &str) {
        self.answer(path, Answer::None);
    }

    /// Sends requests for a path elsewhere.
    pub fn redirect(&self, path: &str, location: &str) {
        self.set(path, "302 Found", &format!("location: {location}\r\n"), "");
    }

    fn set(&self, path: &str, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        self.answer(path, Answer::Whole(answer));
    }

    fn answer(&self, path: &str, answer: Answer) {
        self.shared.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Closes every connection without an answer from now on, or answers again.
    pub fn go_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
    }

    /// The heads of the requests for a path, in lower case.
    pub fn asked(&self, path: &str) -> Vec<String> {
        let asked = self.shared.asked.lock().unwrap();
        let start = format!("get {path} ");
        asked.iter().filter(|head| head.starts_with(&start)).cloned().collect()
    }
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                // The first byte of TLS, which this server does not speak.
                Ok(1) if head.is_empty() && byte == [0x16] => {
                    let _rest = stream.read(&mut [0; 4096]);
                    let _hung_up = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                    return;
                }
                Ok(1) => head.push(byte[0]),
                // A peer that hangs up is no concern of the server.
                Ok(_) | Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        self.asked.lock().unwrap().push(head.to_ascii_lowercase());
        if self.away.load(Ordering::SeqCst) {
            return;
        }
        let missing =
            || Answer::Whole("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned());
        let answer = self.answers.lock().unwrap().get(&path).cloned().unwrap_or_else(missing);
        // How it ends does not matter: the client has hung up.
        let _ended = match answer {
            Answer::Whole(text) => stream.write_all(text.as_bytes()),
            Answer::Endless => stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .and_then(|()| io::copy(&mut io::repeat(b'x'), &mut stream).map(drop)),
            Answer::None => stream
                .set_read_timeout(None)
                .and_then(|()| io::copy(&mut stream, &mut io::sink()).map(drop)),
        };
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread.
        let _wake = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}
