//! What is left of pods that have no record, no worker and no sandbox any more.

use super::{
    Host, blocking, chain,
    remove::{remove_host_directories, unmount_and_delete},
};
use crate::{
    blocking::{CGROUPS, LOOKS},
    model::PodUid,
};
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// The uids whose directories are claimed for a pod or removed as leftovers: at any time by one
/// task.
#[derive(Debug, Default)]
pub struct Leftovers(Mutex<BTreeSet<PodUid>>);

/// Ends a turn of [`Leftovers`] when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    leftovers: &'a Leftovers,
    uid: PodUid,
}

impl Leftovers {
    /// Takes the turn for a uid; `None` while another task has it.
    pub fn begin(&self, uid: &PodUid) -> Option<Turn<'_>> {
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.insert(uid.clone()).then(|| Turn { leftovers: self, uid: uid.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut uids = self.leftovers.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.remove(&self.uid);
    }
}

/// Removes cgroups, volumes, logs and directory of a uid. The caller has the turn of the uid.
///
/// The pod's directory below the root directory proves that a leftover is ours: cgroups and log
/// directories of other agents' pods carry uids, too. So the directory goes last.
///
/// # Cancel safety
/// Dropping it leaves a part of them; the next call goes on.
pub(crate) async fn remove_leftovers(host: &Host, uid: &PodUid) -> Result<(), String> {
    let (cgroups, wanted) = (host.cgroups.clone(), uid.clone());
    let found =
        blocking(&CGROUPS, move || cgroups.list_pods()).await?.map_err(|error| chain(&error))?;
    for pod in found.into_iter().filter(|pod| pod.uid == wanted) {
        host.cgroups.remove_pod(&pod.name).await.map_err(|error| chain(&error))?;
    }
    let files = host.files.clone();
    let logs = blocking(&LOOKS, move || files.list_pod_logs()).await?;
    let logs = logs.map_err(|error| chain(&error))?;
    let keys = logs.into_iter().filter(|logs| logs.uid == *uid).map(|logs| logs.key).collect();
    unmount_and_delete(&host.volumes, uid).await?;
    remove_host_directories(&host.volumes, &host.files, uid, keys).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_has_one_turn_at_a_time() {
        let leftovers = Leftovers::default();
        let (one, two) = (PodUid::from("one"), PodUid::from("two"));
        let turn = leftovers.begin(&one);
        assert!(turn.is_some() && leftovers.begin(&two).is_some());
        assert!(leftovers.begin(&one).is_none());
        drop(turn);
        assert!(leftovers.begin(&one).is_some());
    }
}
