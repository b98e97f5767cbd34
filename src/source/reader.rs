//! From the bytes of a manifest to what the core decides on.

use super::{
    Accepts,
    core::{Document, ObjectDocument, ParsedFile, SavedRefusal},
};
use crate::{
    document,
    manifest::{self, Context, DecodedDocument, DecodedObject, Settings},
    model::{DesiredPod, ObjectKind, Origin, Position, Problem, SourceKind},
};
use jiff::Timestamp;
use std::sync::Arc;

/// What decoding depends on beside the text.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) kind: SourceKind,
    pub(super) accepts: Accepts,
    pub(super) node_name: Arc<str>,
    pub(super) settings: Arc<Settings>,
}

impl Reader {
    /// What a text says. `accepted`: what is accepted now, [`ParsedFile::adopt`]. `mode`: the
    /// permission bits of the file that it comes from.
    ///
    /// # Errors
    /// It does not parse as a whole.
    pub(super) fn read(
        &self,
        text: &[u8],
        location: &str,
        accepted: &[Arc<DesiredPod>],
        seen: Timestamp,
        mode: Option<u32>,
    ) -> Result<ParsedFile, Problem> {
        let decoded = manifest::decode(text, &self.context(location, seen))?;
        let mut documents: Vec<Document> = decoded.documents.into_iter().map(document).collect();
        documents.shrink_to_fit();
        let mut objects: Vec<ObjectDocument> = decoded.objects.into_iter().map(object).collect();
        if mode.is_some_and(|mode| mode & OTHERS_READ != 0) {
            warn_of_readers(&mut objects);
        }
        match self.accepts {
            Accepts::All => {}
            Accepts::Pods => {
                for document in &mut objects {
                    document.result = Err(vec![misplaced(document.position, NOT_HERE)]);
                }
            }
            Accepts::Objects => {
                for document in documents.iter_mut().filter(|document| document.result.is_ok()) {
                    document.result = Err(vec![misplaced(document.position, NOT_IN_CONFIG_PATH)]);
                }
            }
        }
        let is_empty = documents.is_empty() && objects.is_empty();
        let empty_list = is_empty && !document::parse(text)?.is_empty();
        let mut reading = ParsedFile { documents, objects, empty_list };
        reading.adopt(accepted);
        Ok(reading)
    }

    /// The pod of a document that was accepted in an earlier life.
    ///
    /// # Errors
    /// It is not accepted any more.
    pub(super) fn again(
        &self,
        manifest: &serde_json::Value,
        origin: &Origin,
        seen: Timestamp,
    ) -> Result<DesiredPod, SavedRefusal> {
        let context = self.context(&origin.location, seen);
        manifest::decode_document(manifest, origin, &context).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let key = manifest::name_of_document(manifest, &self.node_name);
            SavedRefusal { key, reason: problems.join("; ") }
        })
    }

    fn context<'a>(&'a self, location: &'a str, seen: Timestamp) -> Context<'a> {
        Context {
            node_name: &self.node_name,
            source: self.kind,
            location,
            seen,
            settings: &self.settings,
        }
    }
}

/// The permission bit of a file that every user can read.
const OTHERS_READ: u32 = 0o004;

/// Says of each Secret that its file does not keep it.
fn warn_of_readers(objects: &mut [ObjectDocument]) {
    for document in objects {
        let key = document.key.as_ref();
        if key.is_some_and(|key| key.kind == ObjectKind::Secret) {
            let message = "every user of this machine can read the file: make it 0600".to_owned();
            let (position, path) = (document.position, "kind".to_owned());
            document.warnings.push(Problem { position, path, message });
        }
    }
}

const NOT_HERE: &str =
    "Forbidden: ConfigMaps and Secrets are read from staticPodPath and configPath only";
const NOT_IN_CONFIG_PATH: &str =
    "Forbidden: configPath is for ConfigMaps and Secrets: pods belong into staticPodPath";

fn misplaced(position: Position, message: &str) -> Problem {
    Problem { position, path: "kind".to_owned(), message: message.to_owned() }
}

fn object(decoded: DecodedObject) -> ObjectDocument {
    let DecodedObject { position, key, result, warnings } = decoded;
    ObjectDocument { position, key, result: result.map(Arc::new), warnings }
}

fn document(decoded: DecodedDocument) -> Document {
    Document {
        position: decoded.position,
        key: decoded.key,
        manifest: decoded.as_written,
        result: decoded.result.map(Arc::new),
        warnings: decoded.warnings,
    }
}
