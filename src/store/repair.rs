//! Making the agent's directories, and making them again where they were deleted while the agent
//! runs.

use super::{
    Inner, Store, StoreError, files, identity,
    load::ROLLOUTS,
    lock::{DirLock, Patience, holder},
};
use std::{
    path::{Path, PathBuf},
    sync::PoisonError,
};
use tokio::sync::watch;

/// Mode of a root directory that the agent makes: as the kubelet's.
const ROOT_MODE: u32 = 0o750;
/// Mode of a run directory that the agent makes.
const RUN_MODE: u32 = 0o700;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Directories and files that were missing.
    pub missing: Vec<PathBuf>,
    /// The root directory itself was deleted or replaced, with the volumes of all pods.
    pub root_lost: bool,
}

impl Store {
    /// Counts losses of directories. After every change, tasks with state must save it again.
    #[must_use]
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.inner.losses.subscribe()
    }

    /// Makes the directories, locks and identity files again that were deleted since. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::RunLocked`] and [`StoreError::Replaced`]: this agent
    /// has to stop. [`StoreError::Io`]: to be tried again.
    pub fn repair(&self, node_name: &str) -> Result<Repaired, StoreError> {
        let Inner { root, state_dir, memory_dir, .. } = &*self.inner;
        let run = memory_dir.parent().unwrap_or(memory_dir);
        let mut locks = self.inner.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let root_lost = !locks.root.is_in_place();
        if root_lost
            && let Some(owner) = identity::kept_owner(state_dir)
            && self.inner.keeps_owner
            && owner != self.inner.owner
        {
            return Err(StoreError::Replaced { root: root.clone(), owner });
        }
        let mut missing = make_dirs(root, run)?;
        // Whatever deletes the state files deletes these as well; workers know the names of theirs.
        let files = identity::witnesses(state_dir, self.inner.keeps_owner);
        missing.extend(files.into_iter().filter(|path| !path.exists()));
        locks.follow(root, run)?;
        if self.inner.keeps_owner {
            identity::write_owner(state_dir, &self.inner.owner)?;
        }
        let path = state_dir.clone();
        let failed = |source| StoreError::Io { operation: "write to", path, source };
        identity::write_node_name(state_dir, node_name).map_err(failed)?;
        // A directory that comes back has what was written before it went.
        if root_lost || !missing.is_empty() {
            self.note_marked();
            self.ask_to_save_again();
        }
        Ok(Repaired { missing, root_lost })
    }

    /// Makes all tasks with state save it again. Once more after a loss, when nothing is deleted
    /// any more: a deletion that is under way may take what was just written.
    pub fn ask_to_save_again(&self) {
        self.inner.losses.send_modify(|losses| *losses += 1);
    }
}

/// Makes all directories of state files where they are missing, and names them.
pub(super) fn make_dirs(root: &Path, run: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let state_dir = root.join("nodelet");
    let mut made = Vec::new();
    for (dir, mode) in [(root, ROOT_MODE), (&root.join("pods"), ROOT_MODE), (run, RUN_MODE)] {
        if files::make_dir(dir, mode)? {
            made.push(dir.to_owned());
        }
    }
    for dir in [state_dir.join("pods"), state_dir.join(ROLLOUTS), run.join("pods")] {
        let missing = dir.parent().is_some_and(|parent| !parent.exists());
        if missing && let Some(parent) = dir.parent() {
            files::make_private_dir(parent)?;
            made.push(parent.to_owned());
        }
        if files::make_private_dir(&dir)? {
            made.push(dir);
        }
    }
    Ok(made)
}

#[derive(Debug)]
pub(super) struct Locks {
    root: DirLock,
    /// The lock of releases that did not lock the directory; it holds the process id.
    state: DirLock,
    /// `None` when it is the root directory.
    run: Option<DirLock>,
}

impl Locks {
    /// Takes all of them.
    pub(super) fn take(root: &Path, run: &Path) -> Result<Self, StoreError> {
        let patience = Patience::AtStart;
        let root_lock = lock_root(root, patience)?;
        let state = lock_state(root, patience)?;
        let run = match root_lock.is_on(run) {
            true => None,
            false => Some(lock_run(root, run, patience)?),
        };
        Ok(Self { root: root_lock, state, run })
    }

    /// Takes those again whose directory or file was deleted or replaced.
    fn follow(&mut self, root: &Path, run: &Path) -> Result<(), StoreError> {
        if !self.root.is_in_place() {
            self.root = lock_root(root, Patience::None)?;
        }
        if !self.state.is_in_place() {
            self.state = lock_state(root, Patience::None)?;
        }
        if let Some(lock) = &mut self.run {
            if !lock.is_in_place() {
                *lock = lock_run(root, run, Patience::None)?;
            } else if !run.join("lock").exists() {
                write_run_holder(root, run);
            }
        }
        Ok(())
    }
}

fn lock_root(root: &Path, patience: Patience) -> Result<DirLock, StoreError> {
    DirLock::of_dir(root, patience)?.ok_or_else(|| root_is_locked(root))
}

fn lock_state(root: &Path, patience: Patience) -> Result<DirLock, StoreError> {
    let lock = DirLock::of_file(&root.join("nodelet/lock"), patience)?;
    let mut lock = lock.ok_or_else(|| root_is_locked(root))?;
    lock.write(&format!("{}\n", std::process::id()));
    Ok(lock)
}

fn lock_run(root: &Path, run: &Path, patience: Patience) -> Result<DirLock, StoreError> {
    let Some(lock) = DirLock::of_dir(run, patience)? else {
        let mut lines = holder(&run.join("lock")).into_iter();
        let mut line = || lines.next().unwrap_or_else(|| "unknown".to_owned());
        return Err(StoreError::RunLocked { pid: line(), root: line(), run: run.to_owned() });
    };
    write_run_holder(root, run);
    Ok(lock)
}

fn root_is_locked(root: &Path) -> StoreError {
    let pid = holder(&root.join("nodelet/lock")).into_iter().next();
    let pid = pid.filter(|pid| !pid.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    StoreError::Locked { pid, root: root.to_owned() }
}

/// Tells a second agent about this one. The lock holds without the text.
fn write_run_holder(root: &Path, run: &Path) {
    let text = format!("{}\n{root:?}\n", std::process::id());
    let path = run.join("lock");
    let written = files::write_unfinished(&path, text.as_bytes(), false)
        .and_then(|unfinished| std::fs::rename(unfinished, &path));
    if let Err(err) = written {
        tracing::warn!(%err, "cannot write the process id to {path:?}");
    }
}
