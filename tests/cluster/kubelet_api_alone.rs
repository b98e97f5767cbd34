//! The HTTPS API of a node without a control plane: who is believed, which logs it serves, and what
//! silent clients can do.

use super::{
    controlplane::{
        client::Client,
        pki::{Authority, Validity},
    },
    kubelet_api::{PATHS, SOON, api, believes, put, shows, status, wait_served},
    support::{
        agent::Settings,
        block_on,
        manifest::Pod,
        poll_until, wait_until,
        world::{Kind, World, full_name},
    },
};
use futures_util::future::join_all;
use hyper::Method;
use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    net::TcpStream,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// An agent without an API server that lets clients of an authority in.
fn alone(serving_authority: &Authority, clients: &Authority, kubelet: &str) -> World {
    let world = World::prepare(Kind::Fake, &Settings::for_kind(Kind::Fake).kubelet(kubelet));
    shows(&world, serving_authority);
    believes(&world, clients);
    world.agent.add_flag("--authorization-mode=AlwaysAllow".to_owned());
    world.agent.add_flag(format!("--port={}", world.agent.api_port()));
    world.agent.start();
    world
}

/// The same, and a client that it believes, once the API answers.
fn alone_with_client(kubelet: &str) -> (World, Client) {
    let (serving_authority, clients) = (Authority::new("serving"), Authority::new("clients"));
    let world = alone(&serving_authority, &clients, kubelet);
    let known = clients.client("jane", &[], Validity::Long);
    let client = Client::new(api(&world), &serving_authority, Some(&known));
    wait_served(&client);
    (world, client)
}

#[test]
fn alone_a_client_certificate_is_required() {
    let (serving_authority, clients) = (Authority::new("serving"), Authority::new("clients"));
    let world = alone(&serving_authority, &clients, "");
    let known = clients.client("jane", &[], Validity::Long);
    let stranger = Authority::new("other").client("jane", &[], Validity::Long);
    let client = |identity| Client::new(api(&world), &serving_authority, identity);
    wait_served(&client(None));
    for (method, path) in &PATHS {
        assert_eq!(status(&client(None), method, path), 401, "{path}");
        assert_eq!(status(&client(Some(&stranger)), method, path), 401, "{path}");
        let token = client(None).with_token("any");
        assert_eq!(status(&token, method, path), 401, "{path}");
    }
    assert_eq!(status(&client(Some(&known)), &Method::GET, "/pods"), 200);

    // Files that are replaced count at once, and files that can't be used change nothing.
    let renewed = Authority::new("renewed");
    shows(&world, &renewed);
    let served = |authority: &Authority| {
        status(&Client::new(api(&world), authority, Some(&known)), &Method::GET, "/healthz")
    };
    wait_until("the new certificate is shown", SOON, || served(&renewed), |status| *status == 200);
    put(&world, "tls.crt", "no certificate");
    wait_until(
        "the mistake is told",
        SOON,
        || {
            served(&renewed);
            world.agent.log()
        },
        |log| log.contains("no PEM block of a certificate"),
    );
    assert_eq!(served(&renewed), 200);
    // Other clients are believed.
    shows(&world, &renewed);
    believes(&world, &Authority::new("others"));
    wait_until("the client is a stranger now", SOON, || served(&renewed), |status| *status == 401);
}

/// A directory below /var/log, which goes with this.
struct SystemLogDir(PathBuf);

impl SystemLogDir {
    fn make(name: &str) -> Self {
        let dir = Path::new("/var/log").join(name);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for SystemLogDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn http2_is_spoken_with_clients_that_speak_it() {
    let (serving_authority, clients) = (Authority::new("serving"), Authority::new("clients"));
    let world = alone(&serving_authority, &clients, "");
    let (jane, stranger) = (
        clients.client("jane", &[], Validity::Long),
        Authority::new("other").client("jane", &[], Validity::Long),
    );
    let http1 = Client::new(api(&world), &serving_authority, Some(&jane));
    let http2 = Client::over_http2(api(&world), &serving_authority, Some(&jane));
    wait_served(&http2);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    for (method, path) in &PATHS {
        assert_eq!(status(&http2, method, path), status(&http1, method, path), "{method} {path}");
    }
    // A session needs an upgrade, which HTTP/2 does not have.
    let exec = format!("/exec/default/{}/main?command=id&output=1", full_name("web"));
    let answer = http2.send(Method::POST, &exec, None).unwrap();
    assert_eq!((answer.status, answer.text.as_str()), (500, "Upgrade request required"));
    // More requests than one connection has at a time.
    let asked = (0..50).map(|_| http2.ask(Method::GET, "/pods", None));
    for answer in block_on(join_all(asked)) {
        assert_eq!(answer.unwrap().json()["items"].as_array().unwrap().len(), 1);
    }
    let stranger = Client::over_http2(api(&world), &serving_authority, Some(&stranger));
    for (method, path) in &PATHS {
        assert_eq!(status(&stranger, method, path), 401, "{method} {path}");
    }
    assert_eq!(status(&http2, &Method::GET, "/pods"), 200);
}

#[test]
fn logs_of_the_system_are_served_where_that_is_switched_on() {
    let (world, client) = alone_with_client("enableSystemLogQuery: true\n");
    let service = format!("of{}", world.slot.dir().display()).replace('/', "-");
    let dir = SystemLogDir::make(&service);
    let text = "a line\n".repeat(20_000);
    fs::write(dir.0.join(format!("{service}.log")), &text).unwrap();
    symlink("/etc/passwd", dir.0.join("outside")).unwrap();
    symlink(&dir.0, dir.0.join("inside")).unwrap();
    let get = |path: &str| client.send(Method::GET, path, None).unwrap();
    let listed = get(&format!("/logs/{service}/"));
    assert!(listed.text.contains(&format!("<a href=\"{service}.log\">")), "{}", listed.text);
    for path in [
        format!("/logs/{service}/{service}.log"),
        format!("/logs/{service}/inside/{service}.log"),
        format!("/logs/?query=/{service}/{service}.log"),
        format!("/logs/?query={service}"),
    ] {
        let answer = get(&path);
        assert!(answer.status == 200 && answer.text == text, "{path}: {}", answer.status);
    }
    assert_eq!(get(&format!("/logs/{service}")).status, 301);
    assert_eq!(get(&format!("/logs/{service}/outside")).status, 404);
    for (path, expected) in [
        ("/logs/", 200),
        ("/logs/../../etc/passwd", 404),
        ("/logs/..%2f..%2fetc/passwd", 404),
        ("/logs/./", 404),
        ("/logs//etc/passwd", 404),
        ("/logs/?query=no-such-service", 404),
        ("/logs/?query=/no/such/file", 404),
        ("/logs/?query=/../../etc/passwd", 404),
        ("/logs/?query=--root%3Detc", 406),
        ("/logs/?query=a&tailLines=many", 400),
        ("/logs/?query=*", 406),
    ] {
        let answer = get(path);
        assert_eq!(answer.status, expected, "{path}: {}", answer.text);
    }
    // What the process was started with, and how it is.
    let flags = get("/flagz");
    assert!(flags.text.contains("\nauthorization-mode=AlwaysAllow\n"), "{}", flags.text);
    let status = get("/statusz");
    assert!(status.text.contains("\nKubelet version: v1.36."), "{}", status.text);
}

#[test]
fn the_end_of_a_huge_log_is_sent_without_reading_it() {
    let (world, client) = alone_with_client("");
    world.drop_pod(&Pod::running("web"));
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    let dir = world.agent.pod_logs().join(format!("default_{}_{uid}/main", full_name("web")));
    fs::create_dir_all(&dir).unwrap();
    // 10 GiB, of which only the end takes room.
    let mut log = fs::File::create(dir.join("0.log")).unwrap();
    log.set_len(10 << 30).unwrap();
    log.seek(SeekFrom::End(0)).unwrap();
    let lines = (0..1000).map(|n| format!("2026-11-26T10:00:00.000000000Z stdout F line {n}\n"));
    log.write_all(format!("\n{}", lines.collect::<String>()).as_bytes()).unwrap();
    let read = || {
        let io = fs::read_to_string(format!("/proc/{}/io", world.agent.pid())).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        bytes.parse::<u64>().unwrap()
    };
    let before = read();
    let path = format!("/containerLogs/default/{}/main?tailLines=10", full_name("web"));
    let answer = client.send(Method::GET, &path, None).unwrap();
    // A browser does not take a log for a page whose scripts it runs.
    assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    let last: String = (990..1000).map(|n| format!("line {n}\n")).collect();
    assert_eq!((answer.status, answer.text), (200, last.clone()));
    let bytes = read() - before;
    assert!(bytes < 4 << 20, "{bytes} bytes were read");
    let printed = world.agent.cli(&["logs", "web", "--tail", "10"]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), last);
}

#[test]
fn alone_nothing_listens_by_default() {
    for believes_clients in [false, true] {
        let world = World::prepare(Kind::Fake, &Settings::for_kind(Kind::Fake));
        world.agent.add_flag(format!("--port={}", world.agent.api_port()));
        if believes_clients {
            believes(&world, &Authority::new("clients"));
        }
        world.agent.start();
        world.drop_pod(&Pod::running("web"));
        let told = world.wait_running("web").node.notices.join("\n");
        assert!(TcpStream::connect(api(&world)).is_err());
        assert!(told.contains("the HTTPS API is not served unless --kubeconfig"), "{told}");
    }
}

#[test]
fn silent_clients_keep_nobody_out() {
    let (serving_authority, clients) = (Authority::new("serving"), Authority::new("clients"));
    let world = alone(&serving_authority, &clients, "");
    let jane = clients.client("jane", &[], Validity::Long);
    let client = || Client::new(api(&world), &serving_authority, Some(&jane));
    wait_served(&client());
    let before = world.agent.usage();
    // Some say nothing, some say half a TLS record, some say nonsense.
    let words: [&[u8]; 3] = [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"];
    let silent: Vec<TcpStream> = (0..1000)
        .map(|n| {
            let mut connection = TcpStream::connect(api(&world)).unwrap();
            // It may be closed by now.
            _ = connection.write_all(words[n % words.len()]);
            connection
        })
        .collect();
    // One that asked before may lose its idle connection while it asks again.
    let newcomer = client();
    for _ in 0..20 {
        assert_eq!(newcomer.send(Method::GET, "/healthz", None).unwrap().status, 200);
    }
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let during = world.agent.usage();
    assert!(during.fds < before.fds + 300, "{during:?} after {before:?}");
    drop(silent);
    let settled = poll_until(SOON, || world.agent.usage().fds, |fds| *fds < before.fds + 20);
    assert!(settled.is_ok(), "{settled:?} after {before:?}");
}
