//! Removes what crashes have left of pods.
//!
//! Leftovers are the cgroups, pod directories, log directories and log links of pods that are gone.
//! They are removed only after every source was read completely and the runtime was listed: before,
//! a pod may be unknown because its manifest was not read yet. A pod directory without this agent's
//! owner id is listed and never touched, unless it is empty.

use crate::{
    blocking::LOOKS,
    hostfiles::HostFiles,
    model::{Event, EventKind, EventTarget, Known, PodUid},
    volume::{DirOwner, Volumes},
    worker::{Leftovers, Turn},
};
use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::watch;

/// Directories of other programs that the status names.
const NAMED: usize = 3;

/// Removes what crashes have left.
#[derive(Clone)]
pub struct Sweeper {
    /// The pods' directories.
    pub volumes: Volumes,
    /// The pods' logs.
    pub files: HostFiles,
    /// Removes what a pod has left.
    pub leftovers: Leftovers,
    /// This agent's owner id.
    pub owner: Box<str>,
    /// The pods that are known.
    pub known: watch::Receiver<Arc<Known>>,
}

impl Sweeper {
    /// Removes what is left of pods that are gone.
    ///
    /// The directories are listed before the known pods are read, so a pod that is being prepared
    /// meanwhile is either not in the listing or known.
    pub(super) async fn sweep(self) -> Swept {
        let mut swept = Swept::default();
        let volumes = self.volumes.clone();
        let listed = match LOOKS.run(move || volumes.list_pods()).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => {
                return Swept::failed(format!("cannot look for leftover pods: {error}"));
            }
            Err(error) => {
                return Swept::failed(format!("looking for leftover pods has crashed: {error}"));
            }
        };
        let (volumes, owner) = (self.volumes.clone(), self.owner.clone());
        let looked = LOOKS.run(move || by_owner(&volumes, listed, &owner)).await;
        let PodDirs { ours, free, others } = match looked {
            Ok(looked) => looked,
            Err(error) => {
                return Swept::failed(format!("looking for leftover pods has crashed: {error}"));
            }
        };
        swept.foreign = others;
        for uid in free {
            let Some(_turn) = self.turn(&uid) else { continue };
            let volumes = self.volumes.clone();
            if let Ok(Err(error)) = LOOKS.run(move || volumes.remove_free_dir(&uid)).await {
                swept.failures.push(error.to_string());
            }
        }
        for uid in &ours {
            let Some(_turn) = self.turn(uid) else { continue };
            tracing::info!(%uid, "removing what is left of a pod that is gone");
            if let Err(error) = self.leftovers.remove(uid).await {
                let sentence = error.message();
                tracing::warn!(%uid, "{sentence}");
                swept.failures.push(format!("leftovers of pod {uid}: {sentence}"));
            }
        }
        let files = self.files.clone();
        let known = Arc::clone(&self.known.borrow());
        let links = LOOKS.run(move || {
            files.remove_dead_links(|uid| ours.contains(uid), |id| known.containers.contains(id))
        });
        if let Ok(Err(error)) = links.await {
            swept.failures.push(format!("cannot remove dead log links: {error}"));
        }
        swept
    }

    /// Takes the turn of a uid that no known pod has. The turn is taken before the known pods are
    /// read: a pod that becomes known now waits until the turn ends.
    fn turn(&self, uid: &PodUid) -> Option<Turn> {
        let turn = self.leftovers.begin(uid)?;
        (!self.known.borrow().uids.contains(uid)).then_some(turn)
    }
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// What could not be listed or removed, one sentence each.
    failures: Vec<String>,
    /// The pod directories of other programs, sorted.
    foreign: Vec<PodUid>,
}

impl Swept {
    fn failed(sentence: String) -> Self {
        Self { failures: vec![sentence], foreign: Vec::new() }
    }

    /// The kubelet's event of a garbage collection that failed.
    pub(super) fn event(&self) -> Option<Event> {
        (!self.failures.is_empty()).then(|| Event {
            target: EventTarget::Node,
            kind: EventKind::Warning,
            reason: "ContainerGCFailed",
            message: self.failures.join("; "),
        })
    }

    /// What could not be listed or removed, one sentence each.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// What a person should know about pod directories that another program made. A pod that
    /// claims the uid of one says so itself.
    pub(super) fn foreign(&self, known: &Known) -> Option<String> {
        let unknown: Vec<_> = self.foreign.iter().filter(|uid| !known.uids.contains(uid)).collect();
        foreign_sentence(&unknown)
    }
}

/// Pod directories below the root directory.
#[derive(Default)]
struct PodDirs {
    /// Those with this agent's owner id.
    ours: BTreeSet<PodUid>,
    /// Those that a crash right before the end of a removal has left: empty, without an owner id.
    free: Vec<PodUid>,
    /// Those of other programs, sorted.
    others: Vec<PodUid>,
}

/// A directory that can't be read counts as another program's. Blocks.
fn by_owner(volumes: &Volumes, listed: Vec<PodUid>, owner: &str) -> PodDirs {
    let mut dirs = PodDirs::default();
    for uid in listed {
        match volumes.dir_owner(&uid) {
            Ok(DirOwner::Agent { owner: found, .. }) if found == owner => _ = dirs.ours.insert(uid),
            Ok(DirOwner::Free) if may_be_uid(&uid) => dirs.free.push(uid),
            Ok(DirOwner::Agent { .. } | DirOwner::Free | DirOwner::Unknown) | Err(_) => {
                dirs.others.push(uid);
            }
        }
    }
    dirs.others.sort_unstable();
    dirs
}

/// False for `lost+found`, which is there when `pods/` is a file system of its own.
fn may_be_uid(uid: &PodUid) -> bool {
    uid.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Names the pod directories of other programs, a bounded number of them; `None` when there is
/// none.
fn foreign_sentence(others: &[&PodUid]) -> Option<String> {
    let named: Vec<String> =
        others.iter().take(NAMED).map(|uid| uid.as_str().escape_debug().to_string()).collect();
    let more = match others.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let sentence = format!(
        "{} in pods/ of the root directory not made by this agent, left alone: {}{more}",
        match others.len() {
            0 => return None,
            1 => "1 directory".to_owned(),
            count => format!("{count} directories"),
        },
        named.join(", ")
    );
    Some(sentence)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::PodKey;
    use std::fs;

    fn uids(names: &[&str]) -> Vec<PodUid> {
        names.iter().map(|name| PodUid::from(*name)).collect()
    }

    fn named(foreign: &[&str], known: &[&str]) -> Option<String> {
        let swept = Swept { failures: Vec::new(), foreign: uids(foreign) };
        let known = Known { uids: uids(known).into_iter().collect(), ..Known::default() };
        swept.foreign(&known)
    }

    #[test]
    fn only_failures_of_a_sweep_are_an_event() {
        let swept = Swept { failures: Vec::new(), foreign: uids(&["a"]) };
        assert_eq!(swept.event(), None);
        let failures = vec!["leftovers of pod a: busy".to_owned(), "b".to_owned()];
        let swept = Swept { failures, foreign: uids(&["a"]) };
        let event = swept.event().unwrap();
        assert_eq!((&event.target, event.kind), (&EventTarget::Node, EventKind::Warning));
        assert_eq!(event.reason, "ContainerGCFailed");
        assert_eq!(event.message, "leftovers of pod a: busy; b");
    }

    #[test]
    fn foreign_directories_are_named_up_to_a_bound() {
        assert_eq!(named(&[], &[]), None);
        let one = named(&["a\u{1b}[31m"], &[]).unwrap_or_default();
        assert!(
            one.starts_with("1 directory in pods/") && one.ends_with(": a\\u{1b}[31m"),
            "{one}"
        );
        let many = named(&["a", "b", "c", "d", "e"], &[]).unwrap_or_default();
        assert!(
            many.starts_with("5 directories") && many.ends_with(": a, b, c and 2 more"),
            "{many}"
        );
    }

    #[test]
    fn a_foreign_directory_is_named_as_soon_as_no_pod_claims_it() {
        assert_eq!(named(&["a"], &["a", "b"]), None);
        let one = named(&["a"], &["b"]).unwrap_or_default();
        assert!(one.ends_with("left alone: a"), "{one}");
    }

    #[test]
    fn directories_are_told_apart_by_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::open(&dir.path().join("root"), None).unwrap();
        let web = PodKey::new("default", "web");
        volumes.claim(&"ours".into(), &web, "me").unwrap();
        volumes.claim(&"theirs".into(), &web, "another").unwrap();
        for empty in ["free", "lost+found"] {
            fs::create_dir(volumes.pod_dir(&empty.into()).unwrap()).unwrap();
        }
        fs::create_dir_all(volumes.pod_dir(&"unknown".into()).unwrap().join("volumes")).unwrap();
        let look = || by_owner(&volumes, volumes.list_pods().unwrap(), "me");
        let dirs = look();
        assert_eq!(dirs.ours.into_iter().collect::<Vec<_>>(), uids(&["ours"]));
        assert_eq!(dirs.free, uids(&["free"]));
        assert_eq!(dirs.others, uids(&["lost+found", "theirs", "unknown"]));
        for uid in uids(&["ours", "theirs", "unknown"]) {
            volumes.remove_free_dir(&uid).unwrap();
            assert!(volumes.pod_dir(&uid).unwrap().exists(), "{uid}");
        }
        volumes.remove_free_dir(&"free".into()).unwrap();
        assert_eq!(look().free, uids(&[]));
    }
}
