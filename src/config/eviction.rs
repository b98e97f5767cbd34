//! The settings about pressure and eviction.

use super::{
    names,
    read::{Reader, Zero},
    settings::Enforce,
    tree::{Mistake, Place, Tree},
};
use crate::{
    document::nearest,
    model::{CollectOrdered as _, Signal},
    pressure::core::{
        DEFAULT_HARD, EvictionSettings, MemorySignal, MistakeKind, Setting, StaticPods, Threshold,
        Written, parse,
    },
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, time::Duration};

/// The highest priority that a class of pods may have; above are the system's own.
const MAX_CLASS: i64 = 1_000_000_000;
const CLASSES: &str = "priorityClasses";

/// Sets the default of `evictionHard` where the main file does not say anything about it: as for
/// the kubelet, drop-ins are merged over the default then, and over the main file's map otherwise.
pub(super) fn set_default(tree: &mut Tree, place: &Place) {
    let hard = Setting::Hard.name();
    if tree.get(hard).is_none() {
        let all =
            DEFAULT_HARD.iter().map(|(signal, value)| (signal.name().into(), (*value).into()));
        tree.set(hard, &Json::Object(all.collect_ordered()), place);
    }
}

/// Everything about eviction.
pub(super) fn settings(
    r: &mut Reader<'_>,
    nodelet: &mut Reader<'_>,
    enforce: Enforce,
    notices: &mut Vec<Mistake>,
) -> EvictionSettings {
    let default = EvictionSettings::default();
    let grace = r.int("evictionMaxPodGracePeriod", Zero::Value, i64::MIN..=i64::MAX);
    EvictionSettings {
        thresholds: thresholds(r, enforce, notices),
        transition: r
            .duration(
                "evictionPressureTransitionPeriod",
                Zero::Unset,
                Duration::ZERO..=Duration::MAX,
            )
            .unwrap_or(default.transition),
        // Below zero: the pod's own grace period applies.
        max_pod_grace: grace
            .map_or(default.max_pod_grace, |seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
        static_pods: choice(
            nodelet,
            "staticPodEviction",
            [("ranked", StaticPods::Ranked), ("never", StaticPods::Never)],
        ),
        memory_signal: choice(
            nodelet,
            "memorySignal",
            [
                ("workingSet", MemorySignal::WorkingSet),
                ("memAvailable", MemorySignal::MemAvailable),
            ],
        ),
        local_storage_limits: r
            .bool("localStorageCapacityIsolation")
            .unwrap_or(default.local_storage_limits),
    }
}

fn thresholds(r: &mut Reader<'_>, enforce: Enforce, notices: &mut Vec<Mistake>) -> Vec<Threshold> {
    let written = Written {
        hard: map(r, Setting::Hard),
        soft: map(r, Setting::Soft),
        soft_grace: map(r, Setting::SoftGrace),
        min_reclaim: map(r, Setting::MinReclaim),
        merge_defaults: r.bool("mergeDefaultEvictionSettings").unwrap_or(false),
        enforce_pods: enforce == Enforce::Pods,
    };
    match parse(&written) {
        Ok(parsed) => {
            for notice in parsed.notices {
                let (path, place) = at(r, notice.setting, notice.signal.name());
                let message = format!("{}: not acted on: {}", notice.signal, notice.why);
                notices.push(place.mistake(&path, message));
            }
            parsed.thresholds
        }
        Err(wrong) => {
            for mistake in wrong {
                let (path, place) = at(r, mistake.setting, &mistake.key);
                let known = Signal::ALL.into_iter().map(Signal::name);
                let hint = nearest(&mistake.key, known)
                    .filter(|_| mistake.kind == MistakeKind::UnknownSignal)
                    .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
                r.mistakes.push(place.mistake(&path, format!("{mistake}{hint}")));
            }
            Vec::new()
        }
    }
}

/// Path and place of an entry.
fn at<'a>(r: &Reader<'a>, setting: Setting, key: &str) -> (String, &'a Place) {
    let entry = r.entries(setting.name()).into_iter().find(|(name, _)| *name == key);
    let place = entry.map_or(r.tree.place(), |(_, tree)| tree.place());
    (format!("{}[{key}]", setting.name()), place)
}

/// Signals and values as written.
fn map<'a>(r: &Reader<'a>, setting: Setting) -> BTreeMap<&'a str, &'a str> {
    let entries = r.entries(setting.name()).into_iter();
    entries
        .filter_map(|(key, tree)| match tree {
            Tree::Leaf(_, Json::String(text)) => Some((key, text.as_str())),
            Tree::Leaf(..) | Tree::List(..) | Tree::Object(..) => None,
        })
        .collect_ordered()
}

/// One of two words, the first by default.
pub(super) fn choice<T: Copy>(r: &mut Reader<'_>, path: &str, words: [(&str, T); 2]) -> T {
    let [first, second] = words;
    let Some((text, place)) = r.filled_text(path) else { return first.1 };
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return *value;
    }
    let must = format!("must be {} or {}", first.0, second.0);
    r.invalid(place, path, Json::from(text), &must);
    first.1
}

/// `priorityClasses`: names and priorities.
pub(super) fn priority_classes(r: &mut Reader<'_>) -> BTreeMap<String, i32> {
    let mut classes = BTreeMap::new();
    for (name, tree) in r.entries(CLASSES) {
        let path = format!("{CLASSES}[{name}]");
        let place = tree.place();
        let value = match tree {
            Tree::Leaf(_, json) => json.as_i64(),
            Tree::List(..) | Tree::Object(..) => None,
        };
        // The type was checked before.
        let Some(value) = value else { continue };
        if let Err(must) = names::subdomain(name) {
            r.invalid(place, &path, Json::from(name), must);
        } else if name.starts_with("system-") {
            let must =
                "must not begin with \"system-\": those are the system's own and need no entry";
            r.invalid(place, &path, Json::from(name), must);
        }
        match i32::try_from(value).ok().filter(|_| value <= MAX_CLASS) {
            Some(priority) => {
                classes.insert(name.to_owned(), priority);
            }
            None => r.invalid(place, &path, value, "must be at most 1000000000"),
        }
    }
    classes
}

#[cfg(test)]
mod tests;
