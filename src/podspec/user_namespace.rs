//! The user and group ids of the host that a pod with a user namespace of its own
//! (`hostUsers: false`) has: a range of its own out of those that are set aside for pods.

use crate::model::k8s;
use std::collections::BTreeMap;
use thiserror::Error;

/// How many ids a pod has by default, and the unit of all numbers here.
pub const IDS_PER_POD: u32 = 1 << 16;
/// Owner of the pods' ids in `/etc/subuid` and `/etc/subgid`, as for the kubelet.
const OWNER: &str = "kubelet";

/// Ids of the host. Id 0 in the pod is `first` on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The lowest of them.
    pub first: u32,
    /// How many.
    pub length: u32,
}

/// The ids from which each pod gets a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    all: IdRange,
    per_pod: u32,
}

/// Why what `/etc/subuid` and `/etc/subgid` say is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{OWNER} in /etc/subuid and /etc/subgid: {0}")]
pub struct IdSpaceError(&'static str);

/// Whether a pod has a user namespace of its own.
#[must_use]
pub fn has_user_namespace(spec: &k8s::PodSpec) -> bool {
    spec.host_users == Some(false)
}

impl IdSpace {
    /// What `/etc/subuid` and `/etc/subgid` set aside for the user `kubelet`. Without a line for
    /// it, the ids from 65536 on, as many as `max_pods` pods need.
    ///
    /// # Errors
    /// When the two files differ, or a range is not one that can be split evenly.
    pub fn of_machine(
        subuid: &str,
        subgid: &str,
        per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, IdSpaceError> {
        let (uids, gids) = (ranges(subuid), ranges(subgid));
        let all = match (&uids[..], &gids[..]) {
            ([], []) => {
                let length = per_pod.saturating_mul(max_pods);
                IdRange { first: IDS_PER_POD, length: length.min(u32::MAX - IDS_PER_POD) }
            }
            ([Some(uids)], [Some(gids)]) if uids == gids => *uids,
            ([_], [_]) => return Err(IdSpaceError("both need the same numbers")),
            (_, _) => return Err(IdSpaceError("each needs exactly one line")),
        };
        if all.first < IDS_PER_POD || all.first % IDS_PER_POD != 0 {
            return Err(IdSpaceError("the first id must be a multiple of 65536, and not 0"));
        }
        if all.length < per_pod || all.first.checked_add(all.length).is_none() {
            return Err(IdSpaceError("there must be ids for one pod at least"));
        }
        Ok(Self { all, per_pod })
    }

    /// The first range that no pod has.
    pub fn free<K>(&self, taken: &BTreeMap<K, IdRange>) -> Option<IdRange> {
        let ranges = (0..self.all.length / self.per_pod).map(|number| IdRange {
            first: self.all.first + number * self.per_pod,
            length: self.per_pod,
        });
        let end = |range: &IdRange| u64::from(range.first) + u64::from(range.length);
        let overlap =
            |a: &IdRange, b: &IdRange| u64::from(a.first) < end(b) && u64::from(b.first) < end(a);
        ranges.into_iter().find(|range| !taken.values().any(|other| overlap(range, other)))
    }
}

/// The ranges of [`OWNER`]; `None` for a line that has other things than numbers.
fn ranges(text: &str) -> Vec<Option<IdRange>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(OWNER)?.strip_prefix(':'));
    lines
        .map(|line| {
            let (first, length) = line.split_once(':')?;
            Some(IdRange { first: first.parse().ok()?, length: length.trim_end().parse().ok()? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn space(subuid: &str, subgid: &str) -> Result<IdSpace, IdSpaceError> {
        IdSpace::of_machine(subuid, subgid, IDS_PER_POD, 3)
    }

    #[test]
    fn pods_get_the_first_free_range() {
        let space = space("root:100000:65536\n", "").unwrap();
        let mut taken = BTreeMap::new();
        for (pod, first) in [("a", 65_536), ("b", 131_072), ("c", 196_608)] {
            let range = space.free(&taken).unwrap();
            assert_eq!(range, IdRange { first, length: 65_536 });
            taken.insert(pod, range);
        }
        assert_eq!(space.free(&taken), None);
        taken.remove("b");
        assert_eq!(space.free(&taken).unwrap().first, 131_072);
        // Of another agent, with other ideas of ranges.
        taken.insert("other", IdRange { first: 190_000, length: 10 });
        assert_eq!(space.free(&taken), None);
    }

    #[test]
    fn the_machine_may_set_ids_aside() {
        let line = "root:1:2\nkubelet:1048576:131072\n";
        let space = space(line, line).unwrap();
        let first = space.free(&BTreeMap::<u8, _>::new()).unwrap();
        assert_eq!(first, IdRange { first: 1 << 20, length: 65_536 });
        let taken = BTreeMap::from([(0, first)]);
        let second = space.free(&taken).unwrap();
        assert_eq!(space.free(&BTreeMap::from([(0, first), (1, second)])), None);
    }

    #[test]
    fn ids_that_cannot_be_split_are_refused() {
        let line = "kubelet:1048576:131072\n";
        for (subuid, subgid, why) in [
            (line, "", "exactly one line"),
            ("kubelet:65536:65536\nkubelet:196608:65536\n", line, "exactly one line"),
            (line, "kubelet:1048576:65536\n", "the same numbers"),
            ("kubelet:x:65536\n", "kubelet:x:65536\n", "the same numbers"),
            ("kubelet:100000:65536\n", "kubelet:100000:65536\n", "multiple of 65536"),
            ("kubelet:0:65536\n", "kubelet:0:65536\n", "multiple of 65536"),
            ("kubelet:65536:1000\n", "kubelet:65536:1000\n", "for one pod"),
        ] {
            let error = space(subuid, subgid).unwrap_err().to_string();
            assert!(error.contains(why), "{subuid:?} {subgid:?}: {error}");
        }
    }
}
