//! The arguments of `nodelet cp`, and the name that a copy gets.

use crate::cli::args::UsageError;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// SRC or DST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyPlace {
    Local(PathBuf),
    InPod {
        /// NAME or NAMESPACE/NAME
        pod: String,
        path: String,
    },
}

impl CopyPlace {
    /// Reads `POD:PATH` or a local path. A name of a pod never begins with `.` or `/`, so such an
    /// argument is a local path even with a colon.
    ///
    /// # Errors
    /// When the path after the colon is missing, or text for the container is not UTF-8.
    pub(super) fn parse(argument: &OsStr) -> Result<Self, UsageError> {
        let bytes = argument.as_bytes();
        if !bytes.contains(&b':') || bytes.starts_with(b".") || bytes.starts_with(b"/") {
            return Ok(Self::Local(argument.into()));
        }
        let lossy = || argument.to_string_lossy().into_owned();
        let text = argument.to_str().ok_or_else(|| UsageError::NotUtf8(lossy()))?;
        match text.split_once(':') {
            Some((pod, path)) if !path.is_empty() => {
                Ok(Self::InPod { pod: pod.to_owned(), path: path.to_owned() })
            }
            Some(_) | None => Err(UsageError::NoPath(lossy())),
        }
    }
}

/// The name of what `path` names in its directory. `None` for `/`, `.`, `..`, `dir/.` and the like:
/// their content is meant, and it has no name of its own.
pub(super) fn own_name(path: &Path) -> Option<&OsStr> {
    if path.as_os_str().as_bytes().ends_with(b"/.") { None } else { path.file_name() }
}

/// Whether `path` can name nothing but a directory.
pub(super) fn names_directory(path: &Path) -> bool {
    own_name(path).is_none() || path.as_os_str().as_bytes().ends_with(b"/")
}

/// The directory of what `path` names.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Where a copy is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// It must exist. Nothing outside of it is written.
    pub(super) directory: PathBuf,
    /// The name of the copy in it; `None` when the content of the source goes into it directly.
    pub(super) name: Option<OsString>,
}

impl Target {
    /// Into `destination` under the source's own name if `destination` is a directory, otherwise
    /// `destination` is the name.
    pub(super) fn new(destination: &Path, is_directory: bool, source: Option<&OsStr>) -> Self {
        let (directory, name) = if is_directory {
            (destination, source)
        } else {
            (parent(destination), own_name(destination))
        };
        Self { directory: directory.to_owned(), name: name.map(OsStr::to_owned) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_place_is_local_or_in_a_pod() {
        let in_pod =
            |pod: &str, path: &str| CopyPlace::InPod { pod: pod.into(), path: path.into() };
        let local = |path: &str| CopyPlace::Local(path.into());
        for (argument, place) in [
            ("web:/etc/hosts", in_pod("web", "/etc/hosts")),
            ("shop/web:a:b", in_pod("shop/web", "a:b")),
            ("web:.", in_pod("web", ".")),
            ("file", local("file")),
            ("dir/file", local("dir/file")),
            ("./a:b", local("./a:b")),
            ("../a:b", local("../a:b")),
            ("/a:b", local("/a:b")),
        ] {
            assert_eq!(CopyPlace::parse(OsStr::new(argument)).unwrap(), place, "{argument}");
        }
        let refused =
            |bytes: &[u8]| CopyPlace::parse(OsStr::from_bytes(bytes)).unwrap_err().to_string();
        assert!(refused(b"web:").contains("no path after the colon"));
        assert!(refused(b"web:\xff").contains("not UTF-8"));
        assert_eq!(
            CopyPlace::parse(OsStr::from_bytes(b"\xff")).unwrap(),
            CopyPlace::Local(OsStr::from_bytes(b"\xff").into())
        );
    }

    #[test]
    fn a_copy_goes_into_a_directory_or_gets_a_new_name() {
        for (source, destination, exists, directory, name) in [
            ("/etc/hosts", "copy", false, ".", Some("copy")),
            ("/etc/hosts", "/tmp/copy", false, "/tmp", Some("copy")),
            ("/etc/hosts", "/tmp", true, "/tmp", Some("hosts")),
            ("/etc/hosts", "new/", false, "new/", Some("hosts")),
            ("/etc/", ".", false, ".", Some("etc")),
            ("/etc/.", "/tmp", true, "/tmp", None),
            ("/", "copy", false, ".", Some("copy")),
            ("..", "..", false, "..", None),
            ("hosts", "/", false, "/", Some("hosts")),
        ] {
            let (source, destination) = (Path::new(source), Path::new(destination));
            let is_directory = names_directory(destination) || exists;
            let target = Target::new(destination, is_directory, own_name(source));
            let expected = Target { directory: directory.into(), name: name.map(OsString::from) };
            assert_eq!(target, expected, "{source:?} {destination:?}");
        }
    }
}
