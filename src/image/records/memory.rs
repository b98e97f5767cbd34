//! What the files say, in memory: pure. The files follow it, each as a whole.
//!
//! ```text
//! begin ─► intent, running ─┬─ succeeded ─► record, no intent
//!                           ├─ failed ────► no intent
//!                           └─ cut off ───► intent, left over ─► look at the images
//!                                             image there: a record of unknown credentials
//!                                             not there, some minutes later: no intent
//! ```

use super::{
    core::{
        ImageAccess, Origin, PullSecret, PulledRecord, PulledWith, decode_intent, encode_intent,
        is_called, judge,
    },
    policy::VerificationPolicy,
};
use crate::{
    image::gc::Present,
    model::{CollectOrdered as _, Now},
};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeSet, time::Duration};

/// One of the files, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordFile {
    /// In `pulled`: the record of an image.
    Pulled(String),
    /// In `pulling`: the intent to pull under a name.
    Pulling(String),
}

/// What was there under the name of an image when a pull began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) enum Before {
    /// Nothing.
    Absent,
    /// The image with this id.
    Present(String),
    /// The runtime did not tell.
    Unknown,
}

/// How a pull has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullEnd {
    /// Its record is on disk.
    Recorded,
    /// The registry or the runtime has refused it.
    Failed,
    /// Nobody knows whether the image has arrived.
    CutOff,
}

/// Everything that the files say, by their names.
#[derive(Debug, Default)]
pub(super) struct PullMemory {
    policy: VerificationPolicy,
    /// Few enough for lists, which take less code than maps.
    pulled: Vec<Remembered>,
    pulling: Vec<Intent>,
    /// The directory can't be read: nobody knows what the agent has pulled.
    unreadable: bool,
}

#[derive(Debug)]
struct Remembered {
    /// The name of the file.
    file: String,
    /// `None`: the file is damaged.
    record: Option<PulledRecord>,
    /// Boot time of the last pull; zero for one by an earlier run of the agent.
    pulled_at: Duration,
}

#[derive(Debug)]
struct Intent {
    /// The name of the file.
    file: String,
    /// `None`: the file is damaged.
    image: Option<String>,
    /// The id of the image that had the name before. It did not come from this pull.
    before: Option<String>,
    /// Pulls that are under way.
    running: u32,
    /// Boot time since which a pull has been cut off; zero for one of an earlier run of the agent.
    cut_off: Option<Duration>,
}

/// The name of the file of an image's reference or name, as the kubelet's.
pub(super) fn file_name(text: &str) -> String {
    format!("sha256-{:x}", Sha256::digest(text))
}

impl PullMemory {
    pub(super) fn new(policy: VerificationPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Takes in a file of `pulled`. Returns false for a damaged one: its image counts as pulled with
    /// credentials that nobody knows.
    pub(super) fn load_record(&mut self, file: String, text: Option<&[u8]>) -> bool {
        let record = text
            .and_then(PulledRecord::decode)
            .filter(|record| file_name(record.image_ref()) == file);
        let usable = record.is_some();
        self.pulled.push(Remembered { file, record, pulled_at: Duration::ZERO });
        usable
    }

    /// Takes in a file of `pulling`, with the id of the image that was there before.
    pub(super) fn load_intent(
        &mut self,
        file: String,
        text: Option<&[u8]>,
        before: Option<String>,
    ) -> bool {
        let image = text.and_then(decode_intent).filter(|image| file_name(image) == file);
        let usable = image.is_some();
        self.pulling.push(Intent {
            file,
            image,
            before,
            running: 0,
            cut_off: Some(Duration::ZERO),
        });
        usable
    }

    /// The files can't be listed: every image counts as pulled.
    pub(super) fn note_unreadable(&mut self) {
        self.unreadable = true;
    }

    /// Whether a pod may use the image with this id, which its manifest calls `image`.
    pub(super) fn judge(
        &self,
        image: &str,
        id: &str,
        called: &[String],
        of_pod: impl FnOnce() -> Vec<PullSecret>,
    ) -> ImageAccess {
        let remembered = self.remembered(&file_name(id));
        let record = remembered.and_then(|remembered| remembered.record.as_ref());
        let origin = match record {
            Some(record) if record.has(image) => Origin::Recorded(record),
            _ if self.unreadable || self.is_being_pulled(image, id) => Origin::Unclear,
            Some(record) => Origin::Recorded(record),
            None if remembered.is_some() => Origin::Unclear,
            None => Origin::Unrecorded,
        };
        judge(&self.policy, image, called, origin, of_pod)
    }

    /// Whether the image may have come from a pull that has no record.
    fn is_being_pulled(&self, image: &str, id: &str) -> bool {
        self.intent(&file_name(image)).is_some_and(|intent| intent.before.as_deref() != Some(id))
    }

    /// Whether an image that is present may have come from a pull, with a record or without one.
    pub(super) fn has_pull_of(&self, image: &Present) -> bool {
        let may_bring = |intent: &Intent| {
            let called = || image.tags.iter().chain(&image.digests);
            intent.before.as_deref() != Some(&image.id)
                && intent.image.as_deref().is_some_and(|name| is_called(name, called()))
        };
        self.remembered(&file_name(&image.id)).is_some() || self.pulling.iter().any(may_bring)
    }

    /// A pull begins.
    pub(super) fn begin(&mut self, image: &str, before: Before) -> RecordFile {
        let file = file_name(image);
        let is_absent = before == Before::Absent;
        let before = match before {
            Before::Present(id) => Some(id),
            Before::Absent | Before::Unknown => None,
        };
        let known = self.pulling.iter().position(|intent| intent.file == file);
        let at = known.unwrap_or(self.pulling.len());
        if known.is_none() {
            let file = file.clone();
            self.pulling.push(Intent { file, image: None, before, running: 0, cut_off: None });
        }
        let intent = &mut self.pulling[at];
        intent.image = Some(image.to_owned());
        intent.running += 1;
        if is_absent {
            // Nothing has come from the pull that was cut off, and nothing of earlier is there.
            (intent.cut_off, intent.before) = (None, None);
        }
        RecordFile::Pulling(file)
    }

    /// A pull has ended. Returns the file if it is to go.
    pub(super) fn end(&mut self, image: &str, end: PullEnd, now: Now) -> Option<RecordFile> {
        let file = file_name(image);
        let at = self.pulling.iter().position(|intent| intent.file == file)?;
        let intent = &mut self.pulling[at];
        intent.running = intent.running.saturating_sub(1);
        match end {
            PullEnd::Recorded => intent.cut_off = None,
            PullEnd::Failed => {}
            PullEnd::CutOff => intent.cut_off = Some(now.boot),
        }
        if intent.running > 0 || intent.cut_off.is_some() {
            return None;
        }
        Some(RecordFile::Pulling(self.pulling.swap_remove(at).file))
    }

    /// The image with this id was pulled as `image`. Returns the file if it is to be written.
    pub(super) fn note_pulled(
        &mut self,
        image: &str,
        id: &str,
        with: PulledWith,
        now: Now,
    ) -> Option<RecordFile> {
        let file = file_name(id);
        let known = self.pulled.iter().position(|remembered| remembered.file == file);
        let at = known.unwrap_or(self.pulled.len());
        if known.is_none() {
            let (file, pulled_at) = (file.clone(), Duration::ZERO);
            self.pulled.push(Remembered { file, record: None, pulled_at });
        }
        let remembered = &mut self.pulled[at];
        remembered.pulled_at = now.boot;
        let was_usable = remembered.record.is_some();
        let record = remembered.record.get_or_insert_with(|| PulledRecord::new(id));
        let changed = record.add(image, with);
        (changed || !was_usable).then_some(RecordFile::Pulled(file))
    }

    /// Follows a listing of the images that began at boot time `began`: pulls that were cut off get
    /// their records, and records of images that are gone go. `settled` tells that the agent has
    /// run for some minutes: what has not arrived from a pull that was cut off does not arrive any
    /// more. Returns the files to write or remove.
    pub(super) fn follow(
        &mut self,
        present: &[Present],
        began: Duration,
        settled: bool,
        now: Now,
    ) -> Vec<RecordFile> {
        // A runtime without any image has most likely lost sight of them.
        if present.is_empty() {
            return Vec::new();
        }
        let mut changed = Vec::new();
        let over: Vec<String> = self
            .pulling
            .iter()
            .filter(|intent| intent.running == 0)
            .filter(|intent| intent.cut_off.is_none_or(|since| since < began))
            .map(|intent| intent.file.clone())
            .collect();
        for file in over {
            let Some(intent) = self.intent(&file) else { continue };
            let (Some(image), before) = (intent.image.clone(), intent.before.clone()) else {
                continue;
            };
            let called = |one: &&Present| is_called(&image, one.tags.iter().chain(&one.digests));
            let ids: Vec<&str> = present.iter().filter(called).map(|one| one.id.as_str()).collect();
            if ids.is_empty() && !settled {
                continue;
            }
            let arrived = ids.into_iter().filter(|id| before.as_deref() != Some(id));
            for id in arrived {
                changed.extend(self.note_pulled(&image, id, PulledWith::Unknown, now));
            }
            self.pulling.retain(|intent| intent.file != file);
            changed.push(RecordFile::Pulling(file));
        }
        let there: BTreeSet<String> =
            present.iter().map(|one| file_name(&one.id)).collect_ordered();
        changed.extend(self.drop_records(began, |file| !there.contains(file)));
        changed
    }

    /// The images with these ids were removed, from boot time `began` on.
    pub(super) fn forget(&mut self, ids: &[&str], began: Duration) -> Vec<RecordFile> {
        let gone: BTreeSet<String> = ids.iter().map(|id| file_name(id)).collect_ordered();
        self.drop_records(began, |file| gone.contains(file))
    }

    /// Records of pulls since `began` stay: the image may be back.
    fn drop_records(
        &mut self,
        began: Duration,
        is_gone: impl Fn(&String) -> bool,
    ) -> Vec<RecordFile> {
        let mut dropped = Vec::new();
        self.pulled.retain(|remembered| {
            let goes = remembered.pulled_at < began && is_gone(&remembered.file);
            if goes {
                dropped.push(RecordFile::Pulled(remembered.file.clone()));
            }
            !goes
        });
        dropped
    }

    /// All files that are to exist.
    pub(super) fn files(&self) -> Vec<RecordFile> {
        let pulled = self.pulled.iter().map(|one| RecordFile::Pulled(one.file.clone()));
        let pulling = self.pulling.iter().map(|one| RecordFile::Pulling(one.file.clone()));
        pulled.chain(pulling).collect()
    }

    fn remembered(&self, file: &str) -> Option<&Remembered> {
        self.pulled.iter().find(|remembered| remembered.file == file)
    }

    fn intent(&self, file: &str) -> Option<&Intent> {
        self.pulling.iter().find(|intent| intent.file == file)
    }

    /// What a file is to hold.
    pub(super) fn content(&self, file: &RecordFile, now: Now) -> FileContent {
        match file {
            RecordFile::Pulled(name) => match self.remembered(name) {
                None => FileContent::Nothing,
                Some(Remembered { record: None, .. }) => FileContent::AsItIs,
                Some(Remembered { record: Some(record), .. }) => {
                    // Without a fraction of the second, as the kubelet's.
                    let updated = Timestamp::from_second(now.wall.as_second()).unwrap_or(now.wall);
                    let text = record.encode(&updated.to_string());
                    FileContent::Text { text, before: None }
                }
            },
            RecordFile::Pulling(name) => match self.intent(name) {
                None => FileContent::Nothing,
                Some(Intent { image: None, .. }) => FileContent::AsItIs,
                Some(Intent { image: Some(image), before, .. }) => {
                    FileContent::Text { text: encode_intent(image), before: before.clone() }
                }
            },
        }
    }
}

/// What a file is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    /// There is to be no file.
    Nothing,
    /// It is damaged, and stays.
    AsItIs,
    /// This text; and for an intent the id of the image that was there before.
    Text { text: Vec<u8>, before: Option<String> },
}
