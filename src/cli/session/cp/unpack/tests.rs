#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use nix::unistd::mkfifo;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};
use tar::{Builder, Header};

/// The bytes of an archive, made without any of the library's checks.
#[derive(Default)]
struct Forged(Vec<u8>);

impl Forged {
    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &str) -> Self {
        let size = content.len().try_into().unwrap();
        self.header(kind, name, link, size);
        self.0.extend(content.as_bytes());
        let padded = self.0.len().next_multiple_of(512);
        self.0.resize(padded, 0);
        self
    }

    /// A header that promises `size` bytes.
    fn header(&mut self, kind: EntryType, name: &str, link: &str, size: u64) {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o6777);
        header.set_cksum();
        self.0.extend(header.as_bytes());
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content)
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", "")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, "")
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// What was told about an archive, and how unpacking it has ended.
struct Told {
    reported: Vec<String>,
    failure: Option<String>,
}

/// Unpacks an archive of `data` into `directory`, as `nodelet cp web:data directory` does.
fn unpack(archive: &[u8], directory: &Path) -> Told {
    unpack_as(archive, directory, Some("data"), Some("data"))
}

fn unpack_as(archive: &[u8], directory: &Path, source: Option<&str>, name: Option<&str>) -> Told {
    let base = beneath::open_base(directory).unwrap();
    let target = Target { directory: directory.to_owned(), name: name.map(OsString::from) };
    let mut reported = Vec::new();
    let mut unpacker = Unpacker::new(source.map(OsStr::new), target);
    let done = unpacker.unpack(archive, base.as_fd(), &mut |text| reported.push(text.to_owned()));
    let failure = done.err().map(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    });
    Told { reported, failure }
}

/// Every path below `top` with its mode, and with the content of a file.
fn tree(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let mode = metadata.permissions().mode();
            let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let content = String::from_utf8(content).unwrap();
            found.push(format!("{} {mode:o} {content}", path.strip_prefix(top).unwrap().display()));
            if metadata.is_dir() {
                waiting.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A directory with a destination in it, in which there is something already, and beside it files
/// that no archive may touch.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(machine.outside().join("dir")).unwrap();
        fs::write(machine.outside().join("file"), "untouched").unwrap();
        fs::create_dir_all(machine.destination().join("data")).unwrap();
        symlink(machine.outside(), machine.destination().join("data/planted")).unwrap();
        symlink("../../outside/file", machine.destination().join("data/planted-file")).unwrap();
        symlink("here", machine.destination().join("data/planted-inside")).unwrap();
        mkfifo(&machine.destination().join("data/fifo"), Mode::S_IRWXU).unwrap();
        machine
    }

    fn outside(&self) -> PathBuf {
        self.0.path().join("outside")
    }

    fn destination(&self) -> PathBuf {
        self.0.path().join("destination")
    }

    fn data(&self, path: &str) -> PathBuf {
        self.destination().join("data").join(path)
    }
}

#[test]
fn nothing_of_a_hostile_archive_lands_outside() {
    let new = Forged::default;
    let hard = EntryType::Link;
    // What is reported: a symlink and the like are skipped, other entries are refused.
    for (what, archive, reports) in [
        ("..", new().file("data/../../outside/file", "evil"), &["leads out"][..]),
        (".. at the beginning", new().file("../outside/new", "evil"), &["leads out"]),
        (".. as a directory", new().directory("data/.."), &["leads out"]),
        ("an absolute name", new().file("/tmp/nodelet-cp-evil", "evil"), &["leads out"]),
        ("another name", new().file("other/file", "evil"), &["was not asked for"]),
        ("an empty name", new().file("", "evil"), &["was not asked for"]),
        (
            "through a symlink of the archive",
            new().symlink("data/l", "../../outside").file("data/l/file", "evil"),
            &["data/l: it is a symlink"],
        ),
        (
            "onto a symlink of the archive",
            new().symlink("data/l", "../../outside/file").file("data/l", "evil"),
            &["it is a symlink"],
        ),
        ("through a planted symlink", new().file("data/planted/file", "evil"), &["in the way"]),
        ("a directory", new().directory("data/planted/new"), &["in the way"]),
        ("a directory on a symlink", new().directory("data/planted"), &["in the way"]),
        ("onto a planted symlink", new().file("data/planted-file", "evil"), &["a symlink is"]),
        (
            "through one that stays inside",
            new().file("data/planted-inside/f", "evil"),
            &["in the way"],
        ),
        ("into a FIFO", new().file("data/fifo", "evil"), &["a special file is in the way"]),
        (
            "a hard link",
            new().entry(hard, "data/h", "../outside/file", "").file("data/h", "mine"),
            &["it is a hard link"],
        ),
        (
            "devices",
            new()
                .entry(EntryType::Char, "data/c", "", "")
                .entry(EntryType::Block, "data/b", "", "")
                .entry(EntryType::Fifo, "data/p", "", ""),
            &["it is a device", "it is a device", "it is a FIFO"],
        ),
        (
            "a name with escape sequences",
            new().symlink("data/\u{1b}[2J\n", "x"),
            &["data/\\u001b[2J\\n: it is a symlink"],
        ),
        (
            "a parent that is a file",
            new().file("data/f", "").file("data/f/g", "evil").directory("data/f"),
            &["not a directory is in the way", "not a directory is in the way"],
        ),
        (
            "a file on a directory",
            new().directory("data/d").file("data/d", "evil"),
            &["a directory is in the way"],
        ),
        (
            "a long link to nowhere",
            new()
                .entry(EntryType::GNULongLink, "", "", &"../".repeat(300))
                .symlink("data/s", "")
                .file("data/s/x", "inside"),
            &["it is a symlink"],
        ),
    ] {
        let machine = Machine::new();
        let before = tree(&machine.outside());
        let told = unpack(&archive.end(), &machine.destination());
        assert_eq!(tree(&machine.outside()), before, "{what}");
        let places: Vec<_> = fs::read_dir(machine.0.path()).unwrap().collect();
        assert_eq!(places.len(), 2, "{what}: {places:?}");
        assert!(!Path::new("/tmp/nodelet-cp-evil").exists());
        let is_told = told.reported.iter().zip(reports).all(|(a, b)| a.contains(b));
        assert!(is_told && told.reported.len() == reports.len(), "{what}: {:?}", told.reported);
        // Links and special files are skipped, as by kubectl. Everything else is a failure.
        let is_failure = reports.iter().any(|text| !text.contains("it is a"));
        let copies_nothing = matches!(what, "devices" | "a name with escape sequences");
        assert_eq!(told.failure.is_some(), is_failure || copies_nothing, "{what}");
    }
}

#[test]
fn a_symlink_in_place_of_the_destination_is_not_followed() {
    let machine = Machine::new();
    let link = machine.destination().join("link");
    symlink(machine.outside(), &link).unwrap();
    for archive in [
        Forged::default().directory("data").file("data/file", "evil"),
        Forged::default().file("data", "evil"),
    ] {
        let told = unpack_as(&archive.end(), &machine.destination(), Some("data"), Some("link"));
        assert!(told.failure.unwrap().contains("not copied"));
        assert_eq!(fs::read_to_string(machine.outside().join("file")).unwrap(), "untouched");
        assert!(link.is_symlink());
    }
}

#[test]
fn an_archive_becomes_files_with_permission_bits() {
    let machine = Machine::new();
    let archive = Forged::default()
        .entry(EntryType::XGlobalHeader, "g", "", "12 comment=x\n")
        .directory("./data/")
        .file("./data/new/deep/file", "first")
        .file("data/new/deep/file", "second")
        .entry(EntryType::Regular, "data/old-style/", "", "")
        .file("data/empty", "");
    let told = unpack(&archive.end(), &machine.destination());
    assert_eq!((told.reported, told.failure), (vec![], None));
    assert_eq!(fs::read_to_string(machine.data("new/deep/file")).unwrap(), "second");
    assert_eq!(fs::read_to_string(machine.data("empty")).unwrap(), "");
    assert!(machine.data("old-style").is_dir());
    let mode = |path| machine.data(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("new/deep/file") & 0o7000, 0, "no setuid bit");
    assert_eq!(mode("new/deep/file") & 0o700, 0o700);
    assert_eq!(tree(&machine.destination()).iter().filter(|p| p.contains(".nodelet")).count(), 0);
}

#[test]
fn the_content_of_a_directory_has_no_name_of_its_own() {
    let machine = Machine::new();
    let archive = Forged::default().directory("./").file("./a/b", "x").file("c", "y").end();
    let told = unpack_as(&archive, &machine.destination(), None, None);
    assert_eq!(told.failure, None);
    assert!(machine.destination().join("a/b").is_file());
    assert_eq!(unpack_as(&archive, &machine.destination(), None, Some("new")).failure, None);
    assert!(machine.destination().join("new/a/b").is_file());
    let file = Forged::default().file("./", "x").end();
    let told = unpack_as(&file, &machine.destination(), None, None);
    assert!(told.reported[0].contains("a directory was expected"), "{:?}", told.reported);
}

#[test]
fn long_names_are_kept_or_refused() {
    let machine = Machine::new();
    let mut builder = Builder::new(Vec::new());
    let (long, too_long) = ("n".repeat(255), "n".repeat(256));
    for name in [format!("data/{long}/{long}"), format!("data/{too_long}")] {
        let mut header = Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &b"x"[..]).unwrap();
    }
    let told = unpack(&builder.into_inner().unwrap(), &machine.destination());
    assert_eq!(told.failure.unwrap(), "not copied: 1 of the files and directories");
    assert!(told.reported[0].contains("too long"), "{:?}", told.reported);
    assert!(machine.data(&format!("{long}/{long}")).is_file());
}

#[test]
fn a_damaged_archive_leaves_no_half_file() {
    let mut promises = Forged::default().file("data/whole", "whole");
    promises.header(EntryType::Regular, "data/half", "", 8 << 30);
    promises.0.extend([b'x'; 4096]);
    let mut cut = Forged::default().file("data/whole", "whole");
    cut.0.truncate(700);
    let mut forged = Forged::default().file("data/whole", "whole").end();
    forged[3] = b'!';
    let mut long = Forged::default();
    long.header(EntryType::GNULongName, "", "", 8 << 30);
    long.0.resize(4 << 20, b'n');
    let mut huge = Forged::default();
    huge.header(EntryType::Regular, "data/huge", "", u64::MAX);
    let only_links = Forged::default().symlink("data", "x").end();
    for (what, archive, part) in [
        ("truncated data", promises.0, "damaged or incomplete: unexpected end of file"),
        ("a cut entry", cut.0, "damaged or incomplete"),
        ("a wrong checksum", forged, "damaged or incomplete"),
        ("text", b"no archive".repeat(100), "damaged or incomplete"),
        ("a name without end", long.0, "a header is too long"),
        ("a size beyond every file", huge.0, "damaged or incomplete"),
        ("an empty archive", vec![0; 1024], "nothing was copied"),
        ("no bytes", Vec::new(), "nothing was copied"),
        ("a source that is a link", only_links, "nothing was copied"),
    ] {
        let machine = Machine::new();
        let told = unpack(&archive, &machine.destination());
        let failure = told.failure.unwrap();
        assert!(failure.contains(part), "{what}: {failure}");
        let names: Vec<_> =
            fs::read_dir(machine.data("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        let unfinished = |name: &OsString| {
            name != "whole" && name != "fifo" && !name.to_str().unwrap().starts_with("planted")
        };
        assert!(!names.iter().any(unfinished), "{what}: {names:?}");
    }
}
