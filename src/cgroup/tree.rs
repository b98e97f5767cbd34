//! Making cgroups and writing their values.

use super::{
    CgroupError, CgroupSettings, CgroupVersion, DriverState, Limits,
    core::{self, Hierarchy},
    files::{V2_CONTROLLERS, make_directories, v2_controllers, write_setting},
    names::{self, KUBEPODS},
    slice,
    systemd::{Slice, Systemd},
};
use crate::{
    blocking::CGROUPS,
    metrics::metrics,
    model::{CgroupDriver, NodeCapacity},
    podspec::PodCgroup,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{sync::watch, time::Instant};

/// v1 hierarchies in which the pods' cgroups are made by us. The runtime makes its own in others.
const V1_CONTROLLERS: [&str; 7] =
    ["cpu", "cpuacct", "cpuset", "memory", "hugetlb", "pids", "freezer"];
/// The controller of huge pages, which not every kernel has.
const HUGETLB: &str = "hugetlb";
/// What a pod can't be limited without.
const REQUIRED: [&str; 3] = ["memory", "cpu", "pids"];

/// The cgroup tree of this machine's pods. Cheap to clone. File operations take microseconds, what
/// systemd does milliseconds, 10 s at most; nothing waits for a process to end except
/// [`Cgroups::remove_pod`].
#[derive(Clone, Debug)]
pub struct Cgroups {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    version: CgroupVersion,
    /// Hierarchies in which cgroups are made; one for v2.
    pub(super) own: Vec<Hierarchy>,
    /// Every mounted hierarchy, for listing, killing and removal.
    pub(super) all: Vec<Hierarchy>,
    /// `cgroupRoot` as components.
    root: Vec<String>,
    pub(super) per_qos: bool,
    pub(super) configured: CgroupDriver,
    pub(super) driver: watch::Sender<DriverState>,
    systemd: Systemd,
}

/// A cgroup under one driver: the directories from a mount point down to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupPlace {
    pub(super) driver: CgroupDriver,
    directories: Vec<String>,
}

impl CgroupPlace {
    pub(super) fn in_hierarchy(&self, hierarchy: &Hierarchy) -> PathBuf {
        let mut path = hierarchy.mount_point.clone();
        path.extend(&self.directories);
        path
    }

    /// The last directory: with the systemd driver the name of the slice.
    pub(super) fn last(&self) -> Option<&str> {
        self.directories.last().map(String::as_str)
    }
}

impl Cgroups {
    /// Looks at what is mounted and takes v1 when its memory controller is, else v2.
    ///
    /// # Errors
    /// When no usable tree is mounted, a controller is missing, or `cgroupRoot` is no name.
    pub fn detect(settings: &CgroupSettings) -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = fs::read(path).map_err(|source| CgroupError::Io {
            operation: "read",
            path: path.to_owned(),
            source,
        })?;
        let cgroups = Self::on_hierarchies(core::hierarchies(&mounts), settings)?;
        if settings.per_qos && cgroups.inner.version == CgroupVersion::V2 {
            cgroups.require_controllers()?;
        }
        Ok(cgroups)
    }

    /// # Errors
    /// When the v2 tree lacks a controller without which pods can't be limited.
    pub(super) fn require_controllers(&self) -> Result<(), CgroupError> {
        let Some(unified) = self.inner.own.first() else { return Err(CgroupError::NoHierarchy) };
        let path = unified.mount_point.join("cgroup.controllers");
        let available = match fs::read_to_string(&path) {
            Ok(available) => available,
            Err(source) => return Err(CgroupError::Io { operation: "read", path, source }),
        };
        let is_missing = |name: &&str| !available.split_whitespace().any(|found| found == *name);
        let missing: Vec<&'static str> = REQUIRED.into_iter().filter(is_missing).collect();
        if missing.is_empty() { Ok(()) } else { Err(CgroupError::MissingControllers { missing }) }
    }

    /// The same on given hierarchies.
    ///
    /// # Errors
    /// As [`Cgroups::detect`], which also looks whether all controllers are there.
    pub fn on_hierarchies(
        all: Vec<Hierarchy>,
        settings: &CgroupSettings,
    ) -> Result<Self, CgroupError> {
        let root: Vec<String> =
            settings.root.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        check_name(&root)?;
        let has = |name: &str| all.iter().any(|h| h.controllers.iter().any(|c| c == name));
        let (version, own) = if has("memory") {
            if !REQUIRED.into_iter().all(has) {
                return Err(CgroupError::NoHierarchy);
            }
            let ours =
                |h: &&Hierarchy| h.controllers.iter().any(|c| V1_CONTROLLERS.contains(&c.as_str()));
            (CgroupVersion::V1, all.iter().filter(ours).cloned().collect())
        } else {
            let unified = all.iter().find(|h| h.unified).ok_or(CgroupError::NoHierarchy)?;
            (CgroupVersion::V2, vec![unified.clone()])
        };
        Ok(Self {
            inner: Arc::new(Inner {
                version,
                own,
                all,
                root,
                per_qos: settings.per_qos,
                configured: settings.driver,
                driver: watch::Sender::default(),
                systemd: Systemd::new(settings.systemd.clone()),
            }),
        })
    }

    /// Which kind of tree it is.
    #[must_use]
    pub fn version(&self) -> CgroupVersion {
        self.inner.version
    }

    /// Sizes in bytes of the huge pages that a container's cgroup can limit: those of the machine,
    /// or none where the kernel has no hugetlb controller here. A runtime may refuse a limit that
    /// it can't write, also a limit of 0.
    #[must_use]
    pub fn limited_page_sizes(&self, machine: &NodeCapacity) -> Vec<u64> {
        let limited = match self.inner.version {
            CgroupVersion::V1 => {
                self.inner.own.iter().any(|h| h.controllers.iter().any(|c| c == HUGETLB))
            }
            CgroupVersion::V2 => {
                let mut unified = self.inner.own.iter();
                unified.any(|h| v2_controllers(&h.mount_point).iter().any(|c| c == HUGETLB))
            }
        };
        if limited { machine.hugepages.keys().copied().collect() } else { Vec::new() }
    }

    /// Makes `kubepods` with its limits and the tiers with their CPU shares: 2 for best effort, the
    /// given number for burstable (all its pods' requests together). Updates those that exist. To
    /// be repeated every minute while it fails. Nothing to do until the driver is known.
    ///
    /// # Errors
    /// When a cgroup can't be made or a value is refused.
    pub async fn ensure_shared(
        &self,
        limits: &Limits,
        burstable_shares: u64,
    ) -> Result<(), CgroupError> {
        let Some(driver) = self.inner.driver.borrow().driver.filter(|_| self.inner.per_qos) else {
            return Ok(());
        };
        let shares = |shares| Limits { cpu_shares: Some(shares), ..Limits::default() };
        let wanted: [(&[&str], Limits); 3] = [
            (&[KUBEPODS], limits.clone()),
            (&[KUBEPODS, "burstable"], shares(burstable_shares)),
            (&[KUBEPODS, "besteffort"], shares(2)),
        ];
        if driver == CgroupDriver::Systemd {
            let slices = wanted.each_ref().map(|(name, limits)| self.slice(name, limits));
            self.ensure_slices(&slices).await?;
        }
        let this = self.clone();
        blocking(move || {
            wanted.iter().try_for_each(|(name, limits)| {
                let place = this.place(driver, name);
                this.create(&place)?;
                this.write(&place, limits)
            })
        })
        .await
    }

    /// Makes the cgroup of a pod with its values. One in which something runs is left as it is; an
    /// empty one may be what was begun and not finished, and gets its values again. Returns whether
    /// they were written.
    ///
    /// `name` is the path below `cgroupRoot`, `kubepods` first.
    ///
    /// # Errors
    /// When it can't be made or a value is refused, and when the runtime does not tell its driver.
    /// What was made by then is removed again, so that the next attempt doesn't take a pod without
    /// limits for a finished one.
    ///
    /// # Cancel safety
    /// Dropping it may leave a cgroup without its limits.
    pub async fn ensure_pod(
        &self,
        name: &[impl AsRef<str>],
        values: &PodCgroup,
    ) -> Result<bool, CgroupError> {
        if !self.inner.per_qos {
            return Ok(false);
        }
        check_name(name)?;
        let driver = self.driver().await?;
        let here = self.place(driver, name);
        let (this, places) = (self.clone(), self.places(name));
        let (place, runs) = blocking(move || {
            let inhabited = this.inhabited(places)?;
            let runs = inhabited.as_ref().is_some_and(|place| this.exists(place));
            Ok((inhabited.unwrap_or(here), runs))
        })
        .await?;
        if runs {
            return Ok(false);
        }
        let done = timed("create", self.make_pod(name, &place, values)).await;
        if let Err(err) = done {
            // Why it can't be made says more than why what there is of it can't be removed.
            if let Err(left) = self.remove_place(&place).await {
                tracing::debug!(err = %left, "a cgroup that could not be set up is left");
            }
            return Err(err);
        }
        Ok(true)
    }

    async fn make_pod(
        &self,
        name: &[impl AsRef<str>],
        place: &CgroupPlace,
        values: &PodCgroup,
    ) -> Result<(), CgroupError> {
        let limits = Limits::of_pod(values);
        if place.driver == CgroupDriver::Systemd {
            self.ensure_slices(&[self.slice(name, &limits)]).await?;
        }
        let (this, place) = (self.clone(), place.clone());
        blocking(move || {
            this.create(&place)?;
            this.write(&place, &this.with_all_page_sizes(&place, limits))
        })
        .await
    }

    /// Whether the pod's cgroup is there with every controller that it should have. Always true
    /// when cgroups are not managed (`cgroupsPerQOS: false`), never before the driver is known.
    #[cfg(test)]
    pub(super) fn pod_exists(&self, name: &[impl AsRef<str>]) -> bool {
        let driver = self.inner.driver.borrow().driver;
        !self.inner.per_qos || driver.is_some_and(|driver| self.exists(&self.place(driver, name)))
    }

    /// The `cgroup_parent` of the pod for the runtime: the full path, also of a slice. Empty when
    /// cgroups are not managed. It reads files, so it may block.
    ///
    /// # Errors
    /// When its processes can't be listed.
    pub fn cri_parent(&self, name: &[impl AsRef<str>]) -> Result<String, CgroupError> {
        if !self.inner.per_qos {
            return Ok(String::new());
        }
        let driver = self.inner.driver.borrow().driver.unwrap_or(self.inner.configured);
        let inhabited = self.inhabited(self.places(name))?;
        let place = inhabited.unwrap_or_else(|| self.place(driver, name));
        Ok(place.directories.iter().fold(String::new(), |path, part| path + "/" + part))
    }

    /// The place where a pod's processes are, if there are any. Its shim knows one driver, that of
    /// the time when its sandbox was made: whatever the runtime uses by now, its containers belong
    /// there.
    pub(super) fn inhabited(
        &self,
        places: [CgroupPlace; 2],
    ) -> Result<Option<CgroupPlace>, CgroupError> {
        for place in places {
            if self.is_inhabited(&place)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// The place of `name` under `driver`.
    pub(super) fn place(&self, driver: CgroupDriver, name: &[impl AsRef<str>]) -> CgroupPlace {
        let components = self.inner.root.iter().map(String::as_str);
        let components = components.chain(name.iter().map(AsRef::as_ref));
        CgroupPlace { driver, directories: names::directories(driver, components) }
    }

    /// The places of `name` under every driver: the pod may be from before a change of it.
    pub(super) fn places(&self, name: &[impl AsRef<str>]) -> [CgroupPlace; 2] {
        names::DRIVERS.map(|driver| self.place(driver, name))
    }

    /// The directories in the hierarchies that we make cgroups in.
    fn own_paths(&self, place: &CgroupPlace) -> impl Iterator<Item = PathBuf> {
        self.inner.own.iter().map(|hierarchy| place.in_hierarchy(hierarchy))
    }

    /// The directories in every mounted hierarchy, whether they exist or not.
    pub(super) fn all_paths(&self, place: &CgroupPlace) -> impl Iterator<Item = PathBuf> {
        self.inner.all.iter().map(|hierarchy| place.in_hierarchy(hierarchy))
    }

    /// v1: the freezer's directory of a cgroup. v2: its directory.
    pub(super) fn freezer_path(&self, place: &CgroupPlace) -> Option<PathBuf> {
        let hierarchy = match self.inner.version {
            CgroupVersion::V1 => {
                self.inner.own.iter().find(|h| h.controllers.iter().any(|c| c == "freezer"))
            }
            CgroupVersion::V2 => self.inner.own.first(),
        };
        hierarchy.map(|hierarchy| place.in_hierarchy(hierarchy))
    }

    pub(super) fn is_managed(&self) -> bool {
        self.inner.per_qos
    }

    /// Stops the slice of a place. A place of the cgroupfs driver has none, and where systemd is
    /// not the driver a slice is there only when its directory is.
    pub(super) async fn stop_slice(&self, place: &CgroupPlace) -> Result<(), CgroupError> {
        let Some(slice) = place.last().filter(|_| place.driver == CgroupDriver::Systemd) else {
            return Ok(());
        };
        let in_use = self.inner.driver.borrow().driver == Some(CgroupDriver::Systemd);
        if !in_use && !self.all_paths(place).any(|path| path.is_dir()) {
            return Ok(());
        }
        let stopped = self.inner.systemd.stop(slice).await;
        stopped.map_err(|source| CgroupError::Systemd {
            what: "remove",
            unit: slice.into(),
            source,
        })
    }

    pub(super) fn slice(&self, name: &[impl AsRef<str>], limits: &Limits) -> Slice {
        let components: Vec<&str> = name.iter().map(AsRef::as_ref).collect();
        let description = format!("Kubernetes pods: {}", components.join("/"));
        Slice {
            name: self.place(CgroupDriver::Systemd, name).last().unwrap_or_default().to_owned(),
            made_with: slice::made_with(self.inner.version, description),
            limits: slice::properties(self.inner.version, limits),
        }
    }

    pub(super) async fn ensure_slices(&self, slices: &[Slice]) -> Result<(), CgroupError> {
        let names: Vec<&str> = slices.iter().map(|slice| slice.name.as_str()).collect();
        self.inner.systemd.ensure(slices).await.map_err(|source| CgroupError::Systemd {
            what: "make",
            unit: names.join(", "),
            source,
        })
    }

    /// Whether the directories are there with every controller that they should have.
    fn exists(&self, place: &CgroupPlace) -> bool {
        self.own_paths(place).all(|path| path.is_dir()) && self.has_controllers(place)
    }

    /// Makes the directories (systemd makes those of the controllers that it knows) and hands the
    /// controllers down to them.
    fn create(&self, place: &CgroupPlace) -> Result<(), CgroupError> {
        for hierarchy in &self.inner.own {
            make_directories(hierarchy, place.directories.iter().map(String::as_str))?;
        }
        Ok(())
    }

    /// Whether every v2 controller that the machine has was handed down to the directory.
    fn has_controllers(&self, place: &CgroupPlace) -> bool {
        let (CgroupVersion::V2, Some(unified)) = (self.inner.version, self.inner.own.first())
        else {
            return true;
        };
        let available = v2_controllers(&unified.mount_point);
        let enabled = v2_controllers(&place.in_hierarchy(unified));
        let has = |list: &[String], name: &str| list.iter().any(|c| c == name);
        V2_CONTROLLERS.into_iter().all(|c| !has(&available, c) || has(&enabled, c))
    }

    /// A pod's values with zero for the huge page sizes that it didn't ask for.
    fn with_all_page_sizes(&self, place: &CgroupPlace, mut limits: Limits) -> Limits {
        // A directory that can't be listed shows itself when its values are written.
        let files = self.own_paths(place).filter_map(|path| path.read_dir().ok()).flatten();
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

    pub(super) fn write(&self, place: &CgroupPlace, limits: &Limits) -> Result<(), CgroupError> {
        match self.inner.version {
            CgroupVersion::V1 => {
                for setting in core::settings_v1(limits) {
                    let has =
                        |h: &&Hierarchy| h.controllers.iter().any(|c| c == setting.controller);
                    if let Some(hierarchy) = self.inner.own.iter().find(has) {
                        write_setting(&place.in_hierarchy(hierarchy), &setting)?;
                    }
                }
            }
            CgroupVersion::V2 => {
                let Some(unified) = self.inner.own.first() else { return Ok(()) };
                let available = v2_controllers(&unified.mount_point);
                for setting in core::settings_v2(limits) {
                    if available.iter().any(|c| c == setting.controller) {
                        write_setting(&place.in_hierarchy(unified), &setting)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Does work on the cgroup of a pod, and counts how long it takes.
pub(super) async fn timed<T>(operation: &str, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = work.await;
    let seconds = &metrics().node.cgroup_seconds;
    seconds.with_label_values(&[operation]).observe(begun.elapsed().as_secs_f64());
    done
}

/// Runs file operations off the event loop: the kernel may take its time with them under memory
/// pressure.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, CgroupError> {
    CGROUPS.run(work).await.map_err(|_| CgroupError::Crashed)?
}

pub(super) fn check_name(name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
    match name.iter().find(|component| !names::is_component(component.as_ref())) {
        Some(component) => {
            Err(CgroupError::InvalidName { component: component.as_ref().to_owned() })
        }
        None => Ok(()),
    }
}
