//! Credentials, kubeconfigs and other files that an administrator names.

use crate::{
    prepared,
    support::{manifest::Pod, poll_until, status::Status, world::World},
    watchdog::Watchdog,
};
use nix::{libc, sys::stat::Mode, unistd::mkfifo};
use std::{
    fs,
    io::{Read as _, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned, crypto::ring, pki_types::PrivatePkcs8KeyDer,
};

/// Words that are secret in these tests.
const SECRET: &str = "TOPSECRET";

/// A world whose agent is told of a kubeconfig, not started.
fn with_kubeconfig() -> Option<(World, PathBuf)> {
    let world = prepared(|settings| settings)?;
    let path = world.agent.config_file().with_file_name("kubeconfig");
    world.agent.join(&path);
    Some((world, path))
}

/// A kubeconfig for this user and a server that is not there.
fn kubeconfig(user: &str) -> String {
    kubeconfig_of("https://127.0.0.1:9", user)
}

fn kubeconfig_of(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: c\n  cluster: {{server: \"{server}\", insecure-skip-tls-verify: true}}\n\
         contexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
         users:\n- name: u\n  user:\n{user}\n"
    )
}

/// As a careful person writes: beside, then renamed.
fn replace(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}

fn troubles(status: &Status) -> String {
    let cluster = status.node.cluster.iter();
    let troubles = cluster.flat_map(|cluster| &cluster.troubles);
    troubles.map(|trouble| format!("{}: {}\n", trouble.what, trouble.error)).collect()
}

/// Waits until the status names `what` as a trouble of the credentials.
#[track_caller]
fn wait_named(world: &World, what: &[&str]) {
    world.wait("the trouble is named", |status| {
        let told = troubles(status);
        let of_credentials = told.lines().filter(|line| line.starts_with("credentials: "));
        of_credentials.into_iter().any(|line| what.iter().all(|what| line.contains(what)))
    });
}

/// Waits until there is no trouble with credentials.
#[track_caller]
fn wait_taken_up(world: &World) {
    world.wait("the credentials are taken up", |status| {
        let server = status.node.cluster.as_ref().is_some_and(|cluster| cluster.server.is_some());
        server && !troubles(status).contains("credentials: ")
    });
}

#[track_caller]
fn assert_not_logged(world: &World, what: &str) {
    assert!(!world.agent.log().contains(what), "{}", world.agent.log_tail(40));
}

#[test]
fn control_characters_in_credentials() {
    let Some((world, path)) = with_kubeconfig() else { return };
    // White space around a token is no part of it.
    replace(&path, &kubeconfig("    token: |\n      TOPSECRET\n"));
    world.agent.start();
    wait_taken_up(&world);
    let dog = Watchdog::start(&world);
    for (n, control) in ['\n', '\u{1}', '\u{7f}', '\r', '\u{0}'].into_iter().enumerate() {
        let value = format!("\"{SECRET}\\u{:04x}{n}\"", u32::from(control));
        for (user, field) in [
            (format!("    token: {value}"), "users[u].user.token"),
            (
                format!("    auth-provider: {{name: oidc, config: {{id-token: {value}}}}}"),
                "users[u].user.auth-provider.config.id-token",
            ),
            (format!("    as: {value}"), "users[u].user.as"),
            (format!("    as-groups: [{value}]"), "users[u].user.as-groups"),
        ] {
            replace(&path, &kubeconfig(&user));
            wait_named(&world, &[field, path.to_str().unwrap()]);
        }
    }
    let token = path.with_file_name("token");
    fs::write(&token, format!("{SECRET}\u{7}")).unwrap();
    replace(&path, &kubeconfig("    tokenFile: token"));
    wait_named(&world, &["users[u].user.tokenFile"]);
    replace(&token, &format!("  {SECRET}\n\n"));
    wait_taken_up(&world);
    dog.finish(&world);
    assert_not_logged(&world, SECRET);
    assert!(!format!("{:?}", world.agent.status().unwrap().node).contains(SECRET));
    world.finish();
}

#[test]
fn a_link_that_changes_unnoticed_is_read_again_at_sighup() {
    let Some(world) = prepared(|settings| settings) else { return };
    let dir = world.agent.config_file().with_file_name("credentials");
    let link = dir.join("current");
    for (version, token) in [("one", "\"first \\u0007\""), ("two", "second")] {
        fs::create_dir_all(dir.join(version)).unwrap();
        let text = kubeconfig(&format!("    token: {token}"));
        fs::write(dir.join(version).join("kubeconfig"), text).unwrap();
    }
    symlink("one", &link).unwrap();
    world.agent.join(&link.join("kubeconfig"));
    world.agent.start();
    wait_named(&world, &["users[u].user.token"]);
    // No watch of a directory notices that a link on the way to it leads somewhere else.
    symlink("two", dir.join("next")).unwrap();
    fs::rename(dir.join("next"), &link).unwrap();
    world.agent.signal(libc::SIGHUP);
    // Without the signal it takes a minute.
    let taken_up = |status: &Status| !troubles(status).contains("credentials: ");
    world.wait_for(Duration::from_secs(30), "the other token is used", taken_up);
    world.finish();
}

#[test]
fn files_that_are_no_files() {
    let Some((world, path)) = with_kubeconfig() else { return };
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    world.agent.start();
    let dog = Watchdog::start(&world);
    wait_named(&world, &[path.to_str().unwrap(), "a FIFO"]);
    let fifo = path.with_file_name("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    for (user, field) in [
        ("    tokenFile: FILE", "users[u].user.tokenFile"),
        ("    client-certificate: FILE\n    client-key: FILE", "users[u].user.client-certificate"),
    ] {
        replace(&path, &kubeconfig(&user.replace("FILE", fifo.to_str().unwrap())));
        wait_named(&world, &[field, "a FIFO"]);
        replace(&path, &kubeconfig(&user.replace("FILE", "/dev/zero")));
        wait_named(&world, &[field, "a device"]);
    }
    let authority = kubeconfig("    token: abc").replace(
        "insecure-skip-tls-verify: true",
        &format!("certificate-authority: {}", fifo.display()),
    );
    replace(&path, &authority);
    wait_named(&world, &["clusters[c].cluster.certificate-authority", "a FIFO"]);
    // Sparse: it takes no room on the disk.
    let huge = fs::File::create(path.with_file_name("huge")).unwrap();
    huge.set_len(100 << 30).unwrap();
    replace(&path, &kubeconfig("    tokenFile: huge"));
    wait_named(&world, &["users[u].user.tokenFile", "larger than"]);
    replace(&path, &kubeconfig("    token: abc"));
    wait_taken_up(&world);
    dog.finish(&world);
    world.finish();
}

/// Command lines of the processes that sleep for `seconds`, and of the shells that started them.
fn sleepers(seconds: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&format!("sleep {seconds} "))).collect()
}

#[test]
fn an_exec_plugin_that_does_not_return() {
    let Some((world, path)) = with_kubeconfig() else { return };
    // A number of seconds that no other process sleeps for.
    let seconds = format!("1000.{}", std::process::id());
    let script = format!("sleep {seconds} & sleep {seconds}");
    let exec = format!("    exec: {{command: /bin/sh, args: [-c, \"{script}\"]}}");
    replace(&path, &kubeconfig(&exec));
    world.agent.start();
    let dog = Watchdog::start(&world);
    wait_named(&world, &["users[u].user.exec", "has not ended yet"]);
    assert_eq!(sleepers(&seconds).len(), 3, "one run at a time: {:?}", sleepers(&seconds));
    // Another kubeconfig ends it.
    replace(&path, &kubeconfig("    token: abc"));
    wait_taken_up(&world);
    world.wait_until("the plugin and its child are gone", || sleepers(&seconds), Vec::is_empty);
    replace(&path, &kubeconfig(&exec));
    world.wait_until("the plugin runs again", || sleepers(&seconds), |found| found.len() == 3);
    dog.finish(&world);
    let begun = Instant::now();
    assert_eq!(world.agent.terminate(), Some(0));
    assert!(begun.elapsed() < crate::PATIENCE, "it took {:?}", begun.elapsed());
    world.wait_until("the plugin and its child are gone", || sleepers(&seconds), Vec::is_empty);
    replace(&path, &kubeconfig("    token: abc"));
    world.agent.start();
    world.finish();
}

#[test]
fn an_exec_plugin_that_prints_without_end() {
    let Some((world, path)) = with_kubeconfig() else { return };
    let exec =
        format!("    exec: {{command: sh, args: [-c, \"yes {SECRET} | head -c 1000000000\"]}}");
    replace(&path, &kubeconfig(&exec));
    world.agent.start();
    let dog = Watchdog::start(&world);
    wait_named(&world, &["users[u].user.exec", "printed more than"]);
    let failing = format!(
        "    exec: {{command: sh, args: [-c, \"echo {SECRET}; echo {SECRET} >&2; exit 3\"]}}"
    );
    replace(&path, &kubeconfig(&failing));
    wait_named(&world, &["users[u].user.exec", "exit status: 3"]);
    dog.finish(&world);
    assert_not_logged(&world, SECRET);
    world.finish();
}

/// Something that a hostile server answers.
type Garbage = fn(&mut dyn Write) -> std::io::Result<()>;

/// What a hostile server answers, one after the other.
const GARBAGE: [Garbage; 10] = [
    |out| out.write_all(b"HTTP/1.1 200 OK\r\n\r\n<html><body>Log in to the hotel's network"),
    |out| endless(out, "200 OK", &"x".repeat(8192)),
    |out| endless(out, "200 OK", &"[".repeat(8192)),
    |out| endless(out, "200 OK", &"{\"a\":".repeat(1024)),
    |out| endless(out, "200 OK", "{\"type\": \"ADDED\", \"object\": {\"metadata\": 7}}\n"),
    |out| {
        let many = format!(
            "{{\"type\": \"ADDED\", \"object\": {{\"metadata\": {{}}, \"status\": {{\"conditions\": [{}{{}}]}}}}}}\n",
            "{},".repeat(1_000_000)
        );
        endless(out, "200 OK", &many)
    },
    objects_without_end,
    |out| endless(out, "500 Internal Server Error", &"\u{1b}[31m".repeat(1000)),
    |out| {
        endless(
            out,
            "403 Forbidden",
            "{\"status\": \"Failure\", \"code\": 403, \"message\": \"TOO MUCH\"}\n",
        )
    },
    |out| {
        for _ in 0..10_000 {
            out.write_all(&[0x80; 10_000])?;
        }
        Ok(())
    },
];

/// A watch with a million objects of a kilobyte.
fn objects_without_end(out: &mut dyn Write) -> std::io::Result<()> {
    head(out, "200 OK")?;
    for n in 0..1_000_000 {
        let labels = "y".repeat(1000);
        writeln!(
            out,
            "{{\"type\": \"ADDED\", \"object\": {{\"metadata\": {{\"name\": \"x{n}\", \"namespace\": \"n\", \"labels\": {{\"a\": \"{labels}\"}}}}}}}}"
        )?;
    }
    Ok(())
}

fn head(out: &mut dyn Write, status: &str) -> std::io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
}

/// A body of 300 MB, unless the client ends it.
fn endless(out: &mut dyn Write, status: &str, part: &str) -> std::io::Result<()> {
    head(out, status)?;
    for _ in 0..300_000_000 / part.len() {
        out.write_all(part.as_bytes())?;
    }
    Ok(())
}

/// A TLS server that answers requests with garbage, one kind after the other, until it is dropped.
struct HostileServer {
    url: String,
    /// How often each kind was answered.
    answered: Arc<[AtomicUsize]>,
    over: Arc<AtomicBool>,
}

impl HostileServer {
    fn start(garbage: &'static [Garbage]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let answered: Arc<[AtomicUsize]> = garbage.iter().map(|_| AtomicUsize::new(0)).collect();
        let over = Arc::default();
        let server = Self { url, answered: Arc::clone(&answered), over: Arc::clone(&over) };
        let config = Arc::new(tls());
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().flatten().enumerate() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (answered, config) = (Arc::clone(&answered), Arc::clone(&config));
                std::thread::spawn(move || {
                    let kind = n % garbage.len();
                    // An error is a client that had enough.
                    let _outcome = answer(stream, config, garbage[kind]);
                    answered[kind].fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        server
    }

    /// How often the least frequent garbage was answered.
    fn rounds(&self) -> usize {
        self.answered.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap()
    }
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Lets the listener see it.
        let _woken = TcpStream::connect(self.url.trim_start_matches("https://"));
    }
}

fn tls() -> ServerConfig {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .unwrap()
}

/// Reads one request and answers it.
fn answer(stream: TcpStream, config: Arc<ServerConfig>, garbage: Garbage) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    garbage(&mut stream)?;
    stream.conn.send_close_notify();
    stream.flush()
}

#[test]
fn an_api_server_that_sends_garbage() {
    is_survived(&GARBAGE, "it has sent all of it", |_, server| server.rounds() >= 1);
}

#[test]
fn watches_that_show_objects_without_end() {
    // Every watch of the agent gets it, one beside the other; that of pods keeps most.
    let refused = "cannot watch /api/v1/pods err=\"the watch shows more than the agent keeps\"";
    is_survived(&[objects_without_end], "the watch of pods is refused", |world, _| {
        world.agent.log().contains(refused)
    });
}

/// An agent starts pods, answers and keeps its memory, whatever the API server sends, until `done`.
#[track_caller]
fn is_survived(
    garbage: &'static [Garbage],
    what: &str,
    done: impl Fn(&World, &HostileServer) -> bool,
) {
    let Some((world, path)) = with_kubeconfig() else { return };
    let server = HostileServer::start(garbage);
    replace(&path, &kubeconfig_of(&server.url, "    token: abc"));
    world.agent.start();
    let dog = Watchdog::start(&world);
    // An agent that was built for tests reads megabytes of JSON slowly.
    let patience = Duration::from_secs(120);
    let seen = poll_until(patience, || done(&world, &server), |done| *done);
    assert!(seen.is_ok(), "not within {patience:?}: {what}\n{}", world.agent.log_tail(20));
    world.drop_pod(&Pod::running("late"));
    world.wait_running("late");
    dog.finish(&world);
    // What the heap has been once it stays: the ceiling at the end of every test is one for an
    // agent in peace.
    drop(server);
    world.agent.kill();
    world.agent.start();
    world.finish();
}
