//! The images of `tests/images/build`, made once per build directory.

use serde_json::json;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::Command,
};

/// The pause image, as the private containerd is configured.
pub const PAUSE: &str = "nodelet.test/pause:1";
/// Busybox with all its applets.
pub const BUSYBOX: &str = "nodelet.test/busybox:1";
/// All names that the archive holds.
pub const ALL: [&str; 5] = [
    PAUSE,
    BUSYBOX,
    "nodelet.test/busybox:latest",
    "nodelet.test/busybox:user",
    "nodelet.test/busybox:named",
];

/// The archive for `ctr images import`.
pub fn archive() -> PathBuf {
    made("images.tar", &[])
}

/// The same for another architecture: `foreign` is what `tests/images/build` wants to know of it.
pub fn archive_of_foreign(foreign: [&OsStr; 3]) -> PathBuf {
    made(&format!("images-{}.tar", foreign[0].display()), &foreign)
}

fn made(name: &str, arguments: &[&OsStr]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let archive = dir.join(name);
    let lock = File::create(dir.join("images.lock")).unwrap();
    lock.lock().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    let newest_source =
        ["build", "pause.c"].map(|name| modified(&sources.join(name))).into_iter().max();
    if !archive.exists() || Some(modified(&archive)) < newest_source {
        let made = Command::new(sources.join("build")).arg(&archive).args(arguments).status();
        assert!(made.unwrap().success(), "tests/images/build failed");
    }
    archive
}

/// The archive of the images of `tests/images/cluster`, made once for these programs: kube-proxy,
/// CoreDNS and metrics-server.
pub fn of_cluster(programs: &[PathBuf; 3]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let archive = dir.join("cluster-images.tar");
    let lock = File::create(dir.join("cluster-images.lock")).unwrap();
    lock.lock().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/cluster");
    let newest_source = programs.iter().chain([&script]).map(|file| modified(file)).max();
    if !archive.exists() || Some(modified(&archive)) < newest_source {
        let mut command = Command::new(script);
        let made = command.args(programs).arg(&archive).status().unwrap();
        assert!(made.success(), "tests/images/cluster failed");
    }
    archive
}

/// A busybox that runs in an image without libraries.
pub fn static_busybox() -> Option<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/static-busybox");
    let found = Command::new(script).output().ok().filter(|found| found.status.success())?;
    Some(PathBuf::from(String::from_utf8(found.stdout).ok()?.trim()))
}

/// Makes an image of one layer, with a shell and so many MiB that nothing packs or shares, in a new
/// directory. Gives its archive.
pub fn with_ballast(dir: &Path, name: &str, mib: u64) -> PathBuf {
    let root = dir.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(static_busybox().unwrap(), root.join("bin/busybox")).unwrap();
    for applet in ["sh", "sleep"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let mut ballast = File::create(root.join("ballast")).unwrap();
    io::copy(&mut File::open("/dev/urandom").unwrap().take(mib << 20), &mut ballast).unwrap();
    archive_of(dir, &root, &[name])
}

/// Makes an archive of an image of one layer: the files below `root`. The image has all these
/// names, and its programs are found in `/usr/local/bin` and `/bin`. `dir` takes what is made.
pub fn archive_of(dir: &Path, root: &Path, names: &[&str]) -> PathBuf {
    let tar = |from: &Path, to: &Path, what: &[&str]| {
        let done = Command::new("tar").arg("-cf").arg(to).arg("-C").arg(from).args(what).status();
        assert!(done.unwrap().success(), "tar {}", to.display());
    };
    tar(root, &dir.join("layer.tar"), &["."]);
    // The library's digest of a large file takes long in an unoptimised test.
    let output = Command::new("sha256sum").arg(dir.join("layer.tar")).output().unwrap();
    let digest = String::from_utf8(output.stdout).unwrap();
    let digest = digest.split(' ').next().unwrap();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Env": ["PATH=/usr/local/bin:/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let manifest = json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
    fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    let archive = dir.join("image.tar");
    tar(dir, &archive, &["manifest.json", "config.json", "layer.tar"]);
    archive
}

fn modified(path: &Path) -> std::time::SystemTime {
    path.metadata().unwrap().modified().unwrap()
}
