use std::path::Path;

#[test]
fn docs_manifests_is_made_from_the_field_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/manifests.md");
    let expected = crate::manifest::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/manifests.md is not what the field table says: UPDATE_DOCS=1 cargo test --lib manifest"
    );
}
