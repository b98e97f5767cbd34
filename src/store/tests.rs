//! State files on a real file system.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::model::PodUid;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::Duration,
};

fn record(key: &PodKey, uid: &str) -> PodRecord {
    let new = PodRecord::new(key.clone(), PodUid::from(uid), Arc::default());
    PodRecord { revision: Some("r1".into()), ..new }
}

/// A store with its writer running; a new call on the same directories is the agent's next life.
struct Life {
    store: Store,
    loaded: Loaded,
    writer: tokio::task::JoinSet<()>,
}

impl Life {
    fn begin(dir: &Path) -> Self {
        let (store, writer, loaded) =
            Store::lock_and_open(&dir.join("root"), &dir.join("run"), None).unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(writer.run());
        Self { store, loaded, writer: tasks }
    }

    async fn end(mut self) {
        drop(self.store);
        while self.writer.join_next().await.is_some() {}
    }
}

#[tokio::test]
async fn both_writers_give_signs_of_life() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, writer, _) =
        Store::lock_and_open(&dir.path().join("root"), &dir.path().join("run"), None).unwrap();
    let heartbeats = writer.heartbeats();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(writer.run());
    for mut heartbeat in heartbeats {
        let beat = heartbeat.wait_for(|beat| !beat.is_zero());
        tokio::time::timeout(std::time::Duration::from_secs(10), beat).await.unwrap().unwrap();
    }
    tasks.abort_all();
}

#[tokio::test]
async fn evictions_survive_the_agent_and_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    assert_eq!(life.loaded.evictions, None);
    life.store.put_evictions(&serde_json::json!(["a"])).await.unwrap();
    life.end().await;

    let (run, root) = (dir.path().join("run/evictions.json"), "root/nodelet/evictions.json");
    let life = Life::begin(dir.path());
    assert_eq!(life.loaded.evictions, Some(serde_json::json!(["a"])));
    // As if the disk had taken nothing: the file on /run is the newer one.
    let older = fs::read(dir.path().join(root)).unwrap();
    life.store.put_evictions(&serde_json::json!(["a", "b"])).await.unwrap();
    life.end().await;
    fs::write(dir.path().join(root), older).unwrap();
    let life = Life::begin(dir.path());
    assert_eq!(life.loaded.evictions, Some(serde_json::json!(["a", "b"])));
    life.end().await;

    fs::remove_file(run).unwrap();
    let life = Life::begin(dir.path());
    assert_eq!(life.loaded.evictions, Some(serde_json::json!(["a"])), "after a reboot");
    life.end().await;
}

#[tokio::test]
async fn what_is_saved_is_there_in_the_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let key = PodKey::new("default", "web-n1");
    let life = Life::begin(dir.path());
    assert!(life.loaded.pods.is_empty() && life.loaded.memory.is_empty());
    life.store.put_pods(&key, &[record(&key, "a"), record(&key, "b")]).await.unwrap();
    life.store.put_memory(&key, Some(&serde_json::json!({"delay": 20}))).await.unwrap();
    life.store.put_source(SourceKind::Http, &serde_json::json!(["x"])).await.unwrap();
    assert_eq!(life.loaded.images, None);
    life.store.put_images(&serde_json::json!({"a": 1})).await.unwrap();
    life.end().await;

    let life = Life::begin(dir.path());
    let uids: Vec<&str> = life.loaded.pods[&key].iter().map(|r| r.uid.as_str()).collect();
    assert_eq!(uids, ["a", "b"]);
    assert_eq!(life.loaded.memory[&key].get(), serde_json::json!({"delay": 20}).to_string());
    let saved = &life.loaded.sources[&SourceKind::Http];
    assert_eq!(*saved, LoadedSource::Saved(serde_json::json!(["x"])));
    assert_eq!(life.loaded.sources[&SourceKind::File], LoadedSource::None);
    assert_eq!(life.loaded.images, Some(serde_json::json!({"a": 1})));
    let path = dir.path().join("root/nodelet/pods/default_web-n1.json");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    life.store.put_pods(&key, &[]).await.unwrap();
    life.store.put_memory::<()>(&key, None).await.unwrap();
    assert!(!path.exists());
    life.end().await;
    assert!(Life::begin(dir.path()).loaded.pods.is_empty());
}

/// Its content may have a shape that this release does not know.
#[tokio::test]
async fn a_file_of_a_later_version_is_named_by_its_version() {
    let dir = tempfile::tempdir().unwrap();
    Life::begin(dir.path()).end().await;
    let file = dir.path().join("root/nodelet/pods/default_a.json");
    fs::write(&file, r#"{"version":2,"content":{"records":[]},"written":"then"}"#).unwrap();
    let life = Life::begin(dir.path());
    let warnings = life.store.warnings().borrow().join("\n");
    assert!(warnings.contains("default_a.json"), "{warnings}");
    assert!(warnings.contains("its version is 2, this nodelet knows 1"), "{warnings}");
    assert!(file.with_extension("json.damaged-1").exists());
    life.end().await;
}

#[tokio::test]
async fn fields_that_are_not_known_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    Life::begin(dir.path()).end().await;
    let evictions = dir.path().join("root/nodelet/evictions.json");
    fs::write(&evictions, r#"{"version":1,"written":"then","content":["a"]}"#).unwrap();
    let life = Life::begin(dir.path());
    assert_eq!(**life.store.warnings().borrow(), [""; 0]);
    assert_eq!(life.loaded.evictions, Some(serde_json::json!(["a"])));
    life.end().await;
}

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_named() {
    let dir = tempfile::tempdir().unwrap();
    Life::begin(dir.path()).end().await;
    let state = dir.path().join("root/nodelet");
    fs::write(state.join("pods/default_a.json"), "{\"version\":1,\"content\":[{").unwrap();
    fs::write(state.join("pods/default_b.json"), "{\"version\":7,\"content\":[]}").unwrap();
    fs::write(state.join("sources.json"), "").unwrap();
    fs::write(state.join("pods/default_c.json.unfinished"), "{").unwrap();
    let life = Life::begin(dir.path());
    let warnings = life.store.warnings().borrow().join("\n");
    for name in ["default_a.json", "default_b.json", "sources.json"] {
        assert!(warnings.contains(name), "{name} is not in: {warnings}");
    }
    assert!(warnings.contains("its version is 7"), "{warnings}");
    assert!(state.join("pods/default_a.json.damaged-1").exists());
    assert!(!state.join("pods/default_c.json.unfinished").exists());
    assert_eq!(life.loaded.sources[&SourceKind::File], LoadedSource::Lost);
    life.end().await;
}

#[tokio::test]
async fn a_second_agent_is_told_who_has_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let error =
        Store::lock_and_open(&dir.path().join("root"), &dir.path().join("run2"), None).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(matches!(&error, StoreError::Locked { pid: found, .. } if *found == pid), "{error}");
    assert!(error.to_string().contains(&format!("another nodelet (pid {pid})")));
    life.end().await;
    Life::begin(dir.path()).end().await;
}

#[tokio::test]
async fn identity_is_made_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let owner = life.store.owner().to_owned();
    assert_eq!(owner.len(), 32);
    assert_eq!(life.store.node_name("Edge-1", None).unwrap(), "edge-1");
    life.end().await;
    let life = Life::begin(dir.path());
    assert_eq!(life.store.owner().to_owned(), owner);
    assert!(life.store.warnings().borrow().is_empty());
    assert_eq!(life.store.node_name("edge-2", None).unwrap(), "edge-1");
    assert!(life.store.warnings().borrow()[0].contains("edge-2"));
    assert_eq!(life.store.node_name("edge-2", Some("edge-3")).unwrap(), "edge-3");
    assert_eq!(life.store.node_name("edge-2", None).unwrap(), "edge-3");
    life.end().await;
}

#[tokio::test]
async fn an_owner_id_outlives_the_loss_of_either_copy() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let owner = life.store.owner().to_owned();
    life.end().await;
    let copies = ["owner", "owner.copy"].map(|name| dir.path().join("root/nodelet").join(name));
    for copy in &copies {
        for damage in [None, Some("".as_bytes()), Some(b"0123"), Some(&[0xff; 32])] {
            match damage {
                None => fs::remove_file(copy).unwrap(),
                Some(bytes) => fs::write(copy, bytes).unwrap(),
            }
            let life = Life::begin(dir.path());
            assert_eq!(life.store.owner().to_owned(), owner, "{copy:?} {damage:?}");
            assert_eq!(fs::read_to_string(copy).unwrap(), owner);
            let named = life.store.warnings().borrow().iter().any(|w| w.contains("owner"));
            assert_eq!(named, damage.is_some(), "{copy:?} {damage:?}");
            life.end().await;
        }
    }
}

#[tokio::test]
async fn an_unreadable_copy_of_the_owner_id_stops_no_agent() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let owner = life.store.owner().to_owned();
    life.end().await;
    let (root, run) = (dir.path().join("root"), dir.path().join("run"));
    let copies = ["owner", "owner.copy"].map(|name| root.join("nodelet").join(name));
    let long = "0".repeat(5000);
    for (bad, good) in [(&copies[0], &copies[1]), (&copies[1], &copies[0])] {
        for damage in [None, Some(&long)] {
            fs::remove_file(bad).unwrap();
            match damage {
                None => fs::create_dir(bad).unwrap(),
                Some(long) => fs::write(bad, long).unwrap(),
            }
            let life = Life::begin(dir.path());
            assert_eq!(life.store.owner(), owner, "{bad:?}");
            let named = format!("cannot read {bad:?}, a copy of the owner id: it is ");
            let warnings = life.store.warnings();
            assert!(warnings.borrow().iter().any(|w| w.starts_with(&named)), "{warnings:?}");
            life.end().await;
            // The other copy is lost as well: a new owner id would orphan every pod.
            fs::remove_file(good).unwrap();
            let Err(error) = Store::lock_and_open(&root, &run, None) else { panic!("a new id") };
            assert!(
                matches!(&error, StoreError::Io { operation: "read", path, .. } if path == bad)
            );
            assert!(!good.exists());
            fs::write(good, &owner).unwrap();
            match damage {
                None => fs::remove_dir(bad).unwrap(),
                Some(_) => fs::remove_file(bad).unwrap(),
            }
            Life::begin(dir.path()).end().await;
        }
    }
}

#[tokio::test]
async fn what_the_disk_does_not_take_is_reported_and_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let pods = dir.path().join("root/nodelet/pods");
    fs::remove_dir(&pods).unwrap();
    let key = PodKey::new("default", "web");
    let error = life.store.put_pods(&key, &[record(&key, "a")]).await.unwrap_err();
    assert!(error.path.ends_with("default_web.json"), "{error}");
    let mut warnings = life.store.warnings();
    assert!(warnings.borrow()[0].starts_with(CANNOT), "{:?}", warnings.borrow());
    fs::create_dir(&pods).unwrap();
    warnings.borrow_and_update();
    tokio::time::timeout(std::time::Duration::from_secs(120), async {
        while !warnings.borrow_and_update().is_empty() {
            warnings.changed().await.unwrap();
        }
    })
    .await
    .unwrap();
    assert!(pods.join("default_web.json").exists());
    life.end().await;
}

const CANNOT: &str = "cannot write state files";

#[tokio::test]
async fn many_writes_share_their_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let mut puts = tokio::task::JoinSet::new();
    for n in 0..110 {
        let (store, key) = (life.store.clone(), PodKey::new("default", &format!("p{n}")));
        puts.spawn(async move { store.put_pods(&key, &[record(&key, "a")]).await });
    }
    while let Some(put) = puts.join_next().await {
        put.unwrap().unwrap();
    }
    assert_eq!(fs::read_dir(dir.path().join("root/nodelet/pods")).unwrap().count(), 110);
    life.end().await;
    assert_eq!(Life::begin(dir.path()).loaded.pods.len(), 110);
}

#[tokio::test]
async fn a_name_too_long_for_a_file_is_saved_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let keys = ["a", "b"].map(|end| PodKey::new(&"n".repeat(63), &("x".repeat(252) + end)));
    for key in &keys {
        life.store.put_pods(key, &[record(key, "a")]).await.unwrap();
        life.store.put_memory(key, Some(&key.name)).await.unwrap();
    }
    life.end().await;
    let life = Life::begin(dir.path());
    assert_eq!(life.loaded.pods.keys().cloned().collect::<Vec<_>>(), keys);
    for key in &keys {
        assert_eq!(life.loaded.memory[key].get(), serde_json::json!(key.name).to_string());
        life.store.put_pods(key, &[]).await.unwrap();
        life.store.put_memory::<()>(key, None).await.unwrap();
    }
    life.end().await;
    let life = Life::begin(dir.path());
    assert!(life.loaded.pods.is_empty() && life.loaded.memory.is_empty());
}

#[tokio::test]
async fn a_look_at_directories_in_place_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    assert_eq!(life.store.node_name("n1", None).unwrap(), "n1");
    life.store.repair("n1").unwrap();
    // Every change of an inode sets this time.
    let changed = || {
        ["root", "root/pods", "root/nodelet", "root/nodelet/pods", "run", "run/pods"].map(|name| {
            let about = fs::metadata(dir.path().join(name)).unwrap();
            (about.ctime(), about.ctime_nsec())
        })
    };
    let before = changed();
    // The kernel's clock for these times moves every few milliseconds.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(life.store.repair("n1").unwrap(), Repaired::default());
    assert_eq!(changed(), before);
    let pods = dir.path().join("root/nodelet/pods");
    fs::set_permissions(&pods, fs::Permissions::from_mode(0o755)).unwrap();
    life.store.repair("n1").unwrap();
    assert_eq!(fs::metadata(&pods).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[tokio::test]
async fn deleted_directories_are_made_and_locked_again() {
    let dir = tempfile::tempdir().unwrap();
    let (root, run) = (dir.path().join("root"), dir.path().join("run"));
    let life = Life::begin(dir.path());
    assert_eq!(life.store.node_name("n1", None).unwrap(), "n1");
    assert_eq!(life.store.repair("n1").unwrap(), Repaired::default());
    let losses = life.store.losses();
    for lost in [root.join("nodelet"), run.clone(), root.clone()] {
        fs::remove_dir_all(&lost).unwrap();
        if lost != root {
            let locked = Store::lock_and_open(&root, &run, None).unwrap_err();
            assert!(matches!(locked, StoreError::Locked { .. }), "{locked}");
            fs::remove_dir_all(&lost).unwrap();
        }
        let repaired = life.store.repair("n1").unwrap();
        assert!(repaired.missing.contains(&lost), "{repaired:?}");
        assert_eq!(repaired.root_lost, lost == root);
        assert_eq!(life.store.repair("n1").unwrap(), Repaired::default());
        let pid = format!("{}\n", std::process::id());
        assert_eq!(fs::read_to_string(root.join("nodelet/lock")).unwrap(), pid);
        assert_eq!(fs::read_to_string(root.join("nodelet/owner")).unwrap(), life.store.owner());
        assert_eq!(fs::read_to_string(root.join("nodelet/node-name")).unwrap(), "n1");
    }
    assert_eq!(*losses.borrow(), 3);
    // One that comes back whole has what was written before it went.
    let away = dir.path().join("away");
    fs::rename(&root, &away).unwrap();
    assert!(life.store.repair("n1").unwrap().root_lost);
    fs::remove_dir_all(&root).unwrap();
    fs::rename(&away, &root).unwrap();
    assert!(life.store.repair("n1").unwrap().root_lost);
    assert_eq!(*losses.borrow(), 5);
    let other_run = Store::lock_and_open(&root, &dir.path().join("run2"), None).unwrap_err();
    assert!(matches!(other_run, StoreError::Locked { .. }), "{other_run}");
    life.end().await;
}

#[tokio::test]
async fn an_agent_stops_when_another_owns_its_root_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let life = Life::begin(dir.path());
    fs::remove_dir_all(&root).unwrap();
    let other = "0123456789abcdef0123456789abcdef";
    fs::create_dir_all(root.join("nodelet")).unwrap();
    fs::write(root.join("nodelet/owner"), other).unwrap();
    let error = life.store.repair("n1").unwrap_err();
    assert!(matches!(&error, StoreError::Replaced { owner, .. } if owner == other), "{error}");
    life.end().await;
}

#[tokio::test]
async fn two_root_directories_do_not_share_a_run_directory() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    let error =
        Store::lock_and_open(&dir.path().join("root2"), &dir.path().join("run"), None).unwrap_err();
    let text = error.to_string();
    let holder =
        format!("(pid {}, root directory {:?})", std::process::id(), dir.path().join("root"));
    assert!(matches!(error, StoreError::RunLocked { .. }) && text.contains(&holder), "{text}");
    life.end().await;
}

#[tokio::test]
async fn memory_of_another_boot_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (root, run) = (dir.path().join("root"), dir.path().join("run"));
    let [old, kept] = ["old-n1", "kept-n1"].map(|name| PodKey::new("default", name));
    let life = Life::begin(dir.path());
    life.store.put_memory(&old, Some(&serde_json::json!({}))).await.unwrap();
    life.store.put_memory(&kept, Some(&serde_json::json!({}))).await.unwrap();
    life.end().await;
    // As an earlier release wrote it.
    let path = |key| run.join("pods").join(file_name(key));
    let text = fs::read_to_string(path(&kept)).unwrap();
    fs::write(path(&kept), text.replace(r#""boot_id":"this boot","#, "")).unwrap();

    let locked = Store::lock(root, run.clone()).unwrap();
    let (_store, _writer, loaded) = Store::open(locked, None, "the next boot").unwrap();
    assert_eq!(loaded.memory.keys().collect::<Vec<_>>(), [&kept]);
    assert!(!path(&old).exists() && path(&kept).exists());
}

#[tokio::test]
async fn volatile_files_of_another_owner_are_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path());
    life.store.put_evictions(&serde_json::json!(["a"])).await.unwrap();
    for n in 0..5 {
        let key = PodKey::new("default", &format!("p{n}"));
        life.store.put_memory(&key, Some(&serde_json::json!({}))).await.unwrap();
    }
    let owner = life.store.owner().to_owned();
    life.end().await;
    let (root, run) = (dir.path().join("root2"), dir.path().join("run"));
    let (store, writer, loaded) = Store::lock_and_open(&root, &run, None).unwrap();
    assert!(loaded.evictions.is_none() && loaded.memory.is_empty());
    let warnings = store.warnings().borrow().join("\n");
    assert!(warnings.contains("evictions.json") && warnings.contains("3 more files"), "{warnings}");
    assert!(run.join(format!("evictions.json.of-{owner}")).exists());
    // A file of a release that named no owner is not a new owner's either, but is an old owner's.
    fs::write(run.join("evictions.json"), "{\"version\":1,\"content\":[\"b\"]}").unwrap();
    drop((store, writer));
    let (store, writer, loaded) = Store::lock_and_open(&root, &run, None).unwrap();
    assert_eq!(loaded.evictions, Some(serde_json::json!(["b"])));
    drop((store, writer));
    let (_store, _writer, loaded) =
        Store::lock_and_open(&dir.path().join("root3"), &run, None).unwrap();
    assert_eq!(loaded.evictions, None);
}
