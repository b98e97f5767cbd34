//! What admission has to know of the node.

use super::Allocatable;
use crate::model::CollectOrdered as _;
use std::collections::BTreeMap;

/// The node, as pods see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: Box<str>,
    /// Its labels as the agent knows them: see [`node_labels`]. They count until the Node object is
    /// known.
    pub labels: BTreeMap<String, String>,
    pub allocatable: Allocatable,
    /// `allowedUnsafeSysctls`: names, or prefixes with `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Version of the kernel, which decides what sysctls are safe; `None` counts as a recent one.
    pub kernel: Option<(u32, u32)>,
    /// Whether the kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// `staticPodEviction: never`: every static pod counts as critical, as it does for the kubelet.
    pub spares_static_pods: bool,
}

/// Go's name of an architecture, which Kubernetes uses, from Rust's (`x86_64`).
#[must_use]
pub fn go_arch(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        // Kubernetes runs on the little-endian one alone.
        "powerpc64" => "ppc64le",
        // arm, riscv64, s390x: Go has the same names.
        other => other,
    }
}

/// The labels of a node: what the kubelet gives every node, and `configured` ones, which win.
/// `machine` is Rust's name of the architecture (`x86_64`).
#[must_use]
pub fn node_labels(
    node_name: &str,
    machine: &str,
    configured: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let arch = go_arch(machine);
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", node_name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect_ordered();
    labels.extend(configured.iter().map(|(key, value)| (key.clone(), value.clone())));
    labels
}

/// Major and minor version out of a kernel's release: `6.1` of `6.1.0-13-amd64`.
#[must_use]
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.splitn(3, '.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?;
    let digits = minor.bytes().take_while(u8::is_ascii_digit).count();
    Some((major, minor[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_labels_of_every_node_and_its_own() {
        let configured = [("rack", "a1"), ("kubernetes.io/hostname", "other")];
        let configured = configured.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let labels = node_labels("n1", "x86_64", &configured);
        let found: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            found,
            [
                "beta.kubernetes.io/arch=amd64",
                "beta.kubernetes.io/os=linux",
                "kubernetes.io/arch=amd64",
                "kubernetes.io/hostname=other",
                "kubernetes.io/os=linux",
                "rack=a1",
            ]
        );
        for (machine, arch) in [
            ("aarch64", "arm64"),
            ("arm", "arm"),
            ("x86", "386"),
            ("loongarch64", "loong64"),
            ("riscv64", "riscv64"),
            ("s390x", "s390x"),
        ] {
            let labels = node_labels("n1", machine, &BTreeMap::new());
            assert_eq!(labels["kubernetes.io/arch"], arch);
            assert_eq!(labels["kubernetes.io/hostname"], "n1");
        }
    }

    #[test]
    fn the_version_of_a_kernel_is_the_beginning_of_its_release() {
        for (release, version) in [
            ("6.1.0-13-amd64", Some((6, 1))),
            ("4.15-rc1", Some((4, 15))),
            ("5.10", Some((5, 10))),
            ("6", None),
            ("", None),
            ("x.y", None),
        ] {
            assert_eq!(kernel_version(release), version, "{release}");
        }
    }
}
