//! `nodelet cp`: files and directories from and to a container.

use crate::support::{
    images::PAUSE,
    manifest::Pod,
    wait_until,
    world::{Kind, World},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Output,
    time::Duration,
};
use tar::{Builder, EntryType, Header};

const SOON: Duration = Duration::from_secs(60);

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

fn cli(world: &World, words: &[&str], input: &[u8]) -> Output {
    world.agent.cli_with_input(words, input)
}

/// Copies, and gives what was told on the way.
#[track_caller]
fn copy(world: &World, words: &[&str]) -> String {
    let output = cli(world, &[&["cp"], words].concat(), b"");
    assert!(output.status.success() && output.stdout.is_empty(), "{words:?}: {output:?}");
    stderr(&output).to_owned()
}

/// Runs a line of shell in the container and gives what it prints.
#[track_caller]
fn shell(world: &World, line: &str) -> String {
    let output = cli(world, &["exec", "web", "--", "sh", "-c", line], b"");
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(world: &World, words: &[&str], part: &str) {
    let output = cli(world, &[&["cp"], words].concat(), b"");
    let told = stderr(&output);
    assert!(output.status.code() == Some(1) && told.contains(part), "{words:?}: {output:?}");
}

/// A pod with a container that has tar, and one that has nothing.
fn web() -> Pod {
    Pod::running("web")
        .container("side", "exec sleep 1000")
        .container("bare", "")
        .set("containers/2/image", PAUSE)
        .set("containers/2/command", json!(["/pause"]))
}

/// Bytes of every value that no text has.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

pub fn files_are_copied_both_ways(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&web());
    world.wait_running("web");
    let dir = tempfile::tempdir().unwrap();
    let local = |name: &str| dir.path().join(name);
    let large = bytes(5_000_001);
    fs::create_dir_all(local("tree/sub/none")).unwrap();
    fs::write(local("tree/large"), &large).unwrap();
    fs::write(local("tree/sub/empty"), "").unwrap();
    fs::write(local("tree/sub/-a b:ü\n"), "name").unwrap();
    fs::set_permissions(local("tree/large"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("large", local("tree/link")).unwrap();

    // A file: into a directory, under another name, into another container.
    let (tree, file) = (local("tree"), local("tree/large"));
    assert_eq!(copy(&world, &[path(&file), "web:/tmp"]), "");
    assert_eq!(copy(&world, &[path(&file), "default/web:/tmp/other"]), "");
    assert_eq!(copy(&world, &["-c", "side", path(&file), "web:/tmp/"]), "");
    assert_eq!(shell(&world, "stat -c '%a %s %u' /tmp/large"), "750 5000001 0\n");
    shell(&world, "cmp /tmp/large /tmp/other");
    // A directory: into a directory, under another name, its content alone.
    copy(&world, &[path(&tree), "web:/tmp"]);
    copy(&world, &[path(&tree), "web:/tmp/renamed"]);
    shell(&world, "mkdir /content");
    copy(&world, &[&format!("{}/.", path(&tree)), "web:/content"]);
    let same = "for t in /tmp/renamed /content; do diff -r /tmp/tree $t || exit 1; done";
    shell(&world, &format!("{same}; test -d /content/sub/none; readlink /content/link"));

    // And back.
    assert_eq!(copy(&world, &["web:/tmp/large", path(&local("back"))]), "");
    assert!(fs::read(local("back")).unwrap() == large);
    let down = local("down");
    fs::create_dir(&down).unwrap();
    fs::write(down.join("other"), "is replaced").unwrap();
    copy(&world, &["web:/tmp/other", path(&down)]);
    assert!(fs::read(down.join("other")).unwrap() == large);
    assert_eq!(fs::metadata(down.join("other")).unwrap().permissions().mode() & 0o777, 0o750);
    let told = copy(&world, &["-n", "default", "web:/tmp/tree", path(&down)]);
    assert_eq!(told, "nodelet: not copied: ./tree/link: it is a symlink\n");
    let copied = down.join("tree");
    assert!(fs::read(copied.join("large")).unwrap() == large);
    assert_eq!(fs::read(copied.join("sub/empty")).unwrap(), b"");
    assert_eq!(fs::read(copied.join("sub/-a b:ü\n")).unwrap(), b"name");
    assert!(copied.join("sub/none").is_dir() && !copied.join("link").exists());

    // What can't be.
    let here = path(dir.path());
    refused(&world, &["web:/no/such", here], "tar in container main failed");
    refused(&world, &["web:/tmp/tree/none", here], "none: No such file or directory");
    refused(&world, &["web:/tmp/tree/link", here], "nothing was copied");
    refused(&world, &["web:/tmp/large", "/no/such/directory/x"], "can't open the directory");
    refused(&world, &["web:/tmp/large", "/dev/null"], "a special file is in the way");
    refused(&world, &[&format!("{here}/none"), "web:/tmp"], "can't read");
    refused(&world, &[path(&file), "web:/no/such/"], "there is no directory \"/no/such/\"");
    refused(&world, &[path(&file), "web:/no/such"], "there is no directory \"/no\"");
    let both_local = cli(&world, &["cp", here, "./there"], b"");
    assert_eq!(both_local.status.code(), Some(2), "{both_local:?}");
    refused(&world, &["-c", "other", "web:/tmp/large", here], "it has main, side, bare");
    for words in [["web:/x", here], [path(&file), "web:/x"]] {
        let words = [&["-c", "bare"], &words[..]].concat();
        refused(&world, &words, "can't run tar in container bare");
    }
    world.agent.kill();
    assert_eq!(cli(&world, &["cp", "web:/tmp/large", here], b"").status.code(), Some(3));
    world.agent.start();
    world.wait_running("web");
    world.finish();
}

/// Adds an entry with a name that the library would refuse.
fn forge(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o4755);
    header.set_size(content.len().try_into().unwrap());
    header.set_cksum();
    archive.append(&header, content).unwrap();
}

pub fn a_hostile_archive_stays_in_its_destination(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&web());
    world.wait_running("web");
    let dir = tempfile::tempdir().unwrap();
    let destination = dir.path().join("destination");
    fs::create_dir(&destination).unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "untouched").unwrap();
    let mut archive = Builder::new(Vec::new());
    let file = EntryType::Regular;
    forge(&mut archive, file, "data/../../outside", "", b"evil");
    forge(&mut archive, file, path(&outside), "", b"evil");
    forge(&mut archive, EntryType::Symlink, "data/up", path(dir.path()), b"");
    forge(&mut archive, file, "data/up/outside", "", b"inside");
    forge(&mut archive, EntryType::Link, "data/hard", path(&outside), b"");
    forge(&mut archive, file, "data/hard", "", b"inside");
    forge(&mut archive, EntryType::Char, "data/\u{1b}[2J", "", b"");
    let archive = archive.into_inner().unwrap();
    let put = |name: &str, content: &[u8]| {
        let line = format!("rm -f {name}; cat > {name}; chmod 755 {name}");
        let output = cli(&world, &["exec", "-i", "web", "--", "sh", "-c", &line], content);
        assert!(output.status.success(), "{output:?}");
    };
    put("/archive", &archive);
    put("/bin/tar", b"#!/bin/sh\nprintf 'told \\033[2J\\n' >&2\nexec cat /archive\n");
    let copied = cli(&world, &["cp", "web:/data", path(&destination)], b"");
    assert_eq!(copied.status.code(), Some(1), "{copied:?}");
    let mut told: Vec<&str> = stderr(&copied).lines().collect();
    told.sort_unstable();
    let not = "nodelet: not copied: ";
    let expected = [
        "nodelet: not copied: 2 of the files and directories",
        &format!("{not}{}: its name leads out of the destination", path(&outside)),
        &format!("{not}data/../../outside: its name leads out of the destination"),
        &format!("{not}data/\\u001b[2J: it is a device"),
        &format!("{not}data/hard: it is a hard link"),
        &format!("{not}data/up: it is a symlink"),
        "told \\u001b[2J",
    ];
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(told, expected);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    let hard = destination.join("data/hard");
    assert_eq!(fs::read_to_string(&hard).unwrap(), "inside");
    assert_eq!(hard.metadata().unwrap().permissions().mode() & 0o7000, 0);
    assert_eq!(fs::read_to_string(destination.join("data/up/outside")).unwrap(), "inside");

    // An archive that does not go on is ended by Ctrl-C, and leaves no half file.
    let mut archive = Builder::new(Vec::new());
    forge(&mut archive, file, "slow", "", &bytes(100_000));
    put("/archive", &archive.into_inner().unwrap());
    put("/bin/tar", b"#!/bin/sh\nhead -c 50000 /archive\nexec sleep 1000\n");
    let mut client = world.agent.cli_started(&["cp", "web:/slow", path(&destination)]);
    let names = || {
        let entries = fs::read_dir(&destination).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    wait_until("the file has begun", SOON, names, |names| names.len() == 2);
    kill(Pid::from_raw(client.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let ended = || client.try_wait().unwrap();
    wait_until("cp ends", SOON, ended, |status| status.is_some_and(|s| s.code() == Some(1)));
    assert_eq!(names(), ["data"]);
    // Neither is one left when the archive is too short.
    put("/bin/tar", b"#!/bin/sh\nhead -c 50000 /archive\n");
    refused(&world, &["web:/slow", path(&destination)], "damaged or incomplete");
    assert_eq!(names(), ["data"]);
    // A tar that does not read is no success.
    put("/bin/tar", b"#!/bin/sh\nexit 126\n");
    refused(&world, &[path(&outside), "web:/"], "can't run tar in container main");
    world.finish();
}
