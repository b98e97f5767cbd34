#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    model::{
        ApiObjects, ClaimAnswer, ClaimKey, DataObject, Datum, ObjectAnswer, TokenAnswer, TokenKey,
    },
    podspec::{Amounts, EnvContext, build_env},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// ConfigMaps `web` and `nul`, and Secrets `db` and `odd`.
pub(in crate::podspec) fn node_objects() -> NodeObjects {
    use ObjectKind::{ConfigMap, Secret};
    let bytes = |mut object: DataObject, key: &str| {
        object.data.insert(key.into(), Datum::Binary([255, 0].into()));
        object
    };
    let objects = [
        bytes(DataObject::sample(ConfigMap, "web", &[("a", "1"), ("b.conf", "x=$(a)")]), "raw"),
        DataObject::sample(ConfigMap, "nul", &[("zero", "a\0b")]),
        DataObject::sample(Secret, "db", &[("password", "secret")]),
        bytes(DataObject::sample(Secret, "odd", &[("zero", "a\0b")]), "key"),
    ];
    objects.into_iter().collect()
}

pub(in crate::podspec) fn pod_with_container(mut container: Value, volumes: &Value) -> k8s::Pod {
    container["name"] = json!("main");
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u",
                     "labels": {"b": "2", "a": "q\"\n"},
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"containers": [container], "volumes": volumes},
    });
    serde_json::from_value(pod).unwrap()
}

pub(in crate::podspec) fn with_objects<T>(use_it: impl FnOnce(&EnvContext<'_>) -> T) -> T {
    use_it(&EnvContext {
        node_name: "node1",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &Amounts::default(),
        objects: &node_objects(),
    })
}

/// `NAME=value` in the order of the environment, or the error.
fn env_from_objects(container: Value) -> Result<String, String> {
    let pod = pod_with_container(container, &json!([]));
    let first = &pod.spec.as_ref().unwrap().containers[0];
    let checked =
        check_env_objects(&pod, first, &node_objects()).map_err(|error| error.to_string());
    let made = with_objects(|cx| build_env(&pod, first, cx)).map_err(|error| error.to_string());
    assert_eq!(checked.err(), made.clone().err(), "the check says what the start says");
    Ok(made?.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
}

#[test]
fn environments_take_values_from_objects() {
    let map = |name: &str, more: Value| {
        let mut source = json!({"name": name});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        source
    };
    let all = |name: &str| json!({"configMapRef": {"name": name}});
    let key = |field: &str, source: Value| json!({"name": "X", "valueFrom": {field: source}});
    for (container, expected) in [
        (json!({"envFrom": [all("web")]}), Ok("a=1 b.conf=x=$(a)")),
        (
            json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "web"}}]}),
            Ok("P_a=1 P_b.conf=x=$(a)"),
        ),
        (
            json!({"envFrom": [all("web"), {"secretRef": {"name": "db"}}]}),
            Ok("a=1 b.conf=x=$(a) password=secret"),
        ),
        (
            json!({"envFrom": [all("web")], "env": [{"name": "a", "value": "<$(a)>"}]}),
            Ok("a=<1> b.conf=x=$(a)"),
        ),
        (
            json!({"env": [key("secretKeyRef", map("db", json!({"key": "password"})))]}),
            Ok("X=secret"),
        ),
        (json!({"env": [key("configMapKeyRef", map("web", json!({"key": "a"})))]}), Ok("X=1")),
        (
            json!({"env": [key("configMapKeyRef", map("no", json!({"key": "a", "optional": true})))]}),
            Ok(""),
        ),
        (
            json!({"env": [key("configMapKeyRef", map("web", json!({"key": "z", "optional": true})))]}),
            Ok(""),
        ),
        (json!({"envFrom": [{"secretRef": {"name": "no", "optional": true}}]}), Ok("")),
        (json!({"envFrom": [all("no")]}), Err("configmap \"no\" not found")),
        (json!({"envFrom": [{"secretRef": {"name": "no"}}]}), Err("secret \"no\" not found")),
        (
            json!({"env": [key("secretKeyRef", map("no", json!({"key": "a"})))]}),
            Err("secret \"no\" not found"),
        ),
        (
            json!({"env": [key("secretKeyRef", map("db", json!({"key": "z"})))]}),
            Err("couldn't find key z in Secret default/db"),
        ),
        (
            json!({"env": [key("configMapKeyRef", map("web", json!({"key": "raw"})))]}),
            Err("couldn't find key raw in ConfigMap default/web"),
        ),
        (
            json!({"env": [key("secretKeyRef", map("odd", json!({"key": "key"})))]}),
            Err("key key in Secret default/odd is not text: mount it as a volume"),
        ),
        (
            json!({"env": [key("secretKeyRef", map("odd", json!({"key": "zero"})))]}),
            Err("key zero in Secret default/odd is not text: mount it as a volume"),
        ),
        (
            json!({"env": [key("configMapKeyRef", map("nul", json!({"key": "zero"})))]}),
            Err("key zero in ConfigMap default/nul is not text: mount it as a volume"),
        ),
        (
            json!({"envFrom": [all("nul")]}),
            Err("key zero in ConfigMap default/nul is not text: mount it as a volume"),
        ),
    ] {
        let made = env_from_objects(container.clone());
        assert_eq!(made.as_deref().map_err(String::as_str), expected, "{container}");
    }
}

#[test]
fn every_reference_of_a_pod_is_found() {
    let container = json!({
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b", "optional": true}}],
        "env": [
            {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k", "optional": true}}},
        ],
    });
    let volumes = json!([
        {"name": "e", "configMap": {"name": "e"}},
        {"name": "f", "secret": {"secretName": "f", "optional": true}},
        {"name": "g", "projected": {"sources": [{"configMap": {"name": "g"}}, {"secret": {"name": "h"}}]}},
    ]);
    let mut pod = pod_with_container(container, &volumes);
    // A name may be empty.
    let secrets = ["", "i"].map(|name| k8s::LocalObjectReference { name: name.to_owned() });
    pod.spec.as_mut().unwrap().image_pull_secrets = Some(secrets.to_vec());
    let refs = object_refs(&pod);
    let shown = refs.iter().map(|found| {
        let optional = if found.optional { " optional" } else { "" };
        let read = if found.is_read() { "" } else { " not read" };
        format!("{} {}{optional}{read}", found.field, found.key)
    });
    let shown: Vec<String> = shown.collect();
    assert_eq!(
        shown,
        [
            "spec.imagePullSecrets[1] Secret default/i optional not read",
            "spec.volumes[0].configMap ConfigMap default/e",
            "spec.volumes[1].secret Secret default/f optional",
            "spec.volumes[2].projected.sources[0].configMap ConfigMap default/g",
            "spec.volumes[2].projected.sources[1].secret Secret default/h",
            "spec.containers[0].envFrom[0].configMapRef ConfigMap default/a",
            "spec.containers[0].envFrom[1].secretRef Secret default/b optional",
            "spec.containers[0].env[0].valueFrom.configMapKeyRef ConfigMap default/c",
            "spec.containers[0].env[1].valueFrom.secretKeyRef Secret default/d optional",
        ]
    );
}

#[test]
fn a_pod_of_the_api_server_sees_what_the_server_has_answered() {
    let env = |optional: bool| json!([{"configMapRef": {"name": "web", "optional": optional}}]);
    let pod = |optional: bool, source: &str| -> k8s::Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": {"kubernetes.io/config.source": source}},
            "spec": {
                "containers": [{"name": "main", "envFrom": env(optional)}],
                "imagePullSecrets": [{"name": "pull"}],
            },
        }))
        .unwrap()
    };
    let key = ObjectKey::new(ObjectKind::ConfigMap, "default", "web");
    let pull = ObjectKey::new(ObjectKind::Secret, "default", "pull");
    let object = DataObject::sample(ObjectKind::ConfigMap, "web", &[("a", "api")]);
    let unknown = "configmap \"web\" has not been read yet";
    for (answer, optional, expected) in [
        (None, false, Some(unknown)),
        (None, true, Some(unknown)),
        (Some(ObjectAnswer::Missing), false, Some("configmap \"web\" not found")),
        (Some(ObjectAnswer::Missing), true, None),
        (Some(ObjectAnswer::Refused("forbidden".into())), true, Some("forbidden")),
        (Some(ObjectAnswer::Found(Arc::new(object))), false, None),
    ] {
        let pod = pod(optional, "api");
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let answers = answer.clone().map(|answer| (key.clone(), answer)).into_iter().collect();
        let mut api = ApiObjects { objects: answers, ..ApiObjects::default() };
        let objects = NodeObjects { api: Arc::new(api.clone()), ..node_objects() };
        let error = check_env_objects(&pod, container, &objects).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), expected, "{answer:?} {optional}");
        assert!(!are_objects_known(&pod, &objects), "the Secret for pulls is not known");
        api.objects.insert(pull.clone(), ObjectAnswer::Missing);
        let objects = NodeObjects { api: Arc::new(api), ..NodeObjects::default() };
        assert_eq!(are_objects_known(&pod, &objects), answer.is_some(), "{answer:?}");
    }
    let known = NodeObjects { known: true, ..NodeObjects::default() };
    assert!(are_objects_known(&pod(false, "file"), &known), "static pods have their own rule");
    assert!(are_services_known(&pod(false, "file"), &known));
    assert!(!are_services_known(&pod(false, "api"), &known));
}

#[test]
fn a_pod_reads_other_objects_only_when_its_own_have_changed() {
    use ObjectKind::ConfigMap;
    let with_token = json!({"sources": [{"serviceAccountToken": {"path": "token"}}]});
    let volumes = json!([
        {"name": "map", "configMap": {"name": "web"}},
        {"name": "token", "projected": with_token},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
    ]);
    let mounts = ["map", "token", "claim"].map(|name| json!({"name": name, "mountPath": name}));
    let mut pod = pod_with_container(json!({"volumeMounts": mounts}), &volumes);
    pod.metadata.annotations = None;
    let [token] = token_keys(&pod).try_into().unwrap();
    let [claim] = claim_keys(&pod).try_into().unwrap();
    let failed = |why: &str| ClaimAnswer::Failed(why.into());
    let refused = |why: &str| TokenAnswer::Refused(why.into());
    let changed = |change: &dyn Fn(&mut ApiObjects)| {
        let mut api = ApiObjects {
            tokens: [(token.clone(), refused("no"))].into(),
            claims: [(claim.clone(), failed("no"))].into(),
            ..ApiObjects::default()
        };
        let node = |api: &ApiObjects| NodeObjects { api: Arc::new(api.clone()), ..node_objects() };
        let before = node(&api);
        change(&mut api);
        !reads_the_same(&pod, &before, &node(&api))
    };
    let answer = |name: &str| {
        let key = ObjectKey::new(ConfigMap, "default", name);
        move |api: &mut ApiObjects| drop(api.objects.insert(key.clone(), ObjectAnswer::Missing))
    };
    let of_other_pod = |api: &mut ApiObjects| {
        api.tokens.insert(TokenKey { pod: "u2".into(), ..token.clone() }, refused("no"));
        api.claims.insert(ClaimKey { pod: "u2".into(), ..claim.clone() }, failed("no"));
    };
    assert!(!changed(&|_| ()));
    assert!(!changed(&answer("other")));
    assert!(!changed(&of_other_pod));
    assert!(changed(&answer("web")));
    assert!(changed(&|api| drop(api.tokens.insert(token.clone(), refused("later")))));
    assert!(changed(&|api| drop(api.claims.insert(claim.clone(), failed("later")))));
    assert!(changed(&|api| api.services = Some(Arc::default())));
    assert!(changed(&|api| api.runtime_classes = Some(Arc::default())));
}

#[test]
fn a_static_pod_reads_other_objects_when_files_have_changed() {
    let pod = pod_with_container(json!({}), &json!([]));
    let before = node_objects();
    let of_api = ApiObjects { services: Some(Arc::default()), ..ApiObjects::default() };
    assert!(reads_the_same(
        &pod,
        &before,
        &NodeObjects { api: Arc::new(of_api), ..node_objects() }
    ));
    assert!(!reads_the_same(&pod, &before, &NodeObjects { known: false, ..node_objects() }));
    let mut after = node_objects();
    after.found.pop_first();
    assert!(!reads_the_same(&pod, &before, &after));
}
