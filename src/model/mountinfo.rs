//! The kernel's table of mounts, `/proc/<pid>/mountinfo`, as data.

use std::{ffi::OsString, path::PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Path within the file system that is mounted; `/` for all of it.
    pub root: PathBuf,
    /// Where.
    pub mount_point: PathBuf,
    /// Whether mounts made below propagate to peers (`shared:N`).
    pub shared: bool,
    /// `ext4`, `tmpfs`, `cgroup`, ...
    pub fs_type: String,
    /// Options of the super block: `rw,size=64k`, or controllers for `cgroup`.
    pub super_options: String,
}

/// Reads the text of `/proc/<pid>/mountinfo`, in its order: a later entry with the same mount point
/// lies on top. Lines that are none are left out.
#[must_use]
pub fn parse_mountinfo(text: &str) -> Vec<MountEntry> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<MountEntry> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, mount_point) = (unescape(mount.next()?)?, unescape(mount.next()?)?);
    let shared = mount.skip(1).any(|tag| tag.starts_with("shared:"));
    let mut filesystem = filesystem.split(' ');
    let fs_type = filesystem.next()?.to_owned();
    let super_options = filesystem.nth(1).unwrap_or("").to_owned();
    Some(MountEntry { root, mount_point, shared, fs_type, super_options })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(field: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'\\' {
            let digits = std::str::from_utf8(after.get(..3)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 8).ok()?);
            rest = &after[3..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok().map(|path| PathBuf::from(OsString::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lines() {
        let text = "\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
50 27 0:44 /a\\040b /mnt/x\\134y rw master:3 propagate_from:2 - tmpfs none rw,size=64k
not a mount
";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 3);
        assert!(mounts[0].shared && !mounts[1].shared && !mounts[2].shared);
        assert_eq!(mounts[1].super_options, "rw,devices");
        assert_eq!(mounts[2].root, PathBuf::from("/a b"));
        assert_eq!(mounts[2].mount_point, PathBuf::from("/mnt/x\\y"));
        assert_eq!(mounts[2].fs_type, "tmpfs");
    }
}
