//! A server that probes ask, which notes when each came; and a bare client that asks as an agent
//! would, with nothing around it.

use crate::stage::{Moment, now};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, MissedTickBehavior, interval_at},
};

/// With this argument the bench is the bare client.
pub const ARGUMENT: &str = "--ask-as-probes-do";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
const FAILS: &str = "HTTP/1.1 500 Not well\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The server, on a thread of the bench.
pub struct Server {
    address: SocketAddr,
    heard: Arc<Heard>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Heard {
    /// When each path was asked for.
    at: Mutex<BTreeMap<String, Vec<Moment>>>,
    /// The path that is answered with a failure.
    failing: Mutex<String>,
    over: AtomicBool,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::<Heard>::default());
        let shared = Arc::clone(&heard);
        let thread = std::thread::spawn(move || serve(&listener, &shared));
        Self { address, heard, thread: Some(thread) }
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Forgets what it has heard.
    pub fn forget(&self) {
        self.heard.at.lock().unwrap().clear();
    }

    /// When each path was asked for since then.
    pub fn heard(&self) -> BTreeMap<String, Vec<Moment>> {
        self.heard.at.lock().unwrap().clone()
    }

    /// From now on this path is answered with 500; an empty one: none is.
    pub fn fail(&self, path: &str) {
        path.clone_into(&mut self.heard.failing.lock().unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.heard.over.store(true, Ordering::Relaxed);
        // It looks at the flag after each connection.
        drop(TcpStream::connect(self.address));
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn serve(listener: &TcpListener, heard: &Heard) {
    let mut buffer = [0; 4096];
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        if heard.over.load(Ordering::Relaxed) {
            return;
        }
        let at = now();
        // A probe's request comes in one piece.
        let Ok(length) = stream.read(&mut buffer) else { continue };
        let request = String::from_utf8_lossy(&buffer[..length]);
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let fails = *heard.failing.lock().unwrap() == path;
        let answered = stream.write_all(if fails { FAILS } else { OK }.as_bytes());
        if answered.is_ok() {
            heard.at.lock().unwrap().entry(path).or_default().push(at);
        }
    }
}

/// The bare client, in a process of its own so that its CPU time can be told from the bench's.
pub struct Client(Child);

impl Client {
    /// Asks for so many paths of the server once a second each.
    pub fn start(server: &Server, paths: usize) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([ARGUMENT, &server.port().to_string(), &paths.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The process of [`Client`]: like the agents' own loops, one thread and a timer for each probe.
pub fn ask() {
    let numbers = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1);
    let mut numbers = numbers.map(|number| number.parse::<u16>().unwrap());
    let (port, paths) = (numbers.next().unwrap(), numbers.next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..paths {
            // Spread over the second, as probes of pods that were not started together are.
            let phase = Duration::from_secs(1) * u32::from(number) / u32::from(paths);
            tasks.spawn(async move {
                let mut ticks = interval_at(Instant::now() + phase, Duration::from_secs(1));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    request(port, number).await;
                }
            });
        }
        tasks.join_all().await;
    });
}

async fn request(port: u16, number: u16) {
    let text = format!(
        "GET /probe-{number} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: kube-probe/1.36\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::with_capacity(512);
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}
