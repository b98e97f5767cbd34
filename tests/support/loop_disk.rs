//! A small real file system in a file, mounted over directories of a world. It goes with the
//! world's slot.

use super::slot::Slot;
use nix::{
    mount::{MsFlags, mount},
    sys::statvfs::statvfs,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

/// An ext4 of its own.
pub struct LoopDisk {
    dir: PathBuf,
}

impl LoopDisk {
    /// Makes and mounts one, `name` in the slot's directory.
    pub fn make(slot: &Slot, name: &str, mib: u64, inodes: u64) -> Self {
        let image = slot.dir().join(format!("{name}.ext4"));
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let dir = slot.dir().join(name);
        fs::create_dir(&dir).unwrap();
        // Without a journal it is all there for files; nothing here loses power.
        let inodes = inodes.to_string();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m0", "-O^has_journal", "-N", &inodes])
            .arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir));
        Self { dir }
    }

    /// Puts a directory of it over another one.
    pub fn over(&self, name: &str, dir: &Path) {
        let here = self.dir.join(name);
        fs::create_dir(&here).unwrap();
        mount(Some(&here), dir, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    }

    /// A path on it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Bytes that are left.
    pub fn available(&self) -> u64 {
        let found = statvfs(&self.dir).unwrap();
        found.blocks_available() * found.fragment_size()
    }

    /// Inodes that are left.
    pub fn inodes(&self) -> u64 {
        statvfs(&self.dir).unwrap().files_available()
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}
