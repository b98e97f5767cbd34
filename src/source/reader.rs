//! From the bytes of a manifest to what the core decides on.

use super::core::{Document, ParsedFile, SavedRefusal};
use crate::{
    document,
    manifest::{self, Context, DecodedDocument, Settings},
    model::{DesiredPod, Origin, Problem, SourceKind},
};
use jiff::Timestamp;
use std::sync::Arc;

/// What decoding depends on beside the text.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) kind: SourceKind,
    pub(super) node_name: Arc<str>,
    pub(super) settings: Arc<Settings>,
}

impl Reader {
    /// What a text says. `accepted`: what is accepted now, [`ParsedFile::adopt`].
    ///
    /// # Errors
    /// It does not parse as a whole.
    pub(super) fn read(
        &self,
        text: &[u8],
        location: &str,
        accepted: &[Arc<DesiredPod>],
        seen: Timestamp,
    ) -> Result<ParsedFile, Problem> {
        let decoded = manifest::decode(text, &self.context(location, seen))?;
        let mut documents: Vec<Document> = decoded.documents.into_iter().map(document).collect();
        documents.shrink_to_fit();
        // Nothing came out of it: a text without documents, or a document that is an empty list.
        let empty_list = documents.is_empty() && !document::parse(text)?.is_empty();
        let mut reading = ParsedFile { documents, empty_list };
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

fn document(decoded: DecodedDocument) -> Document {
    Document {
        position: decoded.position,
        key: decoded.key,
        manifest: decoded.as_written,
        result: decoded.result.map(Arc::new),
        warnings: decoded.warnings,
    }
}
