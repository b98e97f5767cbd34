//! The local socket's file: made for root alone, never taken away from an agent that lives.

use super::{SOCKET_NAME, ServeError};
use std::{
    fs::{self, DirBuilder, Permissions},
    io::ErrorKind,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process,
};
use tokio::{net::UnixListener, sync::watch};

#[derive(Debug)]
pub(super) struct LocalSocket {
    pub(super) listener: UnixListener,
    pub(super) path: SocketFile,
}

/// The file, recognised by its inode.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl LocalSocket {
    pub(super) fn bind(run_dir: &Path) -> Result<Self, ServeError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(run_dir)
            .map_err(at("create the directory", run_dir))?;
        let path = run_dir.join(SOCKET_NAME);
        refuse_unless_free(&path)?;
        // Bound under another name and renamed, so that it is never there with wider permissions,
        // and so that replacing a stale one leaves no gap.
        let temporary = run_dir.join(format!(".{SOCKET_NAME}.{}", process::id()));
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(at("remove", &temporary)(e)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&temporary).map_err(at("bind", &temporary))?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o600))
            .map_err(at("restrict", &temporary))?;
        fs::rename(&temporary, &path).map_err(at("create", &path))?;
        let inode = fs::symlink_metadata(&path).map_err(at("look at", &path))?.ino();
        Ok(Self { listener, path: SocketFile { path, inode } })
    }
}

impl SocketFile {
    /// Waits until a look finds that the file is gone.
    ///
    /// # Cancel safety
    /// It only waits and looks.
    pub(super) async fn lost(&self, looks: &mut watch::Receiver<u64>) {
        loop {
            if looks.changed().await.is_err() {
                return std::future::pending().await;
            }
            let found = fs::symlink_metadata(&self.path);
            if found.is_err_and(|err| err.kind() == ErrorKind::NotFound) {
                return;
            }
        }
    }

    /// Makes the socket again, in place of a file that is gone.
    pub(super) fn bind_again(&self) -> Result<LocalSocket, ServeError> {
        LocalSocket::bind(self.path.parent().unwrap_or(&self.path))
    }

    /// Removes the file, unless another agent's has taken its place.
    pub(super) fn remove(&self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours && let Err(err) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %err, "the local socket can't be removed");
        }
    }
}

fn refuse_unless_free(path: &Path) -> Result<(), ServeError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(at("look at", path)(e)),
    };
    if !found.file_type().is_socket() {
        return Err(ServeError::InTheWay(path.to_owned()));
    }
    // An agent that hangs still has its backlog, so a connection tells the living from the dead.
    match UnixStream::connect(path) {
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(()),
        Ok(_) | Err(_) => Err(ServeError::InUse(path.to_owned())),
    }
}

fn at(operation: &'static str, path: &Path) -> impl Fn(std::io::Error) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::Io { operation, path: path.clone(), source }
}
