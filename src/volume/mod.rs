//! Volumes of pods on the host: emptyDir (disk and memory), hostPath, NFS, PersistentVolumes of
//! kind hostPath, local and nfs, subPaths, and those whose files the agent writes (configMap,
//! secret, downwardAPI, projected).
//!
//! Owns `<root>/pods/<uid>/{volumes,plugins,volume-subpaths}` (the kubelet's layout, so that tools
//! find what they expect) and removes a pod's directory at the end. `owner` marks the directories
//! that are ours. What is there is read back from disk and from the kernel's mount table, so a
//! restart of the agent loses nothing.
//!
//! Volumes can be written to by containers: paths in them are never trusted (`beneath`), and
//! nothing is ever deleted through a mount that this module didn't make.
//!
//! All functions block (a mount or a `stat` may hang on a dead file system): call them where
//! blocking is allowed.

mod core;
mod files;
mod host_path;
mod local;
mod mounts;
mod nfs;
mod owner;
mod ownership;
mod place;
mod root;
mod sub_path;
mod teardown;
#[cfg(test)]
mod tests;

pub use mounts::{HostMount, MountInputs, MountSource, Propagation, RecursiveReadOnly};
pub use nfs::{NfsFailures, NfsMount};
pub use owner::{Claim, DirOwner};

use crate::{
    model::{PodUid, VolumePlace, k8s},
    podspec::{
        ClaimError, ClaimedVolumes, FilesError, HugePagesError, VolumeFiles, huge_pages,
        hugepage_limits, is_mounted, pod_limits,
    },
};
use core::Plugin;
use ownership::FsGroup;
use place::{Medium, VolumePaths};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;

/// What went wrong with a volume. Texts that users see as they are follow the kubelet's.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// An operation on a path.
    #[error("cannot {operation} {path:?}: {source}")]
    Io {
        /// `create`, `mount`, ...
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why. Part of the text: the text is an event's message.
        source: io::Error,
    },
    /// The root directory's real path is not UTF-8, so the runtime can't be told about it.
    #[error("root directory {path:?} is not valid UTF-8")]
    RootNotUtf8 {
        /// Which.
        path: PathBuf,
    },
    /// An entry of the `mountOptions` of a PersistentVolume.
    #[error(
        "mount option {option:?} has a quotation mark that is not closed, or a control character"
    )]
    MountOption {
        /// As written.
        option: Box<str>,
    },
    /// A file of a volume that would lie outside of it.
    #[error("{path:?} is no valid path for a file of a volume")]
    FilePath {
        /// As written.
        path: String,
    },
    /// A file of a volume that would lie in another file.
    #[error("cannot write {path:?} to the volume: {file:?} is a file of it and no directory")]
    FileAsDirectory {
        /// As written.
        path: String,
        /// The other file's path.
        file: String,
    },
    /// The files of a volume can't be made.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A uid or name that can't be a directory's name.
    #[error("{name:?} is no valid name for a directory")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// A kind that this version doesn't know.
    #[error("no volume plugin matched")]
    UnsupportedKind,
    /// The claim of a volume can't be used.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The path of a local PersistentVolume does not exist, in the kubelet's words.
    #[error("path {path:?} does not exist")]
    NoLocalPath {
        /// The path.
        path: String,
    },
    /// The path of a local PersistentVolume is no directory.
    #[error("only directories are supported as local volumes, and {path:?} is none")]
    LocalPathKind {
        /// The path.
        path: String,
    },
    /// A volume is not mounted that should be.
    #[error("nothing is mounted at {path:?}")]
    NotMounted {
        /// The place.
        path: PathBuf,
    },
    /// An emptyDir medium that this version doesn't know.
    #[error("unknown storage medium {medium:?}")]
    Medium {
        /// As written.
        medium: String,
    },
    /// An emptyDir whose medium needs huge pages that the pod does not have.
    #[error(transparent)]
    HugePages(#[from] HugePagesError),
    /// An NFS volume that is not mounted.
    #[error("{why}")]
    Nfs {
        /// What `mount` says, or what is wrong with the volume.
        why: String,
    },
    /// An unknown `hostPath.type`.
    #[error("{kind} is an invalid volume type")]
    HostPathType {
        /// As written.
        kind: String,
    },
    /// The path is not what `hostPath.type` says.
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPathCheck {
        /// The host's path.
        path: String,
        /// `a directory`, `a file`, ...
        expected: &'static str,
    },
    /// A mount of a volume that the pod doesn't have.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    UnknownVolume {
        /// Volume.
        volume: String,
        /// Container.
        container: String,
    },
    /// An absolute subPath.
    #[error("error SubPath `{sub_path}` must not be an absolute path")]
    AbsoluteSubPath {
        /// As written or expanded.
        sub_path: String,
    },
    /// A subPath with `..`.
    #[error("unable to provision SubPath `{sub_path}`: must not contain '..'")]
    UpwardSubPath {
        /// As written or expanded.
        sub_path: String,
    },
    /// A missing subPath can't be made, in the kubelet's words. The cause tells nothing about the
    /// host's files: no path is followed beyond the volume.
    #[error(
        "failed to create subPath directory for volumeMount {volume:?} of container {container:?}"
    )]
    CreateSubPath {
        /// Volume.
        volume: String,
        /// Container.
        container: String,
        /// Why.
        source: io::Error,
    },
    /// A subPath can't be opened or mounted safely, in the kubelet's words.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    PrepareSubPath {
        /// Volume.
        volume: String,
        /// Container.
        container: String,
        /// Why.
        source: io::Error,
    },
    /// Something is mounted at a volume's place that is not the volume.
    #[error("something else is mounted at {path:?}, the place of a volume of the agent")]
    ForeignMount {
        /// The place.
        path: PathBuf,
    },
    /// Something is mounted where only our own mounts may be, or a mount is still there.
    #[error("{path:?} is still mounted or has mounts below it")]
    StillMounted {
        /// Where.
        path: PathBuf,
    },
    /// A pod's directory was made by another program.
    #[error(
        "{path:?} was not made by this agent and is left alone; remove it to let this pod start"
    )]
    NotOurs {
        /// The pod's directory.
        path: PathBuf,
    },
    /// A volume directory of a pod that is gone is not empty, and is left for a person to look at.
    #[error("orphaned pod {uid:?} found, but failed to rmdir() volume at path {path}: {source}")]
    OrphanVolume {
        /// The pod.
        uid: String,
        /// The volume's directory.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// One volume that couldn't be set up; `Display` is the message of the `FailedMount` event.
#[derive(Debug)]
pub struct MountFailure {
    /// The volume's name.
    pub volume: String,
    /// Why.
    pub error: VolumeError,
}

impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MountVolume.SetUp failed for volume \"{}\" : {}", self.volume, self.error)
    }
}

/// Some volumes of a pod couldn't be set up; the others are.
#[derive(Debug, Error)]
pub struct SetupFailed {
    /// Which and why, in the order of the specification; never empty.
    pub failures: Vec<MountFailure>,
}

impl fmt::Display for SetupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: Vec<&str> = self.failures.iter().map(|f| f.volume.as_str()).collect();
        write!(
            f,
            "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[]",
            failed.join(" ")
        )
    }
}

/// The volumes below one root directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volumes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Real path, without symlinks: it is compared with the mount table. Valid UTF-8.
    root: PathBuf,
    /// Upper bound of memory volumes, in bytes.
    allocatable_memory: Option<i64>,
}

impl Volumes {
    /// Makes the root directory (0750) and `pods` in it where they are missing.
    ///
    /// `allocatable_memory_bytes` bounds every memory volume.
    ///
    /// # Errors
    /// When they can't be made or the path can't be resolved.
    pub fn open(root: &Path, allocatable_memory_bytes: Option<i64>) -> Result<Self, VolumeError> {
        root::make_directory(root)?;
        let root = root.canonicalize().map_err(|source| io_error("resolve", root, source))?;
        if root.to_str().is_none() {
            return Err(VolumeError::RootNotUtf8 { path: root });
        }
        root::make_directory(&root.join("pods"))?;
        let inner = Inner { root, allocatable_memory: allocatable_memory_bytes };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// `<root>/pods/<uid>`, by the root's real path.
    ///
    /// # Errors
    /// For a uid that is no plain file name.
    pub fn pod_dir(&self, uid: &PodUid) -> Result<PathBuf, VolumeError> {
        check_name(uid.as_str())?;
        Ok(self.inner.root.join("pods").join(uid.as_str()))
    }

    /// Makes every volume that a container of the pod mounts. What was set up before (also by an
    /// earlier run of the agent) is left untouched, content included.
    ///
    /// `memory_limit_bytes` is the pod's memory limit, if every container has one. A volume whose
    /// files can't be made keeps those that it has; it fails when it was not set up before.
    ///
    /// # Errors
    /// Names each volume that failed; the others are set up all the same.
    pub fn setup(
        &self,
        pod: &k8s::Pod,
        uid: &PodUid,
        memory_limit_bytes: Option<i64>,
        mut prepared: Prepared,
    ) -> Result<(), SetupFailed> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let mut failures = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            if !is_mounted(spec, &volume.name) {
                continue;
            }
            let inputs = SetupInputs {
                spec,
                memory_limit: memory_limit_bytes,
                claimed: &prepared.claimed,
                in_use: prepared.in_use.contains(&volume.name),
                files: prepared.files.remove(&volume.name),
                nfs_failure: prepared.nfs_failures.remove(&volume.name),
            };
            if let Err(error) = self.setup_one(uid, volume, inputs) {
                failures.push(MountFailure { volume: volume.name.clone(), error });
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(SetupFailed { failures }) }
    }

    /// The emptyDirs that a container of the pod mounts: what the pod uses there is measured in
    /// their directories. No file is looked at.
    ///
    /// # Errors
    /// For names that are no plain file names.
    pub fn empty_dirs(
        &self,
        pod: &k8s::Pod,
        uid: &PodUid,
    ) -> Result<Vec<VolumePlace>, VolumeError> {
        let pod_dir = self.pod_dir(uid)?;
        let mut found = Vec::new();
        let Some(spec) = &pod.spec else { return Ok(found) };
        for volume in spec.volumes.iter().flatten() {
            check_name(&volume.name)?;
            let place = VolumePaths::new(&pod_dir, Plugin::EmptyDir, &volume.name);
            let in_memory = match core::kind_of_volume(volume) {
                Ok(core::VolumeKind::Disk) => false,
                Ok(core::VolumeKind::Memory { .. } | core::VolumeKind::HugePages { .. }) => true,
                // One that was refused is not there.
                Ok(
                    core::VolumeKind::HostPath { .. }
                    | core::VolumeKind::Local { .. }
                    | core::VolumeKind::Files(_)
                    | core::VolumeKind::Image
                    | core::VolumeKind::Nfs { .. },
                )
                | Err(_) => continue,
            };
            if is_mounted(spec, &volume.name) {
                let path = place.directory();
                found.push(VolumePlace { name: volume.name.as_str().into(), in_memory, path });
            }
        }
        Ok(found)
    }

    fn setup_one(
        &self,
        uid: &PodUid,
        volume: &k8s::Volume,
        inputs: SetupInputs<'_>,
    ) -> Result<(), VolumeError> {
        let pod_dir = self.pod_dir(uid)?;
        check_name(&volume.name)?;
        let place = |plugin| VolumePaths::new(&pod_dir, plugin, &volume.name);
        let size =
            |limit| core::tmpfs_size([self.inner.allocatable_memory, inputs.memory_limit, limit]);
        let fs_group = inputs.fs_group();
        match core::kind_of(volume, inputs.claimed)? {
            core::VolumeKind::HostPath { .. } if inputs.in_use => Ok(()),
            core::VolumeKind::HostPath { path, kind, .. } => host_path::check(&path, kind),
            core::VolumeKind::Local { path, read_only, options } => {
                if !inputs.in_use {
                    local::check(&path)?;
                }
                if !options.is_empty() {
                    let directory = place(Plugin::Local).directory();
                    local::mount_at(&directory, &path, &options, read_only)?;
                }
                match inputs.group_of_data().filter(|_| !read_only) {
                    Some(group) => place(Plugin::Local)
                        .once(|| ownership::give_to_group(Path::new(&path), group)),
                    None => Ok(()),
                }
            }
            core::VolumeKind::Image => Ok(()),
            core::VolumeKind::Nfs { .. } => {
                nfs::check(&place(Plugin::Nfs).directory(), inputs.nfs_failure)
            }
            core::VolumeKind::Disk => place(Plugin::EmptyDir).setup(Medium::Disk, fs_group),
            core::VolumeKind::Memory { size_limit } => {
                let medium = Medium::Memory { size: size(size_limit) };
                place(Plugin::EmptyDir).setup(medium, fs_group)
            }
            core::VolumeKind::HugePages { medium, size_limit } => {
                let limits = hugepage_limits(&pod_limits(inputs.spec));
                let pages = huge_pages(&limits, &medium)?;
                let size_limit = size_limit.and_then(|limit| u64::try_from(limit).ok());
                let size = size_limit.unwrap_or(u64::MAX).min(pages.limit_bytes);
                let medium = Medium::HugePages { page_size: pages.page_size_bytes, size };
                place(Plugin::EmptyDir).setup(medium, fs_group)
            }
            core::VolumeKind::Files(plugin) => {
                let medium = match plugin {
                    Plugin::ConfigMap => Medium::Disk,
                    Plugin::EmptyDir
                    | Plugin::Secret
                    | Plugin::DownwardApi
                    | Plugin::Projected
                    | Plugin::Nfs
                    | Plugin::Local => Medium::Memory { size: size(None) },
                };
                let place = place(plugin);
                match inputs.files.unwrap_or_else(|| Ok(VolumeFiles::new())) {
                    Ok(files) => {
                        let mount_points = core::mount_points_in(inputs.spec, &volume.name);
                        place.setup_files(medium, &files, fs_group, &mount_points)
                    }
                    Err(_) if place.is_set_up(medium)? => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// What a volume is set up with.
struct SetupInputs<'a> {
    spec: &'a k8s::PodSpec,
    /// In bytes.
    memory_limit: Option<i64>,
    files: Option<Result<VolumeFiles, FilesError>>,
    nfs_failure: Option<String>,
    claimed: &'a ClaimedVolumes,
    in_use: bool,
}

impl SetupInputs<'_> {
    fn fs_group(&self) -> Option<i64> {
        self.spec.security_context.as_ref()?.fs_group
    }

    /// The group that is to own the data which a volume already has.
    fn group_of_data(&self) -> Option<FsGroup> {
        let context = self.spec.security_context.as_ref()?;
        let policy = context.fs_group_change_policy.as_deref();
        Some(FsGroup {
            group: u32::try_from(context.fs_group?).ok()?,
            on_root_mismatch: policy == Some("OnRootMismatch"),
        })
    }
}

/// What callers of [`Volumes::setup`] do before, by the volume's name.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The files that the agent writes, or why they can't be made.
    pub files: BTreeMap<String, Result<VolumeFiles, FilesError>>,
    /// Why an NFS volume could not be mounted. The others are mounted ([`Volumes::nfs_to_mount`]).
    pub nfs_failures: NfsFailures,
    /// The pod's PersistentVolumes.
    pub claimed: ClaimedVolumes,
    /// The volumes that a running container has, or only init containers that are done. Their paths
    /// on the host were checked before these started, and what has become of them since concerns
    /// nobody.
    pub in_use: BTreeSet<String>,
}

fn check_name(name: &str) -> Result<(), VolumeError> {
    if core::is_component(name) {
        Ok(())
    } else {
        Err(VolumeError::InvalidName { name: name.to_owned() })
    }
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> VolumeError {
    VolumeError::Io { operation, path: path.to_owned(), source }
}
