//! What a source would say about a path or a text as it is now, for people who ask beforehand.
//!
//! The same listing, reading and deciding as the running agent's, done once: nothing was accepted
//! before, and every file is taken as written.

use super::{
    SourceOptions,
    core::{EntryLook, Identity, Listed, Listing, SourcePlace, State},
    lister::{Lister, LookContext},
    reader::Reader,
};
use crate::{
    desired::SourceSnapshot,
    model::{CollectOrdered as _, Now, SourceKind},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

/// What the agent would say of `path`, a directory or a file, if it were `staticPodPath`. Blocks.
///
/// Of `options` only the node's name and the settings count.
#[must_use]
pub fn inspect(path: &Path, options: &SourceOptions, now: Now) -> SourceSnapshot {
    let location = path.to_string_lossy();
    let mut lister = Lister::new(path.components().collect(), reader(options), BTreeMap::new());
    let mut known = LookContext {
        home: None,
        accepted: Vec::new(),
        closed: BTreeSet::new(),
        open: BTreeSet::new(),
    };
    let first = lister.look(&known, now);
    let is_settling = |file: &&Listed| file.look == EntryLook::Settling;
    known.closed =
        first.files.iter().filter(is_settling).map(|file| file.name.clone()).collect_ordered();
    let listing = if known.closed.is_empty() { first } else { lister.look(&known, now) };
    State::new(SourceKind::File, &location, false).step(&listing, now).snapshot
}

/// What the agent would say of a file at `location` with this text.
#[must_use]
pub fn inspect_text(
    text: &[u8],
    location: &str,
    options: &SourceOptions,
    now: Now,
) -> SourceSnapshot {
    let look = match reader(options).read(text, location, &[], now.wall, None) {
        Ok(reading) => EntryLook::Read(Arc::new(reading)),
        Err(problem) => EntryLook::Unread(problem),
    };
    let file = Listed { name: location.into(), location: location.into(), look };
    let nowhere = Identity { device: 0, inode: 0, born: None, single_file: true };
    let listing = Listing { place: SourcePlace::Here(nowhere), files: vec![file] };
    State::new(SourceKind::File, location, false).step(&listing, now).snapshot
}

fn reader(options: &SourceOptions) -> Reader {
    Reader {
        kind: SourceKind::File,
        accepts: options.accepts,
        credentials: options.credentials.clone(),
        node_name: options.node_name.as_str().into(),
        settings: Arc::new(options.settings.clone()),
    }
}
