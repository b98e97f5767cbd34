//! The cheap reading: `/proc/meminfo`, kept open. What it says is right within a few MiB, and costs the same however
//! many cgroups there are; `memory.stat` of the root cgroup makes the kernel add up all of them.

use super::{NoReading, absurd, core::MemInfo, unreadable};
use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Longer than any `/proc/meminfo`: about 1.6 KB.
const BUFFER: usize = 8192;

/// Reads `/proc/meminfo` again and again.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateReading {
    /// All counters.
    pub info: MemInfo,
}

impl GateReading {
    /// About what an exact reading of `memory.available` would give, by the kubelet's formula.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.info.total.saturating_sub(self.info.working_set())
    }

    /// `MemAvailable`, exactly.
    #[must_use]
    pub fn mem_available(&self) -> Option<u64> {
        self.info.available
    }
}

impl Gate {
    /// Opens the file.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(proc: &Path) -> Result<Self, NoReading> {
        let path = proc.join("meminfo");
        let file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
        Ok(Self { path, file, buffer: vec![0; BUFFER] })
    }

    /// Reads it. Takes microseconds and neither a thread nor memory: it works when there is nothing left of both.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn read(&mut self) -> Result<GateReading, NoReading> {
        let mut filled = 0;
        // A regular file, in tests, may come in pieces too.
        while filled < self.buffer.len() {
            let (rest, at) = (&mut self.buffer[filled..], u64::try_from(filled).unwrap_or(0));
            match self.file.read_at(rest, at).map_err(|error| unreadable(&self.path, &error))? {
                0 => break,
                read => filled += read,
            }
        }
        let text = std::str::from_utf8(&self.buffer[..filled]).unwrap_or_default();
        let info = MemInfo::parse(text).map_err(|what| absurd(&self.path, what))?;
        Ok(GateReading { info })
    }
}
