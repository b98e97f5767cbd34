//! A mounted file system that answers no request, like that of an NFS server that is away.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

/// A FUSE mount without a server; unmounted when it is dropped. Requests that hang fail then.
pub struct DeadFileSystem {
    path: PathBuf,
    /// The kernel sends its requests here, and nothing reads them.
    _requests: File,
}

impl DeadFileSystem {
    /// Mounts it over `path`, which is made where it does not exist.
    pub fn mount(path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        let requests = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let fd = requests.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        mount(Some("dead"), path, Some("fuse"), MsFlags::empty(), Some(&*options)).unwrap();
        Self { path: path.to_owned(), _requests: requests }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DeadFileSystem {
    fn drop(&mut self) {
        // Requests that hang get an error from then on.
        umount2(&self.path, MntFlags::MNT_FORCE).ok();
        umount2(&self.path, MntFlags::MNT_DETACH).ok();
    }
}
