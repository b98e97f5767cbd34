//! Log lines for the journal, with fields by which it can be searched:
//! `journalctl -u nodelet NAMESPACE=default POD=web-node1`.
//!
//! Entries go to journald's own socket as datagrams (systemd.io, "Native Journal Protocol").
//! Sending never blocks: entries that the journal does not take are counted, and their number is
//! logged once it takes entries again. Where there is no such socket, the line goes to standard
//! error, which the journal reads as well.

use super::queue::Queue;
use crate::model::{printable, printable_lines};
use nix::errno::Errno;
use std::{
    fmt, io,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    fmt::{
        FormatFields,
        format::{DefaultFields, Writer},
    },
    layer::Context,
};

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Of a message, in bytes. A datagram has to fit into the socket's buffer, by default some 200 KiB.
const LONGEST: usize = 64 * 1024;
/// Of another field, in bytes.
const LONGEST_FIELD: usize = 4 * 1024;

/// Sends every event to journald.
pub(super) struct JournalLayer(pub(super) Arc<Journal>);

/// The way to journald.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    lost: AtomicU64,
    /// To standard error, where journald can't be reached.
    stream: Queue,
}

impl Journal {
    /// # Errors
    /// When no socket can be made.
    pub(super) fn new(stream: Queue) -> io::Result<Self> {
        Self::at(SOCKET.into(), stream)
    }

    fn at(path: PathBuf, stream: Queue) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path, lost: AtomicU64::new(0), stream })
    }

    /// Logs a message about the log itself.
    pub(super) fn warn(&self, message: &str) {
        self.say(&Entry::warning(message.to_owned()));
    }

    /// By path each time: journald makes its socket anew when it is restarted.
    fn send(&self, entry: &Entry) -> io::Result<()> {
        self.socket.send_to(&entry.bytes(), &self.path).map(drop)
    }

    fn say(&self, entry: &Entry) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.send(&Entry::about_lost(lost)).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        match self.send(entry) {
            Ok(()) => {}
            // The journal's queue is full, or the kernel has no memory for the datagram.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    || error.raw_os_error() == Some(Errno::ENOBUFS as i32) =>
            {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => self.stream.push(entry.line().as_bytes()),
        }
    }
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut message = super::origin(event);
        if DefaultFields::new().format_fields(Writer::new(&mut message), event).is_err() {
            message.push_str("(a field that can't be shown)");
        }
        // In the journal a message may have lines; what drives a terminal has no place in it.
        let mut message = printable_lines(&message).into_owned();
        message.truncate(message.floor_char_boundary(LONGEST));
        let priority = super::priority(*event.metadata().level());
        let mut entry = Entry { priority, message, fields: Vec::new() };
        event.record(&mut entry);
        self.0.say(&entry);
    }
}

/// A message about the log itself, for the stream.
pub(super) fn stream_line(message: &str) -> String {
    Entry::warning(message.to_owned()).line()
}

struct Entry {
    priority: u8,
    message: String,
    /// Besides the message, which has them all as text.
    fields: Vec<(&'static str, String)>,
}

impl Entry {
    fn about_lost(lines: u64) -> Self {
        Self::warning(format!("{lines} log lines were lost because the journal took no more"))
    }

    fn warning(message: String) -> Self {
        Self { priority: super::priority(Level::WARN), message, fields: Vec::new() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("PRIORITY={}\n", self.priority).into_bytes();
        put(&mut bytes, "SYSLOG_IDENTIFIER", env!("CARGO_CRATE_NAME"));
        put(&mut bytes, "MESSAGE", &self.message);
        for (name, value) in &self.fields {
            put(&mut bytes, name, value);
        }
        bytes
    }

    /// The same for the stream, which reads the priority from the beginning of each line: one line.
    fn line(&self) -> String {
        format!("<{}>{}\n", self.priority, printable(&self.message))
    }

    fn set(&mut self, field: &Field, mut value: String) {
        value.truncate(value.floor_char_boundary(LONGEST_FIELD));
        match field.name() {
            // `namespace/name`, as everywhere.
            "pod" => {
                let (namespace, name) = value.split_once('/').unwrap_or(("", &value));
                if !namespace.is_empty() {
                    self.fields.push(("NAMESPACE", namespace.to_owned()));
                }
                self.fields.push(("POD", name.to_owned()));
            }
            "uid" => self.fields.push(("POD_UID", value)),
            "container" => self.fields.push(("CONTAINER", value)),
            "reason" => self.fields.push(("REASON", value)),
            _ => {}
        }
    }
}

impl Visit for Entry {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }
}

/// `NAME=value`, or with its length (64 bits, little end first) when there is a line's end in it.
fn put(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::{layer::SubscriberExt, registry::Registry};

    fn journald() -> (tempfile::TempDir, UnixDatagram, Arc<Journal>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journald = UnixDatagram::bind(&path).unwrap();
        let stream = Queue::new(Box::new(io::sink()), Box::new(stream_line));
        (dir, journald, Arc::new(Journal::at(path, stream).unwrap()))
    }

    fn received(journald: &UnixDatagram) -> Vec<u8> {
        let mut buffer = vec![0; 200_000];
        let length = journald.recv(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    #[test]
    fn entries_can_be_searched_by_pod_container_and_reason() {
        let (_dir, journald, journal) = journald();
        tracing::subscriber::with_default(Registry::default().with(JournalLayer(journal)), || {
            let pod = tracing::field::display("default/web-n1");
            tracing::warn!(pod, container = "main", reason = "BackOff", "back-off 10s");
            tracing::error!(target: "tonic::transport", "one\ntwo");
        });
        let first = String::from_utf8(received(&journald)).unwrap();
        let lines: Vec<&str> = first.lines().collect();
        for expected in [
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=nodelet",
            "NAMESPACE=default",
            "POD=web-n1",
            "CONTAINER=main",
            "REASON=BackOff",
        ] {
            assert!(lines.contains(&expected), "{expected} in {first}");
        }
        let message = lines.iter().find(|line| line.starts_with("MESSAGE=")).unwrap();
        assert!(
            message.contains("back-off 10s") && message.contains("default/web-n1"),
            "{message}"
        );
        let text = "tonic: one\ntwo";
        let mut expected = b"MESSAGE\n".to_vec();
        expected.extend_from_slice(&[u8::try_from(text.len()).unwrap(), 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(text.as_bytes());
        let second = received(&journald);
        assert!(second.windows(expected.len()).any(|window| window == expected), "{second:?}");
    }

    #[test]
    fn a_journal_that_stops_reading_costs_lines_that_are_counted() {
        let (_dir, journald, journal) = journald();
        let entry = |message: String| Entry { priority: 6, message, fields: Vec::new() };
        for number in 0..5_000 {
            journal.say(&entry(format!("line {number}")));
        }
        let lost = journal.lost.load(Ordering::Relaxed);
        assert!(lost > 0, "the socket took everything");
        for _ in lost..5_000 {
            received(&journald);
        }
        journal.say(&entry("and on".to_owned()));
        let about = String::from_utf8(received(&journald)).unwrap();
        assert!(about.contains(&format!("MESSAGE={lost} log lines were lost")), "{about}");
        assert!(received(&journald).ends_with(b"MESSAGE=and on\n"));
    }

    #[test]
    fn what_is_too_long_wait_cut_and_not_lost() {
        let (_dir, journald, journal) = journald();
        tracing::subscriber::with_default(Registry::default().with(JournalLayer(journal)), || {
            tracing::info!("{}", "ü".repeat(LONGEST));
        });
        let length = received(&journald).len();
        assert!((LONGEST..LONGEST + 100).contains(&length), "{length}");
    }
}
