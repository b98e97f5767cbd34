//! What is said about which pods the node takes: how many, by which labels it is chosen, and which
//! runtime classes it has.

use super::{names, read::Reader, tree::Tree};
use crate::podspec::IDS_PER_POD;
use serde_json::Value as Json;
use std::collections::BTreeMap;

const LABELS: &str = "nodeLabels";
/// The labels of Kubernetes that a kubelet may give its node, besides those below
/// [`ALLOWED_DOMAINS`].
const ALLOWED_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const NOT_ALLOWED: &str = "this is a label of Kubernetes that an API server does not let a node set: \
    begin it with node.kubernetes.io/ or with a domain of your own, or set it with `kubectl label node`";
const CLASSES: &str = "runtimeClasses";
const IDS: &str = "userNamespaces.idsPerPod";

/// `nodeLabels`: keys and values.
pub(super) fn node_labels(r: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (key, tree) in r.entries(LABELS) {
        let path = format!("{LABELS}[{key}]");
        // The type was checked before.
        let Tree::Leaf(place, Json::String(value)) = tree else { continue };
        let checked = names::label_key(key);
        let allowed = || is_allowed(key).then_some(()).ok_or(NOT_ALLOWED);
        if let Err(must) = checked.and_then(|()| allowed()) {
            r.invalid(place, &path, Json::from(key), must);
        }
        if let Err(must) = names::label_value(value) {
            r.invalid(place, &path, Json::from(value.as_str()), must);
        }
        labels.insert(key.to_owned(), value.clone());
    }
    labels
}

/// Whether a node may give itself this label
/// (<https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>).
fn is_allowed(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_below = |parents: &[&str]| {
        let mut rests = parents.iter().filter_map(|parent| domain.strip_suffix(parent));
        rests.any(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !is_below(&["kubernetes.io", "k8s.io"])
        || is_below(&ALLOWED_DOMAINS)
        || ALLOWED_LABELS.contains(&key)
}

/// `runtimeClasses`: names and handlers.
pub(super) fn runtime_classes(r: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut classes = BTreeMap::new();
    for (name, tree) in r.entries(CLASSES) {
        let path = format!("{CLASSES}[{name}]");
        // The type was checked before.
        let Tree::Leaf(place, Json::String(handler)) = tree else { continue };
        if let Err(must) = names::subdomain(name) {
            r.invalid(place, &path, Json::from(name), must);
        }
        if let Err(must) = names::label(handler) {
            r.invalid(place, &path, Json::from(handler.as_str()), must);
        }
        classes.insert(name.to_owned(), handler.clone());
    }
    classes
}

/// `userNamespaces.idsPerPod`
pub(super) fn ids_per_pod(r: &mut Reader<'_>) -> Option<u32> {
    let (json, place) = r.leaf(IDS)?;
    let number = json.as_i64()?;
    let ids = u32::try_from(number).ok().filter(|ids| *ids > 0 && ids % IDS_PER_POD == 0);
    if ids.is_none() {
        r.invalid(place, IDS, number, "must be a multiple of 65536, and more than 0");
    }
    ids
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::config::{Config, ConfigError, parse_and_validate};

    const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    const NODELET: &str = "apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";

    fn read(text: &str) -> Result<Config, ConfigError> {
        let loaded = parse_and_validate(text.as_bytes())?;
        assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
        Ok(loaded.config)
    }

    #[test]
    fn the_number_of_pods_is_bounded_twice() {
        for (text, pods) in [
            ("", (110, 0)),
            ("maxPods: 0\npodsPerCore: 0\n", (110, 0)),
            ("maxPods: 40\n", (40, 0)),
            ("maxPods: 250\npodsPerCore: 10\n", (250, 10)),
        ] {
            let config = read(&format!("{KUBELET}{text}")).unwrap();
            assert_eq!((config.pods.max_pods, config.pods.pods_per_core), pods, "{text}");
        }
        for path in ["maxPods", "podsPerCore"] {
            let error = read(&format!("{KUBELET}{path}: -1\n")).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("{path}: Invalid value: -1: must be 0 or more")),
                "{error}"
            );
        }
    }

    #[test]
    fn ids_of_a_pod_come_in_whole_units() {
        let ids = |number: i64| {
            let text = format!("{KUBELET}userNamespaces: {{ idsPerPod: {number} }}\n");
            read(&text).map(|config| config.pods.ids_per_pod)
        };
        assert_eq!(read(KUBELET).unwrap().pods.ids_per_pod, 65_536);
        assert_eq!(ids(131_072).unwrap(), 131_072);
        for wrong in [0, -65_536, 65_535, 1 << 32] {
            let error = format!("{:?}", ids(wrong).unwrap_err());
            assert!(error.contains("must be a multiple of 65536, and more than 0"), "{error}");
        }
    }

    #[test]
    fn runtime_classes_are_checked() {
        let good = "runtimeClasses: {gvisor: runsc, example.com.kata: kata-qemu}\n";
        let classes = read(&format!("{NODELET}{good}")).unwrap().pods.runtime_classes;
        let classes: Vec<String> =
            classes.iter().map(|(name, handler)| format!("{name}={handler}")).collect();
        assert_eq!(classes, ["example.com.kata=kata-qemu", "gvisor=runsc"]);
        let bad = "runtimeClasses: {Gvisor: runsc, kata: io.containerd.kata.v2, none: \"\"}\n";
        let error = read(&format!("{NODELET}{bad}")).unwrap_err();
        let paths: Vec<&str> =
            error.mistakes.iter().map(|mistake| mistake.problem.path.as_str()).collect();
        let classes = ["runtimeClasses[Gvisor]", "runtimeClasses[kata]", "runtimeClasses[none]"];
        assert_eq!(paths, classes);
    }

    #[test]
    fn labels_are_checked() {
        let config =
            read(&format!("{NODELET}nodeLabels: {{rack: a1, example.com/disk: ssd, spare: ''}}\n"))
                .unwrap();
        let labels: Vec<String> =
            config.node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(labels, ["example.com/disk=ssd", "rack=a1", "spare="]);
        let own = [
            "node.kubernetes.io/a",
            "b.kubelet.kubernetes.io/c",
            "topology.kubernetes.io/zone",
            "notk8s.io/d",
        ];
        for label in own {
            assert!(read(&format!("{NODELET}nodeLabels: {{{label}: x}}\n")).is_ok(), "{label}");
        }
        for label in [
            "node-role.kubernetes.io/worker",
            "a.k8s.io/b",
            "kubernetes.io/c",
            "topology.kubernetes.io/rack",
        ] {
            let error =
                read(&format!("{NODELET}nodeLabels: {{{label}: x}}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("nodeLabels[{label}]")), "{error}");
            assert!(error.contains("does not let a node set"), "{error}");
        }
        let bad = "nodeLabels: {-a: x, Example.com/b: y, c: 'd e', f/g/h: z}\n";
        let error = read(&format!("{NODELET}{bad}")).unwrap_err();
        let paths: Vec<&str> =
            error.mistakes.iter().map(|mistake| mistake.problem.path.as_str()).collect();
        assert_eq!(
            paths,
            ["nodeLabels[-a]", "nodeLabels[Example.com/b]", "nodeLabels[c]", "nodeLabels[f/g/h]"]
        );
    }

    #[test]
    fn storage_is_set_apart_like_the_rest() {
        let amounts = "{cpu: 500m, memory: 1Gi, ephemeral-storage: 5Gi, pid: '100'}";
        let config = read(&format!("{KUBELET}systemReserved: {amounts}\n")).unwrap();
        let reserved = config.cgroup.system_reserved;
        assert_eq!(reserved.ephemeral_storage_bytes, 5 << 30);
        assert_eq!((reserved.cpu_milli, reserved.memory_bytes, reserved.pids), (500, 1 << 30, 100));
    }
}
