//! From the bytes of a manifest to what the core decides on.

use super::{
    Accepts, CredentialsDirectory,
    core::{Document, ObjectDocument, ParsedFile, SavedRefusal},
};
use crate::{
    files::read_regular,
    manifest::{self, Context, CredentialNames, DecodedDocument, DecodedObject, Settings},
    model::{
        CREDENTIALS, DataObject, Datum, DesiredPod, ObjectKind, Origin, Position, Problem,
        SourceKind,
    },
};
use jiff::Timestamp;
use std::sync::Arc;

/// What decoding depends on beside the text.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) kind: SourceKind,
    pub(super) accepts: Accepts,
    pub(super) credentials: CredentialsDirectory,
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
        // A credential that is missing, or a document that belongs elsewhere, is no such mistake.
        let broken = decoded.documents.iter().any(|document| document.result.is_err())
            || decoded.objects.iter().any(|object| object.result.is_err());
        let mut documents: Vec<Document> = decoded.documents.into_iter().map(document).collect();
        documents.shrink_to_fit();
        let objects = decoded.objects.into_iter().map(|decoded| self.object(decoded));
        let mut objects: Vec<ObjectDocument> = objects.collect();
        if mode.is_some_and(|mode| mode & OTHERS_READ != 0) {
            warn_of_readers(&mut objects);
        }
        let mut reading =
            ParsedFile { documents, objects, empty_list: decoded.empty_list, broken, digest: None };
        match self.accepts {
            Accepts::All => {}
            Accepts::Pods => {
                for document in &mut reading.objects {
                    document.result = Err(vec![misplaced(document.position, NOT_HERE)]);
                }
            }
            Accepts::Objects => {
                for document in reading.documents.iter_mut().filter(|one| one.result.is_ok()) {
                    document.result = Err(vec![misplaced(document.position, NOT_IN_CONFIG_PATH)]);
                }
            }
        }
        reading.adopt(accepted);
        Ok(reading)
    }

    /// The pod of a document that was accepted in an earlier life, and warnings.
    ///
    /// # Errors
    /// It is not accepted any more.
    pub(super) fn again(
        &self,
        manifest: &serde_json::Value,
        origin: &Origin,
        seen: Timestamp,
    ) -> Result<(DesiredPod, Vec<Problem>), SavedRefusal> {
        let context = self.context(&origin.location, seen);
        manifest::decode_document(manifest, origin, &context).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let key = manifest::name_of_document(manifest, &self.node_name);
            SavedRefusal { key, reason: problems.join("; ") }
        })
    }

    fn object(&self, decoded: DecodedObject) -> ObjectDocument {
        let DecodedObject { position, key, result, mut warnings, credentials } = decoded;
        let result = result.and_then(|mut object| {
            let missing = self.add_credentials(&mut object, &credentials);
            let path = format!("metadata.annotations[{CREDENTIALS}]");
            let problem = |message| Problem { position, path: path.clone(), message };
            let missing: Vec<Problem> = missing.into_iter().map(problem).collect();
            if missing.is_empty() {
                return Ok(Arc::new(object));
            }
            if self.credentials != CredentialsDirectory::Unknown {
                return Err(missing);
            }
            warnings.extend(missing);
            Ok(Arc::new(object))
        });
        ObjectDocument { position, key, result, warnings }
    }

    /// Adds the values of credentials; says what can't be added, a sentence each.
    fn add_credentials(&self, object: &mut DataObject, names: &CredentialNames) -> Vec<String> {
        let mut missing = Vec::new();
        for (key, name) in names {
            let found = match &self.credentials {
                CredentialsDirectory::At(directory) => {
                    read_regular(&directory.join(&**name), MAX_CREDENTIAL_BYTES)
                        .map(Some)
                        .or_else(|error| if error.is_not_found() { Ok(None) } else { Err(error) })
                }
                CredentialsDirectory::None => Ok(None),
                CredentialsDirectory::Unknown => {
                    missing.push(format!("the agent looks for {name:?} when it reads this"));
                    continue;
                }
            };
            match found {
                Ok(Some(bytes)) => {
                    object.data.insert(key.clone(), Datum::of_secret(bytes));
                }
                Ok(None) => missing.push(format!("Not found: {name:?}: {NO_CREDENTIAL}")),
                Err(error) => missing.push(format!("{name:?} can't be read: {error}")),
            }
        }
        missing
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

/// Largest credential, in bytes: systemd's limit.
const MAX_CREDENTIAL_BYTES: u64 = 1 << 20;
const NO_CREDENTIAL: &str = "the agent has no credential of this name: add LoadCredential= or \
                             SetCredential= to its unit and restart it";

/// The permission bit of a file that every user can read.
const OTHERS_READ: u32 = 0o004;

/// Says of each Secret that its file does not keep it.
fn warn_of_readers(objects: &mut [ObjectDocument]) {
    for document in objects {
        let key = document.key.as_ref();
        if key.is_some_and(|key| key.kind == ObjectKind::Secret) {
            let message = "every user of this machine can read this Secret: make its file 0600";
            let (position, path, message) = (document.position, String::new(), message.to_owned());
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

fn document(decoded: DecodedDocument) -> Document {
    Document {
        index: decoded.origin.document,
        position: decoded.position,
        key: decoded.key,
        manifest: decoded.as_written,
        result: decoded.result.map(Arc::new),
        warnings: decoded.warnings,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n\
                       spec:\n  containers:\n  - {name: c, image: i}\n";
    const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n";

    fn read(accepts: Accepts, documents: &[&str]) -> ParsedFile {
        let reader = Reader {
            kind: SourceKind::File,
            accepts,
            credentials: CredentialsDirectory::None,
            node_name: "node".into(),
            settings: Arc::default(),
        };
        let text = documents.join("---\n");
        reader.read(text.as_bytes(), "/m/a.yaml", &[], Timestamp::UNIX_EPOCH, None).unwrap()
    }

    #[test]
    fn a_document_that_belongs_elsewhere_is_no_mistake() {
        for accepts in [Accepts::All, Accepts::Pods, Accepts::Objects] {
            assert!(!read(accepts, &[POD, CONFIG]).broken, "{accepts:?}");
        }
        let refused = read(Accepts::Pods, &[POD, CONFIG]);
        assert!(refused.documents[0].result.is_ok() && refused.objects[0].result.is_err());
    }

    #[test]
    fn a_missing_line_between_documents_is_a_mistake() {
        for text in [format!("{CONFIG}{POD}"), format!("{POD}{CONFIG}")] {
            assert!(read(Accepts::All, &[&text]).broken, "{text}");
        }
    }
}
