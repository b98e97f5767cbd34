//! Sessions with a pod over the local socket: `nodelet exec`, `attach`, `port-forward`.

use crate::support::{
    images::BUSYBOX,
    manifest::Pod,
    stays, wait_until,
    world::{Kind, World},
};
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Read as _, Write},
    net::TcpStream,
    process::{Command, Output, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn ok(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

pub fn a_command_runs_in_a_container(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web").container("side", "exec sleep 1000"));
    world.wait_running("web");
    let cli = |words: &[&str]| world.agent.cli_with_input(words, b"");
    assert_eq!(ok(&cli(&["exec", "web", "--", "echo", "a b", "&c"])), "a b &c\n");
    let named = cli(&["exec", "web", "-c", "side", "--", "sh", "-c", "echo $HOSTNAME"]);
    assert_eq!(ok(&named), "web-node1\n");
    // Standard input, up to its end, and both outputs.
    let many = "0123456789abcdef\n".repeat(40_000);
    let copied = world.agent.cli_with_input(&["exec", "-i", "web", "--", "cat"], many.as_bytes());
    assert!(ok(&copied) == many, "{} bytes came back", copied.stdout.len());
    let failed = cli(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    assert_eq!((text(&failed.stdout), text(&failed.stderr)), ("out\n", "err\n"));
    let long = "x".repeat(40_000);
    assert_eq!(ok(&cli(&["exec", "web", "--", "echo", &long])).trim_end(), long);
    // A terminal, with the size of the person's.
    let until = "tty; until stty size 2>&1 | grep 101; do sleep 0.1; done";
    let line = world.agent.cli_line(&["exec", "-it", "web", "--", "sh", "-c", until]);
    let seen = in_a_terminal(&format!("stty cols 101 rows 37; {line}"));
    assert!(text(&seen.stdout).contains("/dev/pts/0\r\n37 101"), "{seen:?}");
    // It is as before when a signal has ended the session.
    let line =
        world.agent.cli_line(&["exec", "-it", "web", "--", "sh", "-c", "echo here; sleep 1000"]);
    let seen = in_a_terminal(&format!("timeout --foreground 10 {line}; stty -a"));
    let seen = text(&seen.stdout);
    assert!(seen.contains("here\r\n") && seen.contains(" icanon "), "{seen}");
    // What can't be.
    for (words, code, part) in [
        (&["exec", "web", "-c", "other", "--", "true"][..], 1, "it has main, side"),
        (&["exec", "other", "--", "true"], 1, "no pod other"),
        (&["exec", "web"], 2, "COMMAND"),
        (&["exec", "web", "--", "echo", &long, &long], 1, "the command is too long"),
        (&["port-forward", "web", "http"], 2, "expected PORT, LOCAL:PORT or :PORT"),
    ] {
        let refused = cli(words);
        let error = text(&refused.stderr);
        assert!(refused.status.code() == Some(code) && error.contains(part), "{words:?}: {error}");
    }
    let missing = cli(&["exec", "web", "--", "/no/such/program"]);
    assert!(
        !missing.status.success() && text(&missing.stderr).contains("no such file"),
        "{missing:?}"
    );
    world.agent.kill();
    assert_eq!(cli(&["exec", "web", "--", "true"]).status.code(), Some(3));
    world.agent.start();
    world.wait_running("web");
    world.finish();
}

/// What a shell command line prints whose input and output are a terminal.
fn in_a_terminal(line: &str) -> Output {
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    // At the end of its own input it would end the command's.
    let input = script.stdin.take();
    let seen = script.wait_with_output().unwrap();
    drop(input);
    seen
}

/// What a client types reaches the container, whose answer reaches the client.
fn answers(input: &mut impl Write, output: &mut impl BufRead, typed: &str) {
    writeln!(input, "{typed}").unwrap();
    let mut line = String::new();
    while line != format!("got {typed}\n") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "attach ended");
    }
}

pub fn a_session_goes_with_its_client_and_its_container(kind: Kind) {
    let world = World::start(kind);
    let reads = json!(["sh", "-c", "while read line; do echo got $line; done; sleep 1000"]);
    let talk =
        Pod::running("talk").set("containers/0/command", reads).set("containers/0/stdin", true);
    world.drop_pod(&talk);
    world.wait_running("talk");
    let before = world.agent.usage();
    // What is typed is answered; a client that is killed leaves nothing behind.
    for round in 0..3 {
        let mut client = world.agent.cli_started(&["attach", "-i", "talk"]);
        let mut input = client.stdin.take().unwrap();
        let mut output = BufReader::new(client.stdout.take().unwrap());
        answers(&mut input, &mut output, &format!("this {round}"));
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let mut sleeping: Vec<_> = (0..20)
        .map(|_| world.agent.cli_started(&["exec", "talk", "--", "sleep", "1000"]))
        .collect();
    wait_until(
        "all commands run",
        SOON,
        || world.agent.cli_with_input(&["exec", "talk", "--", "pidof", "sleep"], b"").stdout,
        |pids| text(pids).split_whitespace().count() >= 20,
    );
    assert!(world.agent.usage().fds > before.fds + 20);
    for client in &mut sleeping {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    wait_until("sessions are closed", SOON, || world.agent.usage().fds, |n| *n < before.fds + 10);
    // The agent stops: its clients are told, and what runs goes on.
    let mut attached = world.agent.cli_started(&["attach", "-i", "talk"]);
    let mut input = attached.stdin.take().unwrap();
    let mut output = BufReader::new(attached.stdout.take().unwrap());
    answers(&mut input, &mut output, "to the last");
    world.agent.kill();
    let ended = || attached.try_wait().unwrap();
    wait_until("attach ends", SOON, ended, |status| {
        status.is_some_and(|status| status.code() == Some(1))
    });
    world.agent.start();
    world.wait("it runs on", |status| status.runs("talk") && status.restarts("talk", "main") == 0);
    world.finish();
}

pub fn ports_of_a_pod_are_reached(kind: Kind) {
    let world = World::start(kind);
    // It listens on the pod's loopback address alone.
    let serves = "mkdir /www && echo hello > /www/index.html && \
                  exec httpd -f -p 127.0.0.1:8080 -h /www";
    world.drop_pod(
        &Pod::running("http")
            .set("containers/0/image", BUSYBOX)
            .set("containers/0/command", json!(["sh", "-c", serves])),
    );
    world.wait_running("http");
    let mut client = world.agent.cli_started(&["port-forward", "http", ":8080", ":9"]);
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut address = |port: &str| {
        let mut told = String::new();
        output.read_line(&mut told).unwrap();
        assert!(told.ends_with(&format!(" -> {port}\n")), "{told:?}");
        told.split(' ').nth(2).unwrap().to_owned()
    };
    let (http, closed) = (address("8080"), address("9"));
    let get = |address: &str| {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        // A port that nobody listens on is a connection that breaks.
        connection.read_to_string(&mut page).map(|_| page).unwrap_or_default()
    };
    wait_until("the server answers", SOON, || get(&http), |page| page.ends_with("hello\n"));
    assert_eq!(get(&closed), "");
    let pages: Vec<_> = (0..20)
        .map(|_| {
            let address = http.clone();
            std::thread::spawn(move || {
                let mut connection = TcpStream::connect(address).unwrap();
                connection.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
                let mut page = String::new();
                connection.read_to_string(&mut page).unwrap();
                page
            })
        })
        .collect();
    for page in pages {
        assert!(page.join().unwrap().ends_with("hello\n"));
    }
    assert!(client.try_wait().unwrap().is_none());
    client.kill().unwrap();
    client.wait().unwrap();
    world.finish();
}

/// 200 streams at a time, of which half are cut in the middle.
pub fn many_streams_leave_nothing_behind(kind: Kind) {
    const STREAMS: usize = 200;
    let world = World::start(kind);
    // It sends each line back, for as long as the client stays.
    let serves = "exec nc -ll -p 8080 -e cat";
    world.drop_pod(
        &Pod::running("echo")
            .set("containers/0/image", BUSYBOX)
            .set("containers/0/command", json!(["sh", "-c", serves])),
    );
    world.wait_running("echo");
    let mut client = world.agent.cli_started(&["port-forward", "echo", ":8080"]);
    let mut told = String::new();
    BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    let address = told.split(' ').nth(2).unwrap().to_owned();
    let open = |number: usize| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        writeln!(stream, "{number}").unwrap();
        let mut answer = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        reader.read_line(&mut answer).map(|_| (answer == format!("{number}\n")).then_some(stream))
    };
    let answered = || open(0).ok().flatten();
    drop(wait_until("the server answers", SOON, answered, Option::is_some));
    let usage = || world.agent.usage();
    let before = usage();
    let mut anon_kib = Vec::new();
    for _ in 0..3 {
        let streams: Vec<TcpStream> =
            (0..STREAMS).map(|number| open(number).unwrap().expect("its own answer")).collect();
        let during = usage();
        assert!(during.fds >= before.fds + STREAMS as u64, "{before:?} {during:?}");
        assert!(world.agent.cli(&["status"]).status.success());
        for (number, stream) in streams.into_iter().enumerate() {
            if number % 2 == 0 {
                // The client's end is reset, not closed.
                nix::sys::socket::setsockopt(
                    &stream,
                    nix::sys::socket::sockopt::Linger,
                    &nix::libc::linger { l_onoff: 1, l_linger: 0 },
                )
                .unwrap();
            }
        }
        wait_until("streams are closed", SOON, || usage().fds, |n| *n < before.fds + 10);
        // The heap has grown to what so many streams need, and grows no further.
        let limit = anon_kib.get(1).map_or(u64::MAX, |kib| kib + 512);
        let kib = wait_until("memory is given back", SOON, || usage().anon_kib, |n| *n <= limit);
        anon_kib.push(kib);
    }
    client.kill().unwrap();
    client.wait().unwrap();
    world.finish();
}
