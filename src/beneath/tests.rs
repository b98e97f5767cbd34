use super::{
    walk::{Cursor, Left},
    *,
};
use crate::skips::{root, skip_without};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::mkdirat,
};
use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::Instant;

fn whole() -> Slice {
    Slice::new(Duration::MAX)
}

/// Removes `top` in `dir` and gives how many entries were looked at.
fn remove_all(dir: &Path) -> (io::Result<Removal>, u64) {
    let mut slice = whole();
    let removed = remove_tree(dir, OsStr::new("top"), &mut slice);
    (removed, slice.looked_at())
}

/// A chain of `depth` directories below `directory`; calls `fill` in each of them. Made by
/// descriptors: a path can't be that long.
fn chain(directory: &Path, depth: usize, fill: impl Fn(BorrowedFd<'_>)) {
    let mut directory = open_base(directory).unwrap();
    for _ in 0..depth {
        mkdirat(&directory, "d", Mode::S_IRWXU).unwrap();
        directory = open_path(directory.as_fd(), Path::new("d")).unwrap();
        fill(directory.as_fd());
    }
}

fn touch(directory: BorrowedFd<'_>, name: &str) {
    let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::S_IRWXU).unwrap();
}

/// What a path leads to: device and inode, or the error.
fn place(opened: nix::Result<OwnedFd>) -> Result<(u64, u64), Errno> {
    let stat = fstat(opened?)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[test]
fn older_kernels_resolve_paths_as_newer_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (base, out) = (dir.path().join("base"), dir.path().join("out"));
    fs::create_dir_all(base.join("data/deep")).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(base.join("data/file"), "").unwrap();
    for (link, target) in [
        ("..data", "data"),
        ("file", "..data/file"),
        ("data/deep/up", "../../..data/./file"),
        ("far", "data/deep/../../file"),
        ("absolute", out.to_str().unwrap()),
        ("escape", "../out"),
        ("data/deep/escape", "../../../base/file"),
        ("loop", "loop"),
        ("nowhere", "missing/file"),
    ] {
        symlink(target, base.join(link)).unwrap();
    }
    let base = open_base(&base).unwrap();
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    for path in [
        "data",
        "file",
        "..data/deep",
        "data/deep/up",
        "data/../file",
        "far",
        "..",
        "data/../..",
        "absolute",
        "escape",
        "data/deep/escape",
        "loop",
        "nowhere",
        "file/below",
    ] {
        let path = Path::new(path);
        let expected = place(resolve_with(base.as_fd(), path, flags, resolve));
        let found = place(open_by_component(base.as_fd(), path, MAX_LINKS));
        assert_eq!(found, expected, "{path:?}");
    }
    let deep = "data/../".repeat(MAX_DEPTH) + "file";
    assert!(open_by_component(base.as_fd(), Path::new(&deep), MAX_LINKS).is_ok());
    let dir = open_base(dir.path()).unwrap();
    chain(Path::new(&format!("/proc/self/fd/{}/out", dir.as_raw_fd())), MAX_DEPTH + 1, |_| {});
    let deep = |depth| format!("out/{}", "d/".repeat(depth - 1));
    let opened = |depth| open_by_component(dir.as_fd(), Path::new(&deep(depth)), 0);
    assert!(opened(MAX_DEPTH).is_ok());
    assert_eq!(place(opened(MAX_DEPTH + 1)), Err(Errno::ENAMETOOLONG));
    let no_link = open_by_component(base.as_fd(), Path::new("..data/deep"), 0);
    assert_eq!(place(no_link), Err(Errno::ELOOP));
}

#[test]
fn deleting_follows_no_symlink_and_survives_any_depth() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, top) = (dir.path().join("kept"), dir.path().join("top"));
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    fs::create_dir(&top).unwrap();
    symlink(&kept, top.join("link")).unwrap();
    chain(&top, 10_000, |directory| touch(directory, "file"));
    let (removed, looked_at) = remove_all(dir.path());
    assert_eq!(removed.unwrap(), Removal::Complete);
    assert!(!top.exists());
    assert!(kept.join("file").exists());
    // Each directory once on the way down and once on the way up.
    assert!(looked_at <= 3 * 10_000 + 10, "{looked_at}");
    assert_eq!(remove_all(dir.path()).0.unwrap(), Removal::Complete, "it is gone already");
}

#[test]
fn a_file_is_a_tree_too() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("top"), "").unwrap();
    assert_eq!(remove_all(dir.path()).0.unwrap(), Removal::Complete);
    assert!(!dir.path().join("top").exists());
}

#[test]
fn the_work_is_linear_in_wide_deep_trees() {
    let dir = tempfile::tempdir().unwrap();
    let mut bottom = dir.path().join("top");
    for _ in 0..63 {
        bottom.push("a");
    }
    for n in 0..3000 {
        fs::create_dir_all(bottom.join(n.to_string()).join("below")).unwrap();
    }
    let (removed, looked_at) = remove_all(dir.path());
    assert_eq!(removed.unwrap(), Removal::Complete);
    assert!(looked_at <= 3 * 3000 + 3 * 64, "{looked_at}");
}

#[test]
fn a_bushy_tree_is_removed_whole() {
    fn bush(directory: &Path, depth: u32) {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
        if depth > 0 {
            bush(&directory.join("left"), depth - 1);
            bush(&directory.join("right"), depth - 1);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    bush(&dir.path().join("top"), 11);
    assert_eq!(remove_all(dir.path()).0.unwrap(), Removal::Complete);
    assert!(!dir.path().join("top").exists());
}

#[test]
fn few_directories_are_open_and_few_names_are_held() {
    // Far deeper than directories are kept open, far wider than names are held.
    const DEPTH: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    chain(dir.path(), DEPTH, |directory| {
        for n in 0..500 {
            touch(directory, &format!("{n:0200}"));
        }
    });
    let mut cursor = Cursor::<()>::new(open_base_for_reading(dir.path()));
    let mut deepest = 0;
    loop {
        let Some(entry) = cursor.next_entry().unwrap() else {
            if cursor.leave().unwrap() == Left::AtTop {
                break;
            }
            continue;
        };
        if !cursor.has_left(&entry) && entry.is_directory == Some(true) {
            cursor.enter(entry).unwrap();
            deepest += 1;
        }
        let (open, names) = cursor.held();
        assert!(open <= 10, "{open} directories are open");
        assert!(names <= 10 * 170, "{names} names are held");
    }
    assert_eq!(deepest, DEPTH);
}

fn open_base_for_reading(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

#[test]
fn a_directory_that_was_moved_away_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("top")).unwrap();
    chain(&dir.path().join("top"), 20, |_| {});
    let mut cursor = Cursor::<()>::new(open_base_for_reading(&dir.path().join("top")));
    while let Some(entry) = cursor.next_entry().unwrap() {
        cursor.enter(entry).unwrap();
    }
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    fs::rename(dir.path().join("top/d/d/d"), dir.path().join("elsewhere/d")).unwrap();
    let mut left = 0;
    let error = loop {
        match cursor.leave() {
            Ok(Left::ToParent) => left += 1,
            Ok(end) => panic!("it came to {end:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(Errno::ESTALE as i32));
    assert_eq!(left, 17);
}

#[test]
fn what_cannot_be_deleted_is_tried_once_and_the_rest_goes() {
    if skip_without(&[root()]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("precious"), "").unwrap();
    fs::create_dir(&top).unwrap();
    chain(&top, 300, |directory| {
        touch(directory, "a");
        touch(directory, "z");
    });
    let mut bottom = top.clone();
    bottom.extend(std::iter::repeat_n("d", 300));
    let mounted = bottom.join("mounted");
    fs::create_dir(&mounted).unwrap();
    mount(Some(&data), &mounted, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let (removed, looked_at) = remove_all(dir.path());
    umount2(&mounted, MntFlags::empty()).unwrap();
    assert_eq!(removed.unwrap_err().raw_os_error(), Some(Errno::EBUSY as i32));
    assert!(looked_at <= 300 * 5, "{looked_at}");
    assert!(data.join("precious").exists());
    assert!(mounted.exists() && !bottom.join("a").exists() && !top.join("d/z").exists());
    assert_eq!(remove_all(dir.path()).0.unwrap(), Removal::Complete);
}

#[test]
fn a_removal_ends_while_others_create_files() {
    let dir = tempfile::tempdir().unwrap();
    let busy = dir.path().join("top/busy");
    fs::create_dir_all(&busy).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What it works in may be gone.
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                drop(fs::create_dir_all(&busy));
                drop(fs::write(busy.join(n.to_string()), ""));
            }
        });
        for _ in 0..5 {
            let begun = Instant::now();
            // Complete, or `ENOTEMPTY`: either is an end.
            drop(remove_all(dir.path()));
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(remove_all(dir.path()).0.unwrap(), Removal::Complete);
}

#[test]
fn every_slice_deletes_something() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("top")).unwrap();
    chain(&dir.path().join("top"), 50, |directory| touch(directory, "file"));
    let mut calls = 0;
    while remove_tree(dir.path(), OsStr::new("top"), &mut Slice::new(Duration::ZERO)).unwrap()
        == Removal::Unfinished
    {
        calls += 1;
        assert!(calls <= 101, "a call has deleted nothing");
    }
    assert!(calls >= 90, "a slice has not ended: {calls}");
}

#[test]
fn every_directory_of_a_tree_is_visited_once() {
    let dir = tempfile::tempdir().unwrap();
    chain(dir.path(), 3000, |directory| {
        touch(directory, "file");
        mkdirat(directory, "beside", Mode::S_IRWXU).unwrap();
    });
    let mut visited = std::collections::BTreeSet::new();
    visit_tree(open_base_for_reading(dir.path()), |directory| {
        assert!(visited.insert(fstat(directory)?.st_ino), "visited twice");
        Ok::<(), io::Error>(())
    })
    .unwrap();
    assert_eq!(visited.len(), 1 + 2 * 3000);
    remove_tree(dir.path(), OsStr::new("d"), &mut whole()).map(drop).unwrap();
}

#[test]
fn plain_directories_are_made_through_no_symlink() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("real")).unwrap();
    fs::write(top.join("file"), "").unwrap();
    symlink("real", top.join("inside")).unwrap();
    symlink("../..", top.join("outside")).unwrap();
    let base = open_base(&top).unwrap();
    let make = |path: &str| make_plain_directories(base.as_fd(), Path::new(path), Mode::S_IRWXU);
    make("real/new/deep").unwrap();
    make("").unwrap();
    assert!(top.join("real/new/deep").is_dir());
    for path in ["inside", "inside/new", "outside/new", "../new", "new/../../new", "/new", "file"] {
        assert!(make(path).is_err(), "{path}");
    }
    assert!(!dir.path().join("new").exists() && !top.join("real/inside").exists());
    let open = |path: &str| open_plain_directory(base.as_fd(), Path::new(path), OFlag::O_RDONLY);
    open("real/new").unwrap();
    for path in ["inside", "outside", "file", "none", ".."] {
        assert!(open(path).is_err(), "{path}");
    }
}
