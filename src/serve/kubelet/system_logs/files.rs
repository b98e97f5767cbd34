//! Opening below the directory of logs, without a way out of it.

use crate::beneath::{kind_of, open_base, open_path, reopen};
use maud::html;
use nix::sys::stat::{SFlag, fstat};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

/// What a path names.
#[derive(Debug)]
pub(super) enum Found {
    File(File),
    /// The names in it, sorted; those of directories end in a slash.
    Directory(Vec<String>),
}

/// Symlinks are followed while they stay below the directory.
///
/// # Errors
/// It leads out of the directory, it is neither a file nor a directory, or the usual ones.
pub(super) fn open(dir: &Path, relative: &Path) -> io::Result<Found> {
    let base = open_base(dir)?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let found = open_path(base.as_fd(), relative)?;
    match kind_of(fstat(&found)?.st_mode) {
        SFlag::S_IFREG => Ok(Found::File(reopen(found.as_fd())?)),
        SFlag::S_IFDIR => {
            let mut names = Vec::new();
            for entry in fs::read_dir(format!("/proc/self/fd/{}", found.as_raw_fd()))? {
                let entry = entry?;
                let mut name = entry.file_name().to_string_lossy().into_owned();
                if entry.file_type()?.is_dir() {
                    name.push('/');
                }
                names.push(name);
            }
            names.sort();
            Ok(Found::Directory(names))
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// A page of links.
pub(super) fn listing(names: &[String]) -> String {
    let page = html! {
        pre {
            @for name in names {
                a href=(encoded(name)) { (name) } "\n"
            }
        }
    };
    page.into_string()
}

/// A name in a path, percent-encoded. It never looks like a scheme.
pub(super) fn encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte.into());
        } else {
            // Writing to a String can't fail.
            write!(encoded, "%{byte:02X}").ok();
        }
        encoded
    })
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
        symlink("/proc/self/root", logs.join("magic")).unwrap();
        nix::unistd::mkfifo(&logs.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in ["sub/a.log", "inside", "sub/../sub/a.log"] {
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
        let Found::Directory(names) = open(&logs, Path::new("sub")).unwrap() else { panic!() };
        assert_eq!(names, ["a.log", "deep/"]);
    }

    #[test]
    fn names_are_only_names() {
        let names = ["a b<script>.log".to_owned(), "javascript:x".to_owned()];
        assert_eq!(
            listing(&names),
            "<pre><a href=\"a%20b%3Cscript%3E.log\">a b&lt;script&gt;.log</a>\n\
             <a href=\"javascript%3Ax\">javascript:x</a>\n</pre>"
        );
    }
}
