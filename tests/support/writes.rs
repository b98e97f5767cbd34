//! The agent's steps of writing state files, as `state_writes.c` sees them: recorded, and one of
//! them made the agent's last.

use std::{
    cell::Cell,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

/// The recording of one agent and what is to become of it.
#[derive(Debug)]
pub struct StateWrites {
    dir: PathBuf,
    library: PathBuf,
    armed: Cell<bool>,
}

impl StateWrites {
    /// For the agent whose directories lie in `dir`.
    pub fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), library: library(), armed: Cell::new(false) }
    }

    /// Makes an agent that is about to be started tell its steps.
    pub fn watch(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("NODELET_TEST_WRITES", &self.dir);
    }

    /// Every step since [`Self::forget`]: `after open PATH.unfinished`, `before rename PATH`, ...;
    /// paths from the agent's directory on.
    pub fn steps(&self) -> Vec<String> {
        let mut steps = self.steps_and_syncs();
        steps.retain(|step| !step.starts_with("after sync "));
        steps
    }

    /// The same with what was synced between them: `after sync PATH`, a file's or a directory's.
    pub fn steps_and_syncs(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.join("writes.log")).unwrap_or_default();
        let prefix = format!("{}/", self.dir.display());
        log.lines().map(|line| line.replacen(&prefix, "", 1)).collect()
    }

    /// Begins the recording anew.
    pub fn forget(&self) {
        fs::write(self.dir.join("writes.log"), "").unwrap();
    }

    /// The agent dies when it next comes to this step.
    pub fn kill_at(&self, step: &str) {
        let (what, path) = step.rsplit_once(' ').unwrap();
        let beside = self.dir.join("writes.kill.new");
        fs::write(&beside, format!("{what} {}\n", self.dir.join(path).display())).unwrap();
        fs::rename(beside, self.kill_file()).unwrap();
        self.armed.set(true);
    }

    /// Whether it has not come to that step yet.
    pub fn is_armed(&self) -> bool {
        self.kill_file().exists()
    }

    /// From now on it does not die at a step. Whether it has, or is just about to, since the last
    /// call.
    pub fn disarm(&self) -> bool {
        // Whoever removes the file decides: this, or the agent before it dies.
        self.armed.take() && fs::remove_file(self.kill_file()).is_err()
    }

    fn kill_file(&self) -> PathBuf {
        self.dir.join("writes.kill")
    }
}

/// The library, built when it is older than its source.
fn library() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/state_writes.c");
    let library = dir.join("state_writes.so");
    let lock = File::create(dir.join("state_writes.lock")).unwrap();
    lock.lock().unwrap();
    let modified = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    if modified(&library) < modified(&source) {
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .status();
        assert!(built.is_ok_and(|status| status.success()), "cc cannot build {source:?}");
    }
    library
}
