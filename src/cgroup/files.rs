//! Cgroup directories and files: making, handing controllers down, writing.

use super::{
    CgroupError,
    core::{Hierarchy, Setting},
};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Controllers that a v2 pod cgroup must have, as far as the machine has them.
pub(super) const V2_CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];

/// Makes `parts` below the mount point of `hierarchy`, one by one.
pub(super) fn make_directories<'a>(
    hierarchy: &Hierarchy,
    parts: impl Iterator<Item = &'a str>,
) -> Result<(), CgroupError> {
    let mut path = hierarchy.mount_point.clone();
    let is_cpuset = hierarchy.controllers.iter().any(|c| c == "cpuset");
    for part in parts {
        if hierarchy.unified {
            hand_down(&path)?;
        }
        let parent = path.clone();
        path.push(part);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(CgroupError::Io { operation: "create", path, source }),
        }
        if is_cpuset {
            // A v1 cpuset starts empty and takes no process until it has CPUs and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                inherit(&parent.join(file), path.join(file))?;
            }
        }
    }
    Ok(())
}

/// Enables for the children of a v2 cgroup what it has itself.
fn hand_down(directory: &Path) -> Result<(), CgroupError> {
    let enabled = words(&directory.join("cgroup.subtree_control"));
    let missing: Vec<String> = v2_controllers(directory)
        .into_iter()
        .filter(|controller| !enabled.contains(controller))
        .map(|controller| format!("+{controller}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let path = directory.join("cgroup.subtree_control");
    if write_file(&path, &missing.join(" ")).is_ok() {
        return Ok(());
    }
    // All or nothing is the kernel's rule for one write: find out which can be had. One that we set
    // values with must be; the others (io, misc, rdma, ...) are a courtesy to the runtime.
    for controller in missing {
        if let Err(source) = write_file(&path, &controller)
            && V2_CONTROLLERS.iter().any(|needed| controller.ends_with(needed))
        {
            return Err(CgroupError::Write { path, value: controller, source });
        }
    }
    Ok(())
}

fn inherit(from: &Path, to: PathBuf) -> Result<(), CgroupError> {
    let failed =
        |path: &Path, source| CgroupError::Io { operation: "read", path: path.to_owned(), source };
    if !fs::read_to_string(&to).map_err(|source| failed(&to, source))?.trim().is_empty() {
        return Ok(());
    }
    let value = fs::read_to_string(from).map_err(|source| failed(from, source))?;
    let value = value.trim().to_owned();
    write_file(&to, &value).map_err(|source| CgroupError::Write { path: to, value, source })
}

/// Controllers that a v2 cgroup has; none when it doesn't exist.
pub(super) fn v2_controllers(directory: &Path) -> Vec<String> {
    words(&directory.join("cgroup.controllers"))
}

fn words(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .split_whitespace()
        .map(|word| word.trim_start_matches('+').to_owned())
        .collect()
}

pub(super) fn write_setting(directory: &Path, setting: &Setting) -> Result<(), CgroupError> {
    let path = directory.join(&setting.file);
    match write_file(&path, &setting.value) {
        Err(err) if setting.optional && err.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| CgroupError::Write {
            path,
            value: setting.value.clone(),
            source,
        }),
    }
}

/// Writes in one call, as the kernel wants it, and never creates a file.
pub(super) fn write_file(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}
