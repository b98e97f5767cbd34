//! The channels between a session and the thread that reads or writes its archive, as streams of
//! bytes.

use crate::cli::session::carry::INPUT;
use std::io::{self, Read, Write};
use tokio::sync::mpsc;

/// Reads what a session receives. Reading blocks, and ends when the session has ended.
pub(super) struct PipeReader {
    parts: mpsc::Receiver<Vec<u8>>,
    part: io::Cursor<Vec<u8>>,
}

impl PipeReader {
    pub(super) fn new(parts: mpsc::Receiver<Vec<u8>>) -> Self {
        Self { parts, part: io::Cursor::default() }
    }
}

impl Read for PipeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.part.read(into)?;
            if length > 0 || into.is_empty() {
                return Ok(length);
            }
            match self.parts.blocking_recv() {
                Some(part) => self.part = io::Cursor::new(part),
                None => return Ok(0),
            }
        }
    }
}

/// Writes what a session sends. Writing blocks while the session does not keep up.
pub(super) struct PipeWriter(mpsc::Sender<io::Result<Vec<u8>>>);

impl PipeWriter {
    pub(super) fn new(parts: mpsc::Sender<io::Result<Vec<u8>>>) -> Self {
        Self(parts)
    }

    /// Tells the session that this is all. Without this call the session ends as a failure.
    pub(super) fn finish(self) {
        // `tar` may have ended by itself at the end of the archive.
        self.send(Vec::new()).ok();
    }

    fn send(&self, part: Vec<u8>) -> io::Result<()> {
        let ended = |_| io::Error::other("the session has ended");
        self.0.blocking_send(Ok(part)).map_err(ended)
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(INPUT)];
        if !part.is_empty() {
            self.send(part.to_vec())?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
