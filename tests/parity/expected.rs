//! The differences that are meant, each with its reason.

use crate::Difference;

/// One of them. `*` in a pattern stands for anything.
pub struct Expected {
    /// Which requests.
    pub request: &'static str,
    /// Which field.
    pub field: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// Those that are meant on every machine.
const ALL: &[Expected] = &[
    Expected {
        request: "*",
        field: "*config.labels[nodelet.dev/owner]",
        reason: "tells this agent's pods from those of others on the same containerd",
    },
    Expected {
        request: "*",
        field: "*annotations[nodelet.dev/revision]",
        reason: "the hash of everything in the manifest, by which a running pod is recognised after the agent's death",
    },
    Expected {
        request: "*CreateContainer *",
        field: "*annotations[nodelet.dev/resources]",
        reason: "the cpu and memory that the container was made with, by which the agent knows after its death whether it is still to be resized; the kubelet keeps this in a file of its own",
    },
    Expected {
        request: "- ImageStatus *",
        field: "image.annotations[*]",
        reason: "the kubelet names the pod's annotations when it asks whether an image is there; the answer does not depend on them",
    },
    Expected {
        request: "environment CreateContainer *",
        field: "config.envs in order",
        reason: "the kubelet's order is that of a map, another one every time; ours is the manifest's",
    },
];

/// Where the kernel has no hugetlb controller for cgroups.
const HUGE_PAGES: Expected = Expected {
    request: "*",
    field: "*.hugepage_limits[*].page_size",
    reason: "the kubelet limits huge pages also where no controller does; CRI-O then fails every container",
};

/// Those that are meant on this machine.
pub fn here() -> impl Iterator<Item = &'static Expected> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let v1 = read("/proc/self/mounts");
    let v1 = v1.lines().any(|mount| mount.contains(" cgroup ") && mount.contains("hugetlb"));
    let v2 = read("/sys/fs/cgroup/cgroup.controllers");
    let limited = v1 || v2.split_whitespace().any(|controller| controller == "hugetlb");
    ALL.iter().chain((!limited).then_some(&HUGE_PAGES))
}

impl Expected {
    /// Whether a difference is this one.
    pub fn is_for(&self, difference: &Difference) -> bool {
        fits(self.request, &difference.request) && fits(self.field, &difference.field)
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            places.any(|at| fits(rest, &text[at..]))
        }),
    }
}

#[test]
fn patterns() {
    assert!(fits("* RunPodSandbox *", "plain RunPodSandbox -"));
    assert!(fits("a*c*", "abc") && fits("*", ""));
    assert!(!fits("a*c", "abcd") && !fits("b*", "abc"));
}
