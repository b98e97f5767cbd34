//! Local users, readers of the log, and what a person sees on a terminal.

use crate::contention::CpuTimes;
use crate::support::{
    manifest::Pod,
    pause,
    status::{exchange, get},
    world::World,
};
use crate::watchdog::{INNOCENT, Watchdog};
use nix::libc;
use std::{
    fs,
    io::{PipeReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Output,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The longest time that a probe of the health port may take.
const PROBE: Duration = Duration::from_secs(1);
/// The places of the local socket.
const LOCAL_PLACES: usize = 256;
/// An answer that goes on.
const FOLLOWED: &str = "/events?watch=true";
/// The same about pods.
const WATCHED: &str = "/status?watch=true";
/// What the pipe buffer of the kernel holds.
const PIPE: usize = 64 * 1024;
/// The longest time that a command on the command line may take with a bad file.
const COMMAND: Duration = Duration::from_secs(20);

fn health_port(world: &World) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, world.slot.port()).into()
}

/// One probe, as a load balancer or a person makes it.
fn probe(world: &World) -> Result<Duration, String> {
    let (port, agent) = (health_port(world), world.agent.pid());
    let (asked, times) = (Instant::now(), CpuTimes::read(agent));
    let answer = || {
        // As long as a busy machine may need.
        let mut stream = TcpStream::connect_timeout(&port, PROBE * 4)?;
        stream.set_read_timeout(Some(PROBE * 4))?;
        exchange(&mut stream, "/healthz")
    };
    let body = answer();
    let took = asked.elapsed();
    match body {
        Ok(body) if body == "ok" && took <= times.allowed(PROBE, took, agent) => Ok(took),
        other => Err(format!("{other:?} after {took:?}")),
    }
}

/// Waits for the port, and attacks it in threads for 3 s while it is probed.
fn attack_the_health_port(attack: impl Fn(SocketAddr, &AtomicBool) + Sync) {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let port = health_port(&world);
    world.wait_until("the health port answers", || probe(&world).is_ok(), |answers| *answers);
    let over = AtomicBool::new(false);
    let failed: Vec<String> = std::thread::scope(|scope| {
        scope.spawn(|| attack(port, &over));
        // The attack has taken every place by then.
        pause(Duration::from_millis(500));
        let begun = Instant::now();
        let mut failed = Vec::new();
        while begun.elapsed() < Duration::from_secs(3) {
            failed.extend(probe(&world).err());
            pause(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        failed
    });
    assert!(failed.is_empty(), "{} probes failed: {failed:?}", failed.len());
    dog.finish(&world);
    world.finish();
}

#[test]
fn half_a_request_on_many_connections_blocks_no_health_probe() {
    attack_the_health_port(|port, over| {
        let mut held = Vec::new();
        while !over.load(Ordering::Relaxed) {
            held.truncate(0);
            for _ in 0..200 {
                let Ok(mut stream) = TcpStream::connect(port) else { continue };
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x").ok();
                held.push(stream);
            }
            pause(Duration::from_millis(800));
        }
    });
}

#[test]
fn regular_requests_on_many_connections_block_no_health_probe() {
    attack_the_health_port(|port, over| {
        let mut held: Vec<Option<TcpStream>> = (0..64).map(|_| None).collect();
        while !over.load(Ordering::Relaxed) {
            for place in &mut held {
                let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n";
                let sent = place.as_mut().is_some_and(|stream| stream.write_all(request).is_ok());
                if !sent {
                    *place = TcpStream::connect(port).ok();
                }
            }
            pause(Duration::from_secs(1));
        }
    });
}

#[test]
fn a_flood_of_connections_blocks_no_health_probe() {
    let opened = AtomicUsize::new(0);
    attack_the_health_port(|port, over| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed)
                        && opened.fetch_add(1, Ordering::Relaxed) < 10_000
                    {
                        // Closed by the agent or at once: so many fit into the ports of a machine.
                        let Ok(mut stream) = TcpStream::connect(port) else { continue };
                        stream.write_all(b"GET").ok();
                    }
                });
            }
        });
    });
}

#[test]
fn silent_clients_of_the_local_socket_block_no_status() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let socket = world.agent.run_dir().join("nodelet.sock");
    let mut held = Vec::new();
    for request in ["", "GET /status HTTP/1.1\r\nHost: x\r\n\r\n"] {
        for _ in 0..LOCAL_PLACES + 50 {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(request.as_bytes()).ok();
            held.push(stream);
        }
        for _ in 0..10 {
            let (asked, times) = (Instant::now(), CpuTimes::read(world.agent.pid()));
            get(&socket, "/status").unwrap();
            let took = asked.elapsed();
            assert!(took <= times.allowed(PROBE, took, world.agent.pid()), "{took:?}");
        }
    }
    dog.finish(&world);
    drop(held);
    let descriptors = || world.agent.usage().fds;
    world.wait_until("the agent has closed their connections", descriptors, |fds| *fds < 40);
    world.finish();
}

#[test]
fn followers_that_read_nothing_block_no_status_and_no_health_probe() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let socket = world.agent.run_dir().join("nodelet.sock");
    let follow = |path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").ok();
        stream
    };
    let quick = |what: &str| {
        let (asked, times) = (Instant::now(), CpuTimes::read(world.agent.pid()));
        get(&socket, what).unwrap();
        let took = asked.elapsed();
        assert!(took <= times.allowed(PROBE, took, world.agent.pid()), "{what}: {took:?}");
    };
    let mut held = Vec::new();
    for round in 0..20 {
        for _ in 0..5 {
            held.extend([follow(FOLLOWED), follow(WATCHED)]);
        }
        // Each of them has events that it does not read.
        world.drop_pod(&Pod::with_main(&format!("pod-{round}"), "exit 3"));
        quick("/status");
        quick("/healthz");
    }
    world.wait_running(INNOCENT);
    // One that is refused is told why.
    let mut refused = follow(FOLLOWED);
    let mut answer = String::new();
    refused.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(probe(&world).is_ok());
    drop(held);
    world.wait_until(
        "places are free again",
        || {
            let mut stream = follow(FOLLOWED);
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            String::from_utf8_lossy(&head).into_owned()
        },
        |head| head == "HTTP/1.1 200",
    );
    dog.finish(&world);
    world.finish();
}

/// Everything that comes out of a pipe.
fn collect(mut reader: PipeReader) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&text);
    std::thread::spawn(move || {
        let mut block = [0; 16 * 1024];
        while let Ok(length @ 1..) = reader.read(&mut block) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&block[..length]));
        }
    });
    text
}

#[test]
fn a_log_that_nobody_reads_does_not_stop_the_agent() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    world.agent.add_flag("--v=4".to_owned());
    world.agent.start_logging_to(writer);
    world.wait("the agent answers", |_| true);
    let dog = Watchdog::start(&world);
    // Each revision costs the agent a line of 8 KiB: together more than pipe and queue hold.
    for revision in 0..100 {
        let field = format!("revision{revision}{}", "x".repeat(40));
        let fields: String = (0..100).map(|number| format!("{field}{number}: 1\n")).collect();
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n{fields}");
        fs::write(world.agent.manifests().join("web.yaml"), text).unwrap();
        world.wait("the problems are shown", |status| {
            format!("{:?}", status.verdicts("web.yaml")).contains(&field)
        });
    }
    world.drop_pod(&Pod::running("unheard"));
    world.wait_running("unheard");
    dog.finish(&world);
    let log = collect(reader);
    let log = || log.lock().unwrap().clone();
    world.wait_until("lost lines are counted", &log, |log| {
        log.contains("log lines were lost because standard error took no more")
    });
    world.drop_pod(&Pod::running("later"));
    world.wait_until("later lines are written", &log, |log| log.contains("default/later-"));
    world.finish();
}

#[test]
fn an_agent_whose_log_nobody_reads_can_be_stopped() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE]).unwrap();
    world.agent.start_logging_to(writer);
    world.wait("the agent answers", |_| true);
    let begun = Instant::now();
    assert_eq!(world.agent.terminate(), Some(0));
    assert!(begun.elapsed() < crate::PATIENCE, "{:?}", begun.elapsed());
    drop(reader);
    world.agent.start();
    world.wait("the agent answers", |_| true);
    world.finish();
}

#[test]
fn a_log_reader_that_goes_away_does_not_stop_the_agent() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    world.agent.start_logging_to(writer);
    world.wait("the agent answers", |_| true);
    drop(reader);
    let dog = Watchdog::start(&world);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    dog.finish(&world);
    world.finish();
}

/// A web server without manifests that counts requests.
fn count_requests() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            counted.fetch_add(1, Ordering::Relaxed);
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 39\r\n\r\n";
            write!(stream, "{head}apiVersion: v1\nkind: PodList\nitems: []\n").ok();
        }
    });
    (port, count)
}

#[test]
fn signals_of_other_programs_do_not_end_the_agent() {
    let (port, requests) = count_requests();
    let started = crate::world(|mut settings| {
        settings.kubelet +=
            &format!("staticPodURL: http://127.0.0.1:{port}/\nhttpCheckFrequency: 1h\n");
        settings
    });
    let Some(world) = started else { return };
    let dog = Watchdog::start(&world);
    let named = [
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSTKFLT,
        libc::SIGXFSZ,
        libc::SIGPIPE,
    ];
    for number in named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        world.agent.signal(number);
    }
    let before = requests.load(Ordering::Relaxed);
    world.agent.signal(libc::SIGHUP);
    world.wait_until(
        "manifests are read again",
        || requests.load(Ordering::Relaxed),
        |now| *now > before,
    );
    assert!(world.agent.is_running());
    let status = fs::read_to_string(format!("/proc/{}/status", world.agent.pid())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    // Rust ignores SIGPIPE, and gives it its default action in programs that are started.
    for number in named.into_iter().filter(|number| *number != libc::SIGPIPE) {
        assert_eq!(
            ignored & (1 << (number - 1)),
            0,
            "signal {number} would be ignored by programs"
        );
    }
    dog.finish(&world);
    world.finish();
}

/// The log directory of the innocent pod's container.
fn innocent_logs(world: &World) -> PathBuf {
    let uid = world.agent.status().unwrap().pod("innocent").unwrap().uid.clone();
    world.agent.pod_logs().join(format!("default_innocent-node1_{uid}/main"))
}

fn command(world: &World, arguments: &[&str]) -> Output {
    let begun = Instant::now();
    let ended = world.agent.cli_within(COMMAND, arguments);
    ended.unwrap_or_else(|| panic!("nodelet {arguments:?} still ran after {:?}", begun.elapsed()))
}

fn make_fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn a_fifo_among_log_files_and_for_check_is_an_error() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let run_dir = world.agent.run_dir();
    let run_dir = run_dir.to_str().unwrap();
    let log = innocent_logs(&world).join("7.log");
    make_fifo(&log);
    for more in [&[][..], &["--tail=1"]] {
        let arguments = [&["logs", "innocent", "--run-dir", run_dir], more].concat();
        let output = command(&world, &arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("it is a FIFO, not a regular file"), "{said}");
    }
    fs::remove_file(&log).unwrap();
    let fifo = world.slot.dir().join("fifo.yaml");
    make_fifo(&fifo);
    for arguments in [
        vec!["check", fifo.to_str().unwrap()],
        vec!["check", "--config", fifo.to_str().unwrap(), "/dev/null"],
        vec!["check", "/dev/zero"],
        vec!["check", world.slot.dir().join("proxy.sock").to_str().unwrap()],
    ] {
        let output = command(&world, &arguments);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("not a regular file"), "{arguments:?}: {said}");
    }
    dog.finish(&world);
    world.finish();
}

#[test]
fn the_last_line_of_a_huge_log_without_line_breaks_is_found() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let log = innocent_logs(&world).join("7.log");
    let mut text = b"2026-11-20T10:00:00Z stdout F first\n".to_vec();
    text.resize(64 << 20, b'x');
    fs::write(&log, text).unwrap();
    let run_dir = world.agent.run_dir();
    let arguments = ["logs", "innocent", "--tail=1", "--run-dir", run_dir.to_str().unwrap()];
    let output = command(&world, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.starts_with(b"first"), "more than the last line");
    assert!(output.stdout.len() > 60 << 20, "{}", output.stdout.len());
    fs::remove_file(&log).unwrap();
    dog.finish(&world);
    world.finish();
}
