//! What a source remembers, from and to the state files.

use crate::{
    model::{NodeObjects, Origin, PodKey, SavedAnswers, SourceKind},
    source::{SavedState, SourceHandle, core::Saved},
    store::{Loaded, LoadedSource, PodRecord, Store, parse_saved},
};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a source knows of its earlier life; it is taken out of what was loaded.
pub(super) fn remembered(loaded: &mut Loaded, kind: SourceKind) -> SavedState {
    match loaded.sources.remove(&kind).unwrap_or_default() {
        // Pods were admitted from it, so it had manifests: that they were never saved (a crash, a
        // full disk) must not make an unmounted directory look like an empty one.
        LoadedSource::None if records_from(&loaded.pods, kind).next().is_some() => SavedState::Lost,
        LoadedSource::None => SavedState::None,
        LoadedSource::Lost => SavedState::Lost,
        LoadedSource::Saved(state) => SavedState::Saved(state),
    }
}

/// The pods that were admitted from a source of this kind and are not being removed, and where they
/// were written.
pub(super) fn admitted(loaded: &Loaded, kind: SourceKind) -> Vec<(PodKey, Origin)> {
    let records = records_from(&loaded.pods, kind).filter(|record| record.kill.is_none());
    records.filter_map(|record| Some((record.key.clone(), record.origin.clone()?))).collect()
}

/// The records of pods that were written in a source of this kind.
fn records_from(
    pods: &BTreeMap<PodKey, Vec<PodRecord>>,
    kind: SourceKind,
) -> impl Iterator<Item = &PodRecord> {
    let is_from = move |origin: &Origin| origin.source == kind;
    pods.values().flatten().filter(move |record| record.origin.as_ref().is_some_and(is_from))
}

/// Saves a source's last good manifests whenever they change, and when their file may be lost.
pub(super) async fn save(
    mut source: SourceHandle,
    kind: SourceKind,
    store: Store,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut losses = store.losses();
    loop {
        // Every arm only waits; what is saved is read afterwards. A change comes before the
        // shutdown, which would lose it.
        let changed = tokio::select! {
            biased;
            changed = source.saved.changed() => {
                if changed.is_err() {
                    // The source has ended, which its own task reports.
                    shutdown.cancelled().await;
                    return Ok(());
                }
                true
            }
            // The store, and with it the sender, is there as long as this task.
            Ok(()) = losses.changed() => false,
            () = shutdown.cancelled() => return Ok(()),
        };
        let saved = Arc::clone(&source.saved.borrow_and_update());
        // A source that has not looked yet and knows nothing must not be remembered as an empty
        // one.
        if *saved == Saved::default() && !changed {
            continue;
        }
        if let Err(error) = store.put_source(kind, &*saved).await {
            tracing::debug!(err = %error, "last good manifests are not on disk yet");
        }
    }
}

/// The answers of the API server that an earlier run of the agent has got; they are taken out of
/// what was loaded.
pub(super) fn remembered_answers(loaded: &mut Loaded) -> SavedAnswers {
    parse_saved(loaded.answers.take(), "the saved answers of the API server")
}

/// Saves answers of the API server whenever they change, and when their file may be lost: a
/// container starts with them while the API server is away.
pub(super) async fn save_answers(
    mut objects: watch::Receiver<Arc<NodeObjects>>,
    store: Store,
    shutdown: CancellationToken,
) {
    let mut losses = store.losses();
    let mut saved: Option<SavedAnswers> = None;
    loop {
        // Cancel-safe: every arm only waits.
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = objects.changed() => if changed.is_err() {
                shutdown.cancelled().await;
                return;
            },
            Ok(()) = losses.changed() => saved = None,
        }
        let current = objects.borrow_and_update().api.to_save();
        let Some(answers) = current.filter(|current| saved.as_ref() != Some(current)) else {
            continue;
        };
        if let Err(err) = store.put_answers(&answers).await {
            tracing::debug!(%err, "the answers of the API server are not on disk yet");
        }
        saved = Some(answers);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        desired::Knowledge,
        manifest::Settings,
        source::{Accepts, CredentialsDirectory, DirectorySource, SourceOptions},
        store::KillRecord,
    };
    use jiff::Timestamp;
    use std::{fs, path::Path, time::Duration};

    fn record(origin: SourceKind) -> PodRecord {
        let location = "/m/web.yaml".into();
        let new = PodRecord::new(PodKey::new("default", "web-n1"), "u".into(), Arc::default());
        let origin = Some(Origin { source: origin, location, document: 0, line: 1 });
        PodRecord { origin, ..new }
    }

    /// How much a source knows after it has looked at an empty directory.
    async fn knowledge_of_empty(dir: &Path, saved: SavedState) -> Knowledge {
        let options = SourceOptions {
            accepts: Accepts::All,
            credentials: CredentialsDirectory::None,
            node_name: "n1".to_owned(),
            settings: Settings::default(),
            check_every: Duration::from_millis(20),
            saved,
            admitted: Vec::new(),
        };
        let (source, mut handle) = DirectorySource::new(dir, options);
        // The source runs until it is dropped.
        tokio::select! {
            () = source.run(CancellationToken::new()) => panic!("the source has ended"),
            changed = handle.snapshots.changed() => changed.unwrap(),
        }
        handle.snapshots.borrow().knowledge
    }

    #[test]
    fn a_pod_that_is_being_removed_was_not_admitted() {
        let kill = KillRecord { grace_seconds: 30, deadline: Timestamp::UNIX_EPOCH };
        let removed = PodRecord { kill: Some(kill), ..record(SourceKind::File) };
        for (record, expected) in
            [(record(SourceKind::File), 1), (record(SourceKind::Http), 0), (removed, 0)]
        {
            let pods = [(record.key.clone(), vec![record])].into();
            let loaded = Loaded { pods, ..Loaded::default() };
            assert_eq!(admitted(&loaded, SourceKind::File).len(), expected, "{loaded:?}");
        }
    }

    /// What an agent does that finds its state files so, and its manifest directory empty: only
    /// where nothing was ever accepted is everything known.
    #[tokio::test]
    async fn a_source_whose_memory_was_lost_does_not_know_everything() {
        use SourceKind::{File, Http};
        let saved = "{\"version\":1,\"content\":{\"files\":{}}}";
        let value = || SavedState::Saved(serde_json::json!({ "files": {} }));
        for (what, sources_json, recorded, expected) in [
            ("a fresh machine", None, None, SavedState::None),
            ("saved", Some(saved), Some(File), value()),
            ("cut short", Some("{\"version\":1,"), None, SavedState::Lost),
            ("of a later version", Some("{\"version\":9,\"content\":{}}"), None, SavedState::Lost),
            ("never saved, but a pod was admitted", None, Some(File), SavedState::Lost),
            ("a pod was admitted from elsewhere", None, Some(Http), SavedState::None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (root, run, manifests) =
                (dir.path().join("root"), dir.path().join("run"), dir.path().join("m"));
            fs::create_dir(&manifests).unwrap();
            if let Some(kind) = recorded {
                let (store, writer, _) = Store::lock_and_open(&root, &run, None).unwrap();
                let record = record(kind);
                let (put, ()) = tokio::join!(
                    async move { store.put_pods(&record.key, std::slice::from_ref(&record)).await },
                    writer.run()
                );
                put.unwrap();
            }
            if let Some(content) = sources_json {
                fs::create_dir_all(root.join("nodelet")).unwrap();
                fs::write(root.join("nodelet/sources.json"), content).unwrap();
            }
            let (_store, _writer, mut loaded) = Store::lock_and_open(&root, &run, None).unwrap();
            let found = remembered(&mut loaded, File);
            assert_eq!(found, expected, "{what}");
            let wanted = match expected {
                SavedState::Lost => Knowledge::Checkpoint,
                SavedState::None | SavedState::Saved(_) => Knowledge::Complete,
            };
            assert_eq!(knowledge_of_empty(&manifests, found).await, wanted, "{what}");
        }
    }
}
