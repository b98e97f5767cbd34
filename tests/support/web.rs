//! A small web server on loopback: it gives each path its answer, notes what it was asked, and may
//! go away.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
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
    answers: Mutex<BTreeMap<String, String>>,
    /// The heads of requests, in the order of arrival.
    asked: Mutex<Vec<String>>,
    away: AtomicBool,
    ended: AtomicBool,
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
                served.answer(stream.unwrap());
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    /// The URL of a path: `/pods`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers requests for a path with this body.
    pub fn serve(&self, path: &str, body: &str) {
        self.set(path, "200 OK", "", body);
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
        let missing = || "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned();
        let answer = self.answers.lock().unwrap().get(&path).cloned().unwrap_or_else(missing);
        let _hung_up = stream.write_all(answer.as_bytes());
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
