//! Decides which pods a source wants, from what one look at it showed and what was accepted before.
//!
//! ```text
//!              its manifest is valid
//!  (nothing) ──────────────────────────► wanted ◄───────────────┐
//!                                         │  ▲                  │ valid again
//!            broken, unreadable, settling,│  └──────────────────┤
//!            duplicated, directory gone   ▼                     │
//!                                     last good ── forget ─► (nothing)
//!                                         │
//!      cleanly gone in two agreeing looks ▼
//!                                     (nothing)
//! ```
//!
//! Invariant: a pod leaves only when a directory that is known to be the right one was listed
//! without it twice, at least [`AGREEMENT`] apart, with the same files both times, and its file, if
//! it is still there, had no mistakes; or when a person says so. Invariant: what a broken file says
//! about a pod never replaces or removes that pod. Invariant: a saved manifest alone starts nothing. A pod that was only saved, or whose manifest
//! is missing and may be removed, is unconfirmed until a look has settled the matter: it keeps what
//! runs, see [`SourceSnapshot::unconfirmed`]. Invariant: while a last good revision is refused
//! (another version or configuration has read it again), the source does not know everything, so
//! that nothing is removed: its pod can't be wanted, and may run. Invariant: the same holds for a
//! pod that an earlier run of the agent admitted and whose manifest was not saved.

mod budget;
mod claims;
mod objects;
mod report;
mod saved;

pub(super) use budget::Budget;
pub use objects::ObjectDocument;
pub use saved::{Saved, SavedRefusal};

use crate::{
    desired::{Knowledge, SourceSnapshot},
    model::{
        CollectOrdered as _, DesiredPod, NodeObjects, Now, Origin, PodKey, Position, Problem,
        SourceKind, SourceView,
    },
};
use claims::{Claims, Decision};
use objects::Objects;
use saved::Unusable;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Two looks that agree on a removal are at least this far apart.
pub const AGREEMENT: Duration = Duration::from_millis(200);
/// A file whose size and times hold for this long counts as written, unless a writer has it open.
pub const SETTLING: Duration = Duration::from_millis(100);
/// A writer that has written nothing for this long no longer keeps its file from being read. A file
/// that is still being written this long after the first look no longer delays the start of its
/// last good pods.
pub const LONGEST_WRITE: Duration = Duration::from_secs(10);

/// What tells one directory from another one at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds since 1970 at which the directory was made, where the file system knows: inode
    /// numbers are given out again at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<i64>,
    /// The source is one file; this is the directory that it lies in.
    #[serde(default)]
    pub single_file: bool,
}

/// What one look showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    pub place: SourcePlace,
    /// Sorted by name.
    pub files: Vec<Listed>,
}

/// Whether there was something to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePlace {
    /// This directory was listed whole.
    Here(Identity),
    /// It could not be, and why: missing, unreadable, not answering.
    Away(String),
}

/// One entry of a directory, or the body of a URL.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Name in the directory; empty for the body of a URL.
    pub name: Box<str>,
    /// Full path, or the URL.
    pub location: Box<str>,
    pub look: EntryLook,
}

/// What one entry turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryLook {
    Read(Arc<ParsedFile>),
    /// A manifest by name that can't be read or does not parse.
    Unread(Problem),
    /// A manifest by name that is being written.
    Settling,
    /// Not a manifest.
    Skipped {
        reason: String,
        /// It has a manifest's name (a directory `web.yaml`): what was there before is not cleanly
        /// gone.
        manifest_name: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedFile {
    /// Its documents in the order written, without ConfigMaps and Secrets.
    pub documents: Vec<Document>,
    /// Its ConfigMaps and Secrets in the order written.
    pub objects: Vec<ObjectDocument>,
    /// It has no document because it holds an empty list, and not because it is empty itself.
    pub empty_list: bool,
    /// A document in it has mistakes, so nobody can tell what the whole file says: it may be cut
    /// off, a line between two documents may be missing, or a name may be misspelled.
    pub broken: bool,
    /// Digest of the text, and of how it was read; `None` for the body of a URL.
    pub digest: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its place among the documents of its file, from 0; ConfigMaps and Secrets count, too.
    pub index: usize,
    pub position: Position,
    /// The pod's full name, where it can be made out.
    pub key: Option<PodKey>,
    /// As written, in JSON; empty when it is rejected.
    pub manifest: Arc<str>,
    /// The pod, or everything that is wrong.
    pub result: Result<Arc<DesiredPod>, Vec<Problem>>,
    /// What is known and harmlessly not acted on.
    pub warnings: Vec<Problem>,
}

/// What a source remembers between looks.
#[derive(Clone, Debug)]
pub struct State {
    kind: SourceKind,
    location: String,
    /// The last directory that had manifests.
    home: Option<Identity>,
    /// What an earlier life accepted was lost, and no manifest was seen since.
    lost: bool,
    /// Every new file was read once.
    complete: bool,
    /// What is wrong with the source itself.
    error: Option<String>,
    kept: BTreeMap<PodKey, AcceptedPod>,
    objects: Objects,
    /// The directory and the manifest names of the look before, if that one may remove.
    before: Option<(Identity, Vec<Box<str>>)>,
    /// Boot time of the first look.
    first_look: Option<Duration>,
}

/// An accepted pod.
#[derive(Clone, Debug)]
pub(super) struct AcceptedPod {
    file: Box<str>,
    /// As written, in JSON; empty when it was never saved.
    manifest: Arc<str>,
    /// [`ParsedFile::digest_of_sole`] of its file.
    digest: Option<Arc<str>>,
    /// Or why its last good revision can't be wanted.
    pod: Result<Arc<DesiredPod>, Unusable>,
    warnings: Vec<Problem>,
    presence: Presence,
}

/// What the last look showed of an accepted pod's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It was saved by an earlier run of the agent, and no look has decided about it yet.
    Saved,
    /// Its document is there and valid.
    Current,
    /// Its document is broken, or could not be looked for, or its file has mistakes and does not show
    /// it: the last good revision is wanted.
    LastGood,
    /// It is written nowhere.
    Missing {
        /// Boot time of the first of the agreeing looks that did not show it.
        since: Duration,
        /// The agreeing looks have settled that it stays wanted: a broken document has its name.
        settled: bool,
    },
}

impl Presence {
    /// Whether the source can't tell yet if the pod is still wanted.
    fn is_unconfirmed(self) -> bool {
        match self {
            Self::Saved | Self::Missing { settled: false, .. } => true,
            Self::Current | Self::LastGood | Self::Missing { settled: true, .. } => false,
        }
    }

    /// Boot time since when it is missing.
    fn missing_since(self) -> Option<Duration> {
        match self {
            Self::Missing { since, .. } => Some(since),
            Self::Saved | Self::Current | Self::LastGood => None,
        }
    }
}

impl AcceptedPod {
    fn is_current(&self) -> bool {
        self.presence == Presence::Current
    }

    fn origin(&self) -> &Origin {
        match &self.pod {
            Ok(pod) => &pod.origin,
            Err(unusable) => &unusable.origin,
        }
    }
}

/// What comes out of a look.
#[derive(Clone, Debug)]
pub struct SourceStep {
    pub snapshot: SourceSnapshot,
    /// Boot time at which to look again although nothing happened.
    pub wake_at: Option<Duration>,
}

/// What became of a request to forget a last good revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Dropped: the pod goes.
    Done {
        /// The file or URL that it came from.
        location: String,
    },
    /// The source does not have it.
    Unknown,
    /// Its manifest is there and valid: that is what has to be removed or changed.
    Written {
        /// The file or URL.
        location: String,
    },
}

impl State {
    /// A source that has accepted nothing yet. `lost`: it had, and the record of it was lost;
    /// nothing is removed then before manifests were seen again.
    #[must_use]
    pub fn new(kind: SourceKind, location: &str, lost: bool) -> Self {
        Self {
            kind,
            location: location.to_owned(),
            home: None,
            lost,
            complete: false,
            error: None,
            kept: BTreeMap::new(),
            objects: Objects::default(),
            before: None,
            first_look: None,
        }
    }

    /// The last directory that had manifests.
    #[must_use]
    pub fn home(&self) -> Option<Identity> {
        self.home
    }

    /// What is wanted before the first look: the last good manifests, or nothing that is known.
    #[must_use]
    pub fn before_first_look(&self) -> SourceSnapshot {
        let knowledge =
            if self.kept.is_empty() { Knowledge::Unknown } else { Knowledge::Checkpoint };
        SourceSnapshot {
            kind: self.kind,
            knowledge,
            pods: self.pods(),
            unconfirmed: self.unconfirmed(),
            ends: BTreeMap::new(),
            view: Arc::new(SourceView {
                error: self.unusable(),
                unread: true,
                ..SourceView::empty(self.kind, &*self.location)
            }),
        }
    }

    /// What is accepted now: for [`ParsedFile::adopt`].
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<DesiredPod>> {
        self.kept.values().filter_map(|kept| kept.pod.as_ref().ok()).cloned().collect()
    }

    /// The pods that may keep what runs, and for which nothing is started.
    fn unconfirmed(&self) -> BTreeSet<PodKey> {
        let kept = self.kept.iter().filter(|(_, kept)| kept.presence.is_unconfirmed());
        kept.map(|(key, _)| key.clone()).collect_ordered()
    }

    /// A look takes too long: what it has not settled counts as if the source could not be read, so
    /// that the last good pods start.
    pub fn stop_waiting(&mut self) {
        self.objects.stop_waiting();
        self.before = None;
        for kept in self.kept.values_mut().filter(|kept| kept.presence.is_unconfirmed()) {
            kept.presence = Presence::LastGood;
        }
    }

    /// Drops the last good revision of a pod. Step again afterwards.
    pub fn forget(&mut self, key: &PodKey) -> Forgotten {
        let Some(kept) = self.kept.get(key) else { return Forgotten::Unknown };
        let location = kept.origin().location.to_string();
        if kept.is_current() {
            return Forgotten::Written { location };
        }
        self.kept.remove(key);
        Forgotten::Done { location }
    }

    /// Takes in what a look showed.
    pub fn step(&mut self, listing: &Listing, now: Now) -> SourceStep {
        self.first_look.get_or_insert(now.boot);
        let speaks = listing.files.iter().any(|file| file.look.speaks());
        let error = match &listing.place {
            SourcePlace::Away(reason) => Some(reason.clone()),
            SourcePlace::Here(here) => match self.home {
                Some(home) if !home.is_same(*here) && !speaks => Some(self.elsewhere(home, *here)),
                Some(_) | None => {
                    self.take_in(*here, speaks, listing, now);
                    self.objects.step(listing);
                    None
                }
            },
        };
        if error.is_some() {
            self.objects.stop_waiting();
            self.before = None;
            for kept in self.kept.values_mut() {
                kept.presence = Presence::LastGood;
            }
        }
        let knows_all = listing.files.iter().all(|file| {
            file.look != EntryLook::Settling
                || self.kept.values().any(|kept| kept.file == file.name)
        });
        self.complete |= knows_all && !self.lost;
        self.error = error;
        SourceStep { snapshot: self.snapshot(listing), wake_at: self.wake_at(listing, now) }
    }

    /// The ConfigMaps and Secrets that pods may read now.
    #[must_use]
    pub fn objects(&self) -> NodeObjects {
        self.objects.found()
    }

    /// What is wanted now, with `listing` for people. Decides nothing.
    #[must_use]
    pub fn snapshot(&self, listing: &Listing) -> SourceSnapshot {
        let view = SourceView {
            kind: self.kind,
            location: self.location.clone(),
            error: self.trouble(),
            files: report::files(listing, &self.kept, &self.objects, self.error.as_deref()),
            unread: false,
        };
        let complete = self.complete && self.kept.values().all(|kept| kept.pod.is_ok());
        let knowledge = if complete { Knowledge::Complete } else { Knowledge::Checkpoint };
        let unconfirmed = self.unconfirmed();
        SourceSnapshot {
            kind: self.kind,
            knowledge,
            pods: self.pods(),
            unconfirmed,
            ends: BTreeMap::new(),
            view: Arc::new(view),
        }
    }

    /// Whether [`Self::saved`] may take the place of what was saved before.
    #[must_use]
    pub fn may_be_saved(&self) -> bool {
        self.complete
    }

    /// A listing of a directory that may be believed.
    fn take_in(&mut self, here: Identity, speaks: bool, listing: &Listing, now: Now) {
        if speaks {
            (self.home, self.lost) = (Some(here), false);
        }
        let names: Vec<Box<str>> = listing
            .files
            .iter()
            .filter(|file| file.look.has_manifest_name())
            .map(|file| file.name.clone())
            .collect();
        let looked = Some((here, names));
        let agrees = self.before == looked;
        self.before = looked;
        let claims = Claims::of(listing);
        let first_look = self.first_look.unwrap_or(now.boot);
        let waits_for_writers = now.boot.saturating_sub(first_look) < LONGEST_WRITE;
        let keys: BTreeSet<PodKey> =
            self.kept.keys().cloned().chain(claims.keys().cloned()).collect_ordered();
        for key in keys {
            let mut kept = self.kept.remove(&key);
            if let Some(kept) = &mut kept
                && kept.presence.missing_since().is_some()
                && !agrees
            {
                kept.presence = Presence::LastGood;
            }
            let mut decision = claims.decide(&key, kept.as_ref(), now.boot);
            // Nothing tells that this is the directory that had the manifests.
            if self.lost && matches!(decision, Decision::Missing { .. } | Decision::Remove) {
                decision = Decision::Keep;
            }
            let result = match (decision, kept) {
                (Decision::Use(file, document), kept) => {
                    accept(kept.as_ref(), &listing.files[file], document)
                }
                (Decision::Keep, Some(mut kept)) => {
                    let waits = kept.presence == Presence::Saved
                        && waits_for_writers
                        && listing.is_being_written(&kept.file);
                    if !waits {
                        kept.presence = Presence::LastGood;
                    }
                    Some(kept)
                }
                (Decision::Missing { settled }, Some(mut kept)) => {
                    let since = kept.presence.missing_since().unwrap_or(now.boot);
                    kept.presence = Presence::Missing { since, settled };
                    Some(kept)
                }
                (Decision::Remove, _) | (Decision::Keep | Decision::Missing { .. }, None) => None,
            };
            if let Some(result) = result {
                self.kept.insert(key, result);
            }
        }
    }

    fn wake_at(&self, listing: &Listing, now: Now) -> Option<Duration> {
        let missing = self.kept.values().filter_map(|kept| kept.presence.missing_since());
        let removals = missing.map(|since| since + AGREEMENT).filter(|at| *at > now.boot);
        let settling = listing.files.iter().any(|file| file.look == EntryLook::Settling);
        removals.chain(settling.then(|| now.boot + SETTLING)).min()
    }
}

/// Takes a valid document.
fn accept(before: Option<&AcceptedPod>, file: &Listed, document: &Document) -> Option<AcceptedPod> {
    let new = document.result.as_ref().ok()?;
    let digest = match &file.look {
        EntryLook::Read(parsed) => parsed.digest_of_sole(),
        EntryLook::Unread(_) | EntryLook::Settling | EntryLook::Skipped { .. } => None,
    };
    let pod = match before.and_then(|kept| kept.pod.as_ref().ok()) {
        Some(old) => settle(old, new),
        None => Arc::clone(new),
    };
    Some(AcceptedPod {
        file: file.name.clone(),
        manifest: Arc::clone(&document.manifest),
        digest,
        pod: Ok(pod),
        warnings: document.warnings.clone(),
        presence: Presence::Current,
    })
}

fn same_pod(a: &DesiredPod, b: &DesiredPod) -> bool {
    a.uid == b.uid && a.revision == b.revision
}

const SEEN: &str = "kubernetes.io/config.seen";

/// `new` after `old`, of the same name: what did not change stays the same object, and the same
/// incarnation keeps the time at which it was first seen.
fn settle(old: &Arc<DesiredPod>, new: &Arc<DesiredPod>) -> Arc<DesiredPod> {
    if same_pod(old, new) && old.origin == new.origin {
        return Arc::clone(old);
    }
    let mut pod = Arc::clone(new);
    if old.uid == new.uid
        && seen(old) != seen(new)
        && let Some(seen) = seen(old)
    {
        let pod = Arc::make_mut(&mut Arc::make_mut(&mut pod).pod);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(SEEN.to_owned(), seen.to_owned());
    }
    pod
}

/// When a pod was first seen, as its annotation has it.
fn seen(pod: &DesiredPod) -> Option<&str> {
    pod.pod.metadata.annotations.as_ref()?.get(SEEN).map(String::as_str)
}

impl ParsedFile {
    /// Whether it looks like a file that is being written: there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.documents.is_empty() && self.objects.is_empty() && !self.empty_list
    }

    /// Puts pods that are accepted already in the place of their like, so that nothing is held
    /// twice: after a restart every pod comes from the saved state and from its file.
    pub fn adopt(&mut self, accepted: &[Arc<DesiredPod>]) {
        for new in self.documents.iter_mut().filter_map(|document| document.result.as_mut().ok()) {
            if let Some(old) = accepted.iter().find(|old| old.key == new.key) {
                *new = settle(old, new);
            }
        }
    }
}

impl Identity {
    /// Whether both are the same directory. A device may have another number after a reboot; the
    /// time at which the directory was made tells as much where the file system knows it.
    fn is_same(self, other: Self) -> bool {
        let by_device = self.device == other.device && self.born == other.born;
        let by_birth = self.born.is_some() && self.born == other.born;
        self.inode == other.inode
            && self.single_file == other.single_file
            && (by_device || by_birth)
    }
}

impl Listing {
    /// Whether the file of this name is there and not written yet.
    fn is_being_written(&self, name: &str) -> bool {
        self.files.iter().any(|file| *file.name == *name && file.look == EntryLook::Settling)
    }
}

impl EntryLook {
    /// Whether this says anything about pods: an unreadable file does not.
    fn speaks(&self) -> bool {
        matches!(self, Self::Read(reading) if !reading.is_empty())
    }

    fn has_manifest_name(&self) -> bool {
        match self {
            Self::Read(_) | Self::Unread(_) | Self::Settling => true,
            Self::Skipped { manifest_name, .. } => *manifest_name,
        }
    }
}

#[cfg(test)]
mod tests;
