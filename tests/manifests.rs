//! The fixtures of `tests/manifests`, whose last lines say what is to be said about them, and
//! `docs/manifests.md`, which is made from the field table.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "scenarios/shown.rs"]
mod shown;

use nodelet::{
    manifest::{Context, Settings, decode, markdown},
    model::SourceKind,
};
use std::path::{Path, PathBuf};

fn fixtures(directory: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests").join(directory);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "json"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no fixtures", root.display());
    files
}

/// What is said about a text, a line each.
fn said_about(text: &str) -> Vec<String> {
    let settings = Settings {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned()],
        priority_classes: [("batch".to_owned(), -5)].into(),
        runtime_classes: [("sandboxed".to_owned(), "runsc".to_owned())].into(),
    };
    let context = Context {
        node_name: "node1",
        source: SourceKind::File,
        location: "/etc/nodelet/static-pods/web.yaml",
        seen: "2026-01-31T12:00:00Z".parse().unwrap(),
        settings: &settings,
    };
    let file = match decode(text.as_bytes(), &context) {
        Ok(file) => file,
        Err(problem) => return vec![format!("verdict: {problem}")],
    };
    let mut lines = Vec::new();
    for document in file.documents {
        let problems = document.result.err().unwrap_or_default();
        lines.extend(problems.iter().map(|p| format!("verdict: {p}")));
        lines.extend(document.warnings.iter().map(|w| format!("warning: {w}")));
    }
    for object in file.objects {
        let problems = object.result.err().unwrap_or_default();
        lines.extend(problems.iter().map(|p| format!("verdict: {p}")));
        lines.extend(object.warnings.iter().map(|w| format!("warning: {w}")));
    }
    lines
}

/// A fixture's text without the expected lines, and those. JSON has no comments: there they stand
/// in a file beside it.
fn split(path: &Path) -> (String, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    let expected = match path.extension() {
        Some(e) if e == "json" => {
            std::fs::read_to_string(path.with_extension("json.verdict")).unwrap_or_default()
        }
        _ => text.clone(),
    };
    let marked = |line: &str| line.starts_with("# verdict: ") || line.starts_with("# warning: ");
    let body = text.split_inclusive('\n').filter(|line| !marked(line)).collect();
    let expected =
        expected.lines().filter(|line| marked(line)).map(|line| line[2..].to_owned()).collect();
    (body, expected)
}

fn update(path: &Path, body: &str, said: &[String]) {
    let lines: String = said.iter().map(|line| format!("# {line}\n")).collect();
    if path.extension().is_some_and(|e| e == "json") {
        if !said.is_empty() {
            std::fs::write(path.with_extension("json.verdict"), lines).unwrap();
        }
    } else {
        std::fs::write(path, format!("{body}{lines}")).unwrap();
    }
}

fn check(directory: &str, accepted: bool) {
    let mut wrong = Vec::new();
    for path in fixtures(directory) {
        let (body, expected) = split(&path);
        let said = said_about(&body);
        if std::env::var_os("UPDATE_VERDICTS").is_some() {
            update(&path, &body, &said);
        } else if said != expected {
            wrong.push(format!("{}:\n{}", path.display(), said.join("\n")));
        }
        let rejected = said.iter().any(|line| line.starts_with("verdict: "));
        if accepted == rejected {
            wrong.push(format!("{} is in the wrong directory: {said:#?}", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "not what the last lines of these fixtures say:\n{}",
        wrong.join("\n\n")
    );
}

#[test]
fn good_manifests_are_accepted() {
    check("good", true);
}

#[test]
fn bad_manifests_get_every_verdict_at_once() {
    check("bad", false);
}

#[test]
fn docs_manifests_is_made_from_the_field_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/manifests.md");
    let expected = markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/manifests.md is not what the field table says: UPDATE_DOCS=1 cargo test --test manifests"
    );
}
