#![allow(clippy::unwrap_used, reason = "tests")]

use super::{
    super::{
        Amounts,
        objects::tests::{node_objects, pod_with_container, with_objects},
        token_keys,
    },
    *,
};
use crate::model::{ApiObjects, DataObject};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// `path mode content` of each file, or the error.
fn files_of(volume: &Value) -> Result<Vec<String>, String> {
    let container = json!({"resources": {"limits": {"memory": "64Mi"}}});
    let pod = pod_with_container(container, &json!([volume]));
    let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
    let checked =
        check_volume_objects(&pod, volume, &node_objects()).map_err(|error| error.to_string());
    let made = with_objects(|cx| volume_files(&pod, volume, cx)).map_err(|error| error.to_string());
    assert_eq!(checked.err(), made.clone().err(), "the check says what the setup says");
    let files = made?.unwrap_or_default();
    let shown = files.iter().map(|(path, file)| {
        format!("{path} {:o} {}", file.mode, String::from_utf8_lossy(file.content.as_bytes()))
    });
    Ok(shown.collect())
}

#[test]
fn files_share_the_value_that_they_show_up_to_a_limit() {
    const MIB: usize = 1 << 20;
    for (count, expected) in [(256, None), (257, Some(FilesError::TooLarge))] {
        let items: Vec<Value> =
            (0..count).map(|n| json!({"key": "large", "path": n.to_string()})).collect();
        let volume = json!({"name": "v", "configMap": {"name": "large", "items": items}});
        let pod = pod_with_container(json!({}), &json!([volume]));
        let large = "x".repeat(MIB);
        let object = DataObject::sample(ObjectKind::ConfigMap, "large", &[("large", &large)]);
        let objects: NodeObjects = [object].into_iter().collect();
        let cx = EnvContext {
            node_name: "node",
            host_ips: &[],
            pod_ips: &[],
            allocatable: &Amounts::default(),
            objects: &objects,
        };
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        let made = volume_files(&pod, volume, &cx);
        assert_eq!(made.clone().err(), expected, "{count} MiB");
        let files = made.ok().flatten().unwrap_or_default();
        let places: BTreeSet<_> =
            files.values().map(|file| file.content.as_bytes().as_ptr()).collect();
        assert_eq!(places.len(), usize::from(expected.is_none()), "{count} MiB");
    }
}

#[test]
fn volumes_hold_what_objects_and_the_pod_say() {
    let item = |key: &str, path: &str| json!({"key": key, "path": path});
    for (volume, expected) in [
        (json!({"name": "v", "emptyDir": {}}), Ok(vec![])),
        (
            json!({"name": "v", "configMap": {"name": "web", "defaultMode": 0o640}}),
            Ok(vec!["a 640 1", "b.conf 640 x=$(a)", "raw 640 \u{fffd}\0"]),
        ),
        (
            json!({"name": "v", "configMap": {"name": "web", "items": [item("b.conf", "d/b"), {"key": "a", "path": "a", "mode": 0o400}]}}),
            Ok(vec!["a 400 1", "d/b 644 x=$(a)"]),
        ),
        (
            json!({"name": "v", "configMap": {"name": "web", "items": [item("b.conf", "./d//b/")]}}),
            Ok(vec!["d/b 644 x=$(a)"]),
        ),
        (json!({"name": "v", "secret": {"secretName": "db"}}), Ok(vec!["password 644 secret"])),
        (json!({"name": "v", "secret": {"secretName": "no"}}), Err("secret \"no\" not found")),
        (json!({"name": "v", "secret": {"secretName": "no", "optional": true}}), Ok(vec![])),
        (
            json!({"name": "v", "secret": {"secretName": "db", "items": [item("z", "z")]}}),
            Err("secret references non-existent secret key: z"),
        ),
        (
            json!({"name": "v", "configMap": {"name": "web", "items": [item("z", "z")]}}),
            Err("configmap references non-existent config key: z"),
        ),
        (
            json!({"name": "v", "configMap": {"name": "web", "optional": true, "items": [item("z", "z"), item("a", "a")]}}),
            Ok(vec!["a 644 1"]),
        ),
        (
            json!({"name": "v", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o600},
                {"path": "source", "fieldRef": {"fieldPath": "metadata.annotations"}},
                {"path": "limit", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}}),
            Ok(vec![
                "labels 644 a=\"q\\\"\\n\"\nb=\"2\"",
                "limit 644 64",
                "name 600 web",
                "source 644 kubernetes.io/config.source=\"file\"",
            ]),
        ),
        (
            json!({"name": "v", "projected": {"defaultMode": 0o444, "sources": [
                {"configMap": {"name": "web", "items": [item("a", "same")]}},
                {"secret": {"name": "db", "items": [item("password", "same")]}},
                {"secret": {"name": "no", "optional": true}},
                {"downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
            ]}}),
            Ok(vec!["same 444 secret", "uid 444 u"]),
        ),
        (
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "no"}}]}}),
            Err("configmap \"no\" not found"),
        ),
    ] {
        let made = files_of(&volume);
        let expected = expected
            .map(|lines| lines.into_iter().map(str::to_owned).collect::<Vec<String>>())
            .map_err(str::to_owned);
        assert_eq!(made, expected, "{volume}");
    }
}

#[test]
fn the_metadata_hash_follows_labels_and_annotations_in_volumes() {
    let downward = |field: &str| {
        let item = json!({"path": "f", "fieldRef": {"fieldPath": field}});
        json!({"name": "v", "downwardAPI": {"items": [item]}})
    };
    let projected = |field: &str| {
        let own = downward(field)["downwardAPI"].clone();
        json!({"name": "v", "projected": {"sources": [{"downwardAPI": own}]}})
    };
    let hash = |volume: &Value, labels: Value, annotations: Value| {
        let mut pod = pod_with_container(json!({}), &json!([volume]));
        pod.metadata.labels = serde_json::from_value(labels).unwrap();
        pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        assert_eq!(reads_metadata(volume), metadata_hash(&pod).is_some());
        metadata_hash(&pod)
    };
    // Whether another value of label `a`, of label `b` and of annotation `a` is a change.
    for (field, changes) in [
        ("metadata.labels", [true, true, false]),
        ("metadata.labels['a']", [true, false, false]),
        ("metadata.annotations", [false, false, true]),
        ("metadata.annotations['a']", [false, false, true]),
        ("metadata.name", [false, false, false]),
    ] {
        for volume in [downward(field), projected(field)] {
            let before = hash(&volume, json!({"a": "1", "b": "1"}), json!({"a": "1"}));
            let same = hash(&volume, json!({"b": "1", "a": "1"}), json!({"a": "1"}));
            assert_eq!(before, same, "{volume}");
            let found = [
                hash(&volume, json!({"a": "2", "b": "1"}), json!({"a": "1"})),
                hash(&volume, json!({"a": "1", "b": "2"}), json!({"a": "1"})),
                hash(&volume, json!({"a": "1", "b": "1"}), json!({"a": "2"})),
            ];
            assert_eq!(found.map(|found| found != before), changes, "{volume}");
        }
    }
    assert_eq!(hash(&json!({"name": "v", "emptyDir": {}}), json!({"a": "1"}), json!({})), None);
}

/// The files of a volume with these projected sources, for a pod of the API server. `answer` is the
/// answer for every token.
fn token_files(
    spec: &Value,
    sources: &Value,
    answer: Option<&TokenAnswer>,
) -> Result<Vec<String>, String> {
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let mut spec = spec.clone();
    for container in spec["containers"].as_array_mut().unwrap() {
        container["volumeMounts"] = mount.clone();
    }
    spec["volumes"] = json!([{"name": "v", "projected": {"sources": sources}}]);
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": spec,
    }))
    .unwrap();
    let keys = token_keys(&pod);
    let tokens = keys.into_iter().filter_map(|key| Some((key, answer.cloned()?))).collect();
    let api = ApiObjects { tokens, ..ApiObjects::default() };
    let objects = NodeObjects { api: Arc::new(api), ..NodeObjects::default() };
    let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
    assert!(is_made_from_objects(volume) && is_made_of_files(volume));
    let cx = EnvContext {
        node_name: "n1",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &Amounts::default(),
        objects: &objects,
    };
    let checked = check_volume_objects(&pod, volume, &objects).map_err(|error| error.to_string());
    let made = volume_files(&pod, volume, &cx).map_err(|error| error.to_string());
    assert_eq!(checked.err(), made.clone().err(), "the check says what the setup says");
    let shown = made?.unwrap().into_iter().map(|(path, file)| {
        let content = String::from_utf8_lossy(file.content.as_bytes()).into_owned();
        format!("{path} {:o} {:?} {content}", file.mode, file.owner)
    });
    Ok(shown.collect())
}

fn issued() -> TokenAnswer {
    TokenAnswer::Issued(ServiceAccountToken::new("jwt"))
}

#[test]
fn a_token_is_private_when_all_containers_have_one_user() {
    let user = |user: i64| json!({"name": "c", "securityContext": {"runAsUser": user}});
    let plain = json!({"name": "c"});
    for (spec, expected) in [
        (json!({"containers": [plain]}), "t 644 None jwt"),
        (json!({"containers": [user(7)]}), "t 600 Some(7) jwt"),
        (json!({"containers": [user(7), user(7)]}), "t 600 Some(7) jwt"),
        (json!({"containers": [user(7), user(8)]}), "t 644 None jwt"),
        (json!({"containers": [user(7), plain]}), "t 644 None jwt"),
        (json!({"containers": [user(7)], "initContainers": [user(8)]}), "t 644 None jwt"),
        (json!({"containers": [user(7)], "ephemeralContainers": [plain]}), "t 644 None jwt"),
        (
            json!({"containers": [plain, user(7)], "securityContext": {"runAsUser": 7}}),
            "t 600 Some(7) jwt",
        ),
        (json!({"containers": [plain], "securityContext": {"fsGroup": 9}}), "t 600 None jwt"),
    ] {
        let made =
            token_files(&spec, &json!([{"serviceAccountToken": {"path": "t"}}]), Some(&issued()));
        assert_eq!(made, Ok(vec![expected.to_owned()]), "{spec}");
    }
}

#[test]
fn a_token_that_is_not_there_is_an_error() {
    let spec = json!({"containers": [{"name": "c"}]});
    let token = json!([{"serviceAccountToken": {"path": "t"}}]);
    let refused = TokenAnswer::Refused("serviceaccounts \"x\" not found".into());
    let words = "failed to fetch token: serviceaccounts \"x\" not found";
    assert_eq!(token_files(&spec, &token, Some(&refused)), Err(words.to_owned()));
    let unknown = "the service account token has not been issued yet";
    assert_eq!(token_files(&spec, &token, None), Err(unknown.to_owned()));
}

#[test]
fn sources_that_are_not_supported_are_errors() {
    let spec = json!({"containers": [{"name": "c"}]});
    let bundle = json!([{"clusterTrustBundle": {"path": "ca", "name": "x"}}]);
    let certificate = json!([{"podCertificate": {"signerName": "x/y", "keyType": "ED25519"}}]);
    for (sources, kind) in [(bundle, "clusterTrustBundle"), (certificate, "podCertificate")] {
        let expected = format!("{kind} is not supported in projected volumes");
        assert_eq!(token_files(&spec, &sources, None), Err(expected));
    }
}

#[test]
fn tokens_of_mounted_volumes_are_needed_once_each() {
    let token =
        |audience: &str| json!({"serviceAccountToken": {"path": "t", "audience": audience}});
    let volume =
        |name: &str, sources: Value| json!({"name": name, "projected": {"sources": sources}});
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [
                {"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"},
            ]}],
            "volumes": [
                volume("a", json!([token(""), token("x")])),
                volume("b", json!([token("")])),
                volume("unmounted", json!([token("y")])),
            ],
        },
    }))
    .unwrap();
    let keys = token_keys(&pod);
    let shown: Vec<String> = keys
        .iter()
        .map(|key| format!("{} {} {}", key.service_account, key.audience, key.expiration_seconds))
        .collect();
    assert_eq!(shown, ["default  3600", "default x 3600"]);
}

#[test]
fn values_are_quoted_as_go_does() {
    for (value, expected) in [
        ("plain, é 世 \u{301}", r#""plain, é 世 ́""#),
        ("a\"b\\c\n\u{7}", r#""a\"b\\c\n\a""#),
        ("\u{1}\u{7f}", r#""\x01\x7f""#),
        ("\u{85}\u{a0}\u{200b}\u{2028}\u{feff}", r#""\u0085\u00a0\u200b\u2028\ufeff""#),
        ("\u{e0001}", r#""\U000e0001""#),
    ] {
        assert_eq!(quoted(value), expected);
    }
}
