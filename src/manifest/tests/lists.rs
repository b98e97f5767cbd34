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
    let kept: serde_json::Value = serde_json::from_str(&document.as_written).unwrap();
    let again = decode_document(&kept, &document.origin, &context("n", &settings));
    assert_eq!(again.map(|(pod, _)| pod), document.result);
}

fn refused(text: &str) -> String {
    let settings = Settings::default();
    decode(text.as_bytes(), &context("node1", &settings)).unwrap_err().to_string()
}

#[test]
fn documents_and_items_of_a_text_have_a_limit() {
    let items = format!("{}, ", item("a")).repeat(501);
    let list = format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n");
    assert_eq!(
        refused(&list),
        "line 3, column 8: items: Too many: 501: must have at most 500 items"
    );
    let documents = "---\na: 1\n".repeat(501);
    assert!(
        refused(&documents).starts_with("line 1002, column 1: Too many: at most 500 documents")
    );
    assert_eq!(decode_here(&"---\na: 1\n".repeat(500)).documents.len(), 500);
}

#[test]
fn memory_of_the_pods_of_a_text_has_a_limit() {
    // Each volume takes 3 KiB of memory and 12 bytes of text.
    let volumes: String = (0..250).map(|n| format!("{{name: v{n}}}, ")).collect();
    let pod = |n: usize| {
        format!(
            "{{metadata: {{name: p{n}}}, spec: {{containers: [{{name: c, image: i}}], volumes: [{volumes}]}}}}, "
        )
    };
    let list = |count: usize| {
        let items: String = (0..count).map(pod).collect();
        format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n")
    };
    assert_eq!(decode_here(&list(15)).documents.len(), 15);
    assert!(refused(&list(30)).contains("more than 16 MiB of memory"), "{}", refused(&list(30)));
}

#[test]
fn rejected_documents_are_not_kept_as_written() {
    let document = only(decode_here("kind: Pod\nmetadata: {name: web}\n"));
    assert_eq!((&*document.as_written, document.result.is_err()), ("", true));
}
