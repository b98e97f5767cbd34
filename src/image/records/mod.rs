//! Records of image pulls: which credentials have pulled each image, so that a pod does not use an
//! image that was pulled with credentials which the pod does not have.
//!
//! ```text
//! <root>/image_manager/pulling/sha256-HEX   a pull is under way: HEX is of the image's name
//! <root>/image_manager/pulling/before-HEX   the id of the image that had the name before
//! <root>/image_manager/pulled/sha256-HEX    who has pulled the image: HEX is of its id
//! ```
//!
//! Apart from `before`, names and content are those of the kubelet, which can go on with them.
//! `core`, `memory` and `policy` (pure) decide; here are the files. They are read once, at the
//! start. A file is replaced as a whole, and follows what is in memory. A file that can't be written
//! stops no pull.

mod core;
mod memory;
mod policy;
#[cfg(test)]
mod tests;

pub(super) use core::{ImageAccess, PullSecret, PulledWith};
pub(super) use memory::Before;
pub use policy::{AllowedImages, AllowedImagesError, VerificationPolicy};

use self::memory::{FileContent, PullEnd, PullMemory, RecordFile};
use super::gc::Present;
use crate::{
    blocking::PULL_RECORDS,
    clock,
    cri::ImageFound,
    files::{self, read_regular},
};
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The largest record that is read, in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// How the names of records begin.
const RECORD: &str = "sha256-";
/// How the names of the files begin that tell what was there before a pull.
const BEFORE: &str = "before-";
/// How the names of unfinished files end, as the kubelet's, which passes them over.
const UNFINISHED: &str = ".tmp";

/// The records of all pulls of the node. Clones share them.
#[derive(Clone, Debug)]
pub struct PullRecords {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    memory: Mutex<PullMemory>,
    /// Held while a file is written: the last one to write has the latest content.
    files: Mutex<()>,
}

impl PullRecords {
    /// Reads what lies in `dir`. A file that can't be read is named in the log.
    #[must_use]
    pub fn load(dir: PathBuf, policy: VerificationPolicy) -> Self {
        let mut memory = PullMemory::new(policy);
        let damaged = |path: &Path| {
            tracing::warn!(
                "the pull record {path:?} is damaged: pods need credentials for its image"
            );
        };
        for (name, path, text) in record_files(&dir.join("pulled"), &mut memory) {
            if !memory.load_record(name, text.as_deref()) {
                damaged(&path);
            }
        }
        for (name, path, text) in record_files(&dir.join("pulling"), &mut memory) {
            let before = read_regular(&before_path(&path), MAX_RECORD_BYTES).ok();
            let before = before.and_then(|id| String::from_utf8(id).ok());
            if !memory.load_intent(name, text.as_deref(), before) {
                damaged(&path);
            }
        }
        let shared = Shared { dir, memory: Mutex::new(memory), files: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Whether a pod may use an image that is present. `image` is its name in the manifest, and
    /// `of_pod` gives the Secrets of the pod that match it.
    pub(super) fn judge(
        &self,
        image: &str,
        found: &ImageFound,
        of_pod: impl FnOnce() -> Vec<PullSecret>,
    ) -> ImageAccess {
        self.memory().judge(image, &found.id, &found.names, of_pod)
    }

    /// A pull of `image` begins.
    ///
    /// # Cancel safety
    /// Dropping it is as dropping the [`Pulling`].
    pub(super) async fn begin(&self, image: &str, before: Before) -> Pulling {
        let file = self.memory().begin(image, before);
        let pulling = Pulling { records: self.clone(), image: image.to_owned(), over: false };
        self.write(vec![file]).await;
        pulling
    }

    /// The image with this id belongs to what `with` can pull. Returns false when that is not on
    /// disk.
    pub(super) async fn add(&self, image: &str, id: &str, with: PulledWith) -> bool {
        let file = self.memory().note_pulled(image, id, with, clock::now());
        self.write(file.into_iter().collect()).await
    }

    /// Follows a listing of the images that began at boot time `began`. Records of images that are
    /// gone are removed. `settled` tells that the agent has run for some minutes.
    pub async fn follow(&self, present: &[Present], began: Duration, settled: bool) {
        let files = self.memory().follow(present, began, settled, clock::now());
        self.write(files).await;
    }

    /// Whether a pull of the image is on record, or it may have come from one that has no record yet.
    #[must_use]
    pub fn has_pull_of(&self, image: &Present) -> bool {
        self.memory().has_pull_of(image)
    }

    /// The images with these ids were removed, from boot time `began` on.
    pub async fn forget(&self, ids: &[&str], began: Duration) {
        let files = self.memory().forget(ids, began);
        self.write(files).await;
    }

    /// Writes every file once more: they may be lost.
    pub async fn save_again(&self) {
        let files = self.memory().files();
        self.write(files).await;
    }

    async fn write(&self, files: Vec<RecordFile>) -> bool {
        if files.is_empty() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let write = move || files.iter().filter(|file| !shared.write(file)).count() == 0;
        PULL_RECORDS.run(write).await.unwrap_or(false)
    }

    fn memory(&self) -> MutexGuard<'_, PullMemory> {
        self.shared.memory()
    }
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, PullMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file what it is to be. Returns false, and logs it, when that fails.
    fn write(&self, file: &RecordFile) -> bool {
        let _turn = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let content = self.memory().content(file, clock::now());
        let path = match file {
            RecordFile::Pulled(name) => self.dir.join("pulled").join(name),
            RecordFile::Pulling(name) => self.dir.join("pulling").join(name),
        };
        let written = match content {
            FileContent::AsItIs => Ok(()),
            FileContent::Nothing => match file {
                RecordFile::Pulled(_) => remove(&path),
                RecordFile::Pulling(_) => remove(&path).and_then(|()| remove(&before_path(&path))),
            },
            FileContent::Text { text, before } => match (file, before) {
                (RecordFile::Pulled(_), _) => Ok(()),
                (RecordFile::Pulling(_), Some(id)) => replace(&before_path(&path), id.as_bytes()),
                (RecordFile::Pulling(_), None) => remove(&before_path(&path)),
            }
            .and_then(|()| replace(&path, &text)),
        };
        written
            .inspect_err(|err| tracing::warn!(%err, "cannot write the pull record {path:?}"))
            .is_ok()
    }
}

/// A pull that is under way. If it is dropped before its end is known, its image counts as pulled
/// with credentials that nobody knows.
#[derive(Debug)]
pub(super) struct Pulling {
    records: PullRecords,
    image: String,
    over: bool,
}

impl Pulling {
    /// It has brought the image with this id.
    pub(super) async fn succeeded(self, id: &str, with: PulledWith) {
        // Without its record on disk the pull stays noted as cut off.
        if self.records.add(&self.image, id, with).await {
            self.end(PullEnd::Recorded).await;
        }
    }

    /// It has brought nothing.
    pub(super) async fn failed(self) {
        self.end(PullEnd::Failed).await;
    }

    async fn end(mut self, end: PullEnd) {
        self.over = true;
        let file = self.records.memory().end(&self.image, end, clock::now());
        self.records.write(file.into_iter().collect()).await;
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if !self.over {
            // Its file stays.
            self.records.memory().end(&self.image, PullEnd::CutOff, clock::now());
        }
    }
}

/// The name, the path and the text of each record in a directory. Unfinished files are removed.
fn record_files(dir: &Path, memory: &mut PullMemory) -> Vec<(String, PathBuf, Option<Vec<u8>>)> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(err) => {
            tracing::warn!(%err, "cannot read {dir:?}: pods need credentials for every image");
            memory.note_unreadable();
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(UNFINISHED) {
            if let Err(err) = fs::remove_file(&path) {
                tracing::warn!(%err, "cannot remove the unfinished {path:?}");
            }
        } else if name.starts_with(RECORD) {
            let text = read_regular(&path, MAX_RECORD_BYTES).ok();
            found.push((name.to_owned(), path.clone(), text));
        }
    }
    found
}

fn before_path(intent: &Path) -> PathBuf {
    let name = intent.file_name().unwrap_or_default().to_string_lossy();
    intent.with_file_name(format!("{BEFORE}{}", name.strip_prefix(RECORD).unwrap_or(&name)))
}

/// Replaces a file durably. A record that a loss of power takes away would have its image used by
/// every pod, or, when it is cut short, by none.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    files::replace(path, UNFINISHED, content)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
