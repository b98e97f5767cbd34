use super::*;
use crate::{
    desired::{Knowledge, SourceSnapshot},
    manifest::Settings,
    model::{FileVerdict, PodKey},
    source::{Accepts, CredentialsDirectory, Forgotten, SavedState},
};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    sync::Arc,
};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};

/// A running source on a directory of its own.
struct Bed {
    root: TempDir,
    handle: SourceHandle,
    tasks: JoinSet<()>,
}

fn options(saved: SavedState) -> SourceOptions {
    SourceOptions {
        accepts: Accepts::default(),
        credentials: CredentialsDirectory::None,
        node_name: "node".to_owned(),
        settings: Settings::default(),
        // Long: what the tests wait for comes from hints.
        check_every: Duration::from_secs(600),
        saved,
        admitted: Vec::new(),
    }
}

fn pod(name: &str) -> String {
    pod_with(name, "busybox:1.36")
}

fn pod_with(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: '{image}'}}\n"
    )
}

fn start(root: TempDir, path: &Path, options: SourceOptions) -> Bed {
    let (source, handle) = DirectorySource::new(path, options);
    run(root, source, handle)
}

fn run(root: TempDir, source: DirectorySource, handle: SourceHandle) -> Bed {
    let mut tasks = JoinSet::new();
    tasks.spawn(source.run(CancellationToken::new()));
    Bed { root, handle, tasks }
}

/// A source on the directory `m` below a fresh root.
fn on_directory() -> Bed {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m");
    fs::create_dir(&path).unwrap();
    start(root, &path, options(SavedState::None))
}

impl Bed {
    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Waits until the snapshot is as wished.
    async fn until(
        &mut self,
        what: &str,
        mut wish: impl FnMut(&SourceSnapshot) -> bool,
    ) -> Arc<SourceSnapshot> {
        let waited = timeout(Duration::from_secs(10), self.handle.snapshots.wait_for(|s| wish(s)))
            .await
            .map(|s| s.map(|s| Arc::clone(&s)));
        match waited {
            Ok(snapshot) => snapshot.unwrap(),
            Err(_) => panic!("not {what}: {}", show(&self.handle.snapshots.borrow())),
        }
    }

    async fn until_pods(&mut self, names: &[&str]) -> Arc<SourceSnapshot> {
        self.until(&format!("pods {names:?}"), |s| {
            s.knowledge == Knowledge::Complete && pods(s) == names
        })
        .await
    }

    /// A life of the same path that begins where this one ends.
    async fn restart(mut self, path: &str) -> Self {
        self.tasks.shutdown().await;
        let saved = serde_json::to_value(&**self.handle.saved.borrow()).unwrap();
        let path = self.root.path().join(path);
        start(self.root, &path, options(SavedState::Saved(saved)))
    }
}

fn pods(snapshot: &SourceSnapshot) -> Vec<&str> {
    snapshot.pods.iter().map(|pod| pod.key.name.strip_suffix("-node").unwrap()).collect()
}

fn show(snapshot: &SourceSnapshot) -> String {
    format!("{:?} {:?} {:#?}", snapshot.knowledge, pods(snapshot), snapshot.view)
}

/// One line per verdict: file name, verdict.
fn verdicts(snapshot: &SourceSnapshot) -> String {
    let mut text = String::new();
    for file in &snapshot.view.files {
        let name = file.location.rsplit('/').next().unwrap();
        for verdict in &file.verdicts {
            match verdict {
                FileVerdict::Accepted { key, .. } => writeln!(text, "{name}: {key}").unwrap(),
                FileVerdict::Object { key, .. } => writeln!(text, "{name}: {key}").unwrap(),
                FileVerdict::Skipped { reason } => writeln!(text, "{name}: {reason}").unwrap(),
                FileVerdict::Rejected { problems, last_good, .. } => {
                    let note = if *last_good { "kept" } else { "rejected" };
                    writeln!(text, "{name}: {note}: {}", problems[0].message).unwrap();
                }
            }
        }
    }
    text
}

fn image(snapshot: &SourceSnapshot) -> &str {
    snapshot.pods[0].pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

#[tokio::test]
async fn follows_files_that_come_change_and_go() {
    let mut bed = on_directory();
    bed.until_pods(&[]).await;
    fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a"]).await;
    fs::write(bed.path("m/.b.tmp"), pod("b")).unwrap();
    fs::rename(bed.path("m/.b.tmp"), bed.path("m/b.json")).unwrap();
    bed.until_pods(&["a", "b"]).await;
    fs::write(bed.path("m/a.yaml"), pod_with("a", "busybox:2")).unwrap();
    bed.until("changed", |s| image(s) == "busybox:2").await;
    fs::remove_file(bed.path("m/a.yaml")).unwrap();
    bed.until_pods(&["b"]).await;
    fs::rename(bed.path("m/b.json"), bed.path("away")).unwrap();
    bed.until_pods(&[]).await;
}

#[tokio::test]
async fn one_file_is_there_within_milliseconds_and_a_hundred_at_once() {
    let mut took = Vec::new();
    // The machine may be busy now and then.
    for _ in 0..5 {
        let mut bed = on_directory();
        bed.until_pods(&[]).await;
        let began = Instant::now();
        fs::write(bed.path("m/one.yaml"), pod("one")).unwrap();
        bed.until_pods(&["one"]).await;
        let one = began.elapsed();
        let began = Instant::now();
        for n in 0..110 {
            fs::write(bed.path(&format!("m/p{n}.yaml")), pod(&format!("p{n}"))).unwrap();
        }
        bed.until("all there", |s| s.pods.len() == 111).await;
        let many = began.elapsed();
        if one < Duration::from_millis(500) && many < Duration::from_secs(3) {
            return;
        }
        took.push((one, many));
    }
    panic!("{took:?}");
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read() {
    let mut bed = on_directory();
    bed.until_pods(&[]).await;
    let mut file = File::create(bed.path("m/a.yaml")).unwrap();
    let text = pod("a");
    file.write_all(&text.as_bytes()[..30]).unwrap();
    bed.until("seen", |s| verdicts(s) == "a.yaml: being written\n").await;
    file.write_all(&text.as_bytes()[30..]).unwrap();
    drop(file);
    bed.until_pods(&["a"]).await;
}

#[tokio::test]
async fn a_write_that_stalls_removes_no_pod() {
    let mut bed = on_directory();
    let (a, b) = (pod("a"), pod("b"));
    fs::write(bed.path("m/p.yaml"), format!("{a}---\n{b}")).unwrap();
    bed.until_pods(&["a", "b"]).await;
    let mut file = File::create(bed.path("m/p.yaml")).unwrap();
    file.write_all(a.as_bytes()).unwrap();
    // Longer than two looks need to agree on a removal.
    let gone = bed.handle.snapshots.wait_for(|s| pods(s) != ["a", "b"]);
    assert!(timeout(Duration::from_secs(1), gone).await.is_err(), "a part was acted on");
    file.write_all(format!("---\n{}", pod("c")).as_bytes()).unwrap();
    drop(file);
    bed.until_pods(&["a", "c"]).await;
}

#[tokio::test]
async fn a_file_that_is_never_closed_is_read_when_it_holds() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m");
    fs::create_dir(&path).unwrap();
    let (mut source, handle) = DirectorySource::new(&path, options(SavedState::None));
    source.longest_write = Duration::from_secs(1);
    let mut bed = run(root, source, handle);
    bed.until_pods(&[]).await;
    let begun = Instant::now();
    let mut file = File::create(bed.path("m/a.yaml")).unwrap();
    file.write_all(pod("a").as_bytes()).unwrap();
    bed.until_pods(&["a"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(file);
}

#[tokio::test]
async fn a_broken_edit_keeps_the_pod_and_says_so() {
    let mut bed = on_directory();
    fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a"]).await;
    for broken in ["kind: Pod\n  a: [", "", "kind: Pod\nmetadata: {name: a}\n"] {
        fs::write(bed.path("m/a.yaml"), broken).unwrap();
        bed.until("rejected", |s| pods(s) == ["a"] && verdicts(s).contains(": kept: ")).await;
        fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
        bed.until("accepted", |s| pods(s) == ["a"] && verdicts(s) == "a.yaml: default/a-node\n")
            .await;
    }
}

#[tokio::test]
async fn the_directory_may_go_and_come_back() {
    let mut bed = on_directory();
    fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a"]).await;
    // Removed with everything in it, and made again empty, twice: the inode number may be the same.
    for _ in 0..2 {
        fs::remove_dir_all(bed.path("m")).unwrap();
        bed.until("gone", |s| s.view.error.as_ref().is_some_and(|e| e.ends_with("does not exist")))
            .await;
        fs::create_dir(bed.path("m")).unwrap();
        let kept = |s: &SourceSnapshot| {
            s.view.error.as_ref().is_some_and(|e| e.contains("another directory"))
                && pods(s) == ["a"]
        };
        bed.until("kept", kept).await;
    }
    fs::write(bed.path("m/b.yaml"), pod("b")).unwrap();
    bed.until_pods(&["b"]).await;
}

#[tokio::test]
async fn a_missing_directory_is_awaited_with_its_parents() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x/y/m");
    let mut bed = start(root, &path, options(SavedState::None));
    bed.until("known to be missing", |s| {
        s.knowledge == Knowledge::Complete && s.view.error.is_some()
    })
    .await;
    fs::create_dir_all(&path).unwrap();
    bed.until("there", |s| s.view.error.is_none()).await;
    fs::write(path.join("a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a"]).await;
}

#[tokio::test]
async fn a_swapped_link_leads_to_the_other_directory() {
    let root = tempfile::tempdir().unwrap();
    for (directory, name) in [("one", "a"), ("two", "b")] {
        fs::create_dir(root.path().join(directory)).unwrap();
        fs::write(root.path().join(directory).join("p.yaml"), pod(name)).unwrap();
    }
    fs::create_dir(root.path().join("empty")).unwrap();
    symlink("one", root.path().join("m")).unwrap();
    let path = root.path().join("m");
    let mut bed = start(root, &path, options(SavedState::None));
    bed.until_pods(&["a"]).await;
    let swap = |bed: &Bed, target: &str| {
        symlink(target, bed.path("next")).unwrap();
        fs::rename(bed.path("next"), bed.path("m")).unwrap();
    };
    swap(&bed, "two");
    bed.until_pods(&["b"]).await;
    swap(&bed, "empty");
    bed.until("kept", |s| s.view.error.is_some() && pods(s) == ["b"]).await;
    fs::write(bed.path("empty/c.yaml"), pod("c")).unwrap();
    bed.until_pods(&["c"]).await;
}

#[tokio::test]
async fn the_path_may_be_a_file_of_any_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("manifest");
    fs::write(&path, [pod("a"), pod("b")].join("---\n")).unwrap();
    let mut bed = start(root, &path, options(SavedState::None));
    let snapshot = bed.until_pods(&["a", "b"]).await;
    assert_eq!(*snapshot.pods[0].origin.location, *path.to_string_lossy());
    fs::write(bed.path("other.yaml"), pod("c")).unwrap();
    fs::write(bed.path("manifest"), pod("b")).unwrap();
    bed.until_pods(&["b"]).await;
    fs::remove_file(&path).unwrap();
    bed.until_pods(&[]).await;
    fs::write(bed.path("manifest"), pod("d")).unwrap();
    bed.until_pods(&["d"]).await;
}

#[tokio::test]
async fn a_file_that_is_no_manifest_is_listed_and_never_opened() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m");
    fs::create_dir_all(path.join("dir.yaml")).unwrap();
    for name in [".a.yaml.swp", "a.yaml~", "README"] {
        fs::write(path.join(name), pod("no")).unwrap();
    }
    nix::unistd::mkfifo(&path.join("pipe.yaml"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    symlink("/dev/zero", path.join("zero.yaml")).unwrap();
    symlink("nothing", path.join("link.yaml")).unwrap();
    let big = File::create(path.join("big.yaml")).unwrap();
    big.set_len(11 << 20).unwrap();
    let mut bed = start(root, &path, options(SavedState::None));
    let snapshot = bed
        .until("complete", |s| {
            s.knowledge == Knowledge::Complete && !verdicts(s).contains("being written")
        })
        .await;
    assert_eq!(
        verdicts(&snapshot),
        ".a.yaml.swp: a temporary or swap file\n\
         README: not a *.yaml, *.yml or *.json file\n\
         a.yaml~: a backup file\n\
         big.yaml: rejected: cannot be read: larger than 4 MiB\n\
         dir.yaml: a directory\n\
         link.yaml: rejected: a link to nothing\n\
         pipe.yaml: a named pipe\n\
         zero.yaml: a device\n"
    );
}

#[tokio::test]
async fn a_restart_with_a_broken_edit_runs_the_last_good_pod() {
    let mut bed = on_directory();
    fs::write(bed.path("m/a.yaml"), pod_with("a", "busybox:1")).unwrap();
    let first = bed.until_pods(&["a"]).await;
    fs::write(bed.path("m/a.yaml"), "{").unwrap();
    bed.until("rejected", |s| verdicts(s).contains("kept")).await;
    let mut bed = bed.restart("m").await;
    // Before the first look nothing but the saved pods is known.
    bed.until("restored", |s| pods(s) == ["a"]).await;
    let again = bed
        .until("complete", |s| {
            s.knowledge == Knowledge::Complete && verdicts(s).contains("a.yaml: kept")
        })
        .await;
    assert_eq!(again.pods, first.pods);
    // Unmounted at boot: the directory below has other numbers.
    fs::rename(bed.path("m"), bed.path("old")).unwrap();
    fs::create_dir(bed.path("m")).unwrap();
    let mut bed = bed.restart("m").await;
    let kept = bed.until("complete", |s| s.knowledge == Knowledge::Complete).await;
    assert_eq!(kept.pods, first.pods);
    assert!(kept.view.error.as_ref().unwrap().contains("another directory"));
}

/// What the snapshot says to workers and to people.
fn said(snapshot: &SourceSnapshot) -> String {
    format!("{} {}", show(snapshot), verdicts(snapshot))
}

#[tokio::test]
async fn files_are_the_same_whether_decoded_or_known_by_their_digest() {
    let bed = on_directory();
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    let ignored = pod("ignored").replace("{name", "{generation: 3, name");
    for (name, text) in [
        ("one.yaml", pod("one")),
        ("two.yaml", format!("{}---\n{}", pod("two"), pod("three"))),
        ("objects.yaml", format!("{}---\n{config}", pod("four"))),
        ("ignored.yaml", ignored),
        ("indented.yaml", format!("# {{\n {}", pod("indented").replace('\n', "\n "))),
        ("broken.yaml", format!("{}---\n{{}}\n", pod("broken"))),
        ("list.yaml", format!("kind: List\nitems:\n- {}", pod("list").replace('\n', "\n  "))),
    ] {
        fs::write(bed.path("m").join(name), text).unwrap();
    }
    let complete =
        |s: &SourceSnapshot| s.knowledge == Knowledge::Complete && s.view.files.len() == 7;
    let mut bed = bed.restart("m").await;
    let decoded = said(&*bed.until("complete", complete).await);
    let with_digest = |bed: &Bed| {
        let files = serde_json::to_value(&**bed.handle.saved.borrow()).unwrap()["files"].clone();
        let files = files.as_object().unwrap().clone().into_iter();
        let files = files.filter(|(_, documents)| documents[0].get("digest").is_some());
        files.map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(with_digest(&bed), ["one.yaml"], "{decoded}");
    let mut bed = bed.restart("m").await;
    assert_eq!(said(&*bed.until("complete", complete).await), decoded);
}

/// The image of the only pod after a restart, for which `edit` has changed what was saved of it.
async fn image_after(edit: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut bed = on_directory();
    fs::write(bed.path("m/a.yaml"), pod_with("a", "written")).unwrap();
    bed.until_pods(&["a"]).await;
    bed.tasks.shutdown().await;
    let mut saved = serde_json::to_value(&**bed.handle.saved.borrow()).unwrap();
    edit(&mut saved["files"]["a.yaml"][0]);
    let path = bed.path("m");
    let mut bed = start(bed.root, &path, options(SavedState::Saved(saved)));
    let found = bed.until_pods(&["a"]).await;
    found.pods[0].pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
}

#[tokio::test]
async fn only_a_file_with_the_saved_digest_is_not_decoded() {
    let other = |document: &mut serde_json::Value| {
        document["manifest"]["spec"]["containers"][0]["image"] = "saved".into();
    };
    assert_eq!(image_after(other).await, "saved", "nothing was decoded");
    let of_another_version = |document: &mut serde_json::Value| {
        other(document);
        document["digest"] = "0123456789abcdef0123456789abcdef".into();
    };
    assert_eq!(image_after(of_another_version).await, "written");
    let at_another_place = |document: &mut serde_json::Value| {
        other(document);
        document["location"] = "/elsewhere/a.yaml".into();
    };
    assert_eq!(image_after(at_another_place).await, "written");
}

#[tokio::test]
async fn a_manifest_that_is_no_longer_allowed_removes_no_pod() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m");
    fs::create_dir(&path).unwrap();
    let sysctl = "  securityContext: {sysctls: [{name: net.core.somaxconn, value: '1'}]}\n";
    fs::write(path.join("a.yaml"), pod("a") + sysctl).unwrap();
    fs::write(path.join("b.yaml"), pod("b")).unwrap();
    let mut allowing = options(SavedState::None);
    allowing.settings.allowed_unsafe_sysctls = vec!["net.core.*".to_owned()];
    let mut bed = start(root, &path, allowing);
    bed.until_pods(&["a", "b"]).await;

    let mut bed = bed.restart("m").await;
    let seen = bed.until("looked at", |s| !s.view.files.is_empty()).await;
    assert_eq!(
        (seen.knowledge, pods(&seen)),
        (Knowledge::Checkpoint, vec!["b"]),
        "{}",
        show(&seen)
    );
    let error = seen.view.error.as_deref().unwrap();
    for part in ["m/a.yaml", "default/a-node", "spec.securityContext.sysctls"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Not even over a second restart.
    let mut bed = bed.restart("m").await;
    bed.until("looked at again", |s| !s.view.files.is_empty() && s.view.error == seen.view.error)
        .await;
    fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a", "b"]).await;
}

#[tokio::test]
async fn a_last_good_revision_can_be_forgotten() {
    let mut bed = on_directory();
    let key = PodKey::new("default", "a-node");
    fs::write(bed.path("m/a.yaml"), pod("a")).unwrap();
    bed.until_pods(&["a"]).await;
    let location = bed.path("m/a.yaml").to_string_lossy().into_owned();
    assert_eq!(bed.handle.forget(&key).await, Forgotten::Written { location: location.clone() });
    fs::write(bed.path("m/a.yaml"), "{").unwrap();
    bed.until("rejected", |s| verdicts(s).contains("kept")).await;
    assert_eq!(bed.handle.forget(&key).await, Forgotten::Done { location });
    bed.until_pods(&[]).await;
    assert_eq!(bed.handle.forget(&key).await, Forgotten::Unknown);
    let mut bed = bed.restart("m").await;
    bed.until_pods(&[]).await;
}

#[tokio::test]
async fn the_clock_finds_what_no_event_tells() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m");
    fs::create_dir_all(root.path().join("elsewhere")).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(root.path().join("elsewhere/a.yaml"), pod("a")).unwrap();
    symlink("../elsewhere/a.yaml", path.join("a.yaml")).unwrap();
    let every = Duration::from_millis(50);
    let mut bed =
        start(root, &path, SourceOptions { check_every: every, ..options(SavedState::None) });
    bed.until_pods(&["a"]).await;
    fs::write(bed.path("elsewhere/a.yaml"), pod("b")).unwrap();
    bed.until_pods(&["b"]).await;
}

#[tokio::test]
async fn a_file_written_at_the_start_comes_with_the_others() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a.yaml"), pod("a")).unwrap();
    // The age from which a file counts as whole at once.
    sleep(Duration::from_millis(250)).await;
    fs::write(root.path().join("b.yaml"), pod("b")).unwrap();
    let path = root.path().to_owned();
    let mut bed = start(root, &path, options(SavedState::None));
    let first = timeout(Duration::from_secs(10), bed.handle.snapshots.changed()).await;
    first.unwrap().unwrap();
    assert_eq!(pods(&bed.handle.snapshots.borrow()), ["a", "b"]);
}

#[tokio::test]
async fn secrets_take_the_credentials_that_they_name() {
    let root = tempfile::tempdir().unwrap();
    let (path, given) = (root.path().join("m"), root.path().join("credentials"));
    fs::create_dir(&path).unwrap();
    fs::create_dir(&given).unwrap();
    fs::write(given.join("db"), "hunter2").unwrap();
    fs::write(given.join("key"), [255, 0]).unwrap();
    let secret = |name: &str, credentials: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  annotations: {{nodelet.dev/credentials: '{credentials}'}}\nstringData: {{user: root}}\n"
        )
    };
    fs::write(path.join("a.yaml"), secret("a", "password=db, key")).unwrap();
    fs::write(path.join("b.yaml"), secret("b", "password=none")).unwrap();
    fs::write(path.join("c.yaml"), secret("c", "password=../db")).unwrap();
    let credentials = CredentialsDirectory::At(given);
    let options = SourceOptions { credentials, ..options(SavedState::None) };
    let mut bed = start(root, &path, options);
    let known = bed.handle.objects.wait_for(|found| found.known && !found.found.is_empty());
    let found = Arc::clone(&timeout(Duration::from_secs(10), known).await.unwrap().unwrap());
    let names: Vec<String> = found.found.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["Secret default/a"]);
    let data = &found.found.values().next().unwrap().data;
    let value = |key: &str| data[key].as_bytes().to_vec();
    assert_eq!((value("password"), value("key")), (b"hunter2".to_vec(), vec![255, 0]));
    assert_eq!(value("user"), b"root");
    let looked = bed.handle.snapshots.wait_for(|snapshot| snapshot.view.files.len() == 3);
    let looked = Arc::clone(&timeout(Duration::from_secs(10), looked).await.unwrap().unwrap());
    let told = |file: &str| {
        let view = &looked.view;
        let report = view.files.iter().find(|report| report.location.ends_with(file)).cloned();
        match report.unwrap().verdicts.as_slice() {
            [FileVerdict::Rejected { problems, .. }] => problems[0].message.clone(),
            other => format!("{other:?}"),
        }
    };
    assert!(told("b.yaml").starts_with("Not found: \"none\": the agent has no credential"));
    assert!(told("c.yaml").ends_with("must be KEY=CREDENTIAL, separated by commas"));
}
