#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    model::{ApiObjects, ClusterServicePort},
    podspec::{Amounts, EnvContext, build_env, expand_command},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// `namespace/name=address port port`, where a port is `NAME:NUMBER/PROTOCOL`.
fn service(text: &str) -> Arc<ClusterService> {
    let (name, rest) = text.split_once('=').unwrap();
    let (namespace, name) = name.split_once('/').unwrap();
    let mut words = rest.split(' ');
    let cluster_ip = words.next().unwrap().into();
    let port = |text: &str| {
        let (name, rest) = text.split_once(':').unwrap();
        let (number, protocol) = rest.split_once('/').unwrap();
        let port = number.parse().unwrap();
        ClusterServicePort { name: name.into(), port, protocol: protocol.into() }
    };
    let ports = words.map(port).collect();
    Arc::new(ClusterService { namespace: namespace.into(), name: name.into(), cluster_ip, ports })
}

fn objects(services: &[&str]) -> NodeObjects {
    let services: ClusterServices = services.iter().map(|text| service(text)).collect();
    let api = ApiObjects { services: Some(Arc::new(services)), ..ApiObjects::default() };
    NodeObjects { api: Arc::new(api), ..NodeObjects::default() }
}

const API: &str = "default/kubernetes=10.0.0.1 https:443/TCP";

/// The environment of a pod of namespace `shop`, `NAME=value` each, and the arguments.
fn environment(spec: &Value, source: &str, services: &[&str]) -> Vec<String> {
    let mut spec = spec.clone();
    spec["containers"][0]["name"] = json!("main");
    let annotations = json!({"kubernetes.io/config.source": source});
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "annotations": annotations},
        "spec": spec,
    }))
    .unwrap();
    let cx = EnvContext {
        node_name: "n1",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &Amounts::default(),
        objects: &objects(services),
    };
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let env = build_env(&pod, container, &cx).unwrap();
    let args = expand_command(container, &env).args;
    env.into_iter().map(|(name, value)| format!("{name}={value}")).chain(args).collect()
}

fn plain() -> Value {
    json!({"containers": [{}]})
}

#[test]
fn variables_have_the_names_of_the_kubelet() {
    let services = ["shop/my-db=10.0.0.9 sql:5432/TCP mon-itor:53/UDP"];
    assert_eq!(
        environment(&plain(), "api", &services),
        [
            "MY_DB_PORT=tcp://10.0.0.9:5432",
            "MY_DB_PORT_53_UDP=udp://10.0.0.9:53",
            "MY_DB_PORT_53_UDP_ADDR=10.0.0.9",
            "MY_DB_PORT_53_UDP_PORT=53",
            "MY_DB_PORT_53_UDP_PROTO=udp",
            "MY_DB_PORT_5432_TCP=tcp://10.0.0.9:5432",
            "MY_DB_PORT_5432_TCP_ADDR=10.0.0.9",
            "MY_DB_PORT_5432_TCP_PORT=5432",
            "MY_DB_PORT_5432_TCP_PROTO=tcp",
            "MY_DB_SERVICE_HOST=10.0.0.9",
            "MY_DB_SERVICE_PORT=5432",
            "MY_DB_SERVICE_PORT_MON_ITOR=53",
            "MY_DB_SERVICE_PORT_SQL=5432",
        ]
    );
}

#[test]
fn an_ipv6_address_has_brackets_in_urls_alone() {
    let made = environment(&plain(), "api", &["shop/db=fd00::9 :80/TCP"]);
    assert!(made.contains(&"DB_PORT=tcp://[fd00::9]:80".to_owned()), "{made:?}");
    assert!(made.contains(&"DB_SERVICE_HOST=fd00::9".to_owned()), "{made:?}");
    assert!(!made.iter().any(|text| text.starts_with("DB_SERVICE_PORT_")), "{made:?}");
}

#[test]
fn a_pod_is_linked_to_its_namespace_and_to_the_api_server() {
    let services =
        [API, "default/other=10.0.0.2 :80/TCP", "shop/web=10.0.0.3 :80/TCP", "x/y=10.0.0.4 :1/TCP"];
    let hosts = |spec: &Value, source: &str, services: &[&str]| {
        let made = environment(spec, source, services);
        made.into_iter().filter(|text| text.contains("_SERVICE_HOST=")).collect::<Vec<_>>()
    };
    let of_api = "KUBERNETES_SERVICE_HOST=10.0.0.1";
    assert_eq!(hosts(&plain(), "api", &services), [of_api, "WEB_SERVICE_HOST=10.0.0.3"]);
    let mut unlinked = plain();
    unlinked["enableServiceLinks"] = json!(false);
    let own = "shop/kubernetes=10.0.0.5 :443/TCP";
    assert_eq!(hosts(&unlinked, "api", &[&services[..], &[own]].concat()), [of_api]);
    assert_eq!(hosts(&plain(), "api", &[API, own]), ["KUBERNETES_SERVICE_HOST=10.0.0.5"]);
    assert!(hosts(&plain(), "file", &services).is_empty(), "a static pod has none");
}

#[test]
fn variables_of_the_container_shadow_those_of_services() {
    let spec = json!({"containers": [{
        "env": [
            {"name": "EARLY", "value": "$(DB_SERVICE_PORT) $(LATE)"},
            {"name": "DB_SERVICE_PORT", "value": "mine"},
            {"name": "LATE", "value": "$(DB_SERVICE_PORT) $(DB_SERVICE_HOST)"},
        ],
        "args": ["$(DB_SERVICE_HOST) $(DB_SERVICE_PORT) $(DB_NONE)"],
    }]});
    let made = environment(&spec, "api", &["shop/db=10.0.0.9 :80/TCP"]);
    assert_eq!(made[..3], ["EARLY=80 $(LATE)", "DB_SERVICE_PORT=mine", "LATE=mine 10.0.0.9"]);
    assert_eq!(made.iter().filter(|text| text.starts_with("DB_SERVICE_PORT=")).count(), 1);
    assert_eq!(made.last().unwrap(), "10.0.0.9 mine $(DB_NONE)");
}

#[test]
fn variables_of_services_count_for_the_length_of_the_environment() {
    let all: Vec<String> =
        (0..4000).map(|number| format!("shop/service-{number}=10.0.0.1 :80/TCP")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let pod: k8s::Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"containers": [{"name": "main"}]},
    }))
    .unwrap();
    let cx = EnvContext {
        node_name: "n1",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &Amounts::default(),
        objects: &objects(&all),
    };
    let error = build_env(&pod, &pod.spec.as_ref().unwrap().containers[0], &cx).unwrap_err();
    assert!(error.to_string().starts_with("variables of Services (SERVICE_"), "{error}");
}
