//! A directory with files of the kernel, opened once. The path of a cgroup has about ten names, and
//! some twenty files are read there: looking up the whole path for each of them took a third of the
//! time of a scrape.

use super::{NoReading, read_file, unreadable};
use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
};
use std::{fs::File, os::fd::OwnedFd, path::Path};

pub(super) struct Directory<'a> {
    path: &'a Path,
    /// Only names are looked up in it.
    opened: nix::Result<OwnedFd>,
}

impl<'a> Directory<'a> {
    /// A directory that can't be opened has no files that can be read.
    pub(super) fn open(path: &'a Path) -> Self {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Self { path, opened: open(path, flags, Mode::empty()) }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// A whole file.
    pub(super) fn read(&self, name: &str) -> Result<String, NoReading> {
        let opened = self.opened.as_ref().map_err(|errno| *errno);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        opened
            .and_then(|directory| openat(directory, name, flags, Mode::empty()))
            .map_err(std::io::Error::from)
            .and_then(|file| read_file(File::from(file)))
            .map_err(|error| unreadable(&self.path.join(name), &error))
    }

    /// A file that may not be there.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.read(name).ok()
    }
}
