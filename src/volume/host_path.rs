//! hostPath: checks that a path of the host is what the pod expects, and makes it where asked to.
//! The path stays the host's: it is never owned, relabelled, unmounted or removed.

use super::{VolumeError, core::HostPathType, io_error};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
};

/// Checks `path` against `kind`. Symlinks are followed.
pub(super) fn check(path: &str, kind: HostPathType) -> Result<(), VolumeError> {
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(err)
            if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            None
        }
        // Nothing is wanted of it: the runtime will say what it thinks of it.
        Err(err) if kind == HostPathType::Unset => {
            tracing::debug!(path, %err, "hostPath can't be looked at");
            None
        }
        Err(source) => return Err(io_error("stat", path.as_ref(), source)),
    };
    let expect = |matches: bool, expected: &'static str| {
        if matches {
            Ok(())
        } else {
            Err(VolumeError::HostPathCheck { path: path.to_owned(), expected })
        }
    };
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(test);
    match kind {
        HostPathType::Unset => Ok(()),
        HostPathType::DirectoryOrCreate if found.is_none() => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(|source| io_error("create", path.as_ref(), source)),
        HostPathType::FileOrCreate if found.is_none() => fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)
            .map(drop)
            .map_err(|source| io_error("create", path.as_ref(), source)),
        HostPathType::DirectoryOrCreate | HostPathType::Directory => {
            expect(is(fs::FileType::is_dir), "a directory")
        }
        // Anything but a directory is a file here, as with the kubelet: sockets and devices too.
        HostPathType::FileOrCreate | HostPathType::File => {
            expect(is(|kind| !kind.is_dir()), "a file")
        }
        HostPathType::Socket => expect(is(|kind| kind.is_socket()), "a socket file"),
        HostPathType::CharDevice => expect(is(|kind| kind.is_char_device()), "a character device"),
        HostPathType::BlockDevice => expect(is(|kind| kind.is_block_device()), "a block device"),
    }
}
