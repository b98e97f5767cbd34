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
pub(super) struct LogFile {
    file: File,
    position: u64,
    unfinished: Vec<u8>,
}

impl LogFile {
    pub(super) fn new(mut file: File, from: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { file, position: from, unfinished: Vec::new() })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Prints whole lines up to the end that the file has now: a container that writes faster than
    /// lines are printed does not keep this from ending. A file that was truncated is read from its
    /// beginning.
    pub(super) fn print(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        if end < self.position {
            self.file.seek(SeekFrom::Start(0))?;
            self.position = 0;
            self.unfinished.clear();
        }
        let mut block = vec![0; BLOCK];
        loop {
            let left = usize::try_from(end.saturating_sub(self.position)).unwrap_or(BLOCK);
            let length = self.file.read(&mut block[..left.min(BLOCK)])?;
            if length == 0 {
                return Ok(());
            }
            self.position += length as u64;
            let mut rest = &block[..length];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                self.unfinished.extend_from_slice(&rest[..end]);
                printer.line(&self.unfinished)?;
                self.unfinished.clear();
                rest = &rest[end + 1..];
            }
            self.unfinished.extend_from_slice(rest);
            if self.unfinished.len() > MAX_LINE {
                self.finish(printer)?;
            }
        }
    }

    /// Prints what stands behind the last line break.
    pub(super) fn finish(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        if !self.unfinished.is_empty() {
            printer.line(&self.unfinished)?;
            self.unfinished.clear();
        }
        Ok(())
    }
}

/// Where the last `lines` lines of a file begin, and how many of them are not in it. Lines are what
/// the container wrote: pieces count with the record that ends them.
///
/// Reads every block once, backwards, and keeps one block and the beginning of one record, however
/// long records are.
pub(super) fn last_lines(file: &File, lines: u64) -> io::Result<(u64, u64)> {
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
    Ok((0, lines - found))
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
