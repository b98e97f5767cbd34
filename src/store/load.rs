//! Everything that an earlier run of the agent left, read once at start.

use super::{
    PodRecord,
    files::{self, Belief},
};
use crate::{
    model::{PodKey, SourceKind},
    plan::Rollout,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fs, path::Path};

#[derive(Debug, Default)]
pub struct Loaded {
    /// Pod records by name; never an empty list.
    pub pods: BTreeMap<PodKey, Vec<PodRecord>>,
    /// What [`super::Store::put_rollout`] saved last.
    pub rollouts: BTreeMap<PodKey, Rollout>,
    /// What [`super::Store::put_source`] saved last.
    pub sources: BTreeMap<SourceKind, LoadedSource>,
    /// What [`super::Store::put_evictions`] saved last.
    pub evictions: Option<serde_json::Value>,
    /// What [`super::Store::put_answers`] saved last.
    pub answers: Option<serde_json::Value>,
    /// What [`super::Store::put_conditions`] saved last, since the last reboot.
    pub conditions: Option<serde_json::Value>,
    /// What [`super::Store::put_memory`] saved last, since the last reboot: as text, which is a
    /// tenth of the values.
    pub memory: BTreeMap<PodKey, Box<RawValue>>,
    /// What [`super::Store::put_images`] saved last.
    pub images: Option<serde_json::Value>,
}

/// A saved value as the type that it was saved from. Logs a value that does not fit, and gives the
/// default in its place. `what` names the value in the log: `the saved eviction records`.
#[must_use]
pub fn parse_saved<T: DeserializeOwned + Default>(
    saved: Option<serde_json::Value>,
    what: &str,
) -> T {
    let parsed = saved.map(serde_json::from_value).transpose();
    let parsed = parsed.inspect_err(|err| tracing::warn!(%err, "{what} can't be used"));
    parsed.ok().flatten().unwrap_or_default()
}

/// Name of both files with the pods that were evicted.
pub(super) const EVICTIONS: &str = "evictions.json";

/// Name of the file with the answers of the API server with which containers of its pods start.
pub(super) const ANSWERS: &str = "answers.json";

/// Name of the file with the node's conditions.
pub(super) const CONDITIONS: &str = "conditions.json";

#[derive(Clone, Debug, Default, PartialEq)]
pub enum LoadedSource {
    /// Never saved.
    #[default]
    None,
    /// Was saved, and is damaged or can't be read.
    Lost,
    Saved(serde_json::Value),
}

/// What a file of [`super::Store::put_memory`] holds: the file's name does not tell a long key.
#[derive(Serialize, Deserialize)]
pub(super) struct MemoryFile<T> {
    pub key: PodKey,
    /// The boot in which it was written; empty in the file of an earlier release. Its times count
    /// from that boot.
    #[serde(default)]
    pub boot_id: String,
    pub memory: T,
}

impl<T> MemoryFile<T> {
    /// Whether a reboot has come in between: the run directory may lie on a disk that keeps it.
    fn is_of_another_boot(&self, boot_id: &str) -> bool {
        !self.boot_id.is_empty() && self.boot_id != boot_id
    }
}

/// Removes a file of another boot. Where that fails, it is not believed at the next start either.
fn remove(path: &Path) {
    if let Err(err) = fs::remove_file(path) {
        tracing::warn!(%err, "cannot remove {path:?}, which is of another boot");
    }
}

/// Name of the directory with a file for each pod that has a revision to go back to.
pub(super) const ROLLOUTS: &str = "rollouts";

/// What a file of [`super::Store::put_rollout`] holds.
#[derive(Serialize, Deserialize)]
pub(super) struct RolloutFile {
    pub key: PodKey,
    pub rollout: Rollout,
}

/// Name of the file that a source's last good manifests are in. Pods of the API server are kept in
/// their records alone.
pub(super) fn source_file(kind: SourceKind) -> Option<&'static str> {
    match kind {
        SourceKind::File => Some("sources.json"),
        SourceKind::Http => Some("sources-http.json"),
        SourceKind::Api => None,
    }
}

/// Name of the file with what is remembered of images.
pub(super) const IMAGES_FILE: &str = "images.json";

/// Sentences about files of another agent; more are counted.
const FOREIGN_TOLD: usize = 3;

/// Reads all state files; the sentences tell what could not be used. Files in the run directory are
/// believed as far as `belief` says: another agent may have used it.
pub(super) fn all(
    state_dir: &Path,
    memory_dir: &Path,
    belief: Belief<'_>,
    boot_id: &str,
) -> (Loaded, Vec<String>) {
    let mut loaded = Loaded::default();
    let mut found = Vec::new();
    let mut foreign = Vec::new();
    for path in files::json_files(&state_dir.join("pods")) {
        match files::read::<Vec<PodRecord>>(&path, Belief::All) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) | files::Read::Foreign(sentence) => found.push(sentence),
            files::Read::Content(records) => {
                for record in records {
                    loaded.pods.entry(record.key.clone()).or_default().push(record);
                }
            }
        }
    }
    for path in files::json_files(&state_dir.join(ROLLOUTS)) {
        match files::read::<RolloutFile>(&path, Belief::All) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) | files::Read::Foreign(sentence) => found.push(sentence),
            files::Read::Content(file) => drop(loaded.rollouts.insert(file.key, file.rollout)),
        }
    }
    for kind in [SourceKind::File, SourceKind::Http] {
        let Some(file) = source_file(kind) else { continue };
        let source = match files::read(&state_dir.join(file), Belief::All) {
            files::Read::Missing => LoadedSource::None,
            files::Read::Damaged(sentence) | files::Read::Foreign(sentence) => {
                found.push(sentence);
                LoadedSource::Lost
            }
            files::Read::Content(state) => LoadedSource::Saved(state),
        };
        loaded.sources.insert(kind, source);
    }
    // The one that a reboot takes away is the newer one, where there is one.
    let run = memory_dir.with_file_name(EVICTIONS);
    for (path, belief) in [(run, belief), (state_dir.join(EVICTIONS), Belief::All)] {
        match files::read(&path, belief) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) => found.push(sentence),
            files::Read::Foreign(sentence) => foreign.push(sentence),
            files::Read::Content(evictions) => {
                loaded.evictions.get_or_insert(evictions);
            }
        }
    }
    match files::read(&memory_dir.with_file_name(CONDITIONS), belief) {
        files::Read::Missing => {}
        files::Read::Damaged(sentence) => found.push(sentence),
        files::Read::Foreign(sentence) => foreign.push(sentence),
        files::Read::Content(conditions) => loaded.conditions = Some(conditions),
    }
    match files::read(&state_dir.join(ANSWERS), Belief::All) {
        files::Read::Missing => {}
        files::Read::Damaged(sentence) | files::Read::Foreign(sentence) => found.push(sentence),
        files::Read::Content(answers) => loaded.answers = Some(answers),
    }
    match files::read(&state_dir.join(IMAGES_FILE), Belief::All) {
        files::Read::Missing => {}
        files::Read::Damaged(sentence) | files::Read::Foreign(sentence) => found.push(sentence),
        files::Read::Content(images) => loaded.images = Some(images),
    }
    for path in files::json_files(memory_dir) {
        match files::read::<MemoryFile<Box<RawValue>>>(&path, belief) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) => found.push(sentence),
            files::Read::Foreign(sentence) => foreign.push(sentence),
            files::Read::Content(file) if file.is_of_another_boot(boot_id) => remove(&path),
            files::Read::Content(MemoryFile { key, memory, .. }) => {
                loaded.memory.insert(key, memory);
            }
        }
    }
    let more = foreign.len().saturating_sub(FOREIGN_TOLD);
    found.extend(foreign.into_iter().take(FOREIGN_TOLD));
    if more > 0 {
        found.push(format!("{more} more files of other agents were set aside in {memory_dir:?}"));
    }
    (loaded, found)
}
