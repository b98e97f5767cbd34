//! Tables of single fields, and properties held against a small model of how an API server merges.

use super::*;
use proptest::prelude::*;

/// Applies a patch of a status as an API server does, by the merge strategies of the types in
/// k8s.io/api.
pub(crate) fn apply(observed: &Value, patch: Option<&Map<String, Value>>) -> Value {
    let mut result = observed.as_object().cloned().unwrap_or_default();
    for (field, change) in patch.into_iter().flatten() {
        let key = match field.as_str() {
            "conditions" | "addresses" => Some("type"),
            "hostIPs" | "podIPs" => Some("ip"),
            _ => None,
        };
        let old = result.remove(field).unwrap_or_default();
        let new = match (change, key) {
            (Value::Array(items), Some(key)) => merge_list(&old, items, key),
            _ => merge(&old, change),
        };
        if !new.is_null() {
            result.insert(field.clone(), new);
        }
    }
    Value::Object(result)
}

fn merge(old: &Value, change: &Value) -> Value {
    let Some(change) = change.as_object() else { return change.clone() };
    let mut new = old.as_object().cloned().unwrap_or_default();
    for (key, change) in change {
        let merged = merge(value_of(&new, key), change);
        new.remove(key);
        if !merged.is_null() {
            new.insert(key.clone(), merged);
        }
    }
    Value::Object(new)
}

fn merge_list(old: &Value, items: &[Value], key: &str) -> Value {
    let whole = items.iter().any(|item| item["$patch"] == "replace");
    let mut new: Vec<Value> = match whole {
        true => Vec::new(),
        false => old.as_array().cloned().unwrap_or_default(),
    };
    for item in items {
        let at = new.iter().position(|other| !whole && other[key] == item[key]);
        match (item["$patch"].as_str(), at) {
            (Some("replace"), _) | (Some("delete"), None) => {}
            (Some("delete"), Some(at)) => {
                new.remove(at);
            }
            (_, Some(at)) => new[at] = merge(&new[at], item),
            (_, None) => new.push(item.clone()),
        }
    }
    Value::Array(new)
}

fn node(observed: &Value, ours: &Value) -> Value {
    status_patch(observed, ours, &NODE_STATUS).map_or(Value::Null, Value::Object)
}

fn pod(observed: &Value, ours: &Value) -> Value {
    status_patch(observed, ours, &POD_STATUS).map_or(Value::Null, Value::Object)
}

#[test]
fn a_reason_that_is_no_more_is_taken_away() {
    let observed = json!({"conditions": [
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "wait"}]});
    let ours = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    assert_eq!(
        pod(&observed, &ours),
        json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": null, "message": null}]})
    );
}

#[test]
fn nothing_is_sent_where_nothing_differs() {
    for (observed, ours) in [
        (json!({}), json!({"images": [], "capacity": {}, "nodeInfo": {"kernelVersion": ""}})),
        (
            json!({"capacity": {"cpu": "2", "memory": "1Gi"}}),
            json!({"capacity": {"cpu": "2000m", "memory": "1048576Ki"}}),
        ),
        (json!({"volumesAttached": [{"name": "a"}], "phase": "Running"}), json!({})),
        (
            json!({"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}),
            json!({"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:05:00Z"}]}),
        ),
        (
            json!({"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}),
            json!({"conditions": []}),
        ),
    ] {
        assert_eq!(node(&observed, &ours), Value::Null, "{observed} {ours}");
    }
    for (observed, ours) in [
        (
            json!({"startTime": "2026-01-01T00:00:00Z"}),
            json!({"startTime": "2026-01-01T00:00:00.7Z"}),
        ),
        (json!({"qosClass": "Burstable"}), json!({"qosClass": "BestEffort"})),
        (
            json!({"allocatedResources": {"cpu": "1"}, "resources": {"limits": {"memory": "1Gi"}}}),
            json!({"allocatedResources": {"cpu": "1000m"}, "resources": {"limits": {"memory": "1024Mi"}}}),
        ),
        (
            json!({"containerStatuses": [{"name": "a", "lastState": {}, "resources": {"limits": {"cpu": "1"}},
                "state": {"terminated": {"exitCode": 0, "startedAt": null}}}]}),
            json!({"containerStatuses": [{"name": "a", "resources": {"limits": {"cpu": "1000m"}},
                "state": {"terminated": {"exitCode": 0, "message": ""}}}]}),
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}, {"type": "DisruptionTarget", "status": "True"}]}),
            json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:09:00Z"},
                {"type": "example.org/gate", "status": "True"}]}),
        ),
    ] {
        assert_eq!(pod(&observed, &ours), Value::Null, "{observed} {ours}");
    }
}

#[test]
fn fields_are_sent_whole_and_lists_replaced() {
    assert_eq!(
        node(
            &json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "images": [{"names": ["a"]}]}),
            &json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "InternalIP", "address": "fd00::2"}]}),
        ),
        json!({"addresses": [{"$patch": "replace"}, {"type": "InternalIP", "address": "10.0.0.2"},
            {"type": "InternalIP", "address": "fd00::2"}], "images": null})
    );
    assert_eq!(
        node(
            &json!({"capacity": {"cpu": "2", "example.org/gpu": "1"}, "nodeInfo": {"bootID": "a", "swap": {"capacity": 1}}}),
            &json!({"capacity": {"cpu": "2"}, "nodeInfo": {"bootID": "b"}}),
        ),
        json!({"capacity": {"cpu": "2", "example.org/gpu": null}, "nodeInfo": {"bootID": "b", "swap": null}})
    );
    assert_eq!(
        node(
            &json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}),
            &json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}}}),
        ),
        json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}}})
    );
    assert_eq!(
        pod(
            &json!({"phase": "Running", "reason": "Evicted", "podIPs": [{"ip": "10.1.0.1"}], "podIP": "10.1.0.1"}),
            &json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.2"}], "podIP": "10.1.0.2"}),
        ),
        json!({"reason": null, "podIP": "10.1.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.1.0.2"}]})
    );
}

#[test]
fn resources_of_a_pod_are_sent_amount_by_amount() {
    assert_eq!(
        pod(
            &json!({"allocatedResources": {"cpu": "1", "memory": "1Gi"},
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}}}),
            &json!({"allocatedResources": {"cpu": "2"}, "resources": {"limits": {"cpu": "2"}}}),
        ),
        json!({"allocatedResources": {"cpu": "2", "memory": null},
            "resources": {"requests": null, "limits": {"cpu": "2", "memory": null}}})
    );
}

#[test]
fn when_a_condition_differs_all_of_ours_are_sent_and_no_other() {
    let observed = json!({"conditions": [
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:09:00Z"},
        {"type": "Initialized", "status": "True"},
        {"type": "AllContainersRestarting", "status": "True"},
        {"type": "DisruptionTarget", "status": "True"},
        {"type": "example.org/gate", "status": "True"}]});
    let ours = json!({"conditions": [
        {"type": "Initialized", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "example.org/other", "status": "True"}]});
    assert_eq!(
        pod(&observed, &ours),
        json!({"conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"$patch": "delete", "type": "AllContainersRestarting"}]})
    );
    let disrupted = json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]});
    let sent = pod(&observed, &disrupted);
    assert_eq!(sent["conditions"][0], disrupted["conditions"][0]);
}

/// Small statuses whose fields collide often.
fn status() -> impl Strategy<Value = Value> {
    let amounts =
        || prop::collection::btree_map("[ab]", prop::sample::select(vec!["1", "1000m", "2"]), 0..3);
    let types = vec!["Ready", "MemoryPressure", "Initialized", "DisruptionTarget", "foreign"];
    let condition = (
        prop::sample::select(vec!["True", "False"]),
        prop::option::of(prop::sample::select(vec!["", "Because"])),
        0..3_u8,
    );
    let conditions = prop::collection::btree_map(prop::sample::select(types), condition, 0..5);
    let ips = prop::collection::btree_set(
        prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "fd00::1"]),
        0..3,
    );
    let text = || prop::option::of(prop::sample::select(vec!["", "a", "b"]));
    let nested = prop::option::of((text(), prop::option::of(amounts())));
    (amounts(), conditions, ips, text(), nested).prop_map(|(amounts, conditions, ips, text, nested)| {
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|(type_, (status, reason, at))| {
                let at = format!("2026-01-01T00:00:0{at}Z");
                json!({"type": type_, "status": status, "reason": reason, "lastTransitionTime": at, "lastHeartbeatTime": at})
            })
            .collect();
        let addresses: Vec<Value> = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({
            "capacity": amounts, "conditions": conditions, "addresses": addresses, "podIPs": ips,
            "phase": text, "images": text.map(|text| vec![text]), "volumesAttached": ips,
            "nodeInfo": nested.map(|(text, amounts)| json!({"bootID": text, "swap": amounts})),
        })
    })
}

proptest! {
    /// Applied, a patch makes what is ours equal, leaves the rest as it was, and there is nothing
    /// more to send.
    #[test]
    fn a_patch_makes_ours_equal_and_leaves_the_rest(observed in status(), ours in status()) {
        for rules in [&NODE_STATUS, &POD_STATUS] {
            let patch = status_patch(&observed, &ours, rules);
            let result = apply(&observed, patch.as_ref());
            prop_assert_eq!(status_patch(&result, &ours, rules), None, "{} {}", &result, &ours);
            for (field, value) in observed.as_object().unwrap() {
                if !rules.fields.iter().any(|(ours, _)| ours == field) {
                    prop_assert_eq!(value, &result[field]);
                }
            }
            for theirs in observed["conditions"].as_array().into_iter().flatten() {
                let type_ = theirs["type"].as_str().unwrap();
                if type_ == "foreign" {
                    prop_assert_eq!(condition(&result["conditions"], type_), Some(theirs));
                }
            }
        }
    }

    /// What is equal by the rules is equal whichever way it is asked, and to itself.
    #[test]
    fn nothing_is_sent_only_between_equals(a in status(), b in status()) {
        prop_assert_eq!(status_patch(&a, &a, &NODE_STATUS), None);
        let there = status_patch(&a, &b, &NODE_STATUS).is_none();
        prop_assert_eq!(there, status_patch(&b, &a, &NODE_STATUS).is_none());
    }

    /// A patch that was made from an older object does what it should on the present one, in the
    /// fields that it names.
    #[test]
    fn a_stale_patch_still_sets_the_fields_that_it_names(old in status(), present in status(), ours in status()) {
        if let Some(patch) = status_patch(&old, &ours, &POD_STATUS) {
            let result = apply(&present, Some(&patch));
            let left = status_patch(&result, &ours, &POD_STATUS).unwrap_or_default();
            for field in patch.keys().filter(|field| *field != "conditions") {
                prop_assert!(!left.contains_key(field), "{field} of {result}");
            }
        }
    }
}
