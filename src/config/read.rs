//! Typed access to what was merged: zero values, ranges, paths, each mistake at its place.
//!
//! Types were checked file by file before, with better messages: here a value of the wrong type
//! just counts as not set.

use super::tree::{Layer, Mistake, Place, Tree};
use crate::model::{format_duration, parse_duration};
use serde_json::Value as Json;
use std::{
    fmt,
    ops::RangeInclusive,
    path::{Component, PathBuf},
    time::Duration,
};

/// What a zero in a file means. A flag's zero is always a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    /// The same as nothing: the field is no pointer in the kubelet's types.
    Unset,
    /// A value.
    Value,
}

/// Against what relative paths are read.
#[derive(Clone, Debug)]
pub(super) struct Bases {
    /// Directory of the main file.
    pub(super) main: PathBuf,
    /// Directory in which the agent was started, for flags and drop-ins.
    pub(super) working: PathBuf,
}

pub(super) struct Reader<'a> {
    pub(super) tree: &'a Tree,
    pub(super) bases: &'a Bases,
    pub(super) mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(tree: &'a Tree, bases: &'a Bases) -> Self {
        Self { tree, bases, mistakes: Vec::new() }
    }

    /// Reports `value` at `path`.
    pub(super) fn invalid(
        &mut self,
        place: &Place,
        path: &str,
        value: impl fmt::Display,
        must: &str,
    ) {
        self.mistakes.push(place.mistake(path, format!("Invalid value: {value}: {must}")));
    }

    pub(super) fn leaf(&self, path: &str) -> Option<(&'a Json, &'a Place)> {
        match self.tree.get(path)? {
            Tree::Leaf(place, json) => Some((json, place)),
            Tree::Object(..) | Tree::List(..) => None,
        }
    }

    pub(super) fn bool(&self, path: &str) -> Option<bool> {
        self.leaf(path)?.0.as_bool()
    }

    /// Whether a switch was set to true, with its place.
    pub(super) fn switched_on(&self, path: &str) -> Option<&'a Place> {
        let (json, place) = self.leaf(path)?;
        (json.as_bool() == Some(true)).then_some(place)
    }

    pub(super) fn int(
        &mut self,
        path: &str,
        zero: Zero,
        range: RangeInclusive<i64>,
    ) -> Option<i64> {
        let (json, place) = self.leaf(path)?;
        let number = json.as_i64()?;
        if number == 0 && zero == Zero::Unset && place.layer != Layer::Flag {
            return None;
        }
        if !range.contains(&number) {
            let must = if *range.end() == i64::MAX || *range.end() == i64::from(i32::MAX) {
                format!("must be {} or more", range.start())
            } else {
                format!("must be between {} and {}", range.start(), range.end())
            };
            self.invalid(place, path, number, &must);
            return None;
        }
        Some(number)
    }

    /// A number that is neither negative nor larger than 32 bits.
    pub(super) fn count(&mut self, path: &str, zero: Zero) -> Option<u32> {
        self.int(path, zero, 0..=i64::from(i32::MAX)).and_then(|n| u32::try_from(n).ok())
    }

    pub(super) fn duration(
        &mut self,
        path: &str,
        zero: Zero,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let (json, place) = self.leaf(path)?;
        let duration = parse_duration(json.as_str()?)?;
        if duration.is_zero() && zero == Zero::Unset && place.layer != Layer::Flag {
            return None;
        }
        if !range.contains(&duration) {
            let (low, high) = (format_duration(*range.start()), format_duration(*range.end()));
            let must = if *range.end() == Duration::MAX {
                format!("must be {low} or more")
            } else {
                format!("must be between {low} and {high}")
            };
            self.invalid(place, path, Json::from(format_duration(duration)), &must);
            return None;
        }
        Some(duration)
    }

    /// Text, which may be empty.
    pub(super) fn text(&self, path: &str) -> Option<(&'a str, &'a Place)> {
        let (json, place) = self.leaf(path)?;
        Some((json.as_str()?, place))
    }

    /// Text, where empty means not set.
    pub(super) fn filled_text(&self, path: &str) -> Option<(&'a str, &'a Place)> {
        self.text(path).filter(|(text, _)| !text.is_empty())
    }

    /// The texts of a list with their places; `None` when there is no list.
    pub(super) fn texts(&self, path: &str) -> Option<Vec<(&'a str, &'a Place)>> {
        self.tree.get(path).and_then(texts)
    }

    /// The items of a list.
    pub(super) fn items(&self, path: &str) -> Vec<&'a Tree> {
        match self.tree.get(path) {
            Some(Tree::List(_, items)) => items.iter().collect(),
            Some(Tree::Object(..) | Tree::Leaf(..)) | None => Vec::new(),
        }
    }

    /// Keys of a mapping with their values.
    pub(super) fn entries(&self, path: &str) -> Vec<(&'a str, &'a Tree)> {
        match self.tree.get(path) {
            Some(Tree::Object(_, map)) => map.iter().map(|(key, tree)| (&**key, tree)).collect(),
            Some(Tree::List(..) | Tree::Leaf(..)) | None => Vec::new(),
        }
    }

    /// A path made absolute.
    pub(super) fn path(&mut self, path: &str) -> Option<PathBuf> {
        let (text, place) = self.filled_text(path)?;
        self.absolute(text, place, path)
    }

    pub(super) fn absolute(&mut self, text: &str, place: &Place, path: &str) -> Option<PathBuf> {
        let base = match place.layer {
            Layer::Main => &self.bases.main,
            Layer::DropIn | Layer::Flag => &self.bases.working,
        };
        let whole: PathBuf =
            base.join(text).components().filter(|c| !matches!(c, Component::CurDir)).collect();
        if text.contains('\0') || whole.components().any(|c| c == Component::ParentDir) {
            self.invalid(place, path, Json::from(text), "must be a path without \"..\"");
            return None;
        }
        Some(whole)
    }
}

/// The texts of a list with their places; `None` for anything else.
pub(super) fn texts(tree: &Tree) -> Option<Vec<(&str, &Place)>> {
    let Tree::List(_, items) = tree else { return None };
    let text = items.iter().filter_map(|item| match item {
        Tree::Leaf(place, Json::String(text)) => Some((text.as_str(), place)),
        Tree::Leaf(..) | Tree::List(..) | Tree::Object(..) => None,
    });
    Some(text.collect())
}
