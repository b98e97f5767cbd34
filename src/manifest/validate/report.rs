//! Collects mistakes in the API's error style.

use super::names::NameSyntaxError;
use crate::document::show;
use serde_json::Value;

/// A mistake before its place in the text is known: field path and message.
pub(in crate::manifest) type Mistake = (String, String);

/// The maximum number of mistakes that are reported: a hostile text could contain millions.
const MAX_MISTAKES: usize = 100;

/// What was found so far.
#[derive(Default)]
pub(in crate::manifest) struct Report {
    pub(in crate::manifest) mistakes: Vec<Mistake>,
    pub(in crate::manifest) warnings: Vec<Mistake>,
}

impl Report {
    /// `Required value`
    pub(in crate::manifest) fn required(&mut self, path: &str) {
        self.add(path, "Required value".to_owned());
    }

    /// `Required value: must be ...`
    pub(in crate::manifest) fn required_because(&mut self, path: &str, detail: &str) {
        self.add(path, format!("Required value: {detail}"));
    }

    /// `Invalid value: "x": must be ...`
    pub(in crate::manifest) fn invalid(
        &mut self,
        path: &str,
        value: impl Into<Value>,
        detail: &str,
    ) {
        self.add(path, format!("Invalid value: {}: {detail}", show(&value.into())));
    }

    /// `Invalid value: must be ...`, without a value that may be secret.
    pub(in crate::manifest) fn wrong(&mut self, path: &str, detail: &str) {
        self.add(path, format!("Invalid value: {detail}"));
    }

    /// `Unsupported value: "x": supported values: "a", "b"`
    pub(super) fn unsupported_value(&mut self, path: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let (value, supported) = (show(&value.into()), supported.join(", "));
        self.add(path, format!("Unsupported value: {value}: supported values: {supported}"));
    }

    /// `Duplicate value: "x"`
    pub(super) fn duplicate(&mut self, path: &str, value: impl Into<Value>) {
        self.add(path, format!("Duplicate value: {}", show(&value.into())));
    }

    /// `Not found: "x"`
    pub(super) fn not_found(&mut self, path: &str, value: &str) {
        self.add(path, format!("Not found: {}", show(&value.into())));
    }

    /// `Forbidden: may not ...`
    pub(super) fn forbidden(&mut self, path: &str, detail: &str) {
        self.add(path, format!("Forbidden: {detail}"));
    }

    /// `Unsupported: not in this version`: valid for Kubernetes, not honoured here.
    pub(super) fn not_honoured(&mut self, path: &str, detail: &str) {
        self.add(path, format!("Unsupported: {detail}"));
    }

    /// `Too long: may not be more than 63 bytes`
    pub(in crate::manifest) fn too_long(&mut self, path: &str, limit: usize) {
        self.add(path, format!("Too long: may not be more than {limit} bytes"));
    }

    /// `Too long: must be ...`
    pub(super) fn too_long_because(&mut self, path: &str, detail: &str) {
        self.add(path, format!("Too long: {detail}"));
    }

    /// `Too many: 4: must have at most 3 items`
    pub(super) fn too_many(&mut self, path: &str, count: usize, limit: usize) {
        self.add(path, format!("Too many: {count}: must have at most {limit} items"));
    }

    /// Something harmless that a person should know.
    pub(super) fn warn(&mut self, path: &str, message: &str) {
        if self.warnings.len() < MAX_MISTAKES {
            self.warnings.push((path.to_owned(), message.to_owned()));
        }
    }

    /// The value must be one of the supported ones; absent is fine.
    pub(super) fn one_of(&mut self, path: &str, value: Option<&str>, supported: &[&str]) {
        if let Some(value) = value
            && !supported.contains(&value)
        {
            self.unsupported_value(path, value, supported);
        }
    }

    /// The text must satisfy a rule of [`super::names`]; empty counts as missing.
    pub(super) fn name(
        &mut self,
        path: &str,
        value: &str,
        rule: fn(&str) -> Result<(), NameSyntaxError>,
    ) {
        if value.is_empty() {
            self.required(path);
        } else if let Err(detail) = rule(value) {
            self.invalid(path, value, &detail.to_string());
        }
    }

    fn add(&mut self, path: &str, message: String) {
        if self.mistakes.len() < MAX_MISTAKES {
            self.mistakes.push((path.to_owned(), message));
        }
    }
}
