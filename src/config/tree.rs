//! What was written, merged over several files and flags, each part with the place it came from.

use crate::{
    document::{Node, Value},
    model::{Position, Problem},
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Where something was written: a file with a position, or a flag (`--registry-burst`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) location: Arc<str>,
    pub(super) position: Position,
    pub(super) layer: Layer,
}

/// What kind of place. Zero values and relative paths mean something else in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Main,
    DropIn,
    Flag,
}

/// A mistake or a notice with the file or flag that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Path of the file, or the flag with its dashes.
    pub location: Arc<str>,
    /// What.
    pub problem: Problem,
}

/// `/etc/nodelet/config.yaml: line 3, column 16: registryBurst: Invalid value: "many": must be a
/// whole number`
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.problem)
    }
}

impl Place {
    /// A mistake at this place. A flag is its own path.
    pub(super) fn mistake(&self, path: &str, message: impl Into<String>) -> Mistake {
        let path = if self.layer == Layer::Flag { "" } else { path };
        Mistake {
            location: Arc::clone(&self.location),
            problem: Problem {
                position: self.position,
                path: path.to_owned(),
                message: message.into(),
            },
        }
    }
}

/// A value with its place; objects are merged key by key, everything else as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Object(Place, BTreeMap<String, Tree>),
    List(Place, Vec<Tree>),
    Leaf(Place, Json),
}

impl Tree {
    /// An object with nothing in it.
    pub(super) fn empty(place: Place) -> Self {
        Self::Object(place, BTreeMap::new())
    }

    pub(super) fn place(&self) -> &Place {
        match self {
            Self::Object(place, _) | Self::List(place, _) | Self::Leaf(place, _) => place,
        }
    }

    /// Applies a document as a JSON merge patch (RFC 7386): objects merge, null takes away, all
    /// else replaces. Nothing is null afterwards.
    pub(super) fn patch(&mut self, node: &Node, base: &Place) {
        let place = Place { position: node.position, ..base.clone() };
        match &node.value {
            Value::Map(_) => {}
            Value::List(items) => {
                let item = |node| {
                    let mut tree = Self::empty(place.clone());
                    tree.patch(node, base);
                    tree
                };
                *self = Self::List(place.clone(), items.iter().map(item).collect());
                return;
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                *self = Self::Leaf(place, node.to_json());
                return;
            }
        }
        if !matches!(self, Self::Object(..)) {
            *self = Self::empty(place.clone());
        }
        let Self::Object(own_place, map) = self else { return };
        *own_place = place.clone();
        // Backwards, so that the first of two equal keys wins, as everywhere (it is an error
        // anyway).
        for entry in node.entries().iter().rev() {
            if entry.value.is_null() {
                map.remove(&entry.key);
            } else {
                map.entry(entry.key.clone())
                    .or_insert_with(|| Self::empty(place.clone()))
                    .patch(&entry.value, base);
            }
        }
    }

    /// Sets what a flag says, over whatever is there.
    pub(super) fn set(&mut self, path: &str, value: &Json, place: &Place) {
        if !matches!(self, Self::Object(..)) {
            *self = Self::empty(place.clone());
        }
        let Self::Object(_, map) = self else { return };
        let (name, rest) = path.split_once('.').map_or((path, None), |(n, r)| (n, Some(r)));
        match rest {
            Some(rest) => map
                .entry(name.to_owned())
                .or_insert_with(|| Self::empty(place.clone()))
                .set(rest, value, place),
            None => {
                let mut tree = Self::empty(place.clone());
                tree.patch(&Node::from_json(value), place);
                map.insert(name.to_owned(), tree);
            }
        }
    }

    /// What stands at a path (`logging.format`).
    pub(super) fn get(&self, path: &str) -> Option<&Self> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(n, r)| (n, Some(r)));
        let Self::Object(_, map) = self else { return None };
        let inner = map.get(name)?;
        rest.map_or(Some(inner), |rest| inner.get(rest))
    }
}
