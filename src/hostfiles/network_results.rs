//! What CNI remembers of a sandbox's network, where a loss of power has damaged it.
//!
//! The runtime's CNI library keeps the result of every network that it made in
//! `<network>-<sandbox>-<interface>` and does not sync it. From an empty file it can't read how to
//! take the network down, and fails for ever; without the file it asks the plugins, which know.

use super::{HostFileError, HostFiles, io_error};
use crate::model::SandboxId;
use serde::de::IgnoredAny;
use std::{fs, io, path::PathBuf};

impl HostFiles {
    /// Removes what CNI remembers of this sandbox and can't read any more, and names it. Blocks.
    ///
    /// # Errors
    /// When it can't be read or removed.
    pub fn remove_damaged_network_results(
        &self,
        sandbox: &SandboxId,
    ) -> Result<Vec<PathBuf>, HostFileError> {
        let directory = &self.paths.network_results_dir;
        let failed = |source| io_error("list", directory, source);
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed(source)),
        };
        let infix = format!("-{sandbox}-");
        let mut removed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let is_file = entry.file_type().map_err(failed)?.is_file();
            if !is_file || !entry.file_name().to_string_lossy().contains(&infix) {
                continue;
            }
            let content = fs::read(&path).map_err(|source| io_error("read", &path, source))?;
            if serde_json::from_slice::<IgnoredAny>(&content).is_err() {
                fs::remove_file(&path).map_err(|source| io_error("remove", &path, source))?;
                removed.push(path);
            }
        }
        Ok(removed)
    }
}
