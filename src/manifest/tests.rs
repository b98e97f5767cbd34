//! Defaults, identity, lists. The verdicts are in `tests/manifests.rs`.

mod identity;
mod lists;
mod long_values;
mod pods;

use super::{Context, DecodedDocument, DecodedFile, Settings, decode};
use crate::model::SourceKind;
use jiff::Timestamp;

/// Decodes as node `Node1` would that allows no unsafe sysctl but `kernel.msg*`.
fn decode_here(text: &str) -> DecodedFile {
    decode_on("Node1", text)
}

fn decode_on(node_name: &str, text: &str) -> DecodedFile {
    let settings = Settings {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned()],
        priority_classes: [("batch".to_owned(), -5)].into(),
        runtime_classes: [("sandboxed".to_owned(), "runsc".to_owned())].into(),
    };
    decode(text.as_bytes(), &context(node_name, &settings)).unwrap()
}

fn context<'a>(node_name: &'a str, settings: &'a Settings) -> Context<'a> {
    Context {
        node_name,
        source: SourceKind::File,
        location: "/etc/nodelet/static-pods/web.yaml",
        seen: Timestamp::from_second(1_800_000_000).unwrap(),
        settings,
    }
}

fn only(file: DecodedFile) -> DecodedDocument {
    assert_eq!(file.documents.len(), 1);
    file.documents.into_iter().next().unwrap()
}
