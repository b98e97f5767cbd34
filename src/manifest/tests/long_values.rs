//! A long value is cut wherever a message repeats it.

use super::decode_here;
use serde_json::Value;
use std::{fs, path::Path};

/// Longer than all text around a value in any message, in bytes.
const LONGEST_MESSAGE: usize = 8 << 10;

/// The JSON pointers of all strings below `value`.
fn strings(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(pointer.to_owned()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                strings(item, &format!("{pointer}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                strings(field, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn no_message_repeats_a_long_value_whole() {
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests/good");
    let mut rejected = 0;
    for entry in fs::read_dir(good).unwrap() {
        let file = decode_here(&fs::read_to_string(entry.unwrap().path()).unwrap());
        for document in file.documents.iter().filter(|document| document.result.is_ok()) {
            let whole: Value = serde_json::from_str(&document.as_written).unwrap();
            let mut pointers = Vec::new();
            strings(&whole, "", &mut pointers);
            let long = ["x9", "X9"].map(|text| text.repeat(10_000));
            for (pointer, long) in pointers.iter().flat_map(|p| long.iter().map(move |l| (p, l))) {
                let mut changed = whole.clone();
                *changed.pointer_mut(pointer).unwrap() = long.as_str().into();
                for document in decode_here(&changed.to_string()).documents {
                    let problems = document.result.as_ref().err().into_iter().flatten();
                    for problem in problems.chain(&document.warnings) {
                        let text = problem.to_string();
                        assert!(text.len() < LONGEST_MESSAGE, "{pointer}: {:.300}", text);
                    }
                    rejected += usize::from(document.result.is_err());
                }
            }
        }
    }
    assert!(rejected > 100, "{rejected}");
}
