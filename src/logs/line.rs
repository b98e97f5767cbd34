//! Lines as the runtime writes them: `2026-11-20T10:00:00.123456789Z stdout F text`. The tag says
//! whether the text is a full line (F) or a piece of one (P), which the next of its stream goes on.

use jiff::Timestamp;
use std::io::{self, Write};

/// A longer line is printed in pieces of this many bytes.
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
    /// When it began.
    time: Option<Timestamp>,
    /// What has not been printed of it.
    text: Vec<u8>,
    /// Its beginning was printed, because it is long.
    begun: bool,
}

/// Where the text of a record belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextPlace {
    /// It is left out.
    Nowhere,
    /// It is no record, and is printed as it is.
    AsIs,
    /// It is a part of a line, whose end it is when it is full.
    Line { stream: Stream, full: bool },
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
    /// The record of which a piece came, but not yet its end.
    cut: Option<TextPlace>,
}

impl<W: Write> Printer<W> {
    /// Prints to `out`.
    pub fn new(out: W, wanted: Wanted) -> Self {
        let (stdout, stderr) = (Pending::default(), Pending::default());
        Self { out, wanted, stdout, stderr, cut: None }
    }

    /// What was printed goes here.
    pub fn output(&mut self) -> &mut W {
        &mut self.out
    }

    /// True when nothing more is printed, because the limit is reached.
    pub fn is_full(&self) -> bool {
        self.wanted.limit == Some(0)
    }

    /// Takes in one line of the file or a piece of it, without the line break; `ends`: the line
    /// break comes next. What is no record is printed as it is.
    pub(super) fn piece(&mut self, text: &[u8], ends: bool) -> io::Result<()> {
        let (place, text) = match self.cut.take() {
            Some(place) => (place, text),
            None => self.place(text),
        };
        self.cut = (!ends).then_some(place);
        match place {
            TextPlace::Nowhere => Ok(()),
            TextPlace::AsIs => self.put(text).and_then(|()| self.put_break(ends)),
            TextPlace::Line { stream, full } => {
                let pending = self.pending(stream);
                pending.text.extend_from_slice(text);
                if full && ends {
                    self.print(stream, true)
                } else if pending.text.len() > MAX_LINE {
                    self.print(stream, false)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Whether a piece came last whose record has not ended.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Where a record belongs of which this is the beginning, and its text.
    fn place<'a>(&mut self, line: &'a [u8]) -> (TextPlace, &'a [u8]) {
        let Some(record) = parse(line) else { return (TextPlace::AsIs, line) };
        let asked = self.wanted.stream.is_none_or(|stream| stream == record.stream);
        if !asked || self.wanted.since.is_some_and(|since| record.time < since) {
            return (TextPlace::Nowhere, record.text);
        }
        self.pending(record.stream).time.get_or_insert(record.time);
        (TextPlace::Line { stream: record.stream, full: record.full }, record.text)
    }

    /// Prints lines that have not ended, without a line break as the container has written none.
    /// Then everything goes out.
    ///
    /// # Errors
    /// When the output can't be written.
    pub fn finish(&mut self) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if !self.pending(stream).text.is_empty() {
                self.print(stream, false)?;
            }
        }
        self.flush()
    }

    /// Prints lines that have not ended and ends them: another run of the container follows.
    pub(super) fn finish_run(&mut self) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let pending = self.pending(stream);
            if pending.begun || !pending.text.is_empty() {
                self.print(stream, true)?;
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

    /// Prints what there is of a line; `ends`: that is the rest of it.
    fn print(&mut self, stream: Stream, ends: bool) -> io::Result<()> {
        let rest = Pending { begun: !ends, ..Pending::default() };
        let Pending { time, text, begun } = std::mem::replace(self.pending(stream), rest);
        if let Some(time) = time.filter(|_| self.wanted.timestamps && !begun) {
            self.put(format!("{time:.9} ").as_bytes())?;
        }
        self.put(&text)?;
        self.put_break(ends)
    }

    fn put_break(&mut self, wanted: bool) -> io::Result<()> {
        if wanted { self.put(b"\n") } else { Ok(()) }
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
            printer.piece(line.as_bytes(), true).unwrap();
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
        assert_eq!(printed(&lines, None, false), "abc\nxy\nunfinished");
        assert!(printed(&lines, None, true).starts_with("2026-11-20T10:00:00.000000000Z abc\n"));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let piece = format!("2026-11-20T10:00:00Z stdout P {}", "x".repeat(MAX_LINE / 2 + 1));
        let mut printer = Printer::new(Vec::new(), Wanted::default());
        for _ in 0..10 {
            printer.piece(piece.as_bytes(), true).unwrap();
            assert!(printer.stdout.text.len() <= MAX_LINE);
        }
    }

    #[test]
    fn a_last_line_without_a_line_break_gets_none() {
        let unfinished = ["2026-11-20T10:00:00Z stdout P {\"a\":1}"];
        assert_eq!(printed(&unfinished, None, false), "{\"a\":1}");
        assert_eq!(printed(&unfinished, None, true), "2026-11-20T10:00:00.000000000Z {\"a\":1}");
        let nothing = ["2026-11-20T10:00:00Z stdout F a", "2026-11-20T10:00:00Z stdout P "];
        assert_eq!(printed(&nothing, None, false), "a\n");
    }

    #[test]
    fn another_run_of_the_container_begins_a_line() {
        let mut printer = Printer::new(Vec::new(), Wanted::default());
        printer.piece(b"2026-11-20T10:00:00Z stdout P first", true).unwrap();
        printer.finish_run().unwrap();
        printer.piece(b"2026-11-20T10:00:01Z stdout F second", true).unwrap();
        printer.finish_run().unwrap();
        assert_eq!(printer.output(), b"first\nsecond\n");
    }

    #[test]
    fn a_long_line_is_printed_as_one() {
        let wanted = Wanted { timestamps: true, ..Wanted::default() };
        let long = "x".repeat(MAX_LINE / 2 + 1);
        let head = "2026-11-20T10:00:00.000000000Z ";
        let expected = format!("{head}{}\n{head}y\n", long.repeat(5));
        // Pieces that the runtime has made, and a record that is read in pieces.
        let mut printer = Printer::new(Vec::new(), wanted);
        for tag in ["P", "P", "P", "P", "F"] {
            let piece = format!("2026-11-20T10:00:00Z stdout {tag} {long}");
            printer.piece(piece.as_bytes(), true).unwrap();
        }
        printer.piece(b"2026-11-20T10:00:00Z stdout F y", true).unwrap();
        assert!(*printer.output() == expected.as_bytes());
        let mut printer = Printer::new(Vec::new(), wanted);
        printer.piece(format!("2026-11-20T10:00:00Z stdout F {long}").as_bytes(), false).unwrap();
        for n in 1..5 {
            printer.piece(long.as_bytes(), n == 4).unwrap();
        }
        printer.piece(b"2026-11-20T10:00:00Z stdout F y", true).unwrap();
        assert!(*printer.output() == expected.as_bytes());
    }
}
