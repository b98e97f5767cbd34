//! PersistentVolumes of kind `local`: directories of the node that an administrator has prepared,
//! usually the mount point of a disk. They are never made, unmounted or removed here.

use super::{VolumeError, io_error};
use std::{fs, io};

/// Checks that the path is a directory. (The kubelet also mounts block devices.)
pub(super) fn check(path: &str) -> Result<(), VolumeError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(VolumeError::LocalPathKind { path: path.to_owned() }),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            Err(VolumeError::NoLocalPath { path: path.to_owned() })
        }
        Err(source) => Err(io_error("stat", path.as_ref(), source)),
    }
}
