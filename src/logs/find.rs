//! Where the logs of a pod lie: `<dir>/<namespace>_<name>_<uid>/<container>/<n>.log`, with files
//! set aside by rotation beside them (`0.log.20261120-100000`, older ones `.gz`).

use crate::{
    beneath,
    files::open_regular,
    model::{LogKind, LogName, MOST_LOG_NAMES, Order as _, PodKey},
};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The directory of one incarnation of a pod.
#[derive(Clone, Debug)]
pub struct PodLogs {
    /// Full name.
    pub key: PodKey,
    /// Its uid.
    pub uid: String,
    /// Where they are.
    pub path: PathBuf,
    /// When a container or a log file was last added.
    pub changed: Option<SystemTime>,
}

/// The files of one run of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Those that can be read as text, oldest first: files that were set aside, and then the one
    /// that is being written, which is absent in the moment of a rotation.
    pub files: Vec<PathBuf>,
    /// Set aside and compressed.
    pub compressed: usize,
}

/// The files of one run that are read, the newest ones. They are open while they are read.
const MOST_OPEN: usize = 256;
/// How often files are opened anew because names have changed meanwhile.
const ATTEMPTS: usize = 20;

/// The directory with the logs of a container.
#[derive(Clone, Debug)]
pub struct LogDir {
    path: PathBuf,
    /// No file is opened outside of this directory, and no link below it is followed.
    bounds: Option<PathBuf>,
}

impl LogDir {
    /// One whose links are followed: a person names it.
    #[must_use]
    pub fn trusted(path: &Path) -> Self {
        Self { path: path.to_owned(), bounds: None }
    }

    /// `below` the directory of all logs, where a container may have planted links.
    #[must_use]
    pub fn bounded(all: &Path, below: &str) -> Self {
        Self { path: all.join(below), bounds: Some(all.to_owned()) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens one of its files.
    ///
    /// # Errors
    /// When it is no regular file, or a link is in the way that must not be followed.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let Some(bounds) = &self.bounds else { return Ok(open_regular(path)?) };
        let below = path.strip_prefix(bounds).map_err(io::Error::other)?;
        let root = beneath::open_base(bounds)?;
        beneath::reopen(beneath::open_plain_file(root.as_fd(), below)?.as_fd())
    }
}

impl Run {
    /// The newest files of a run, opened, oldest first. A rotation meanwhile is no gap: then they
    /// are listed and opened anew.
    ///
    /// # Errors
    /// When they can't be listed or opened.
    pub fn open(container: &LogDir, number: u32) -> io::Result<Vec<(PathBuf, File)>> {
        let list =
            || Ok::<_, io::Error>(runs(container.path())?.remove(&number).unwrap_or_default());
        let mut run = list()?;
        let mut opened = Vec::new();
        for _ in 0..ATTEMPTS {
            opened.clear();
            for path in &run.files[run.files.len().saturating_sub(MOST_OPEN)..] {
                match container.open(path) {
                    Ok(file) => opened.push((path.clone(), file)),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            let now = list()?;
            if now.files == run.files {
                break;
            }
            run = now;
        }
        Ok(opened)
    }
}

/// Every pod that has logs. A directory that is missing has none.
///
/// # Errors
/// When a directory can't be listed.
pub fn pods(dir: &Path) -> io::Result<Vec<PodLogs>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        let Some((namespace, rest)) = name_of(&path).split_once('_') else { continue };
        let Some((name, uid)) = rest.split_once('_') else { continue };
        if namespace.is_empty() || name.is_empty() || !path.is_dir() {
            continue;
        }
        let changed = newest(&path)?;
        let (key, uid) = (PodKey::new(namespace, name), uid.to_owned());
        found.push(PodLogs { key, uid, path, changed });
    }
    Ok(found)
}

/// When anything was added in a pod's directory or one of its containers'.
fn newest(pod: &Path) -> io::Result<Option<SystemTime>> {
    let times = entries(pod)?.into_iter().chain([pod.to_owned()]);
    Ok(times.filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max())
}

/// The containers that have logs, by name.
///
/// # Errors
/// When it can't be listed.
pub fn containers(pod: &Path) -> io::Result<Vec<String>> {
    let found = entries(pod)?.into_iter().filter(|path| path.is_dir());
    let mut names: Vec<String> = found.map(|path| name_of(&path).to_owned()).collect();
    names.order();
    Ok(names)
}

/// The runs of a container, by restart count; of a flood of files, some that were set aside.
///
/// # Errors
/// When it can't be listed.
pub fn runs(container: &Path) -> io::Result<BTreeMap<u32, Run>> {
    let mut runs: BTreeMap<u32, Run> = BTreeMap::new();
    let mut names = 0;
    for path in listed(container)? {
        let path = path?;
        let Some(name) = LogName::parse(name_of(&path)) else { continue };
        names += 1;
        let is_current = name.kind == LogKind::Current;
        if (names > MOST_LOG_NAMES && !is_current) || runs.len() > MOST_LOG_NAMES {
            continue;
        }
        let run = runs.entry(name.restart_count).or_default();
        match name.kind {
            LogKind::Current | LogKind::SetAside { compressed: false, .. } => run.files.push(path),
            LogKind::SetAside { compressed: true, .. } => run.compressed += 1,
            LogKind::Unfinished => {}
        }
    }
    for run in runs.values_mut() {
        run.files.order_by(|a, b| age(a).cmp(&age(b)));
    }
    Ok(runs)
}

/// Orders the files of a run, oldest first: those of logrotate, which have the largest number
/// (`0.log.2`), those with a time, the one being written.
pub(super) fn age(path: &Path) -> (u8, Reverse<u32>, &str) {
    match LogName::parse(name_of(path)).map(|name| name.kind) {
        Some(LogKind::SetAside { stamp, .. }) => match stamp.parse() {
            Ok(number) => (0, Reverse(number), ""),
            Err(_) => (1, Reverse(0), stamp),
        },
        Some(LogKind::Current | LogKind::Unfinished) | None => (2, Reverse(0), ""),
    }
}

/// Whether it is the file that is being written.
pub(super) fn is_current(path: &Path) -> bool {
    LogName::parse(name_of(path)).is_some_and(|name| name.kind == LogKind::Current)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    listed(dir)?.collect()
}

/// The entries of a directory, one after the other. A directory that is missing has none.
fn listed(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
    let found = match fs::read_dir(dir) {
        Ok(entries) => Some(entries),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    Ok(found.into_iter().flatten().map(|entry| Ok(entry?.path())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn of_a_flood_of_files_the_newest_are_open() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for second in 0..=MOST_OPEN {
            fs::write(at(&format!("0.log.20260101-{second:06}")), "").unwrap();
        }
        fs::write(at("0.log"), "").unwrap();
        let opened = Run::open(&LogDir::trusted(dir.path()), 0).unwrap();
        let names: Vec<&str> = opened.iter().map(|(path, _)| name_of(path)).collect();
        assert_eq!(names.len(), MOST_OPEN);
        assert_eq!((names[0], names[MOST_OPEN - 1]), ("0.log.20260101-000002", "0.log"));
    }
}
