//! Reads log files: forwards line by line, and backwards to find where the last lines begin.

use super::line::{Printer, parse};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

const BLOCK: usize = 64 * 1024;
/// The beginning of a record, which holds its time, stream and tag.
const HEAD: usize = 256;
/// A line that never ends is taken in pieces of this size.
const MAX_LINE: usize = 1 << 20;

/// A file being read, with the line whose end has not been read yet.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    position: u64,
    unfinished: Vec<u8>,
}

impl LogFile {
    /// Reads on from this place, in bytes.
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn new(mut file: File, from: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { file, position: from, unfinished: Vec::new() })
    }

    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Prints whole lines up to the end that the file has now: a container that writes faster than
    /// lines are printed does not keep this from ending. A file that was truncated is read from its
    /// beginning.
    ///
    /// # Errors
    /// When the file can't be read, or the output not be written.
    pub fn print(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        let end = self.end(printer)?;
        while self.print_block(end, printer)? {}
        Ok(())
    }

    /// Prints whole lines of the next block; false when there was nothing to read.
    pub(super) fn print_some(&mut self, printer: &mut Printer<impl Write>) -> io::Result<bool> {
        let end = self.end(printer)?;
        self.print_block(end, printer)
    }

    /// The length of the file now.
    fn end(&mut self, printer: &mut Printer<impl Write>) -> io::Result<u64> {
        let end = self.file.metadata()?.len();
        if end < self.position {
            self.file.seek(SeekFrom::Start(0))?;
            self.position = 0;
            self.unfinished.clear();
            self.finish(printer)?;
        }
        Ok(end)
    }

    fn print_block(&mut self, end: u64, printer: &mut Printer<impl Write>) -> io::Result<bool> {
        let left = usize::try_from(end.saturating_sub(self.position)).unwrap_or(BLOCK);
        let mut block = vec![0; left.min(BLOCK)];
        let length = self.file.read(&mut block)?;
        if length == 0 {
            return Ok(false);
        }
        self.position += length as u64;
        let mut rest = &block[..length];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.unfinished.extend_from_slice(&rest[..end]);
            printer.piece(&self.unfinished, true)?;
            self.unfinished.clear();
            rest = &rest[end + 1..];
        }
        self.unfinished.extend_from_slice(rest);
        if self.unfinished.len() > MAX_LINE {
            printer.piece(&self.unfinished, false)?;
            self.unfinished.clear();
        }
        Ok(true)
    }

    /// Prints what stands behind the last line break.
    ///
    /// # Errors
    /// When the output can't be written.
    pub fn finish(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        if !self.unfinished.is_empty() || printer.is_cut() {
            printer.piece(&self.unfinished, true)?;
            self.unfinished.clear();
        }
        Ok(())
    }
}

/// Where the last `lines` lines of a file begin, and how many of them are not in it. Lines are what
/// the container wrote: pieces count with the record that ends them.
///
/// Reads every block once, backwards, and keeps one block and the beginning of one record, however
/// long records are. A block of NUL bytes is taken for a hole, which may have any size: lines
/// before it do not count.
///
/// # Errors
/// When the file can't be read.
pub fn last_lines(file: &File, lines: u64) -> io::Result<(u64, u64)> {
    let mut start = file.metadata()?.len();
    if lines == 0 {
        return Ok((start, 0));
    }
    let mut found = 0;
    let mut block = vec![0; BLOCK];
    // The beginning of what follows the block, up to the next line break.
    let mut next: Vec<u8> = Vec::new();
    // Where the record ends that `next` is a part of.
    let mut record_end = start;
    // Whether no record was seen yet: a piece behind the last full record is a line of its own.
    let mut at_end = true;
    while start > 0 {
        let length = usize::try_from(start).map_or(BLOCK, |start| start.min(BLOCK));
        start -= length as u64;
        let block = &mut block[..length];
        file.read_exact_at(block, start)?;
        if length == BLOCK && block.iter().all(|byte| *byte == 0) {
            start += length as u64;
            break;
        }
        let mut end = length;
        while let Some(at) = block[..end].iter().rposition(|byte| *byte == b'\n') {
            prepend(&block[at + 1..end], &mut next);
            if begins_before(&next, &mut at_end, &mut found, lines) {
                return Ok((record_end + 1, 0));
            }
            next.clear();
            end = at;
            record_end = start + at as u64;
        }
        prepend(&block[..end], &mut next);
    }
    if begins_before(&next, &mut at_end, &mut found, lines) {
        return Ok((record_end + 1, 0));
    }
    Ok((start, lines - found))
}

/// Puts `text` before `next`, of which only the beginning is kept.
fn prepend(text: &[u8], next: &mut Vec<u8>) {
    let text = &text[..text.len().min(HEAD)];
    next.truncate(HEAD - text.len());
    next.splice(..0, text.iter().copied());
}

/// Counts a record, walking backwards; true when it ends a line that is one too many.
fn begins_before(record: &[u8], at_end: &mut bool, found: &mut u64, lines: u64) -> bool {
    if record.is_empty() && *at_end {
        return false;
    }
    let ends_line = *at_end || parse(record).is_none_or(|record| record.full);
    *at_end = false;
    if !ends_line {
        return false;
    }
    if *found == lines {
        return true;
    }
    *found += 1;
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::{super::line::Wanted, *};
    use std::fs;

    #[test]
    fn a_long_record_is_printed_as_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let long = "x".repeat(3 * MAX_LINE);
        let head = "2026-11-20T10:00:00Z stdout F";
        fs::write(&path, format!("{head} {long}\n{head} y\n{head} {long}")).unwrap();
        let mut log = LogFile::new(File::open(&path).unwrap(), 0).unwrap();
        let mut printer = Printer::new(Vec::new(), Wanted::default());
        log.print(&mut printer).unwrap();
        log.finish(&mut printer).unwrap();
        printer.finish().unwrap();
        let expected = format!("{long}\ny\n{long}\n");
        assert!(*printer.output() == expected.as_bytes());
    }

    #[test]
    fn the_last_lines_are_found_from_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let last_lines = |lines| last_lines(&File::open(&path).unwrap(), lines);
        let filler = "x".repeat(3000);
        let mut text = String::new();
        for n in 0..100 {
            text.push_str(&format!("2026-11-20T10:00:00Z stdout P {n} {filler}\n"));
            text.push_str(&format!("2026-11-20T10:00:00Z stdout F end of {n}\n"));
        }
        fs::write(&path, &text).unwrap();
        for lines in [1, 2, 10, 50, 99] {
            let (from, missing) = last_lines(lines).unwrap();
            let rest = &text[usize::try_from(from).unwrap()..];
            let first = format!("2026-11-20T10:00:00Z stdout P {} xxx", 100 - lines);
            assert!(rest.starts_with(&first), "{lines}: {:.60}", rest);
            assert_eq!(missing, 0);
        }
        assert_eq!(last_lines(100).unwrap(), (0, 0));
        assert_eq!(last_lines(103).unwrap(), (0, 3));
        fs::write(&path, "a\n\nb\nunfinished").unwrap();
        for (lines, from) in [(1, 5), (2, 3), (3, 2), (4, 0)] {
            assert_eq!(last_lines(lines).unwrap(), (from, 0), "{lines}");
        }
        fs::write(&path, "").unwrap();
        assert_eq!(last_lines(2).unwrap(), (0, 2));
        let hole = 1 << 40;
        File::create(&path).unwrap().set_len(hole).unwrap();
        assert_eq!(last_lines(2).unwrap(), (hole, 2));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"a\nb\n").unwrap();
        assert_eq!(last_lines(1).unwrap(), (hole + 2, 0));
        let (from, missing) = last_lines(3).unwrap();
        assert!(from > hole - 2 * BLOCK as u64 && missing == 1, "{from} {missing}");
    }

    #[test]
    fn last_lines_are_the_same_wherever_blocks_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let last_lines = |lines| last_lines(&File::open(&path).unwrap(), lines);
        // Pieces, full records and text that is no record, of lengths around those of a block and of a
        // record's head.
        let lengths = [0, 1, 200, 255, 256, 257, 65_400, 65_535, 65_536, 65_537, 200_000];
        let mut text = String::new();
        for (number, length) in lengths.into_iter().cycle().take(44).enumerate() {
            let head = match number % 4 {
                0 => "2026-11-20T10:00:00Z stdout P ",
                1 => "2026-11-20T10:00:00Z stdout F ",
                2 => "2026-11-20T10:00:00Z stderr F ",
                _ => "",
            };
            text.push_str(&format!("{head}{}\n", "x".repeat(length)));
        }
        fs::write(&path, &text).unwrap();
        // Where each line begins, found forwards.
        let (mut begins, mut at, mut piece) = (Vec::new(), 0, false);
        for record in text.split_inclusive('\n') {
            if !piece {
                begins.push(at);
            }
            piece = parse(record.as_bytes()).is_some_and(|record| !record.full);
            at += record.len() as u64;
        }
        for (lines, begin) in begins.iter().rev().enumerate() {
            let lines = lines as u64 + 1;
            assert_eq!(last_lines(lines).unwrap(), (*begin, 0), "{lines}");
        }
    }
}
