//! Which pod directories are this agent's.
//!
//! A symbolic link in the pod's directory names the owner id and, by a digest, the pod: a uid that
//! a manifest sets may come again under another name. The link is made before anything else is put
//! into the directory and removed after everything else. It is made in one step, so a crash never
//! leaves half of it. No container can reach the link: containers get what lies below the pod's
//! directory, never the directory.
//!
//! A directory without the link belongs to another program (a kubelet, a restored backup, a
//! person). It is listed and never touched, unless it is empty.

use super::{
    VolumeError, Volumes, io_error,
    root::{make_directory, remove_empty},
    teardown::children,
};
use crate::model::{PodKey, PodUid};
use sha2::{Digest as _, Sha256};
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Name of the link.
const MARKER: &str = ".nodelet-owner";
/// What the link's target begins with. The owner id follows, a space, and the digest of the pod's
/// name. With an owner id that the agent has made they fit into an inode (59 bytes on ext4); a longer
/// one from the configuration takes a block.
const PREFIX: &str = "nodelet:";
/// Bytes of a digest that tell pods of one uid apart.
const DIGEST_BYTES: usize = 8;

/// Whom a pod's directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirOwner {
    /// There is no directory, or an empty one without a marker: nothing can be lost.
    Free,
    /// An agent made it.
    Agent {
        /// Its owner id.
        owner: String,
        /// Digest of the pod's full name; `None` in a marker that names no pod.
        pod: Option<String>,
    },
    /// It has content and no marker.
    Unknown,
}

/// What came of [`Volumes::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The directory is the pod's.
    Done,
    /// Another pod of this agent had the uid and left the directory: it has to be removed first.
    LeftByAnother,
}

impl Volumes {
    /// Whom the pod's directory belongs to.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn dir_owner(&self, uid: &PodUid) -> Result<DirOwner, VolumeError> {
        let directory = self.pod_dir(uid)?;
        if let Some((owner, pod)) = read_marker(&directory)? {
            return Ok(DirOwner::Agent { owner, pod });
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
            DirOwner::Agent { owner: found, .. } => found == owner,
            DirOwner::Unknown => false,
        })
    }

    /// Removes the pod's directory if it is [`DirOwner::Free`]. A crash between the two last steps
    /// of a removal leaves such a directory. One that has content by now stays.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_free_dir(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let directory = self.pod_dir(uid)?;
        match remove_empty(&directory) {
            Err(source) if source.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|source| io_error("remove", &directory, source)),
        }
    }

    /// Makes the pod's directory (0750) and marks it as `owner`'s and the pod's. Nothing to do when
    /// that was done before.
    ///
    /// # Errors
    /// [`VolumeError::NotOurs`] when another program made the directory; when it can't be made or
    /// marked.
    pub fn claim(&self, uid: &PodUid, key: &PodKey, owner: &str) -> Result<Claim, VolumeError> {
        match self.dir_owner(uid)? {
            DirOwner::Agent { owner: found, pod } if found == owner => {
                let other = pod.is_some_and(|pod| pod != digest(key));
                Ok(if other { Claim::LeftByAnother } else { Claim::Done })
            }
            DirOwner::Free => self.mark(uid, key, owner).map(|()| Claim::Done),
            DirOwner::Agent { .. } | DirOwner::Unknown => {
                Err(VolumeError::NotOurs { path: self.pod_dir(uid)? })
            }
        }
    }

    /// Marks the directory of a pod that is known to be `owner`'s, whatever its marker says. The
    /// directory is made where it is missing.
    ///
    /// # Errors
    /// When it can't be made or marked.
    pub fn mark(&self, uid: &PodUid, key: &PodKey, owner: &str) -> Result<(), VolumeError> {
        let directory = self.pod_dir(uid)?;
        make_directory(&directory)?;
        let wanted = (owner.to_owned(), Some(digest(key)));
        if read_marker(&directory)? == Some(wanted) {
            return Ok(());
        }
        remove_marker(&directory)?;
        let marker = directory.join(MARKER);
        symlink(format!("{PREFIX}{owner} {}", digest(key)), &marker).map_err(|source| {
            // Without a marker only an empty directory can be claimed by the next try.
            drop(remove_empty(&directory));
            io_error("create", &marker, source)
        })
    }

    /// Marks the directories of pods that have a record. Directories of a release that made no
    /// markers, and directories that were marked with an earlier owner id, are recognised by it. A
    /// pod without a directory gets none.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn mark_recorded<'a>(
        &self,
        pods: impl Iterator<Item = (&'a PodUid, &'a PodKey)>,
        owner: &str,
    ) -> Result<(), VolumeError> {
        let mut result = Ok(());
        for (uid, key) in pods {
            if self.pod_dir(uid)?.is_dir() {
                result = result.and(self.mark(uid, key, owner));
            }
        }
        result
    }
}

/// Removes a pod's directory that holds nothing but the marker. When something was put into it
/// meanwhile, the marker stays.
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

/// The owner id and the digest of the pod's name that a marker has.
fn read_marker(directory: &Path) -> Result<Option<(String, Option<String>)>, VolumeError> {
    let marker = directory.join(MARKER);
    match fs::read_link(&marker) {
        Ok(target) => Ok(named_in(target)),
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

fn named_in(target: PathBuf) -> Option<(String, Option<String>)> {
    let target = target.into_os_string().into_string().ok()?;
    let named = target.strip_prefix(PREFIX)?;
    Some(match named.split_once(' ') {
        Some((owner, pod)) => (owner.to_owned(), Some(pod.to_owned())),
        None => (named.to_owned(), None),
    })
}

fn digest(key: &PodKey) -> String {
    let digest = Sha256::digest(key.to_string());
    digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

fn remove_marker(directory: &Path) -> Result<(), VolumeError> {
    let marker = directory.join(MARKER);
    match fs::remove_file(&marker) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| io_error("remove", &marker, source)),
    }
}
