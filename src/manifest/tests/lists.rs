use super::{context, decode_here, only};
use crate::{
    manifest::{Settings, decode, decode_document},
    model::PodKey,
};

const ITEM: &str = "{metadata: {name: NAME}, spec: {containers: [{name: c, image: i}]}}";

fn item(name: &str) -> String {
    ITEM.replace("NAME", name)
}

#[test]
fn documents_and_items_of_lists_are_counted_through() {
    let text = format!(
        "# nothing here\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, image: i}}]}}\n\
         ---\n---\napiVersion: v1\nkind: PodList\nmetadata: {{resourceVersion: \"1\"}}\nitems:\n- {}\n- {}\n\
         ---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {{name: d}}\n  spec: {{containers: []}}\n- {}\n",
        item("b"),
        item("c"),
        item("e"),
    );
    let documents = decode_here(&text).documents;
    let summary: Vec<(usize, usize, Option<String>, bool)> = documents
        .iter()
        .map(|d| {
            (
                d.origin.document,
                d.origin.line,
                d.key.as_ref().map(PodKey::to_string),
                d.result.is_ok(),
            )
        })
        .collect();
    assert_eq!(
        summary,
        [
            (0, 3, Some("default/a-node1".to_owned()), true),
            (1, 13, Some("default/b-node1".to_owned()), true),
            (2, 14, Some("default/c-node1".to_owned()), true),
            (3, 19, Some("default/d-node1".to_owned()), false),
            // An item of a plain List has to say what it is.
            (4, 23, Some("default/e-node1".to_owned()), false),
        ]
    );
}

#[test]
fn a_broken_list_is_a_verdict_beside_its_items() {
    let text = format!("apiVersion: v1\nkind: PodList\nitmes: []\nitems:\n- {}\n", item("a"));
    let documents = decode_here(&text).documents;
    assert_eq!(documents.len(), 2);
    let problems = documents[0].result.as_ref().unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "line 3, column 1: itmes: unknown field, did you mean \"items\"?"
    );
    assert!(documents[1].result.is_ok());
}

#[test]
fn an_empty_text_has_no_documents() {
    for text in ["", "\n\n", "---\n---\n", "# only a comment\n", "null\n"] {
        assert!(decode_here(text).documents.is_empty(), "{text:?}");
    }
}

#[test]
fn what_is_kept_as_written_makes_the_same_pod_again() {
    let settings = Settings::default();
    let text = format!("apiVersion: v1\nkind: PodList\nitems: [{}]\n", item("a"));
    let document = only(decode(text.as_bytes(), &context("n", &settings)).unwrap());
    let kept: serde_json::Value = serde_json::from_str(&document.as_written.to_string()).unwrap();
    let again = decode_document(&kept, &document.origin, &context("n", &settings));
    assert_eq!(again, document.result);
}
