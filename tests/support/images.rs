//! The images of `tests/images/build`, made once per build directory.

use std::{
    fs::File,
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
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let archive = dir.join("images.tar");
    let lock = File::create(dir.join("images.lock")).unwrap();
    lock.lock().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    let newest_source =
        ["build", "pause.c"].map(|name| modified(&sources.join(name))).into_iter().max();
    if !archive.exists() || Some(modified(&archive)) < newest_source {
        let made = Command::new(sources.join("build")).arg(&archive).status().unwrap();
        assert!(made.success(), "tests/images/build failed");
    }
    archive
}

fn modified(path: &Path) -> std::time::SystemTime {
    path.metadata().unwrap().modified().unwrap()
}
