#![allow(clippy::unwrap_used, reason = "tests")]

use super::super::{Identity, ParsedFile, SourcePlace, State};
use super::*;
use crate::model::{Now, ObjectKind, Origin, SourceKind};

/// `web=1` is ConfigMap `web` with this value, `web!=1` an immutable one, `web?` a broken document
/// of this name, and `?` one without a name.
fn document(text: &str, file: &str, index: usize) -> ObjectDocument {
    let position = Position { line: index + 1, column: 1 };
    let key = |name: &str| ObjectKey::new(ObjectKind::ConfigMap, "default", name);
    let broken = || {
        let message = "is wrong".to_owned();
        Err(vec![Problem { position, path: "data".to_owned(), message }])
    };
    let (name, result) = match text.split_once('=') {
        None => (text.trim_end_matches('?'), broken()),
        Some((name, value)) => {
            let immutable = name.ends_with('!');
            let name = name.trim_end_matches('!');
            let location = format!("/m/{file}").into();
            let line = index + 1;
            let origin = Origin { source: SourceKind::File, location, document: index, line };
            let object = DataObject::sample(ObjectKind::ConfigMap, name, &[("k", value)]);
            let object = DataObject { immutable, origin, ..object };
            (name, Ok(Arc::new(object)))
        }
    };
    let key = (!name.is_empty()).then(|| key(name));
    ObjectDocument { position, key, result, warnings: Vec::new() }
}

/// `a.yaml: web=1 db=2; b.yaml: {`: files with their documents. `{` does not parse, `~` is being
/// written, `d` is a directory. `away` alone: the directory is gone.
fn listing(text: &str) -> Listing {
    if text == "away" {
        return Listing { place: SourcePlace::Away("gone".to_owned()), files: Vec::new() };
    }
    let file = |part: &str| {
        let (name, content) = part.split_once(": ").unwrap();
        let look = match content {
            "{" => EntryLook::Unread(Problem {
                position: Position::default(),
                path: String::new(),
                message: "does not parse".to_owned(),
            }),
            "~" => EntryLook::Settling,
            "0" => EntryLook::Read(Arc::default()),
            "d" => EntryLook::Skipped { reason: "a directory".to_owned(), manifest_name: true },
            documents => {
                let all = documents.split(' ').enumerate();
                let objects: Vec<ObjectDocument> =
                    all.map(|(index, text)| document(text, name, index)).collect();
                let broken = objects.iter().any(|object| object.result.is_err());
                EntryLook::Read(Arc::new(ParsedFile { objects, broken, ..ParsedFile::default() }))
            }
        };
        Listed { name: name.into(), location: format!("/m/{name}").into(), look }
    };
    let here = Identity { device: 1, inode: 1, born: None, single_file: false };
    let files = text.split("; ").filter(|part| !part.is_empty()).map(file).collect();
    Listing { place: SourcePlace::Here(here), files }
}

/// What pods read after these looks: `web=1 db=2`.
fn after(looks: &[&str]) -> String {
    let mut state = State::new(SourceKind::File, "/m", false);
    for (n, look) in looks.iter().enumerate() {
        let boot = std::time::Duration::from_secs(n as u64);
        state.step(&listing(look), Now { boot, wall: jiff::Timestamp::UNIX_EPOCH });
    }
    let objects = state.objects();
    assert!(objects.known);
    let value = |object: &DataObject| object.data["k"].as_text().unwrap().to_owned();
    let all = objects.found.iter().map(|(key, object)| format!("{}={}", key.name, value(object)));
    all.collect::<Vec<_>>().join(" ")
}

/// What is said about the documents of the last look.
fn verdicts(looks: &[&str]) -> Vec<String> {
    let mut objects = Objects::default();
    looks.iter().for_each(|look| objects.step(&listing(look)));
    let last = listing(looks.last().unwrap());
    let all = last.files.iter().flat_map(|file| objects.verdicts(file));
    all.map(|verdict| match verdict {
        FileVerdict::Object { key, .. } => format!("{key}"),
        FileVerdict::Rejected { object, problems, last_good, .. } => {
            let kept = if last_good { "kept" } else { "rejected" };
            let name = object.map_or("?".to_owned(), |key| key.to_string());
            format!("{name} {kept}: {}", problems[0].message)
        }
        FileVerdict::Accepted { .. } | FileVerdict::Skipped { .. } => unreachable!(),
    })
    .collect()
}

#[test]
fn the_last_good_data_stay_while_a_document_is_broken() {
    for (looks, expected) in [
        (&["a: web=1"][..], "web=1"),
        (&["a: web=1", "a: web=2"], "web=2"),
        (&["a: web=1", "a: web?"], "web=1"),
        (&["a: web=1", "a: web?", "a: web=3"], "web=3"),
        (&["a: web=1 db=2", "a: web? db=3"], "db=3 web=1"),
        (&["a: web=1 db=2", "a: web?"], "db=2 web=1"),
        (&["a: web=1 db=2", "a: other?"], "db=2 web=1"),
        (&["a: web=1 db=2", "a: other?; b: web=1", "a: other=1; b: web=3"], "other=1 web=3"),
        (&["a: web=1 db=2", "a: web?", "a: web=3"], "web=3"),
        (&["a: web=1 db=2", "a: ?"], "db=2 web=1"),
        (&["a: web=1", "a: {"], "web=1"),
        (&["a: web=1", "a: ~"], "web=1"),
        (&["a: web=1", "a: d"], "web=1"),
        (&["a: web=1", "a: 0"], "web=1"),
        (&["a: web=1", "away"], "web=1"),
        (&["a: web=1", "a: other=1"], "other=1"),
        (&["a: web=1", ""], ""),
        (&["a: web=1; b: db=2", "b: db=2"], "db=2"),
        (&["a: web=1", "b: web?"], ""),
        (&["a: web?"], ""),
        (&["away"], ""),
    ] {
        assert_eq!(after(looks), expected, "{looks:?}");
    }
}

#[test]
fn of_two_documents_with_one_name_the_first_stays() {
    for (looks, expected) in [
        (&["a: web=1; b: web=2"][..], "web=1"),
        (&["b: web=2", "a: web=1; b: web=2"], "web=2"),
        (&["b: web=2", "a: web=1; b: web=3"], "web=3"),
        (&["b: web=2", "a: web=1"], "web=1"),
        (&["b: web=2", "a: web=1; b: web?"], "web=2"),
        (&["b: web=2", "a: web=1; b: {"], "web=2"),
        (&["b: web=2", "a: web=1; b: other=1"], "other=1 web=1"),
        (&["a: web=1 web=2"], "web=1"),
    ] {
        assert_eq!(after(looks), expected, "{looks:?}");
    }
    let said = verdicts(&["b: web=2", "a: web=1; b: web=2"]);
    assert_eq!(
        said,
        [
            "ConfigMap default/web rejected: Duplicate value: \"ConfigMap default/web\": also \
             written in /m/b line 1, which is used: rename or remove one of them",
            "ConfigMap default/web",
        ]
    );
}

#[test]
fn an_immutable_object_changes_only_by_a_new_one() {
    for (looks, expected) in [
        (&["a: web!=1", "a: web!=2"][..], "web=1"),
        (&["a: web!=1", "a: web=1"], "web=1"),
        (&["a: web!=1", "a: web=2"], "web=1"),
        (&["a: web!=1", "a: web=2", "a: web=3"], "web=1"),
        (&["a: web!=1", "", "a: web=2"], "web=2"),
        (&["a: web=1", "a: web!=2"], "web=2"),
    ] {
        assert_eq!(after(looks), expected, "{looks:?}");
    }
    let said = verdicts(&["a: web!=1", "a: web=2"]);
    assert!(said[0].starts_with("ConfigMap default/web kept: Forbidden: field is immutable"));
    assert_eq!(verdicts(&["a: web!=1", "a: db=1 web!=1"])[1], "ConfigMap default/web");
}

#[test]
fn a_broken_document_says_whether_its_data_are_in_use() {
    assert_eq!(verdicts(&["a: web?"]), ["ConfigMap default/web rejected: is wrong"]);
    assert_eq!(verdicts(&["a: web=1", "a: web?"]), ["ConfigMap default/web kept: is wrong"]);
    assert_eq!(verdicts(&["a: ?"]), ["? rejected: is wrong"]);
}

#[test]
fn data_that_did_not_change_are_the_same_object() {
    let mut objects = Objects::default();
    objects.step(&listing("a: web=1"));
    let before = objects.found();
    objects.step(&listing("a: web=1"));
    let (before, after) = (before.found.values().next(), objects.found());
    assert!(Arc::ptr_eq(before.unwrap(), after.found.values().next().unwrap()));
}
