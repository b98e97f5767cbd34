//! Leftovers of pods that have no record, no worker and no sandbox any more.

use super::{
    HostError, blocking,
    remove::{remove_host_directories, unmount_and_delete},
};
use crate::{
    blocking::{CGROUPS, LOOKS},
    cgroup::Cgroups,
    hostfiles::HostFiles,
    model::PodUid,
    volume::Volumes,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Removes leftovers. Cheap to clone; all clones share the turns.
#[derive(Clone, Debug)]
pub struct Leftovers {
    cgroups: Cgroups,
    volumes: Volumes,
    files: HostFiles,
    turns: Turns,
}

/// The uids whose directories are claimed for a pod or removed as leftovers: at any time by one
/// task.
#[derive(Clone, Debug, Default)]
struct Turns(Arc<Mutex<BTreeSet<PodUid>>>);

/// Ends a turn of [`Leftovers`] when it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    uid: PodUid,
}

impl Turns {
    fn begin(&self, uid: &PodUid) -> Option<Turn> {
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.insert(uid.clone()).then(|| Turn { turns: self.clone(), uid: uid.clone() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut uids = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.remove(&self.uid);
    }
}

impl Leftovers {
    /// Removes leftovers of pods in these places.
    #[must_use]
    pub fn new(cgroups: Cgroups, volumes: Volumes, files: HostFiles) -> Self {
        Self { cgroups, volumes, files, turns: Turns::default() }
    }

    /// Takes the turn for a uid; `None` while another task has it.
    #[must_use]
    pub fn begin(&self, uid: &PodUid) -> Option<Turn> {
        self.turns.begin(uid)
    }

    /// Removes cgroups, volumes, logs and directory of a uid. The caller has the turn of the uid.
    ///
    /// The pod's directory below the root directory proves that a leftover is ours: cgroups and log
    /// directories of other agents' pods carry uids, too. So the directory goes last.
    ///
    /// # Cancel safety
    /// If it is dropped, some of the leftovers remain, and the next call continues.
    pub(crate) async fn remove(&self, uid: &PodUid) -> Result<(), HostError> {
        let (cgroups, wanted) = (self.cgroups.clone(), uid.clone());
        let found = blocking(&CGROUPS, move || cgroups.list_pods()).await?;
        for pod in found.into_iter().filter(|pod| pod.uid == wanted) {
            self.cgroups.remove_pod(&pod.name).await?;
        }
        let (files, wanted) = (self.files.clone(), uid.clone());
        let keys = blocking(&LOOKS, move || files.pods_with_logs(&wanted)).await?;
        unmount_and_delete(&self.volumes, uid).await?;
        remove_host_directories(&self.volumes, &self.files, uid, keys).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let (one, two) = (PodUid::from("one"), PodUid::from("two"));
        let turn = turns.begin(&one);
        assert!(turn.is_some() && turns.begin(&two).is_some());
        assert!(turns.begin(&one).is_none());
        drop(turn);
        assert!(turns.begin(&one).is_some());
    }
}
