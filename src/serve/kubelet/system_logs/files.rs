//! Opening below the directory of logs, without a way out of it.

use crate::beneath::{kind_of, open_base, open_path, reopen};
use crate::model::Order as _;
use maud::html;
use nix::sys::stat::{SFlag, fstat};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::Path,
};

/// What a path names.
#[derive(Debug)]
pub(super) enum Found {
    File(File),
    Directory(Listing),
}

/// The names in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// Sorted; those of directories end in a slash.
    names: Vec<String>,
    /// There are more, which are left out.
    wait_cut: bool,
}

/// The most names of a listing: whoever may write into a directory decides how many there are.
const MOST_NAMES: usize = 10_000;

/// Symlinks are followed while they lead to something below the directory.
///
/// # Errors
/// It leads out of the directory, it is neither a file nor a directory, or the usual ones.
pub(super) fn open(dir: &Path, relative: &Path) -> io::Result<Found> {
    let dir = dir.canonicalize()?;
    let base = open_base(&dir)?;
    // An absolute symlink may lead below the directory again, as those of /var/log/containers do.
    // What is exchanged meanwhile can't lead out: the kernel resolves the path once more.
    let resolved = dir.join(relative).canonicalize()?;
    let inside = resolved.strip_prefix(&dir).map_err(|_| io::ErrorKind::NotFound)?;
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let found = open_path(base.as_fd(), inside)?;
    match kind_of(fstat(&found)?.st_mode) {
        SFlag::S_IFREG => Ok(Found::File(reopen(found.as_fd())?)),
        SFlag::S_IFDIR => Ok(Found::Directory(list(&found)?)),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn list(directory: &OwnedFd) -> io::Result<Listing> {
    let mut names = Vec::new();
    let entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    for entry in entries.take(MOST_NAMES + 1) {
        let entry = entry?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            name.push('/');
        }
        names.push(name);
    }
    let wait_cut = names.len() > MOST_NAMES;
    names.truncate(MOST_NAMES);
    names.order();
    Ok(Listing { names, wait_cut })
}

impl Listing {
    /// A page of links.
    pub(super) fn page(&self) -> String {
        let page = html! {
            pre {
                @for name in &self.names {
                    a href=(encoded(name)) { (name) } "\n"
                }
                @if self.wait_cut { "There are more names.\n" }
            }
        };
        page.into_string()
    }
}

/// What a link has as it is. A colon is not among it, so that no name looks like a scheme.
const IN_LINKS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A name as a link to it, percent-encoded.
pub(super) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, IN_LINKS).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::{io::Read as _, os::unix::fs::symlink};

    #[test]
    fn nothing_outside_is_found() {
        let root = tempfile::tempdir().unwrap();
        let (logs, outside) = (root.path().join("log"), root.path().join("secret"));
        fs::create_dir_all(logs.join("sub/deep")).unwrap();
        fs::write(logs.join("sub/a.log"), "text").unwrap();
        fs::write(&outside, "secret").unwrap();
        symlink("sub/a.log", logs.join("inside")).unwrap();
        symlink(&outside, logs.join("absolute")).unwrap();
        symlink("../secret", logs.join("relative")).unwrap();
        symlink("..", logs.join("up")).unwrap();
        symlink(logs.join("sub/a.log"), logs.join("absolute-inside")).unwrap();
        symlink("/proc/self/root", logs.join("magic")).unwrap();
        nix::unistd::mkfifo(&logs.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in ["sub/a.log", "inside", "absolute-inside"] {
            let Found::File(mut file) = open(&logs, Path::new(path)).unwrap() else {
                panic!("{path}")
            };
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "text", "{path}");
        }
        for path in [
            "absolute",
            "relative",
            "up/secret",
            "../secret",
            "magic/etc/passwd",
            "fifo",
            "/etc/passwd",
            "nothing",
            "sub/a.log/more",
        ] {
            assert!(open(&logs, Path::new(path)).is_err(), "{path}");
        }
        let Found::Directory(listing) = open(&logs, Path::new("sub")).unwrap() else { panic!() };
        assert_eq!(
            listing,
            Listing { names: vec!["a.log".into(), "deep/".into()], wait_cut: false }
        );
    }

    #[test]
    fn names_are_only_names() {
        let names = ["a b<script>.log".to_owned(), "javascript:x".to_owned()];
        assert_eq!(
            Listing { names: names.to_vec(), wait_cut: true }.page(),
            "<pre><a href=\"a%20b%3Cscript%3E.log\">a b&lt;script&gt;.log</a>\n\
             <a href=\"javascript%3Ax\">javascript:x</a>\n\
             There are more names.\n</pre>"
        );
    }
}
