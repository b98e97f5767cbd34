//! Log directories `<podLogsDir>/<namespace>_<name>_<uid>/<container>/<restart count>.log` and the
//! links `/var/log/containers/<pod>_<namespace>_<container>-<id>.log` that log shippers read.

use super::{HostFileError, HostFiles, check_name, core, io_error};
use crate::{
    beneath::{self, Removal, Slice},
    model::{ContainerId, LogName, PodKey, PodUid, parse_mountinfo},
    podspec::pod_log_directory_name,
};
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::OsStr,
    fs, io,
    os::fd::OwnedFd,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// The log directories of one uid that are found in one go: a pod that may write to the directory
/// above can make any number.
const MOST_DIRECTORIES: usize = 1000;

impl HostFiles {
    /// `<podLogsDir>/<namespace>_<name>_<uid>`, the sandbox's log directory.
    ///
    /// # Errors
    /// For names that are no file names.
    pub fn pod_log_dir(&self, key: &PodKey, uid: &PodUid) -> Result<PathBuf, HostFileError> {
        let name = pod_log_directory_name(key, uid);
        check_name(&name)?;
        Ok(self.paths.pod_logs_dir.join(name))
    }

    /// Makes the pod's log directory (0755; the directory above 0750) and returns it.
    ///
    /// # Errors
    /// When it can't be made, or something else is at its place.
    pub fn ensure_pod_log_dir(&self, key: &PodKey, uid: &PodUid) -> Result<PathBuf, HostFileError> {
        let root = &self.paths.pod_logs_dir;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(root)
            .map_err(|source| io_error("create", root, source))?;
        let directory = self.pod_log_dir(key, uid)?;
        make_public_directory(&directory)?;
        Ok(directory)
    }

    /// Makes the container's log directory (0755) with the pod's above it and returns it.
    ///
    /// # Errors
    /// As [`HostFiles::ensure_pod_log_dir`].
    pub fn ensure_container_log_dir(
        &self,
        key: &PodKey,
        uid: &PodUid,
        container: &str,
    ) -> Result<PathBuf, HostFileError> {
        check_name(container)?;
        let directory = self.ensure_pod_log_dir(key, uid)?.join(container);
        make_public_directory(&directory)?;
        Ok(directory)
    }

    /// The restart count for a container of which the runtime knows no instance: one more than the
    /// highest of its log files, 0 without any.
    ///
    /// # Errors
    /// When the directory can't be listed.
    pub fn next_restart_count(
        &self,
        key: &PodKey,
        uid: &PodUid,
        container: &str,
    ) -> Result<u32, HostFileError> {
        let Some(directory) = self.open_container_dir(key, uid, container)? else { return Ok(0) };
        let path = self.pod_log_dir(key, uid)?.join(container);
        let mut highest = None;
        for_each_name(&directory, &path, |name| {
            highest = highest.max(LogName::parse(name).map(|name| name.restart_count));
        })?;
        Ok(highest.map_or(0, |count| count.saturating_add(1)))
    }

    /// Links a container's log for log shippers. `log` is its absolute path; when the runtime has
    /// not made it yet nothing is linked. An older link of the same name is replaced.
    ///
    /// # Errors
    /// When the link can't be made, or something that is no link is at its place.
    pub fn link_container_log(
        &self,
        key: &PodKey,
        container: &str,
        id: &ContainerId,
        log: &Path,
    ) -> Result<(), HostFileError> {
        match fs::symlink_metadata(log) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(_) | Err(_) => {}
        }
        let directory = &self.paths.links_dir;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|source| io_error("create", directory, source))?;
        let link = self.link_path(key, container, id)?;
        match symlink(log, &link) {
            Ok(()) => return Ok(()),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(io_error("link", &link, source)),
        }
        let present = fs::read_link(&link).map_err(|_| HostFileError::Suspicious {
            path: link.clone(),
            expected: "a symbolic link",
        })?;
        if present == log {
            return Ok(());
        }
        fs::remove_file(&link)
            .and_then(|()| symlink(log, &link))
            .map_err(|source| io_error("link", &link, source))
    }

    /// Deletes the log files of one instance, rotated ones included, and its link: for a container
    /// that is removed from the runtime.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn remove_container_logs(
        &self,
        (key, uid): (&PodKey, &PodUid),
        container: &str,
        id: &ContainerId,
        restart_count: u32,
    ) -> Result<(), HostFileError> {
        let path = self.pod_log_dir(key, uid)?.join(container);
        let (link, log) =
            (self.link_path(key, container, id)?, path.join(format!("{restart_count}.log")));
        // Where names are so long that the id is cut off, all instances have one link.
        let is_of_another = fs::read_link(&link).is_ok_and(|to| to != log) && link.exists();
        let mut result = if is_of_another { Ok(()) } else { remove_file(&link) };
        let Some(directory) = self.open_container_dir(key, uid, container)? else { return result };
        for_each_name(&directory, &path, |name| {
            if LogName::parse(name).is_some_and(|name| name.restart_count == restart_count)
                && let Err(errno) = unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir)
                // A directory is no log file: it goes with the pod.
                && !matches!(errno, Errno::ENOENT | Errno::EISDIR)
                && result.is_ok()
            {
                result = Err(io_error("remove", &path.join(name), errno.into()));
            }
        })?;
        result
    }

    /// Removes links to logs of `ours` whose log is gone. A log may be missing for a moment while it
    /// is rotated: `in_use` says whether a container is known, and the log of one that has only just
    /// started was set aside. Returns how many went.
    /// Links to the logs of other pods are not touched: their agent may be rotating them.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn remove_dead_links(
        &self,
        ours: impl Fn(&PodUid) -> bool,
        in_use: impl Fn(&ContainerId) -> bool,
    ) -> Result<usize, HostFileError> {
        let mut removed = 0;
        let mut result = Ok(());
        for name in list(&self.paths.links_dir)? {
            let link = self.paths.links_dir.join(&name);
            let Ok(target) = fs::read_link(&link) else { continue };
            let ours = self.pod_of_log(&target).is_some_and(|uid| ours(&uid));
            let dangling =
                || fs::metadata(&link).is_err_and(|err| err.kind() == io::ErrorKind::NotFound);
            let alive = || core::id_of_link(&name).is_some_and(|id| in_use(&id.into()));
            if ours && dangling() && !alive() && !is_set_aside(&target) {
                let done = remove_file(&link);
                removed += usize::from(done.is_ok());
                result = result.and(done);
            }
        }
        result.map(|()| removed)
    }

    /// The pod whose log directory a path leads into.
    fn pod_of_log(&self, log: &Path) -> Option<PodUid> {
        let inside = log.strip_prefix(&self.paths.pod_logs_dir).ok()?;
        let directory = inside.components().next()?.as_os_str().to_str()?;
        core::parse_log_directory(directory).map(|(_, uid)| uid.into())
    }

    /// The pods with this uid that have a log directory, of other agents too.
    ///
    /// # Errors
    /// When `podLogsDir` can't be listed.
    pub fn pods_with_logs(&self, uid: &PodUid) -> Result<Vec<PodKey>, HostFileError> {
        let mut found = Vec::new();
        each_name(&self.paths.pod_logs_dir, |name| {
            if let Some((key, of)) = core::parse_log_directory(name)
                && of == uid.as_str()
                && found.len() < MOST_DIRECTORIES
            {
                found.push(key);
            }
        })?;
        Ok(found)
    }

    /// Deletes the log directory of a pod that is gone, and the links into it. Nothing to do when
    /// there is none.
    ///
    /// # Errors
    /// When something is mounted in it, when it is no directory, or when deleting fails.
    pub(crate) fn remove_pod_logs(
        &self,
        key: &PodKey,
        uid: &PodUid,
        slice: &mut Slice,
    ) -> Result<Removal, HostFileError> {
        let directory = self.pod_log_dir(key, uid)?;
        let begin = core::links_begin(key);
        for name in list(&self.paths.links_dir)?.iter().filter(|name| name.starts_with(&begin)) {
            let link = self.paths.links_dir.join(name);
            if fs::read_link(&link).is_ok_and(|target| target.starts_with(&directory)) {
                remove_file(&link)?;
            }
        }
        if !is_directory(&directory)? {
            return Ok(Removal::Complete);
        }
        // The mount table has real paths.
        let real =
            directory.canonicalize().map_err(|source| io_error("resolve", &directory, source))?;
        let table = Path::new("/proc/self/mountinfo");
        let mounts = fs::read(table).map_err(|source| io_error("read", table, source))?;
        let inside =
            parse_mountinfo(&mounts).into_iter().find(|m| m.mount_point.starts_with(&real));
        if let Some(mount) = inside {
            return Err(HostFileError::StillMounted { path: mount.mount_point });
        }
        let name = directory.file_name().unwrap_or_default();
        beneath::remove_tree(&self.paths.pod_logs_dir, name, slice)
            .map_err(|source| io_error("delete", &directory, source))
    }

    /// Opens the container's log directory without following a symlink in its place or its
    /// parent's; `None` when there is none.
    pub(super) fn open_container_dir(
        &self,
        key: &PodKey,
        uid: &PodUid,
        container: &str,
    ) -> Result<Option<OwnedFd>, HostFileError> {
        check_name(container)?;
        let pod = self.pod_log_dir(key, uid)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = open(&pod, flags, Mode::empty())
            .and_then(|fd| openat(fd, container, flags, Mode::empty()));
        match opened {
            Ok(directory) => Ok(Some(directory)),
            // A name that is too long is the name of nothing.
            Err(Errno::ENOENT | Errno::ENAMETOOLONG) => Ok(None),
            Err(Errno::ELOOP | Errno::ENOTDIR) => Err(HostFileError::Suspicious {
                path: pod.join(container),
                expected: "a directory",
            }),
            Err(errno) => Err(io_error("open", &pod.join(container), errno.into())),
        }
    }

    fn link_path(
        &self,
        key: &PodKey,
        container: &str,
        id: &ContainerId,
    ) -> Result<PathBuf, HostFileError> {
        let name = core::link_name(key, container, id.as_str());
        check_name(&name)?;
        Ok(self.paths.links_dir.join(name))
    }
}

/// Makes `path` (0755) unless it is a directory already; a symlink to one is none.
fn make_public_directory(path: &Path) -> Result<(), HostFileError> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(|source| io_error("change the mode of", path, source)),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => is_directory(path).map(drop),
        Err(source) => Err(io_error("create", path, source)),
    }
}

/// Whether it exists.
///
/// # Errors
/// When it is something else.
fn is_directory(path: &Path) -> Result<bool, HostFileError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(_) => Err(HostFileError::Suspicious { path: path.to_owned(), expected: "a directory" }),
        // A name that is too long is the name of nothing: the pod must be able to go.
        Err(err)
            if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) =>
        {
            Ok(false)
        }
        Err(source) => Err(io_error("stat", path, source)),
    }
}

/// Names in a directory, sorted; none when it doesn't exist. Names that are not UTF-8 aren't ours.
fn list(directory: &Path) -> Result<Vec<String>, HostFileError> {
    let mut names = Vec::new();
    each_name(directory, |name| names.push(name.to_owned()))?;
    names.sort_unstable();
    Ok(names)
}

/// As [`list`], without holding them all.
fn each_name(directory: &Path, mut handle: impl FnMut(&str)) -> Result<(), HostFileError> {
    let failed = |source| io_error("list", directory, source);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(source)),
    };
    for entry in entries {
        if let Some(name) = entry.map_err(failed)?.file_name().to_str() {
            handle(name);
        }
    }
    Ok(())
}

/// Calls `handle` with every name in a directory that is UTF-8. `path` is for messages.
pub(super) fn for_each_name(
    directory: &OwnedFd,
    path: &Path,
    mut handle: impl FnMut(&str),
) -> Result<(), HostFileError> {
    let failed = |errno: Errno| io_error("list", path, errno.into());
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut dir = Dir::openat(directory, ".", flags, Mode::empty()).map_err(failed)?;
    for entry in dir.iter() {
        if let Ok(name) = entry.map_err(failed)?.file_name().to_str() {
            handle(name);
        }
    }
    Ok(())
}

/// True when the log was rotated: it is missing while the runtime makes the next one.
fn is_set_aside(log: &Path) -> bool {
    let name = log.file_name().and_then(OsStr::to_str);
    let (Some(directory), Some(name)) = (log.parent(), name) else { return false };
    let mut found = false;
    let listed = each_name(directory, |one| {
        found |= one.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    });
    listed.is_ok() && found
}

fn remove_file(path: &Path) -> Result<(), HostFileError> {
    match fs::remove_file(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| io_error("remove", path, source)),
    }
}
