//! Where the use of a cgroup is read. The numbers are read elsewhere.

use super::{CgroupVersion, Cgroups, core::Hierarchy, names::KUBEPODS, tree::CgroupPlace};
use crate::model::{CgroupDirs, Order as _};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

impl Cgroups {
    /// The cgroup of all pods under the driver in use; `None` where there is none, or it is not
    /// known yet.
    #[must_use]
    pub fn kubepods_dirs(&self) -> Option<CgroupDirs> {
        let driver = self.inner.driver.borrow().driver.filter(|_| self.is_managed())?;
        let place = self.place(driver, &[KUBEPODS]);
        self.dirs(|hierarchy| place.in_hierarchy(hierarchy)).filter(|dirs| dirs.memory.is_dir())
    }

    /// Whether there is to be a cgroup of all pods that is not there, or not known, yet: the
    /// runtime was not asked for its driver.
    #[must_use]
    pub fn waits_for_kubepods(&self) -> bool {
        self.is_managed() && self.kubepods_dirs().is_none()
    }

    /// Which directory the cgroup of all pods is: another number when it was removed and somebody
    /// made it again.
    #[must_use]
    pub fn kubepods_inode(&self) -> Option<u64> {
        let dirs = self.kubepods_dirs()?;
        fs::metadata(dirs.memory).ok().map(|found| found.ino())
    }

    /// A pod's cgroup, whichever driver made it: where two are there, the one in which something
    /// runs. `name` is the path below `cgroupRoot`. `None` where there is none.
    #[must_use]
    pub fn pod_dirs(&self, name: &[impl AsRef<str>]) -> Option<CgroupDirs> {
        if !self.is_managed() {
            return None;
        }
        let dirs_of = |place: &CgroupPlace| self.dirs(|hierarchy| place.in_hierarchy(hierarchy));
        let there = |place: &&CgroupPlace| dirs_of(place).is_some_and(|dirs| dirs.memory.is_dir());
        let places = self.places(name);
        let mut found: Vec<&CgroupPlace> = places.iter().filter(there).collect();
        if found.len() > 1 {
            // One that can't be looked at is as good as empty.
            let inhabited = |place: &CgroupPlace| self.is_inhabited(place).unwrap_or_default();
            found.order_by_key(|place| !inhabited(place));
        }
        found.first().and_then(|place| dirs_of(place))
    }

    /// What the cgroups of all pods are called in `/proc/<pid>/cgroup`, under either driver.
    #[must_use]
    pub fn kubepods_names(&self) -> Vec<String> {
        let nowhere =
            Hierarchy { mount_point: PathBuf::from("/"), controllers: Vec::new(), unified: true };
        let path =
            |place: &CgroupPlace| place.in_hierarchy(&nowhere).to_string_lossy().into_owned();
        self.places(&[KUBEPODS]).iter().map(path).collect()
    }

    /// The root cgroup: everything on the machine, or in the container in which the agent runs.
    #[must_use]
    pub fn root_dirs(&self) -> Option<CgroupDirs> {
        self.dirs(|hierarchy| hierarchy.mount_point.clone())
    }

    /// The path of a cgroup from the root of its hierarchy, by its directory of memory.
    #[must_use]
    pub fn path_of(&self, directory: &Path) -> Option<String> {
        let root = self.controller_dir("memory", |hierarchy| hierarchy.mount_point.clone())?;
        let path = directory.strip_prefix(root).ok()?;
        Some(format!("/{}", path.display()))
    }

    fn dirs(&self, directory: impl Fn(&Hierarchy) -> PathBuf) -> Option<CgroupDirs> {
        let of = |controller: &str| self.controller_dir(controller, &directory);
        let blkio = |found: &&Hierarchy| found.controllers.iter().any(|name| name == "blkio");
        Some(CgroupDirs {
            memory: of("memory")?,
            pids: of("pids")?,
            cpu: of("cpu")?,
            // Not every machine accounts for CPU time on its own.
            cpuacct: of("cpuacct").or_else(|| of("cpu"))?,
            // The agent makes no cgroups in it, but the runtime does.
            io: match self.version() {
                CgroupVersion::V1 => self.inner.all.iter().find(blkio).map(&directory),
                CgroupVersion::V2 => of("io"),
            },
        })
    }
}
