//! Who names a pod in a listing, and which of them is believed.

use super::{AGREEMENT, AcceptedPod, Document, EntryLook, Listing, same_pod};
use crate::model::PodKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// What a listing says about each pod.
pub(super) struct Claims<'a> {
    by_key: BTreeMap<&'a PodKey, Vec<Claim<'a>>>,
    /// Files that are there and don't tell all that they hold: their pods stay.
    holding: BTreeSet<&'a str>,
}

/// One document that names a pod.
struct Claim<'a> {
    file: usize,
    name: &'a str,
    document: &'a Document,
}

/// What becomes of one pod.
#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// Take this document, of the file at this place of the listing.
    Use(usize, &'a Document),
    /// The last good revision stays.
    Keep,
    /// It is not written anywhere and stays for now.
    Missing {
        /// Another look has agreed: it stays because a broken document has its name.
        settled: bool,
    },
    Remove,
}

impl Claim<'_> {
    fn is_valid(&self) -> bool {
        self.document.result.is_ok()
    }

    fn is_same(&self, kept: &AcceptedPod) -> bool {
        let both = self.document.result.as_ref().ok().zip(kept.pod.as_ref().ok());
        both.is_some_and(|(written, kept)| same_pod(written, kept))
    }
}

impl<'a> Claims<'a> {
    pub(super) fn of(listing: &'a Listing) -> Self {
        let mut claims = Self { by_key: BTreeMap::new(), holding: BTreeSet::new() };
        for (file, listed) in listing.files.iter().enumerate() {
            if listed.look.holds() {
                claims.holding.insert(&listed.name);
            }
            let EntryLook::Read(reading) = &listed.look else { continue };
            for document in &reading.documents {
                if let Some(key) = &document.key {
                    let claim = Claim { file, name: &listed.name, document };
                    claims.by_key.entry(key).or_default().push(claim);
                }
            }
        }
        claims
    }

    /// The pods that are named, broken documents included.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a PodKey> {
        self.by_key.keys().copied()
    }

    /// Which revision of a pod is wanted. The file that it was taken from goes first: a second file
    /// of the same name takes over when it says the same, or when the first one is cleanly gone.
    pub(super) fn decide(
        &self,
        key: &PodKey,
        kept: Option<&AcceptedPod>,
        now: Duration,
    ) -> Decision<'a> {
        let claims = self.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        let first_valid = || claims.iter().find(|claim| claim.is_valid());
        let Some(kept) = kept else {
            return first_valid().map_or(Decision::Remove, Claim::taken);
        };
        let at_home: Vec<&Claim<'a>> =
            claims.iter().filter(|claim| claim.name == &*kept.file).collect();
        if !at_home.is_empty() {
            return at_home_decision(&at_home, kept);
        }
        if let Some(moved) = claims.iter().find(|claim| claim.is_same(kept)) {
            return moved.taken();
        }
        if self.holding.contains(&*kept.file) {
            return Decision::Keep;
        }
        match kept.presence.missing_since() {
            Some(since) if now.saturating_sub(since) >= AGREEMENT => {
                match (first_valid(), claims.is_empty()) {
                    (Some(other), _) => other.taken(),
                    // A broken document of its name: it is still wanted, in some way.
                    (None, false) => Decision::Missing { settled: true },
                    (None, true) => Decision::Remove,
                }
            }
            Some(_) | None => Decision::Missing { settled: false },
        }
    }
}

impl<'a> Claim<'a> {
    fn taken(&self) -> Decision<'a> {
        Decision::Use(self.file, self.document)
    }
}

/// Between the documents of the file that the pod was taken from.
fn at_home_decision<'a>(claims: &[&Claim<'a>], kept: &AcceptedPod) -> Decision<'a> {
    if let Some(same) = claims.iter().find(|claim| claim.is_same(kept)) {
        return same.taken();
    }
    let place = kept.origin().document;
    let in_place = claims.iter().find(|claim| claim.document.index == place);
    match in_place.or_else(|| claims.iter().find(|claim| claim.is_valid())) {
        Some(claim) if claim.is_valid() => claim.taken(),
        Some(_) | None => Decision::Keep,
    }
}

impl EntryLook {
    /// Whether a file may still hold pods and objects that it does not show.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Unread(_) | Self::Settling => true,
            Self::Skipped { manifest_name, .. } => *manifest_name,
            Self::Read(reading) => reading.broken || reading.is_empty(),
        }
    }
}
