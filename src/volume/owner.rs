//! Which pod directories are this agent's.
//!
//! A symbolic link in the pod's directory names the owner id. The link is made before anything else is
//! put into the directory and removed after everything else. It is made in one step, so a crash never
//! leaves half of it, and its target is stored in the inode, so a disk without free blocks takes it.
//! No container can reach the link: containers get what lies below the pod's directory, never the directory.
//!
//! A directory without the link belongs to another program (a kubelet, a restored backup, a person). It is
//! listed and never touched.

use super::{
    VolumeError, Volumes, io_error,
    root::{make_directory, remove_empty},
    teardown::children,
};
use crate::model::PodUid;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Name of the link.
const MARKER: &str = ".nodelet-owner";
/// What the link's target begins with; the owner id follows.
const PREFIX: &str = "nodelet:";

/// Whom a pod's directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirOwner {
    /// There is no directory, or an empty one without a marker: nothing can be lost.
    Free,
    /// The agent with this owner id made it.
    Agent(String),
    /// It has content and no marker.
    Unknown,
}

impl Volumes {
    /// Whom the pod's directory belongs to.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn dir_owner(&self, uid: &PodUid) -> Result<DirOwner, VolumeError> {
        let directory = self.pod_dir(uid)?;
        if let Some(owner) = read_marker(&directory)? {
            return Ok(DirOwner::Agent(owner));
        }
        match children(&directory)?.is_empty() {
            true => Ok(DirOwner::Free),
            false => Ok(DirOwner::Unknown),
        }
    }

    /// Whether `owner` may delete the pod's directory, and what carries its uid elsewhere.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn may_remove(&self, uid: &PodUid, owner: &str) -> Result<bool, VolumeError> {
        Ok(match self.dir_owner(uid)? {
            DirOwner::Free => true,
            DirOwner::Agent(found) => found == owner,
            DirOwner::Unknown => false,
        })
    }

    /// Makes the pod's directory (0750) and marks it as `owner`'s. Nothing to do when that was done before.
    ///
    /// # Errors
    /// [`VolumeError::NotOurs`] when another program made the directory; when it can't be made or marked.
    pub fn claim(&self, uid: &PodUid, owner: &str) -> Result<(), VolumeError> {
        match self.dir_owner(uid)? {
            DirOwner::Agent(found) if found == owner => Ok(()),
            DirOwner::Free => self.mark(uid, owner),
            DirOwner::Agent(_) | DirOwner::Unknown => {
                Err(VolumeError::NotOurs { path: self.pod_dir(uid)? })
            }
        }
    }

    /// Marks the directory of a pod that is known to be `owner`'s, whatever its marker says. The directory is
    /// made where it is missing.
    ///
    /// # Errors
    /// When it can't be made or marked.
    pub fn mark(&self, uid: &PodUid, owner: &str) -> Result<(), VolumeError> {
        let directory = self.pod_dir(uid)?;
        make_directory(&directory)?;
        if read_marker(&directory)?.as_deref() == Some(owner) {
            return Ok(());
        }
        remove_marker(&directory)?;
        let marker = directory.join(MARKER);
        symlink(format!("{PREFIX}{owner}"), &marker).map_err(|source| {
            // Without a marker only an empty directory can be claimed by the next try.
            drop(remove_empty(&directory));
            io_error("create", &marker, source)
        })
    }

    /// Marks the directories of pods that have a record. Directories of a release that made no markers, and
    /// directories that were marked with an earlier owner id, are recognised by it. A pod without a
    /// directory gets none.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn mark_recorded<'a>(
        &self,
        uids: impl Iterator<Item = &'a PodUid>,
        owner: &str,
    ) -> Result<(), VolumeError> {
        let mut result = Ok(());
        for uid in uids {
            if self.pod_dir(uid)?.is_dir() {
                result = result.and(self.mark(uid, owner));
            }
        }
        result
    }
}

/// Removes a pod's directory that holds nothing but the marker. When something was put into it meanwhile, the
/// marker stays.
pub(super) fn remove_marked(directory: &Path) -> Result<(), VolumeError> {
    let marker = directory.join(MARKER);
    let target = fs::read_link(&marker).ok();
    remove_marker(directory)?;
    remove_empty(directory).map_err(|source| {
        if let Some(Err(err)) = target.map(|target| symlink(target, &marker)) {
            tracing::warn!(%err, "cannot mark {directory:?} again");
        }
        io_error("remove", directory, source)
    })
}

/// Whether this is the path of a marker.
pub(super) fn is_marker(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == MARKER)
}

fn read_marker(directory: &Path) -> Result<Option<String>, VolumeError> {
    let marker = directory.join(MARKER);
    match fs::read_link(&marker) {
        Ok(target) => Ok(owner_in(target)),
        Err(err) if is_absent(err.kind()) => Ok(None),
        Err(err) => Err(io_error("read", &marker, err)),
    }
}

/// No marker; `InvalidInput`: something else has its name.
fn is_absent(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput
    )
}

fn owner_in(target: PathBuf) -> Option<String> {
    let target = target.into_os_string().into_string().ok()?;
    target.strip_prefix(PREFIX).map(str::to_owned)
}

fn remove_marker(directory: &Path) -> Result<(), VolumeError> {
    let marker = directory.join(MARKER);
    match fs::remove_file(&marker) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| io_error("remove", &marker, source)),
    }
}
