//! Who this agent is: the lock on its root directory, its owner id, its node's name.

use super::{StoreError, files};
use crate::files::read_regular;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Takes the kernel's lock on the state directory. It ends with the process, however that ends;
/// children don't inherit it (the file is close-on-exec).
pub(super) fn lock(state_dir: &Path, root: &Path) -> Result<Flock<File>, StoreError> {
    let path = state_dir.join("lock");
    let failed = |operation, source| StoreError::Io { operation, path: path.clone(), source };
    let file = open_lock(&path).map_err(|error| failed("open", error))?;
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((mut file, nix::Error::EWOULDBLOCK)) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(|error| failed("read", error))?;
            let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
            return Err(StoreError::Locked { pid: pid.to_owned(), root: root.to_owned() });
        }
        Err((_, error)) => return Err(failed("lock", error.into())),
    };
    let pid = format!("{}\n", std::process::id());
    if let Err(err) = lock.set_len(0).and_then(|()| lock.write_all(pid.as_bytes())) {
        // The lock holds without its text; a full or read-only disk must not keep the agent from starting.
        tracing::warn!(%err, "cannot write the pid to {path:?}");
    }
    Ok(lock)
}

/// On a read-only disk the lock holds without being writable: what runs must be found there, too.
fn open_lock(path: &Path) -> io::Result<File> {
    let writable = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match writable {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
}

/// The owner id: given, else as kept, else made up and kept; and what a person should know about it.
///
/// Without it everything that runs is somebody else's, so there are two copies: one that is damaged or lost is
/// made anew from the other.
pub(super) fn owner(
    state_dir: &Path,
    given: Option<&str>,
) -> Result<(String, Vec<String>), StoreError> {
    if let Some(given) = given {
        return Ok((given.to_owned(), Vec::new()));
    }
    let paths = [state_dir.join("owner"), state_dir.join("owner.copy")];
    let mut warnings = Vec::new();
    let mut kept: Option<String> = None;
    let mut lacking = Vec::new();
    for path in &paths {
        let failed = |source| StoreError::Io { operation: "read", path: path.clone(), source };
        match read(path).map_err(failed)? {
            Some(id) if is_owner_id(&id) => kept = kept.or(Some(id)),
            Some(_) => {
                warnings.push(files::set_aside(path, "it is no owner id"));
                lacking.push(path);
            }
            None => lacking.push(path),
        }
    }
    let is_new = kept.is_none();
    let id = match kept {
        Some(id) => id,
        None => new_owner_id().map_err(|source| StoreError::Io {
            operation: "make",
            path: paths[0].clone(),
            source,
        })?,
    };
    for path in lacking {
        match files::write_durably(path, id.as_bytes()) {
            Ok(()) => {}
            Err(source) if is_new => {
                return Err(StoreError::Io { operation: "write", path: path.clone(), source });
            }
            // The other copy is there; a full disk must not keep the agent from starting.
            Err(error) => warnings.push(format!("cannot write {path:?}: {error}")),
        }
    }
    Ok((id, warnings))
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
    let path = state_dir.join("node-name");
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

fn read(path: &Path) -> io::Result<Option<String>> {
    match read_regular(path, 4096) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
