//! Files below `<root>/pods/<uid>`, which no container sees except through the mounts of exactly
//! these files.

use super::{EtcHosts, HostFileError, HostFiles, ResolvConf, check_name, etc_hosts, io_error};
use crate::{
    files::{ReadError, read_regular},
    model::PodUid,
};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// No resolver configuration is larger.
const MAX_RESOLV_CONF: u64 = 10 << 20;
/// No hosts file of a node is larger.
const MAX_HOSTS: u64 = 10 << 20;

impl HostFiles {
    /// Writes `<pod>/etc-hosts` (0644) and returns its path. An existing file is rewritten in
    /// place: containers that have it mounted see the new content. For a pod on the host's
    /// network (`host_network`) the node's own file is read and `hosts.node_hosts` is not used.
    ///
    /// # Errors
    /// When the node's file can't be read or the pod's not be written.
    pub fn write_etc_hosts(
        &self,
        uid: &PodUid,
        host_network: bool,
        hosts: &EtcHosts<'_>,
    ) -> Result<PathBuf, HostFileError> {
        let node_hosts = if host_network {
            let path = &self.paths.node_hosts;
            // Comments may be in any encoding.
            let bytes = read_regular(path, MAX_HOSTS)
                .map_err(|error| io_error("read", path, error.into()))?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        } else {
            None
        };
        let text = etc_hosts(&EtcHosts { node_hosts: node_hosts.as_deref(), ..*hosts });
        let directory = self.pod_dir(uid)?;
        make_directory(&directory)?;
        let path = directory.join("etc-hosts");
        // Not written without need: the disk may be full.
        if is_regular_with(&path, &text) {
            return Ok(path);
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o644);
        // It does not wait for a container that holds a lease on the file.
        options.custom_flags(O_NOFOLLOW | O_NONBLOCK);
        let written = options.open(&path).and_then(|file| overwrite(&file, text.as_bytes()));
        written.map_err(|source| io_error("write", &path, source))?;
        Ok(path)
    }

    /// Makes an empty termination log (0666: any user in the container may write it) with a new
    /// name, `<pod>/containers/<container>/<8 hex digits>`, and returns its path. The logs of
    /// earlier instances are removed, except for those in `used`; `None` removes nothing.
    ///
    /// # Errors
    /// When it can't be made, or an earlier one not be removed.
    pub fn create_termination_log(
        &self,
        uid: &PodUid,
        container: &str,
        used: Option<&[Box<str>]>,
    ) -> Result<PathBuf, HostFileError> {
        check_name(container)?;
        let directory = self.pod_dir(uid)?.join("containers").join(container);
        make_directory(&directory)?;
        if let Some(used) = used {
            remove_other_files(&directory, used)?;
        }
        loop {
            let path = directory.join(random_name()?);
            let created = fs::OpenOptions::new().write(true).create_new(true).open(&path);
            match created.and_then(|f| f.set_permissions(fs::Permissions::from_mode(0o666))) {
                Ok(()) => return Ok(path),
                Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(io_error("create", &path, source)),
            }
        }
    }

    /// `<root>/pods/<uid>`
    fn pod_dir(&self, uid: &PodUid) -> Result<PathBuf, HostFileError> {
        check_name(uid.as_str())?;
        Ok(self.paths.root_dir.join("pods").join(uid.as_str()))
    }
}

impl ResolvConf {
    /// Reads the file that `resolvConf` names.
    ///
    /// # Errors
    /// When it can't be read or is larger than 10 MiB.
    pub fn read(path: &Path) -> Result<Self, HostFileError> {
        let text = read_regular(path, MAX_RESOLV_CONF).map_err(|error| match error {
            ReadError::TooLarge { limit } => {
                HostFileError::TooLarge { path: path.to_owned(), limit }
            }
            error @ (ReadError::Io(_) | ReadError::NotRegular(_)) => {
                io_error("read", path, error.into())
            }
        })?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }
}

/// Whether `path` holds just `text` and everybody may read it; when in doubt not.
fn is_regular_with(path: &Path, text: &str) -> bool {
    let Ok(mut file) =
        fs::OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)
    else {
        return false;
    };
    let expected = |found: &fs::Metadata| {
        let (size, mode) = (found.len(), found.permissions().mode() & 0o7777);
        found.is_file() && size == text.len() as u64 && mode == 0o644
    };
    let mut found = Vec::new();
    file.metadata().is_ok_and(|metadata| expected(&metadata))
        && file.read_to_end(&mut found).is_ok()
        && found == text.as_bytes()
}

/// Makes a file hold just `content`, readable for everybody. It stays the same file, because
/// containers that run have it mounted. It is never empty meanwhile, and when writing fails, as on a
/// full disk, it holds what it held before.
pub(super) fn overwrite(file: &fs::File, content: &[u8]) -> io::Result<()> {
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    let mut before = Vec::new();
    file.take(MAX_HOSTS).read_to_end(&mut before)?;
    let write = |content: &[u8]| {
        file.write_all_at(content, 0)?;
        file.set_len(content.len() as u64)
    };
    write(content).or_else(|error| write(&before).and(Err(error)))
}

/// Removes the files in a directory whose names none of these paths has.
fn remove_other_files(directory: &Path, used: &[Box<str>]) -> Result<(), HostFileError> {
    let failed = |source| io_error("list", directory, source);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let is_used = used.iter().any(|path| Path::new(&**path).file_name() == Some(&name));
        if !is_used && entry.file_type().map_err(failed)?.is_file() {
            let path = entry.path();
            fs::remove_file(&path).map_err(|source| io_error("remove", &path, source))?;
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), HostFileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .map_err(|source| io_error("create", path, source))
}

fn random_name() -> Result<String, HostFileError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 4];
    fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| io_error("read", path, source))?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}
