//! The ConfigMaps and Secrets of a source: the last good data of each, while the agent runs.
//!
//! Unlike a pod, an object that is gone is gone at the first look that does not show it, if its file
//! is valid or gone: a pod that runs does not lose anything by that. Nothing of it is saved, so that
//! no Secret is.

use super::{EntryLook, Listed, Listing};
use crate::model::{
    CollectOrdered as _, DataObject, FileVerdict, NodeObjects, ObjectKey, Position, Problem,
};
use std::{collections::BTreeMap, sync::Arc};

/// A document of `kind: ConfigMap` or `kind: Secret`.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectDocument {
    pub position: Position,
    /// The object's name, where it can be made out.
    pub key: Option<ObjectKey>,
    /// The object, or everything that is wrong. The problems do not repeat data of a Secret.
    pub result: Result<Arc<DataObject>, Vec<Problem>>,
    /// What is known and harmlessly not acted on.
    pub warnings: Vec<Problem>,
}

/// The objects that are in use, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    kept: BTreeMap<ObjectKey, Kept>,
    /// A look was taken in, or it is not waited for any more.
    known: bool,
}

#[derive(Clone, Debug)]
struct Kept {
    file: Box<str>,
    object: Arc<DataObject>,
}

impl Kept {
    /// Whether a document has the same object with the same data.
    fn is_same(&self, document: &ObjectDocument) -> bool {
        let written = document.result.as_ref();
        written.is_ok_and(|new| new.key == self.object.key && new.is_same(&self.object))
    }
}

const IMMUTABLE: &str = "Forbidden: field is immutable when `immutable` is set: remove the \
                         document and add it again, or use another name";

/// Said of an object that a file with mistakes does not show.
const UNSHOWN: &str = "the file has mistakes and does not show this object any more: its data stay \
                       in use until they are corrected";

impl Objects {
    /// Takes in what a look showed.
    pub(super) fn step(&mut self, listing: &Listing) {
        self.known = true;
        let before = std::mem::take(&mut self.kept);
        // The file of the last good data comes first: with what it says, or else with those.
        self.take(listing, &before, |file, kept| kept.is_some_and(|kept| kept.file == file.name));
        for (key, kept) in &before {
            let moved = || documents(listing).any(|(_, document)| kept.is_same(document));
            if !self.kept.contains_key(key) && may_hold(listing, &kept.file) && !moved() {
                self.kept.insert(key.clone(), kept.clone());
            }
        }
        self.take(listing, &before, |_, _| true);
    }

    /// Takes the first valid document of each object that has none yet.
    fn take(
        &mut self,
        listing: &Listing,
        before: &BTreeMap<ObjectKey, Kept>,
        may: impl Fn(&Listed, Option<&Kept>) -> bool,
    ) {
        for (file, document) in documents(listing) {
            let Ok(object) = &document.result else { continue };
            let kept = before.get(&object.key);
            if !self.kept.contains_key(&object.key) && may(file, kept) {
                let object = chosen(kept.map(|kept| &kept.object), object);
                self.kept.insert(object.key.clone(), Kept { file: file.name.clone(), object });
            }
        }
    }

    pub(super) fn stop_waiting(&mut self) {
        self.known = true;
    }

    /// What pods may read.
    pub(super) fn found(&self) -> NodeObjects {
        let found = self.kept.iter().map(|(key, kept)| (key.clone(), Arc::clone(&kept.object)));
        NodeObjects { known: self.known, found: found.collect_ordered(), ..NodeObjects::default() }
    }

    /// What a person is told about the documents of a file.
    pub(super) fn verdicts(&self, file: &Listed) -> Vec<FileVerdict> {
        let EntryLook::Read(reading) = &file.look else { return Vec::new() };
        let shown = reading.objects.iter().map(|document| self.verdict(file, document));
        let unshown = self.kept.iter().filter(|(key, kept)| {
            let shows = |document: &ObjectDocument| document.key.as_ref() == Some(*key);
            reading.broken && kept.file == file.name && !reading.objects.iter().any(shows)
        });
        let unshown = unshown.map(|(key, kept)| {
            let position = Position { line: kept.object.origin.line, column: 0 };
            let message = UNSHOWN.to_owned();
            let problem = Problem { position: Position::default(), path: String::new(), message };
            FileVerdict::Rejected {
                key: None,
                object: Some(key.clone()),
                position,
                problems: vec![problem],
                last_good: true,
            }
        });
        shown.chain(unshown).collect()
    }

    fn verdict(&self, file: &Listed, document: &ObjectDocument) -> FileVerdict {
        let kept = document.key.as_ref().and_then(|key| self.kept.get(key));
        let rejected = |problems: Vec<Problem>, last_good| FileVerdict::Rejected {
            key: None,
            object: document.key.clone(),
            position: document.position,
            problems,
            last_good,
        };
        let object = match &document.result {
            Ok(object) => object,
            Err(problems) => {
                let last_good = kept.is_some_and(|kept| kept.file == file.name);
                return rejected(problems.clone(), last_good);
            }
        };
        let problem = |path: &str, message: String| {
            vec![Problem { position: document.position, path: path.to_owned(), message }]
        };
        match kept {
            Some(kept) if kept.file == file.name && kept.object.origin == object.origin => {
                if kept.object.is_same(object) {
                    let warnings = document.warnings.clone();
                    FileVerdict::Object { key: object.key.clone(), warnings }
                } else {
                    rejected(problem("data", IMMUTABLE.to_owned()), true)
                }
            }
            Some(kept) => {
                let origin = &kept.object.origin;
                let message = format!(
                    "Duplicate value: \"{}\": also written in {} line {}, which is used: rename or remove one of them",
                    object.key, origin.location, origin.line
                );
                rejected(problem("metadata.name", message), false)
            }
            // Valid and not kept: only in a listing that is not believed.
            None => rejected(problem("", "not looked at".to_owned()), false),
        }
    }
}

fn documents(listing: &Listing) -> impl Iterator<Item = (&Listed, &ObjectDocument)> {
    listing.files.iter().flat_map(|file| {
        let objects = match &file.look {
            EntryLook::Read(reading) => reading.objects.as_slice(),
            EntryLook::Unread(_) | EntryLook::Settling | EntryLook::Skipped { .. } => &[],
        };
        objects.iter().map(move |document| (file, document))
    })
}

/// The new data, unless the old may not change. The same data stays the same object, so that
/// nothing is written again.
fn chosen(old: Option<&Arc<DataObject>>, new: &Arc<DataObject>) -> Arc<DataObject> {
    match old {
        Some(old) if **old == **new => Arc::clone(old),
        Some(old) if old.immutable && !old.is_same(new) => {
            // The old data, as if it were written here.
            let origin = new.origin.clone();
            if old.origin == origin {
                Arc::clone(old)
            } else {
                Arc::new(DataObject { origin, ..DataObject::clone(old) })
            }
        }
        Some(_) | None => Arc::clone(new),
    }
}

/// Whether a file may still hold an object that it does not show.
fn may_hold(listing: &Listing, file: &str) -> bool {
    listing.files.iter().any(|listed| *listed.name == *file && listed.look.holds())
}

#[cfg(test)]
mod tests;
