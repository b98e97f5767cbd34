//! Writes the files of a volume so that a reader never sees a part of a change: the layout of the
//! kubelet's atomic writer.
//!
//! ```text
//! ..2026_05_01_12_00_00.123456789/   the files
//! ..data      ─► ..2026_05_01_12_00_00.123456789
//! web.conf    ─► ..data/web.conf     one link for each first part of a path
//! ```
//!
//! A change is written to a new directory, and one rename of `..data` makes it visible. A write
//! that was cut off anywhere is finished or removed by the next one.
//!
//! Directories on which containers mount other volumes are made beside the links, because the
//! runtime can't make them: it mounts the volume read-only.

use super::{VolumeError, core::check_file_path, io_error, teardown::children};
use crate::{
    beneath::{self, Slice},
    clock,
    files::read_regular,
    model::CollectOrdered as _,
    podspec::{VolumeFile, VolumeFiles, parent_paths},
};
use nix::unistd::{Gid, Uid, chown};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
const DIRECTORY_MODE: u32 = 0o755;
/// What `fsGroup` adds to a directory: the group can list it, and files in it get the group.
const GROUP_DIRECTORY: u32 = 0o2550;
/// What `fsGroup` adds to a file of a volume that is read-only.
const GROUP_FILE: u32 = 0o440;

/// Makes `directory` hold exactly `files`. Returns false when it did before. `group` gets access to
/// all of them. `mount_points` are directories below the volume on which others are mounted.
///
/// # Errors
/// When a path is not acceptable or a step fails; what readers see is then what it was before.
pub(super) fn write(
    directory: &Path,
    files: &VolumeFiles,
    group: Option<u32>,
    mount_points: &BTreeSet<PathBuf>,
) -> Result<bool, VolumeError> {
    check_paths(files)?;
    let volume = Volume { directory, files, group, mount_points };
    let current = volume.current();
    let changed = !current.as_ref().is_some_and(|current| volume.is_in(current));
    let kept = match current {
        Some(current) if !changed => current,
        Some(_) | None => volume.publish()?,
    };
    volume.link_names()?;
    volume.remove_others(&kept)?;
    volume.make_mount_points()?;
    Ok(changed)
}

struct Volume<'a> {
    directory: &'a Path,
    files: &'a VolumeFiles,
    group: Option<u32>,
    mount_points: &'a BTreeSet<PathBuf>,
}

impl Volume<'_> {
    /// The directory that readers see now.
    fn current(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.directory.join(DATA)).ok()?;
        let name = target.to_str().filter(|name| is_own(name))?;
        Some(self.directory.join(name))
    }

    /// Whether a directory holds these files and nothing else.
    fn is_in(&self, current: &Path) -> bool {
        let mut found = BTreeSet::new();
        let walked = self.compare(current, "", &mut found);
        walked && found.len() == self.files.len()
    }

    fn compare(&self, directory: &Path, prefix: &str, found: &mut BTreeSet<String>) -> bool {
        let Ok(entries) = fs::read_dir(directory) else { return false };
        for entry in entries {
            let Ok(entry) = entry else { return false };
            let (Ok(name), Ok(metadata)) =
                (entry.file_name().into_string(), entry.path().symlink_metadata())
            else {
                return false;
            };
            let path = format!("{prefix}{name}");
            let same = if metadata.is_dir() {
                metadata.permissions().mode() & 0o7777 == self.directory_mode()
                    && self.compare(&entry.path(), &format!("{path}/"), found)
            } else {
                let wanted = self.files.get(path.as_str());
                let same = metadata.is_file()
                    && wanted.is_some_and(|file| self.is_same(file, &entry.path(), &metadata));
                found.insert(path);
                same
            };
            if !same || self.group.is_some_and(|group| metadata.gid() != group) {
                return false;
            }
        }
        true
    }

    fn is_same(&self, file: &VolumeFile, path: &Path, metadata: &fs::Metadata) -> bool {
        let content = file.content.as_bytes();
        usize::try_from(metadata.len()).is_ok_and(|len| len == content.len())
            && metadata.permissions().mode() & 0o7777 == self.file_mode(file)
            && file.owner.is_none_or(|owner| metadata.uid() == owner)
            // It does not wait for a container that holds a lease on the file.
            && read_regular(path, metadata.len()).is_ok_and(|found| found == content)
    }

    fn directory_mode(&self) -> u32 {
        DIRECTORY_MODE | if self.group.is_some() { GROUP_DIRECTORY } else { 0 }
    }

    fn file_mode(&self, file: &VolumeFile) -> u32 {
        file.mode & 0o777 | if self.group.is_some() { GROUP_FILE } else { 0 }
    }

    /// Writes all files to a new directory and makes readers see it. A failure leaves nothing behind:
    /// the volume may be in memory, and the next try is soon.
    fn publish(&self) -> Result<PathBuf, VolumeError> {
        self.remove_unfinished()?;
        let now = clock::now().wall;
        let name =
            format!("..{}.{:09}", now.strftime("%Y_%m_%d_%H_%M_%S"), now.subsec_nanosecond());
        let new = self.directory.join(&name);
        // One that exists is what readers see, when the clock shows the same time again.
        fs::create_dir(&new).map_err(|source| io_error("create", &new, source))?;
        match self.fill(&new).and_then(|()| self.show(&name)) {
            Ok(()) => Ok(new),
            Err(error) => {
                if let Err(left) = self.remove_unfinished() {
                    tracing::warn!(err = %left, "cannot remove the files of a volume that could not be written");
                }
                Err(error)
            }
        }
    }

    fn fill(&self, new: &Path) -> Result<(), VolumeError> {
        self.give_directory(new)?;
        for (path, file) in self.files {
            let mut parent = new.to_owned();
            let mut parts: Vec<&str> = path.split('/').collect();
            let last = parts.pop().unwrap_or_default();
            for part in parts {
                parent.push(part);
                if !parent.is_dir() {
                    self.make_directory(&parent)?;
                }
            }
            self.write_file(&parent.join(last), file)?;
        }
        Ok(())
    }

    /// Makes readers see the directory of this name.
    fn show(&self, name: &str) -> Result<(), VolumeError> {
        let link = self.directory.join(NEW_DATA);
        symlink(name, &link).map_err(|source| io_error("link", &link, source))?;
        let data = self.directory.join(DATA);
        fs::rename(&link, &data).map_err(|source| io_error("replace", &data, source))
    }

    fn make_directory(&self, path: &Path) -> Result<(), VolumeError> {
        fs::create_dir(path).map_err(|source| io_error("create", path, source))?;
        self.give_directory(path)
    }

    fn give_directory(&self, path: &Path) -> Result<(), VolumeError> {
        self.own(path, None)?;
        set_mode(path, self.directory_mode())
    }

    fn write_file(&self, path: &Path, file: &VolumeFile) -> Result<(), VolumeError> {
        let failed = |source| io_error("write", path, source);
        let mut options = fs::OpenOptions::new();
        let mut opened =
            options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        io::Write::write_all(&mut opened, file.content.as_bytes()).map_err(failed)?;
        self.own(path, file.owner)?;
        set_mode(path, self.file_mode(file))
    }

    /// Gives a path to a user and to the group of the volume, where there are such.
    fn own(&self, path: &Path, owner: Option<u32>) -> Result<(), VolumeError> {
        if owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        chown(path, owner.map(Uid::from_raw), self.group.map(Gid::from_raw))
            .map_err(|errno| io_error("change the owner of", path, errno.into()))
    }

    /// Links every first part of a path to where readers see the files.
    fn link_names(&self) -> Result<(), VolumeError> {
        for name in self.names() {
            let link = self.directory.join(name);
            let target = Path::new(DATA).join(name);
            if fs::read_link(&link).is_ok_and(|found| found == target) || self.is_mount_point(&link)
            {
                continue;
            }
            remove(self.directory, OsStr::new(name))?;
            symlink(&target, &link).map_err(|source| io_error("link", &link, source))?;
        }
        Ok(())
    }

    /// Removes what writes have left that did not end. Readers see nothing of it.
    fn remove_unfinished(&self) -> Result<(), VolumeError> {
        let current = self.current();
        for path in children(self.directory)? {
            let Some(name) = path.file_name() else { continue };
            // No file of a volume has such a name.
            let is_ours = name.as_encoded_bytes().starts_with(b"..");
            if is_ours && name != DATA && Some(&path) != current.as_ref() {
                remove(self.directory, name)?;
            }
        }
        Ok(())
    }

    /// Makes the directories on which other volumes are mounted, beside the links. One that would be
    /// reached through a link is not made: the next change of the files would take it away.
    fn make_mount_points(&self) -> Result<(), VolumeError> {
        for point in self.mount_points {
            let mut path = self.directory.to_owned();
            for part in point {
                path.push(part);
                match path.symlink_metadata() {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => break,
                    Err(_) => self.make_directory(&path)?,
                }
            }
        }
        Ok(())
    }

    /// Whether this is a directory in which another volume is mounted. A container that runs would
    /// lose that volume with the directory.
    fn is_mount_point(&self, path: &Path) -> bool {
        let first = |point: &PathBuf| point.iter().next() == path.file_name();
        self.mount_points.iter().any(first)
            && path.symlink_metadata().is_ok_and(|found| found.is_dir())
    }

    /// Removes names that are no longer wanted, and the files that readers saw before.
    fn remove_others(&self, kept: &Path) -> Result<(), VolumeError> {
        let names = self.names();
        for path in children(self.directory)? {
            let Some(name) = path.file_name() else { continue };
            let wanted = path == *kept
                || name == DATA
                || self.is_mount_point(&path)
                || name.to_str().is_some_and(|name| names.contains(name));
            if !wanted {
                remove(self.directory, name)?;
            }
        }
        Ok(())
    }

    fn names(&self) -> BTreeSet<&str> {
        self.files.keys().filter_map(|path| path.split('/').next()).collect_ordered()
    }
}

/// Refuses paths that are not acceptable, before anything is written.
fn check_paths(files: &VolumeFiles) -> Result<(), VolumeError> {
    for path in files.keys() {
        check_file_path(path)?;
        if let Some(file) = parent_paths(path).find(|parent| files.contains_key(*parent)) {
            return Err(VolumeError::FileAsDirectory { path: path.to_string(), file: file.into() });
        }
    }
    Ok(())
}

/// A directory that this module has made. Its name begins with the year, which a wrong clock may set
/// to any.
fn is_own(name: &str) -> bool {
    let year = name.strip_prefix("..");
    year.is_some_and(|year| year.starts_with(|c: char| c.is_ascii_digit()) && !year.contains('/'))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|source| io_error("change the mode of", path, source))
}

/// Removes an entry of the volume, whatever it is, with its content.
fn remove(directory: &Path, name: &OsStr) -> Result<(), VolumeError> {
    let path = directory.join(name);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(io_error("remove", &path, source)),
        Ok(metadata) if !metadata.is_dir() => {
            return fs::remove_file(&path).map_err(|source| io_error("remove", &path, source));
        }
        Ok(_) => {}
    }
    // Objects are small, so one slice is enough.
    beneath::remove_tree(directory, name, &mut Slice::new(Duration::MAX))
        .map(drop)
        .map_err(|source| io_error("remove", &path, source))
}

#[cfg(test)]
mod tests;
