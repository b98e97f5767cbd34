//! The pure part: which volumes a pod uses, of which kind, how large a memory volume may get, and
//! which paths are acceptable.

use super::{Propagation, RecursiveReadOnly, VolumeError};
use crate::{
    model::{PersistentSource, Quantity, k8s},
    podspec::{BoundVolume, ClaimedVolumes, all_containers, is_on_huge_pages, nfs_export},
};
use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

/// Longest file name and longest path, in bytes.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4096;

/// What a volume is, as far as this version knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeKind {
    /// A directory of the pod's own on disk.
    Disk,
    /// A tmpfs of the pod's own, with the `sizeLimit` in bytes.
    Memory { size_limit: Option<i64> },
    /// A hugetlbfs of the pod's own, with the medium, and the `sizeLimit` in bytes.
    HugePages { medium: String, size_limit: Option<i64> },
    /// Files that the agent writes.
    Files(Plugin),
    /// A path of the host that must look like `kind`.
    HostPath { path: String, kind: HostPathType, read_only: bool },
    /// A directory of the host that a PersistentVolume of kind `local` names. With mount options it
    /// is mounted for the pod.
    Local { path: String, read_only: bool, options: Vec<Box<str>> },
    /// An image, which the runtime mounts.
    Image,
    /// `SERVER:PATH`, which `mount` mounts with these options.
    Nfs { export: String, read_only: bool, options: Vec<Box<str>> },
}

/// The kinds of volumes that have directories of the pod's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    EmptyDir,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    Nfs,
    Local,
}

impl Plugin {
    /// Those whose content is the agent's to delete.
    pub(super) const OWN: [Self; 5] =
        [Self::EmptyDir, Self::ConfigMap, Self::Secret, Self::DownwardApi, Self::Projected];

    /// Its directory below `volumes` and `plugins`.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io~empty-dir",
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::DownwardApi => "kubernetes.io~downward-api",
            Self::Projected => "kubernetes.io~projected",
            Self::Nfs => "kubernetes.io~nfs",
            Self::Local => "kubernetes.io~local-volume",
        }
    }
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostPathType {
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl HostPathType {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// What `volume` is. For a volume that a claim provides, it is the source of its PersistentVolume.
pub(super) fn kind_of(
    volume: &k8s::Volume,
    claimed: &ClaimedVolumes,
) -> Result<VolumeKind, VolumeError> {
    match claimed.get(&volume.name) {
        Some(Ok(bound)) => kind_of_bound(bound),
        Some(Err(error)) => Err(error.clone().into()),
        None => kind_of_volume(volume),
    }
}

fn kind_of_bound(bound: &BoundVolume) -> Result<VolumeKind, VolumeError> {
    let options = &bound.volume.mount_options;
    if let Some(option) = options.iter().find(|option| !is_complete(option)) {
        return Err(VolumeError::MountOption { option: option.clone() });
    }
    // Without this, the runtime would mount it writable in the container.
    let read_only = bound.read_only || single_options(options).any(|option| option == "ro");
    match &bound.volume.source {
        PersistentSource::HostPath { path, kind } => host_path(path, kind, read_only),
        PersistentSource::Local { path } => {
            Ok(VolumeKind::Local { path: path.to_string(), read_only, options: options.clone() })
        }
        PersistentSource::Nfs { server, path, read_only: always } => {
            nfs(server, path, read_only || *always, options.clone())
        }
        PersistentSource::Other(_) => Err(VolumeError::UnsupportedKind),
    }
}

/// A quotation mark that is left open would make the agent's own options, which come behind it, a
/// part of a value.
fn is_complete(option: &str) -> bool {
    option.matches('"').count().is_multiple_of(2) && !option.contains(char::is_control)
}

/// Mount options one by one: an entry of `mountOptions` may hold several.
pub(super) fn single_options(options: &[Box<str>]) -> impl Iterator<Item = &str> {
    options.iter().flat_map(|entry| entry.split(',')).filter(|option| !option.is_empty())
}

fn host_path(path: &str, kind: &str, read_only: bool) -> Result<VolumeKind, VolumeError> {
    let parsed = HostPathType::parse(kind);
    let kind = parsed.ok_or_else(|| VolumeError::HostPathType { kind: kind.to_owned() })?;
    Ok(VolumeKind::HostPath { path: path.to_owned(), kind, read_only })
}

fn nfs(
    server: &str,
    path: &str,
    read_only: bool,
    options: Vec<Box<str>>,
) -> Result<VolumeKind, VolumeError> {
    let export =
        nfs_export(server, path).map_err(|error| VolumeError::Nfs { why: error.to_string() })?;
    Ok(VolumeKind::Nfs { export, read_only, options })
}

/// What `volume` is. A volume without any source is an emptyDir, as the API defaults it.
pub(super) fn kind_of_volume(volume: &k8s::Volume) -> Result<VolumeKind, VolumeError> {
    if let Some(source) = &volume.host_path {
        return host_path(&source.path, source.type_.as_deref().unwrap_or(""), false);
    }
    if volume.image.is_some() {
        return Ok(VolumeKind::Image);
    }
    if let Some(source) = &volume.nfs {
        let read_only = source.read_only.unwrap_or(false);
        return nfs(&source.server, &source.path, read_only, Vec::new());
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let limit = empty_dir.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
        let size_limit = limit.map(Quantity::value).filter(|bytes| *bytes > 0);
        return match empty_dir.medium.as_deref().unwrap_or("") {
            "" => Ok(VolumeKind::Disk),
            "Memory" => Ok(VolumeKind::Memory { size_limit }),
            medium if is_on_huge_pages(medium) => {
                Ok(VolumeKind::HugePages { medium: medium.to_owned(), size_limit })
            }
            medium => Err(VolumeError::Medium { medium: medium.to_owned() }),
        };
    }
    let written = [
        (Plugin::ConfigMap, volume.config_map.is_some()),
        (Plugin::Secret, volume.secret.is_some()),
        (Plugin::DownwardApi, volume.downward_api.is_some()),
        (Plugin::Projected, volume.projected.is_some()),
    ];
    if let Some((plugin, _)) = written.into_iter().find(|(_, given)| *given) {
        return Ok(VolumeKind::Files(plugin));
    }
    let bare = k8s::Volume { name: volume.name.clone(), ..k8s::Volume::default() };
    if *volume == bare { Ok(VolumeKind::Disk) } else { Err(VolumeError::UnsupportedKind) }
}

/// `size=` of a tmpfs in bytes: the smallest of what the node, the pod and the volume allow.
/// `None` when nothing bounds it.
pub(super) fn tmpfs_size(bounds: [Option<i64>; 3]) -> Option<i64> {
    bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// Permissions that `fsGroup` adds to those of a directory: everything for the group, and its
/// files inherit the group.
pub(super) fn with_group_access(mode: u32) -> u32 {
    mode | 0o2770
}

/// A name that is one plain path component: it becomes a directory's name under the root.
pub(super) fn is_component(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
}

/// Refuses a subPath that is absolute or goes up.
pub(super) fn check_sub_path(sub_path: &str) -> Result<(), VolumeError> {
    if sub_path.starts_with('/') {
        return Err(VolumeError::AbsoluteSubPath { sub_path: sub_path.to_owned() });
    }
    if sub_path.split('/').any(|part| part == "..") {
        return Err(VolumeError::UpwardSubPath { sub_path: sub_path.to_owned() });
    }
    Ok(())
}

/// Refuses the path of a file that would leave the volume, or take the place of the links in it.
pub(super) fn check_file_path(path: &str) -> Result<(), VolumeError> {
    let fits = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME;
    if path.len() <= MAX_PATH && !path.starts_with("..") && path.split('/').all(fits) {
        Ok(())
    } else {
        Err(VolumeError::FilePath { path: path.to_owned() })
    }
}

/// Where containers mount other volumes inside a volume, as paths below it.
pub(super) fn mount_points_in(spec: &k8s::PodSpec, volume: &str) -> BTreeSet<PathBuf> {
    let mut points = BTreeSet::new();
    for container in all_containers(spec) {
        let mounts = || container.volume_mounts.iter().flatten();
        let is_whole = |mount: &&k8s::VolumeMount| {
            mount.sub_path.as_deref().unwrap_or_default().is_empty()
                && mount.sub_path_expr.as_deref().unwrap_or_default().is_empty()
        };
        for outer in mounts().filter(|mount| mount.name == volume).filter(is_whole) {
            let outer = below_root(&outer.mount_path);
            let inner = mounts().map(|mount| below_root(&mount.mount_path));
            let inside = inner.filter_map(|path| Some(path.strip_prefix(&outer).ok()?.to_owned()));
            // The names that begin with two dots are those of the files' own directories.
            let is_own = |path: &PathBuf| path.to_string_lossy().starts_with("..");
            points.extend(inside.filter(|path| path.iter().next().is_some() && !is_own(path)));
        }
    }
    points
}

/// A path in a container, without the root and without `.` and `..`.
fn below_root(path: &str) -> PathBuf {
    let mut below = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => below.push(part),
            Component::ParentDir => drop(below.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    below
}

/// The path in the container, made absolute.
pub(super) fn container_path(mount_path: &str) -> String {
    if mount_path.starts_with('/') { mount_path.to_owned() } else { format!("/{mount_path}") }
}

/// `mountPropagation`; absent is private.
pub(super) fn propagation(mount: &k8s::VolumeMount) -> Propagation {
    match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => Propagation::HostToContainer,
        Some("Bidirectional") => Propagation::Bidirectional,
        Some(_) | None => Propagation::Private,
    }
}

/// `recursiveReadOnly`; `Disabled` and absent are none.
pub(super) fn recursive_read_only(mount: &k8s::VolumeMount) -> Option<RecursiveReadOnly> {
    match mount.recursive_read_only.as_deref() {
        Some("Enabled") => Some(RecursiveReadOnly::Enabled),
        Some("IfPossible") => Some(RecursiveReadOnly::IfPossible),
        Some(_) | None => None,
    }
}
