#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::model::Datum;
use crate::skips::{root, skip_without};

fn write(directory: &Path, files: &VolumeFiles, group: Option<u32>) -> Result<bool, VolumeError> {
    super::write(directory, files, group, &BTreeSet::new())
}

fn files(list: &[(&str, &str, u32)]) -> VolumeFiles {
    let file = |content: &str, mode| VolumeFile {
        content: Datum::Text(content.into()),
        mode,
        owner: None,
    };
    list.iter().map(|(path, content, mode)| ((*path).into(), file(content, *mode))).collect()
}

/// Everything below a directory: `name -> target` for a link, `name mode content` for a file. The
/// time in names is left out.
fn tree(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for path in children(directory).unwrap() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = if is_own(name) { "..TIME" } else { name };
        let metadata = path.symlink_metadata().unwrap();
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            let target = target.to_str().unwrap();
            let target = if is_own(target) { "..TIME" } else { target };
            lines.push(format!("{name} -> {target}"));
        } else if metadata.is_dir() {
            lines.push(format!("{name}/ {mode:o}"));
            lines.extend(tree(&path).iter().map(|line| format!("  {line}")));
        } else {
            lines.push(format!("{name} {mode:o} {}", fs::read_to_string(&path).unwrap()));
        }
    }
    lines
}

fn data(directory: &Path) -> PathBuf {
    fs::read_link(directory.join(DATA)).unwrap()
}

#[test]
fn other_volumes_can_be_mounted_inside() {
    let volume = tempfile::tempdir().unwrap();
    let points = BTreeSet::from(["certs/ca", "sub/more", "a.conf"].map(PathBuf::from));
    let write = |list: &[(&str, &str, u32)]| {
        super::write(volume.path(), &files(list), None, &points).unwrap()
    };
    // Where a file has the name, the other volume is mounted on that, if at all.
    assert!(write(&[("a.conf", "one", 0o644), ("sub/b", "two", 0o644)]));
    let expected = [
        "..TIME/ 755",
        "  a.conf 644 one",
        "  sub/ 755",
        "    b 644 two",
        "..data -> ..TIME",
        "a.conf -> ..data/a.conf",
        "certs/ 755",
        "  ca/ 755",
        "sub -> ..data/sub",
    ];
    assert_eq!(tree(volume.path()), expected);
    assert!(!write(&[("a.conf", "one", 0o644), ("sub/b", "two", 0o644)]));
    assert_eq!(tree(volume.path()), expected);
    // Containers that run keep what is mounted there, whatever becomes of the files.
    let inode = || fs::metadata(volume.path().join("certs/ca")).unwrap().ino();
    let mounted = inode();
    assert!(write(&[("a.conf", "new", 0o644), ("certs/ca", "late", 0o644)]));
    assert_eq!(inode(), mounted);
    // A name that no file has any more is free.
    assert!(volume.path().join("sub/more").is_dir());
}

#[test]
fn files_are_reached_through_two_links() {
    let volume = tempfile::tempdir().unwrap();
    let wanted = files(&[("a.conf", "one", 0o640), ("sub/b", "two", 0o444)]);
    assert!(write(volume.path(), &wanted, None).unwrap());
    assert_eq!(
        tree(volume.path()),
        [
            "..TIME/ 755",
            "  a.conf 640 one",
            "  sub/ 755",
            "    b 444 two",
            "..data -> ..TIME",
            "a.conf -> ..data/a.conf",
            "sub -> ..data/sub",
        ]
    );
    assert_eq!(fs::read_to_string(volume.path().join("sub/b")).unwrap(), "two");
}

#[test]
fn the_same_files_are_not_written_again() {
    let volume = tempfile::tempdir().unwrap();
    let wanted = files(&[("a", "one", 0o644), ("d/e", "", 0o600)]);
    write(volume.path(), &wanted, None).unwrap();
    let before = data(volume.path());
    assert!(!write(volume.path(), &wanted, None).unwrap());
    assert_eq!(data(volume.path()), before);
}

#[test]
fn files_from_before_2000_stay_until_others_are_complete() {
    let volume = tempfile::tempdir().unwrap();
    write(volume.path(), &files(&[("a", "old", 0o644)]), None).unwrap();
    // As if the clock had not been set yet.
    let early = "..1970_01_01_00_00_09.000000000";
    fs::rename(volume.path().join(data(volume.path())), volume.path().join(early)).unwrap();
    fs::remove_file(volume.path().join(DATA)).unwrap();
    symlink(early, volume.path().join(DATA)).unwrap();
    assert!(!write(volume.path(), &files(&[("a", "old", 0o644)]), None).unwrap());
    assert_eq!(data(volume.path()), Path::new(early));
    let new = files(&[("a", "new", 0o644)]);
    let new = Volume {
        directory: volume.path(),
        files: &new,
        group: None,
        mount_points: &BTreeSet::new(),
    };
    new.remove_unfinished().unwrap();
    assert_eq!(fs::read_to_string(volume.path().join("a")).unwrap(), "old");
}

#[test]
fn any_difference_is_written() {
    let first = [("a", "one", 0o644), ("b", "two", 0o644)];
    for second in [
        vec![("a", "ONE", 0o644), ("b", "two", 0o644)],
        vec![("a", "one", 0o600), ("b", "two", 0o644)],
        vec![("a", "one", 0o644)],
        vec![("a", "one", 0o644), ("b", "two", 0o644), ("c", "", 0o644)],
        vec![("a", "one", 0o644), ("b/c", "two", 0o644)],
        vec![],
    ] {
        let volume = tempfile::tempdir().unwrap();
        write(volume.path(), &files(&first), None).unwrap();
        let before = data(volume.path());
        assert!(write(volume.path(), &files(&second), None).unwrap(), "{second:?}");
        assert_ne!(data(volume.path()), before);
        // As if it had been written in one go.
        let fresh = tempfile::tempdir().unwrap();
        write(fresh.path(), &files(&second), None).unwrap();
        assert_eq!(tree(volume.path()), tree(fresh.path()), "{second:?}");
    }
}

#[test]
fn a_reader_goes_on_in_the_directory_that_it_has_opened() {
    let volume = tempfile::tempdir().unwrap();
    write(volume.path(), &files(&[("a", "old", 0o644)]), None).unwrap();
    let mut opened = fs::File::open(volume.path().join("a")).unwrap();
    write(volume.path(), &files(&[("a", "new", 0o644)]), None).unwrap();
    let mut content = String::new();
    io::Read::read_to_string(&mut opened, &mut content).unwrap();
    assert_eq!(content, "old");
    assert_eq!(fs::read_to_string(volume.path().join("a")).unwrap(), "new");
}

/// What a write leaves that was cut off after each of its steps.
#[test]
fn a_write_that_was_cut_off_is_finished_by_the_next_one() {
    type Leave = fn(&Path);
    let leavings: [(&str, Leave); 6] = [
        ("a directory without files", |v| fs::create_dir(v.join("..2026_01_01.1")).unwrap()),
        ("half of the files", |v| {
            fs::create_dir(v.join("..2026_01_01.1")).unwrap();
            fs::write(v.join("..2026_01_01.1/a"), "ne").unwrap();
        }),
        ("the link before its rename", |v| symlink("..2026_01_01.1", v.join(NEW_DATA)).unwrap()),
        ("no names yet", |v| fs::remove_file(v.join("a")).unwrap()),
        ("a name that is gone", |v| symlink("..data/old", v.join("old")).unwrap()),
        ("a link to nothing", |v| {
            fs::remove_file(v.join(DATA)).unwrap();
            symlink("..2020_01_01.1", v.join(DATA)).unwrap();
        }),
    ];
    let fresh = tempfile::tempdir().unwrap();
    let wanted = files(&[("a", "new", 0o644)]);
    write(fresh.path(), &wanted, None).unwrap();
    for before in ["old", "new"] {
        for (what, leave) in leavings {
            let volume = tempfile::tempdir().unwrap();
            write(volume.path(), &files(&[("a", before, 0o644)]), None).unwrap();
            leave(volume.path());
            write(volume.path(), &wanted, None).unwrap();
            assert_eq!(tree(volume.path()), tree(fresh.path()), "{what}, {before} before");
        }
    }
}

#[test]
fn a_failed_write_leaves_what_was_there_before() {
    let volume = tempfile::tempdir().unwrap();
    write(volume.path(), &files(&[("a", "old", 0o644)]), None).unwrap();
    let before = tree(volume.path());
    // A name with a zero byte is refused when its file is made, after that of `a`.
    for _ in 0..2 {
        let error = write(volume.path(), &files(&[("a", "new", 0o644), ("b\0", "", 0o644)]), None);
        assert!(matches!(error.unwrap_err(), VolumeError::Io { operation: "write", .. }));
        assert_eq!(tree(volume.path()), before);
    }
    // What was left by an agent that was killed is gone, too.
    fs::create_dir(volume.path().join("..2026_01_01.1")).unwrap();
    write(volume.path(), &files(&[("b\0", "", 0o644)]), None).unwrap_err();
    assert_eq!(tree(volume.path()), before);
}

#[test]
fn a_file_in_another_file_is_refused() {
    let volume = tempfile::tempdir().unwrap();
    let wanted = files(&[("a", "", 0o644), ("a-b", "", 0o644), ("a/b/c", "", 0o644)]);
    let error = write(volume.path(), &wanted, None).unwrap_err();
    let message = r#"cannot write "a/b/c" to the volume: "a" is a file of it and no directory"#;
    assert_eq!(error.to_string(), message);
    assert!(tree(volume.path()).is_empty());
}

#[test]
fn fs_group_may_read_everything() {
    let volume = tempfile::tempdir().unwrap();
    let wanted = files(&[("a", "one", 0o600), ("d/b", "two", 0o400)]);
    if skip_without(&[root()]) {
        return;
    }
    write(volume.path(), &wanted, Some(1234)).unwrap();
    let lines = tree(volume.path());
    assert_eq!(lines[..4], ["..TIME/ 2755", "  a 640 one", "  d/ 2755", "    b 440 two"]);
    for path in ["a", "d", "d/b"] {
        assert_eq!(fs::metadata(volume.path().join(path)).unwrap().gid(), 1234, "{path}");
    }
    assert!(!write(volume.path(), &wanted, Some(1234)).unwrap(), "nothing has changed");
    assert!(write(volume.path(), &wanted, Some(99)).unwrap(), "another group");
}

#[test]
fn paths_out_of_the_volume_are_refused() {
    for path in ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "./a", "..data", "..x/y"] {
        let volume = tempfile::tempdir().unwrap();
        let error = write(volume.path(), &files(&[(path, "x", 0o644)]), None).unwrap_err();
        assert!(matches!(error, VolumeError::FilePath { .. }), "{path}: {error}");
        assert!(tree(volume.path()).is_empty(), "{path}");
    }
}

#[test]
fn a_file_belongs_to_its_owner() {
    if skip_without(&[root()]) {
        return;
    }
    let volume = tempfile::tempdir().unwrap();
    let mut wanted = files(&[("token", "one", 0o600)]);
    assert!(write(volume.path(), &wanted, None).unwrap());
    wanted.get_mut("token").unwrap().owner = Some(1234);
    assert!(write(volume.path(), &wanted, Some(5678)).unwrap(), "the owner has changed");
    let metadata = fs::metadata(volume.path().join("token")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1234, 5678));
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
    assert!(!write(volume.path(), &wanted, Some(5678)).unwrap());
}
