//! A file of the kernel that stays open: reading it again is one call, and works when there are no
//! descriptors left.

use super::{NoReading, unreadable};
use std::{
    borrow::Cow,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Longer than most of them: `/proc/meminfo` has about 1.6 KB.
const BUFFER: usize = 4096;

#[derive(Debug)]
pub(super) struct KeptFile {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl KeptFile {
    /// Opened when it is read first.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, buffer: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All of it, as it is now.
    pub(super) fn read(&mut self) -> Result<Cow<'_, str>, NoReading> {
        let kept = self.file.take().and_then(|file| Some((self.fill(&file).ok()?, file)));
        let filled = match kept {
            Some((filled, file)) => {
                self.file = Some(file);
                filled
            }
            // Not opened yet, or what it told of is gone (ENODEV), and perhaps there is another in
            // its place.
            None => {
                let opened = File::open(&self.path)
                    .and_then(|file| Ok((self.fill(&file)?, file)))
                    .map_err(|error| unreadable(&self.path, &error))?;
                self.file = Some(opened.1);
                opened.0
            }
        };
        Ok(String::from_utf8_lossy(&self.buffer[..filled]))
    }

    fn fill(&mut self, file: &File) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(filled + BUFFER, 0);
            }
            match file.read_at(&mut self.buffer[filled..], u64::try_from(filled).unwrap_or(0))? {
                0 => return Ok(filled),
                read => filled += read,
            }
        }
    }
}
