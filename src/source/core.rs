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
//! Invariant: a pod leaves only when a directory that is known to be the right one was listed without
//! it twice, at least [`AGREEMENT`] apart, with the same files both times, or when a person says so.
//! Invariant: what a broken file says about a pod never replaces or removes that pod.
//! Invariant: while a last good revision is refused (another version or configuration has read it again),
//! the source does not know everything, so that nothing is removed: its pod can't be wanted, and may run.

mod claims;
mod report;
mod saved;

pub use saved::{Refusal, Saved, SavedDocument};

use crate::{
    desired::{Knowledge, SourceSnapshot},
    model::{DesiredPod, Now, Origin, PodKey, Position, Problem, SourceKind, SourceView},
};
use claims::{Claims, Decision};
use saved::Refused;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Two looks that agree on a removal are at least this far apart.
pub const AGREEMENT: Duration = Duration::from_millis(200);
/// A file whose size and times hold for this long counts as written.
pub const SETTLING: Duration = Duration::from_millis(100);

/// What tells one directory from another one at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
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
    /// Which directory.
    pub place: Place,
    /// Sorted by name.
    pub files: Vec<Listed>,
}

/// Whether there was something to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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
    /// What it is.
    pub look: Look,
}

/// What one entry turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// It was read, and parses.
    Read(Arc<Reading>),
    /// A manifest by name that can't be read or does not parse.
    Unread(Problem),
    /// A manifest by name that is being written.
    Settling,
    /// Not a manifest.
    Skipped {
        /// Why.
        reason: String,
        /// It has a manifest's name (a directory `web.yaml`): what was there before is not cleanly gone.
        manifest_name: bool,
    },
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Its documents in the order written.
    pub documents: Vec<Document>,
    /// It has no document because it holds an empty list, and not because it is empty itself.
    pub empty_list: bool,
}

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Where it begins.
    pub position: Position,
    /// The pod's full name, where it can be made out.
    pub key: Option<PodKey>,
    /// As written, in JSON.
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
    kept: BTreeMap<PodKey, Kept>,
    /// The directory and the manifest names of the look before, if that one may remove.
    before: Option<(Identity, Vec<Box<str>>)>,
}

/// An accepted pod.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    file: Box<str>,
    manifest: Arc<str>,
    /// Or why its last good revision can't be wanted.
    pod: Result<Arc<DesiredPod>, Refused>,
    warnings: Vec<Problem>,
    /// Its document was there and valid at the last look.
    current: bool,
    /// Boot time of the first of the agreeing looks that did not show it.
    missing_since: Option<Duration>,
}

impl Kept {
    fn origin(&self) -> &Origin {
        match &self.pod {
            Ok(pod) => &pod.origin,
            Err(refused) => &refused.origin,
        }
    }
}

/// What comes out of a look.
#[derive(Clone, Debug)]
pub struct Step {
    /// What the source wants now.
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
    /// A source that has accepted nothing yet. `lost`: it had, and the record of it was lost; nothing
    /// is removed then before manifests were seen again.
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
            before: None,
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
            view: SourceView {
                kind: self.kind,
                location: self.location.clone(),
                error: self.refusals(),
                files: Vec::new(),
            },
        }
    }

    /// What is accepted now: for [`Reading::adopt`].
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<DesiredPod>> {
        self.kept.values().filter_map(|kept| kept.pod.as_ref().ok()).cloned().collect()
    }

    /// Drops the last good revision of a pod. Step again afterwards.
    pub fn forget(&mut self, key: &PodKey) -> Forgotten {
        let Some(kept) = self.kept.get(key) else { return Forgotten::Unknown };
        let location = kept.origin().location.to_string();
        if kept.current {
            return Forgotten::Written { location };
        }
        self.kept.remove(key);
        Forgotten::Done { location }
    }

    /// Takes in what a look showed.
    pub fn step(&mut self, listing: &Listing, now: Now) -> Step {
        let speaks = listing.files.iter().any(|file| file.look.speaks());
        let error = match &listing.place {
            Place::Away(reason) => Some(reason.clone()),
            Place::Here(here) => match self.home {
                Some(home) if home != *here && !speaks => Some(self.elsewhere(home, *here)),
                Some(_) | None => {
                    self.take_in(*here, speaks, listing, now);
                    None
                }
            },
        };
        if error.is_some() {
            self.before = None;
            for kept in self.kept.values_mut() {
                (kept.current, kept.missing_since) = (false, None);
            }
        }
        let knows_all = listing.files.iter().all(|file| {
            file.look != Look::Settling || self.kept.values().any(|kept| kept.file == file.name)
        });
        self.complete |= knows_all && !self.lost;
        self.error = error;
        Step { snapshot: self.snapshot(listing), wake_at: self.wake_at(listing, now) }
    }

    /// What is wanted now, with `listing` for people. Decides nothing.
    #[must_use]
    pub fn snapshot(&self, listing: &Listing) -> SourceSnapshot {
        let view = SourceView {
            kind: self.kind,
            location: self.location.clone(),
            error: self.trouble(),
            files: report::files(listing, &self.kept, self.error.as_deref()),
        };
        let complete = self.complete && self.kept.values().all(|kept| kept.pod.is_ok());
        let knowledge = if complete { Knowledge::Complete } else { Knowledge::Checkpoint };
        SourceSnapshot { kind: self.kind, knowledge, pods: self.pods(), view }
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
        let keys: BTreeSet<PodKey> =
            self.kept.keys().cloned().chain(claims.keys().cloned()).collect();
        for key in keys {
            let mut kept = self.kept.remove(&key);
            if let Some(kept) = &mut kept {
                kept.current = false;
                if !agrees {
                    kept.missing_since = None;
                }
            }
            let result = match (claims.decide(&key, kept.as_ref(), now.boot), kept) {
                (Decision::Use(file, document), kept) => {
                    accept(kept.as_ref(), &listing.files[file], document)
                }
                (Decision::Keep, Some(mut kept)) => {
                    kept.missing_since = None;
                    Some(kept)
                }
                (Decision::Missing, Some(mut kept)) => {
                    kept.missing_since = kept.missing_since.or(Some(now.boot));
                    Some(kept)
                }
                (Decision::Remove, _) | (Decision::Keep | Decision::Missing, None) => None,
            };
            if let Some(result) = result {
                self.kept.insert(key, result);
            }
        }
    }

    fn wake_at(&self, listing: &Listing, now: Now) -> Option<Duration> {
        let removal = self.kept.values().filter_map(|kept| kept.missing_since).min();
        let removal = removal.map(|since| since + AGREEMENT).filter(|at| *at > now.boot);
        let settling = listing.files.iter().any(|file| file.look == Look::Settling);
        removal.into_iter().chain(settling.then(|| now.boot + SETTLING)).min()
    }
}

/// Takes a valid document.
fn accept(before: Option<&Kept>, file: &Listed, document: &Document) -> Option<Kept> {
    let new = document.result.as_ref().ok()?;
    let pod = match before.and_then(|kept| kept.pod.as_ref().ok()) {
        Some(old) => settle(old, new),
        None => Arc::clone(new),
    };
    Some(Kept {
        file: file.name.clone(),
        manifest: Arc::clone(&document.manifest),
        pod: Ok(pod),
        warnings: document.warnings.clone(),
        current: true,
        missing_since: None,
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

impl Reading {
    /// Puts pods that are accepted already in the place of their like, so that nothing is held twice:
    /// after a restart every pod comes from the saved state and from its file.
    pub fn adopt(&mut self, accepted: &[Arc<DesiredPod>]) {
        for new in self.documents.iter_mut().filter_map(|document| document.result.as_mut().ok()) {
            if let Some(old) = accepted.iter().find(|old| old.key == new.key) {
                *new = settle(old, new);
            }
        }
    }
}

impl Look {
    /// Whether this says anything about pods: an unreadable file does not.
    fn speaks(&self) -> bool {
        matches!(self, Self::Read(reading) if !reading.documents.is_empty() || reading.empty_list)
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
