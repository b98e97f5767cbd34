//! The kernel's log, `/dev/kmsg`, read for kills because the whole machine is out of memory.

use super::core::{SystemOom, system_oom};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};
use tokio::io::{Interest, unix::AsyncFd};

/// Longer than any record: the kernel writes 1 KB of text and escapes some of it.
const RECORD: usize = 8192;

/// Reads what the kernel logs from now on.
#[derive(Debug)]
pub struct KernelLog {
    file: AsyncFd<File>,
    record: Vec<u8>,
}

impl KernelLog {
    /// Opens the log (`/dev/kmsg`) at its end. To be called within a tokio runtime.
    ///
    /// # Errors
    /// Where there is none, or it may not be read: containers, `dmesg_restrict` without the
    /// capability.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
        file.seek(SeekFrom::End(0))?;
        #[expect(
            deprecated,
            reason = "its successor is an unsafe function; File owns its descriptor"
        )]
        let file = AsyncFd::with_interest(file, Interest::READABLE)?;
        Ok(Self { file, record: vec![0; RECORD] })
    }

    /// Waits for the next kill.
    ///
    /// # Errors
    /// When the log can't be read any more.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next_oom(&mut self) -> io::Result<SystemOom> {
        loop {
            let mut ready = self.file.readable().await?;
            let mut file = ready.get_inner();
            match file.read(&mut self.record) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let record = String::from_utf8_lossy(&self.record[..length]);
                    if let Some(oom) = system_oom(&record) {
                        return Ok(oom);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                // Records were overwritten before they were read: the next read goes on after them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
