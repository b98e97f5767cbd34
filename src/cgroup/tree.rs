//! Making cgroups and writing their values.

use super::{
    CgroupDriver, CgroupError, CgroupSettings, Limits,
    core::{self, Hierarchy},
    files::{V2_CONTROLLERS, make_directories, v2_controllers, write_setting},
};
use crate::podspec::PodCgroup;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Top of the pods' tree, below `cgroupRoot`.
const KUBEPODS: &str = "kubepods";
/// v1 hierarchies in which the pods' cgroups are made by us. The runtime makes its own in others.
const V1_CONTROLLERS: [&str; 7] =
    ["cpu", "cpuacct", "cpuset", "memory", "hugetlb", "pids", "freezer"];
/// What a pod can't be limited without.
const V1_REQUIRED: [&str; 3] = ["memory", "cpu", "pids"];

/// Which kind of tree the pods live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The cgroup tree of this machine's pods. Cheap to clone. All operations are file operations of
/// microseconds; none waits for a process to end except [`Cgroups::remove_pod`].
#[derive(Clone, Debug)]
pub struct Cgroups {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: CgroupVersion,
    /// Hierarchies in which cgroups are made; one for v2.
    own: Vec<Hierarchy>,
    /// Every mounted hierarchy, for listing, killing and removal.
    all: Vec<Hierarchy>,
    /// `cgroupRoot` as components.
    root: Vec<String>,
    per_qos: bool,
}

impl Cgroups {
    /// Looks at what is mounted and takes v1 when its memory controller is, else v2.
    ///
    /// # Errors
    /// For the systemd driver, when no usable tree is mounted, and when `cgroupRoot` doesn't exist.
    pub fn detect(settings: &CgroupSettings) -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(|source| CgroupError::Io {
            operation: "read",
            path: path.to_owned(),
            source,
        })?;
        Self::on_hierarchies(core::hierarchies(&text), settings)
    }

    /// The same on given hierarchies.
    ///
    /// # Errors
    /// As [`Cgroups::detect`].
    pub fn on_hierarchies(
        all: Vec<Hierarchy>,
        settings: &CgroupSettings,
    ) -> Result<Self, CgroupError> {
        match settings.driver {
            CgroupDriver::Cgroupfs => {}
            CgroupDriver::Systemd => return Err(CgroupError::SystemdDriver),
        }
        let root: Vec<String> =
            settings.root.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        check_name(&root)?;
        let has = |name: &str| all.iter().any(|h| h.controllers.iter().any(|c| c == name));
        let (version, own) = if has("memory") {
            if !V1_REQUIRED.into_iter().all(has) {
                return Err(CgroupError::NoHierarchy);
            }
            let ours =
                |h: &&Hierarchy| h.controllers.iter().any(|c| V1_CONTROLLERS.contains(&c.as_str()));
            (CgroupVersion::V1, all.iter().filter(ours).cloned().collect())
        } else {
            let unified = all.iter().find(|h| h.unified).ok_or(CgroupError::NoHierarchy)?;
            (CgroupVersion::V2, vec![unified.clone()])
        };
        let per_qos = settings.per_qos;
        let cgroups = Self { inner: Arc::new(Inner { version, own, all, root, per_qos }) };
        if per_qos {
            cgroups.check_root(settings)?;
        }
        Ok(cgroups)
    }

    /// Which kind of tree it is.
    #[must_use]
    pub fn version(&self) -> CgroupVersion {
        self.inner.version
    }

    /// Makes `kubepods` and gives it its limits; updates them when it exists. To be repeated every
    /// minute while it fails.
    ///
    /// # Errors
    /// When a directory can't be made or a value is refused.
    pub fn ensure_node_allocatable(&self, limits: &Limits) -> Result<(), CgroupError> {
        if !self.inner.per_qos {
            return Ok(());
        }
        let name = [KUBEPODS];
        self.create(&name)?;
        self.write(&name, limits)
    }

    /// Makes the tiers and sets their CPU shares: 2 for best effort, the given number for
    /// burstable (all its pods' requests together).
    ///
    /// # Errors
    /// When a directory can't be made or a value is refused.
    pub fn ensure_qos_tiers(&self, burstable_shares: u64) -> Result<(), CgroupError> {
        if !self.inner.per_qos {
            return Ok(());
        }
        for (tier, shares) in [("burstable", burstable_shares), ("besteffort", 2)] {
            let name = [KUBEPODS, tier];
            self.create(&name)?;
            self.write(&name, &Limits { cpu_shares: Some(shares), ..Limits::default() })?;
        }
        Ok(())
    }

    /// Makes the cgroup of a pod with its values. One that exists is left as it is: values are
    /// written only at creation. Returns whether it was made.
    ///
    /// `name` is the path below `cgroupRoot`, `kubepods` first.
    ///
    /// # Errors
    /// When a directory can't be made or a value is refused. What was made by then is removed
    /// again, so that the next attempt doesn't take a pod without limits for a finished one.
    pub fn ensure_pod(
        &self,
        name: &[impl AsRef<str>],
        values: &PodCgroup,
    ) -> Result<bool, CgroupError> {
        if !self.inner.per_qos || self.pod_exists(name) {
            return Ok(false);
        }
        let done =
            self.create(name).and_then(|()| self.write(name, &self.pod_limits(name, values)));
        if let Err(err) = done {
            self.remove_directories(name)?;
            return Err(err);
        }
        Ok(true)
    }

    /// Whether the pod's cgroup is there with every controller that it should have. Always true
    /// when cgroups are not managed (`cgroupsPerQOS: false`).
    #[must_use]
    pub fn pod_exists(&self, name: &[impl AsRef<str>]) -> bool {
        if !self.inner.per_qos {
            return true;
        }
        let exists = self.own_paths(name).all(|path| path.is_dir());
        exists && self.missing_controllers(name).is_empty()
    }

    /// Leaves the pod as little CPU as possible: for the cgroup of a removed pod whose volumes
    /// can't be taken down yet. Nothing to do when there is none.
    ///
    /// # Errors
    /// When the value is refused.
    pub fn lower_cpu(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        if !self.inner.per_qos || !self.own_paths(name).all(|path| path.is_dir()) {
            return Ok(());
        }
        self.write(name, &Limits { cpu_shares: Some(2), ..Limits::default() })
    }

    /// The `cgroup_parent` of the pod for the runtime: the full path. Empty when cgroups are not
    /// managed.
    #[must_use]
    pub fn cri_parent(&self, name: &[impl AsRef<str>]) -> String {
        if !self.inner.per_qos {
            return String::new();
        }
        let parts = self.inner.root.iter().map(String::as_str);
        parts
            .chain(name.iter().map(AsRef::as_ref))
            .fold(String::new(), |path, part| path + "/" + part)
    }

    /// The directories of `name` in the hierarchies that we make cgroups in.
    pub(super) fn own_paths(&self, name: &[impl AsRef<str>]) -> impl Iterator<Item = PathBuf> {
        self.inner.own.iter().map(|hierarchy| self.path_in(hierarchy, name))
    }

    /// The directories of `name` in every mounted hierarchy, whether they exist or not.
    pub(super) fn all_paths(&self, name: &[impl AsRef<str>]) -> impl Iterator<Item = PathBuf> {
        self.inner.all.iter().map(|hierarchy| self.path_in(hierarchy, name))
    }

    /// v1: the freezer's directory of `name`. v2: the directory of `name`.
    pub(super) fn freezer_path(&self, name: &[impl AsRef<str>]) -> Option<PathBuf> {
        let hierarchy = match self.inner.version {
            CgroupVersion::V1 => {
                self.inner.own.iter().find(|h| h.controllers.iter().any(|c| c == "freezer"))
            }
            CgroupVersion::V2 => self.inner.own.first(),
        };
        hierarchy.map(|hierarchy| self.path_in(hierarchy, name))
    }

    pub(super) fn is_managed(&self) -> bool {
        self.inner.per_qos
    }

    fn path_in(&self, hierarchy: &Hierarchy, name: &[impl AsRef<str>]) -> PathBuf {
        let mut path = hierarchy.mount_point.clone();
        path.extend(&self.inner.root);
        path.extend(name.iter().map(AsRef::as_ref));
        path
    }

    fn check_root(&self, settings: &CgroupSettings) -> Result<(), CgroupError> {
        let nothing: [&str; 0] = [];
        for hierarchy in &self.inner.own {
            let path = self.path_in(hierarchy, &nothing);
            if path.is_dir() {
                continue;
            }
            if !settings.create_root {
                return Err(CgroupError::RootMissing { root: settings.root.clone(), path });
            }
            make_directories(hierarchy, self.inner.root.iter().map(String::as_str))?;
        }
        Ok(())
    }

    /// Makes the directories of `name` and hands the controllers down to them.
    fn create(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        check_name(name)?;
        let below_root = name.iter().map(AsRef::as_ref);
        for hierarchy in &self.inner.own {
            let parts = self.inner.root.iter().map(String::as_str).chain(below_root.clone());
            make_directories(hierarchy, parts)?;
        }
        Ok(())
    }

    /// v2 controllers that the machine has and the directory lacks (not handed down to it).
    fn missing_controllers(&self, name: &[impl AsRef<str>]) -> Vec<&'static str> {
        let (CgroupVersion::V2, Some(unified)) = (self.inner.version, self.inner.own.first())
        else {
            return Vec::new();
        };
        let available = v2_controllers(&unified.mount_point);
        let enabled = v2_controllers(&self.path_in(unified, name));
        V2_CONTROLLERS
            .into_iter()
            .filter(|c| available.iter().any(|a| a == c) && !enabled.iter().any(|e| e == c))
            .collect()
    }

    /// A pod's values with zero for the huge page sizes that it didn't ask for.
    fn pod_limits(&self, name: &[impl AsRef<str>], values: &PodCgroup) -> Limits {
        let mut limits = Limits::of_pod(values);
        // A directory that can't be listed shows itself when its values are written.
        let files = self.own_paths(name).filter_map(|path| path.read_dir().ok()).flatten();
        for file in files.filter_map(Result::ok) {
            let name = file.file_name();
            if let Some(size) = name.to_str().and_then(core::page_size_of_file)
                && !limits.hugepages.iter().any(|(known, _)| known == size)
            {
                limits.hugepages.push((size.to_owned(), 0));
            }
        }
        limits
    }

    fn write(&self, name: &[impl AsRef<str>], limits: &Limits) -> Result<(), CgroupError> {
        match self.inner.version {
            CgroupVersion::V1 => {
                for setting in core::settings_v1(limits) {
                    let has =
                        |h: &&Hierarchy| h.controllers.iter().any(|c| c == setting.controller);
                    if let Some(hierarchy) = self.inner.own.iter().find(has) {
                        write_setting(&self.path_in(hierarchy, name), &setting)?;
                    }
                }
            }
            CgroupVersion::V2 => {
                let Some(unified) = self.inner.own.first() else { return Ok(()) };
                let available = v2_controllers(&unified.mount_point);
                for setting in core::settings_v2(limits) {
                    if available.iter().any(|c| c == setting.controller) {
                        write_setting(&self.path_in(unified, name), &setting)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_name(name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
    match name.iter().find(|component| !core::is_component(component.as_ref())) {
        Some(component) => {
            Err(CgroupError::InvalidName { component: component.as_ref().to_owned() })
        }
        None => Ok(()),
    }
}
