//! Warnings about the host, which the agent emits as events of the Node when it starts.

use crate::model::{Event, EventKind, EventTarget};

/// Message of `CgroupV1`, as the kubelet words it.
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
    future release. Please migrate to cgroup v2. More information at \
    https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
/// Message of `PossibleMemoryBackedVolumesOnDisk`, as the kubelet words it.
const SWAPPABLE_VOLUMES: &str = "The tmpfs noswap option is not supported. Memory-backed volumes \
    (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered \
    secure.";
/// The first kernel whose tmpfs has the option `noswap`. Earlier kernels may have a backport.
const NOSWAP_KERNEL: (u32, u32) = (6, 4);

/// Properties of the host that the kubelet warns about.
#[derive(Clone, Copy, Debug)]
pub struct HostState {
    /// The host uses cgroup v1.
    pub cgroup_v1: bool,
    /// The kernel swaps to a device or a file.
    pub swap_on: bool,
    /// Major and minor version; `None` when the release can't be parsed.
    pub kernel: Option<(u32, u32)>,
}

/// The warnings about a host, with the reasons, messages and conditions of the kubelet 1.36.
/// `noswap_works` tries the option `noswap` of tmpfs; it is called only if swap is on and the kernel
/// version does not decide.
#[must_use]
pub fn host_warnings(host: &HostState, noswap_works: impl FnOnce() -> bool) -> Vec<Event> {
    let event = |reason, message: &str| Event {
        target: EventTarget::Node,
        kind: EventKind::Warning,
        reason,
        message: message.to_owned(),
    };
    let mut events = Vec::new();
    if host.cgroup_v1 {
        events.push(event("CgroupV1", CGROUP_V1));
    }
    let has_noswap = || host.kernel.is_some_and(|v| v >= NOSWAP_KERNEL) || noswap_works();
    if host.swap_on && !has_noswap() {
        events.push(event("PossibleMemoryBackedVolumesOnDisk", SWAPPABLE_VOLUMES));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v1_is_reported() {
        let host = |cgroup_v1| HostState { cgroup_v1, swap_on: false, kernel: None };
        assert_eq!(host_warnings(&host(false), || false), []);
        let events = host_warnings(&host(true), || false);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&event.target, event.kind), (&EventTarget::Node, EventKind::Warning));
        assert_eq!(event.reason, "CgroupV1");
        let start = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
                     future release. ";
        assert!(event.message.starts_with(start), "{}", event.message);
    }

    #[test]
    fn swap_without_tmpfs_noswap_is_reported() {
        for (swap_on, kernel, works, reported) in [
            (false, Some((5, 10)), false, false),
            (true, Some((6, 4)), false, false),
            (true, Some((6, 3)), false, true),
            // A backport of the option.
            (true, Some((5, 14)), true, false),
            (true, None, false, true),
        ] {
            let host = HostState { cgroup_v1: false, swap_on, kernel };
            let events = host_warnings(&host, || works);
            let reasons: Vec<&str> = events.iter().map(|event| event.reason).collect();
            let expected = ["PossibleMemoryBackedVolumesOnDisk"];
            assert_eq!(reasons, expected[..usize::from(reported)], "{kernel:?} {works}");
        }
    }
}
