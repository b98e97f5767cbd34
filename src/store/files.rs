//! Single steps on single files.

use super::StoreError;
use crate::{
    files::{self, read_regular},
    model::{Order as _, from_json},
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Version of every state file. A new field needs no new version: a release ignores the fields that
/// it does not know, so that the release before can take over again.
const VERSION: u32 = 1;
/// The largest state file that is read, in bytes: more than all manifests of a source together.
const MAX_STATE_BYTES: u64 = 256 << 20;
/// Ending of files that are not finished; what a crash leaves of them is removed at the next start.
const UNFINISHED: &str = ".unfinished";

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    /// The agent that wrote it, in files below a directory that agents may share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Box<str>>,
    content: T,
}

/// The text of a state file, with the owner id where agents may share the directory.
pub(super) fn encode<T: Serialize>(owner: Option<&str>, content: &T) -> Vec<u8> {
    let owner = owner.map(Into::into);
    // Plain data with string keys: there is nothing in it that JSON can't hold.
    serde_json::to_vec(&Versioned { version: VERSION, owner, content }).unwrap_or_default()
}

/// What became of reading a state file.
pub(super) enum Read<T> {
    Missing,
    Damaged(String),
    /// Another agent's; with the sentence that tells so.
    Foreign(String),
    Content(T),
}

/// Whose content a state file may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Belief<'a> {
    /// Anybody's: the directory belongs to this agent.
    All,
    /// Only this owner's.
    Own(&'a str),
    /// This owner's, and what an earlier release wrote without an owner.
    OwnOrUnnamed(&'a str),
}

impl Belief<'_> {
    fn includes(self, owner: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Own(own) => owner == Some(own),
            Self::OwnOrUnnamed(own) => owner.is_none_or(|owner| owner == own),
        }
    }
}

/// Reads a state file; one that can't be used is set aside.
pub(super) fn read<T: DeserializeOwned>(path: &Path, belief: Belief<'_>) -> Read<T> {
    let text = match read_regular(path, MAX_STATE_BYTES) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Read::Missing,
        Err(error) => return Read::Damaged(format!("cannot read {path:?}: {error}")),
    };
    let problem = match from_json::<Versioned<T>>(&text) {
        Ok(file) if !belief.includes(file.owner.as_deref()) => {
            return Read::Foreign(set_aside_foreign(path, file.owner.as_deref()));
        }
        Ok(file) if file.version == VERSION => return Read::Content(file.content),
        Ok(file) => unknown_version(file.version),
        // The content of another version may have another shape.
        Err(error) => match from_json::<Versioned<IgnoredAny>>(&text) {
            Ok(file) if file.version != VERSION => unknown_version(file.version),
            Ok(_) | Err(_) => error.to_string(),
        },
    };
    Read::Damaged(set_aside(path, &problem))
}

fn unknown_version(version: u32) -> String {
    format!("its version is {version}, this nodelet knows {VERSION}")
}

/// Makes a directory with exactly this mode where it is missing; the directories above it get 0755.
/// One that is there keeps its mode: it may be wider on purpose. Returns whether it was missing.
pub(super) fn make_dir(dir: &Path, mode: u32) -> Result<bool, StoreError> {
    let failed = |source| StoreError::Io { operation: "create", path: dir.to_owned(), source };
    if dir.is_dir() {
        return Ok(false);
    }
    if let Some(parent) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // The umask may have taken something away.
        made => made
            .and_then(|()| fs::set_permissions(dir, Permissions::from_mode(mode)))
            .map(|()| true)
            .map_err(failed),
    }
}

/// Makes a directory that only root can enter; one that is there is made so. Returns whether it was
/// missing.
pub(super) fn make_private_dir(dir: &Path) -> Result<bool, StoreError> {
    const PRIVATE: u32 = 0o700;
    let missing = make_dir(dir, PRIVATE)?;
    // Setting a mode writes to the disk, even if it is the same one.
    let is_private =
        || fs::metadata(dir).is_ok_and(|about| about.permissions().mode() & 0o7777 == PRIVATE);
    if missing || is_private() {
        return Ok(missing);
    }
    // On a disk that is full or read-only the directory is there and that is enough.
    if let Err(err) = fs::set_permissions(dir, Permissions::from_mode(PRIVATE)) {
        tracing::warn!(%err, "cannot make {dir:?} private");
    }
    Ok(missing)
}

/// Removes temporary files that an interrupted write left.
pub(super) fn remove_leftovers(dir: &Path) {
    for path in entries(dir).filter(|path| path.to_string_lossy().ends_with(UNFINISHED)) {
        if let Err(err) = fs::remove_file(&path) {
            tracing::warn!(%err, "cannot remove the unfinished {path:?}");
        }
    }
}

/// The state files of a directory, sorted.
pub(super) fn json_files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        entries(dir).filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    found.order();
    found
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).inspect_err(|err| tracing::warn!(%err, "cannot read {dir:?}"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Renames a file of another agent; returns the sentence that tells about it. One copy is kept for
/// each owner.
fn set_aside_foreign(path: &Path, owner: Option<&str>) -> String {
    let shown: String =
        owner.unwrap_or("unknown").chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".of-{shown}"));
    let aside = PathBuf::from(aside);
    match fs::rename(path, &aside) {
        Ok(()) => format!(
            "{path:?} is of another agent (owner id {shown}); it was set aside as {aside:?}"
        ),
        Err(error) => format!(
            "{path:?} is of another agent (owner id {shown}) and can't be set aside: {error}"
        ),
    }
}

/// Renames a file that can't be used; returns the sentence that tells about it.
pub(super) fn set_aside(path: &Path, problem: &str) -> String {
    let free = (1..1000)
        .map(|n| {
            let mut aside = path.as_os_str().to_owned();
            aside.push(format!(".damaged-{n}"));
            PathBuf::from(aside)
        })
        .find(|aside| !aside.exists());
    let Some(aside) = free else {
        return format!(
            "{path:?} can't be used ({problem}); too many damaged copies lie beside it"
        );
    };
    match fs::rename(path, &aside) {
        Ok(()) => format!("{path:?} can't be used ({problem}); it was set aside as {aside:?}"),
        Err(error) => format!("{path:?} can't be used ({problem}) nor set aside: {error}"),
    }
}

/// Writes the whole content under a temporary name, 0600, durably where `sync` says so.
pub(super) fn write_unfinished(path: &Path, content: &[u8], sync: bool) -> io::Result<PathBuf> {
    files::write_unfinished(path, UNFINISHED, content, sync)
}

/// Writes a small file durably, at start.
pub(super) fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    files::replace(path, UNFINISHED, content)
}
