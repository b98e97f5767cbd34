//! Log lines on their way to standard error.
//!
//! ```text
//!  any thread ──push, never waits──► queue (512 KiB) ──► writer thread ──may block──► standard error
//!                                      │ full: counted
//!                                      └────────────────► "N log lines were lost ..."
//! ```
//!
//! Standard error may be a pipe without a reader, a terminal that was stopped, or a file on a full
//! disk. It is not made non-blocking: that is a property of the open file, which the agent shares
//! with other processes. The writer thread waits for it instead. It starts with the first line and
//! ends with the process.

use std::{
    io::{self, ErrorKind, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// The most bytes that wait to be written. As many again may be in the writer's hands.
const CAPACITY: usize = 512 * 1024;
/// The writer's stack. It only copies bytes.
const STACK: usize = 64 * 1024;
/// How long the writer waits where standard error is non-blocking and takes nothing.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Makes a log line of a message about the log itself.
pub(super) type Format = Box<dyn Fn(&str) -> String + Send + Sync>;

/// The queue. Clones share it.
#[derive(Clone)]
pub(super) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    format: Format,
}

struct State {
    /// Whole lines.
    text: Vec<u8>,
    /// Lines that were lost and not yet reported.
    lost: u64,
    /// Whether the writer has lines that it has not written yet.
    writing: bool,
    /// Where lines go; `None` once the writer has it.
    sink: Option<Box<dyn Write + Send>>,
}

impl Queue {
    /// A queue to standard error.
    pub(super) fn to_stderr(format: Format) -> Self {
        Self::new(Box::new(Stderr), format)
    }

    pub(super) fn new(sink: Box<dyn Write + Send>, format: Format) -> Self {
        let state = State { text: Vec::new(), lost: 0, writing: false, sink: Some(sink) };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new(), format };
        Self { shared: Arc::new(shared) }
    }

    /// Queues whole lines. Where there is no room they are lost and counted.
    pub(super) fn push(&self, text: &[u8]) {
        let mut state = self.shared.lock();
        if state.text.len().saturating_add(text.len()) > CAPACITY {
            state.lost += lines(text);
            return;
        }
        state.text.extend_from_slice(text);
        if let Some(sink) = state.sink.take() {
            let shared = Arc::clone(&self.shared);
            let writer = thread::Builder::new().name("log".to_owned()).stack_size(STACK);
            // Without a thread nothing is ever written, and nothing can be reported.
            writer.spawn(move || shared.write(sink)).ok();
        }
        self.shared.changed.notify_all();
    }

    /// Queues a message about the log itself.
    pub(super) fn say(&self, message: &str) {
        self.push((self.shared.format)(message).as_bytes());
    }

    /// Waits until everything is written; false when that takes longer than `patience`.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let state = self.shared.lock();
        let busy = |state: &mut State| state.writing || !state.text.is_empty();
        let waited = self.shared.changed.wait_timeout_while(state, patience, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer: never returns.
    fn write(&self, mut sink: Box<dyn Write + Send>) {
        loop {
            let (text, lost) = self.next();
            let unsaid = match write_all(&mut *sink, &text) {
                Err(unwritten) => lost + unwritten,
                Ok(()) if lost > 0 => self.report(&mut *sink, lost),
                Ok(()) => 0,
            };
            let mut state = self.lock();
            state.writing = false;
            state.lost += unsaid;
            self.changed.notify_all();
        }
    }

    /// Waits for lines and takes them, with the number of lines that were lost after them.
    fn next(&self) -> (Vec<u8>, u64) {
        let waiting = self.changed.wait_while(self.lock(), |state| state.text.is_empty());
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        (std::mem::take(&mut state.text), std::mem::take(&mut state.lost))
    }

    /// Reports lost lines; gives their number when that fails.
    fn report(&self, sink: &mut dyn Write, lost: u64) -> u64 {
        let message = format!("{lost} log lines were lost because standard error took no more");
        write_all(sink, (self.format)(&message).as_bytes()).map_or(lost, |()| 0)
    }
}

/// Writes everything, however long it takes; gives the number of lines that an error kept from
/// being written.
fn write_all(sink: &mut dyn Write, text: &[u8]) -> Result<(), u64> {
    let mut rest = text;
    while !rest.is_empty() {
        match sink.write(rest) {
            Ok(0) => return Err(lines(rest)),
            Ok(length) => rest = &rest[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::park_timeout(TRY_AGAIN),
            Err(_) => return Err(lines(rest)),
        }
    }
    Ok(())
}

fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// For `tracing_subscriber`, which writes each event with one call.
impl Write for Queue {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.push(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// File descriptor 2, without the lock of [`io::stderr`]: a writer that is blocked must not hold
/// it.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(io::stderr(), text)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn plain() -> Format {
        Box::new(|message| format!("{message}\n"))
    }

    fn read(reader: &mut impl io::Read, length: usize) -> String {
        let mut text = vec![0; length];
        reader.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Queue::new(Box::new(writer), plain());
        for number in 0..1_000 {
            queue.push(format!("{number:04}\n").as_bytes());
        }
        assert!(queue.flush(PATIENCE));
        let expected: String = (0..1_000).map(|number| format!("{number:04}\n")).collect();
        assert_eq!(read(&mut reader, expected.len()), expected);
    }

    #[test]
    fn a_reader_that_stops_costs_lines_that_are_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Queue::new(Box::new(writer), plain());
        let line = format!("{}\n", "x".repeat(999));
        for _ in 0..3_000 {
            queue.push(line.as_bytes());
        }
        assert!(!queue.flush(Duration::from_millis(10)), "nobody reads");
        let mut reader = io::BufReader::new(&mut reader);
        // Lines that were lost at different times are reported at different places.
        let (mut written, mut lost) = (0, 0);
        while written + lost < 3_000 {
            let mut read = String::new();
            io::BufRead::read_line(&mut reader, &mut read).unwrap();
            match read.strip_suffix(" log lines were lost because standard error took no more\n") {
                Some(number) => lost += number.parse::<u64>().unwrap(),
                None => {
                    assert_eq!(read, line);
                    written += 1;
                }
            }
        }
        assert!(lost > 0, "nothing was lost");
        queue.push(b"and on\n");
        assert_eq!(read(&mut reader, 7), "and on\n");
        assert!(queue.flush(PATIENCE));
    }

    /// Fails as long as it is told to.
    struct Failing(mpsc::Receiver<io::Result<()>>, io::PipeWriter);

    impl Write for Failing {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.recv().unwrap_or(Ok(()))?;
            self.1.write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported_later() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (results, told) = mpsc::channel();
        let queue = Queue::new(Box::new(Failing(told, writer)), plain());
        results.send(Err(ErrorKind::StorageFull.into())).unwrap();
        queue.push(b"one\ntwo\n");
        assert!(queue.flush(PATIENCE));
        results.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        drop(results);
        queue.push(b"three\n");
        let expected = "three\n2 log lines were lost because standard error took no more\n";
        assert_eq!(read(&mut reader, expected.len()), expected);
    }
}
