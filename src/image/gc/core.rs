//! The pure part: which images may go, which of them first, how much is to be freed, and what is
//! remembered for it.

use crate::{
    model::{CollectOrdered as _, Event, EventKind, EventTarget, Now, Order as _},
    podspec::image_name::full_names,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// `imageGC*Threshold*`, `image*GCAge`, `imageGC.includeForeign`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcSettings {
    /// Percent of the file system in use from which on images are removed.
    pub high_percent: u8,
    /// Percent down to which they are.
    pub low_percent: u8,
    /// Younger ones stay.
    pub minimum_age: Duration,
    /// Ones that were not used for longer go without any need; `None`: they stay.
    pub maximum_age: Option<Duration>,
    /// Whether images may go that the agent did not pull.
    pub include_foreign: bool,
}

impl GcSettings {
    /// Whether there is never anything to do but under pressure.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.maximum_age.is_none()
    }
}

/// An image that is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The runtime's id.
    pub id: String,
    /// `repository:tag`, in full.
    pub tags: Vec<String>,
    /// `repository@algorithm:hex`, in full.
    pub digests: Vec<String>,
    /// Bytes, layers that other images share included.
    pub size: u64,
    /// The runtime says that it must stay (the pause image).
    pub pinned: bool,
}

impl Present {
    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tags.first().or(self.digests.first()).unwrap_or(&self.id)
    }

    fn is_called(&self, names: &BTreeSet<String>) -> bool {
        let all = [&self.id].into_iter().chain(&self.tags).chain(&self.digests);
        all.into_iter().any(|name| names.contains(name))
    }
}

/// What must stay, by every name that images have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    containers: BTreeSet<String>,
    manifests: BTreeSet<String>,
}

impl InUse {
    /// The image of a container, running or dead, as the runtime tells it: id, reference or name.
    pub fn by_container(&mut self, image: &str) {
        self.containers.extend(full_names(image));
    }

    /// An image that a current manifest names, whether its pod runs or not.
    pub fn by_manifest(&mut self, image: &str) {
        self.manifests.extend(full_names(image));
    }

    /// True when a manifest names the image.
    #[must_use]
    pub fn is_named(&self, image: &Present) -> bool {
        image.is_called(&self.manifests)
    }
}

/// A time by both clocks: boot time, which can't be set, is used within the same boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Moment {
    wall: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<Duration>,
}

impl Moment {
    fn of(now: Now) -> Self {
        Self { wall: now.wall, boot: Some(now.boot) }
    }

    fn age(self, now: Now) -> Duration {
        self.boot.map_or_else(|| now.age_of(self.wall), |boot| now.boot.saturating_sub(boot))
    }
}

/// What is remembered of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    first: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    used: Option<Moment>,
    /// It was pulled by this agent, and was not there before.
    #[serde(default)]
    pulled: bool,
}

/// A pull that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedPull {
    /// The runtime's id of the image.
    pub id: String,
    /// Boot time at which it began.
    pub began: Duration,
    /// When it ended.
    pub ended: Now,
}

/// What is remembered of the images, over restarts and reboots. An unknown image counts as new, and
/// without a record of a pull as not pulled by the agent, so that the loss of this history removes
/// no image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageHistory {
    /// `/proc/sys/kernel/random/boot_id` of the boot times in here.
    boot_id: String,
    images: BTreeMap<String, Seen>,
    /// Of the last look: images that were in use then have it as the time of their last use.
    #[serde(skip)]
    looked: Option<Moment>,
}

impl ImageHistory {
    /// Goes on in this boot: boot times of another one mean nothing.
    #[must_use]
    pub fn resumed(mut self, boot_id: &str) -> Self {
        if self.boot_id != boot_id {
            for seen in self.images.values_mut() {
                seen.first.boot = None;
                if let Some(used) = &mut seen.used {
                    used.boot = None;
                }
            }
            boot_id.clone_into(&mut self.boot_id);
        }
        self
    }

    /// Takes in a pull that ended well. An image that was there before stays whose it was. One that
    /// was first seen during the pull has come from it.
    pub fn pulled(&mut self, EndedPull { id, began, ended }: EndedPull) {
        let new = Seen { first: Moment::of(ended), used: None, pulled: true };
        let seen = self.images.entry(id).or_insert(new);
        seen.pulled |= seen.first.boot.is_some_and(|boot| boot >= began);
    }

    /// Forgets images that were removed: one that somebody imports again is new, and theirs.
    pub fn removed<'a>(&mut self, ids: impl IntoIterator<Item = &'a str>) {
        for id in ids {
            self.images.remove(id);
        }
    }

    /// Takes in everything that is present. `began` is the boot time at which the runtime was
    /// asked: what was pulled later is not forgotten. `has_record` tells of an unknown image
    /// whether a pull of it is on record: an earlier run of the agent may have ended before it
    /// has saved the history.
    pub fn observe(
        &mut self,
        present: &[Present],
        in_use: &InUse,
        began: Duration,
        now: Now,
        has_record: impl Fn(&Present) -> bool,
    ) {
        // A runtime without any image has most likely lost sight of them.
        if present.is_empty() {
            return;
        }
        self.looked = Some(Moment::of(now));
        let ids: BTreeSet<&str> = present.iter().map(|image| image.id.as_str()).collect_ordered();
        let newer = |seen: &Seen| seen.first.boot.is_some_and(|boot| boot >= began);
        self.images.retain(|id, seen| ids.contains(id.as_str()) || newer(seen));
        for image in present {
            let new = || Seen { first: Moment::of(now), used: None, pulled: has_record(image) };
            let seen = self.images.entry(image.id.clone()).or_insert_with(new);
            if image.is_called(&in_use.containers) {
                seen.used = Some(Moment::of(now));
            }
        }
    }
}

/// By how much the time of use on disk may lag behind for an image that is still in use: it is seen
/// to be at the next start.
const LAG: Duration = Duration::from_secs(3600);

impl ImageHistory {
    /// Whether this is to be written in place of what was `saved`: other images, the end of a use,
    /// or times that are later by an hour. Times of use change with every look, and a disk is not to
    /// be kept awake by them.
    #[must_use]
    pub fn is_worth_saving(&self, saved: &Self) -> bool {
        let alike = |(seen, old): (&Seen, &Seen)| {
            let times = (seen.used.map(|used| used.wall), old.used.map(|used| used.wall));
            let in_use = seen.used.is_some() && seen.used == self.looked;
            let near = match times {
                (Some(new), Some(old)) if in_use => new.duration_since(old).unsigned_abs() < LAG,
                (Some(new), Some(old)) => new == old,
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            near && seen.pulled == old.pulled
        };
        self.boot_id != saved.boot_id
            || !self.images.keys().eq(saved.images.keys())
            || !self.images.values().zip(saved.images.values()).all(alike)
    }
}

/// Why an image stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum KeptBecause {
    /// The runtime says so.
    Pinned,
    /// A container has it, running or dead.
    InUse,
    /// A current manifest names it.
    Named,
    /// The agent did not pull it.
    Foreign,
    /// It has not been there for long.
    Young,
}

/// An image that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removable {
    /// It is removed by its id. Less than its size may become free.
    pub image: Present,
    /// Since it was last used, or has been there unused.
    pub idle: Duration,
}

/// What may go, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    /// In this order.
    pub removable: Vec<Removable>,
    /// By name, with the reason.
    pub kept: BTreeMap<String, KeptBecause>,
}

impl GcPlan {
    /// The images that are removed even without a shortage because they have not been used for
    /// long.
    #[must_use]
    pub fn too_old(&self, settings: &GcSettings) -> Vec<Removable> {
        let old = |image: &&Removable| settings.maximum_age.is_some_and(|most| image.idle > most);
        self.removable.iter().filter(old).cloned().collect()
    }
}

/// Which images may go: the least recently used first, of those never used the one that has been
/// there longest.
#[must_use]
pub fn plan(
    present: &[Present],
    in_use: &InUse,
    history: &ImageHistory,
    settings: &GcSettings,
    now: Now,
) -> GcPlan {
    let mut plan = GcPlan::default();
    let mut order = Vec::new();
    for image in present {
        let seen = history.images.get(&image.id);
        let age = seen.map_or(Duration::ZERO, |seen| seen.first.age(now));
        let because = [
            (image.pinned, KeptBecause::Pinned),
            (image.is_called(&in_use.containers), KeptBecause::InUse),
            (in_use.is_named(image), KeptBecause::Named),
            (!settings.include_foreign && !seen.is_some_and(|s| s.pulled), KeptBecause::Foreign),
            (age < settings.minimum_age, KeptBecause::Young),
        ];
        if let Some((_, why)) = because.into_iter().find(|(holds, _)| *holds) {
            plan.kept.insert(image.name().to_owned(), why);
            continue;
        }
        let used = seen.and_then(|seen| seen.used).map(|used| used.age(now));
        let removable = Removable { image: image.clone(), idle: used.unwrap_or(age) };
        order.push((used.unwrap_or(Duration::MAX), age, removable));
    }
    order.order_by(|(used, age, image), (other_used, other_age, other)| {
        other_used.cmp(used).then(other_age.cmp(age)).then(image.image.id.cmp(&other.image.id))
    });
    plan.removable = order.into_iter().map(|(_, _, removable)| removable).collect();
    plan
}

/// How much is to be freed on a file system with so many bytes, to get it from the high threshold
/// down to the low one. `None`: it is below the high one.
#[must_use]
pub fn to_free(settings: &GcSettings, available: u64, capacity: u64) -> Option<u64> {
    if used_percent(available, capacity) < u64::from(settings.high_percent) {
        return None;
    }
    let free = 100_u64.saturating_sub(u64::from(settings.low_percent));
    let wanted = u128::from(capacity) * u128::from(free) / 100;
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    Some(wanted.saturating_sub(available)).filter(|bytes| *bytes > 0)
}

/// Whole percent, as the kubelet counts: what is available is rounded down.
fn used_percent(available: u64, capacity: u64) -> u64 {
    let available = u128::from(available.min(capacity)) * 100 / u128::from(capacity.max(1));
    100 - u64::try_from(available).unwrap_or(100)
}

/// The event when less than needed could be freed.
#[must_use]
pub fn not_enough(available: u64, capacity: u64, freed: u64) -> Event {
    let message = format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
        used_percent(available, capacity),
        binary(capacity),
    );
    node_event("FreeDiskSpaceFailed", message)
}

/// The event when the collection has failed twice in a row.
#[must_use]
pub fn failed(message: String) -> Event {
    node_event("ImageGCFailed", message)
}

fn node_event(reason: &'static str, message: String) -> Event {
    Event { target: EventTarget::Node, kind: EventKind::Warning, reason, message }
}

/// `9.8GiB`
fn binary(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{}{}", tenths / 10, tenths % 10, units[unit])
}

#[cfg(test)]
mod tests;
