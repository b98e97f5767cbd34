//! Who this agent is: its owner id and its node's name.

use super::{StoreError, files};
use crate::files::read_regular;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

pub(super) struct Owner {
    pub id: String,
    /// It was made at this start: nothing that exists can be this agent's.
    pub is_new: bool,
    /// It is kept in the state directory, not configured.
    pub is_kept: bool,
    /// What a person should know about it.
    pub warnings: Vec<String>,
}

/// The owner id: given, else as kept, else made up and kept.
///
/// Without it the agent would take all running pods for pods of another agent. So there are two
/// copies, and a damaged or lost copy is written again from the other. One that can't be read stays
/// as it is. A new id is made only when it is sure that neither copy has one.
pub(super) fn owner(state_dir: &Path, given: Option<&str>) -> Result<Owner, StoreError> {
    if let Some(given) = given {
        let id = given.to_owned();
        return Ok(Owner { id, is_new: false, is_kept: false, warnings: Vec::new() });
    }
    let mut warnings = Vec::new();
    let (mut kept, mut unreadable) = (None, None);
    for path in owner_files(state_dir) {
        match read(&path) {
            Ok(Some(id)) if is_owner_id(&id) => kept = kept.or(Some(id)),
            Ok(Some(_)) => warnings.push(files::set_aside(&path, "it is no owner id")),
            Ok(None) => {}
            Err(source) => {
                warnings.push(format!(
                    "cannot read {path:?}, a copy of the owner id: {source}; remove it, and it is made anew"
                ));
                unreadable = Some(StoreError::Io { operation: "read", path, source });
            }
        }
    }
    let is_new = kept.is_none();
    let id = match (kept, unreadable) {
        (Some(id), _) => id,
        (None, Some(error)) => return Err(error),
        (None, None) => new_owner_id().map_err(|source| StoreError::Io {
            operation: "make",
            path: state_dir.join(OWNER_FILES[0]),
            source,
        })?,
    };
    match write_owner(state_dir, &id) {
        Ok(()) => {}
        Err(error) if is_new => return Err(error),
        // The other copy is there; a full disk must not keep the agent from starting.
        Err(StoreError::Io { operation, path, source }) => {
            warnings.push(format!("cannot {operation} {path:?}: {source}"));
        }
        Err(other) => return Err(other),
    }
    Ok(Owner { id, is_new, is_kept: true, warnings })
}

/// Names of the two copies.
const OWNER_FILES: [&str; 2] = ["owner", "owner.copy"];

fn owner_files(state_dir: &Path) -> [PathBuf; 2] {
    OWNER_FILES.map(|name| state_dir.join(name))
}

/// Writes the copies that are missing; the first failure after trying both.
pub(super) fn write_owner(state_dir: &Path, id: &str) -> Result<(), StoreError> {
    let mut result = Ok(());
    for path in owner_files(state_dir) {
        if !path.exists() {
            let written = files::write_durably(&path, id.as_bytes());
            let failed = |source| StoreError::Io { operation: "write", path, source };
            result = result.and(written.map_err(failed));
        }
    }
    result
}

/// The owner id that lies in a state directory, if there is one.
pub(super) fn kept_owner(state_dir: &Path) -> Option<String> {
    let paths = owner_files(state_dir);
    paths.iter().filter_map(|path| read(path).ok()?).find(|id| is_owner_id(id))
}

fn is_owner_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn new_owner_id() -> io::Result<String> {
    let mut random = [0_u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The node's name and, where the host is called something else by now, a warning.
pub(super) fn node_name(
    state_dir: &Path,
    given: Option<&str>,
    hostname: &str,
) -> Result<(String, Option<String>), StoreError> {
    let path = state_dir.join(NODE_NAME);
    let failed = |operation, source| StoreError::Io { operation, path: path.clone(), source };
    let kept = read(&path).map_err(|error| failed("read", error))?.filter(|k| !k.is_empty());
    let wanted = given.unwrap_or(hostname).trim().to_lowercase();
    match kept {
        Some(kept) if kept == wanted => return Ok((kept, None)),
        Some(kept) if given.is_none() => {
            let warning = format!(
                "the host is called {wanted:?} now, the node keeps its name {kept:?}; to take the new one, start once with --hostname-override={wanted} (its pods are replaced)"
            );
            return Ok((kept, Some(warning)));
        }
        Some(_) | None => {}
    }
    if wanted.is_empty() {
        let source = io::Error::other("the host has no name; set --hostname-override");
        return Err(failed("make", source));
    }
    files::write_durably(&path, wanted.as_bytes()).map_err(|error| failed("write", error))?;
    Ok((wanted, None))
}

/// Name of the file with the node's name.
const NODE_NAME: &str = "node-name";

/// The files that are there while an agent runs, with those of the owner id where it is kept.
pub(super) fn witnesses(state_dir: &Path, keeps_owner: bool) -> Vec<PathBuf> {
    let owner = OWNER_FILES.iter().filter(|_| keeps_owner);
    owner.chain(&["lock", NODE_NAME]).map(|name| state_dir.join(name)).collect()
}

/// Writes the node's name where the file is missing.
pub(super) fn write_node_name(state_dir: &Path, name: &str) -> io::Result<()> {
    let path = state_dir.join(NODE_NAME);
    if path.exists() { Ok(()) } else { files::write_durably(&path, name.as_bytes()) }
}

/// The owner id that the pod directories were marked with last; see `volume`.
pub(super) fn marked_with(state_dir: &Path) -> Option<String> {
    read(&state_dir.join(MARKED)).ok()?
}

/// Notes that the pod directories were marked with this owner id.
pub(super) fn note_marked(state_dir: &Path, owner: &str) -> io::Result<()> {
    files::write_durably(&state_dir.join(MARKED), owner.as_bytes())
}

/// Name of the file with the owner id that the pod directories were marked with.
const MARKED: &str = "pods-owner";

fn read(path: &Path) -> io::Result<Option<String>> {
    match read_regular(path, 4096) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
