//! Lines as the runtime writes them: `2026-11-20T10:00:00.123456789Z stdout F text`. The tag says
//! whether the text is a full line (F) or a piece of one (P), which the next of its stream goes on.

use jiff::Timestamp;
use std::io::{self, Write};

/// A line that never ends is printed in pieces of this many bytes.
const MAX_LINE: usize = 1 << 20;

/// One record, the line break aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was written.
    pub time: Timestamp,
    /// Where to.
    pub stream: Stream,
    /// Whether the text ends its line.
    pub full: bool,
    /// The text.
    pub text: &'a [u8],
}

/// Where a container writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Reads a line, without its line break; `None` for what is no such record.
pub fn parse(line: &[u8]) -> Option<Record<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // Further tags may follow after colons; one that is not known counts as full.
    let tag = parts.next()?.split(|byte| *byte == b':').next()?;
    Some(Record { time, stream, full: tag != b"P", text: parts.next().unwrap_or_default() })
}

/// A line of which pieces came.
#[derive(Debug, Default)]
struct Pending {
    time: Option<Timestamp>,
    text: Vec<u8>,
}

/// Which lines are wanted, and how they are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only what was written then or later.
    pub since: Option<Timestamp>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// At most so many bytes of output; the last line may be cut off.
    pub limit: Option<u64>,
    /// Only what was written to this one; `None`: to both.
    pub stream: Option<Stream>,
}

/// Joins pieces, leaves out what is not wanted, prints.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    wanted: Wanted,
    stdout: Pending,
    stderr: Pending,
}

impl<W: Write> Printer<W> {
    /// Prints to `out`.
    pub fn new(out: W, wanted: Wanted) -> Self {
        let (stdout, stderr) = (Pending::default(), Pending::default());
        Self { out, wanted, stdout, stderr }
    }

    /// What was printed goes here.
    pub fn output(&mut self) -> &mut W {
        &mut self.out
    }

    /// True when nothing more is printed, because the limit is reached.
    pub fn is_full(&self) -> bool {
        self.wanted.limit == Some(0)
    }

    /// Takes in one line of the file, without its line break. What is no record is printed as it
    /// is.
    pub(super) fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(record) = parse(line) else {
            self.put(line)?;
            return self.put(b"\n");
        };
        let asked = self.wanted.stream.is_none_or(|stream| stream == record.stream);
        if !asked || self.wanted.since.is_some_and(|since| record.time < since) {
            return Ok(());
        }
        let pending = self.pending(record.stream);
        pending.time.get_or_insert(record.time);
        pending.text.extend_from_slice(record.text);
        if record.full || pending.text.len() > MAX_LINE {
            self.print(record.stream)
        } else {
            Ok(())
        }
    }

    /// Prints lines that have not ended, then everything goes out.
    ///
    /// # Errors
    /// When the output can't be written.
    pub fn finish(&mut self) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if self.pending(stream).time.is_some() {
                self.print(stream)?;
            }
        }
        self.flush()
    }

    /// What was printed goes out.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn pending(&mut self, stream: Stream) -> &mut Pending {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn print(&mut self, stream: Stream) -> io::Result<()> {
        let Pending { time, text } = std::mem::take(self.pending(stream));
        if let Some(time) = time.filter(|_| self.wanted.timestamps) {
            self.put(format!("{time:.9} ").as_bytes())?;
        }
        self.put(&text)?;
        self.put(b"\n")
    }

    /// Writes what the limit has room for.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(left) = &mut self.wanted.limit else { return self.out.write_all(bytes) };
        let room = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        *left -= room as u64;
        self.out.write_all(&bytes[..room])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(lines: &[&str], since: Option<&str>, timestamps: bool) -> String {
        let mut out = Vec::new();
        let since = since.map(|since| since.parse().unwrap());
        let mut printer = Printer::new(&mut out, Wanted { since, timestamps, ..Wanted::default() });
        for line in lines {
            printer.line(line.as_bytes()).unwrap();
        }
        printer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn prints_what_the_container_wrote() {
        let lines = [
            "2026-11-20T10:00:00.5Z stdout F one  two ",
            "2026-11-20T12:00:01.123456789+02:00 stderr F oops",
            "2026-11-20T10:00:02Z stdout F ",
            "2026-11-20T10:00:03Z stdout F",
            "2026-11-20T10:00:04Z stdout F:tag x",
            "not a record",
        ];
        assert_eq!(printed(&lines, None, false), "one  two \noops\n\n\nx\nnot a record\n");
        assert_eq!(
            printed(&lines[..2], None, true),
            "2026-11-20T10:00:00.500000000Z one  two \n2026-11-20T10:00:01.123456789Z oops\n"
        );
        assert_eq!(printed(&lines[..3], Some("2026-11-20T10:00:01Z"), false), "oops\n\n");
    }

    #[test]
    fn joins_pieces_of_each_stream() {
        let lines = [
            "2026-11-20T10:00:00Z stdout P a",
            "2026-11-20T10:00:01Z stderr P x",
            "2026-11-20T10:00:02Z stdout P b",
            "2026-11-20T10:00:03Z stdout F c",
            "2026-11-20T10:00:04Z stderr F y",
            "2026-11-20T10:00:05Z stdout P unfinished",
        ];
        assert_eq!(printed(&lines, None, false), "abc\nxy\nunfinished\n");
        assert!(printed(&lines, None, true).starts_with("2026-11-20T10:00:00.000000000Z abc\n"));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let piece = format!("2026-11-20T10:00:00Z stdout P {}", "x".repeat(MAX_LINE / 2 + 1));
        let mut printer = Printer::new(Vec::new(), Wanted::default());
        for _ in 0..10 {
            printer.line(piece.as_bytes()).unwrap();
            assert!(printer.stdout.text.len() <= MAX_LINE);
        }
    }
}
