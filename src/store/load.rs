//! Everything that an earlier run of the agent left, read once at start.

use super::{PodRecord, files};
use crate::model::{PodKey, SourceKind};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, path::Path};

/// What was found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Pod records by name; never an empty list.
    pub pods: BTreeMap<PodKey, Vec<PodRecord>>,
    /// What [`super::Store::put_source`] saved last.
    pub sources: BTreeMap<SourceKind, LoadedSource>,
    /// What [`super::Store::put_evictions`] saved last.
    pub evictions: Option<serde_json::Value>,
    /// What [`super::Store::put_memory`] saved last, since the last reboot: as text, which is a tenth of the values.
    pub memory: BTreeMap<PodKey, Box<RawValue>>,
    /// What [`super::Store::put_images`] saved last.
    pub images: Option<serde_json::Value>,
}

/// Name of both files with the pods that were evicted.
pub(super) const EVICTIONS: &str = "evictions.json";

/// The saved state of a source.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LoadedSource {
    /// Never saved.
    #[default]
    None,
    /// Was saved, and is damaged or can't be read.
    Lost,
    /// As it was saved.
    Saved(serde_json::Value),
}

/// What a file of [`super::Store::put_memory`] holds: the file's name does not tell a long key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory<T> {
    pub key: PodKey,
    pub memory: T,
}

/// Name of the file that a source's last good manifests are in.
pub(super) fn source_file(kind: SourceKind) -> &'static str {
    match kind {
        SourceKind::File => "sources.json",
        SourceKind::Http => "sources-http.json",
    }
}

/// Name of the file with what is remembered of images.
pub(super) const IMAGES_FILE: &str = "images.json";

/// Reads all state files; the sentences tell what could not be used.
pub(super) fn all(state_dir: &Path, memory_dir: &Path) -> (Loaded, Vec<String>) {
    let mut loaded = Loaded::default();
    let mut found = Vec::new();
    for path in files::json_files(&state_dir.join("pods")) {
        match files::read::<Vec<PodRecord>>(&path) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) => found.push(sentence),
            files::Read::Content(records) => {
                for record in records {
                    loaded.pods.entry(record.key.clone()).or_default().push(record);
                }
            }
        }
    }
    for kind in [SourceKind::File, SourceKind::Http] {
        let source = match files::read(&state_dir.join(source_file(kind))) {
            files::Read::Missing => LoadedSource::None,
            files::Read::Damaged(sentence) => {
                found.push(sentence);
                LoadedSource::Lost
            }
            files::Read::Content(state) => LoadedSource::Saved(state),
        };
        loaded.sources.insert(kind, source);
    }
    // The one that a reboot takes away is the newer one, where there is one.
    for path in [memory_dir.with_file_name(EVICTIONS), state_dir.join(EVICTIONS)] {
        match files::read(&path) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) => found.push(sentence),
            files::Read::Content(evictions) => {
                loaded.evictions.get_or_insert(evictions);
            }
        }
    }
    match files::read(&state_dir.join(IMAGES_FILE)) {
        files::Read::Missing => {}
        files::Read::Damaged(sentence) => found.push(sentence),
        files::Read::Content(images) => loaded.images = Some(images),
    }
    for path in files::json_files(memory_dir) {
        match files::read::<Memory<Box<RawValue>>>(&path) {
            files::Read::Missing => {}
            files::Read::Damaged(sentence) => found.push(sentence),
            files::Read::Content(Memory { key, memory }) => {
                loaded.memory.insert(key, memory);
            }
        }
    }
    (loaded, found)
}
