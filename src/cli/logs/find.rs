//! Where the logs of a pod lie: `<dir>/<namespace>_<name>_<uid>/<container>/<n>.log`, with files
//! set aside by rotation beside them (`0.log.20261120-100000`, older ones `.gz`).

use crate::model::PodKey;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The directory of one incarnation of a pod.
#[derive(Clone, Debug)]
pub(super) struct PodLogs {
    pub(super) key: PodKey,
    pub(super) uid: String,
    pub(super) path: PathBuf,
    /// When a container or a log file was last added.
    pub(super) changed: Option<SystemTime>,
}

/// The files of one run of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// The file being written; absent in the moment of a rotation.
    pub(super) current: Option<PathBuf>,
    /// Set aside, oldest first.
    pub(super) rotated: Vec<PathBuf>,
    /// Set aside and compressed.
    pub(super) compressed: usize,
}

/// Every pod that has logs. A directory that is missing has none.
pub(super) fn pods(dir: &Path) -> io::Result<Vec<PodLogs>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        let Some((namespace, rest)) = name_of(&path).split_once('_') else { continue };
        let Some((name, uid)) = rest.split_once('_') else { continue };
        if namespace.is_empty() || name.is_empty() || !path.is_dir() {
            continue;
        }
        let changed = newest(&path)?;
        let (key, uid) = (PodKey::new(namespace, name), uid.to_owned());
        found.push(PodLogs { key, uid, path, changed });
    }
    Ok(found)
}

/// When anything was added in a pod's directory or one of its containers'.
fn newest(pod: &Path) -> io::Result<Option<SystemTime>> {
    let times = entries(pod)?.into_iter().chain([pod.to_owned()]);
    Ok(times.filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max())
}

/// The containers that have logs, by name.
pub(super) fn containers(pod: &Path) -> io::Result<Vec<String>> {
    let found = entries(pod)?.into_iter().filter(|path| path.is_dir());
    let mut names: Vec<String> = found.map(|path| name_of(&path).to_owned()).collect();
    names.sort();
    Ok(names)
}

/// The runs of a container, by restart count.
pub(super) fn runs(container: &Path) -> io::Result<BTreeMap<u32, Run>> {
    let mut runs: BTreeMap<u32, Run> = BTreeMap::new();
    for path in entries(container)? {
        let Some((number, rest)) = name_of(&path).split_once(".log") else { continue };
        let Ok(number) = number.parse() else { continue };
        match rest {
            "" => runs.entry(number).or_default().current = Some(path),
            rest if rest.ends_with(".tmp") => {}
            rest if rest.ends_with(".gz") => runs.entry(number).or_default().compressed += 1,
            rest if rest.starts_with('.') => {
                runs.entry(number).or_default().rotated.push(path);
            }
            _ => {}
        }
    }
    for run in runs.values_mut() {
        run.rotated.sort();
    }
    Ok(runs)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}
