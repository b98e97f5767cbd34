//! The kernel's table of mounts, `/proc/<pid>/mountinfo`, as data.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

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

/// Reads what is in `/proc/<pid>/mountinfo`, in its order: a later entry with the same mount point
/// lies on top. Lines that are none are left out. Names are bytes: anybody may mount on one that is
/// no UTF-8.
#[must_use]
pub fn parse_mountinfo(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let (mount, filesystem) = (&fields[..separator], &fields[separator + 1..]);
    let (root, mount_point) = (unescape(mount.get(3)?)?, unescape(mount.get(4)?)?);
    let shared = mount.get(6..).is_some_and(|tags| tags.iter().any(|t| t.starts_with(b"shared:")));
    let text =
        |field: Option<&&[u8]>| String::from_utf8_lossy(field.unwrap_or(&&b""[..])).into_owned();
    let (fs_type, super_options) = (text(filesystem.first()), text(filesystem.get(2)));
    Some(MountEntry { root, mount_point, shared, fs_type, super_options })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
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
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lines() {
        let text = b"\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
50 27 0:44 /a\\040b /mnt/x\\134y rw master:3 propagate_from:2 - tmpfs none rw,size=64k
51 27 0:45 / /mnt/b\xffd rw - tmpfs none rw
not a mount
";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[3].mount_point.as_os_str().as_encoded_bytes(), b"/mnt/b\xffd");
        assert!(mounts[0].shared && !mounts[1].shared && !mounts[2].shared);
        assert_eq!(mounts[1].super_options, "rw,devices");
        assert_eq!(mounts[2].root, PathBuf::from("/a b"));
        assert_eq!(mounts[2].mount_point, PathBuf::from("/mnt/x\\y"));
        assert_eq!(mounts[2].fs_type, "tmpfs");
    }
}
