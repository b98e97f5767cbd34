//! What of a source outlives the agent: a machine that boots with a broken edit runs the last good
//! pods.

use super::{AcceptedPod, Document, Identity, ParsedFile, Presence, SEEN, State, seen};
use crate::model::{
    CollectOrdered as _, DesiredPod, Origin, PodKey, Position, Problem, SourceKind,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, sync::Arc};

/// File → documents → last good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// The last directory that had manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<Identity>,
    /// By file name.
    #[serde(default)]
    pub files: BTreeMap<Box<str>, Vec<SavedDocument>>,
}

/// An accepted document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedDocument {
    /// Full path, or the URL.
    pub location: Box<str>,
    /// Which document of the file, from 0.
    pub document: usize,
    /// Line at which it began, from 1.
    pub line: usize,
    /// When it was first seen, as the annotation has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Box<str>>,
    /// [`ParsedFile::digest_of_sole`] of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Arc<str>>,
    /// As written; JSON text in memory, a JSON value on disk.
    #[serde(serialize_with = "write_json", deserialize_with = "read_json")]
    pub manifest: Arc<str>,
}

/// Why a document that was accepted in an earlier life is not any more: another version or another
/// configuration reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRefusal {
    /// Its pod, where that can be made out.
    pub key: Option<PodKey>,
    /// Everything that is wrong with it.
    pub reason: String,
}

/// The pod of a document that was accepted in an earlier life, with warnings.
type Decoded = Result<(DesiredPod, Vec<Problem>), SavedRefusal>;

/// What is kept in place of a pod whose last good revision is refused, or was never saved.
#[derive(Clone, Debug)]
pub(super) struct Unusable {
    pub(super) origin: Origin,
    /// When it was first seen, as the annotation has it.
    seen: Option<Box<str>>,
    pub(super) reason: String,
}

impl State {
    #[must_use]
    pub fn saved(&self) -> Saved {
        let mut files: BTreeMap<Box<str>, Vec<SavedDocument>> = BTreeMap::new();
        for kept in self.kept.values().filter(|kept| !kept.manifest.is_empty()) {
            let origin = kept.origin();
            let seen = match &kept.pod {
                Ok(pod) => seen(pod).map(Into::into),
                Err(unusable) => unusable.seen.clone(),
            };
            files.entry(kept.file.clone()).or_default().push(SavedDocument {
                location: origin.location.clone(),
                document: origin.document,
                line: origin.line,
                seen,
                digest: kept.digest.clone(),
                manifest: Arc::clone(&kept.manifest),
            });
        }
        // The first push makes room for four, and most files have one document.
        files.values_mut().for_each(Vec::shrink_to_fit);
        Saved { home: self.home, files }
    }

    /// What the files say whose text has the digest that an earlier life saved, by their locations:
    /// they need not be decoded again.
    #[must_use]
    pub fn read_before(&self) -> BTreeMap<Box<str>, Arc<ParsedFile>> {
        let parsed = self.kept.values().filter_map(|kept| {
            let (pod, digest) = (kept.pod.as_ref().ok()?, kept.digest.clone()?);
            let document = Document {
                index: pod.origin.document,
                position: Position { line: pod.origin.line, column: COLUMN_OF_SOLE },
                key: Some(pod.key.clone()),
                manifest: Arc::clone(&kept.manifest),
                result: Ok(Arc::clone(pod)),
                warnings: Vec::new(),
            };
            let digest = Some(digest);
            let parsed = ParsedFile { documents: vec![document], digest, ..ParsedFile::default() };
            Some((pod.origin.location.clone(), Arc::new(parsed)))
        });
        parsed.collect_ordered()
    }

    /// Takes in what an earlier life saved; `decode` makes a pod of a document, with warnings.
    pub fn restore(
        &mut self,
        saved: Saved,
        decode: impl Fn(&serde_json::Value, &Origin) -> Decoded,
    ) {
        self.home = saved.home;
        for (file, documents) in saved.files {
            for document in documents {
                let origin = document.origin(self.kind);
                // It was a value when it was read from disk.
                let value = serde_json::from_str(&document.manifest).unwrap_or_default();
                let decoded = decode(&value, &origin);
                self.remember(&file, origin, document, decoded);
            }
        }
    }

    /// Takes in the pods of which an earlier life has left a record. One whose manifest was not
    /// saved (a crash, a full disk, a damaged file) keeps what runs until a look has settled the
    /// matter.
    pub fn restore_admitted(&mut self, admitted: Vec<(PodKey, Origin)>) {
        for (key, origin) in admitted {
            let file: Box<str> = match self.kind {
                SourceKind::File => origin.location.rsplit('/').next().unwrap_or_default().into(),
                // The body of a URL has no name.
                SourceKind::Http | SourceKind::Api => "".into(),
            };
            self.kept.entry(key).or_insert_with(|| AcceptedPod {
                file,
                manifest: Arc::default(),
                digest: None,
                pod: Err(Unusable { origin, seen: None, reason: UNSAVED.to_owned() }),
                warnings: Vec::new(),
                presence: Presence::Saved,
            });
        }
    }

    fn remember(&mut self, file: &str, origin: Origin, document: SavedDocument, decoded: Decoded) {
        let mut digest = document.digest;
        let (key, pod) = match decoded {
            Ok((mut pod, warnings)) => {
                if !warnings.is_empty() {
                    // Only the file has their places.
                    digest = None;
                }
                if let Some(seen) = document.seen {
                    let annotations = &mut Arc::make_mut(&mut pod.pod).metadata.annotations;
                    annotations.get_or_insert_default().insert(SEEN.to_owned(), seen.into());
                }
                (Some(pod.key.clone()), Ok(Arc::new(pod)))
            }
            Err(SavedRefusal { key, reason }) => {
                let reason = format!("{REFUSED}: {reason}");
                (key, Err(Unusable { origin, seen: document.seen, reason }))
            }
        };
        let Some(key) = key else {
            // Whose it was can't be told: that much of the record is lost.
            self.lost = true;
            return;
        };
        let kept = AcceptedPod {
            file: file.into(),
            manifest: document.manifest,
            digest,
            pod,
            warnings: Vec::new(),
            presence: Presence::Saved,
        };
        self.kept.insert(key, kept);
    }
}

const REFUSED: &str = "is refused by this version or configuration of the agent";
const UNSAVED: &str =
    "was not saved, or is lost: what runs of the pod is kept, and nothing is started";

/// Where the document of a file begins that [`ParsedFile::digest_of_sole`] is there for.
const COLUMN_OF_SOLE: usize = 1;

impl ParsedFile {
    /// The digest of a file that says nothing but one valid pod: then [`State::read_before`] can
    /// tell from what was saved what the whole file says.
    pub(super) fn digest_of_sole(&self) -> Option<Arc<str>> {
        let [document] = &*self.documents else { return None };
        let is_sole = self.objects.is_empty()
            && document.result.is_ok()
            && document.warnings.is_empty()
            && document.position.column == COLUMN_OF_SOLE;
        self.digest.clone().filter(|_| is_sole)
    }
}

impl SavedDocument {
    fn origin(&self, source: SourceKind) -> Origin {
        let location = self.location.clone();
        Origin { source, location, document: self.document, line: self.line }
    }
}

fn write_json<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::from_str::<&RawValue>(text).map_err(S::Error::custom)?.serialize(serializer)
}

fn read_json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    serde_json::to_string(&value).map(Into::into).map_err(D::Error::custom)
}
