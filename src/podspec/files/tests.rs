#![allow(clippy::unwrap_used, reason = "tests")]

use super::{
    super::objects::tests::{node_objects, pod_with_container, with_objects},
    *,
};
use serde_json::{Value, json};

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
        format!("{path} {:o} {}", file.mode, String::from_utf8_lossy(&file.content))
    });
    Ok(shown.collect())
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
                {"path": "none", "fieldRef": {"fieldPath": "metadata.annotations"}},
                {"path": "limit", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}}),
            Ok(vec![
                "labels 644 a=\"q\\\"\\n\"\nb=\"2\"",
                "limit 644 64",
                "name 600 web",
                "none 644 ",
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
