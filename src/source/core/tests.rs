use super::*;
use crate::model::{FileVerdict, Origin, PodUid, k8s};
use std::fmt::Write as _;

/// One look in a scenario: boot time in ms, what was seen, what is wanted after it.
///
/// Seen: `DIRECTORY | FILE: DOCUMENT...` with `web@1` a valid pod in revision 1, `!web` an invalid
/// document of that name, `!` one without a name, `#` a ConfigMap; for a whole file `{` does not parse, `~` is being
/// written, `0` is empty, `[]` is an empty list, `d` is a directory, `-` is no manifest. `none`
/// instead of the directory: it can't be listed.
///
/// Wanted: `FILE/web@1`, with `?` after a last good revision; `FILE/no` is a refused one and
/// `FILE/lost` one that was not saved; then `wake N` in ms.
type Scene = (u64, &'static str, &'static str);

fn origin(file: &str, document: usize) -> Origin {
    let location = format!("/m/{file}").into();
    Origin { source: SourceKind::File, location, document, line: document * 10 + 1 }
}

fn pod(name: &str, revision: &str, origin: Origin) -> DesiredPod {
    let mut pod = k8s::Pod::default();
    let seen = format!("{name}@{revision}");
    pod.metadata.annotations = Some([(SEEN.to_owned(), seen)].into());
    DesiredPod {
        key: PodKey::new("default", name),
        // Revisions that differ in a letter only are the same incarnation: 1a, 1b.
        uid: PodUid::from(format!("{name}-{}", revision.trim_end_matches(char::is_alphabetic))),
        revision: revision.into(),
        pod: pod.into(),
        origin,
    }
}

fn document(text: &str, file: &str, index: usize) -> Document {
    let position = Position { line: index * 10 + 1, column: 1 };
    let problem = Problem { position, path: "spec".to_owned(), message: "bad".to_owned() };
    let (key, result) = match text.strip_prefix('!') {
        Some("") => (None, Err(vec![problem])),
        Some(name) => (Some(PodKey::new("default", name)), Err(vec![problem])),
        None => {
            let (name, revision) = text.split_once('@').unwrap();
            let pod = pod(name, revision, origin(file, index));
            (Some(pod.key.clone()), Ok(Arc::new(pod)))
        }
    };
    let manifest = format!("\"{text}\"").into();
    Document { index, position, key, manifest, result, warnings: Vec::new() }
}

fn listing(text: &str) -> Listing {
    let mut parts = text.split('|').map(str::trim);
    let place = match parts.next().unwrap() {
        "none" => SourcePlace::Away("/m does not exist".to_owned()),
        number => SourcePlace::Here(Identity {
            device: 1,
            inode: number.parse().unwrap(),
            born: None,
            single_file: false,
        }),
    };
    let files = parts.map(|part| {
        let (name, content) = part.split_once(": ").unwrap();
        let look = match content {
            "{" => EntryLook::Unread(Problem {
                position: Position { line: 1, column: 2 },
                path: String::new(),
                message: "does not parse".to_owned(),
            }),
            "~" => EntryLook::Settling,
            "0" => EntryLook::Read(Arc::default()),
            "[]" => {
                EntryLook::Read(Arc::new(ParsedFile { empty_list: true, ..ParsedFile::default() }))
            }
            "d" => EntryLook::Skipped { reason: "a directory".to_owned(), manifest_name: true },
            "-" => EntryLook::Skipped { reason: "a backup file".to_owned(), manifest_name: false },
            documents => {
                let documents = documents
                    .split(' ')
                    .enumerate()
                    .filter(|(_, text)| *text != "#")
                    .map(|(index, text)| document(text, name, index));
                let documents: Vec<Document> = documents.collect();
                let broken = documents.iter().any(|document| document.result.is_err());
                EntryLook::Read(Arc::new(ParsedFile { documents, broken, ..ParsedFile::default() }))
            }
        };
        Listed { name: name.into(), location: format!("/m/{name}").into(), look }
    });
    let files = files.collect();
    Listing { place, files }
}

fn now(millis: u64) -> Now {
    Now { boot: Duration::from_millis(millis), wall: jiff::Timestamp::UNIX_EPOCH }
}

fn state() -> State {
    State::new(SourceKind::File, "/m", false)
}

fn wanted(state: &State, wake_at: Option<Duration>) -> String {
    let mut text = String::new();
    for kept in state.kept.values() {
        let mark = if kept.is_current() { "" } else { "?" };
        let file = &kept.file;
        assert_eq!(*kept.origin().location, *format!("/m/{file}"));
        match &kept.pod {
            Ok(pod) => write!(text, "{file}/{}@{}{mark} ", pod.key.name, pod.revision).unwrap(),
            Err(unusable) => {
                let reason = if kept.manifest.is_empty() { "lost" } else { "no" };
                assert!(unusable.reason.contains(reason));
                write!(text, "{file}/{reason} ").unwrap();
            }
        }
    }
    if let Some(at) = wake_at {
        write!(text, "wake {}", at.as_millis()).unwrap();
    }
    text.trim_end().to_owned()
}

fn play(what: &str, state: &mut State, looks: &[Scene]) {
    for (at, seen, expected) in looks {
        let step = state.step(&listing(seen), now(*at));
        assert_eq!(wanted(state, step.wake_at), *expected, "{what}: at {at}: {seen}");
        assert_eq!(step.snapshot.knowledge, Knowledge::Complete, "{what}: at {at}");
        assert_eq!(step.snapshot.pods.len(), state.kept.len());
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn scenarios() {
    let table: &[(&str, &[Scene])] = &[
        (
            "comes, changes, is cleanly removed",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | a: web@2", "a/web@2"),
                (20, "1", "a/web@2? wake 220"),
                (219, "1", "a/web@2? wake 220"),
                (220, "1", ""),
            ],
        ),
        (
            "only two agreeing looks remove: another file came in between",
            &[
                (0, "1 | a: web@1 | b: db@1", "b/db@1 a/web@1"),
                (10, "1 | b: db@1", "b/db@1 a/web@1? wake 210"),
                (300, "1 | b: db@1 | c: x@1", "b/db@1 a/web@1? c/x@1 wake 500"),
                (500, "1 | b: db@1 | c: x@1", "b/db@1 c/x@1"),
            ],
        ),
        (
            "each removal has its look, beside a pod that stays missing",
            &[
                (0, "1 | a: web@1 | c: x@1 y@1", "a/web@1 c/x@1 c/y@1"),
                (10, "1 | b: !web | c: x@1 y@1", "a/web@1? c/x@1 c/y@1 wake 210"),
                (210, "1 | b: !web | c: x@1 y@1", "a/web@1? c/x@1 c/y@1"),
                (1000, "1 | b: !web | c: x@1", "a/web@1? c/x@1 c/y@1? wake 1200"),
                (1200, "1 | b: !web | c: x@1", "a/web@1? c/x@1"),
            ],
        ),
        (
            "files that are no manifests don't disturb",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | x: -", "a/web@1? wake 210"),
                (210, "1 | y: -", ""),
            ],
        ),
        (
            "an editor renames away and writes anew",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | a~: -", "a/web@1? wake 210"),
                (20, "1 | a: web@2 | a~: -", "a/web@2"),
                (300, "1 | a: web@2 | a~: -", "a/web@2"),
            ],
        ),
        (
            "broken in every way",
            &[
                (0, "1 | a: web@1 db@1", "a/db@1 a/web@1"),
                (1000, "1 | a: {", "a/db@1? a/web@1?"),
                (2000, "1 | a: {", "a/db@1? a/web@1?"),
                (3000, "1 | a: 0", "a/db@1? a/web@1?"),
                (4000, "1 | a: d", "a/db@1? a/web@1?"),
                (5000, "1 | a: ~", "a/db@1? a/web@1? wake 5100"),
                (6000, "1 | a: !web db@2", "a/db@2 a/web@1?"),
                (7000, "1 | a: !web !db", "a/db@2? a/web@1?"),
                (8000, "1 | a: ! db@2", "a/db@2 a/web@1?"),
                (9000, "1 | a: web@3 db@2", "a/db@2 a/web@3"),
            ],
        ),
        (
            "a pod leaves a file only when the whole file is valid",
            &[
                (0, "1 | a: web@1 db@1", "a/db@1 a/web@1"),
                (1000, "1 | a: !web", "a/db@1? a/web@1?"),
                (2000, "1 | a: !web", "a/db@1? a/web@1?"),
                (3000, "1 | a: !www db@1", "a/db@1 a/web@1?"),
                (4000, "1 | a: web@2 !d", "a/db@1? a/web@2"),
                (5000, "1 | a: web@2", "a/db@1? a/web@2 wake 5200"),
                (5200, "1 | a: web@2", "a/web@2"),
            ],
        ),
        (
            "never accepted: nothing to keep",
            &[(0, "1 | a: !web", ""), (1000, "1 | a: {", ""), (2000, "1 | a: ! x@1", "a/x@1")],
        ),
        (
            "a document is taken out of a file, and an empty list",
            &[
                (0, "1 | a: web@1 db@1", "a/db@1 a/web@1"),
                (10, "1 | a: db@1", "a/db@1 a/web@1? wake 210"),
                (210, "1 | a: db@1", "a/db@1"),
                (300, "1 | a: []", "a/db@1? wake 500"),
                (500, "1 | a: []", ""),
            ],
        ),
        (
            "a pod is renamed inside its file",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | a: www@1", "a/web@1? a/www@1 wake 210"),
                (210, "1 | a: www@1", "a/www@1"),
            ],
        ),
        (
            "the directory vanishes, and is another, empty one",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "none", "a/web@1?"),
                (1000, "none", "a/web@1?"),
                (2000, "2", "a/web@1?"),
                (3000, "2", "a/web@1?"),
                (4000, "2 | README: -", "a/web@1?"),
                (5000, "2 | a: {", "a/web@1?"),
                (6000, "2 | a: ~", "a/web@1? wake 6100"),
                (7000, "2 | a: d", "a/web@1?"),
                (8000, "1 | a: web@1", "a/web@1"),
            ],
        ),
        (
            "another directory with manifests counts",
            &[
                (0, "1 | a: web@1 | b: db@1", "b/db@1 a/web@1"),
                (10, "2 | a: web@1", "b/db@1? a/web@1 wake 210"),
                (210, "2 | a: web@1", "a/web@1"),
                (300, "2", "a/web@1? wake 500"),
                (500, "2", ""),
            ],
        ),
        (
            "a removal begun is not ended by another directory",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1", "a/web@1? wake 210"),
                (100, "none", "a/web@1?"),
                (300, "1", "a/web@1? wake 500"),
                (400, "2", "a/web@1?"),
                (600, "1", "a/web@1? wake 800"),
                (800, "1", ""),
            ],
        ),
        (
            "a file is renamed: the same pod, from elsewhere",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | b: web@1", "b/web@1"),
                (20, "1 | c: web@2", "b/web@1? wake 220"),
                (220, "1 | c: web@2", "c/web@2"),
            ],
        ),
        (
            "renamed and broken at once: still wanted",
            &[
                (0, "1 | a: web@1", "a/web@1"),
                (10, "1 | b: !web", "a/web@1? wake 210"),
                (210, "1 | b: !web", "a/web@1?"),
                (900, "1 | b: !web", "a/web@1?"),
                (999, "1 | b: web@2", "b/web@2"),
            ],
        ),
        (
            "written twice: the one that runs stays, whatever happens to its file",
            &[
                (0, "1 | b: web@1", "b/web@1"),
                (10, "1 | a: web@2 | b: web@1", "b/web@1"),
                (20, "1 | a: web@2 | b: {", "b/web@1?"),
                (30, "1 | a: web@2 | b: !web", "b/web@1?"),
                (40, "1 | a: web@2 | b: ~", "b/web@1? wake 140"),
                (50, "1 | a: web@2 | b: web@3", "b/web@3"),
                (60, "1 | a: web@2", "b/web@3? wake 260"),
                (260, "1 | a: web@2", "a/web@2"),
            ],
        ),
        (
            "written twice behind a ConfigMap: the first one stays while it is broken",
            &[
                (0, "1 | a: # web@1 web@2", "a/web@1"),
                (1000, "1 | a: # !web web@2", "a/web@1?"),
                (2000, "1 | a: # web@3 web@2", "a/web@3"),
            ],
        ),
        (
            "written twice from the start: the first by name and place",
            &[
                (0, "1 | a: !web | b: web@1 web@2 | c: web@3", "b/web@1"),
                (10, "1 | a: web@4 | b: web@1 web@2 | c: web@3", "b/web@1"),
            ],
        ),
        (
            "moved out of a file that broke: the same pod goes along",
            &[
                (0, "1 | a: web@1 db@1", "a/db@1 a/web@1"),
                (10, "1 | a: { | b: web@1", "a/db@1? b/web@1"),
                (20, "1 | b: web@1", "a/db@1? b/web@1 wake 220"),
                (220, "1 | b: web@1", "b/web@1"),
            ],
        ),
        (
            "a second document of a pod in its own file",
            &[
                (0, "1 | a: db@1 web@1", "a/db@1 a/web@1"),
                (10, "1 | a: web@1 db@1 web@2", "a/db@1 a/web@1"),
                (20, "1 | a: !web db@1 web@2", "a/db@1 a/web@1?"),
                (30, "1 | a: db@1 web@2", "a/db@1 a/web@2"),
            ],
        ),
    ];
    for (what, looks) in table {
        play(what, &mut state(), looks);
    }
}

/// What is saved after `before`, and restored into a new state as if by a restart.
fn restarted(before: &State) -> State {
    let text = serde_json::to_string(&before.saved()).unwrap();
    let saved: Saved = serde_json::from_str(&text).unwrap();
    assert_eq!(saved, before.saved());
    let mut state = state();
    state.restore(saved, |manifest, origin| {
        let (name, revision) = manifest.as_str().unwrap().split_once('@').unwrap();
        let key = match name {
            "old" => Some(PodKey::new("default", name)),
            "nameless" => None,
            _ => return Ok((pod(name, revision, origin.clone()), Vec::new())),
        };
        Err(SavedRefusal { key, reason: "no".to_owned() })
    });
    state
}

#[test]
fn a_restart_changes_nothing() {
    for (what, before, looks) in [
        (
            "with a broken edit",
            "1 | a: web@1 db@1",
            &[(0, "1 | a: {", "a/db@1? a/web@1?"), (900, "1 | a: {", "a/db@1? a/web@1?")][..],
        ),
        (
            "unmounted",
            "1 | a: web@1",
            &[(0, "2", "a/web@1?"), (900, "2", "a/web@1?"), (999, "1 | a: web@2", "a/web@2")],
        ),
        ("vanished", "1 | a: web@1", &[(0, "none", "a/web@1?"), (900, "none", "a/web@1?")]),
        (
            "removed meanwhile",
            "1 | a: web@1 | b: db@1",
            &[(0, "1 | b: db@1", "b/db@1 a/web@1? wake 200"), (200, "1 | b: db@1", "b/db@1")],
        ),
        (
            "removed meanwhile, the last one",
            "1 | a: web@1",
            &[(0, "1", "a/web@1? wake 200"), (200, "1", "")],
        ),
        (
            "written twice: the same one stays",
            "1 | b: web@1",
            &[(0, "1 | a: web@2 | b: web@1", "b/web@1")],
        ),
    ] {
        let mut first = state();
        first.step(&listing(before), now(0));
        let mut second = restarted(&first);
        let checkpoint = second.before_first_look();
        assert_eq!(checkpoint.knowledge, Knowledge::Checkpoint);
        assert_eq!(checkpoint.pods, first.pods(), "{what}");
        play(what, &mut second, looks);
    }
}

/// After a restart: looks, each with the pods for which nothing may be started yet.
type Unconfirmed = &'static [(u64, &'static str, &'static [&'static str])];

#[test]
fn a_saved_pod_is_unconfirmed_until_looks_have_settled_it() {
    let table: &[(&str, Unconfirmed)] = &[
        ("its manifest is there", &[(0, "1 | a: web@1 | b: db@1", &[])]),
        ("its manifest was edited", &[(0, "1 | a: web@2 | b: db@1", &[])]),
        ("its manifest is broken", &[(0, "1 | a: { | b: !db", &[])]),
        ("its directory is missing", &[(0, "none", &[])]),
        ("its directory is an empty mount point", &[(0, "2", &[])]),
        (
            "its manifest was removed",
            &[
                (0, "1 | a: web@1", &["db"]),
                (199, "1 | a: web@1", &["db"]),
                (200, "1 | a: web@1", &[]),
            ],
        ),
        ("all manifests were removed", &[(0, "1", &["db", "web"]), (200, "1", &[])]),
        (
            "its manifest was removed, and the directory changes on",
            &[
                (0, "1 | a: web@1", &["db"]),
                (200, "1 | a: web@1 | c: x@1", &["db"]),
                (400, "1 | a: web@1 | c: x@1", &[]),
            ],
        ),
        (
            "its manifest was removed, then the directory",
            &[(0, "1 | a: web@1", &["db"]), (100, "none", &[])],
        ),
        (
            "its file was renamed and changed",
            &[(0, "1 | a: web@1 | c: db@2", &["db"]), (200, "1 | a: web@1 | c: db@2", &[])],
        ),
        (
            "its file was renamed and broken",
            &[
                (0, "1 | a: web@1 | c: !db", &["db"]),
                (200, "1 | a: web@1 | c: !db", &[]),
                (900, "1 | a: web@1 | c: !db", &[]),
            ],
        ),
        (
            "its file is being written",
            &[
                (0, "1 | a: web@1 | b: ~", &["db"]),
                (100, "1 | a: web@1 | b: ~", &["db"]),
                (200, "1 | a: web@1 | b: db@1", &[]),
                (300, "1 | a: web@1 | b: ~", &[]),
            ],
        ),
        (
            "its file is being written without an end",
            &[
                (0, "1 | a: web@1 | b: ~", &["db"]),
                (9_999, "1 | a: web@1 | b: ~", &["db"]),
                (10_000, "1 | a: web@1 | b: ~", &[]),
            ],
        ),
    ];
    for (what, looks) in table {
        let mut first = state();
        let accepted = first.step(&listing("1 | a: web@1 | b: db@1"), now(0)).snapshot;
        assert!(accepted.unconfirmed.is_empty(), "{what}");
        let mut state = restarted(&first);
        assert_eq!(names(&state.before_first_look().unconfirmed), ["db", "web"], "{what}");
        for (at, seen, unconfirmed) in *looks {
            let snapshot = state.step(&listing(seen), now(*at)).snapshot;
            assert_eq!(names(&snapshot.unconfirmed), *unconfirmed, "{what}: at {at}: {seen}");
        }
    }
}

fn names(keys: &BTreeSet<PodKey>) -> Vec<&str> {
    keys.iter().map(|key| &*key.name).collect()
}

#[test]
fn a_look_that_hangs_starts_the_last_good_pods() {
    let mut first = state();
    first.step(&listing("1 | a: web@1 | b: db@1"), now(0));
    let mut state = restarted(&first);
    state.stop_waiting();
    assert_eq!(names(&state.before_first_look().unconfirmed), [""; 0]);
    // It answers after all: a removal takes two looks, as ever.
    play(
        "removed meanwhile",
        &mut state,
        &[(20_000, "1 | b: db@1", "b/db@1 a/web@1? wake 20200"), (20_200, "1 | b: db@1", "b/db@1")],
    );
}

#[test]
fn a_directory_is_recognized_under_another_device_number() {
    let of = |device, inode, born| Identity { device, inode, born, single_file: false };
    let home = of(1, 7, Some(5));
    assert!(home.is_same(of(1, 7, Some(5))));
    assert!(home.is_same(of(2, 7, Some(5))));
    assert!(!home.is_same(of(1, 8, Some(5))));
    assert!(!home.is_same(of(1, 7, Some(6))));
    assert!(!home.is_same(Identity { single_file: true, ..home }));
    let without_birth = of(1, 7, None);
    assert!(without_birth.is_same(of(1, 7, None)));
    assert!(!without_birth.is_same(of(2, 7, None)));
}

/// `old` is refused after a restart: while that revision is held, the source does not know
/// everything.
#[test]
fn nothing_is_removed_while_a_last_good_revision_is_refused() {
    use Knowledge::{Checkpoint, Complete};
    type Looks = &'static [(u64, &'static str, &'static str, Knowledge)];
    let table: &[(&str, Looks)] = &[
        (
            "as it was, in every bad shape, and corrected",
            &[
                (0, "1 | a: web@1 | o: !old", "o/no a/web@1", Checkpoint),
                (900, "1 | a: web@1 | o: !old", "o/no a/web@1", Checkpoint),
                (910, "1 | a: web@1 | o: {", "o/no a/web@1", Checkpoint),
                (920, "1 | a: web@1 | o: ~", "o/no a/web@1 wake 1020", Checkpoint),
                (930, "1 | a: web@1 | o: 0", "o/no a/web@1", Checkpoint),
                (999, "1 | a: web@1 | o: old@2", "o/old@2 a/web@1", Complete),
            ],
        ),
        (
            "taken away: two agreeing looks at the same directory",
            &[
                (0, "1 | a: web@1 | o: !old", "o/no a/web@1", Checkpoint),
                (500, "1 | a: web@1", "o/no a/web@1 wake 700", Checkpoint),
                (600, "none", "o/no a/web@1?", Checkpoint),
                (800, "1 | a: web@1", "o/no a/web@1 wake 1000", Checkpoint),
                (1000, "1 | a: web@1", "a/web@1", Complete),
            ],
        ),
        (
            "unmounted",
            &[(0, "2", "o/no a/web@1?", Checkpoint), (900, "2", "o/no a/web@1?", Checkpoint)],
        ),
        (
            "another pod is taken away meanwhile",
            &[
                (0, "1 | o: !old", "o/no a/web@1? wake 200", Checkpoint),
                (200, "1 | o: !old", "o/no", Checkpoint),
            ],
        ),
        (
            "renamed, then corrected",
            &[
                (0, "1 | a: web@1 | b: !old", "o/no a/web@1 wake 200", Checkpoint),
                (200, "1 | a: web@1 | b: !old", "o/no a/web@1", Checkpoint),
                (300, "1 | a: web@1 | b: old@2", "b/old@2 a/web@1", Complete),
            ],
        ),
        (
            "a second manifest of its name does not take over while the first is there",
            &[
                (0, "1 | a: web@1 | b: old@2 | o: !old", "o/no a/web@1", Checkpoint),
                (900, "1 | a: web@1 | b: old@2 | o: !old", "o/no a/web@1", Checkpoint),
            ],
        ),
    ];
    for (what, looks) in table {
        let mut first = state();
        first.step(&listing("1 | a: web@1 | o: old@1"), now(0));
        let mut state = restarted(&first);
        assert_eq!(state.saved(), first.saved(), "another version may accept it");
        let before = state.before_first_look();
        assert_eq!((before.knowledge, before.pods.len()), (Checkpoint, 1));
        for (at, seen, expected, knowledge) in *looks {
            let step = state.step(&listing(seen), now(*at));
            assert_eq!(wanted(&state, step.wake_at), *expected, "{what}: at {at}: {seen}");
            assert_eq!(step.snapshot.knowledge, *knowledge, "{what}: at {at}");
            assert!(state.may_be_saved());
            let error = step.snapshot.view.error.clone().unwrap_or_default();
            let told = ["/m/o", "default/old", ": no;"].iter().all(|part| error.contains(part));
            assert_eq!(told, *knowledge == Checkpoint, "{what}: at {at}: {error}");
        }
    }
}

/// A pod was admitted, and what was saved is lost or older: a full disk, a crash.
#[test]
fn an_admitted_pod_whose_manifest_was_not_saved_stays() {
    use Knowledge::{Checkpoint, Complete};
    type Look = (u64, &'static str, &'static str, Knowledge);
    let table: &[(&str, bool, &[Look])] = &[
        (
            "its manifest is there",
            true,
            &[(0, "1 | a: web@1 | o: old@1", "o/old@1 a/web@1", Complete)],
        ),
        (
            "its manifest is broken, then corrected",
            true,
            &[
                (0, "1 | a: web@1 | o: {", "o/lost a/web@1", Checkpoint),
                (900, "1 | a: web@1 | o: !", "o/lost a/web@1", Checkpoint),
                (1800, "1 | a: web@1 | o: 0", "o/lost a/web@1", Checkpoint),
                (2700, "1 | a: web@1 | o: old@2", "o/old@2 a/web@1", Complete),
            ],
        ),
        (
            "its manifest was moved, and is broken",
            true,
            &[
                (0, "1 | a: web@1 | b: !old", "o/lost a/web@1 wake 200", Checkpoint),
                (200, "1 | a: web@1 | b: !old", "o/lost a/web@1", Checkpoint),
            ],
        ),
        (
            "a second manifest has its name",
            true,
            &[
                (0, "1 | a: web@1 | b: old@2 | o: !old", "o/lost a/web@1", Checkpoint),
                (900, "1 | a: web@1 | b: old@2 | o: old@1", "o/old@1 a/web@1", Complete),
            ],
        ),
        (
            "the directory is mounted later",
            true,
            &[
                (0, "1", "o/lost a/lost", Checkpoint),
                (200, "1", "o/lost a/lost", Checkpoint),
                (900, "2 | a: web@1 | o: {", "o/lost a/web@1", Checkpoint),
            ],
        ),
        (
            "its manifest was taken away",
            true,
            &[
                (0, "1 | a: web@1", "o/lost a/web@1 wake 200", Checkpoint),
                (200, "1 | a: web@1", "a/web@1", Complete),
            ],
        ),
        (
            "the directory is away, and is mounted later",
            false,
            &[
                (0, "none", "o/lost a/web@1?", Checkpoint),
                (900, "2", "o/lost a/web@1?", Checkpoint),
                (1800, "1 | a: web@1 | o: old@1", "o/old@1 a/web@1", Complete),
            ],
        ),
    ];
    for (what, lost, looks) in table {
        let mut first = state();
        first.step(&listing("1 | a: web@1"), now(0));
        let mut state =
            if *lost { State::new(SourceKind::File, "/m", true) } else { restarted(&first) };
        let admitted = [("old", "o"), ("web", "a")];
        let admitted = admitted.map(|(name, file)| (PodKey::new("default", name), origin(file, 0)));
        state.restore_admitted(admitted.into());
        for (at, seen, expected, knowledge) in *looks {
            let step = state.step(&listing(seen), now(*at));
            assert_eq!(wanted(&state, step.wake_at), *expected, "{what}: at {at}: {seen}");
            assert_eq!(step.snapshot.knowledge, *knowledge, "{what}: at {at}");
            let error = step.snapshot.view.error.clone().unwrap_or_default();
            let told = error.contains("default/old (/m/o, document 1) was not saved, or is lost: ");
            assert_eq!(told, *knowledge == Checkpoint, "{what}: at {at}: {error}");
            assert!(serde_json::to_string(&state.saved()).is_ok());
        }
    }
}

#[test]
fn a_refused_revision_is_shown_as_kept_and_can_be_forgotten() {
    let mut first = state();
    first.step(&listing("1 | o: old@1"), now(0));
    let mut state = restarted(&first);
    for seen in ["1 | o: !old", "1 | o: {", "1 | o: ~", "1"] {
        let view = state.step(&listing(seen), now(0)).snapshot.view;
        assert_eq!(view.files.len(), 1, "{seen}: {view:?}");
        let kept = |v: &FileVerdict| matches!(v, FileVerdict::Rejected { last_good: true, .. });
        let file = &view.files[0];
        assert!(file.location == "/m/o" && file.verdicts.iter().all(kept), "{seen}: {view:?}");
    }
    let location = "/m/o".to_owned();
    assert_eq!(state.forget(&PodKey::new("default", "old")), Forgotten::Done { location });
    let snapshot = state.step(&listing("1 | o: !old"), now(10)).snapshot;
    assert_eq!((snapshot.knowledge, &snapshot.view.error), (Knowledge::Complete, &None));
    assert!(state.saved().files.is_empty());
}

#[test]
fn a_refused_revision_of_an_unknown_pod_counts_as_a_lost_record() {
    let mut first = state();
    first.step(&listing("1 | n: nameless@1"), now(0));
    let mut state = restarted(&first);
    let step = state.step(&listing("1"), now(0));
    assert_eq!(step.snapshot.knowledge, Knowledge::Checkpoint);
    assert!(step.snapshot.view.error.as_ref().unwrap().contains("was lost"));
}

#[test]
fn an_unchanged_pod_stays_the_same_object() {
    let mut state = state();
    state.step(&listing("1 | a: web@1a"), now(0));
    let first = state.pods();
    state.step(&listing("1 | a: web@1a"), now(10));
    assert!(Arc::ptr_eq(&first[0], &state.pods()[0]));
    // The same incarnation in another revision, then from another file.
    state.step(&listing("1 | a: web@1b"), now(20));
    state.step(&listing("1 | b: web@1b"), now(30));
    assert_eq!(wanted(&state, None), "b/web@1b");
    assert_eq!(seen(&state.pods()[0]), Some("web@1a"));
    state.step(&listing("1 | b: web@2"), now(40));
    assert_eq!(seen(&state.pods()[0]), Some("web@2"));
}

#[test]
fn what_is_accepted_is_not_held_twice() {
    let mut first = state();
    first.step(&listing("1 | a: web@1a"), now(0));
    let state = restarted(&first);
    let adopted = |seen: &str| {
        let EntryLook::Read(reading) = &listing(seen).files[0].look else { panic!("{seen}") };
        let mut reading = ParsedFile::clone(reading);
        reading.adopt(&state.pods());
        reading.documents.remove(0).result.unwrap()
    };
    assert!(Arc::ptr_eq(&adopted("1 | a: web@1a"), &state.pods()[0]));
    assert_eq!(seen(&adopted("1 | a: web@1b")), Some("web@1a"));
    assert_eq!(seen(&adopted("1 | a: web@2")), Some("web@2"));
    assert_eq!(seen(&adopted("1 | a: db@1a")), Some("db@1a"));
}

#[test]
fn knowledge_waits_for_unfinished_files_and_a_lost_record() {
    let knowledge =
        |state: &mut State, seen: &str| state.step(&listing(seen), now(0)).snapshot.knowledge;
    let mut fresh = state();
    assert_eq!(fresh.before_first_look().knowledge, Knowledge::Unknown);
    assert_eq!(knowledge(&mut fresh, "1 | a: ~"), Knowledge::Checkpoint);
    assert_eq!(knowledge(&mut fresh, "1 | a: web@1"), Knowledge::Complete);
    assert_eq!(knowledge(&mut fresh, "1 | a: web@1 | b: ~"), Knowledge::Complete);

    let mut lost = State::new(SourceKind::File, "/m", true);
    for seen in ["none", "1", "1 | a: {"] {
        assert_eq!(knowledge(&mut lost, seen), Knowledge::Checkpoint, "{seen}");
    }
    let step = lost.step(&listing("1"), now(0));
    assert!(step.snapshot.view.error.as_ref().unwrap().contains("was lost"));
    assert_eq!(knowledge(&mut lost, "1 | a: web@1"), Knowledge::Complete);
    assert_eq!(knowledge(&mut lost, "1"), Knowledge::Complete);
}

#[test]
fn only_a_last_good_revision_can_be_forgotten() {
    let (key, location) = (PodKey::new("default", "web"), || "/m/a".to_owned());
    let mut state = state();
    assert_eq!(state.forget(&key), Forgotten::Unknown);
    state.step(&listing("1 | a: web@1 db@1"), now(0));
    assert_eq!(state.forget(&key), Forgotten::Written { location: location() });
    let broken = listing("1 | a: {");
    state.step(&broken, now(10));
    assert_eq!(state.forget(&key), Forgotten::Done { location: location() });
    assert_eq!(wanted(&state, None), "a/db@1?");
    assert_eq!(state.snapshot(&broken).pods.len(), 1);
    play("stays forgotten", &mut state, &[(20, "1 | a: {", "a/db@1?")]);
}

/// One line per verdict.
fn verdicts(looks: &[&str]) -> String {
    let mut state = state();
    let mut text = String::new();
    let mut last = None;
    for (n, seen) in looks.iter().enumerate() {
        last = Some(state.step(&listing(seen), now(n as u64 * 10)).snapshot.view);
    }
    let view = last.unwrap();
    for file in &view.files {
        for verdict in &file.verdicts {
            let line = match verdict {
                FileVerdict::Accepted { key, .. } => format!("{key} accepted"),
                FileVerdict::Object { key, .. } => format!("{key} accepted"),
                FileVerdict::Skipped { reason } => format!("skipped: {reason}"),
                FileVerdict::Rejected { key, position, problems, last_good, .. } => format!(
                    "{} line {} {}: {}",
                    key.as_ref().map_or("?".to_owned(), ToString::to_string),
                    position.line,
                    if *last_good { "kept" } else { "rejected" },
                    problems[0].message
                ),
            };
            writeln!(text, "{}: {line}", file.location).unwrap();
        }
    }
    text
}

#[test]
fn every_file_gets_its_verdict() {
    for (looks, expected) in [
        (
            &["1 | a: web@1 !db | b: - | c: ~ | d: 0 | e: { | f: [] | g: d"][..],
            "/m/a: default/web accepted\n\
             /m/a: default/db line 11 rejected: bad\n\
             /m/b: skipped: a backup file\n\
             /m/c: skipped: being written\n\
             /m/d: ? line 0 rejected: there is nothing in it\n\
             /m/e: ? line 1 rejected: does not parse\n\
             /m/f: skipped: an empty list\n\
             /m/g: skipped: a directory\n",
        ),
        (
            &[
                "1 | a: web@1 | b: db@1 | c: x@1 | d: y@1 | e: z@1 | f: v@1",
                "1 | a: { | b: !db | c: ! | d: d | e: ~",
            ],
            "/m/a: ? line 1 kept: does not parse\n\
             /m/b: default/db line 1 kept: bad\n\
             /m/c: ? line 1 kept: bad\n\
             /m/c: default/x line 1 kept: the file has mistakes and does not show this pod any more: \
             the pod stays until they are corrected, and goes if it is not in the file then\n\
             /m/d: ? line 0 kept: a directory\n\
             /m/e: default/z accepted\n\
             /m/f: default/v line 1 kept: the file is gone\n",
        ),
        (&["1 | a: web@1", "none"], "/m/a: default/web line 1 kept: /m does not exist\n"),
        (
            &["1 | a: web@1", "2 | b: -"],
            "/m/a: default/web line 1 kept: /m is another directory than the one that had the \
             manifests, and has none: nothing is removed because of it\n\
             /m/b: skipped: a backup file\n",
        ),
        (
            &["1 | b: web@1", "1 | a: web@2 | b: web@1"],
            "/m/a: default/web line 1 rejected: Duplicate value: \"default/web\": also written in \
             /m/b line 1, which is used: rename or remove one of them (this is /m/a document 1)\n\
             /m/b: default/web accepted\n",
        ),
        (
            &["1 | b: web@1", "1 | a: web@2 | b: {"],
            "/m/a: default/web line 1 rejected: Duplicate value: \"default/web\": also written in \
             /m/b line 1, which runs in its last good revision: rename or remove one of them (this \
             is /m/a document 1)\n\
             /m/b: ? line 1 kept: does not parse\n",
        ),
    ] {
        assert_eq!(verdicts(looks), expected, "{looks:?}");
    }
}
