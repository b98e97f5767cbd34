//! The pure part of names: where a cgroup lies under either driver, and what a directory there is.
//!
//! Inside, a cgroup's name is a list of components below `cgroupRoot`, the same for both drivers:
//! `kubepods`, `burstable`, `pod<uid>`. With cgroupfs they are directories. With systemd every
//! prefix of the list (`cgroupRoot` included) is a slice named after all of its components, so the
//! name of a directory tells the whole path:
//!
//! ```text
//! cgroupfs  /kubepods/burstable/pod12-34
//! systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice
//! ```

use crate::model::CgroupDriver;

/// Top of the pods' tree.
pub(super) const KUBEPODS: &str = "kubepods";
/// What pods' cgroups lie in, as components below `cgroupRoot`.
pub(super) const PARENTS: [&[&str]; 3] =
    [&[KUBEPODS], &[KUBEPODS, "burstable"], &[KUBEPODS, "besteffort"]];
pub(super) const DRIVERS: [CgroupDriver; 2] = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd];
const SLICE: &str = ".slice";

/// Directories from the mount point down to the cgroup with these components.
#[must_use]
pub(super) fn directories<'a>(
    driver: CgroupDriver,
    components: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    match driver {
        CgroupDriver::Cgroupfs => components.map(str::to_owned).collect(),
        CgroupDriver::Systemd => {
            let mut stem = String::new();
            let mut slices = Vec::new();
            for component in components {
                if !stem.is_empty() {
                    stem.push('-');
                }
                // A dash separates levels in the name of a slice.
                stem.push_str(&component.replace('-', "_"));
                slices.push(format!("{stem}{SLICE}"));
            }
            slices
        }
    }
}

/// The component that a directory in `parent` stands for. `None` for a directory that is no cgroup
/// of this driver's tree.
#[must_use]
pub(super) fn component(driver: CgroupDriver, parent: Option<&str>, name: &str) -> Option<String> {
    match driver {
        CgroupDriver::Cgroupfs => Some(name.to_owned()),
        CgroupDriver::Systemd => {
            let stem = name.strip_suffix(SLICE)?;
            let last = match parent {
                Some(parent) => {
                    stem.strip_prefix(parent.strip_suffix(SLICE)?)?.strip_prefix('-')?
                }
                None => stem,
            };
            (!last.is_empty() && !last.contains('-')).then(|| last.replace('_', "-"))
        }
    }
}

/// A component of a cgroup name below `cgroupRoot`: not empty, no `/`, no dots of a relative path.
#[must_use]
pub(super) fn is_component(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\0', '\n'])
}

/// The pod's uid in a component `pod<uid>`.
#[must_use]
pub(super) fn uid_of_component(component: &str) -> Option<&str> {
    component.strip_prefix("pod").filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use CgroupDriver::{Cgroupfs, Systemd};

    #[test]
    fn a_pod_has_its_place_under_either_driver() {
        for (components, cgroupfs, systemd) in [
            (vec!["kubepods"], "kubepods", "kubepods.slice"),
            (
                vec!["kubepods", "burstable", "pod12-34"],
                "kubepods/burstable/pod12-34",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice",
            ),
            (vec!["kubepods", "podabc"], "kubepods/podabc", "kubepods.slice/kubepods-podabc.slice"),
            (
                vec!["demo-1", "kubepods", "besteffort"],
                "demo-1/kubepods/besteffort",
                "demo_1.slice/demo_1-kubepods.slice/demo_1-kubepods-besteffort.slice",
            ),
            (vec![], "", ""),
        ] {
            let at = |driver| directories(driver, components.iter().copied()).join("/");
            assert_eq!((at(Cgroupfs).as_str(), at(Systemd).as_str()), (cgroupfs, systemd));
            let slices = directories(Systemd, components.iter().copied());
            for (depth, slice) in slices.iter().enumerate() {
                let parent = depth.checked_sub(1).map(|above| slices[above].as_str());
                let read = component(Systemd, parent, slice);
                assert_eq!(read.as_deref(), Some(components[depth]), "{slice}");
            }
        }
    }

    #[test]
    fn directories_of_others_are_no_components() {
        for (parent, name) in [
            (None, "system.slice.d"),
            (None, "kubepods"),
            (None, "a-b.slice"),
            (Some("kubepods.slice"), "kubepods-.slice"),
            (Some("kubepods.slice"), "kubepods.slice"),
            (Some("kubepods.slice"), "kubepodsx-podab.slice"),
            (Some("kubepods.slice"), "kubepods-burstable-podab.slice"),
            (Some("kubepods.slice"), "cri-containerd-12.scope"),
            (Some("kubepods"), "kubepods-podab.slice"),
        ] {
            assert_eq!(component(Systemd, parent, name), None, "{name} in {parent:?}");
        }
        assert!(is_component("podab-12") && is_component("kubepods"));
        assert!(!is_component("..") && !is_component("") && !is_component("a/b"));
        assert_eq!(uid_of_component("pod12-34"), Some("12-34"));
        assert_eq!(uid_of_component("pod"), None);
        assert_eq!(uid_of_component("cri-containerd-1.scope"), None);
    }
}
