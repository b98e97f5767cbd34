use super::*;
use crate::hostfiles::HostFilePaths;
use flate2::read::GzDecoder;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    slice::from_ref,
    time::SystemTime,
};
use tempfile::TempDir;

/// The log directory of container `main`, instance 3.
struct Logs {
    files: HostFiles,
    place: LogPlace,
    path: PathBuf,
    dir: TempDir,
}

fn logs() -> Logs {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let files = HostFiles::new(HostFilePaths {
        network_results_dir: at("results"),
        root_dir: at("root"),
        pod_logs_dir: at("pods"),
        links_dir: at("containers"),
        node_hosts: at("hosts"),
    });
    let (key, uid) = (PodKey::new("default", "web"), PodUid::from("u1"));
    let path = files.ensure_container_log_dir(&key, &uid, "main").unwrap();
    let place = LogPlace { key, uid, container: "main".into(), restart_count: 3 };
    Logs { files, place, path, dir }
}

impl Logs {
    fn write(&self, name: &str, content: &str) {
        fs::write(self.path.join(name), content).unwrap();
    }

    /// Of a file that was written to so long ago.
    fn write_aged(&self, name: &str, content: &str, age: Duration) {
        self.write(name, content);
        let file = File::options().append(true).open(self.path.join(name)).unwrap();
        let now = SystemTime::from(Timestamp::now());
        file.set_modified(now.checked_sub(age).unwrap()).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap()
    }

    fn unpacked(&self, name: &str) -> String {
        let mut text = String::new();
        let packed = File::open(self.path.join(name)).unwrap();
        GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        text
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.path).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn expect(&self, names: &[&str]) {
        assert_eq!(self.names(), names.iter().map(ToString::to_string).collect());
    }

    fn set_aside(&self, max_files: usize, second: u32) -> String {
        let now = format!("2026-11-24T12:00:{second:02}Z").parse().unwrap();
        self.files.set_log_aside(&self.place, max_files, now).unwrap().unwrap()
    }

    fn tidy(&self) -> Tidied {
        self.files.tidy_log(&self.place, Timestamp::now()).unwrap()
    }
}

#[test]
fn a_log_is_set_aside_and_the_oldest_files_go() {
    let logs = logs();
    let old = ["3.log.20260101-000001.gz", "3.log.20260101-000002", "3.log.20260101-000003"];
    old.iter().for_each(|name| logs.write(name, "old"));
    logs.write("2.log.20260101-000000", "of the run before");
    logs.write("3.log", "now");
    assert_eq!(logs.files.log_size(&logs.place).unwrap(), Some(3));
    assert_eq!(logs.set_aside(4, 1), "20261124-120001.000000");
    logs.expect(&[
        "2.log.20260101-000000",
        "3.log.20260101-000002",
        "3.log.20260101-000003",
        "3.log.20261124-120001.000000",
    ]);
    assert_eq!(logs.read("3.log.20261124-120001.000000"), "now");
    assert_eq!(logs.files.log_size(&logs.place).unwrap(), None);
    logs.write("3.log", "new");
    assert_eq!(logs.set_aside(2, 1), "20261124-120001.000001", "no name is used twice");
    logs.expect(&["2.log.20260101-000000", "3.log.20261124-120001.000001"]);
}

#[test]
fn a_log_is_put_back_unless_there_is_a_new_one() {
    let logs = logs();
    logs.write("3.log", "one");
    let stamp = logs.set_aside(5, 1);
    logs.files.put_log_back(&logs.place, &stamp).unwrap();
    assert_eq!(logs.read("3.log"), "one");
    logs.expect(&["3.log"]);
    let stamp = logs.set_aside(5, 2);
    logs.write("3.log", "two");
    logs.files.put_log_back(&logs.place, &stamp).unwrap();
    assert_eq!(logs.read("3.log"), "two");
    assert_eq!(logs.read("3.log.20261124-120002.000000"), "one");
}

#[test]
fn nothing_is_replaced_without_the_rename_flag_either() {
    use rustix::io::Errno;
    let logs = logs();
    let directory = logs.files.log_directory(&logs.place).unwrap().unwrap();
    symlink("nowhere", logs.path.join("link")).unwrap();
    for refused in [Errno::INVAL, Errno::NOSYS] {
        logs.write("3.log", "now");
        let rename = |to| directory.rename_without_flag(refused, "3.log", to);
        assert_eq!(rename("3.log.20260101-000001"), Ok(()));
        logs.write("3.log", "new");
        assert_eq!(rename("3.log.20260101-000001"), Err(Errno::EXIST));
        assert_eq!(rename("link"), Err(Errno::EXIST));
        logs.expect(&["3.log", "3.log.20260101-000001", "link"]);
        assert_eq!(logs.read("3.log.20260101-000001"), "now");
        fs::remove_file(logs.path.join("3.log.20260101-000001")).unwrap();
    }
    let other = directory.rename_without_flag(Errno::ACCESS, "3.log", "3.log.20260101-000001");
    assert_eq!(other, Err(Errno::ACCESS), "the flag is not to blame");
}

#[test]
fn old_files_are_compressed_with_mode_and_time() {
    let logs = logs();
    let minute = Duration::from_secs(60);
    logs.write_aged("3.log.20260101-000001", &"line\n".repeat(50_000), minute);
    logs.write_aged("3.log.20260101-000002", "written to a moment ago", Duration::ZERO);
    logs.write_aged("3.log.20260101-000003", "the newest", minute);
    logs.write("3.log.20260101-000000", "also compressed");
    logs.write("3.log.20260101-000000.gz", "");
    logs.write("3.log.20260101-000001.gz.tmp", "half");
    logs.write("3.log", "now");
    let plain = logs.path.join("3.log.20260101-000001");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o640)).unwrap();
    let modified = fs::metadata(&plain).unwrap().modified().unwrap();
    assert_eq!(logs.tidy(), Tidied { compressed: 1, left: 1 });
    logs.expect(&[
        "3.log",
        "3.log.20260101-000000.gz",
        "3.log.20260101-000001.gz",
        "3.log.20260101-000002",
        "3.log.20260101-000003",
    ]);
    assert_eq!(logs.unpacked("3.log.20260101-000001.gz"), "line\n".repeat(50_000));
    let packed = fs::metadata(logs.path.join("3.log.20260101-000001.gz")).unwrap();
    assert_eq!(packed.mode() & 0o777, 0o640);
    assert_eq!(packed.modified().unwrap(), modified);
    assert!(packed.len() < 5_000, "{}", packed.len());
    assert_eq!(logs.tidy(), Tidied { compressed: 0, left: 1 });
}

#[test]
fn links_among_the_logs_are_not_followed() {
    let logs = logs();
    let victim = logs.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, logs.path.join("3.log")).unwrap();
    let error = logs.files.log_size(&logs.place).unwrap_err();
    assert!(error.to_string().contains("is not a regular file"), "{error}");
    symlink(&victim, logs.path.join("3.log.20260101-000001")).unwrap();
    logs.write("3.log.20260101-000002", "newest");
    let error = logs.files.tidy_log(&logs.place, Timestamp::now()).unwrap_err();
    assert!(error.to_string().contains("is not a regular file"), "{error}");
    // The names of the files to be made cannot lead anywhere else.
    fs::remove_file(logs.path.join("3.log.20260101-000001")).unwrap();
    logs.write_aged("3.log.20260101-000001", "old", Duration::from_secs(60));
    symlink(&victim, logs.path.join("3.log.20260101-000001.gz.tmp")).unwrap();
    assert_eq!(logs.tidy().compressed, 1);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // The whole directory is a link: log shippers mount log directories.
    fs::rename(&logs.path, logs.dir.path().join("moved")).unwrap();
    symlink(logs.dir.path().join("moved"), &logs.path).unwrap();
    let error = logs.files.log_size(&logs.place).unwrap_err();
    assert!(error.to_string().contains("is not a directory"), "{error}");
}

/// Directories, FIFOs and links with the names of log files, as a container with a writable log
/// directory can make them.
#[test]
fn impostors_stop_neither_rotation_nor_compression() {
    let logs = logs();
    let victim = logs.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let at = |name: &str| logs.path.join(name);
    fs::create_dir_all(at("3.log.20250101-000000/below")).unwrap();
    fs::create_dir(at("3.log.20250101-000000.gz.tmp")).unwrap();
    nix::unistd::mkfifo(&at("3.log.20250101-000001"), Mode::S_IRWXU).unwrap();
    symlink(&victim, at("3.log.20250101-000002")).unwrap();
    fs::create_dir(at("3.log.20260101-000001.gz")).unwrap();
    let minute = Duration::from_secs(60);
    for second in 1..=3 {
        logs.write_aged(&format!("3.log.20260101-00000{second}"), "old", minute);
    }
    // Each impostor is in the way of its own file only.
    logs.files.tidy_log(&logs.place, Timestamp::now()).unwrap_err();
    assert_eq!(logs.unpacked("3.log.20260101-000002.gz"), "old");
    assert!(!at("3.log.20260101-000002").exists() && at("3.log.20260101-000001").exists());
    logs.write("3.log", "now");
    assert_eq!(logs.set_aside(3, 1), "20261124-120001.000000");
    logs.expect(&[
        "3.log.20250101-000000",
        "3.log.20250101-000000.gz.tmp",
        "3.log.20260101-000001.gz",
        "3.log.20260101-000003",
        "3.log.20261124-120001.000000",
    ]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn logs_of_all_pods_are_measured_and_removed() {
    let logs = logs();
    logs.write("3.log", "12345");
    logs.write("3.log.20260101-000001.gz", "123");
    logs.write("2.log.20260101-000002", "12");
    logs.write("note.txt", "not a log");
    let absent = LogPlace { container: "absent".into(), ..logs.place.clone() };
    let found = logs.files.measure_logs(&[logs.place.clone(), absent], Timestamp::now());
    assert_eq!((found.total, found.current, found.ended), (10, 5, 0));
    let mut old = found.old;
    old.sort_by_key(|old| old.size);
    let found: Vec<_> =
        old.iter().map(|old| (old.place.restart_count, &*old.stamp, old.size)).collect();
    assert_eq!(found, [(2, "20260101-000002", 2), (3, "20260101-000001", 3)]);
    old.iter().for_each(|old| logs.files.remove_old_log(old).unwrap());
    logs.expect(&["3.log", "note.txt"]);
}

#[test]
fn idle_last_files_of_ended_instances_are_offered() {
    let logs = logs();
    logs.write_aged("0.log", "", LAST_FILE_IDLE);
    logs.write_aged("1.log", "1", LAST_FILE_IDLE);
    logs.write("2.log", "has just ended");
    logs.write_aged("3.log", "may run", LAST_FILE_IDLE);
    logs.write_aged("01.log", "of another program", LAST_FILE_IDLE);
    let found = logs.files.measure_logs(from_ref(&logs.place), Timestamp::now());
    assert_eq!((found.total, found.current, found.ended), (40, 40, 15));
    let [old] = &found.old[..] else { panic!("{found:?}") };
    assert_eq!((old.place.restart_count, old.size, old.is_last), (1, 1, true));
    logs.files.remove_old_log(old).unwrap();
    logs.expect(&["0.log", "01.log", "1.log", "2.log", "3.log"]);
    let found = logs.files.measure_logs(from_ref(&logs.place), Timestamp::now());
    assert_eq!((found.ended, found.old.len()), (14, 0), "it is empty now");
}

/// A container can make a file of any size that takes no room.
#[test]
fn holes_are_neither_compressed_for_hours_nor_counted() {
    let logs = logs();
    for name in ["3.log.20260101-000001", "3.log.20260101-000002"] {
        logs.write_aged(name, "12", Duration::from_secs(60));
    }
    let hole = File::options().write(true).open(logs.path.join("3.log.20260101-000001")).unwrap();
    hole.set_len(1 << 40).unwrap();
    hole.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let tidied = logs.files.tidy_log(&logs.place, Timestamp::now()).unwrap();
    assert_eq!(tidied.left, 0);
    logs.expect(&["3.log.20260101-000001", "3.log.20260101-000002"]);
    let total = logs.files.measure_logs(from_ref(&logs.place), Timestamp::now()).total;
    assert!(total < 1 << 20, "{total}");
}

#[test]
fn log_files_of_other_programs_count_and_are_not_offered() {
    let logs = logs();
    for name in ["3.log.1", "3.log.2.gz", "3.log.keep", "3.log.20260101-000001"] {
        logs.write(name, "12");
    }
    let found = logs.files.measure_logs(from_ref(&logs.place), Timestamp::now());
    assert_eq!(found.total, 8);
    let offered: Vec<_> = found.old.iter().map(|old| &*old.stamp).collect();
    assert_eq!(offered, ["20260101-000001"]);
}

#[test]
fn a_directory_that_is_gone_has_nothing_to_rotate() {
    let logs = logs();
    fs::remove_dir_all(Path::new(&logs.path)).unwrap();
    assert_eq!(logs.files.log_size(&logs.place).unwrap(), None);
    assert_eq!(logs.files.set_log_aside(&logs.place, 5, Timestamp::now()).unwrap(), None);
    assert_eq!(logs.tidy(), Tidied::default());
    logs.files.put_log_back(&logs.place, "20260101-000001").unwrap();
}
