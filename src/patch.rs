//! Strategic-merge patches of a status: what the API server has, what the node says, and out comes
//! what is to be sent.
//!
//! A status has more than one writer. A patch therefore carries only fields that are ours, and of a
//! list of conditions only ours; what others wrote is neither repeated nor removed. It does not
//! depend on the observed object more than it must: a field that differs is sent whole, so that a
//! patch made from a stale object still makes the field what it should be.
//!
//! Two values are equal when the API server would store the same: nothing is as good as an empty
//! list, mapping or text, quantities are compared by amount, times by the second.

use crate::model::{CollectOrdered as _, Quantity};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// How a status is merged, and what of it is ours. Fields that are not named are others'.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// By field of the status.
    pub fields: &'static [(&'static str, Merge)],
}

/// How the API server merges a field of a patch with what it has.
#[derive(Clone, Copy, Debug)]
pub enum Merge {
    /// It takes the new value: texts, lists without a merge key.
    Whole,
    /// Key by key: mappings and objects. Keys that are gone are sent as null.
    Keys,
    /// By a merge key that can't tell two entries apart, or can't say that one is gone: sent as the
    /// new whole.
    List,
    /// By `type`.
    Conditions(Conditions),
}

/// The conditions that are ours.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Removed where we do not have them.
    pub ours: &'static [&'static str],
    /// Written where we have them, left alone where we have not.
    pub shared: &'static [&'static str],
    /// Fields of a condition that are no reason to write it.
    pub ignored: &'static [&'static str],
}

/// The conditions of a Node that it writes itself.
pub const NODE_CONDITIONS: &[&str] = &["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// `NodeStatus`, as far as a node writes it.
pub const NODE_STATUS: Rules = Rules {
    fields: &[
        ("addresses", Merge::List),
        ("allocatable", Merge::Keys),
        ("capacity", Merge::Keys),
        (
            "conditions",
            Merge::Conditions(Conditions {
                ours: NODE_CONDITIONS,
                shared: &[],
                ignored: &["lastHeartbeatTime"],
            }),
        ),
        ("daemonEndpoints", Merge::Keys),
        ("declaredFeatures", Merge::Whole),
        ("features", Merge::Keys),
        ("images", Merge::Whole),
        ("nodeInfo", Merge::Keys),
        ("runtimeHandlers", Merge::Whole),
        ("volumesInUse", Merge::Whole),
    ],
};

/// `PodStatus`, as far as a node writes it. `qosClass` is not among it: the API server computes it
/// when the pod is created, and refuses every change.
pub const POD_STATUS: Rules = Rules {
    fields: &[
        ("allocatedResources", Merge::Keys),
        (
            "conditions",
            Merge::Conditions(Conditions {
                ours: &[
                    "AllContainersRestarting",
                    "ContainersReady",
                    "Initialized",
                    "PodReadyToStartContainers",
                    "PodResizeInProgress",
                    "PodResizePending",
                    "PodScheduled",
                    "Ready",
                ],
                shared: &["DisruptionTarget"],
                ignored: &["lastProbeTime", "lastTransitionTime"],
            }),
        ),
        ("containerStatuses", Merge::Whole),
        ("ephemeralContainerStatuses", Merge::Whole),
        ("hostIP", Merge::Whole),
        ("hostIPs", Merge::List),
        ("initContainerStatuses", Merge::Whole),
        ("message", Merge::Whole),
        ("observedGeneration", Merge::Whole),
        ("phase", Merge::Whole),
        ("podIP", Merge::Whole),
        ("podIPs", Merge::List),
        ("reason", Merge::Whole),
        ("resources", Merge::Keys),
        ("startTime", Merge::Whole),
    ],
};

/// The fields of the `status` of a patch that makes what is ours of `observed` equal to `ours`;
/// `None` when it is already.
#[must_use]
pub fn status_patch(observed: &Value, ours: &Value, rules: &Rules) -> Option<Map<String, Value>> {
    let mut patch = Map::new();
    for (field, merge) in rules.fields {
        let (theirs, wanted) = (&observed[*field], &ours[*field]);
        let change = match merge {
            Merge::Conditions(conditions) => conditions_patch(theirs, wanted, conditions),
            Merge::Whole | Merge::Keys | Merge::List if equal(field, theirs, wanted) => None,
            Merge::Whole | Merge::Keys | Merge::List if is_empty(wanted) => Some(Value::Null),
            Merge::Whole => Some(wanted.clone()),
            Merge::Keys => Some(keys_patch(theirs, wanted)),
            Merge::List => {
                let items = wanted.as_array().into_iter().flatten().cloned();
                Some(std::iter::once(json!({"$patch": "replace"})).chain(items).collect())
            }
        };
        if let Some(change) = change {
            patch.insert((*field).to_owned(), change);
        }
    }
    (!patch.is_empty()).then_some(patch)
}

/// A patch without the times of its conditions: what makes two patches the same although they are
/// made at different times.
#[must_use]
pub fn without_times(mut patch: Map<String, Value>) -> Map<String, Value> {
    let conditions = patch.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|field, _| !is_time(field));
    }
    patch
}

/// `wanted`, with null for each key that only `theirs` has.
fn keys_patch(theirs: &Value, wanted: &Value) -> Value {
    let (Some(old), Some(new)) = (theirs.as_object(), wanted.as_object()) else {
        return wanted.clone();
    };
    let kept = new.iter().map(|(key, value)| (key.clone(), keys_patch(value_of(old, key), value)));
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    Value::Object(kept.chain(gone.map(|key| (key.clone(), Value::Null))).collect_ordered())
}

fn conditions_patch(theirs: &Value, wanted: &Value, rules: &Conditions) -> Option<Value> {
    let ours = rules.ours.iter().chain(rules.shared).copied();
    let differs =
        ours.clone().any(|type_| match (condition(theirs, type_), condition(wanted, type_)) {
            (None, None) => false,
            (Some(_), None) => rules.ours.contains(&type_),
            (None, Some(_)) => true,
            (Some(old), Some(new)) => !same_condition(old, new, rules.ignored),
        });
    if !differs {
        return None;
    }
    let is_ours = |type_: &str| ours.clone().any(|ours| ours == type_);
    // In our order, not in that of the rules: it is the order in which new ones are stored.
    let items = wanted.as_array().into_iter().flatten();
    // Merged field by field: a reason that is no more has to be taken away.
    let whole = |item: &Value| {
        let type_ = item["type"].as_str().filter(|type_| is_ours(type_))?;
        Some(condition(theirs, type_).map_or_else(|| item.clone(), |old| keys_patch(old, item)))
    };
    let mut patch: Vec<Value> = items.filter_map(whole).collect();
    for type_ in rules.ours {
        if condition(theirs, type_).is_some() && condition(wanted, type_).is_none() {
            patch.push(json!({"$patch": "delete", "type": type_}));
        }
    }
    Some(Value::Array(patch))
}

fn condition<'a>(conditions: &'a Value, type_: &str) -> Option<&'a Value> {
    conditions.as_array()?.iter().find(|condition| condition["type"] == type_)
}

fn same_condition(a: &Value, b: &Value, ignored: &[&str]) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    let counts = |key: &&String| !ignored.contains(&key.as_str());
    a.keys()
        .chain(b.keys())
        .filter(counts)
        .all(|key| equal(key, value_of(a, key), value_of(b, key)))
}

/// Whether the API server would store the same for both values of a field.
fn equal(field: &str, a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(_), _) | (_, Value::Object(_)) => {
            let none = Map::new();
            let (Some(a), Some(b)) = (entries(a, &none), entries(b, &none)) else { return false };
            let amounts = holds_amounts(field);
            a.keys().chain(b.keys()).all(|key| {
                let (a, b) = (value_of(a, key), value_of(b, key));
                if amounts { same_amount(a, b) } else { equal(key, a, b) }
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal("", a, b))
        }
        (Value::String(a), Value::String(b)) if is_time(field) => {
            a == b || seconds(a).is_some_and(|at| seconds(b) == Some(at))
        }
        _ => a == b || is_empty(a) && is_empty(b),
    }
}

/// The value of a key; null where there is none.
fn value_of<'a>(map: &'a Map<String, Value>, key: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    map.get(key).unwrap_or(&NONE)
}

/// A mapping's entries; null counts as one without any.
fn entries<'a>(value: &'a Value, none: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
    if value.is_null() { Some(none) } else { value.as_object() }
}

/// Whether it is stored like an absent value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_time(field: &str) -> bool {
    field.ends_with("Time") || field.ends_with("At")
}

fn seconds(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

fn holds_amounts(field: &str) -> bool {
    ["allocatable", "allocatedResources", "capacity", "limits", "requests"].contains(&field)
}

fn same_amount(a: &Value, b: &Value) -> bool {
    let amount = |value: &Value| Quantity::parse(value.as_str()?).ok();
    a == b || amount(a).is_some_and(|a| amount(b) == Some(a))
}

#[cfg(test)]
pub(crate) mod tests;
