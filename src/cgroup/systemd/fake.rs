//! A systemd of the test's own behind its private socket, where it signs as the real one does, and
//! behind a bus that knows nobody else. It keeps units; jobs take as many looks as the test says.

use super::{
    SystemdSockets,
    socket::{NAME, SIGNATURE},
};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};
use tokio_stream::StreamExt as _;
use zbus::{
    Connection, Guid, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant,
    connection::{
        Builder,
        socket::{ReadHalf, Socket, Split, WriteHalf},
    },
    export::async_trait::async_trait,
    message::Type,
};

type Properties = Vec<(String, OwnedVariant)>;
type Started = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct State {
    /// State of each unit, and the one that its job leads to after so many looks.
    units: BTreeMap<String, (String, Option<(String, u32)>)>,
    calls: Vec<String>,
    refusals: BTreeMap<&'static str, (&'static str, &'static str)>,
    /// How many looks a job takes.
    looks: u32,
    /// What a job leads to instead of what was asked for.
    outcome: Option<&'static str>,
    /// Calls of this method are not answered, or the connection is cut instead, so many times.
    hang: Option<&'static str>,
    cut: Option<(&'static str, u32)>,
    signals: u32,
    started: Option<Started>,
    open: usize,
    accepted: usize,
}

pub(in crate::cgroup) struct FakeSystemd {
    sockets: SystemdSockets,
    state: Arc<Mutex<State>>,
    served: JoinSet<()>,
}

impl FakeSystemd {
    /// Listens on both sockets in `directory`.
    pub(in crate::cgroup) async fn start(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let mut fake = Self::away(directory);
        fake.listen(false);
        fake.listen(true);
        tokio::task::yield_now().await;
        fake
    }

    /// Does not listen yet.
    pub(super) fn away(directory: &Path) -> Self {
        let sockets =
            SystemdSockets { private: directory.join("private"), bus: directory.join("bus") };
        Self { sockets, state: Arc::default(), served: JoinSet::new() }
    }

    pub(super) fn listen(&mut self, bus: bool) {
        let path = if bus { &self.sockets.bus } else { &self.sockets.private };
        let listener = UnixListener::bind(path).unwrap();
        let state = Arc::clone(&self.state);
        self.served.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let stream = Stream { stream, signs: !bus };
                connections.spawn(serve(stream, Arc::clone(&state)));
            }
        });
    }

    pub(in crate::cgroup) fn sockets(&self) -> SystemdSockets {
        self.sockets.clone()
    }

    /// Calls that change something, one line each.
    pub(in crate::cgroup) fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    pub(in crate::cgroup) fn refuse(
        &self,
        method: &'static str,
        name: &'static str,
        message: &'static str,
    ) {
        self.state.lock().unwrap().refusals.insert(method, (name, message));
    }

    /// Called with the name of each unit whose job is done.
    pub(in crate::cgroup) fn on_start(&self, started: impl Fn(&str) + Send + 'static) {
        self.state.lock().unwrap().started = Some(Box::new(started));
    }

    pub(super) fn set_unit(&self, name: &str, active: &str) {
        let unit = (active.to_owned(), None);
        self.state.lock().unwrap().units.insert(name.to_owned(), unit);
    }

    pub(super) fn unit(&self, name: &str) -> Option<String> {
        Some(self.state.lock().unwrap().units.get(name)?.0.clone())
    }

    pub(super) fn jobs_take(&self, looks: u32) {
        self.state.lock().unwrap().looks = looks;
    }

    pub(super) fn jobs_end_in(&self, active: &'static str) {
        self.state.lock().unwrap().outcome = Some(active);
    }

    pub(super) fn hang_in(&self, method: &'static str) {
        self.state.lock().unwrap().hang = Some(method);
    }

    pub(super) fn cut_in(&self, method: &'static str, times: u32) {
        self.state.lock().unwrap().cut = Some((method, times));
    }

    /// Signals that everybody gets before every answer.
    pub(super) fn signal(&self, times: u32) {
        self.state.lock().unwrap().signals = times;
    }

    /// Connections that are open, and all that were ever made.
    pub(super) fn connections(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.open, state.accepted)
    }
}

/// A socket on which a name may be signed as systemd does it on its own.
struct Stream {
    stream: UnixStream,
    signs: bool,
}

#[derive(Debug)]
struct Reader(OwnedReadHalf);

#[derive(Debug)]
struct Writer {
    stream: OwnedWriteHalf,
    signs: bool,
}

impl Socket for Stream {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (read, stream) = self.stream.into_split();
        Split::new(Reader(read), Writer { stream, signs: self.signs })
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        Ok((self.0.read(buffer).await?, Vec::new()))
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut bytes = buffer.to_vec();
        if let (true, Some(at)) = (self.signs, bytes.windows(NAME.len()).position(|w| w == NAME)) {
            bytes[at..at + NAME.len()].copy_from_slice(SIGNATURE);
        }
        self.stream.write_all(&bytes).await?;
        Ok(buffer.len())
    }

    async fn close(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

async fn serve(stream: Stream, state: Arc<Mutex<State>>) {
    {
        let mut state = state.lock().unwrap();
        state.open += 1;
        state.accepted += 1;
    }
    let builder = Builder::socket(stream).user_id(nix::unistd::getuid().as_raw());
    let builder = builder.server(Guid::generate()).p2p();
    if let Ok(connection) = builder.build().await {
        // On one thread nothing is read before the stream is there.
        let mut messages = MessageStream::from(&connection);
        while let Some(Ok(message)) = messages.next().await {
            if message.message_type() == Type::MethodCall
                && !answer(&connection, &message, &state).await
            {
                break;
            }
        }
    }
    state.lock().unwrap().open -= 1;
}

enum Answer {
    Nothing,
    Cut,
    Refusal(String, String),
    Job,
    Done,
    Hello,
    Unit(String, String, bool),
}

/// `false` when the connection is to be cut.
async fn answer(connection: &Connection, message: &Message, state: &Mutex<State>) -> bool {
    let (header, name) = (message.header(), std::str::from_utf8(NAME).unwrap());
    let answer = state.lock().unwrap().take(message);
    let signals = state.lock().unwrap().signals;
    for _ in 0..signals {
        let manager = "org.freedesktop.systemd1.Manager";
        let signal = Message::signal("/org/freedesktop/systemd1", manager, "UnitNew").sender(name);
        connection.send(&signal.build(&("x.service", root())).unwrap()).await.unwrap();
    }
    let reply = || Message::method_return(&header).sender(name);
    let message = match answer {
        Answer::Cut => return false,
        Answer::Nothing => return true,
        Answer::Refusal(error, text) => {
            Message::error(&header, error.as_str()).sender(name).build(&text)
        }
        Answer::Job => reply().build(&root()),
        Answer::Done => reply().build(&()),
        Answer::Hello => reply().build(&":1.7"),
        Answer::Unit(unit, active, job) => {
            let state = if active == "unknown" { "inactive".to_owned() } else { active };
            let listed =
                (&unit, "", "loaded", &state, "", "", root(), u32::from(job), "start", root());
            reply().build(&vec![listed])
        }
    };
    connection.send(&message.unwrap()).await.is_ok()
}

fn root() -> OwnedObjectPath {
    OwnedObjectPath::try_from("/").unwrap()
}

impl State {
    fn take(&mut self, message: &Message) -> Answer {
        let header = message.header();
        let method = header.member().unwrap().as_str().to_owned();
        if self.hang.is_some_and(|hang| hang == method) {
            return Answer::Nothing;
        }
        if let Some((cut, times)) = &mut self.cut
            && *cut == method
            && *times > 0
        {
            *times -= 1;
            return Answer::Cut;
        }
        if let Some((name, text)) = self.refusals.get(method.as_str()) {
            return Answer::Refusal((*name).to_owned(), (*text).to_owned());
        }
        let body = message.body();
        match method.as_str() {
            "Hello" => Answer::Hello,
            "ListUnitsByNames" => {
                let (names,): (Vec<String>,) = body.deserialize().unwrap();
                self.look(&names[0])
            }
            "StartTransientUnit" => {
                type Auxiliary = Vec<(String, Properties)>;
                let (name, mode, properties, auxiliary): (String, String, Properties, Auxiliary) =
                    body.deserialize().unwrap();
                assert_eq!((mode.as_str(), auxiliary.len()), ("replace", 0));
                self.job(&name, "active");
                self.log(&method, &name, &properties)
            }
            "StartUnit" | "StopUnit" => {
                let (name, _mode): (String, String) = body.deserialize().unwrap();
                self.job(&name, if method == "StartUnit" { "active" } else { "inactive" });
                self.log(&method, &name, &Vec::new())
            }
            "SetUnitProperties" => {
                let (name, runtime, properties): (String, bool, Properties) =
                    body.deserialize().unwrap();
                assert!(runtime, "nothing may outlive the machine's uptime");
                self.log(&method, &name, &properties);
                Answer::Done
            }
            "ResetFailedUnit" => {
                let (name,): (String,) = body.deserialize().unwrap();
                self.units.remove(&name);
                self.log(&method, &name, &Vec::new());
                Answer::Done
            }
            other => panic!("systemd has no {other}"),
        }
    }

    fn job(&mut self, name: &str, leads_to: &str) {
        let unit = self.units.entry(name.to_owned()).or_insert(("inactive".to_owned(), None));
        unit.1 = Some((self.outcome.unwrap_or(leads_to).to_owned(), self.looks));
    }

    fn look(&mut self, name: &str) -> Answer {
        let Some(unit) = self.units.get_mut(name) else {
            return Answer::Unit(name.to_owned(), "unknown".to_owned(), false);
        };
        match &mut unit.1 {
            Some((_, looks)) if *looks > 0 => *looks -= 1,
            Some((leads_to, _)) => {
                unit.0 = leads_to.clone();
                unit.1 = None;
                if let (Some(started), "active") = (&self.started, unit.0.as_str()) {
                    started(name);
                }
            }
            None => {}
        }
        Answer::Unit(name.to_owned(), unit.0.clone(), unit.1.is_some())
    }

    fn log(&mut self, method: &str, name: &str, properties: &Properties) -> Answer {
        let mut line = format!("{method} {name}");
        for (name, value) in properties {
            let value = if let Variant::U64(number) = &**value {
                number.to_string()
            } else if let Variant::Bool(on) = &**value {
                on.to_string()
            } else if let Variant::Str(text) = &**value {
                text.to_string()
            } else {
                panic!("{name} has the type of {value:?}")
            };
            line.push_str(&format!(" {name}={value}"));
        }
        self.calls.push(line);
        Answer::Job
    }
}
